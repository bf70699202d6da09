"""Three model selections: evidence, L, and the weight in a linear combination (Lyle 2020, Fig. 5).

Features, prior variance, and the frequency of random Fourier features of MNIST zeros and ones. The
weights of the combination are the expected least-squares ones (Proposition 3.5), from predictive
distributions of each model given the data before ("concurrent", as in the proposition), given all
data ("posterior"), or given none ("prior").
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from nas_evidence_reproduce._incremental import predictions
from nas_evidence_reproduce._published import Cell, Reproduction, Row

from ._shared_data import (
    NOISE,
    PRIOR_VARIANCE,
    N,
    combination_weights,
    feature_data,
    images,
)

PAPER = "Lyle et al. 2020"
FIGURE = "Fig. 2, Fig. 5"
TITLE = "Rankings by evidence, by L, and by the weights of a linear combination"
CLAIM = (
    "Evidence, L and concurrently trained weights agree on the best model in all three "
    "selections; weights from the prior or from the posterior of all data do not."
)
RULE = (
    "the best model by the mean over data sets is that by log P(D) for L and for concurrently "
    "trained weights, and another one for weights from the posterior of all data (those from "
    "the prior are all 0 and rank nothing)"
)
NEEDS = ("MNIST",)
FULL_HOURS = 0.2

SIZES = tuple(range(5, N + 1))
VARIANCES = tuple(10.0 ** torch.linspace(-4, 1, 16, dtype=torch.float64))
FREQUENCIES = tuple(10.0 ** torch.linspace(-2.5, 0.5, 13, dtype=torch.float64))
N_FEATURES, RFF_NOISE = 200, 0.3  # not stated
SCORES = ("log P(D)", "L", "concurrent", "posterior", "prior")


def compared(models: list[tuple[Tensor, float]], y: Tensor, noise: float) -> Tensor:
    """Return the five scores of models (features [n, d], prior variance), float64 [5, m]."""
    table = torch.zeros(len(SCORES), len(models), dtype=torch.float64)
    means = torch.zeros(3, len(y), len(models), dtype=torch.float64)
    spread = torch.zeros(3, len(models), dtype=torch.float64)
    for i, (phi, variance) in enumerate(models):
        prior = torch.full((phi.shape[1],), 1 / variance, dtype=torch.float64)
        found = predictions(phi, y, prior_precision=prior, noise_std=noise)
        table[0, i], table[1, i] = found.log_evidence(), found.expected_bound()
        kernel = variance * phi @ phi.mT
        gain = torch.linalg.solve(kernel + noise**2 * torch.eye(len(y)).double(), kernel).mT
        means[0, :, i], spread[0, i] = found.mean, found.variance.sum()
        means[1, :, i], spread[1, i] = gain @ y, (kernel - gain @ kernel).trace()
        spread[2, i] = kernel.trace()
    for j in range(3):
        # Draws of targets: the noise of the model is part of them.
        table[2 + j] = combination_weights(means[j], y, spread[j] + len(y) * noise**2)
    return table


def _features(seed: int, data: Path) -> tuple[list[tuple[Tensor, float]], Tensor, float]:
    x, y = feature_data(seed)
    return [(x[:, :d], PRIOR_VARIANCE) for d in SIZES], y, NOISE


def _variances(seed: int, data: Path) -> tuple[list[tuple[Tensor, float]], Tensor, float]:
    generator = torch.Generator().manual_seed(100 + seed)
    x = torch.randn(60, 20, dtype=torch.float64, generator=generator)
    w = 0.3 * torch.randn(20, dtype=torch.float64, generator=generator)
    y = x @ w + 0.5 * torch.randn(60, dtype=torch.float64, generator=generator)
    return [(x, float(v)) for v in VARIANCES], y, 0.5


def _frequencies(
    seed: int, data: Path, n_data: int = 200
) -> tuple[list[tuple[Tensor, float]], Tensor, float]:
    x, labels = images(data / "MNIST", "train")
    generator = torch.Generator().manual_seed(seed)
    rows = (labels < 2).nonzero()[:, 0]
    rows = rows[torch.randperm(len(rows), generator=generator)[:n_data]]
    flat, y = x[rows].flatten(1).double(), 2.0 * labels[rows].double() - 1
    w = torch.randn(flat.shape[1], N_FEATURES, dtype=torch.float64, generator=generator)
    b = 2 * torch.pi * torch.rand(N_FEATURES, dtype=torch.float64, generator=generator)
    made = [(2 / N_FEATURES) ** 0.5 * (float(f) * flat @ w + b).cos() for f in FREQUENCIES]
    return [(phi, 1.0) for phi in made], y, RFF_NOISE


TASKS = {
    "features": (_features, SIZES),
    "prior variance": (_variances, VARIANCES),
    "frequency": (_frequencies, FREQUENCIES),
}


def cells(numbers: Mapping[str, Any]) -> list[Cell]:
    """Return the three selections, by each score that ranks."""
    found = []
    for task in TASKS:
        figures = ("Fig. 2", "Fig. 5") if task == "features" else ("Fig. 5",)
        apart = numbers[task]["places apart from log P(D)"]
        found += [
            Cell("the best as by log P(D)", f"{task}, {name}", apart[name] == 0, figures)
            for name in ("L", "concurrent")
        ]
        found.append(Cell("another best", f"{task}, posterior", apart["posterior"] > 0, figures))
    return found


def run(*, quick: bool, data: Path | None, say: Callable[[str], None]) -> Reproduction:
    """Compare the rankings, averaged over data sets, and how often each finds the best model."""
    assert data is not None
    n_runs = 5 if quick else 30
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    axes = figure.subplots(1, 3)
    rows, numbers = [], {}
    for axis, (task, (made, values)) in zip(axes, TASKS.items(), strict=True):
        say(f"{task}: {n_runs} data sets of {len(values)} models")
        tables = torch.stack([compared(*made(seed, data)) for seed in range(n_runs)])
        mean = tables.mean(0)
        place = (-tables).argsort(2).argsort(2).double() + 1
        best = {name: float(values[int(mean[i].argmax())]) for i, name in enumerate(SCORES)}
        rank = place.mean(0)
        for i, name in enumerate(SCORES):
            if name == "prior":
                # The expected prediction of every model is 0, and so is every weight.
                assert float(mean[i].abs().max()) < 1e-12
                rows.append(Row(f"{task}: best by {name}", "inconsistent", "none: all weights 0"))
                continue
            own = [float(values[int(j)]) for j in tables[:, i].argmax(1)]
            claimed = "as by log P(D)" if name in ("L", "concurrent") else ""
            claimed = "inconsistent" if name == "posterior" else claimed
            each = ", ".join(f"{v:.3g}" for v in own[:10])
            rows.append(
                Row(f"{task}: best by {name}", claimed, f"{best[name]:.3g}", f"each: {each}")
            )
            axis.plot(values, rank[i], label=name)
        numbers[task] = {"best": best, "mean": {n: mean[i].tolist() for i, n in enumerate(SCORES)}}
        index = {name: int(mean[i].argmax()) for i, name in enumerate(SCORES)}
        numbers[task]["places apart from log P(D)"] = {
            name: abs(index[name] - index["log P(D)"]) for name in SCORES
        }
        axis.set(title=task, ylabel="mean rank", xscale="linear" if values is SIZES else "log")
        axis.invert_yaxis()
    axes[0].legend(fontsize=7)
    far = {t: n["places apart from log P(D)"] for t, n in numbers.items()}
    why = "; ".join(
        f"{task}: L {one['L']}, concurrent {one['concurrent']}, posterior {one['posterior']}"
        for task, one in far.items()
    )
    return Reproduction(
        tuple(rows),
        figure,
        {"n": n_runs, **numbers},
        f"places between the best model of each and the best by log P(D): {why}",
    )
