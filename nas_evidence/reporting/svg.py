"""Plots as SVG: axes, and marks in the units of the axes.

A plot is text inside the page: it needs no script, is sharp on paper, and takes its colours from
the page's style sheet, light or dark. What a mark stands for is its `<title>`, which the browser
shows to a mouse and the page's script to a finger. All text from outside is escaped.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from markupsafe import Markup, escape

from nas_evidence.reporting.words import short

#: Width of a plot in units of its own; the style sheet scales it to the column.
WIDTH = 440.0
#: One colour per family, distinct for the colour-blind and on light and dark backgrounds.
COLOURS = ("#3b82c4", "#d9822b", "#2f9e78", "#b565b0", "#a08a2e", "#c0504d", "#5fb3c9", "#8c8c8c")
GREY = "#8c95a3"
_CHARACTER = 6.3  # mean width of a character of the tick labels
_MOST_TICKS = 6
_STAR = tuple(
    (r * math.sin(i * math.pi / 5), -r * math.cos(i * math.pi / 5))
    for i, r in enumerate((1.25, 0.5) * 5)
)
#: Outlines of markers of radius 1, by position of the family; the first is a circle.
SYMBOLS: Sequence[Sequence[tuple[float, float]]] = (
    (),
    ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    ((0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)),
    ((0, -1.2), (1.1, 0.8), (-1.1, 0.8)),
    ((0, 1.2), (1.1, -0.8), (-1.1, -0.8)),
    _STAR,
)


def colour(position: int) -> str:
    """Return the colour of the family at `position`."""
    return COLOURS[position % len(COLOURS)]


@dataclass(frozen=True)
class Axis:
    """A range of values, or of names at 0, 1, 2, ...; `log` for powers of ten, `whole` counts."""

    title: str
    low: float
    high: float
    log: bool = False
    names: Sequence[str] = ()
    whole: bool = False

    def share(self, value: float) -> float:
        """Return where a value lies between the ends, 0 to 1."""
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = (math.log10(max(v, 1e-300)) for v in (low, high, value))
        return 0.5 if high == low else (at - low) / (high - low)

    def ticks(self) -> list[tuple[float, str]]:
        """Return values and labels of the grid."""
        if self.names:
            return list(enumerate(self.names))
        if self.log:
            low, high = math.log10(self.low), math.log10(self.high)
            powers = range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)
            if len(powers) >= 2:
                every = math.ceil(len(powers) / _MOST_TICKS)
                return [(10.0**p, short(10.0**p)) for p in powers[::every]]
            return [(v, short(v)) for v in (self.low, math.sqrt(self.low * self.high), self.high)]
        span = self.high - self.low
        if span <= 0:
            return [(self.low, f"{self.low:g}")]
        rough = span / (_MOST_TICKS - 1)
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(m * unit for m in (1.0, 2.0, 5.0, 10.0) if m * unit >= rough * 0.999)
        step = max(step, 1.0) if self.whole else step
        first = math.ceil(self.low / step - 1e-9)
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        count = math.floor((self.high - first * step) / step + 1e-9) + 1
        values = [(first + i) * step for i in range(count)]
        return [(v, short(v) if self.high >= 1e4 else f"{v + 0.0:.{digits}f}") for v in values]


def axis_of(
    title: str, values: Sequence[float], *,
    log: bool = False, zero: bool = False, whole: bool = False,
) -> Axis:  # fmt: skip
    """Return an axis a little longer than the values; from 0 if asked for."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    low = min(low, 0.0) if zero else low
    if log:
        return Axis(title, low / 1.25, high * 1.25, log=True)
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 0.5
    return Axis(title, low if zero and low == 0 else low - margin, high + margin, whole=whole)


def named_axis(names: Sequence[str]) -> Axis:
    """Return an axis of names."""
    return Axis("", -0.6, len(names) - 0.4, names=tuple(names))


@dataclass
class Panel:
    """One pair of axes in a plot, and its marks; y grows upwards, names downwards."""

    x: Axis
    y: Axis
    top: float = 8.0
    height: float = 300.0
    right: float = 14.0
    marks: list[str] = field(default_factory=list)

    @property
    def left(self) -> float:
        """Return the width of the labels beside the panel."""
        longest = max((len(label) for _, label in self.y.ticks()), default=1)
        return min(190.0, 12 + _CHARACTER * longest + (18 if self.y.title else 0))

    @property
    def bottom(self) -> float:
        """Return the lower end of the panel itself, above its labels."""
        return self.top + self.height - (40 if self.x.title else 22)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the place of a pair of values in the plot."""
        share = self.y.share(y)
        down = share if self.y.names else 1 - share
        across = self.left + self.x.share(x) * (WIDTH - self.right - self.left)
        return across, self.top + down * (self.bottom - self.top)

    def dot(
        self, x: float, y: float, *, colour: str, radius: float = 5.0, symbol: int = 0,
        title: str = "", family: str = "", hollow: bool = False, opacity: float = 0.85,
        trial: int | None = None,
    ) -> None:  # fmt: skip
        """Add a marker of a radius, in the shape of the family at position `symbol`.

        A click on one of a `trial` opens the row of that trial, where the page has it.
        """
        shape = _symbol(symbol, *self.at(x, y), radius)
        self.marks.append(
            f'<{shape} class="dot" {_fill(colour, hollow=hollow)} opacity="{opacity:g}"'
            f"{_of(family)}{_row_of(trial)}>{_title(title)}</{shape.split()[0]}>"
        )

    def line(
        self, points: Sequence[tuple[float, float]], *, colour: str, width: float = 1.5,
        title: str = "", family: str = "", dash: str = "", opacity: float = 1.0,
        trial: int | None = None,
    ) -> None:  # fmt: skip
        """Add a line through points; of a `trial` as a marker of one."""
        places = " ".join(f"{a:.1f},{b:.1f}" for a, b in (self.at(*point) for point in points))
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.marks.append(
            f'<polyline class="line" points="{places}" fill="none" stroke="{colour}" '
            f'stroke-width="{width:g}" opacity="{opacity:g}"{dashed}{_of(family)}{_row_of(trial)}>'
            f"{_title(title)}</polyline>"
        )

    def box(
        self, x: tuple[float, float], y: tuple[float, float], *, fill: str, title: str = "",
        opacity: float = 1.0,
    ) -> None:  # fmt: skip
        """Add a filled rectangle between two values of x and two of y."""
        (a, b), (c, d) = self.at(x[0], y[0]), self.at(x[1], y[1])
        self.marks.append(
            f'<rect class="box" x="{min(a, c):.1f}" y="{min(b, d):.1f}" width="{abs(c - a):.1f}" '
            f'height="{abs(d - b):.1f}" fill="{fill}" opacity="{opacity:.3g}">'
            f"{_title(title)}</rect>"
        )

    def text(
        self, x: float, y: float, words: str, *, anchor: str = "middle", dx: float = 0
    ) -> None:
        """Add words at a pair of values."""
        across, down = self.at(x, y)
        self.marks.append(
            f'<text class="value" x="{across + dx:.1f}" y="{down + 4:.1f}" '
            f'text-anchor="{anchor}">{escape(words)}</text>'
        )

    def drawn(self) -> str:
        """Return the panel as SVG."""
        right, parts = WIDTH - self.right, []
        for value, label in self.x.ticks():
            across = self.at(value, self.y.low)[0]
            grid = f'<line class="grid" x1="{across:.1f}" y1="{self.top:.1f}" x2="{across:.1f}" '
            parts.append(
                ("" if self.x.names else f'{grid}y2="{self.bottom:.1f}"/>')
                + f'<text class="tick" x="{across:.1f}" '
                f'y="{self.bottom + 15:.1f}" text-anchor="middle">{escape(label)}</text>'
            )
        for value, label in self.y.ticks():
            down = self.at(self.x.low, value)[1]
            grid = f'<line class="grid" x1="{self.left:.1f}" y1="{down:.1f}" x2="{right:.1f}" '
            parts.append(
                ("" if self.y.names else f'{grid}y2="{down:.1f}"/>')
                + f'<text class="tick" x="{self.left - 6:.1f}" y="{down + 4:.1f}" '
                f'text-anchor="end">{escape(_fitting(label))}</text>'
            )
        middle = (self.left + right) / 2
        if self.x.title:
            parts.append(
                f'<text class="axis-title" x="{middle:.1f}" y="{self.bottom + 33:.1f}" '
                f'text-anchor="middle">{escape(self.x.title)}</text>'
            )
        if self.y.title:
            down = (self.top + self.bottom) / 2
            fits = _CHARACTER * len(self.y.title) <= self.height
            title = self.y.title if fits else self.y.title.partition(" (")[0]  # without its unit
            parts.append(
                f'<text class="axis-title" transform="translate(13 {down:.1f}) rotate(-90)" '
                f'text-anchor="middle">{escape(title)}</text>'
            )
        return "".join([*parts, *self.marks])


def _symbol(symbol: int, across: float, down: float, radius: float) -> str:
    outline = SYMBOLS[symbol % len(SYMBOLS)]
    if not outline:
        return f'circle cx="{across:.1f}" cy="{down:.1f}" r="{radius:.1f}"'
    points = (f"{across + radius * a:.1f},{down + radius * b:.1f}" for a, b in outline)
    return f'polygon points="{" ".join(points)}"'


def _fill(colour: str, *, hollow: bool) -> str:
    return f'fill="none" stroke="{colour}" stroke-width="2"' if hollow else f'fill="{colour}"'


def _fitting(label: str) -> str:
    return label if len(label) <= 28 else f"{label[:27]}…"


def _title(words: str) -> Markup:
    return Markup("<title>{}</title>").format(words) if words else Markup()


def _of(family: str) -> Markup:
    return Markup(' data-family="{}"').format(family) if family else Markup()


def _row_of(trial: int | None) -> str:
    return "" if trial is None else f' data-trial="{trial}"'


@dataclass(frozen=True)
class Key:
    """One entry of a legend: a marker, or a line with its dashes."""

    name: str
    colour: str
    symbol: int | None = 0
    dash: str = ""
    hollow: bool = False


class Drawing(Markup):
    """A figure as SVG, with the values that it shows.

    rows  one mapping for each value or each marker, the same names in all
    """

    rows: Sequence[Mapping[str, Any]]

    def __new__(cls, base: object = "", rows: Sequence[Mapping[str, Any]] = ()) -> Self:
        """Return SVG with the values that it shows."""
        made = super().__new__(cls, base)
        made.rows = tuple(rows)
        return made


def plot(
    panels: Sequence[Panel], *, name: str, rows: Sequence[Mapping[str, Any]],
    legend: Sequence[Key] = (),
) -> Drawing:  # fmt: skip
    """Return panels as one figure, its legend above.

    Args:
        panels: below each other; each has its own place.
        name: what the figure shows, for those who hear the page.
        rows: the values that it shows, see `Drawing`.
        legend: not drawn for fewer than two entries.
    """
    height = max(panel.top + panel.height for panel in panels)
    keys = "".join(map(_key, legend)) if len(legend) > 1 else ""
    above = f'<div class="legend">{keys}</div>' if keys else ""
    body = "".join(panel.drawn() for panel in panels)
    return Drawing(
        f'{above}<svg viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="{escape(name)}">'
        f"{body}</svg>",
        rows,
    )


def _key(key: Key) -> str:
    if key.symbol is None:
        dashed = f' stroke-dasharray="{key.dash}"' if key.dash else ""
        shape = f'<path d="M0 7H22" stroke="{key.colour}" stroke-width="3"{dashed}/>'
        width = 22
    else:
        outline = _symbol(key.symbol, 7, 7, 5)
        shape, width = f"<{outline} {_fill(key.colour, hollow=key.hollow)}/>", 14
    return (
        f'<span{_of(key.name)}><svg width="{width}" height="14" aria-hidden="true">{shape}</svg> '
        f"{escape(key.name)}</span>"
    )
