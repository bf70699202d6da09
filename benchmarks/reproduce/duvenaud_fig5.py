"""The gradient threshold by the bound, on MNIST (Duvenaud et al. 2016, Fig. 5).

784-100-10, 50,000 images, batches of 250, 1,500 steps of 0.1 / N along the summed gradient, first
weights N(0, (2/28)²); thresholds g0 in units of that gradient. A threshold of 0 is plain descent.
Quick: batches of 100 and four thresholds. In full it takes about 30 minutes.
"""

from itertools import pairwise

from ._mnist_descent import at_end, descended, mnist
from ._panels import lines, panels
from ._published import Cell, Cells, Numbers, Reproduction, Row, Run, joined

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

SPREAD, STEPS, RATE = 2 / 28, 1500, 0.1


def cells(numbers: Numbers) -> Cells:
    """Yield what holds from each threshold to the next, and at each but 0."""
    at = sorted(int(name) for name in numbers if name.isdigit())
    bound, train, test = (
        [numbers[str(g)][what][-1] for g in at] for what in ("bound", "train", "test")
    )
    for name, last in (("training likelihood", train), ("test likelihood", test)):
        yield Cell("gets worse", name, all(b < a for a, b in pairwise(last)))
    for g, value in zip(at[1:-1], bound[1:-1], strict=True):
        yield Cell("bound rises against plain descent", f"threshold {g}", value >= bound[0])
    largest = f"threshold {at[-1]}"
    yield Cell("bound falls against plain descent", largest, bound[-1] < bound[0])


def run(at: Run) -> Reproduction:
    """Descend at each threshold, one draw each."""
    images, runs = mnist(at.data), {}
    thresholds = at.sized((0, 30, 300, 3000), (0, 1, 3, 10, 30, 100, 300, 1000, 3000))
    for g in thresholds:
        at.say(f"threshold {g}")
        runs[g] = descended(
            images, 100, spreads=(SPREAD, SPREAD), rate=RATE, n_steps=STEPS,
            batch_size=at.sized(100, 250), threshold=float(g),
        )  # fmt: skip
    bound, train, test, error = (at_end(runs, w) for w in ("bound", "train", "test", "error"))
    best = bound.index(max(bound))
    rows = [
        Row("threshold of the best bound", "intermediate", f"{thresholds[best]}", "one draw"),
        Row(
            f"bound per datum after {STEPS} steps, by threshold {thresholds}",
            "rises, then falls",
            joined(bound, ".3f"),
            "one draw",
        ),
        Row("test log likelihood per datum, by threshold", "gets worse", joined(test, ".4f")),
        Row(
            "largest eigenvalue times step on a batch, by threshold",
            "",
            joined((one.largest for one in runs.values()), ".2f"),
            "",
            "above 0.68 the estimate is not strictly a bound",
        ),
        Row("training log likelihood per datum, by threshold", "gets worse", joined(train, ".4f")),
    ]
    figure, (top, bottom) = panels(7, 4.5, 2, sharex=True)
    ylabel = "log likelihood\nper datum"
    lines(top, thresholds, {"training": train, "test": test}, "o-", xscale="symlog", ylabel=ylabel)
    bottom.plot(thresholds, bound, "o-", color="C2")
    bottom.set(xlabel="gradient threshold", ylabel="bound per datum (nats)")
    return Reproduction(
        rows,
        figure,
        {"n": 1, "steps": STEPS, **runs},
        f"the bound is best at a threshold of {thresholds[best]}, {bound[best] - bound[0]:+.3f} "
        "nats per datum from plain descent, where the test error changes by "
        f"{100 * (error[best] - error[0]):+.2f} points",
    )
