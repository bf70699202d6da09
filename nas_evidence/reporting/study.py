"""The report of a study: one HTML page, its Markdown twin, and every table as CSV.

The page answers five questions in this order: which architecture and how sure; can the score be
trusted here; why this architecture; could it have been cheaper; what went wrong.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd

from nas_evidence.maths.ranking import MIN_PAIRS
from nas_evidence.registry import declared
from nas_evidence.reporting import interactive, static
from nas_evidence.reporting.correlations import SCALES, write_csv
from nas_evidence.reporting.figure_data import (
    MAX_LINES,
    Line,
    evidence_lines,
    front_dots,
    score_lines,
    score_marks,
    sotl_lines,
    study_dots,
    target_words,
)
from nas_evidence.reporting.importance import BY_CHANCE
from nas_evidence.reporting.pages import write_markdown, write_page
from nas_evidence.reporting.posterior import SHOWN
from nas_evidence.reporting.report import Report, report_on
from nas_evidence.reporting.tables import Study, load_study_tables
from nas_evidence.reporting.terms import layer_rows, page_data, term_rows

CAPTIONS: Mapping[str, str] = {
    "scatter": (
        "How to read it: each marker is one architecture. If the score can be trusted, the "
        "markers rise from the lower left to the upper right: what the score prefers is also "
        "better on the test data. Larger and brighter markers have more parameters; the shape of "
        "a marker is its family. After Immer et al. (2021), Fig. 2."
    ),
    "trust": (
        "How to read it: the dot is Spearman's rho between score and target over all "
        "architectures, the bar its 95 % bootstrap interval. 1 is the same order, 0 no relation, "
        "-1 the reverse order; 95 % of random orders fall within the bar of random. The score "
        "that ranks should lie clearly to the right of its baselines."
    ),
    "training": (
        "How to read it: one line per architecture, the thick one is the winner. Above, the score "
        "that ranks (larger is better). Below, SOTL, the sum of the training losses so far "
        f"(smaller is better). At most the {MAX_LINES} best are drawn."
    ),
    "epochs": (
        "How to read it: each line is one score, taken at that epoch and compared with the test "
        "result at the end of training. Above, rho (1 is the same order); below, the loss from "
        "using its first choice (0 is best). A line that is flat from early on means that shorter "
        "training would have sufficed. The thick line is the score that ranks; dotted lines are "
        "baselines."
    ),
    "front": (
        "How to read it: up is a better score, left is cheaper. Large markers are on the Pareto "
        "front: no other architecture is as good in every objective and better in one. The line "
        "joins those that no cheaper one beats; with several costs, more markers are on the front "
        "than lie on the line of one picture."
    ),
}


@dataclass(frozen=True)
class ReportPaths:
    """The paths of a report."""

    html: Path
    markdown: Path
    correlations: Path


def build_report(
    folder: Path, to: Path | None = None, *, reload_seconds: int | None = None
) -> ReportPaths:
    """Write the report of the study in `folder` to `to`, by default its folder `report`.

    Reads only the Parquet tables and study.toml; works for any number of trials. An open page
    reloads itself every `reload_seconds`, if given.

    Raises:
        ValueError: the folder holds no study file.
    """
    report = report_on(load_study_tables(folder))
    return write_report(report, to or folder / "report", reload_seconds=reload_seconds)


def write_report(report: Report, to: Path, *, reload_seconds: int | None = None) -> ReportPaths:
    """Write the page, its Markdown twin, the figures and the CSV files into the folder `to`."""
    to.mkdir(parents=True, exist_ok=True)
    values = _values(report)
    values["reload_seconds"] = reload_seconds
    values["figures"] = _figures(report, to)
    paths = ReportPaths(to / "index.html", to / "report.md", to / "correlations.csv")
    write_page(paths.html, "study.html.j2", values)
    write_markdown(paths.markdown, "study.md.j2", values)
    write_csv(paths.correlations, report.trust.rows)
    _write_tables(report, to)
    return paths


def _values(report: Report) -> dict[str, object]:
    """Return the values that both templates use."""
    study, compared = report.study, report.compared
    varied = [name for name in _parameters(study) if name not in ("depth", "width")]
    accuracies = [a.test_accuracy for a in study.ranking if a.test_accuracy is not None]
    losses = [a.test_nll for a in study.ranking if a.test_nll is not None]
    return {
        "title": f"{study.spec.name}: architectures ranked by evidence",
        "study": study,
        "spec": study.spec,
        "labels": study.targets[0] == "test_accuracy",
        "trust": report.trust,
        "scales": SCALES,
        "captions": CAPTIONS,
        "min_pairs": MIN_PAIRS,
        "yardstick_sentence": report.yardstick,
        "certainty": report.certainty,
        "settled": report.settled,
        "target_words": target_words(study.targets[0]),
        "objective_words": declared(report.study.spec.objective).summary,
        "verdict": report.trust.sentences[0][1],
        "best_accuracy": max(accuracies, default=None),
        "best_nll": min(losses, default=None),
        "columns": ["depth", "width", *varied],
        "replicated": any(len(one.trial_ids) > 1 for one in study.ranking),
        "statuses": report.statuses,
        "spent": report.spent,
        "n_complete": len(study.complete),
        "problems": report.problems,
        "flags": report.flags,
        "early": report.early,
        "settling": report.settling,
        "pruning": report.pruning,
        "compared": compared,
        "gap": report.gap,
        "terms": page_data(compared) if compared else [],
        "beliefs": report.beliefs,
        "n_beliefs": SHOWN,
        "posterior": report.posterior,
        "importances": report.importances,
        "by_chance": BY_CHANCE,
        "importance": report.importance,
    }


def _figures(report: Report, to: Path) -> dict[str, interactive.Figure]:
    """Return the figures of the page, and draw their static twins."""
    study, judged = report.study, report.trust
    target = study.targets[0]
    x_title = f"{study.spec.objective} ({study.objective_unit})"
    y_title = target_words(target)
    figures = {}
    if dots := study_dots(study):
        figures["scatter"] = interactive.scatter_figure(dots, x_title=x_title, y_title=y_title)
        static.save_scatter(to / "scatter.png", dots, x_title=x_title, y_title=y_title)
    if marks := score_marks(judged, target=target):
        figures["trust"] = interactive.trust_figure(marks, target=target)
        static.save_trust(to / "trust.png", marks, target=target)
    if panels := _panels(study):
        figures["training"] = interactive.training_figure(panels)
        static.save_training(to / "training.png", panels)
    lines, unit = score_lines(judged, report.early), judged.scale.unit
    if any(len(line.epochs) > 1 for line in lines):
        figures["epochs"] = interactive.epochs_figure(lines, target=target, unit=unit)
        static.save_epochs(to / "epochs.png", lines, target=target, unit=unit)
    for cost in study.spec.minimise:
        if front := front_dots(study, cost):
            name = f"front_{cost}"
            figures[name] = interactive.front_figure(front, cost=cost, y_title=x_title)
            static.save_front(to / f"{name}.png", front, cost=cost, y_title=x_title)
    return figures


def _write_tables(report: Report, to: Path) -> None:
    """Write every table of the page as CSV, beside correlations.csv."""
    compared = report.compared
    tables = {
        "ranking": pd.DataFrame([_flat(asdict(one)) for one in report.study.ranking]),
        "epochs": pd.DataFrame([_flat(asdict(one)) for one in report.early]),
        "pruning": pd.DataFrame([asdict(one) for one in report.pruning.rungs]),
        "terms": term_rows(compared) if compared else pd.DataFrame(),
        "layers": layer_rows(compared) if compared else pd.DataFrame(),
        "posterior": pd.DataFrame([asdict(one) for one in report.beliefs]),
        "importance": pd.DataFrame([asdict(one) for one in report.importances]),
        "statuses": pd.DataFrame([asdict(one) for one in report.statuses]),
        "problems": pd.DataFrame([asdict(one) for one in (*report.problems, *report.flags)]),
    }
    for name, table in tables.items():
        table.to_csv(to / f"{name}.csv", index=False, lineterminator="\n")


def _flat(row: Mapping[str, object]) -> dict[str, object]:
    """Return a row without nesting: pairs become _low and _high, mappings columns."""
    flat: dict[str, object] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            prefix = {"values": "arch_", "interval": "rho_"}.get(name, "")
            flat |= {f"{prefix}{key}": inner for key, inner in value.items()}
        elif name in ("rank_seeds", "rank_range"):
            low, high = value if isinstance(value, tuple) else (None, None)
            flat |= {f"{name}_low": low, f"{name}_high": high}
        elif isinstance(value, tuple):
            flat[name] = " ".join(map(str, value))
        elif name != "interval":
            flat[name] = value
    return flat


def _parameters(study: Study) -> list[str]:
    """Return the architecture parameters with more than one value among the ranked."""
    values: dict[str, set[object]] = {}
    for one in study.ranking:
        for name, value in one.values.items():
            values.setdefault(name, set()).add(value)
    return [name for name, distinct in values.items() if len(distinct) > 1]


def _panels(study: Study) -> list[tuple[str, list[Line]]]:
    panels = [
        (f"{study.spec.objective}, {study.objective_unit}", evidence_lines(study)),
        ("SOTL, nats per datum", sotl_lines(study)),
    ]
    return [(title, lines) for title, lines in panels if lines]
