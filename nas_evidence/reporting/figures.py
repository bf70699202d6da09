"""The figures of the page, drawn from the data in `figure_data.py`."""

from collections.abc import Sequence

from markupsafe import Markup

from nas_evidence.baselines.comparison import CalibrationPoint
from nas_evidence.maths.conditional_coverage import Quarter, clopper_pearson
from nas_evidence.maths.metrics import LEVEL
from nas_evidence.reporting.figure_data import (
    KINDS,
    Bar,
    Dot,
    FrontDot,
    Line,
    Measured,
    ScoreLine,
    ScoreMark,
    marker_sizes,
    within_axes,
)
from nas_evidence.reporting.svg import (
    GREY,
    Axis,
    Key,
    Panel,
    axis_of,
    colour,
    named_axis,
    plot,
    short,
)

#: Most classes of which the counts are written into the cells.
MOST_NUMBERED = 12
#: Line styles of the figure over epochs, by the role of a score.
DASHES = {KINDS[0]: "", KINDS[1]: "7 4", KINDS[2]: "2 4"}
#: Quarters of the rows by their prediction.
_NTH = ("lowest", "second", "third", "highest")
_ROW = 26.0  # height of a bar with its space


def measured_figure(bars: Sequence[Measured], *, words: str, name: str) -> Markup:
    """Return bars with their spreads; `words` is what they measure, `name` of what."""
    ends = [one.value + (one.error or 0.0) for one in bars]
    low = min([0.0, *(one.value - (one.error or 0.0) for one in bars)])
    x = Axis(words, low, max([*ends, 1e-9]))
    names = [one.name for one in bars]
    room = 14 + 7.5 * max(len(one.text) for one in bars)
    height = 48 + 1.35 * _ROW * len(bars)
    panel = Panel(x, named_axis(names), height=height, right=room)
    for i, one in enumerate(bars):
        said = f"{one.name}: {one.text}"
        shade = colour(0) if one.strong else GREY
        panel.box((0.0, one.value), (i - 0.36, i + 0.36), fill=shade, title=said)
        if one.error:
            ends = [one.value - one.error, one.value + one.error]
            panel.line([(end, i) for end in ends], colour="var(--ink)", width=2, title=said)
        panel.text(max(0.0, one.value + (one.error or 0.0)), i, one.text, anchor="start", dx=6)
    return plot([panel], name=f"{words} {name}")


def scatter_figure(dots: Sequence[Dot], *, x_title: str, y_title: str) -> Markup:
    """Return score against target, after Immer et al. (2021), Fig. 2."""
    families = sorted({dot.family for dot in dots})
    dots = within_axes(dots)
    panel = Panel(
        axis_of(x_title, [dot.x for dot in dots]), axis_of(y_title, [dot.y for dot in dots])
    )
    for dot, size in zip(dots, marker_sizes(dots), strict=True):
        at = families.index(dot.family)
        panel.dot(
            dot.x, dot.y, colour=colour(at), radius=size / 2, symbol=at, family=dot.family,
            hollow=bool(dot.edge), title="\n".join(dot.details), opacity=0.75,
        )  # fmt: skip
    return plot([panel], name=f"{y_title} by {x_title}", legend=_families(families))


def _families(families: Sequence[str]) -> list[Key]:
    return [Key(family, colour(i), i) for i, family in enumerate(families)]


def trust_figure(marks: Sequence[ScoreMark], *, target: str) -> Markup:
    """Return rho with its interval for each score, best at the top."""
    marks = marks[::-1]
    kinds = [kind for kind in KINDS if any(mark.kind == kind for mark in marks)]
    x = Axis(f"rho with {target}", -1.05, 1.05)
    names = named_axis([mark.score for mark in marks])
    panel = Panel(x, names, height=60 + _ROW * len(marks))
    panel.line([(0, -0.6), (0, len(marks) - 0.4)], colour=GREY, width=1)
    for i, mark in enumerate(marks):
        shade, s = colour(KINDS.index(mark.kind)), mark.statistics
        said = f"{mark.score}: rho {s.rho or 0.0:.3f}"
        if s.rho_interval:
            ends = [(s.rho_interval.low, i), (s.rho_interval.high, i)]
            panel.line(ends, colour=shade, width=2.5, title=said)
        panel.dot(s.rho or 0.0, i, colour=shade, title=said, opacity=1)
    legend = [Key(kind, colour(KINDS.index(kind))) for kind in kinds]
    return plot([panel], name=f"rank correlation of each score with {target}", legend=legend)


def training_figure(title: str, lines: Sequence[Line], *, x_title: str = "epoch") -> Markup:
    """Return one line per trial, the winner's on top."""
    families = sorted({line.family for line in lines})
    epochs = [float(epoch) for line in lines for epoch in line.epochs]
    values = [value for line in lines for value in line.values]
    panel = Panel(axis_of(x_title, epochs), axis_of(title, values))
    for line in sorted(lines, key=lambda line: line.emphasised):
        points = list(zip(map(float, line.epochs), line.values, strict=True))
        shade = colour(families.index(line.family))
        said = f"{line.label}\nat the end: {line.values[-1]:.4f}"
        wide, opacity = (3.5, 1.0) if line.emphasised else (1.3, 0.6)
        if len(points) == 1:
            panel.dot(*points[0], colour=shade, title=said, family=line.family)
        panel.line(
            points, colour=shade, width=wide, title=said, family=line.family, opacity=opacity
        )
    legend = [Key(family, colour(i), None) for i, family in enumerate(families)]
    return plot([panel], name=f"{title} by {x_title}", legend=legend)


def calibration_figure(points: Sequence[CalibrationPoint], *, labels: bool) -> Markup:
    """Return the share that is right against the stated probability, beside the diagonal."""
    x_title = "stated probability" if labels else "probability of the interval"
    y_title = "share that is right" if labels else "share of targets inside"
    panel = Panel(Axis(x_title, -0.02, 1.02), Axis(y_title, -0.02, 1.02))
    panel.line([(0, 0), (1, 1)], colour=GREY, dash="3 4")
    most = max(point.n for point in points)
    for point in points:
        # two standard errors of the share, were the stated probability right
        error = 2 * (point.confidence * (1 - point.confidence) / point.n) ** 0.5
        what = "stated" if labels else "interval"
        said = (
            f"{what} {point.confidence:.0%}: {point.accuracy:.0%} "
            f"{'right' if labels else 'inside'}, of {point.n:,} data"
        )
        ends = [max(0.0, point.accuracy - error), min(1.0, point.accuracy + error)]
        panel.line([(point.confidence, end) for end in ends], colour=colour(0), width=1.2)
        radius = 3 + 6 * (point.n / most) ** 0.5
        panel.dot(point.confidence, point.accuracy, colour=colour(0), radius=radius, title=said)
    return plot([panel], name=f"{y_title} by {x_title}")


def quarters_figure(quarters: Sequence[Quarter]) -> Markup:
    """Return the coverage of intervals in each quarter of the rows, beside what it should be."""
    names = [f"{_NTH[i]}{_range_of(one)}" for i, one in enumerate(quarters)]
    y = named_axis(names)
    panel = Panel(Axis("share of targets inside", -0.02, 1.02), y, height=60 + 44 * len(names))
    for level in (0.5, LEVEL):
        panel.line([(level, y.low), (level, y.high)], colour=GREY, dash="3 4")
    for i, one in enumerate(quarters):
        for at, level, share in ((0, 0.5, one.inside_50), (1, LEVEL, one.inside_90)):
            down = i + 0.3 * at - 0.15
            low, high = clopper_pearson(share * one.n, one.n, 0.95)
            said = f"{_NTH[i]} quarter: {share:.3f} in {level:.0%} intervals, of {one.n:,} rows"
            panel.line([(low, down), (high, down)], colour=colour(at), width=2, title=said)
            panel.dot(share, down, colour=colour(at), symbol=at, title=said, opacity=1)
    legend = [Key("50 % intervals", colour(0), 0), Key("90 % intervals", colour(1), 1)]
    return plot([panel], name="coverage by quartile of the prediction", legend=legend)


def _range_of(one: Quarter) -> str:
    """Return the predictions of a quarter in words, nothing for several targets."""
    if one.low is None or one.high is None:
        return ""
    return f": {short(one.low)} to {short(one.high)}"


def pit_figure(counts: Sequence[int]) -> Markup:
    """Return the histogram of the PIT, beside two standard errors of a uniform one."""
    n, bins = sum(counts), len(counts)
    shares = [count / n for count in counts]
    error = 2 * (1 / bins * (1 - 1 / bins) / n) ** 0.5
    highest = max(*shares, 1 / bins + error)
    panel = Panel(Axis("PIT", 0, 1), Axis("share of targets", 0, 1.05 * highest))
    for i, share in enumerate(shares):
        said = f"PIT {i / bins:g} to {(i + 1) / bins:g}: {counts[i]} of {n:,}"
        ends = ((i + 0.04) / bins, (i + 0.96) / bins)
        panel.box(ends, (0.0, share), fill=colour(0), title=said, opacity=0.8)
    for end in (max(0.0, 1 / bins - error), 1 / bins + error):
        panel.line([(0, end), (1, end)], colour="var(--ink)", dash="3 4")
    return plot([panel], name="histogram of the probability integral transform")


def confusion_figure(counts: Sequence[Sequence[int]], classes: Sequence[str]) -> Markup:
    """Return counts of true against predicted classes; shades are shares of the true class."""
    names = named_axis(classes)
    x = Axis("predicted class", names.low, names.high, names=names.names)
    y = Axis("true class", names.low, names.high, names=names.names)
    panel = Panel(x, y)
    for i, row in enumerate(counts):
        for j, n in enumerate(row):
            said = f"true {classes[i]}, predicted {classes[j]}: {n}"
            panel.box(
                (j - 0.48, j + 0.48), (i - 0.48, i + 0.48), fill=colour(0), title=said,
                opacity=0.06 + 0.84 * n / max(sum(row), 1),
            )  # fmt: skip
            if len(counts) <= MOST_NUMBERED:
                panel.text(j, i, str(n))
    return plot([panel], name="counts of true and predicted classes")


def pairs_figure(pairs: Sequence[tuple[float, float]]) -> Markup:
    """Return predicted against true values, beside the diagonal."""
    true, predicted = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    panel = Panel(axis_of("true value", true), axis_of("predicted value", [*predicted, *true]))
    ends = (min(true), max(true))
    panel.line([(end, end) for end in ends], colour=GREY, dash="3 4")
    for a, b in pairs:
        said = f"true {a:.4g}, predicted {b:.4g}"
        panel.dot(a, b, colour=colour(0), radius=2.6, title=said, opacity=0.6)
    return plot([panel], name="predicted against true values")


def importance_figure(bars: Sequence[Bar]) -> Markup:
    """Return how much each parameter decides."""
    x = axis_of("divergence of the best from all", [bar.length for bar in bars], zero=True)
    panel = Panel(x, named_axis([bar.label for bar in bars]), height=60 + _ROW * len(bars))
    for i, bar in enumerate(bars):
        said = f"{bar.label}: {bar.note}"
        panel.box((0.0, bar.length), (i - 0.32, i + 0.32), fill=colour(0), title=said)
    return plot([panel], name="importance of each parameter")


def epochs_figure(lines: Sequence[ScoreLine], *, target: str, unit: str) -> Markup:
    """Return rho above and regret below, over the epochs, one line per score."""
    epochs = [float(epoch) for line in lines for epoch in line.epochs]
    regrets = [value for line in lines for value in line.regret]
    title = f"regret at 1{f', {unit}' if unit else ''}"
    panels = (
        Panel(axis_of("", epochs), Axis(f"rho with final {target}", -1.05, 1.05), height=230),
        Panel(axis_of("epoch", epochs), axis_of(title, regrets, zero=True), top=246, height=240),
    )
    shades = [colour(len(lines) - 1 - i) for i in range(len(lines))]  # the main score is last
    for line, shade in zip(lines, shades, strict=True):
        for panel, values, what in zip(
            panels, (line.rho, line.regret), ("rho", "regret"), strict=True
        ):
            points = list(zip(map(float, line.epochs), values, strict=True))
            main, dash = line.kind == KINDS[0], DASHES[line.kind]
            said = f"{line.score}: {what} {values[-1]:.3f} at the end"
            if len(points) == 1:
                panel.dot(*points[0], colour=shade, radius=3, title=said)
            panel.line(points, colour=shade, width=3.5 if main else 1.6, dash=dash, title=said)
    legend = [
        Key(line.score, shade, None, DASHES[line.kind])
        for line, shade in zip(lines, shades, strict=True)
    ][::-1]
    return plot(panels, name="rank correlation and regret by epoch", legend=legend)


def front_figure(dots: Sequence[FrontDot], *, cost: str, y_title: str) -> Markup:
    """Return the objective against a cost, with the front as larger markers on a line."""
    families = sorted({dot.family for dot in dots})
    x = axis_of(cost, [dot.cost for dot in dots if dot.cost > 0] or [1.0], log=True)
    panel = Panel(x, axis_of(y_title, [dot.objective for dot in dots]))
    front = [(dot.cost, dot.objective) for dot in dots if dot.on_line and dot.cost > 0]
    panel.line(front, colour=GREY, dash="3 4")
    for dot in dots:
        at = families.index(dot.family)
        panel.dot(
            max(dot.cost, x.low), dot.objective, colour=colour(at), symbol=at,
            radius=7 if dot.on_front else 3.5, opacity=1.0 if dot.on_front else 0.45,
            family=dot.family, title="\n".join(dot.details),
        )  # fmt: skip
    return plot([panel], name=f"{y_title} by {cost}", legend=_families(families))
