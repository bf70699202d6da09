"""A prior precision learned online, or found on a grid (Immer et al. 2021, Fig. 4 and C.2).

Three hidden layers of 50 units on Snelson's data; one precision for all parameters. Fifty of the
200 data are kept for the test loss of Fig. C.2, since the published test set has no targets.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import nn

from nas_evidence_reproduce._published import Cell, Reproduction, Row

from ._immer import Fitted, fit, frozen, mlp, snelson

PAPER = "Immer et al. 2021"
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
FULL_HOURS = 0.5

GRID = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
STARTS = (1e-3, 10.0, 100.0)


def cells(numbers: Mapping[str, Any]) -> list[Cell]:
    """Return each start, by its end, its evidence and its test loss, and the grid."""
    grid, evidence, losses = (numbers[what] for what in ("grid", "evidence", "test_nll"))
    best = evidence.index(max(evidence))
    beside = [k for k in (best - 1, best + 1) if 0 <= k < len(grid)]
    ends = zip(
        numbers["starts"], numbers["ends"], numbers["end_evidence"], numbers["end_test_nll"],
        strict=True,
    )  # fmt: skip
    found = []
    for start, end, value, loss in ends:
        what = f"from {start:g}"
        near = 10**-0.5 <= end / grid[best] <= 10**0.5
        more = value > max(evidence[k] for k in beside)
        less = loss < min(losses[k] for k in beside)
        found += [
            Cell("reaches the precision of the grid", what, near),
            Cell("more evidence than the neighbours", what, more, ("Fig. 4",)),
            Cell("less test loss than the neighbours", what, less, ("Fig. C.2",)),
        ]
    least = losses.index(min(losses)) == best
    return [*found, Cell("least test loss at most evidence", "grid", least, ("Fig. C.2",))]


def run(*, quick: bool, data: Path | None, say: Callable[[str], None]) -> Reproduction:
    """Train at fixed precisions and with learned ones."""
    assert data is not None
    epochs = 600 if quick else 3000
    x, y = snelson(data)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = ((x[rows], y[rows]) for rows in (order[:150], order[150:]))

    def trained(start: float, *, learn: bool) -> Fitted:
        online = {
            "every": 10 if quick else 1,
            "curvature": "kfac_ggn",
            "hyper_step": "adam",
            "hyper_steps": 10 if quick else 1,
            "hyper_learning_rate": 0.03 if quick else 0.01,
            "prior_groups": "scalar",
        }
        # On the grid the noise has to be learned too: a group of one precision held by its start.
        plan = {
            "likelihood": "gaussian",
            "epochs": epochs,
            "batch_size": 150,
            "optimiser": "adam",
            "learning_rate": 0.01,
            "schedule": "constant",
            "prior_precision": start,
            "noise_std": 0.4,
            "online": online if learn else frozen(epochs, "kfac_ggn"),
        }
        say(f"precision {start:g}, {'learned' if learn else 'fixed'}")
        return fit(mlp([1, 50, 50, 50, 1], nn.Tanh, 0), train, test, plan=plan)

    grid = [trained(at, learn=False) for at in GRID]
    evidence = [one.evidence("full_ggn").value for one in grid]
    losses = [one.test_nll() for one in grid]
    learned = [trained(at, learn=True) for at in STARTS]
    ends = [float(one.state.prior_precision[0]) for one in learned]
    values = [one.evidence("full_ggn").value for one in learned]
    tests = [one.test_nll() for one in learned]
    best = GRID[max(range(len(GRID)), key=evidence.__getitem__)]
    least = GRID[min(range(len(GRID)), key=losses.__getitem__)]
    rows = [
        Row(
            "precision of largest evidence on the grid (noise 0.4)",
            "picture only",
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
    ]
    rows += [
        Row(
            f"learned from {start:g}",
            "the optimum of the grid",
            f"{end:.3g}",
            f"{value:.1f} nats, noise {one.state.noise_std:.2f}, test loss {loss:.3f}",
        )
        for start, end, value, loss, one in zip(STARTS, ends, values, tests, learned, strict=True)
    ]
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(GRID, evidence, "k.-", label="grid, full GGN")
    for one, start in zip(learned, STARTS, strict=True):
        trace = one.path[:: max(1, len(one.path) // 100)]
        left.plot([p for _, p, _ in trace], [v for _, _, v in trace], label=f"from {start:g}")
        left.plot(one.path[-1][1], one.path[-1][2], "ko", markersize=4)
    left.set(xscale="log", xlabel="precision", ylabel="evidence, nats", ylim=(-500, 0))
    left.legend(fontsize=7)
    right.plot(GRID, losses, "k.-", label="grid")
    right.plot(ends, tests, "o", label="learned")
    right.set(xscale="log", xlabel="precision", ylabel="test loss, nats per datum")
    right.legend(fontsize=7)
    return Reproduction(
        tuple(rows),
        figure,
        {
            "n": 1,
            "grid": GRID,
            "evidence": evidence,
            "test_nll": losses,
            "starts": STARTS,
            "ends": ends,
            "end_evidence": values,
            "end_test_nll": tests,
        },
        f"learned precisions {', '.join(f'{end:.2g}' for end in ends)} from "
        f"{', '.join(f'{s:g}' for s in STARTS)}; best on the grid {best:g}, "
        f"least test loss {least:g}",
    )
