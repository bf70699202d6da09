"""One hidden layer or three on Snelson's data (Immer et al. 2021, Fig. 1 and C.1a).

Both networks are trained as published (full GGN online, step 0.01 for parameters and
hyperparameters, 1000 epochs with one hyperparameter step each; the short version takes ten steps
every ten epochs), then go on to a mode ("settled"). The evidence is that of the full GGN.

The paper's data are "modified". Earlier public code of its first author draws them: 150 inputs,
uniform over the range of Snelson's but for those from 1.5 to 2.4, targets with noise 0.3 about a
curve fitted to Snelson's, in their own unit. The curve is not at hand; here it is a Gaussian
process fitted to the 200 data. "all 200 data" are Snelson's own, standardised.
"""

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from torch import Tensor, nn

from nas_evidence.evidence.posterior import jacobians
from nas_evidence_reproduce._published import Cell, Reproduction, Row

from ._immer import Fitted, fit, mean_and_error, mlp, output_covariance, settle, snelson

PAPER = "Immer et al. 2021"
FIGURE = "Fig. 1, Fig. C.1"
TITLE = "One hidden layer or three on Snelson's data"
CLAIM = "The network of three layers has the larger evidence and follows the data better."
RULE = (
    "the mean evidence of three layers is above that of one, on each set of data, as published "
    "and settled; the learned noise of three layers is the smaller one (drawn data)"
)
NEEDS = ("snelson",)
FULL_HOURS = 1.0

GAP, N_DRAWN, NOISE = (1.5, 2.4), 150, 0.3  # of the drawn data, in the unit of Snelson's
UNITS = {"tanh": nn.Tanh, "ReLU": nn.ReLU}


def trained(
    x: Tensor, y: Tensor, depth: int, unit: str, seed: int, epochs: int, every: int
) -> Fitted:
    """Return the network of some depth after Algorithm 1."""
    plan = {
        "likelihood": "gaussian",
        "epochs": epochs,
        "batch_size": len(x),
        "optimiser": "adam",
        "learning_rate": 0.01,
        "schedule": "constant",
        "online": {
            "every": every,
            "curvature": "full_ggn",
            "hyper_step": "adam",
            "hyper_steps": every,
            "hyper_learning_rate": 0.01,
        },
    }
    model = mlp([1, *[50] * depth, 1], UNITS[unit], seed)
    return fit(model, (x, y), (x, y), seed=seed, plan=plan)


def drawn(data: Path) -> tuple[Tensor, Tensor]:
    """Return inputs and targets [150, 1] with a gap, about a curve fitted to Snelson's data."""
    x, y = (np.loadtxt(data / "snelson" / f"train_{n}.txt") for n in ("inputs", "outputs"))
    curve = GaussianProcessRegressor(ConstantKernel() * RBF() + WhiteKernel(), random_state=0)
    curve.fit(x[:, None], y)
    random = np.random.default_rng(6)
    inputs = random.uniform(x.min(), x.max(), 10 * N_DRAWN)
    inputs = inputs[(inputs <= GAP[0]) | (inputs >= GAP[1])][:N_DRAWN, None]
    targets = curve.predict(inputs) + NOISE * random.normal(size=N_DRAWN)
    return torch.tensor(inputs).float(), torch.tensor(targets).float()[:, None]


def distance_from_mode(one: Fitted) -> float:
    """Return ½ gᵀ H⁻¹ g in nats: g the gradient of the log joint, H the full GGN plus D.

    With Woodbury's identity, from the Jacobian J [n, P] of the 200 outputs:
    H⁻¹ = D⁻¹ − D⁻¹ Jᵀ (s² I + J D⁻¹ Jᵀ)⁻¹ J D⁻¹.
    """
    state = one.state
    model, x = copy.deepcopy(state.model).double().eval(), one.data.x_train.double()
    parts = jacobians(model, x, tuple(name for name, _ in model.named_parameters()))
    rows = torch.cat([part.flatten(2).flatten(0, 1) for part in parts.values()], 1)
    theta = torch.cat([p.detach().double().flatten() for p in state.model.parameters()])
    sizes = [p.numel() for p in model.parameters()]
    precision = torch.cat(
        [d.expand(n) for d, n in zip(state.prior_precision.double(), sizes, strict=True)]
    )
    variance = state.noise_std**2
    residual = (one.data.y_train.double() - model(x).detach())[:, 0]
    g = precision * theta - rows.mT @ residual / variance
    scaled = rows / precision
    inner = scaled @ rows.mT + variance * torch.eye(len(rows), dtype=torch.float64)
    across = scaled @ g
    square = (g.square() / precision).sum() - across @ torch.linalg.solve(inner, across)
    return float(0.5 * square)


def cells(numbers: Mapping[str, Any]) -> list[Cell]:
    """Return both sets, before and after settling, and the noise."""
    found = []
    for name, table in numbers["evidences"].items():
        for which, what in ((0, "as published"), (2, "settled")):
            one, three = (fmean(run[which] for run in table[depth]) for depth in ("1", "3"))
            found.append(Cell("evidence of 3 layers above 1", f"{name}, {what}", three > one))
    smaller = numbers["noise"]["3"] < numbers["noise"]["1"]
    return [*found, Cell("noise of 3 layers below 1", "drawn data", smaller, ("Fig. 1",))]


def run(*, quick: bool, data: Path | None, say: Callable[[str], None]) -> Reproduction:
    """Compare the depths on both sets and units, before and after settling."""
    assert data is not None
    n_seeds, epochs, every = (2, 1000, 10) if quick else (10, 1000, 1)
    x, y = drawn(data)
    sets = {"150 drawn data, gap": (x, y), "all 200 data": snelson(data)}
    found: dict[str, dict[int, list[tuple[float, float, float]]]] = {}
    shown: dict[int, Fitted] = {}
    for name, (a, b) in sets.items():
        for unit in UNITS:
            if quick and unit == "ReLU":
                continue
            table: dict[int, list[tuple[float, float, float]]] = {1: [], 3: []}
            for depth in table:
                for seed in range(n_seeds):
                    say(f"{name}, {unit}, {depth} hidden, seed {seed}")
                    one = trained(a, b, depth, unit, seed, epochs, every)
                    before = one.evidence("full_ggn").value
                    shift = distance_from_mode(one)
                    settle(one)
                    after = one.evidence("full_ggn").value
                    table[depth].append((before, shift, after))
                    shown.setdefault(depth, one)
            found[f"{name}, {unit}"] = table
    rows = []
    gains: dict[str, list[float]] = {name: [] for name in found}
    for name, table in found.items():
        for which, what in ((0, "as published"), (2, "settled")):
            (one, e1), (three, e3) = (
                mean_and_error([t[which] for t in table[depth]]) for depth in (1, 3)
            )
            gains[name].append(three - one)
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
        far = {d: mean_and_error([t[1] for t in table[d]])[0] for d in (1, 3)}
        rows.append(
            Row(
                f"{name}: ½ gᵀ H⁻¹ g at the end of the published training (nats)",
                "not given",
                f"3 hidden {far[3]:.1f}, 1 hidden {far[1]:.1f}",
                f"n = {n_seeds}",
                "by so much the published recipe is short of a mode",
            )
        )
    noise = {d: one.state.noise_std for d, one in shown.items()}
    rows.append(
        Row(
            "learned noise",
            "3 smaller than 1; 0.3 drawn",
            f"3 hidden {noise[3]:.2f}, 1 hidden {noise[1]:.2f}",
            "the first, settled, tanh, drawn data",
        )
    )
    return Reproduction(
        tuple(rows),
        _figure(x, y, shown),
        {
            "n": n_seeds,
            "epochs": epochs,
            "evidences": {k: {str(d): v for d, v in t.items()} for k, t in found.items()},
            "noise": noise,
        },
        _said(gains),
    )


def _said(gains: dict[str, list[float]]) -> str:
    drawn, others = (
        [g for name, values in gains.items() if name.startswith("150") == ours for g in values]
        for ours in (True, False)
    )
    said = [", ".join(f"{gain:+.1f}" for gain in values) for values in (drawn, others)]
    return (
        f"evidence of the deeper network minus that of the other, as published and settled: "
        f"{said[0]} nats on data drawn as in earlier public code of the first author; "
        f"{said[1]} on Snelson's own, standardised, which one hidden layer fits as well"
    )


def _figure(x: Tensor, y: Tensor, shown: dict[int, Fitted]) -> Figure:
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    grid = torch.linspace(-1.5, 7.5, 200)[:, None]
    for axis, depth in zip(figure.subplots(1, 2, sharey=True), (3, 1), strict=True):
        one = shown[depth]
        noise = one.state.noise_std
        mean = one.outputs(grid)[:, 0].double()
        model = output_covariance(one, grid)[:, 0, 0].sqrt()
        both = (model.square() + noise**2).sqrt()
        axis.plot(x, y, ".", color="0.5", markersize=3)
        for band, shade in ((both, 0.2), (torch.full_like(both, noise), 0.35)):
            axis.fill_between(
                grid[:, 0], mean - 2 * band, mean + 2 * band, color="C0", alpha=shade, linewidth=0
            )
        axis.plot(grid[:, 0], mean, color="C0")
        value = one.evidence("full_ggn").value
        axis.set(title=f"{depth} hidden: {value:.1f} nats", ylim=(-3.5, 3.5), xlabel="x")
    return figure
