"""How many hidden units, by the bound, on MNIST (Duvenaud et al. 2016, Fig. 4).

784-h-10, 50,000 images, 1,000 steps of 1 / N along the summed gradient, first weights
N(0, (2/28)²) in every layer whatever its width. Quick: 400 steps, batches of 100 in place of
1,000, and up to 300 units. Such steps are up to twenty times longer than the inverse curvature,
where the estimate of the entropy is no bound; so the same with steps of 0.05 / N, and once more
with a prior scaled per layer, N(0, 1 / inputs): under one spread more units make the outputs of a
random network larger. Neither is in the paper. In full it takes about 3 hours.
"""

from ._mnist_descent import at_end, descended, mnist
from ._panels import panels
from ._published import Cell, Cells, Numbers, Reproduction, Row, Run, joined

FIGURE = "Fig. 4"
TITLE = "The number of hidden units by the bound, on MNIST"
CLAIM = "The bound peaks near 30 hidden units, the test likelihood near 300."
RULE = (
    "the peak at the last step is at the published width, 30 units for the bound and 300 for "
    "the test likelihood, as published and in our two settings of shorter steps"
)
NEEDS = ("MNIST",)

SPREAD = 2 / 28
PUBLISHED, SHORT, SCALED = "as published", "short steps", "short steps, prior scaled per layer"
RATES = {PUBLISHED: 1.0, SHORT: 0.05, SCALED: 0.05}
STRICT = 0.6838  # of step times curvature, up to which the estimate is a bound


def cells(numbers: Numbers) -> Cells:
    """Yield whether bound and test likelihood peak at the published widths in each setting."""
    for what, said, width in (("bound", "bound", "30"), ("test", "test likelihood", "300")):
        for name in RATES:
            last = {w: one[what][-1] for w, one in numbers[name].items()}
            peak = max(last, key=last.__getitem__)
            yield Cell(f"{said} peaks at {width} units", name, peak == width)


def run(at: Run) -> Reproduction:
    """Descend for each width in three ways, one draw each."""
    images = mnist(at.data)
    widths = at.sized((10, 30, 100, 300), (10, 30, 100, 300, 1000, 3000))
    batch_size, n_steps = at.sized((100, 400), (1000, 1000))
    found = {}
    for name, rate in RATES.items():
        found[name] = {}
        for width in widths:
            at.say(f"{name}, {width} units")
            spreads = (784**-0.5, width**-0.5) if name == SCALED else (SPREAD, SPREAD)
            found[name][width] = descended(
                images, width, spreads=spreads, rate=rate, n_steps=n_steps, batch_size=batch_size
            )
    figure, (top, bottom) = panels(7, 4.5, 2, sharex=True)
    rows, peaks = [], {}
    for name, runs in found.items():
        bound, test = at_end(runs, "bound"), at_end(runs, "test")
        top.plot(widths, test, "o-", label=name)
        bottom.plot(widths, bound, "o-")
        peaks[name] = widths[bound.index(max(bound))], widths[test.index(max(test))]
        stopped = max(runs, key=lambda w: max(runs[w].bound))
        largest = max(one.largest for one in runs.values())
        steep = f"step times curvature reaches {largest:.2f} on a batch: not a strict bound there"
        said = ("30", "300") if name == PUBLISHED else ("", "")
        rows += [
            Row(
                f"{name}: units of the best bound at the end, at its own best step",
                said[0],
                f"{peaks[name][0]}, {stopped}",
                "one draw",
            ),
            Row(f"{name}: units of the best test likelihood", said[1], f"{peaks[name][1]}"),
            Row(
                f"{name}: bound per datum at the end, by width {widths}",
                "",
                joined(bound, ".3f"),
                "one draw",
                steep if largest > STRICT else "",
            ),
            Row(f"{name}: test log likelihood, by width", "", joined(test, ".4f")),
        ]
    top.set(xscale="log", ylabel="test log likelihood\nper datum")
    top.legend(frameon=False)
    bottom.set(xlabel="hidden units", ylabel="bound per datum (nats)", yscale="symlog")
    (bound, test), (short, short_test), (scaled, scaled_test) = peaks.values()
    return Reproduction(
        rows,
        figure,
        {"n": 1, "batch_size": batch_size, **found},
        f"after {n_steps} steps the bound peaks at {bound} units, the test likelihood at {test}, "
        f"but such steps are too long for a bound; with short steps the peaks are at {short} and "
        f"{short_test}, with a prior scaled per layer at {scaled} and {scaled_test}",
    )
