"""The report of a study: one HTML page, its text as Markdown, its values as JSON, three tables.

The first screen is the answer: which architecture, how sure, what it costs to be wrong, beside
which simple models, and how to use it. Then five pictures. All else folds away.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from operator import methodcaller
from pathlib import Path

import pandas as pd
from markupsafe import Markup
from pydantic_core import to_json

from nas_evidence.baselines.comparison import Comparison, Importance, read_comparison
from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.foreign_text import csv_cell
from nas_evidence.plumbing.sums import NAME, write_sums
from nas_evidence.reporting import figures as draw
from nas_evidence.reporting.contents import Report, report_on
from nas_evidence.reporting.correlations import SCALES, WORDS, words_of, write_csv
from nas_evidence.reporting.figure_data import (
    MAX_LINES,
    MOST_COLUMNS,
    column_bars,
    evidence_lines,
    front_dots,
    importance_bars,
    loss_lines,
    measured_bars,
    score_lines,
    score_marks,
    study_dots,
    target_words,
)
from nas_evidence.reporting.study_tables import (
    RankedArchitecture,
    Study,
    architecture_text,
    ranked_study,
)
from nas_evidence.reporting.templating import named, write_markdown, write_page
from nas_evidence.reporting.terms import term_rows
from nas_evidence.spec.metric_names import LESS_IS_BETTER, METRICS
from nas_evidence.spec.record import n_searched
from nas_evidence.spec.registry import declared
from nas_evidence.storage.tables import (
    ARCHITECTURE,
    StudyTables,
    architecture_values,
    read_study_tables,
)

CAPTIONS: Mapping[str, str] = {
    "scatter": (
        "Score against test result, one marker per architecture, larger with more parameters. If "
        "the score can be trusted here, the markers rise to the right. Open markers lie beyond "
        "the axes."
    ),
    "training": (
        "Loss on the training data, epoch by epoch; the thick line is the winner. A line that "
        f"still falls at its end needs more epochs. At most the {MAX_LINES} best are drawn."
    ),
    "measured": (
        "The winner beside simple models of the same rows, on data that none of them was trained "
        "on. The dark lines are one standard error to each side: where they overlap, the "
        "difference may be chance."
    ),
    "calibration": (
        "Of held-out rows by predicted confidence, the share predicted correctly. On the dotted "
        "line the winner is calibrated; below it, overconfident. The bars are two standard errors."
    ),
    "coverage": (
        "Of the held-out targets, the share inside the winner's prediction intervals. On the "
        "dotted line the intervals are as wide as they should be; below, too narrow; above, too "
        "wide. The bars are two standard errors."
    ),
    "quarters": (
        "Coverage by quartile of the prediction: do the intervals hold for small and for large "
        "predictions? The held-out rows are divided into four quarters by what is predicted. On "
        "the dotted lines the intervals of 50 and 90 % are as wide as they should be. The bars "
        "are 95 % intervals of the share."
    ),
    "pit": (
        "PIT histogram: how many held-out targets lie in each tenth of the distribution that was "
        "predicted for them. A tenth in each is calibrated, up to the dotted lines (two standard "
        "errors). More at both ends: too narrow; more in the middle: too wide."
    ),
    "confusion": (
        "Held-out data by true and predicted class; a perfect model has them all on the diagonal."
    ),
    "pairs": "Held-out data, predicted against true; a perfect model lies on the dotted line.",
    "importance": (
        "Which parameters of the architecture matter: how much the best quarter of the "
        "architectures differs from all in each (PED-ANOVA; Watanabe et al., 2023). Short bars "
        "may be chance."
    ),
    "trust": (
        "How to read it: the dot is Spearman's rho between score and target over all "
        "architectures, the bar its 95 % interval. 1 is the same order, 0 no relation, "
        "-1 the reverse order; 95 % of random orders fall within the bar of random. The score "
        "that ranks should lie clearly to the right of its baselines."
    ),
    "evidence": (
        "How to read it: one line per architecture, the thick one is the winner: the score that "
        "ranks at each evaluation (larger is better)."
    ),
    "epochs": (
        "How to read it: each line is one score, taken at that epoch and compared with the test "
        "result at the end of training. Above, rho (1 is the same order); below, the loss from "
        "using its first choice (0 is best). The thick line is the score that ranks; dotted lines "
        "are baselines."
    ),
    "front": (
        "How to read it: up is a better score, left is cheaper. Large markers are on the Pareto "
        "front: no other architecture is as good in every objective and better in one. The line "
        "joins those that no cheaper one beats; with several costs, more markers are on the front "
        "than lie on the line of one picture."
    ),
}
#: Most architectures on the page; all are in ranking.csv and terms.csv.
MOST_ROWS = 200
#: Characters below a picture.
_ACROSS = 60
#: Names of all metrics, in the order in which they are shown.
_METRICS = tuple(dict.fromkeys(name for group in METRICS.values() for name in group))


@dataclass(frozen=True)
class ReportPaths:
    """The paths of a report."""

    html: Path
    markdown: Path
    correlations: Path


def build_report(
    study: Path | StudyTables,
    to: Path | None = None,
    *,
    reload_seconds: int | None = None,
    metric: str | None = None,
) -> ReportPaths:
    """Write the report of a study to `to`, by default the folder `report` of its own.

    Needs only the Parquet tables and study.toml of its folder, or both as they were read; works
    for any number of trials. An open page reloads itself every `reload_seconds`, if given. A
    `metric` is shown after the log loss; by default that of the study.

    Raises:
        ValueError: the folder holds no study file, or its studies have no such metric.
    """
    tables = read_study_tables(study) if isinstance(study, Path) else study
    folder = tables.folder
    report = report_on(ranked_study(tables), read_comparison(folder), place=folder, metric=metric)
    return write_report(report, to or folder / "report", reload_seconds=reload_seconds)


def write_report(report: Report, to: Path, *, reload_seconds: int | None = None) -> ReportPaths:
    """Write the page, its text as Markdown, JSON and CSV into the folder `to`."""
    to.mkdir(parents=True, exist_ok=True)
    values = _values(report)
    values["reload_seconds"] = reload_seconds
    values["figures"] = figures_of(report)
    paths = ReportPaths(to / "index.html", to / "report.md", to / "correlations.csv")
    (to / NAME).unlink(missing_ok=True)  # until all is written anew
    write_page(paths.html, "study.html.j2", values)
    write_markdown(paths.markdown, "study.md.j2", values)
    write_csv(paths.correlations, report.trust.rows)
    write_whole(to / "report.json", _as_json(report))
    tables = {
        "ranking.csv": pd.DataFrame(_ranking_rows(report)),
        "terms.csv": term_rows(report.compared) if report.compared else pd.DataFrame(),
    }
    for name, table in tables.items():
        cells = table.rename(columns=csv_cell).map(csv_cell)
        write_whole(to / name, cells.to_csv(index=False, lineterminator="\n"))
    ours = (paths.html, paths.markdown, paths.correlations)
    write_sums(to, [*(path.name for path in ours), "report.json", *tables])
    return paths


def _values(report: Report) -> dict[str, object]:
    """Return the values that both templates use."""
    study, compared, judged = report.study, report.compared, _of_winner(report)
    labels = study.spec.plan.likelihood == "categorical"
    varied = [name for name in _parameters(study) if name not in ("depth", "width")]
    return {
        "name": (name := named(study.spec.name, report.place)),
        "title": f"{name}: architectures ranked by {study.ranks_by}",
        "study": study,
        "spec": study.spec,
        "labels": labels,
        "trust": report.trust,
        "scales": SCALES,
        "captions": {
            **CAPTIONS,
            **({} if labels else {"calibration": CAPTIONS["coverage"]}),
            "columns": columns_caption(judged.importance) if judged else "",
        },
        "history": _history(study)[:MOST_ROWS],
        "headline": report.headline,
        "sure": report.certainty,
        "comparison": report.comparison,
        "metrics": _shown_metrics(report),
        "metric_names": [_named(name, labels=labels) for name in _metrics_in_order(report)],
        "target_words": target_words(study.targets[0]),
        "ranked_by": _ranked_by(study),
        "verdict": report.verdict,
        "target_names": WORDS,
        "columns": ["depth", "width", *varied],
        "replicated": any(len(one.trial_ids) > 1 for one in study.ranking),
        "statuses": report.statuses,
        "spent": report.spent,
        "n_complete": len(study.complete),
        "n_searched": n_searched(study.trials["trial_id"]),
        "problems": report.problems,
        "flags": report.flags,
        "early": report.early,
        "settling": report.settling,
        "speed": report.speed,
        "pruning": report.pruning,
        "compared": compared,
        "why": report.why,
        "most_rows": MOST_ROWS,
        "importances": report.importances,
        "importance": report.importance,
    }


def _ranked_by(study: Study) -> str:
    if study.spec.rank_by == "estimate":
        return study.order.partition("Ranked by ")[2].rstrip(".")
    score, folds = study.spec.objective, study.spec.plan.folds
    words = declared(score).summary.replace("K-fold", f"{folds}-fold")
    if score == "conditional_evidence":
        words = f"the {words.replace('K folds', f'{folds} folds')}"
    return f"{words}: {score}"


def figures_of(report: Report) -> dict[str, Markup]:
    """Return every figure of the page by its name."""
    study, judged = report.study, report.trust
    target = study.targets[0]
    x_title = f"{study.spec.objective} ({study.objective_unit})"
    y_title = target_words(target)
    figures = _judged_figures(report)
    if dots := study_dots(study):
        figures["scatter"] = draw.scatter_figure(dots, x_title=x_title, y_title=y_title)
    if marks := score_marks(judged, target=target):
        figures["trust"] = draw.trust_figure(marks, target=words_of(target))
    if lines := loss_lines(study):
        figures["training"] = draw.training_figure("training loss, nats per datum", lines)
    own = evidence_lines(study)
    if any(len(set(line.values)) > 1 for line in own):
        title = f"{study.spec.objective}, {study.objective_unit}"
        figures["evidence"] = draw.training_figure(title, own)
    if bars := importance_bars(report.importances):
        figures["importance"] = draw.importance_figure(bars)
    scores, unit = score_lines(judged, report.early), judged.scale.unit
    if any(len(line.epochs) > 1 for line in scores):
        figures["epochs"] = draw.epochs_figure(scores, target=words_of(target), unit=unit)
    for cost in study.spec.minimise:
        if front := front_dots(study, cost):
            figures[f"front_{cost}"] = draw.front_figure(front, cost=cost, y_title=x_title)
    return figures


def _judged_figures(report: Report) -> dict[str, Markup]:
    """Return the figures of the winner's predictions of held-out data."""
    judged, figures = _of_winner(report), {}
    if judged is None:
        return {}
    labels = judged.task == "labels"
    if bars := measured_bars(judged, report.shown_metric):
        words = _named(report.shown_metric, labels=labels)
        words += " (smaller is better)" if report.shown_metric in LESS_IS_BETTER else ""
        name = "of the winner and of simple models"
        figures["measured"] = draw.measured_figure(bars, words=words, name=name)
    if judged.calibration:
        figures["calibration"] = draw.calibration_figure(judged.calibration, labels=labels)
    if judged.confusion:
        names = [_class_name(judged, i) for i in range(len(judged.confusion))]
        figures["confusion"] = draw.confusion_figure(judged.confusion, names)
    if judged.quarters:
        figures["quarters"] = draw.quarters_figure(judged.quarters)
    if judged.pit:
        figures["pit"] = draw.pit_figure(judged.pit)
    if judged.pairs:
        figures["pairs"] = draw.pairs_figure(judged.pairs)
    if judged.importance:
        words = worsening(judged.importance.metric, labels=labels)
        bars = column_bars(judged.importance)
        figures["columns"] = draw.measured_figure(bars, words=words, name="by column")
    return figures


def _class_name(judged: Comparison, label: int) -> str:
    """Return the name of a class, cut so that all fit below a picture."""
    name = judged.classes[label] if judged.classes else str(label)
    most = max(4, _ACROSS // max(len(judged.classes), 1))
    return name if len(name) <= most else f"{name[: most - 1]}…"


def worsening(metric: str, *, labels: bool) -> str:
    """Say in which direction predictions become worse by a metric."""
    if metric == "coverage":
        return "coverage of the 90 % intervals: further from 90 %"
    side = "rise" if metric in LESS_IS_BETTER else "fall"
    return f"{side} in {_named(metric, labels=labels)}"


def columns_caption(found: Importance | None) -> str:
    """Say what the importance of columns is, and on which rows it was found."""
    if found is None:
        return ""
    of = "test rows" if found.on == "test" else "rows that the winner was trained on"
    careful = "" if found.on == "test" else ", so the values are optimistic"
    drawn, n_tried = min(len(found.columns), MOST_COLUMNS), len(found.columns)
    part = f" The first {drawn} of {n_tried} columns are drawn." if drawn < n_tried else ""
    part += f" {found.left_out} more columns were not tried." if found.left_out else ""
    return (
        "Which columns of the table the winner uses: how much worse it predicts when one column "
        f"is shuffled (permutation importance, the mean of {found.repeats} shuffles; the dark "
        f"lines are one standard deviation to each side). Measured on {found.n:,} {of}{careful}. "
        "Blue bars are more than two standard deviations above 0. Where two columns carry the "
        f"same information, each can look unimportant.{part}"
    )


def _of_winner(report: Report) -> Comparison | None:
    judged, winner = report.comparison, report.study.winner
    return judged if judged and winner and judged.trial_id == winner.trial_id else None


def _shown_metrics(report: Report) -> list[tuple[str, list[float | None]]]:
    """Return name and metrics of the winner and of each baseline, in the order of METRICS.

    Of a winner with several seeds the first name says whether its metrics are of one or of all.
    """
    judged, winner = _of_winner(report), report.study.winner
    if judged is None or winner is None:
        return []
    name = "winner"
    if len(winner.trial_ids) > 1:
        alone = f"trial {judged.trial_id}"
        name = f"winner, {f'mean of {judged.seeds} seeds' if judged.seeds > 1 else alone}"
    rows = [(name, judged.metrics), *((one.name, one.metrics) for one in judged.baselines)]
    shown = _metrics_in_order(report)
    return [(name, [own.get(metric) for metric in shown]) for name, own in rows]


def _named(metric: str, *, labels: bool) -> str:
    return METRICS["categorical" if labels else "gaussian"][metric]


def _metrics_in_order(report: Report) -> list[str]:
    """Return the metrics that the winner has: log loss, the one that was asked for, the others."""
    first = ["log_loss", *([report.metric] if report.metric else [])]
    known = report.comparison.metrics if report.comparison else {}
    return [name for name in dict.fromkeys([*first, *_METRICS]) if name in known]


def _as_json(report: Report) -> str:
    """Return the values of the page; the trials and their curves are in the Parquet tables."""
    study, compared = report.study, report.compared
    values = {field.name: getattr(report, field.name) for field in fields(report)}
    del values["place"]  # says where it lay, and not what was found
    values["compared"] = compared and replace(compared, columns=compared.columns[:2])
    values["study"] = {
        "name": study.spec.name,
        "score": study.spec.objective,
        "unit": study.objective_unit,
        "targets": study.targets,
        "n_trials": study.spec.n_trials,
        "n_searched": n_searched(study.trials["trial_id"]),
        "ranking": study.ranking,
    }
    scalar = methodcaller("item")  # of NumPy
    return to_json(values, indent=1, inf_nan_mode="null", fallback=scalar).decode()


def _ranking_rows(report: Report) -> list[dict[str, object]]:
    """Return the ranking with the probability of each to be the best by the score, if stated."""
    best = (report.certainty and report.certainty.best) or ()
    return [
        _flat(one) | {"p_best": best[i] if i < len(best) else None}
        for i, one in enumerate(report.study.ranking)
    ]


def _flat(one: RankedArchitecture) -> dict[str, object]:
    """Return a row without nesting: pairs become _low and _high, mappings columns."""
    flat: dict[str, object] = {}
    for name, value in asdict(one).items():
        if isinstance(value, Mapping):
            prefix = ARCHITECTURE if name == "values" else ""
            flat |= {f"{prefix}{key}": inner for key, inner in value.items()}
        elif name == "rank_seeds":
            flat["rank_seeds_low"], flat["rank_seeds_high"] = value or (None, None)
        elif isinstance(value, tuple):
            flat[name] = " ".join(map(str, value))
        else:
            flat[name] = value
    return flat


@dataclass(frozen=True)
class Tried:
    """One trial of the history: its score, and the best of all trials until then."""

    trial_id: int
    architecture: str
    family: str
    status: str
    score: float | None
    best: float | None
    seconds: float | None


def _history(study: Study) -> list[Tried]:
    scores, best, found = study.complete["objective"], None, []
    for row in study.trials.sort_values("trial_id").to_dict("records"):
        score = scores.get(row["trial_id"])
        score = None if score is None or pd.isna(score) else float(score)
        best = best if score is None else score if best is None else max(best, score)
        seconds, family = row["total_seconds"], str(row["family"])
        found.append(
            Tried(
                int(row["trial_id"]), architecture_text(family, architecture_values(row)), family,
                str(row["status"]), score, best, None if pd.isna(seconds) else float(seconds),
            )
        )  # fmt: skip
    return found


def _parameters(study: Study) -> list[str]:
    """Return the architecture parameters with more than one value among the ranked."""
    values: dict[str, set[object]] = {}
    for one in study.ranking:
        for name, value in one.values.items():
            values.setdefault(name, set()).add(value)
    return [name for name, distinct in values.items() if len(distinct) > 1]
