"""The figures of the report as PDF and PNG, which matplotlib draws; the extra `figures`.

A figure is SVG of our own (`reporting/svg.py`), of which each element becomes one artist. So a
file has the marks of the page, in its light colours.

    one unit of the SVG = 72 * width / (width of the view box) points, width in inches
"""

import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from nas_evidence.plumbing.user_error import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NEEDED = "matplotlib"
_NAMESPACE = "{http://www.w3.org/2000/svg}"
_MOVE = re.compile(r"translate\(([-\d.]+) ([-\d.]+)\)")
#: Size and weight of a text by its class, in units and words of the style sheet.
_TEXTS: Mapping[str, tuple[float, str]] = {
    "axis-title": (12, "normal"), "value": (12, "bold"),
}  # fmt: skip
_TEXT = (11.0, "normal")
_ALIGNED = {"start": "left", "middle": "center", "end": "right"}


def check_installed(ending: str) -> None:
    """Check that the extra is installed.

    Raises:
        ValueError: if it is not; says how to install it.
    """
    if find_spec(_NEEDED) is None:
        raise UserError(
            "figure-needs-matplotlib",
            f"a figure as {ending} needs {_NEEDED}: install it with `pip install '.[figures]'` in "
            "a clone, or save the figure as .svg",
        )


def write_figure(
    svg: str, path: Path, *, width: float, dpi: float, colours: Mapping[str, str]
) -> None:
    """Write a figure as PDF or PNG, by the ending of the path.

    Args:
        svg: the whole figure, its legend inside.
        path: of the file.
        width: in inches.
        dpi: dots per inch of a PNG.
        colours: by the names that the figure has for them: "var(--ink)", ...

    Raises:
        ValueError: if the extra is not installed.
    """
    check_installed(path.suffix)
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    root = ElementTree.fromstring(svg)
    _, _, across, down = map(float, root.attrib["viewBox"].split())
    made = Figure(figsize=(width, width * down / across), facecolor="white")
    axes = made.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set(xlim=(0, across), ylim=(down, 0))
    _draw(root, axes, (0.0, 0.0), 72 * width / across, colours)
    # The text of a PDF stays text, and equal figures are equal files.
    stamps = {"CreationDate": None} if path.suffix == ".pdf" else {"Software": None}
    with rc_context({"pdf.fonttype": 42}):
        made.savefig(path, dpi=dpi, metadata=stamps)


def _draw(
    within: ElementTree.Element,
    axes: "Axes",
    origin: tuple[float, float],
    scale: float,
    colours: Mapping[str, str],
) -> None:
    """Draw the elements of one; `scale` is that of a unit in points."""
    for element in within:
        kind = element.tag.removeprefix(_NAMESPACE)
        moved = _MOVE.match(element.get("transform", ""))
        own = tuple(map(float, moved.groups())) if moved else (0.0, 0.0)
        place = (origin[0] + own[0], origin[1] + own[1])
        if kind == "g":
            _draw(element, axes, place, scale, colours)
        elif kind in _ARTISTS:
            _ARTISTS[kind](element, axes, place, scale, colours)


def _above(axes: "Axes") -> int:
    """Return the place of the next element: over those that were drawn before, as in SVG."""
    return len(axes.lines) + len(axes.patches) + len(axes.texts)


def _line(
    points: list[tuple[float, float]], element: ElementTree.Element, axes: "Axes",
    place: tuple[float, float], scale: float, colours: Mapping[str, str],
) -> None:  # fmt: skip
    from matplotlib.lines import Line2D

    wide = scale * float(element.get("stroke-width", 0.7))
    dashes = [scale * float(one) / wide for one in element.get("stroke-dasharray", "").split()]
    xs, ys = ([point[i] + place[i] for point in points] for i in (0, 1))
    stroke = element.get("stroke", "var(--line)")
    axes.add_line(
        Line2D(
            xs, ys, color=colours.get(stroke, stroke), linewidth=wide,
            alpha=float(element.get("opacity", 1)), solid_capstyle="butt", zorder=_above(axes),
            linestyle=(0, dashes) if dashes else "-",
        )
    )  # fmt: skip


def _grid(element: ElementTree.Element, *given: Any) -> None:
    x1, y1, x2, y2 = (float(element.attrib[name]) for name in ("x1", "y1", "x2", "y2"))
    _line([(x1, y1), (x2, y2)], element, *given)


def _polyline(element: ElementTree.Element, *given: Any) -> None:
    _line(_points(element), element, *given)


def _path(element: ElementTree.Element, *given: Any) -> None:
    """Draw the line of a legend, the one path of a figure: M x y H x."""
    x, y, end = map(float, re.findall(r"[-\d.]+", element.attrib["d"]))
    _line([(x, y), (end, y)], element, *given)


def _points(element: ElementTree.Element) -> list[tuple[float, float]]:
    points = (pair.split(",") for pair in element.attrib["points"].split())
    return [(float(x), float(y)) for x, y in points]


def _shape(
    element: ElementTree.Element, axes: "Axes", place: tuple[float, float], scale: float,
    colours: Mapping[str, str],
) -> None:  # fmt: skip
    from matplotlib.patches import Circle, Patch, Polygon, Rectangle

    def number(name: str) -> float:
        return float(element.get(name, 0))

    fill, stroke = element.get("fill", "none"), element.get("stroke", "none")
    how: dict[str, Any] = {
        "facecolor": colours.get(fill, fill),
        "edgecolor": colours.get(stroke, stroke),
        "linewidth": scale * number("stroke-width"),
        "alpha": float(element.get("opacity", 1)),
        "zorder": _above(axes),
    }
    kind, (left, top) = element.tag.removeprefix(_NAMESPACE), place
    shape: Patch
    if kind == "circle":
        shape = Circle((left + number("cx"), top + number("cy")), number("r"), **how)
    elif kind == "rect":
        corner = left + number("x"), top + number("y")
        shape = Rectangle(corner, number("width"), number("height"), **how)
    else:
        shape = Polygon([(left + x, top + y) for x, y in _points(element)], **how)
    axes.add_patch(shape)


def _text(
    element: ElementTree.Element, axes: "Axes", place: tuple[float, float], scale: float,
    colours: Mapping[str, str],
) -> None:  # fmt: skip
    size, weight = _TEXTS.get(element.get("class", ""), _TEXT)
    faint = element.get("class") == "tick"
    axes.text(
        place[0] + float(element.get("x", 0)), place[1] + float(element.get("y", 0)),
        element.text or "", fontsize=scale * size, fontweight=weight,
        color=colours["var(--faint)" if faint else "var(--ink)"],
        horizontalalignment=_ALIGNED[element.get("text-anchor", "start")],
        verticalalignment="baseline", rotation_mode="anchor", parse_math=False,
        zorder=_above(axes),
        rotation=90 if "rotate" in element.get("transform", "") else 0,
    )  # fmt: skip


_ARTISTS: Mapping[str, Callable[..., None]] = {
    "line": _grid, "polyline": _polyline, "path": _path, "text": _text,
    "circle": _shape, "rect": _shape, "polygon": _shape,
}  # fmt: skip
