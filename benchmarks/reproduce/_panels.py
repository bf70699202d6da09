"""The panels of a figure and the lines in them."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure


def panels(
    width: float, height: float, rows: int = 1, columns: int = 1, **shared: Any
) -> tuple[Figure, Any]:
    """Return a figure of a size in inches, and its panel, or an array of its panels."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, **shared)


def lines(
    axis: Axes, x: Any, series: Mapping[str, Any], style: str = "-", **settings: Any
) -> None:
    """Draw a line for each name over common x, a legend, and titles and scales."""
    for name, values in series.items():
        axis.plot(x, values, style, label=name)
    axis.set(**settings)
    axis.legend(fontsize=7)
