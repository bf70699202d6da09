"""The digits of the other experiments, shrunk to 16 x 16 (Baldock and Marzari 2019, Fig. 1)."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from nas_evidence_reproduce._baldock import digits
from nas_evidence_reproduce._published import Cell, Reproduction, Row

PAPER = "Baldock and Marzari 2019"
FIGURE = "Fig. 1"
TITLE = "64 digits of MNIST at 16 x 16 pixels"
CLAIM = "The digits stay readable at 256 pixels; each D_n has the same number of every class."
RULE = "each of the ten classes has as many digits as published"
NEEDS = ("MNIST", "baldock")
FULL_HOURS = 0.01


def cells(numbers: Mapping[str, Any]) -> list[Cell]:
    """Return whether each set has the same number of every class."""
    return [
        Cell("digits of each class", f"D_{n}", set(counts) == {int(n) // 10})
        for n, counts in numbers["n"].items()
    ]


def run(*, quick: bool, data: Path | None, say: Callable[[str], None]) -> Reproduction:
    """Show 64 digits of D_500 and count the classes of all three sets."""
    assert data is not None
    rows, counts, kept = [], {}, {}
    for per_class in (5, 50, 500):
        d = digits(data, per_class, n_test=10)
        counts[len(d.y)] = torch.bincount(d.y, minlength=10).tolist()
        kept[per_class] = d
        rows.append(
            Row(
                f"D_{len(d.y)}: digits of each class",
                str(per_class),
                ", ".join(str(n) for n in sorted(set(counts[len(d.y)]))),
            )
        )
    pixels = kept[500].x
    rows.append(
        Row(
            "D_5000: mean and standard deviation of the pixels",
            "0, 1 for all digits at 28 x 28",
            f"{float(pixels.mean()):.3f}, {float(pixels.std()):.3f}",
            "n = 1,280,000",
            "shrinking averages pixels, after constants of the large images",
        )
    )
    figure = Figure(figsize=(4, 4), layout="constrained")
    chosen = np.random.default_rng(0).permutation(500)[:64]
    for axis, i in zip(figure.subplots(8, 8).flat, chosen, strict=True):
        axis.imshow(kept[50].x[i].view(16, 16), cmap="gray")
        axis.set_axis_off()
    return Reproduction(
        tuple(rows), figure, {"n": {str(n): c for n, c in counts.items()}},
        "the stratified sets as published, from their lists",
    )  # fmt: skip
