"""Figures of the page as plotly JSON: data and layout, without the theme's colours.

The page's script adds the theme (light or dark) and the family filter: a trace of one family names
it in `meta.family`. All external text is escaped, since plotly interprets markup.
"""

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from nas_evidence.baselines.comparison import CalibrationPoint
from nas_evidence.reporting.figure_data import (
    KINDS,
    Bar,
    Dot,
    FrontDot,
    Line,
    ScoreLine,
    ScoreMark,
    colour,
    logarithmic_ticks,
    marker_sizes,
    within_axes,
)

Figure = dict[str, Any]
#: Most classes of which the counts are written into the cells.
MOST_NUMBERED = 12

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "pentagon")
#: Line styles of the figure over epochs, by the role of a score.
DASHES = {KINDS[0]: "solid", KINDS[1]: "dash", KINDS[2]: "dot"}
#: Markers of dots beyond the axes, by the edge they are drawn on.
EDGE_SYMBOLS = {
    "left": "triangle-left-open",
    "right": "triangle-right-open",
    "bottom": "triangle-down-open",
    "top": "triangle-up-open",
}
#: Height of a picture of the first page, in pixels.
HEIGHT = 340
_LEGEND = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}


def scatter_figure(dots: Sequence[Dot], *, x_title: str, y_title: str) -> Figure:
    """Return score against target, after Immer et al. (2021), Fig. 2."""
    families = sorted({dot.family for dot in dots})
    ticks = logarithmic_ticks(dots)
    dots = within_axes(dots)
    layout: Figure = {
        "height": HEIGHT,
        "xaxis": {"title": {"text": escape(x_title)}},
        "yaxis": {"title": {"text": escape(y_title)}},
        "legend": _LEGEND,
        "showlegend": len(families) > 1,
        "margin": {"t": 40, "r": 15, "l": 60, "b": 50},
    }
    if ticks:
        layout["coloraxis"] = {
            "colorscale": "Viridis",
            "colorbar": {
                "title": {"text": "parameters", "side": "right"},
                "thickness": 10,
                "tickvals": list(ticks),
                "ticktext": list(ticks.values()),
            },
        }
    data = []
    for position, family in enumerate(families):
        markers = _markers(dots, family, position=position, coloured_by_size=bool(ticks))
        symbol = SYMBOLS[position % len(SYMBOLS)]
        data += [markers, _legend_entry(markers, symbol)] if ticks else [markers]
    return {"data": data, "layout": layout}


def _markers(dots: Sequence[Dot], family: str, *, position: int, coloured_by_size: bool) -> Figure:
    sizes = marker_sizes(dots)
    chosen = [(dot, size) for dot, size in zip(dots, sizes, strict=True) if dot.family == family]
    own = SYMBOLS[position % len(SYMBOLS)]
    marker: Figure = {
        "symbol": [EDGE_SYMBOLS.get(dot.edge, own) for dot, _ in chosen],
        "size": [size if not dot.edge else 13 for dot, size in chosen],
        "opacity": 0.85,
        "line": {"width": 1, "color": "#888888"},
        "color": colour(position),
    }
    if coloured_by_size:
        marker["color"] = [math.log10(dot.n_parameters or 1) for dot, _ in chosen]
        marker["coloraxis"] = "coloraxis"
    return {
        "type": "scatter",
        "mode": "markers",
        "name": escape(family),
        "legendgroup": escape(family),
        "meta": {"family": family},
        "x": [dot.x for dot, _ in chosen],
        "y": [dot.y for dot, _ in chosen],
        "text": ["<br>".join(map(escape, dot.details)) for dot, _ in chosen],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": marker,
    }


def _legend_entry(markers: Figure, symbol: str) -> Figure:
    """Return an empty trace for the legend, which cannot show varying colours."""
    markers["showlegend"] = False
    shape = {"symbol": symbol, "size": 11, "color": "#888888"}
    same = {key: markers[key] for key in ("type", "mode", "name", "meta", "legendgroup")}
    return {**same, "x": [None], "y": [None], "marker": shape}


def trust_figure(marks: Sequence[ScoreMark], *, target: str) -> Figure:
    """Return rho with its interval for each score, best at the top."""
    order = [escape(mark.score) for mark in marks]
    data = []
    for position, kind in enumerate(KINDS):
        chosen = [mark for mark in marks if mark.kind == kind]
        if chosen:
            data.append(_intervals(chosen, kind, colour(position)))
    layout = {
        "height": 130 + 34 * max(len(marks), 2),
        "xaxis": {"title": {"text": f"rho with {escape(target)}"}, "range": [-1.05, 1.05]},
        "yaxis": {"automargin": True, "categoryorder": "array", "categoryarray": order},
        "legend": _LEGEND,
        "margin": {"t": 40, "r": 15, "l": 10, "b": 50},
    }
    return {"data": data, "layout": layout}


def _intervals(marks: Sequence[ScoreMark], kind: str, shade: str) -> Figure:
    rho = [mark.statistics.rho or 0.0 for mark in marks]
    intervals = [mark.statistics.rho_interval for mark in marks]
    above = [i.high - r if i else 0.0 for r, i in zip(rho, intervals, strict=True)]
    below = [r - i.low if i else 0.0 for r, i in zip(rho, intervals, strict=True)]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": kind,
        "x": rho,
        "y": [escape(mark.score) for mark in marks],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": above,
            "arrayminus": below,
            "thickness": 2,
        },
        "marker": {"size": 11, "color": shade},
        "hovertemplate": "%{y}: rho %{x:.3f}<extra></extra>",
    }


def training_figure(panels: Sequence[tuple[str, Sequence[Line]]]) -> Figure:
    """Return stacked panels, each with one line per trial over epochs."""
    families = sorted({line.family for _, lines in panels for line in lines})
    data: list[Figure] = []
    for number, (_, lines) in enumerate(panels, start=1):
        for position, family in enumerate(families):
            for emphasised in (False, True):
                own = (family, emphasised)
                chosen = [line for line in lines if (line.family, line.emphasised) == own]
                if chosen:
                    data.append(_joined(chosen, panel=number, shade=colour(position)))
    for position, trace in enumerate(data):  # one legend entry per family
        trace["showlegend"] = all(trace["name"] != other["name"] for other in data[:position])
    layout: Figure = {
        "height": HEIGHT if len(panels) == 1 else 300 * len(panels) + 90,
        "legend": _LEGEND,
        "margin": {"t": 40, "r": 15, "l": 65, "b": 50},
        "grid": {"rows": len(panels), "columns": 1, "pattern": "independent", "ygap": 0.15},
    }
    for number, (title, _) in enumerate(panels, start=1):
        layout[f"yaxis{_suffix(number)}"] = {"title": {"text": escape(title)}}
        layout[f"xaxis{_suffix(number)}"] = {"matches": "x"} if number > 1 else {}
    layout[f"xaxis{_suffix(len(panels))}"]["title"] = {"text": "epoch"}
    return {"data": data, "layout": layout}


def _joined(lines: Sequence[Line], *, panel: int, shade: str) -> Figure:
    """Return lines as one trace with gaps: pages of many trials stay fast."""
    emphasised = lines[0].emphasised
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": escape(lines[0].family),
        "legendgroup": escape(lines[0].family),
        "meta": {"family": lines[0].family},
        "x": _with_gaps(line.epochs for line in lines),
        "y": _with_gaps(line.values for line in lines),
        "text": _with_gaps([escape(line.label)] * len(line.epochs) for line in lines),
        "hovertemplate": "%{text}<br>epoch %{x}: %{y:.4f}<extra></extra>",
        "line": {"color": shade, "width": 4 if emphasised else 1.2},
        "marker": {"size": 7 if emphasised else 3},
        "opacity": 1.0 if emphasised else 0.6,
        "xaxis": f"x{_suffix(panel)}",
        "yaxis": f"y{_suffix(panel)}",
    }


def calibration_figure(points: Sequence[CalibrationPoint], *, labels: bool) -> Figure:
    """Return the share that is right against the stated probability, beside the diagonal."""
    sizes = [6 + 14 * (point.n / max(p.n for p in points)) ** 0.5 for point in points]
    words = (
        "confidence %{x:.2f}: %{y:.2f} right" if labels else "%{x:.0%} interval covers %{y:.0%}"
    )
    # two standard errors of the share, were the stated probability right
    errors = [2 * (p.confidence * (1 - p.confidence) / p.n) ** 0.5 for p in points]
    data: list[Figure] = [
        {
            "type": "scatter", "mode": "lines", "x": [0, 1], "y": [0, 1], "hoverinfo": "skip",
            "line": {"color": "#888888", "width": 1.5, "dash": "dot"},
        },
        {
            "type": "scatter",
            "mode": "markers",
            "x": [point.confidence for point in points],
            "y": [point.accuracy for point in points],
            "error_y": {"type": "data", "array": errors, "thickness": 1},
            "text": [f"{point.n:,} test data" for point in points],
            "hovertemplate": f"{words}<br>%{{text}}<extra></extra>",
            "marker": {"size": sizes, "color": colour(0)},
        },
    ]  # fmt: skip
    x_title = "stated probability" if labels else "probability of the interval"
    y_title = "share that is right" if labels else "share of targets inside"
    layout = {
        "height": HEIGHT,
        "showlegend": False,
        "xaxis": {"title": {"text": x_title}, "range": [-0.02, 1.02]},
        "yaxis": {"title": {"text": y_title}, "range": [-0.02, 1.02]},
        "margin": {"t": 20, "r": 15, "l": 60, "b": 50},
    }
    return {"data": data, "layout": layout}


def confusion_figure(counts: Sequence[Sequence[int]]) -> Figure:
    """Return counts of true against predicted classes; shades are shares of the true class."""
    shares = [[n / max(sum(row), 1) for n in row] for row in counts]
    names = [str(label) for label in range(len(counts))]
    data: list[Figure] = [
        {
            "type": "heatmap", "x": names, "y": names, "z": shares, "zmin": 0, "zmax": 1,
            "colorscale": [[0, "rgba(59,130,196,0.06)"], [1, "rgba(59,130,196,0.9)"]],
            "showscale": False, "xgap": 1, "ygap": 1,
            "customdata": [list(row) for row in counts],
            "hovertemplate": "true %{y}, predicted %{x}: %{customdata}<extra></extra>",
        }
    ]  # fmt: skip
    if len(counts) <= MOST_NUMBERED:
        data[0] |= {"text": [list(row) for row in counts], "texttemplate": "%{text}"}
    layout = {
        "height": HEIGHT,
        "xaxis": {"title": {"text": "predicted class"}, "type": "category"},
        "yaxis": {"title": {"text": "true class"}, "type": "category", "autorange": "reversed"},
        "margin": {"t": 20, "r": 15, "l": 50, "b": 50},
    }
    return {"data": data, "layout": layout}


def pairs_figure(pairs: Sequence[tuple[float, float]]) -> Figure:
    """Return predicted against true values, beside the diagonal."""
    true, predicted = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    ends = [min(true), max(true)]
    data = [
        {
            "type": "scatter", "mode": "lines", "x": ends, "y": ends, "hoverinfo": "skip",
            "line": {"color": "#888888", "width": 1.5, "dash": "dot"},
        },
        {
            "type": "scatter", "mode": "markers", "x": true, "y": predicted,
            "marker": {"size": 6, "color": colour(0), "opacity": 0.6},
            "hovertemplate": "true %{x:.4g}, predicted %{y:.4g}<extra></extra>",
        },
    ]  # fmt: skip
    layout = {
        "height": HEIGHT,
        "showlegend": False,
        "xaxis": {"title": {"text": "true value"}},
        "yaxis": {"title": {"text": "predicted value"}},
        "margin": {"t": 20, "r": 15, "l": 60, "b": 50},
    }
    return {"data": data, "layout": layout}


def importance_figure(bars: Sequence[Bar]) -> Figure:
    """Return how much each parameter decides, those beyond chance in colour."""
    layout = {
        "height": HEIGHT,
        "showlegend": False,
        "xaxis": {"title": {"text": "divergence of the best from all"}},
        "yaxis": {"automargin": True, "categoryorder": "array",
                  "categoryarray": [escape(bar.label) for bar in reversed(bars)]},
        "margin": {"t": 20, "r": 15, "l": 10, "b": 50},
    }  # fmt: skip
    data = {
        "type": "bar",
        "orientation": "h",
        "x": [bar.length for bar in bars],
        "y": [escape(bar.label) for bar in bars],
        "text": [escape(bar.note) for bar in bars],
        "textposition": "none",
        "width": 0.6 if len(bars) > 2 else 0.2 * len(bars),
        "marker": {"color": [colour(0) if bar.sure else "#b5bcc8" for bar in bars]},
        "hovertemplate": "%{y}: %{text}<extra></extra>",
    }
    return {"data": [data], "layout": layout}


def epochs_figure(lines: Sequence[ScoreLine], *, target: str, unit: str) -> Figure:
    """Return rho above and regret below, over the epochs, one line per score."""
    data = []
    for panel, column in ((1, "rho"), (2, "regret")):
        for line in lines:
            main = line.kind == KINDS[0]
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": escape(line.score),
                    "legendgroup": escape(line.score),
                    "showlegend": panel == 1,
                    "x": line.epochs,
                    "y": getattr(line, column),
                    "hovertemplate": escape(line.score)
                    + f"<br>epoch %{{x}}: {column} %{{y:.3f}}<extra></extra>",
                    "line": {
                        "color": _score_colour(lines, line),
                        "width": 4 if main else 1.6,
                        "dash": DASHES[line.kind],
                    },
                    "marker": {"size": 8 if main else 5},
                    "xaxis": f"x{_suffix(panel)}",
                    "yaxis": f"y{_suffix(panel)}",
                }
            )
    unit = f", {unit}" if unit else ""
    layout = {
        "height": 720,
        "legend": {**_LEGEND, "traceorder": "reversed"},
        "margin": {"t": 40, "r": 15, "l": 65, "b": 50},
        "grid": {"rows": 2, "columns": 1, "pattern": "independent", "ygap": 0.12},
        "xaxis": {},
        "xaxis2": {"matches": "x", "title": {"text": "epoch"}},
        "yaxis": {"title": {"text": f"rho with final {escape(target)}"}},
        "yaxis2": {"title": {"text": f"regret at 1{escape(unit)}"}, "rangemode": "tozero"},
    }
    return {"data": data, "layout": layout}


def _score_colour(lines: Sequence[ScoreLine], line: ScoreLine) -> str:
    return colour(
        len(lines) - 1 - lines.index(line)
    )  # the main score is last and gets the first colour


def front_figure(dots: Sequence[FrontDot], *, cost: str, y_title: str) -> Figure:
    """Return the objective against a cost, with the front as larger markers on a line."""
    data: list[Figure] = []
    front = [dot for dot in dots if dot.on_line]
    if front:
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "Pareto front",
                "x": [dot.cost for dot in front],
                "y": [dot.objective for dot in front],
                "line": {"color": "#888888", "width": 1.5, "dash": "dot"},
                "hoverinfo": "skip",
            }
        )
    for position, family in enumerate(sorted({dot.family for dot in dots})):
        chosen = [dot for dot in dots if dot.family == family]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": escape(family),
                "meta": {"family": family},
                "x": [dot.cost for dot in chosen],
                "y": [dot.objective for dot in chosen],
                "text": ["<br>".join(map(escape, dot.details)) for dot in chosen],
                "hovertemplate": "%{text}<extra></extra>",
                "marker": {
                    "symbol": SYMBOLS[position % len(SYMBOLS)],
                    "color": colour(position),
                    "size": [15 if dot.on_front else 7 for dot in chosen],
                    "opacity": [1.0 if dot.on_front else 0.45 for dot in chosen],
                },
            }
        )
    layout = {
        "height": 430,
        "xaxis": {"type": "log", "title": {"text": escape(cost)}},
        "yaxis": {"title": {"text": escape(y_title)}},
        "legend": _LEGEND,
        "margin": {"t": 40, "r": 15, "l": 65, "b": 50},
    }
    return {"data": data, "layout": layout}


def _suffix(panel: int) -> str:
    return "" if panel == 1 else str(panel)


def _with_gaps(parts: Iterable[Sequence[object]]) -> list[object]:
    joined: list[object] = []
    for part in parts:
        joined += [*part, None]
    return joined[:-1]
