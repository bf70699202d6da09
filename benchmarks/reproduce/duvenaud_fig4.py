"""How many hidden units, by the bound, on MNIST (Duvenaud et al. 2016, Fig. 4).

784-h-10, 50,000 images, 1,000 steps of 1 / N along the summed gradient, first weights
N(0, (2/28)²) in every layer whatever its width. Quick: 400 steps, batches of 100 in place of
1,000, and up to 300 units. Such steps are up to twenty times longer than the inverse curvature,
where the estimate of the entropy is no bound; so the same with steps of 0.05 / N, and once more
with a prior scaled per layer, N(0, 1 / inputs): under one spread more units make the outputs of a
random network larger. Neither is in the paper.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from nas_evidence_reproduce._mnist_descent import Descent, descended, mnist
from nas_evidence_reproduce._published import Cell, Reproduction, Row

PAPER = "Duvenaud et al. 2016"
FIGURE = "Fig. 4"
TITLE = "The number of hidden units by the bound, on MNIST"
CLAIM = "The bound peaks near 30 hidden units, the test likelihood near 300."
RULE = (
    "the peak at the last step is at the published width, 30 units for the bound and 300 for "
    "the test likelihood, as published and in our two settings of shorter steps"
)
NEEDS = ("MNIST",)
FULL_HOURS = 3.0

SPREAD = 2 / 28
PUBLISHED, SHORT, SCALED = "as published", "short steps", "short steps, prior scaled per layer"
RATES = {PUBLISHED: 1.0, SHORT: 0.05, SCALED: 0.05}


def cells(numbers: Mapping[str, Any]) -> list[Cell]:
    """Return whether bound and test likelihood peak at the published widths in each setting."""
    found = []
    for what, width in (("bound", 30), ("test", 300)):
        for name in RATES:
            last = {int(w): one[what][-1] for w, one in numbers[name].items()}
            group = f"{'bound' if what == 'bound' else 'test likelihood'} peaks at {width} units"
            found.append(Cell(group, name, max(last, key=last.__getitem__) == width))
    return found


def run(*, quick: bool, data: Path | None, say: Callable[[str], None]) -> Reproduction:
    """Descend for each width in three ways, one draw each."""
    assert data is not None
    images = mnist(data)
    widths = (10, 30, 100, 300) if quick else (10, 30, 100, 300, 1000, 3000)
    batch_size, n_steps = (100, 400) if quick else (1000, 1000)
    found: dict[str, dict[int, Descent]] = {name: {} for name in RATES}
    for name, runs in found.items():
        for width in widths:
            first, second = SPREAD, SPREAD
            if name == SCALED:
                first, second = 784**-0.5, width**-0.5
            runs[width] = descended(
                images, width, spreads=(first, second), rate=RATES[name], n_steps=n_steps,
                batch_size=batch_size,
            )  # fmt: skip
            one = runs[width]
            say(
                f"{name}, {width} units: bound {max(one.bound):.3f} at {one.steps[one.best]}, at "
                f"the end {one.bound[-1]:.3f}, test {one.test[-1]:.3f}, largest {one.largest:.2f}"
            )
    rows, peaks = [], {}
    for name, runs in found.items():
        at_end = max(runs, key=lambda w: runs[w].bound[-1])
        stopped = max(runs, key=lambda w: max(runs[w].bound))
        tested = max(runs, key=lambda w: runs[w].test[-1])
        peaks[name] = at_end, tested
        ours = name == PUBLISHED
        rows += [
            Row(
                f"{name}: units of the best bound at the end, at its own best step",
                "30" if ours else "",
                f"{at_end}, {stopped}",
                "one draw",
            ),
            Row(f"{name}: units of the best test likelihood", "300" if ours else "", f"{tested}"),
            Row(
                f"{name}: bound per datum at the end, by width {widths}",
                "",
                ", ".join(f"{one.bound[-1]:.3f}" for one in runs.values()),
                "one draw",
                _steep(runs),
            ),
            Row(
                f"{name}: test log likelihood, by width",
                "",
                ", ".join(f"{one.test[-1]:.4f}" for one in runs.values()),
            ),
        ]
    bound, test = peaks[PUBLISHED]
    return Reproduction(
        tuple(rows),
        _figure(found),
        {
            "n": 1,
            "batch_size": batch_size,
            **{
                name: {str(w): vars(one) for w, one in runs.items()}
                for name, runs in found.items()
            },
        },
        f"after {n_steps} steps the bound peaks at {bound} units, the test likelihood at {test}, "
        "but such steps are too long for a bound; with short steps the peaks are at "
        f"{peaks[SHORT][0]} and {peaks[SHORT][1]}, with a prior scaled per layer at "
        f"{peaks[SCALED][0]} and {peaks[SCALED][1]}",
    )


def _steep(runs: dict[int, Descent]) -> str:
    largest = max(one.largest for one in runs.values())
    if largest <= 0.6838:
        return ""
    return f"step times curvature reaches {largest:.2f} on a batch: not a strict bound there"


def _figure(found: dict[str, dict[int, Descent]]) -> Figure:
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True)
    for i, (name, runs) in enumerate(found.items()):
        top.plot(list(runs), [one.test[-1] for one in runs.values()], f"C{i}o-", label=name)
        bottom.plot(list(runs), [one.bound[-1] for one in runs.values()], f"C{i}o-")
    top.set(xscale="log", ylabel="test log likelihood\nper datum")
    top.legend(frameon=False)
    bottom.set(xlabel="hidden units", ylabel="bound per datum (nats)", yscale="symlog")
    return figure
