"""The figures of a report: each is one function from the report to SVG.

None where there is nothing to draw. The marks say what they stand for; the captions are in
`templates/captions.html.j2`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nas_evidence.baselines.comparison import (
    CalibrationPoint,
    Comparison,
    Importance,
    OneTarget,
)
from nas_evidence.maths.conditional_coverage import Quarter, clopper_pearson
from nas_evidence.maths.metrics import LEVEL
from nas_evidence.plumbing.foreign_text import shortened
from nas_evidence.reporting.contents import Report
from nas_evidence.reporting.correlations import ALL, Trust
from nas_evidence.reporting.intervals import MOST_LISTED
from nas_evidence.reporting.study_tables import LOSSES, RankedArchitecture, RankedStudy, usable
from nas_evidence.reporting.svg import (
    COLOURS,
    GREY,
    Axis,
    Drawing,
    Key,
    Panel,
    axis_of,
    colour,
    named_axis,
    plot,
)
from nas_evidence.reporting.words import (
    MOST,
    WORDS,
    Calibrated,
    axis_words,
    chance,
    decimals,
    number,
    short,
    words_of,
)
from nas_evidence.spec.likelihoods import TargetKind
from nas_evidence.spec.metric_names import LESS_IS_BETTER

#: Maximum number of classes of which the counts are written into the cells.
MOST_NUMBERED = 12
#: With fewer markers than this none counts as an outlier.
FEWEST_FOR_FENCES = 6
#: The roles of scores in a study in the order of the legend, and their lines over epochs.
DASHES: Mapping[str, str] = {"main score": "", "other estimate": "7 4", "baseline": "2 4"}
_KINDS = tuple(DASHES)
#: Quarters of the rows by their prediction.
_NTH = ("lowest", "second", "third", "highest")
_ROW = 26.0  # height of a bar with its space
_ACROSS = 60  # characters below a picture

# --- the winner beside simple models -------------------------------------------------------------


def measured(report: Report) -> Drawing | None:
    """Return how far each simple model is behind the winner: what "worth it?" tests.

    Paired differences of the log losses of the same data, each with its own interval. One that
    is unknown is drawn from edge to edge.
    """
    judged = report.judged
    if judged is None or not judged.baselines:
        return None
    tested = [(one, one.interval or (-math.inf, math.inf)) for one in judged.baselines]
    ends = [end for one, pair in tested for end in (one.behind, *pair) if math.isfinite(end)]
    low, high = min([0.0, *ends]), max([1e-9, *ends])
    texts = [
        f"{one.behind:.3f}" + f" ({least:.3f} to {most:.3f})" * (one.interval is not None)
        for one, (least, most) in tested
    ]
    names = [one.name for one in judged.baselines]
    words = f"{report.kind.metrics['log_loss']} above the winner's, nats per datum"
    said = "; ".join(f"{name} {text}" for name, text in zip(names, texts, strict=True))
    panel = Panel(
        Axis("log loss above the winner's, nats per datum", low, high), named_axis(names),
        height=48 + 1.35 * _ROW * len(texts), right=14 + 7.5 * max(map(len, texts)),
    )  # fmt: skip
    panel.line([(0.0, -0.6), (0.0, len(texts) - 0.4)], colour=GREY, width=1, title="the winner")
    for i, ((one, pair), text) in enumerate(zip(tested, texts, strict=True)):
        label = f"{one.name}: {text}"
        least, most = max(pair[0], low), min(pair[1], high)
        shade = GREY if least <= 0 <= most else colour(0)
        panel.line([(least, i), (most, i)], colour="var(--ink)", width=2, title=label)
        panel.line(
            [(one.behind, i - 0.3), (one.behind, i + 0.3)], colour=shade, width=5, title=label
        )
        panel.text(most, i, text, anchor="start", dx=6)
    rows = [
        {"model": one.name, "behind": one.behind, "low": least, "high": most}
        for one in judged.baselines
        for least, most in [one.interval or (None, None)]
    ]
    return plot([panel], name=f"{words}, with 95 % intervals: {said}", rows=rows)


def columns(report: Report) -> Drawing | None:
    """Return the importance of the columns of a table to the winner."""
    judged = report.judged
    if judged is None or judged.importance is None:
        return None
    return drawn_columns(judged.importance, report.kind)


def drawn_columns(found: Importance, kind: TargetKind) -> Drawing:
    """Return the most important columns; in colour those two standard deviations above 0."""
    shown, metric = found.columns[: MOST["columns"]], found.metric
    rows = [(one.column, one.mean, one.std, one.mean > 2 * one.std) for one in shown]
    side = "rise" if metric in LESS_IS_BETTER else "fall"
    words = f"{side} in {kind.metrics[metric]}"
    if metric == "coverage":
        words = "coverage of the 90 % intervals: further from 90 %"
    digits = decimals([one.mean for one in shown], 2)
    values = [{"column": one.column, "mean": one.mean, "std": one.std} for one in shown]
    return _bars(rows, digits, words=words, values=values)


def _bars(
    rows: Sequence[tuple[str, float, float | None, bool]],
    digits: int,
    *,
    words: str,
    values: Sequence[Mapping[str, Any]],
) -> Drawing:
    texts = [f"{value:z.{digits}f}" + (f" ± {error:.{digits}f}" if error is not None else "")
             for _, value, error, _ in rows]  # fmt: skip
    ends = [value + (error or 0.0) for _, value, error, _ in rows]
    low = min([0.0, *(value - (error or 0.0) for _, value, error, _ in rows)])
    room = 14 + 7.5 * max(map(len, texts))
    panel = Panel(
        Axis(words, low, max([*ends, 1e-9])), named_axis([row[0] for row in rows]),
        height=48 + 1.35 * _ROW * len(rows), right=room,
    )  # fmt: skip
    for i, ((label, value, error, strong), text) in enumerate(zip(rows, texts, strict=True)):
        said = f"{label}: {text}"
        shade = colour(0) if strong else GREY
        panel.box((0.0, value), (i - 0.36, i + 0.36), fill=shade, title=said)
        if error:
            spread = [(value - error, i), (value + error, i)]
            panel.line(spread, colour="var(--ink)", width=2, title=said)
        panel.text(max(0.0, ends[i]), i, text, anchor="start", dx=6)
    listed = "; ".join(f"{row[0]} {text}" for row, text in zip(rows, texts, strict=True))
    return plot([panel], name=f"{words} by column: {listed}", rows=values)


def calibration(report: Report) -> Drawing | None:
    """Return the share that is right, or inside an interval, against its stated probability."""
    if report.judged is None:
        return None
    several = {one.name: one.calibration for one in _drawn_targets(report.judged)}
    found = several or {"": report.judged.calibration}
    return calibration_of(found, report.calibrated) if any(found.values()) else None


def _drawn_targets(judged: Comparison) -> Sequence[OneTarget]:
    """Return the first of several targets, each of which is drawn alone."""
    return judged.by_target[:MOST_LISTED]


def calibration_of(found: Mapping[str, Sequence[CalibrationPoint]], words: Calibrated) -> Drawing:
    """Return shares against stated probabilities, or those of intervals; by name of the target."""
    x_title, y_title = words.probability, words.share
    panel = Panel(Axis(x_title, -0.02, 1.02), Axis(y_title, -0.02, 1.02))
    panel.line([(0, 0), (1, 1)], colour=GREY, dash="3 4")
    marks = [(k, name, point) for k, (name, own) in enumerate(found.items()) for point in own]
    most = max(point.n for _, _, point in marks)

    def said(name: str, point: CalibrationPoint) -> str:
        stated = f"{words.stated} {chance(point.confidence)}"
        share = f"{100 * point.accuracy:.0f} % {words.found}"
        return f"{f'{name}, ' * bool(name)}{stated}: {share}"

    for k, name, point in marks:
        # two standard errors of the share, were the stated probability right
        error = 2 * (point.confidence * (1 - point.confidence) / point.n) ** 0.5
        title = f"{said(name, point)}, of {point.n:,} data"
        ends = [max(0.0, point.accuracy - error), min(1.0, point.accuracy + error)]
        panel.line([(point.confidence, end) for end in ends], colour=colour(k), width=1.2)
        radius = 3 + 6 * (point.n / most) ** 0.5
        panel.dot(point.confidence, point.accuracy, colour=colour(k), radius=radius, title=title)
    legend = [Key(shortened(name, 30), colour(k)) for k, name in enumerate(found)]
    last = "; ".join(said(name, point) for name, own in found.items() for point in own[-3:])
    rows = [
        _of_target(name) | {"stated": one.confidence, "found": one.accuracy, "n": one.n}
        for _, name, one in marks
    ]
    return plot([panel], name=f"{y_title} by {x_title}: {last}", legend=legend, rows=rows)


def _of_target(name: str) -> dict[str, str]:
    """Return the cell that names one of several targets."""
    return {"target": name} if name else {}


def quarters(report: Report) -> Drawing | None:
    """Return the coverage of intervals in each quarter of the rows, beside what it should be."""
    if report.judged is None:
        return None
    parts = [(_NTH[i], one) for i, one in enumerate(report.judged.quarters)]
    parts += [
        (f"{shortened(target.name, 12)}, {_NTH[i]}", one)
        for target in _drawn_targets(report.judged)
        for i, one in enumerate(target.quarters)
    ]
    if not parts:
        return None
    y = named_axis([f"{name}{_range_of(one)}" for name, one in parts])
    found = [one for _, one in parts]
    panel = Panel(Axis("share of targets inside", -0.02, 1.02), y, height=60 + 44 * len(found))
    for level in (0.5, LEVEL):
        panel.line([(level, y.low), (level, y.high)], colour=GREY, dash="3 4")
    for i, one in enumerate(found):
        for at, level, share in ((0, 0.5, one.inside_50), (1, LEVEL, one.inside_90)):
            down = i + 0.3 * at - 0.15
            low, high = clopper_pearson(share * one.n, one.n, 0.95)
            quarter = f"{parts[i][0]} quarter"
            said = f"{quarter}: {share:.3f} in {level:.0%} intervals, of {one.n:,} rows"
            panel.line([(low, down), (high, down)], colour=colour(at), width=2, title=said)
            panel.dot(share, down, colour=colour(at), symbol=at, title=said, opacity=1)
    legend = [Key("50 % intervals", colour(0), 0), Key("90 % intervals", colour(1), 1)]
    listed = "; ".join(
        f"{name} quarter {one.inside_50:.2f} and {one.inside_90:.2f}" for name, one in parts
    )
    name = f"share of targets inside the 50 % and the 90 % intervals: {listed}"
    rows = [
        {"quarter": name, "low": one.low, "high": one.high, "n": one.n,
         "inside_50": one.inside_50, "inside_90": one.inside_90}
        for name, one in parts
    ]  # fmt: skip
    return plot([panel], name=name, legend=legend, rows=rows)


def _range_of(one: Quarter) -> str:
    known = one.low is not None and one.high is not None
    return f": {short(one.low)} to {short(one.high)}" if known else ""


def pit(report: Report) -> Drawing | None:
    """Return the histogram of the PIT, beside two standard errors of a uniform one."""
    if report.judged is None:
        return None
    several = {f"PIT of {one.name}": one.pit for one in _drawn_targets(report.judged)}
    found = {name: counts for name, counts in (several or {"PIT": report.judged.pit}).items()
             if counts}  # fmt: skip
    if not found:
        return None
    height = 190 if several else 300
    panels = [
        _pit(shortened(name), counts, top=8 + (height + 10) * k, height=height)
        for k, (name, counts) in enumerate(found.items())
    ]
    shares = "; ".join(
        f"{shortened(name)}: {min(counts) / sum(counts):.0%} to {max(counts) / sum(counts):.0%} "
        f"of the targets in each of {len(counts)} bars, {1 / len(counts):.0%} would be even"
        for name, counts in found.items()
    )
    rows = [
        _of_target(name.partition("PIT of ")[2])
        | {"low": i / len(counts), "high": (i + 1) / len(counts), "n": n}
        for name, counts in found.items()
        for i, n in enumerate(counts)
    ]
    return plot(panels, name=f"histogram of the {shares}", rows=rows)


def _pit(name: str, counts: Sequence[int], *, top: float, height: float) -> Panel:
    n, bins = sum(counts), len(counts)
    shares = [count / n for count in counts]
    error = 2 * (1 / bins * (1 - 1 / bins) / n) ** 0.5
    highest = max(*shares, 1 / bins + error)
    y = Axis("share of targets", 0, 1.05 * highest)
    panel = Panel(Axis(name, 0, 1), y, top=top, height=height)
    for i, share in enumerate(shares):
        said = f"PIT {i / bins:g} to {(i + 1) / bins:g}: {counts[i]} of {n:,}"
        ends = ((i + 0.04) / bins, (i + 0.96) / bins)
        panel.box(ends, (0.0, share), fill=colour(0), title=said, opacity=0.8)
    for end in (max(0.0, 1 / bins - error), 1 / bins + error):
        panel.line([(0, end), (1, end)], colour="var(--ink)", dash="3 4")
    return panel


def confusion(report: Report) -> Drawing | None:
    """Return counts of true against predicted classes; shades are shares of the true class."""
    judged = report.judged
    if judged is None or not judged.confusion:
        return None
    counts = judged.confusion
    most = max(4, _ACROSS // max(len(judged.classes), 1))
    classes = [judged.classes[i] if judged.classes else str(i) for i in range(len(counts))]
    classes = [one if len(one) <= most else f"{one[: most - 1]}…" for one in classes]
    names = named_axis(classes)
    x = Axis("predicted class", names.low, names.high, names=names.names)
    panel = Panel(x, Axis("true class", names.low, names.high, names=names.names))
    for i, row in enumerate(counts):
        for j, n in enumerate(row):
            said = f"true {classes[i]}, predicted {classes[j]}: {n}"
            panel.box(
                (j - 0.48, j + 0.48), (i - 0.48, i + 0.48), fill=colour(0), title=said,
                opacity=0.06 + 0.84 * n / max(sum(row), 1),
            )  # fmt: skip
            if len(counts) <= MOST_NUMBERED:
                panel.text(j, i, str(n))
    n, right = sum(map(sum, counts)), sum(row[i] for i, row in enumerate(counts))
    wrong = max(
        ((n, i, j) for i, row in enumerate(counts) for j, n in enumerate(row) if i != j),
        default=(0, 0, 0),
    )
    said = f"{right:,} of {n:,} rows have their true class predicted"
    if wrong[0]:
        said += (
            f"; most often wrong: {classes[wrong[1]]} as {classes[wrong[2]]}, {wrong[0]:,} times"
        )
    labels = judged.classes or [str(i) for i in range(len(counts))]
    rows = [
        {"true": labels[i], "predicted": labels[j], "n": n}
        for i, row in enumerate(counts)
        for j, n in enumerate(row)
    ]
    return plot([panel], name=said, rows=rows)


def pairs(report: Report) -> Drawing | None:
    """Return predicted against true values, beside the diagonal."""
    found = report.judged.pairs if report.judged else ()
    if not found:
        return None
    true, predicted = [pair[0] for pair in found], [pair[1] for pair in found]
    panel = Panel(axis_of("true value", true), axis_of("predicted value", [*predicted, *true]))
    panel.line([(end, end) for end in (min(true), max(true))], colour=GREY, dash="3 4")
    for a, b in found:
        said = f"true {a:.4g}, predicted {b:.4g}"
        panel.dot(a, b, colour=colour(0), radius=2.6, title=said, opacity=0.6)
    said = f"predicted against true values of {len(found):,} rows"
    if len(set(true)) > 1 and len(set(predicted)) > 1:
        said += f": their correlation is {np.corrcoef(true, predicted)[0, 1]:.2f}"
    rows = [{"true": a, "predicted": b} for a, b in found]
    return plot([panel], name=said, rows=rows)


# --- architectures -------------------------------------------------------------------------------


def scatter(report: Report) -> Drawing | None:
    """Return score against the first target, after Immer et al. (2021), Fig. 2."""
    study = report.study
    target = study.targets[0]
    sign = -1.0 if target in LOSSES else 1.0
    found = [
        (one, score, sign * value)
        for one in study.ranking
        if (score := study.value(one)) is not None and (value := getattr(one, target)) is not None
    ]
    if not found:
        return None
    x_title, y_title = f"{study.ranks_by} ({study.objective_unit})", axis_words(target)
    x, beyond_x = within([x for _, x, _ in found])
    y, beyond_y = within([y for _, _, y in found])
    panel = Panel(axis_of(x_title, x), axis_of(y_title, y))
    shown = [one for one, _, _ in found]
    drawn = thinned(len(found)) | np.array(beyond_x) | np.array(beyond_y)
    for i, (one, size) in enumerate(zip(shown, _diameters(shown), strict=True)):
        if not drawn[i]:
            continue
        at = study.families.index(one.family)
        panel.dot(
            x[i], y[i], colour=colour(at), radius=size / 2, symbol=at, family=one.family,
            hollow=beyond_x[i] or beyond_y[i], title="\n".join(_details(one, study)),
            opacity=0.75, trial=one.trial_id,
        )  # fmt: skip
    said = f"{y_title} by {x_title} of {len(found)} architectures: {_agreement(report, target)}"
    rows = [
        architecture_cells(one) | {"score": score, target: sign * value}
        for one, score, value in found
    ]
    return plot([panel], name=said, legend=_families(study, shown), rows=rows)


def _agreement(report: Report, target: str) -> str:
    """Return how well the score that ranks orders a target, in a few words."""
    rows = (row for row in report.trust.rows if (row.target, row.group) == (target, ALL))
    known = [row.statistics for row in rows if row.score == report.trust.main]
    if not known or known[0].rho is None:
        return "whether they agree is unknown"
    ends = known[0].rho_interval
    interval = f" (95 % interval {ends.low:.2f} to {ends.high:.2f})" if ends else ""
    return f"rho {known[0].rho:.2f}{interval}"


def architecture_cells(one: RankedArchitecture) -> dict[str, Any]:
    """Return what names an architecture in the values of a figure."""
    return {
        "rank": one.rank, "trial_id": one.trial_id, "family": one.family,
        "architecture": one.architecture, "n_parameters": one.n_parameters,
    }  # fmt: skip


def within(values: Sequence[float]) -> tuple[list[float], list[bool]]:
    """Return values with outliers moved to the edge, so that others stay readable, and which.

    An outlier lies more than three interquartile ranges beyond the quartiles (Tukey 1977); the
    edge is a little beyond the values that are none.
    """
    if len(values) < FEWEST_FOR_FENCES:
        return list(values), [False] * len(values)
    low, high = np.quantile(values, (0.25, 0.75))
    reach = 3 * (high - low)
    inside = [value for value in values if low - reach <= value <= high + reach]
    margin = 0.06 * (max(inside) - min(inside))
    low = min(inside) - margin if min(values) < min(inside) else min(values)
    high = max(inside) + margin if max(values) > max(inside) else max(values)
    return [min(max(value, low), high) for value in values], [
        not low <= value <= high for value in values
    ]


def _diameters(shown: Sequence[RankedArchitecture]) -> list[float]:
    logs = [math.log10(one.n_parameters) if one.n_parameters else None for one in shown]
    known = [log for log in logs if log is not None] or [0.0]
    low, span = min(known), max(known) - min(known)
    if not span:
        return [13.0] * len(shown)
    return [8.0 if log is None else 8.0 + 18.0 * (log - low) / span for log in logs]


def _families(
    study: RankedStudy, shown: Sequence[RankedArchitecture], *, lines: bool = False
) -> list[Key]:
    drawn = {one.family for one in shown}
    return [
        Key(family, colour(i), None if lines else i)
        for i, family in enumerate(study.families)
        if family in drawn
    ]


def _details(one: RankedArchitecture, study: RankedStudy) -> list[str]:
    several = f", mean of {len(one.trial_ids)} seeds" if len(one.trial_ids) > 1 else ""
    objective = f"{study.spec.objective} {number(one.objective, 4)} {study.objective_unit}"
    value, of = study.value(one), study.spec.of_folds
    lines = [
        f"rank {one.rank}, trial {one.trial_id}{several}",
        one.architecture,
        f"{one.n_parameters:,} parameters" if one.n_parameters is not None else "",
        f"{study.ranks_by} {number(value, 4)}" if value != one.objective else "",
        objective + (f", spread {one.spread:.4f}" if one.spread is not None else ""),
        *(
            f"{words_of(name, of)} {result:.4f}"
            for name in WORDS
            if (result := getattr(one, name)) is not None
        ),
        f"SOTL {one.sotl:.3f}" if one.sotl is not None else "",
    ]
    return [line for line in lines if line]


def front(report: Report, cost: str) -> Drawing | None:
    """Return the objective against a cost, with the front as larger markers on a line."""
    study = report.study
    known = [
        (one, one.objective, one.costs[cost])
        for one in study.ranking
        if one.objective is not None and cost in one.costs
    ]
    if not known:
        return None
    known.sort(key=lambda found: (found[2], -found[1]))
    y_title = f"{study.spec.objective} ({study.objective_unit})"
    x = axis_of(cost, [price for _, _, price in known if price > 0] or [1.0], log=True)
    panel = Panel(x, axis_of(y_title, [value for _, value, _ in known]))
    best = np.maximum.accumulate([-math.inf, *(value for _, value, _ in known)])
    cheapest = [(price, value) for (_, value, price), least in zip(known, best, strict=False)
                if value > least and price > 0]  # fmt: skip
    panel.line(cheapest, colour=GREY, dash="3 4")
    for one, value, price in known:
        at = study.families.index(one.family)
        panel.dot(
            max(price, x.low), value, colour=colour(at), symbol=at,
            radius=7 if one.on_front else 3.5, opacity=1.0 if one.on_front else 0.45,
            family=one.family, title="\n".join([*_details(one, study), f"{cost} {price:.4g}"]),
            trial=one.trial_id,
        )  # fmt: skip
    legend = _families(study, [one for one, _, _ in known])
    n = sum(bool(one.on_front) for one, _, _ in known)
    said = f"{y_title} by {cost}: {n} of {len(known)} architectures are on the Pareto front"
    rows = [
        architecture_cells(one)
        | {study.spec.objective: value, cost: price, "on_front": one.on_front}
        for one, value, price in known
    ]
    return plot([panel], name=said, legend=legend, rows=rows)


def importance(report: Report) -> Drawing | None:
    """Return how much each parameter of the architecture decides, most important first."""
    found = sorted(report.importances, key=lambda one: -one.divergence)
    if not found:
        return None
    labels = [one.name for one in found]
    x = axis_of("divergence of the best from all", [one.divergence for one in found], zero=True)
    panel = Panel(x, named_axis(labels), height=60 + _ROW * len(labels))
    for i, (label, one) in enumerate(zip(labels, found, strict=True)):
        said = f"{label}: {one.of_best} among the best {one.n_best}"
        panel.box((0.0, one.divergence), (i - 0.32, i + 0.32), fill=colour(0), title=said)
    said = "; ".join(f"{one.name} {one.divergence:.2f}" for one in found[:5])
    rows = [{"parameter": one.name, "divergence": one.divergence} for one in found]
    return plot([panel], name=f"how much the best differ from all, most first: {said}", rows=rows)


def history(report: Report) -> Drawing | None:
    """Return the score of each trial in order of completion, and the best one until then.

    Trials without a score lie at the lower edge.
    """
    study, rows = report.study, report.study.history
    known = rows["score"].notna()
    if known.sum() < 2:
        return None
    title = f"{study.ranks_trials_by} ({study.objective_unit})"
    y, _ = within(rows["score"][known].tolist())
    axis = axis_of(title, y)
    low, high = min(y), max(y)
    edge = axis.low + 0.02 * (axis.high - axis.low)
    panel = Panel(axis_of("trials, in order of completion", [1.0, len(rows)], whole=True), axis)
    best = rows["best"].fillna(-math.inf)
    rows = rows.assign(
        x=range(1, len(rows) + 1),
        y=rows["score"].clip(low, high).fillna(edge),
        improves=best > best.shift(fill_value=-math.inf),
    )
    steps = rows[rows["improves"]]
    tops = [(float(x), float(value)) for x, value in zip(steps["x"], steps["y"], strict=True)]
    corners = [(x, value) for (_, value), (x, _) in pairwise(tops)]
    line = sorted([*tops, *corners, (float(len(rows)), tops[-1][1])])
    every = max(1, math.ceil(len(rows) / MOST["dots"]))
    drawn = np.arange(len(rows)) % every == 0
    panel.line(line, colour="var(--ink)", title=f"best so far: {best.iloc[-1]:.4f}")
    for one in rows[rows["improves"] | rows["raced"] | drawn].itertuples():
        place = f"trial {one.trial_id}{' of the race' if one.raced else ''}: {one.architecture}"
        if one.score == one.score:
            said = f"{place}\n{study.ranks_trials_by} {one.score:.4f}, best so far {one.best:.4f}"
            at = study.families.index(one.family)
            beyond = one.score != one.y
            mark = {"colour": colour(at), "symbol": at, "radius": 4.5, "hollow": beyond}
        else:
            cause = one.cause if isinstance(one.cause, str) else ""
            said = f"{place}\n{one.status} after {one.epochs} epochs\n{cause}".rstrip()
            mark = {"radius": 3.5, **_ENDED.get(str(one.status), _FAILED)}
        mark |= {"title": said, "family": one.family, "trial": one.trial_id}
        panel.dot(one.x, one.y, opacity=0.75, **mark)
        if one.raced and one.score == one.score:
            ring = {"colour": "var(--ink)", "radius": 7, "hollow": True, "symbol": 0}
            panel.dot(one.x, one.y, **(mark | ring))
    drawn = {one.family: one for one in study.ranking}
    legend = _families(study, list(drawn.values()))
    if (rows["raced"] & known).any():
        legend.append(Key("race", "var(--ink)", hollow=True))
    ended = rows["status"][~known]
    if (ended == "pruned").any():
        legend.append(Key("pruned", **_ENDED["pruned"]))
    if (ended != "pruned").any():
        legend.append(Key("without a score", **_FAILED))
    legend.append(Key("best so far", "var(--ink)", None))
    last = steps.iloc[-1]
    said = (
        f"{title} of {len(rows)} trials: the best, {last.best:.4f}, came as number {last.x} "
        f"(trial {last.trial_id}, {last.architecture})"
    )
    values = rows.assign(trial=rows["x"])[
        ["trial", "trial_id", "family", "architecture", "status", "score", "best", "raced"]
    ]
    return plot([panel], name=said, legend=legend, rows=values.to_dict("records"))


#: The markers of trials without a score.
_FAILED: Mapping[str, Any] = {"colour": colour(5), "symbol": 5}
_ENDED: Mapping[str, Mapping[str, Any]] = {"pruned": {"colour": GREY, "symbol": 4}}


def thinned(n: int) -> NDArray[np.bool_]:
    """Return which of n marks are drawn [n]: the first ones and evenly spaced others, if many."""
    half, at = MOST["dots"] // 2, np.arange(n)
    return (n <= MOST["dots"]) | (at < half) | (at % max(1, math.ceil(n / half)) == 0)


# --- along training ------------------------------------------------------------------------------


def loss_curves(report: Report) -> Drawing | None:
    """Return the training loss of the best architectures, epoch by epoch."""
    rows = report.study.curves
    rows = rows[rows["train_nll_per_datum"].notna()]
    return _lines(report.study, rows, "train_nll_per_datum", "training loss, nats per datum")


def under_way(report: Report, trials: Sequence[Mapping[str, Any]]) -> Drawing | None:
    """Return the training loss of trials that are running, beside that of the best so far."""
    shown = [one for one in trials if one.get("losses")][: len(COLOURS)]
    if not shown:
        return None
    study, winner = report.study, report.study.winner
    rows = study.curves.iloc[:0]
    if winner is not None:
        rows = study.curves[study.curves["trial_id"] == winner.trial_id]
        rows = rows[rows["train_nll_per_datum"].notna()]
    best = [(float(a), float(b)) for a, b in zip(rows["epoch"], rows["train_nll_per_datum"],
                                                 strict=True)]  # fmt: skip
    curves = [[(float(a), float(b)) for a, b in one["losses"]] for one in shown]
    points = [point for curve in [best, *curves] for point in curve]
    panel = Panel(
        axis_of("epoch", [epoch for epoch, _ in points], whole=True),
        axis_of("training loss, nats per datum", [loss for _, loss in points]),
    )
    legend = []
    if best and winner is not None:
        panel.line(best, colour=GREY, width=3.5, title=f"the best so far: {winner.architecture}")
        legend.append(Key("best so far", GREY, None))
    for i, (one, curve) in enumerate(zip(shown, curves, strict=True)):
        label = f"trial {one['trial']}: {one['architecture']}"
        said = f"{label}\nat epoch {curve[-1][0]:g} of {one['epochs']}: {curve[-1][1]:.4f}"
        panel.line(curve, colour=colour(i), title=said, width=1.8)
        panel.dot(*curve[-1], colour=colour(i), radius=3.5, title=said)
        legend.append(Key(label, colour(i), None))
    ends = "; ".join(
        f"trial {one['trial']} {curve[-1][1]:.3f} at epoch {curve[-1][0]:g}"
        for one, curve in zip(shown, curves, strict=True)
    )
    rows = [
        {"trial_id": one["trial"], "epoch": epoch, "train_nll_per_datum": loss}
        for one, curve in zip(shown, curves, strict=True)
        for epoch, loss in curve
    ]
    return plot([panel], name=f"training loss of running trials: {ends}", legend=legend, rows=rows)


def score_curves(report: Report) -> Drawing | None:
    """Return the objective of the best architectures; None if it was stored once in each."""
    study = report.study
    own = usable(study.evidence[study.evidence["estimator"] == study.spec.objective])
    shown = own[own["trial_id"].isin([one.trial_id for one in study.ranking[: MOST["lines"]]])]
    by_trial = shown.groupby("trial_id")
    if not (by_trial["epoch"].count() > 1).any() or not (by_trial["shown"].nunique() > 1).any():
        return None
    return _lines(study, own, "shown", f"{study.spec.objective}, {study.objective_unit}")


def _lines(study: RankedStudy, rows: pd.DataFrame, column: str, title: str) -> Drawing | None:
    named = study.spec.objective if column == "shown" else column
    ranked = study.ranking[: MOST["lines"]]
    by_trial = dict(tuple(rows[rows["trial_id"].isin([o.trial_id for o in ranked])]
                          .groupby("trial_id")))  # fmt: skip
    found = [(one, by_trial[one.trial_id]) for one in ranked if one.trial_id in by_trial]
    if not found:
        return None
    epochs = [float(epoch) for _, own in found for epoch in own["epoch"]]
    values = [float(value) for _, own in found for value in own[column]]
    panel = Panel(axis_of("epoch", epochs, whole=True), axis_of(title, values))
    for one, own in sorted(found, key=lambda pair: pair[0] is study.winner):
        points = [(float(a), float(b)) for a, b in zip(own["epoch"], own[column], strict=True)]
        shade = colour(study.families.index(one.family))
        said = f"rank {one.rank or 'undefined'}, trial {one.trial_id}: {one.architecture}"
        said += f"\nat the end: {points[-1][1]:.4f}"
        wide, opacity = (3.5, 1.0) if one is study.winner else (1.3, 0.6)
        if len(points) == 1:
            panel.dot(*points[0], colour=shade, title=said, family=one.family, trial=one.trial_id)
        panel.line(
            points, colour=shade, width=wide, title=said, family=one.family, opacity=opacity,
            trial=one.trial_id,
        )  # fmt: skip
    legend = _families(study, [one for one, _ in found], lines=True)
    best, own = found[0]
    ends = f"{float(own[column].iloc[0]):.3f} to {float(own[column].iloc[-1]):.3f}"
    said = f"{title} by epoch: {best.architecture}, the first, from {ends}; {len(found)} are drawn"
    cells = [
        architecture_cells(one) | {"epoch": int(epoch), named: float(value)}
        for one, own in found
        for epoch, value in zip(own["epoch"], own[column], strict=True)
    ]
    return plot([panel], name=said, legend=legend, rows=cells)


# --- how well scores rank ------------------------------------------------------------------------


def trust(report: Report) -> Drawing | None:
    """Return rho with its interval for each score, best at the top."""
    judged, target = report.trust, report.study.targets[0]
    pooled = [row for row in judged.rows if (row.target, row.group) == (target, ALL)]
    rows = [row for row in pooled if row.statistics.rho is not None]
    if not rows:
        return None
    rows = sorted(rows, key=lambda row: row.statistics.rho or 0.0)[::-1]
    kinds = [_kind(judged, row.score) for row in rows]
    x = Axis(f"rho with {words_of(target)}", -1.05, 1.05)
    panel = Panel(x, named_axis([row.score for row in rows]), height=60 + _ROW * len(rows))
    panel.line([(0, -0.6), (0, len(rows) - 0.4)], colour=GREY, width=1)
    for i, (row, kind) in enumerate(zip(rows, kinds, strict=True)):
        shade, s = colour(_KINDS.index(kind)), row.statistics
        said = f"{row.score}: rho {s.rho or 0.0:.3f}"
        if s.rho_interval:
            ends = [(s.rho_interval.low, i), (s.rho_interval.high, i)]
            panel.line(ends, colour=shade, width=2.5, title=said)
        panel.dot(s.rho or 0.0, i, colour=shade, title=said, opacity=1)
    legend = [Key(kind, colour(i)) for i, kind in enumerate(_KINDS) if kind in kinds]
    listed = "; ".join(f"{row.score} {row.statistics.rho or 0.0:.2f}" for row in rows)
    name = f"rank correlation of each score with {words_of(target)}, best first: {listed}"
    values = [
        {"score": row.score, "rho": row.statistics.rho,
         "low": getattr(row.statistics.rho_interval, "low", None),
         "high": getattr(row.statistics.rho_interval, "high", None), "role": kind}
        for row, kind in zip(rows, kinds, strict=True)
    ]  # fmt: skip
    return plot([panel], name=name, legend=legend, rows=values)


def _kind(judged: Trust, score: str) -> str:
    main, other, baseline = _KINDS
    return main if score == judged.main else baseline if score in judged.rivals else other


def epochs(report: Report) -> Drawing | None:
    """Return rho above and regret below, over the epochs, one line per score."""
    judged, target = report.trust, words_of(report.study.targets[0])
    by_score = dict(tuple(report.early.groupby("score", sort=False)))
    if not any(len(own) > 1 for own in by_score.values()):
        return None
    # The score that ranks is last, on top.
    scores = sorted(by_score, key=lambda score: -_KINDS.index(_kind(judged, score)))
    factor, unit = judged.scale.factor, judged.scale.unit
    at, regrets = report.early["epoch"].tolist(), (factor * report.early["regret"]).tolist()
    title = f"regret at 1{f', {unit}' if unit else ''}"
    below = axis_of("epoch", at, whole=True)
    panels = (
        Panel(replace(below, title=""), Axis(f"rho with final {target}", -1.05, 1.05), height=230),
        Panel(below, axis_of(title, regrets, zero=True), top=246, height=240),
    )
    legend = list[Key]()
    for i, score in enumerate(scores):
        own, kind = by_score[score], _kind(judged, score)
        shade, dash = colour(len(scores) - 1 - i), DASHES[kind]
        legend.insert(0, Key(score, shade, None, dash))
        values = own["rho"], factor * own["regret"]
        for panel, what, ys in zip(panels, ("rho", "regret"), values, strict=True):
            points = [(float(a), float(b)) for a, b in zip(own["epoch"], ys, strict=True)]
            said = f"{score}: {what} {points[-1][1]:.3f} at the end"
            if len(points) == 1:
                panel.dot(*points[0], colour=shade, radius=3, title=said)
            width = 3.5 if kind == _KINDS[0] else 1.6
            panel.line(points, colour=shade, width=width, dash=dash, title=said)
    own = by_score[scores[-1]]
    ends = f"{own['rho'].iloc[0]:.2f} at epoch {own['epoch'].iloc[0]} to {own['rho'].iloc[-1]:.2f}"
    said = f"rank correlation and regret by epoch: rho of {scores[-1]} from {ends} at the end"
    values = report.early.assign(regret=factor * report.early["regret"])
    rows = values[["score", "epoch", "rho", "regret"]].to_dict("records")
    return plot(panels, name=said, legend=legend, rows=rows)


#: All figures but the fronts, by their names on the page.
FIGURES: Mapping[str, Callable[[Report], Drawing | None]] = {
    "measured": measured, "scatter": scatter, "history": history,
    "training": loss_curves, "calibration": calibration,
    "quarters": quarters, "pit": pit, "confusion": confusion, "pairs": pairs, "columns": columns,
    "importance": importance, "trust": trust, "evidence": score_curves, "epochs": epochs,
}  # fmt: skip


def figures_of(report: Report, running: Sequence[Mapping[str, Any]] = ()) -> dict[str, Drawing]:
    """Return the figures of a report that have something to show, by name.

    Args:
        report: of a study.
        running: its trials under way, as `Live` has them.
    """
    found = {name: draw(report) for name, draw in FIGURES.items()}
    found["under_way"] = under_way(report, running)
    found |= {f"front_{cost}": front(report, cost) for cost in report.study.spec.minimise}
    return {name: figure for name, figure in found.items() if figure is not None}
