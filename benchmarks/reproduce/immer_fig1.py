"""One hidden layer or three on Snelson's data (Immer et al. 2021, Fig. 1 and C.1a).

Both networks are trained as published (full GGN online, step 0.01 for parameters and
hyperparameters, 1000 epochs with one hyperparameter step each; the short version takes ten steps
every ten epochs), then go on to a mode ("settled"). The evidence is that of the full GGN.

The paper's data are "modified". Earlier public code of its first author draws them: 150 inputs,
uniform over the range of Snelson's but for those from 1.5 to 2.4, targets with noise 0.3 about a
curve fitted to Snelson's, in their own unit. The curve is not at hand; here it is a Gaussian
process fitted to the 200 data. "all 200 data" are Snelson's own, standardised. In full it takes
about 1 hour.
"""

from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from torch import nn

from nas_evidence.training.settling import begin_settling, settle_slices

from ._immer import (
    Fitted,
    adam,
    fit,
    mean_and_error,
    mlp,
    output_covariance,
    snelson,
    standardised_snelson,
)
from ._panels import panels
from ._published import Cell, Cells, Numbers, Reproduction, Row, Run, joined
from ._shared_data import Examples

FIGURE = "Fig. 1, Fig. C.1"
TITLE = "One hidden layer or three on Snelson's data"
CLAIM = "The network of three layers has the larger evidence and follows the data better."
RULE = (
    "the mean evidence of three layers is above that of one, on each set of data, as published "
    "and settled; the learned noise of three layers is the smaller one (drawn data)"
)
NEEDS = ("snelson",)

EPOCHS = 1000
GAP, N_DRAWN, NOISE = (1.5, 2.4), 150, 0.3  # of the drawn data, in the unit of Snelson's
UNITS = {"tanh": nn.Tanh, "ReLU": nn.ReLU}
#: Places of the evidence in what is measured: after the published training, and at a mode.
WHEN = {"as published": 0, "settled": 2}
SETTLING = 500.0  # full-batch gradients


def drawn(data: Path) -> Examples:
    """Return inputs and targets [150, 1] with a gap, about a curve fitted to Snelson's data."""
    x, y = snelson(data)
    curve = GaussianProcessRegressor(ConstantKernel() * RBF() + WhiteKernel(), random_state=0)
    curve.fit(x[:, None], y)
    random = np.random.default_rng(6)
    inputs = random.uniform(x.min(), x.max(), 10 * N_DRAWN)
    inputs = inputs[(inputs <= GAP[0]) | (inputs >= GAP[1])][:N_DRAWN, None]
    targets = curve.predict(inputs) + NOISE * random.normal(size=N_DRAWN)
    return torch.tensor(inputs).float(), torch.tensor(targets).float()[:, None]


def evidences(one: Fitted) -> tuple[float, float, float]:
    """Return the evidence of a network, ½ gᵀ H⁻¹ g, and the evidence at a mode, in nats.

    g is the gradient of the log joint, H the full GGN plus D. The network goes on to the mode.
    """
    before = one.evidence("full_ggn", diagnose=True)
    (norm,) = (term.value for term in before.terms if term.term == "gradient_norm_squared")
    begin_settling(one.state, SETTLING)
    while not settle_slices([one.state])[0]:
        pass
    return before.value, 0.5 * norm, one.evidence("full_ggn").value


def cells(numbers: Numbers) -> Cells:
    """Yield both sets, before and after settling, and the noise."""
    for name, table in numbers["evidences"].items():
        for what, which in WHEN.items():
            one, three = (fmean(run[which] for run in table[depth]) for depth in ("1", "3"))
            yield Cell("evidence of 3 layers above 1", f"{name}, {what}", three > one)
    smaller = numbers["noise"]["3"] < numbers["noise"]["1"]
    yield Cell("noise of 3 layers below 1", "drawn data", smaller, ("Fig. 1",))


def run(at: Run) -> Reproduction:
    """Compare the depths on both sets and units, before and after settling."""
    n_seeds, every = at.sized((2, 10), (10, 1))
    sets = {"150 drawn data, gap": drawn(at.data), "all 200 data": standardised_snelson(at.data)}
    found = {}
    shown = {}
    for (name, data), unit in product(sets.items(), at.sized(["tanh"], UNITS)):
        table = found[f"{name}, {unit}"] = {1: [], 3: []}
        for depth, seed in product(table, range(n_seeds)):
            at.say(f"{name}, {unit}, {depth} hidden, seed {seed}")
            one = fit(
                mlp([1, *[50] * depth, 1], UNITS[unit], seed), data, data, seed=seed,
                likelihood="gaussian", epochs=EPOCHS, batch_size=len(data[0]),
                learning_rate=0.01, online=adam("full_ggn", every, every, 0.01),
            )  # fmt: skip
            table[depth].append(evidences(one))
            shown.setdefault(depth, one)
    rows = []
    gains = {True: [], False: []}  # on the drawn data, and on the others
    for name, table in found.items():
        for what, which in WHEN.items():
            (one, e1), (three, e3) = (
                mean_and_error([run[which] for run in runs]) for runs in table.values()
            )
            gains[name.startswith("150")].append(three - one)
            rows.append(
                Row(
                    f"{name}, {what}: full-GGN evidence of 3 hidden layers minus 1 (nats)",
                    "positive",
                    f"{three - one:+.1f} ({three:.1f}, {one:.1f})",
                    f"s.e. {e3:.1f}, {e1:.1f}; n = {n_seeds}",
                    ""
                    if three > one
                    else "both fit about as well: the deeper one pays for its 5221 parameters",
                )
            )
        far = {depth: fmean(run[1] for run in runs) for depth, runs in table.items()}
        rows.append(
            Row(
                f"{name}: ½ gᵀ H⁻¹ g at the end of the published training (nats)",
                "not given",
                f"3 hidden {far[3]:.1f}, 1 hidden {far[1]:.1f}",
                f"n = {n_seeds}",
                "by so much the published recipe is short of a mode",
            )
        )
    noise = {depth: one.state.noise_std for depth, one in shown.items()}
    rows.append(
        Row(
            "learned noise",
            "3 smaller than 1; 0.3 drawn",
            f"3 hidden {noise[3]:.2f}, 1 hidden {noise[1]:.2f}",
            "the first, settled, tanh, drawn data",
        )
    )
    return Reproduction(
        rows,
        _figure(shown),
        {"n": n_seeds, "epochs": EPOCHS, "evidences": found, "noise": noise},
        "evidence of the deeper network minus that of the other, as published and settled: "
        f"{joined(gains[True], '+.1f')} nats on data drawn as in earlier public code of the first "
        f"author; {joined(gains[False], '+.1f')} on Snelson's own, standardised, which one hidden "
        "layer fits as well",
    )


def _figure(shown: dict[int, Fitted]) -> Any:
    figure, axes = panels(8, 3.2, 1, 2, sharey=True)
    grid = torch.linspace(-1.5, 7.5, 200)[:, None]
    for axis, depth in zip(axes, (3, 1), strict=True):
        one = shown[depth]
        noise, mean = one.state.noise_std, one.outputs(grid)[:, 0].double()
        both = (output_covariance(one, grid)[:, 0, 0] + noise**2).sqrt()
        axis.plot(one.data.x_train, one.data.y_train, ".", color="0.5", markersize=3)
        for band, shade in ((both, 0.2), (torch.full_like(both, noise), 0.35)):
            low, high = mean - 2 * band, mean + 2 * band
            axis.fill_between(grid[:, 0], low, high, color="C0", alpha=shade, linewidth=0)
        axis.plot(grid[:, 0], mean, color="C0")
        value = one.evidence("full_ggn").value
        axis.set(title=f"{depth} hidden: {value:.1f} nats", ylim=(-3.5, 3.5), xlabel="x")
    return figure
