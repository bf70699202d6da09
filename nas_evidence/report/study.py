"""The report of a study: one HTML page, its Markdown twin, and correlations.csv."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from nas_evidence.maths.ranking import MIN_PAIRS
from nas_evidence.record import TrialStatus
from nas_evidence.report import interactive, static
from nas_evidence.report.correlations import SCALES, Trust, trust, write_csv
from nas_evidence.report.figure_data import (
    MAX_LINES,
    Line,
    evidence_lines,
    score_marks,
    sotl_lines,
    study_dots,
)
from nas_evidence.report.pages import write_markdown, write_page
from nas_evidence.report.tables import TARGETS, Study, last_evaluations, load_study_tables
from nas_evidence.spec import BASELINES, CURVE_SCORES

CAPTIONS: Mapping[str, str] = {
    "scatter": (
        "How to read it: each marker is one trial. If the score can be trusted, the markers rise "
        "from the lower left to the upper right: what the score prefers is also more accurate. "
        "Larger and brighter markers have more parameters; the shape of a marker is its family. "
        "In the manner of Immer et al. (2021), Fig. 2."
    ),
    "trust": (
        "How to read it: the dot is Spearman's rho between score and test accuracy over all "
        "trials, the bar its 95 % bootstrap interval. 1 is the same order, 0 no relation, -1 the "
        "reverse order. The score that ranks the trials should lie clearly to the right of the "
        "baselines, which cost nothing."
    ),
    "training": (
        "How to read it: one line a trial, the thick one is the winner. Above, the score that "
        "ranks (larger is better): lines that stop crossing early mean that shorter training "
        "would have ranked the same. Below, SOTL, the sum of the training losses so far (smaller "
        f"is better). At most the {MAX_LINES} best trials are drawn."
    ),
}
_LISTED = 8  # trial numbers written out for one cause


@dataclass(frozen=True)
class ReportPaths:
    """Where a report lies."""

    html: Path
    markdown: Path
    correlations: Path


@dataclass(frozen=True)
class Problem:
    """Trials that share one thing that went wrong."""

    kind: str
    detail: str
    n: int
    trials: str


def build_report(folder: Path, to: Path | None = None) -> ReportPaths:
    """Write the report of the study in `folder` to `to`, by default its folder `report`.

    Reads the Parquet tables and study.toml and nothing else; builds for any number of trials.

    Raises:
        ValueError: the folder holds no study file.
    """
    study = load_study_tables(folder)
    to = to or folder / "report"
    to.mkdir(parents=True, exist_ok=True)
    rivals = [
        name
        for name in study.scores
        if name in (*BASELINES, *CURVE_SCORES) and name != study.objective
    ]
    judged = trust(
        study.complete,
        scores=study.scores,
        targets=TARGETS,
        rivals=rivals,
        group="family",
        seed=study.seed,
    )
    dots, marks = study_dots(study), score_marks(judged, target=TARGETS[0])
    panels = _panels(study)
    axis = f"{study.objective} ({study.objective_unit})"
    figures = {}
    if dots:
        figures["scatter"] = interactive.scatter_figure(
            dots, x_title=axis, y_title="test accuracy"
        )
        static.save_scatter(to / "scatter.png", dots, x_title=axis, y_title="test accuracy")
    if marks:
        figures["trust"] = interactive.trust_figure(marks, target=TARGETS[0])
        static.save_trust(to / "trust.png", marks, target=TARGETS[0])
    if panels:
        figures["training"] = interactive.training_figure(panels)
        static.save_training(to / "training.png", panels)
    values = _values(study, judged) | {"figures": figures}
    paths = ReportPaths(to / "index.html", to / "report.md", to / "correlations.csv")
    write_page(paths.html, "study.html.j2", values)
    write_markdown(paths.markdown, "study.md.j2", values)
    write_csv(paths.correlations, judged.rows)
    return paths


def _values(study: Study, judged: Trust) -> dict[str, object]:
    """Return what both templates know."""
    varied = [name for name in _parameters(study) if name not in ("depth", "width")]
    return {
        "title": f"{study.name}: architectures ranked by evidence",
        "study": study,
        "trust": judged,
        "scales": SCALES,
        "captions": CAPTIONS,
        "min_pairs": MIN_PAIRS,
        "verdict": judged.sentences[0][1],
        "best_accuracy": max(
            (t.test_accuracy for t in study.ranking if t.test_accuracy is not None), default=None
        ),
        "columns": ["depth", "width", *varied],
        "statuses": _statuses(study.trials),
        "n_complete": len(study.complete),
        "problems": _problems(study),
    }


def _parameters(study: Study) -> list[str]:
    """Return the architecture parameters with more than one value among the ranked trials."""
    values: dict[str, set[object]] = {}
    for trial in study.ranking:
        for name, value in trial.values.items():
            values.setdefault(name, set()).add(value)
    return [name for name, distinct in values.items() if len(distinct) > 1]


def _panels(study: Study) -> list[tuple[str, list[Line]]]:
    panels = [
        (f"{study.objective}, {study.objective_unit}", evidence_lines(study)),
        ("SOTL, nats per datum", sotl_lines(study)),
    ]
    return [(title, lines) for title, lines in panels if lines]


def _statuses(trials: pd.DataFrame) -> dict[str, int]:
    """Return how many trials ended in which way, in the order of the status words."""
    counts = trials["status"].value_counts()
    return {status.value: int(counts[status.value]) for status in TrialStatus if status in counts}


def _problems(study: Study) -> list[Problem]:
    """Return what went wrong, most frequent first."""
    failed = study.trials[study.trials["status"] != TrialStatus.COMPLETE.value]
    last_line = failed["error"].fillna("").str.strip().str.split("\n").str[-1]
    cause = failed["cause"].fillna("")
    failed = failed.assign(kind=failed["status"], detail=cause.where(cause != "", last_line))
    last = last_evaluations(study.evidence)
    last = last[last["trial_id"].isin(study.complete.index)]
    invalid = last[~last["valid"].fillna(False) | last["value"].isna()]
    invalid = invalid.assign(kind="invalid " + invalid["estimator"], detail=invalid["note"])
    problems = [
        Problem(str(kind), str(detail), len(rows), _listed(rows["trial_id"].tolist()))
        for frame in (failed, invalid)
        for (kind, detail), rows in frame.groupby(["kind", "detail"], dropna=False)
    ]
    problems += [Problem("unreadable file", f"{f.path.name}: {f.reason}", 1, "")
                 for f in study.unreadable]  # fmt: skip
    return sorted(problems, key=lambda problem: -problem.n)


def _listed(trial_ids: list[int]) -> str:
    more = f" and {len(trial_ids) - _LISTED} more" if len(trial_ids) > _LISTED else ""
    return ", ".join(map(str, trial_ids[:_LISTED])) + more
