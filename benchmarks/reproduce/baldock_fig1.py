"""The digits of the other experiments, shrunk to 16 x 16 (Baldock and Marzari 2019, Fig. 1).

In full it takes about a minute.
"""

import numpy as np
import torch

from ._baldock import digits
from ._panels import panels
from ._published import Cell, Cells, Numbers, Reproduction, Row, Run

FIGURE = "Fig. 1"
TITLE = "64 digits of MNIST at 16 x 16 pixels"
CLAIM = "The digits stay readable at 256 pixels; each D_n has the same number of every class."
RULE = "each of the ten classes has as many digits as published"
NEEDS = ("MNIST", "baldock")


def cells(numbers: Numbers) -> Cells:
    """Yield whether each set has the same number of every class."""
    for n, counts in numbers["n"].items():
        yield Cell("digits of each class", f"D_{n}", set(counts) == {int(n) // 10})


def run(at: Run) -> Reproduction:
    """Show 64 digits of D_500 and count the classes of all three sets."""
    sets = {10 * each: digits(at.data, each, n_test=10) for each in (5, 50, 500)}
    counts = {n: torch.bincount(one.y, minlength=10).tolist() for n, one in sets.items()}
    rows = [
        Row(f"D_{n}: digits of each class", f"{n // 10}", ", ".join(map(str, sorted({*found}))))
        for n, found in counts.items()
    ]
    pixels = sets[5000].x
    rows.append(
        Row(
            "D_5000: mean and standard deviation of the pixels",
            "0, 1 for all digits at 28 x 28",
            f"{float(pixels.mean()):.3f}, {float(pixels.std()):.3f}",
            "n = 1,280,000",
            "shrinking averages pixels, after constants of the large images",
        )
    )
    figure, axes = panels(4, 4, 8, 8)
    chosen = np.random.default_rng(0).permutation(500)[:64]
    for axis, i in zip(axes.flat, chosen, strict=True):
        axis.imshow(sets[500].x[i].view(16, 16), cmap="gray")
        axis.set_axis_off()
    return Reproduction(
        rows, figure, {"n": counts}, "the stratified sets as published, from their lists"
    )
