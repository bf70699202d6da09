"""The gradient threshold by the bound, on MNIST (Duvenaud et al. 2016, Fig. 5).

784-100-10, 50,000 images, batches of 250, 1,500 steps of 0.1 / N along the summed gradient, first
weights N(0, (2/28)²); thresholds g0 in units of that gradient. A threshold of 0 is plain descent.
Quick: batches of 100 and four thresholds.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from nas_evidence_reproduce._mnist_descent import Descent, descended, mnist
from nas_evidence_reproduce._published import Cell, Reproduction, Row

PAPER = "Duvenaud et al. 2016"
FIGURE = "Fig. 5"
TITLE = "The gradient threshold of entropy-friendly descent, on MNIST"
CLAIM = (
    "With larger thresholds training and test error get worse, but for intermediate ones the "
    "bound increases."
)
RULE = (
    "training and test likelihood fall from each threshold to the next larger one, and the "
    "bound is above that of plain descent at all thresholds but the largest, where it is below"
)
NEEDS = ("MNIST",)
FULL_HOURS = 0.5

SPREAD, STEPS, RATE = 2 / 28, 1500, 0.1


def cells(numbers: Mapping[str, Any]) -> list[Cell]:
    """Return what holds from each threshold to the next, and at each but 0."""
    at = sorted(int(name) for name in numbers if name.isdigit())
    last = {what: [numbers[str(g)][what][-1] for g in at] for what in ("train", "test", "bound")}
    found = [
        Cell("gets worse", name, all(b < a for a, b in pairwise(last[what])))
        for what, name in (("train", "training likelihood"), ("test", "test likelihood"))
    ]
    for g, bound in zip(at[1:], last["bound"][1:], strict=True):
        largest = g == at[-1]
        group = f"bound {'falls' if largest else 'rises'} against plain descent"
        found.append(Cell(group, f"threshold {g}", (bound < last["bound"][0]) == largest))
    return found


def run(*, quick: bool, data: Path | None, say: Callable[[str], None]) -> Reproduction:
    """Descend at each threshold, one draw each."""
    assert data is not None
    images = mnist(data)
    thresholds = (0, 30, 300, 3000) if quick else (0, 1, 3, 10, 30, 100, 300, 1000, 3000)
    steps = STEPS
    runs: dict[int, Descent] = {}
    for threshold in thresholds:
        runs[threshold] = descended(
            images, 100, spreads=(SPREAD, SPREAD), rate=RATE, n_steps=steps,
            batch_size=100 if quick else 250,
            threshold=float(threshold),
        )  # fmt: skip
        one = runs[threshold]
        say(f"threshold {threshold}: bound {one.bound[-1]:.3f}, test {one.test[-1]:.4f}")
    best = max(runs, key=lambda g: runs[g].bound[-1])
    gained = runs[best].bound[-1] - runs[0].bound[-1]
    worse = runs[0].error[-1] - runs[best].error[-1]
    rows = [
        Row(
            "threshold of the best bound",
            "intermediate",
            f"{best}",
            "one draw",
        ),
        Row(
            f"bound per datum after {steps} steps, by threshold {thresholds}",
            "rises, then falls",
            ", ".join(f"{one.bound[-1]:.3f}" for one in runs.values()),
            "one draw",
        ),
        Row(
            "test log likelihood per datum, by threshold",
            "gets worse",
            ", ".join(f"{one.test[-1]:.4f}" for one in runs.values()),
        ),
        Row(
            "largest eigenvalue times step on a batch, by threshold",
            "",
            ", ".join(f"{one.largest:.2f}" for one in runs.values()),
            "",
            "above 0.68 the estimate is not strictly a bound",
        ),
        Row(
            "training log likelihood per datum, by threshold",
            "gets worse",
            ", ".join(f"{one.train[-1]:.4f}" for one in runs.values()),
        ),
    ]
    return Reproduction(
        tuple(rows),
        _figure(runs),
        {"n": 1, "steps": steps, **{str(g): vars(one) for g, one in runs.items()}},
        f"the bound is best at a threshold of {best}, {gained:+.3f} nats per datum from plain "
        f"descent, where the test error changes by {100 * -worse:+.2f} points",
    )


def _figure(runs: dict[int, Descent]) -> Figure:
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True)
    at = list(runs)
    top.plot(at, [one.train[-1] for one in runs.values()], "o-", label="training")
    top.plot(at, [one.test[-1] for one in runs.values()], "o-", label="test")
    top.set(xscale="symlog", ylabel="log likelihood\nper datum")
    top.legend(frameon=False)
    bottom.plot(at, [one.bound[-1] for one in runs.values()], "o-", color="C2")
    bottom.set(xlabel="gradient threshold", ylabel="bound per datum (nats)")
    return figure
