"""The data of the figures, apart from how they are drawn."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from nas_evidence.baselines.comparison import Comparison, Importance
from nas_evidence.maths.ranking import RankStatistics
from nas_evidence.reporting.along_training import EarlyTrust
from nas_evidence.reporting.correlations import ALL, Trust
from nas_evidence.reporting.importance import ParameterImportance
from nas_evidence.reporting.study_tables import LOSSES, RankedArchitecture, Study, usable

#: Most lines drawn, best trials first; more would be unreadable.
MAX_LINES = 20
#: Most columns of a table in the chart of their importance.
MOST_COLUMNS = 10
#: The roles of scores in a study, in the order of the legend.
KINDS = ("main score", "other estimate", "baseline")
AXES = {
    "test_accuracy": "test accuracy",
    "test_nll_per_datum": "minus test log loss, nats per datum",
    "test_rmse": "minus test RMSE",
}


@dataclass(frozen=True)
class Dot:
    """One marker of the scatter plot; `details` are its lines of text.

    edge  "" or the edge on which a marker beyond the axes is drawn: left, right, bottom, top
    """

    x: float
    y: float
    family: str
    n_parameters: float | None
    details: tuple[str, ...]
    edge: str = ""


@dataclass(frozen=True)
class Line:
    """One trial along training."""

    label: str
    family: str
    epochs: tuple[int, ...]
    values: tuple[float, ...]
    emphasised: bool


@dataclass(frozen=True)
class FrontDot:
    """One marker of the Pareto-front figure.

    on_front  on the front of all objectives; on_line on that of the two drawn
    """

    cost: float
    objective: float
    family: str
    on_front: bool
    on_line: bool
    details: tuple[str, ...]


@dataclass(frozen=True)
class ScoreLine:
    """One score over its stored epochs; `regret` in the unit of the scale."""

    score: str
    kind: str
    epochs: tuple[int, ...]
    rho: tuple[float, ...]
    regret: tuple[float, ...]


@dataclass(frozen=True)
class Bar:
    """The importance of one parameter."""

    label: str
    length: float
    note: str


@dataclass(frozen=True)
class Measured:
    """A value of a model or of a column, with its spread if known; `strong` is drawn in colour."""

    name: str
    value: float
    error: float | None
    text: str
    strong: bool


@dataclass(frozen=True)
class ScoreMark:
    """One score of the correlations figure."""

    score: str
    kind: str
    statistics: RankStatistics


def within_axes(dots: Sequence[Dot]) -> list[Dot]:
    """Return the dots with outliers moved to the edge, so that the others stay readable.

    An outlier lies more than three interquartile ranges beyond the quartiles (Tukey 1977).
    """
    if len(dots) < _FEWEST_FOR_FENCES:
        return list(dots)
    fences = [_fences([getattr(dot, axis) for dot in dots]) for axis in ("x", "y")]
    moved = []
    for dot in dots:
        edge, values = "", {}
        for axis, ends, (low, high) in zip("xy", _EDGES, fences, strict=True):
            value = getattr(dot, axis)
            values[axis] = min(max(value, low), high)
            edge = ends[0] if value < low else ends[1] if value > high else edge
        moved.append(replace(dot, edge=edge, **values))
    return moved


#: With fewer dots than this none counts as an outlier.
_FEWEST_FOR_FENCES = 6
_EDGES = (("left", "right"), ("bottom", "top"))


def _fences(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the axis, a little beyond the values that are no outliers."""
    low, high = np.quantile(values, (0.25, 0.75))
    reach = 3 * (high - low)
    inside = [value for value in values if low - reach <= value <= high + reach]
    margin = 0.06 * (max(inside) - min(inside))
    outside = (min(values) < min(inside), max(values) > max(inside))
    return (
        min(inside) - margin if outside[0] else min(values),
        max(inside) + margin if outside[1] else max(values),
    )


def loss_lines(study: Study) -> list[Line]:
    """Return the training loss of the best architectures, epoch by epoch."""
    rows = study.curves[study.curves["train_nll_per_datum"].notna()]
    return _lines(study, rows, "train_nll_per_datum")


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


def target_words(target: str) -> str:
    """Return the axis title of a target; losses are negated."""
    return AXES.get(target, target)


def study_dots(study: Study) -> list[Dot]:
    """Return a dot for each architecture that has both objective and first target."""
    target = study.targets[0]
    sign = -1.0 if target in LOSSES else 1.0
    return [
        Dot(
            x=one.objective,
            y=sign * value,
            family=one.family,
            n_parameters=one.n_parameters,
            details=_details(one, study),
        )
        for one in study.ranking
        if one.objective is not None and (value := _test(one, target)) is not None
    ]


def _test(one: RankedArchitecture, target: str) -> float | None:
    return one.test_accuracy if target == "test_accuracy" else one.test_nll


def _details(one: RankedArchitecture, study: Study) -> tuple[str, ...]:
    several = f", mean of {len(one.trial_ids)} seeds" if len(one.trial_ids) > 1 else ""
    objective = f"{study.spec.objective} {one.objective:.4f} {study.objective_unit}"
    lines = [
        f"rank {one.rank}, trial {one.trial_id}{several}",
        one.architecture,
        f"{one.n_parameters:,} parameters" if one.n_parameters is not None else "",
        objective + (f", spread {one.spread:.4f}" if one.spread is not None else ""),
        f"test accuracy {one.test_accuracy:.4f}" if one.test_accuracy is not None else "",
        f"test log loss {one.test_nll:.4f}" if one.test_nll is not None else "",
        f"test RMSE {one.test_rmse:.4f}" if one.test_rmse is not None else "",
        f"SOTL {one.sotl:.3f}" if one.sotl is not None else "",
    ]
    return tuple(filter(None, lines))


def front_dots(study: Study, cost: str) -> list[FrontDot]:
    """Return a dot for each architecture with its objective and this cost, cheapest first."""
    known = [
        (one, one.objective)
        for one in study.ranking
        if one.objective is not None and cost in one.costs
    ]
    dots, best = [], -math.inf
    for one, objective in sorted(known, key=lambda pair: (pair[0].costs[cost], -pair[1])):
        dots.append(
            FrontDot(
                cost=one.costs[cost],
                objective=objective,
                family=one.family,
                on_front=bool(one.on_front),
                on_line=objective > best,
                details=(*_details(one, study), f"{cost} {one.costs[cost]:.4g}"),
            )
        )
        best = max(best, objective)
    return dots


def evidence_lines(study: Study) -> list[Line]:
    """Return the objective of the best architectures; none if stored at the end of each only."""
    own = study.evidence[study.evidence["estimator"] == study.spec.objective]
    lines = _lines(study, usable(own), "shown")
    return lines if any(len(line.epochs) > 1 for line in lines) else []


def _lines(study: Study, rows: pd.DataFrame, column: str) -> list[Line]:
    by_trial = dict(tuple(rows.groupby("trial_id")))
    return [
        Line(
            label=f"rank {one.rank or 'undefined'}, trial {one.trial_id}: {one.architecture}",
            family=one.family,
            epochs=tuple(int(epoch) for epoch in by_trial[one.trial_id]["epoch"]),
            values=tuple(float(value) for value in by_trial[one.trial_id][column]),
            emphasised=one is study.winner,
        )
        for one in study.ranking[:MAX_LINES]
        if one.trial_id in by_trial
    ]


def score_lines(trust: Trust, found: Sequence[EarlyTrust]) -> list[ScoreLine]:
    """Return rho and regret of each score over the epochs, the main score last, on top."""
    by_score: dict[str, list[EarlyTrust]] = {}
    for one in found:
        by_score.setdefault(one.score, []).append(one)
    lines = [
        ScoreLine(
            score=score,
            kind=_kind(trust, score),
            epochs=tuple(one.epoch for one in points),
            rho=tuple(one.rho for one in points),
            regret=tuple(trust.scale.factor * one.regret for one in points),
        )
        for score, points in by_score.items()
    ]
    return sorted(lines, key=lambda line: -KINDS.index(line.kind))


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


def importance_bars(found: Sequence[ParameterImportance]) -> list[Bar]:
    """Return the parameters by importance, most important first."""
    bars = [
        Bar(
            label=one.parameter if one.group == ALL else f"{one.parameter} of {one.group}",
            length=one.divergence,
            note=f"{one.of_best} among the best {one.n_best}",
        )
        for one in found
    ]
    return sorted(bars, key=lambda bar: -bar.length)


def measured_bars(comparison: Comparison, metric: str) -> list[Measured]:
    """Return a metric of the winner and of each simple model that has it."""
    models = [("winner", comparison.metrics, comparison.errors)]
    models += [(one.name, one.metrics, one.errors) for one in comparison.baselines]
    known = [values[metric] for _, values, _ in models if metric in values]
    digits, bars = _decimals(known, 3) if metric in ("rmse", "mae", "crps") else 3, []
    for i, (name, values, errors) in enumerate(models):
        if metric in values:
            error = errors.get(metric)
            text = f"{values[metric]:.{digits}f}"
            text += "" if error is None else f" ± {error:.{digits}f}"
            bars.append(Measured(name, values[metric], error, text, i == 0))
    return bars


def _decimals(values: Sequence[float], digits: int) -> int:
    """Return the decimals that show so many digits of the largest value.

    >>> _decimals([79.58, 55.8], 3), _decimals([0.0432, -0.001], 2), _decimals([0.0], 2)
    (1, 3, 3)
    """
    largest = max(map(abs, values), default=0.0)
    return max(0, digits - 1 - math.floor(math.log10(largest))) if largest else 3


def column_bars(found: Importance) -> list[Measured]:
    """Return the most important columns; strong are those two standard deviations above 0."""
    shown = found.columns[:MOST_COLUMNS]
    digits = _decimals([one.mean for one in shown], 2)
    return [
        Measured(
            one.column, one.mean, one.std, f"{one.mean:.{digits}f} ± {one.std:.{digits}f}",
            strong=one.mean > 2 * one.std,
        )
        for one in shown
    ]  # fmt: skip
