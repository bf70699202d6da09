"""What the figures show, before anyone draws: the page and its Markdown twin share it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from nas_evidence.maths.ranking import RankStatistics
from nas_evidence.report.correlations import ALL, Trust
from nas_evidence.report.tables import RankedTrial, Study, usable

#: One colour a family; told apart by the colour-blind, and on light and dark grounds.
COLOURS = ("#3b82c4", "#d9822b", "#2f9e78", "#b565b0", "#a08a2e", "#c0504d", "#5fb3c9", "#8c8c8c")
#: Lines drawn at most, best trials first; more than this nobody can follow.
MAX_LINES = 60
#: What a score is to the study, in the order of the legend.
KINDS = ("main score", "other estimate", "baseline")


@dataclass(frozen=True)
class Dot:
    """One marker of the scatter plot; `details` are its lines of text."""

    x: float
    y: float
    family: str
    n_parameters: float | None
    details: tuple[str, ...]


@dataclass(frozen=True)
class Line:
    """One trial along training."""

    label: str
    family: str
    epochs: tuple[int, ...]
    values: tuple[float, ...]
    emphasised: bool


@dataclass(frozen=True)
class ScoreMark:
    """One score of the figure of correlations."""

    score: str
    kind: str
    statistics: RankStatistics


def colour(position: int) -> str:
    """Return the colour of the family at `position`."""
    return COLOURS[position % len(COLOURS)]


def marker_sizes(dots: Sequence[Dot]) -> list[float]:
    """Return diameters of 8 to 26 pixels, linear in the logarithm of the parameters."""
    logs = [math.log10(dot.n_parameters) for dot in dots if dot.n_parameters]
    low, high = (min(logs), max(logs)) if logs else (0.0, 0.0)
    if low == high:
        return [13.0] * len(dots)
    return [
        8.0 + 18.0 * (math.log10(dot.n_parameters) - low) / (high - low)
        if dot.n_parameters
        else 8.0
        for dot in dots
    ]


def logarithmic_ticks(dots: Sequence[Dot]) -> dict[float, str]:
    """Return positions (log10) and labels of a colour scale of parameter counts."""
    logs = [math.log10(dot.n_parameters) for dot in dots if dot.n_parameters]
    if not logs:
        return {}
    whole = range(math.ceil(min(logs)), math.floor(max(logs)) + 1)
    positions = list(whole) if len(whole) >= 2 else sorted({min(logs), max(logs)})
    return {position: short_count(10**position) for position in positions}


def short_count(count: float) -> str:
    """Return a count in three digits.

    >>> [short_count(n) for n in (650, 1000, 268_393, 1_494_154)]
    ['650', '1k', '268k', '1.49M']
    """
    for size, suffix in ((1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g}{suffix}"
    return f"{count:.3g}"


def study_dots(study: Study) -> list[Dot]:
    """Return a dot for each trial that has its objective and its test accuracy."""
    return [
        Dot(
            x=trial.objective,
            y=trial.test_accuracy,
            family=trial.family,
            n_parameters=trial.n_parameters,
            details=_details(trial, study),
        )
        for trial in study.ranking
        if trial.objective is not None and trial.test_accuracy is not None
    ]


def _details(trial: RankedTrial, study: Study) -> tuple[str, ...]:
    lines = [
        f"rank {trial.rank}, trial {trial.trial_id}",
        trial.architecture,
        f"{trial.n_parameters:,} parameters" if trial.n_parameters is not None else "",
        f"{study.objective} {trial.objective:.4f} {study.objective_unit}",
        f"test accuracy {trial.test_accuracy:.4f}",
        f"SOTL {trial.sotl:.3f}" if trial.sotl is not None else "",
    ]
    return tuple(filter(None, lines))


def evidence_lines(study: Study) -> list[Line]:
    """Return the objective of each trial at its evaluation epochs."""
    return _lines(
        study, usable(study.evidence[study.evidence["estimator"] == study.objective]), "shown"
    )


def sotl_lines(study: Study) -> list[Line]:
    """Return the sum of training losses of each trial, epoch by epoch."""
    return _lines(study, study.curves[study.curves["sotl"].notna()], "sotl")


def _lines(study: Study, rows: pd.DataFrame, column: str) -> list[Line]:
    by_trial = dict(tuple(rows.groupby("trial_id")))
    return [
        Line(
            label=f"rank {trial.rank or 'undefined'}, trial {trial.trial_id}: "
            f"{trial.architecture}",
            family=trial.family,
            epochs=tuple(int(epoch) for epoch in by_trial[trial.trial_id]["epoch"]),
            values=tuple(float(value) for value in by_trial[trial.trial_id][column]),
            emphasised=trial is study.winner,
        )
        for trial in study.ranking[:MAX_LINES]
        if trial.trial_id in by_trial
    ]


def score_marks(trust: Trust, *, target: str) -> list[ScoreMark]:
    """Return the scores whose rho over all rows is defined, worst first."""
    marks = [
        ScoreMark(row.score, _kind(trust, row.score), row.statistics)
        for row in trust.rows
        if row.target == target and row.group == ALL and row.statistics.rho is not None
    ]
    return sorted(marks, key=lambda mark: mark.statistics.rho or 0.0)


def _kind(trust: Trust, score: str) -> str:
    if score == trust.main:
        return KINDS[0]
    return KINDS[2] if score in trust.rivals else KINDS[1]
