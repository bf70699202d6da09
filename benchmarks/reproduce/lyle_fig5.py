"""Three model selections: evidence, L, and the weight in a linear combination (Lyle 2020, Fig. 5).

Features, prior variance, and the frequency of random Fourier features of MNIST zeros and ones. The
weights of the combination are the expected least-squares ones (Proposition 3.5), from predictive
distributions of each model given the data before ("concurrent", as in the proposition), given all
data ("posterior"), or given none ("prior").

Least-squares weights of a linear combination of models (section 3.3):

    w* = argmin E ‖Φ w − y‖² = (MᵀM + diag(V))⁻¹ Mᵀ y        Φ = M + noise
    w*_i = α ‖y‖² / (1 + α² ‖y‖² Σ_j σ_j⁻²) · 1 / σ_i²       if M_i = α y + ε_i, ε_i ⊥ y, ε_j

    M  mean predictions [n, m] of m models       V_i  summed variance of the predictions of model i
    y  targets [n]                               σ_i² = ‖ε_i‖² + V_i

With errors orthogonal to the targets and to each other the largest weight goes to the model of the
smallest expected squared error, which is the one of the largest L (Proposition 3.5). The paper's
constant in front of 1 / σ_i² and the missing square of w_i in its loss are corrected. In full it
takes about 12 minutes.
"""

from pathlib import Path

import torch
from torch import Tensor

from ._incremental import predictions
from ._panels import panels
from ._published import Cell, Cells, Numbers, Reproduction, Row, Run, joined
from ._shared_data import images
from .lyle_fig1 import NOISE, PRIOR_VARIANCE, SIZES, feature_data

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

VARIANCES = tuple(10.0 ** torch.linspace(-4, 1, 16, dtype=torch.float64))
FREQUENCIES = tuple(10.0 ** torch.linspace(-2.5, 0.5, 13, dtype=torch.float64))
N_FEATURES, N_IMAGES, RFF_NOISE = 200, 200, 0.3  # not stated
#: Each score that ranks, and what the paper says of its best model.
SCORES = {
    "log P(D)": "",
    "L": "as by log P(D)",
    "concurrent": "as by log P(D)",
    "posterior": "inconsistent",
}
Models = tuple[list[tuple[Tensor, float]], Tensor, float]


def combination_weights(means: Tensor, targets: Tensor, variances: Tensor) -> Tensor:
    """Return w* [m] for mean predictions [n, m], targets [n] and summed variances V >= 0 [m]."""
    gram = means.mT @ means + torch.diag(variances)
    return torch.linalg.solve(gram, means.mT @ targets)


def compared(models: list[tuple[Tensor, float]], y: Tensor, noise: float) -> Tensor:
    """Return the scores, and the weights from the prior, of models, float64 [5, m].

    A model is its features [n, d] and its prior variance.
    """
    table = torch.zeros(5, len(models), dtype=torch.float64)
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


def _features(seed: int, data: Path) -> Models:
    x, y = feature_data(seed)
    return [(x[:, :d], PRIOR_VARIANCE) for d in SIZES], y, NOISE


def _variances(seed: int, data: Path) -> Models:
    generator = torch.Generator().manual_seed(100 + seed)
    x = torch.randn(60, 20, dtype=torch.float64, generator=generator)
    w = 0.3 * torch.randn(20, dtype=torch.float64, generator=generator)
    y = x @ w + 0.5 * torch.randn(60, dtype=torch.float64, generator=generator)
    return [(x, float(v)) for v in VARIANCES], y, 0.5


def _frequencies(seed: int, data: Path) -> Models:
    x, labels = images(data / "MNIST", "train")
    generator = torch.Generator().manual_seed(seed)
    rows = (labels < 2).nonzero()[:, 0]
    rows = rows[torch.randperm(len(rows), generator=generator)[:N_IMAGES]]
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


def cells(numbers: Numbers) -> Cells:
    """Yield the three selections, by each score that ranks."""
    for task in TASKS:
        figures = ("Fig. 2", "Fig. 5") if task == "features" else ("Fig. 5",)
        apart = numbers[task]["places apart from log P(D)"]
        for name in ("L", "concurrent"):
            yield Cell("the best as by log P(D)", f"{task}, {name}", apart[name] == 0, figures)
        yield Cell("another best", f"{task}, posterior", apart["posterior"] > 0, figures)


def run(at: Run) -> Reproduction:
    """Compare the rankings, averaged over data sets, and how often each finds the best model."""
    n_runs = at.sized(5, 30)
    figure, axes = panels(10, 3.2, 1, 3)
    rows, numbers, said = [], {}, []
    for axis, (task, (made, values)) in zip(axes, TASKS.items(), strict=True):
        at.say(f"{task}: {n_runs} data sets of {len(values)} models")
        tables = torch.stack([compared(*made(seed, at.data)) for seed in range(n_runs)])
        mean, names = tables.mean(0), (*SCORES, "prior")
        rank = ((-tables).argsort(2).argsort(2).double() + 1).mean(0)
        index = {name: int(mean[i].argmax()) for i, name in enumerate(names)}
        best = {name: float(values[k]) for name, k in index.items()}
        apart = {name: abs(k - index["log P(D)"]) for name, k in index.items()}
        for i, (name, claimed) in enumerate(SCORES.items()):
            each = joined((values[int(k)] for k in tables[:10, i].argmax(1)), ".3g")
            what = f"{task}: best by {name}"
            rows.append(Row(what, claimed, f"{best[name]:.3g}", f"each: {each}"))
            axis.plot(values, rank[i], label=name)
        # The expected prediction of every model is 0, and so is every weight.
        assert float(mean[-1].abs().max()) < 1e-12
        rows.append(Row(f"{task}: best by prior", "inconsistent", "none: all weights 0"))
        numbers[task] = {
            "best": best,
            "mean": dict(zip(names, mean.tolist(), strict=True)),
            "places apart from log P(D)": apart,
        }
        said.append(
            f"{task}: L {apart['L']}, concurrent {apart['concurrent']}, "
            f"posterior {apart['posterior']}"
        )
        axis.set(title=task, ylabel="mean rank", xscale="linear" if values is SIZES else "log")
        axis.invert_yaxis()
    axes[0].legend(fontsize=7)
    return Reproduction(
        rows,
        figure,
        {"n": n_runs, **numbers},
        "places between the best model of each and the best by log P(D): " + "; ".join(said),
    )
