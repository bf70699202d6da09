"""A prior precision learned online, or found on a grid (Immer et al. 2021, Fig. 4 and C.2).

Three hidden layers of 50 units on Snelson's data; one precision for all parameters. Fifty of the
200 data are kept for the test loss of Fig. C.2, since the published test set has no targets. In
full it takes about 30 minutes.
"""

from typing import Any

import torch
from torch import nn

from ._immer import Fitted, adam, fit, frozen, mlp, standardised_snelson
from ._panels import lines, panels
from ._published import PICTURE, Cell, Cells, Numbers, Reproduction, Row, Run, joined

FIGURE = "Fig. 4, Fig. C.2"
TITLE = "A prior precision learned online, against a grid"
CLAIM = (
    "From any start the online algorithm reaches the precision of largest evidence on a grid, "
    "which is also the one of least test loss."
)
RULE = (
    "a learned precision is within half a decade of the one of largest evidence on the grid, "
    "and has more evidence and less test loss than the neighbours of that one; the grid has its"
    " least test loss there too"
)
NEEDS = ("snelson",)

GRID = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
STARTS = (1e-3, 10.0, 100.0)


def cells(numbers: Numbers) -> Cells:
    """Yield each start, by its end, its evidence and its test loss, and the grid."""
    grid, evidence, losses = (numbers[what] for what in ("grid", "evidence", "test_nll"))
    best = evidence.index(max(evidence))
    beside = [k for k in (best - 1, best + 1) if 0 <= k < len(grid)]
    of_starts = (numbers[what] for what in ("starts", "ends", "end_evidence", "end_test_nll"))
    for start, end, value, loss in zip(*of_starts, strict=True):
        what, near = f"from {start:g}", 10**-0.5 <= end / grid[best] <= 10**0.5
        more = value > max(evidence[k] for k in beside)
        less = loss < min(losses[k] for k in beside)
        yield Cell("reaches the precision of the grid", what, near)
        yield Cell("more evidence than the neighbours", what, more, ("Fig. 4",))
        yield Cell("less test loss than the neighbours", what, less, ("Fig. C.2",))
    least = losses.index(min(losses)) == best
    yield Cell("least test loss at most evidence", "grid", least, ("Fig. C.2",))


def run(at: Run) -> Reproduction:
    """Train at fixed precisions and with learned ones."""
    epochs, every, rate = at.sized((600, 10, 0.03), (3000, 1, 0.01))
    x, y = standardised_snelson(at.data)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = ((x[rows], y[rows]) for rows in (order[:150], order[150:]))

    def trained(start: float, online: Any) -> Fitted:
        at.say(f"from precision {start:g}")
        # On the grid the noise has to be learned too: a group of one precision held by its start.
        return fit(
            mlp([1, 50, 50, 50, 1], nn.Tanh, 0), train, test, likelihood="gaussian",
            epochs=epochs, batch_size=150, learning_rate=0.01, prior_precision=start,
            noise_std=0.4, online=online,
        )  # fmt: skip

    fixed, learning = frozen(epochs, "kfac_ggn"), adam("kfac_ggn", every, every, rate)
    on_grid = [trained(start, fixed) for start in GRID]
    learned = [trained(start, {**learning, "prior_groups": "scalar"}) for start in STARTS]
    evidence, values = ([one.evidence("full_ggn").value for one in k] for k in (on_grid, learned))
    losses, tests = ([one.test_nll() for one in k] for k in (on_grid, learned))
    ends = [float(one.state.prior_precision[0]) for one in learned]
    best, least = GRID[evidence.index(max(evidence))], GRID[losses.index(min(losses))]
    rows = [
        Row(
            "precision of largest evidence on the grid (noise 0.4)",
            PICTURE,
            f"{best:g}",
            f"{max(evidence):.1f} nats, one initialisation",
        ),
        Row(
            "precision of least test loss on the grid",
            "the same",
            f"{least:g}",
            f"{min(losses):.3f} nats per datum, 50 test data",
            "" if least == best else "a neighbour on a flat minimum, or chance of 50 data",
        ),
        *(
            Row(
                f"learned from {start:g}",
                "the optimum of the grid",
                f"{end:.3g}",
                f"{value:.1f} nats, noise {one.state.noise_std:.2f}, test loss {loss:.3f}",
            )
            for start, end, value, loss, one in zip(
                STARTS, ends, values, tests, learned, strict=True
            )
        ),
    ]
    figure, (left, right) = panels(8, 3.2, 1, 2)
    left.plot(GRID, evidence, "k.-", label="grid, full GGN")
    for one, start in zip(learned, STARTS, strict=True):
        _, precisions, path = zip(*one.path[:: max(1, len(one.path) // 100)], strict=True)
        left.plot(precisions, path, label=f"from {start:g}")
        left.plot(one.path[-1][1], one.path[-1][2], "ko", markersize=4)
    left.set(xscale="log", xlabel="precision", ylabel="evidence, nats", ylim=(-500, 0))
    left.legend(fontsize=7)
    right.plot(GRID, losses, "k.-", label="grid")
    ylabel = "test loss, nats per datum"
    lines(right, ends, {"learned": tests}, "o", xscale="log", xlabel="precision", ylabel=ylabel)
    return Reproduction(
        rows,
        figure,
        {
            "n": 1, "grid": GRID, "evidence": evidence, "test_nll": losses, "starts": STARTS,
            "ends": ends, "end_evidence": values, "end_test_nll": tests,
        },
        f"learned precisions {joined(ends, '.2g')} from {joined(STARTS, 'g')}; best on the grid "
        f"{best:g}, least test loss {least:g}",
    )  # fmt: skip
