"""Figures of the Markdown twin: PNG files, drawn from the data of the interactive ones."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from nas_evidence.report.figure_data import (
    KINDS,
    Dot,
    Line,
    ScoreMark,
    colour,
    logarithmic_ticks,
    marker_sizes,
)

SYMBOLS = ("o", "s", "D", "^", "P", "X", "*", "p")


def save_scatter(path: Path, dots: Sequence[Dot], *, x_title: str, y_title: str) -> None:
    """Draw score against target; size and colour by parameters, symbol by family."""
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.add_subplot(xlabel=plain(x_title), ylabel=plain(y_title))
    sizes = marker_sizes(dots)
    ticks = logarithmic_ticks(dots)
    logs = [math.log10(dot.n_parameters or 1) for dot in dots]
    families = sorted({dot.family for dot in dots})
    for position, family in enumerate(families):
        chosen = [i for i, dot in enumerate(dots) if dot.family == family]
        shades: dict[str, Any] = {"color": colour(position)}
        if ticks:
            shades = {"c": [logs[i] for i in chosen], "vmin": min(logs), "vmax": max(logs)}
        drawn = axes.scatter(
            [dots[i].x for i in chosen],
            [dots[i].y for i in chosen],
            s=[(0.75 * sizes[i]) ** 2 for i in chosen],  # pixels across to points squared
            marker=SYMBOLS[position % len(SYMBOLS)],
            alpha=0.85,
            edgecolors="#888888",
            **shades,
        )
    if ticks:
        bar = figure.colorbar(drawn, ax=axes, label="number of parameters")
        bar.set_ticks(list(ticks), labels=list(ticks.values()))
    if len(families) > 1:
        axes.legend(
            handles=[
                Line2D([], [], linestyle="", marker=SYMBOLS[i % len(SYMBOLS)], color="#666666",
                       label=plain(family))
                for i, family in enumerate(families)
            ]
        )  # fmt: skip
    _save(figure, path)


def save_trust(path: Path, marks: Sequence[ScoreMark], *, target: str) -> None:
    """Draw rho with its interval for each score, best at the top."""
    figure = Figure(figsize=(7, 1.4 + 0.35 * len(marks)), layout="constrained")
    axes = figure.add_subplot(xlabel=plain(f"rho with {target}"), xlim=(-1.05, 1.05))
    axes.axvline(0, color="#888888", linewidth=1)
    for height, mark in enumerate(marks):
        shade, interval = colour(KINDS.index(mark.kind)), mark.statistics.rho_interval
        if interval is not None:
            axes.plot([interval.low, interval.high], [height, height], color=shade, linewidth=2)
        axes.plot([mark.statistics.rho or 0.0], [height], "o", color=shade)
    axes.set_yticks(range(len(marks)), [plain(mark.score) for mark in marks])
    present = [kind for kind in KINDS if any(mark.kind == kind for mark in marks)]
    handles = [
        Line2D([], [], marker="o", color=colour(KINDS.index(kind)), label=kind) for kind in present
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=len(KINDS), frameon=False)
    _save(figure, path)


def save_training(path: Path, panels: Sequence[tuple[str, Sequence[Line]]]) -> None:
    """Draw one panel below another, each with one line a trial over epochs."""
    figure = Figure(figsize=(7, 3.2 * len(panels) + 0.4), layout="constrained")
    families = sorted({line.family for _, lines in panels for line in lines})
    for number, (title, lines) in enumerate(panels, start=1):
        axes = figure.add_subplot(len(panels), 1, number, ylabel=plain(title), xlabel="epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        for line in lines:
            axes.plot(
                line.epochs,
                line.values,
                marker=".",
                color=colour(families.index(line.family)),
                linewidth=3 if line.emphasised else 0.9,
                alpha=1.0 if line.emphasised else 0.6,
            )
    handles = [Line2D([], [], color=colour(i), label=plain(f)) for i, f in enumerate(families)]
    figure.legend(handles=handles, loc="outside upper left", ncols=4, frameon=False)
    _save(figure, path)


def plain(text: str) -> str:
    """Return text that matplotlib shows as it is: a dollar sign would start a formula."""
    return text.replace("$", r"\$")


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=120, metadata={"Software": None})  # equal data, equal bytes
