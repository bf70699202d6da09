"""Figures of the Markdown twin: PNG files, drawn from the data of the interactive ones."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from nas_evidence.judgement import CalibrationPoint
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

SYMBOLS = ("o", "s", "D", "^", "P", "X", "*", "p")
DASHES = {KINDS[0]: "-", KINDS[1]: "--", KINDS[2]: ":"}


def save_scatter(path: Path, dots: Sequence[Dot], *, x_title: str, y_title: str) -> None:
    """Draw score against target; size and colour by parameters, symbol by family."""
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.add_subplot(xlabel=plain(x_title), ylabel=plain(y_title))
    dots = within_axes(dots)
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
            s=[
                (0.75 * sizes[i]) ** 2 for i in chosen
            ],  # diameter in pixels to area in points squared
            marker=SYMBOLS[position % len(SYMBOLS)],
            alpha=0.85,
            edgecolors="#888888",
            **shades,
        )
    beyond = [dot for dot in dots if dot.edge]
    axes.plot([dot.x for dot in beyond], [dot.y for dot in beyond], "x", color="#c0504d")
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
    """Draw stacked panels, each with one line per trial over epochs."""
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


def save_calibration(path: Path, points: Sequence[CalibrationPoint], *, labels: bool) -> None:
    """Draw the share that is right against the stated probability."""
    figure = Figure(figsize=(5, 4), layout="constrained")
    x_label = "stated probability" if labels else "probability of the interval"
    y_label = "share that is right" if labels else "share of targets inside"
    axes = figure.add_subplot(xlabel=x_label, ylabel=y_label, xlim=(0, 1.02), ylim=(0, 1.02))
    axes.plot([0, 1], [0, 1], ":", color="#888888")
    axes.plot([p.confidence for p in points], [p.accuracy for p in points], "o", color=colour(0))
    _save(figure, path)


def save_confusion(path: Path, counts: Sequence[Sequence[int]]) -> None:
    """Draw counts of true (rows) against predicted classes."""
    figure = Figure(figsize=(5, 4.4), layout="constrained")
    axes = figure.add_subplot(xlabel="predicted class", ylabel="true class")
    axes.imshow([[n / max(sum(row), 1) for n in row] for row in counts], cmap="Blues", vmin=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    _save(figure, path)


def save_pairs(path: Path, pairs: Sequence[tuple[float, float]]) -> None:
    """Draw predicted against true values."""
    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="true value", ylabel="predicted value")
    true, predicted = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    axes.plot([min(true), max(true)], [min(true), max(true)], ":", color="#888888")
    axes.plot(true, predicted, ".", color=colour(0), alpha=0.6)
    _save(figure, path)


def save_importance(path: Path, bars: Sequence[Bar]) -> None:
    """Draw how much each parameter decides, those beyond chance in colour."""
    _save(importance_figure(bars), path)


def importance_figure(bars: Sequence[Bar]) -> Figure:
    """Return that figure."""
    figure = Figure(figsize=(6, 1.2 + 0.35 * len(bars)), layout="constrained")
    axes = figure.add_subplot(xlabel="divergence of the best from all")
    shades = [colour(0) if bar.sure else "#b5bcc8" for bar in bars]
    axes.barh(range(len(bars)), [bar.length for bar in bars], color=shades)
    axes.set_yticks(range(len(bars)), [plain(bar.label) for bar in bars])
    axes.invert_yaxis()
    return figure


def save_epochs(path: Path, lines: Sequence[ScoreLine], *, target: str, unit: str) -> None:
    """Draw rho above and regret below, over the epochs, one line per score."""
    figure = Figure(figsize=(7, 6.8), layout="constrained")
    titles = (f"rho with final {target}", f"regret at 1{', ' if unit else ''}{unit}")
    for row, (title, column) in enumerate(zip(titles, ("rho", "regret"), strict=True), start=1):
        axes = figure.add_subplot(2, 1, row, ylabel=plain(title), xlabel="epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        for number, line in enumerate(lines):
            axes.plot(
                line.epochs,
                getattr(line, column),
                marker=".",
                color=colour(len(lines) - 1 - number),
                linestyle=DASHES[line.kind],
                linewidth=3 if line.kind == KINDS[0] else 1.2,
                label=plain(line.score),
            )
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles[::-1], labels[::-1], loc="outside upper left", ncols=4, frameon=False, fontsize=8
    )
    _save(figure, path)


def save_front(path: Path, dots: Sequence[FrontDot], *, cost: str, y_title: str) -> None:
    """Draw the objective against a cost, with the front as larger markers on a line."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot(xlabel=plain(cost), ylabel=plain(y_title), xscale="log")
    front = [dot for dot in dots if dot.on_line]
    axes.plot(
        [dot.cost for dot in front],
        [dot.objective for dot in front],
        color="#888888",
        linestyle=":",
        label="Pareto front",
    )
    for position, family in enumerate(sorted({dot.family for dot in dots})):
        chosen = [dot for dot in dots if dot.family == family]
        axes.scatter(
            [dot.cost for dot in chosen],
            [dot.objective for dot in chosen],
            s=[100 if dot.on_front else 20 for dot in chosen],
            marker=SYMBOLS[position % len(SYMBOLS)],
            color=[to_rgba(colour(position), 1.0 if dot.on_front else 0.45) for dot in chosen],
            label=plain(family),
        )
    axes.legend()
    _save(figure, path)


def plain(text: str) -> str:
    """Return text that matplotlib shows literally: a dollar sign would start a formula."""
    return text.replace("$", r"\$")


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=120, metadata={"Software": None})  # equal data, equal bytes
