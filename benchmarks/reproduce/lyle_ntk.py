"""Tangent kernels of an MLP and a convolutional network on MNIST (Lyle 2020, Fig. 2 and 6).

    log P(D_i | D_<i) = −½ [(L⁻¹ y)_i² + 2 log L_ii + log 2π],   L Lᵀ = K + s² I
    L(D_<=i) − L(D_<i) = E log N(y_i; f_i, s²) = −½ [log 2π s² + ((y_i − m_i)² + v_i) / s²]

K is the empirical kernel of the finite network at its initialisation, averaged over
initialisations and scaled to mean variance 1. The paper takes the limit of infinite width and
states neither architecture, noise nor number of data; targets are 1 for one of two digits, −1 for
the other. In full it takes about 30 minutes.
"""

import math
from itertools import product

import torch
from torch import Tensor, nn

from nas_evidence.evidence.posterior import jacobians

from ._panels import lines, panels
from ._published import Cell, Cells, Numbers, Reproduction, Row, Run
from ._shared_data import dense, images

FIGURE = "Fig. 2, Fig. 6"
TITLE = "Evidence, datum by datum, of tangent kernels of an MLP and a convolutional network"
CLAIM = (
    "The convolutional kernel has the higher L and log P(D), and its increments become less "
    "negative; each increment of the MLP is negative."
)
RULE = (
    "Conv is above MLP for one pair of digits at one noise, in log P(D) and in L; the "
    "increments of Conv rise from the first to the last third (mean over pairs, noise 0.3); the"
    " mean increment of the MLP at each datum is negative"
)
NEEDS = ("MNIST",)

NOISES, NOISE, WIDTH, CHANNELS = (0.1, 0.3, 0.5), 0.3, 128, 16
PAIRS = ((0, 1), (3, 8), (4, 9))


def network(kind: str) -> nn.Module:
    """Return a network of three layers with one output, initialised at 1 / fan-in times 2."""
    if kind == "MLP":
        model = nn.Sequential(nn.Flatten(), *dense([784, WIDTH, WIDTH, 1], nn.ReLU))
    else:
        first, second = (nn.Conv2d(n, CHANNELS, 3, 2, 1) for n in (1, CHANNELS))
        last = nn.Linear(49 * CHANNELS, 1)
        model = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), last)
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return model


def kernel(kind: str, x: Tensor, n_networks: int) -> Tensor:
    """Return the mean tangent kernel [n, n] with prior variance 1 / fan-in, trace n."""
    total = torch.zeros(len(x), len(x), dtype=torch.float64)
    for seed in range(n_networks):
        torch.manual_seed(seed)
        model = network(kind).double()
        names = tuple(name for name, _ in model.named_parameters())
        for part in jacobians(model, x.double(), names).values():
            rows = part.flatten(2).flatten(0, 1)
            total += rows @ rows.mT
    return total / total.diagonal().mean()


def increments(kernel: Tensor, y: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """Return the change of log P(D) and of L by each datum, nats [n]."""
    covariance = kernel + noise**2 * torch.eye(len(y), dtype=torch.float64)
    root = torch.linalg.cholesky(covariance)
    white = torch.linalg.solve_triangular(root, y[:, None], upper=False)[:, 0]
    spread = root.diagonal()
    log_p = -0.5 * white.square() - spread.log() - 0.5 * math.log(2 * math.pi)
    variance = (spread.square() - noise**2).clamp(min=0)
    constant = math.log(2 * math.pi * noise**2)
    bound = -0.5 * (constant + ((white * spread).square() + variance) / noise**2)
    return log_p, bound


def mean_increments(gram: Tensor, y: Tensor, noise: float, n_orders: int) -> Tensor:
    """Return the changes of log P(D) and of L by each datum, mean over orders, nats [2, n]."""
    generator, total = torch.Generator().manual_seed(1), torch.zeros(2, len(y)).double()
    for _ in range(n_orders):
        order = torch.randperm(len(y), generator=generator)
        total += torch.stack(increments(gram[order][:, order], y[order], noise))
    return total / n_orders


def cells(numbers: Numbers) -> Cells:
    """Yield all pairs at all noises, the trend of Conv, and the increments of the MLP."""
    for i, what, figures in ((0, "log P(D)", ("Fig. 2", "Fig. 6")), (1, "L", ("Fig. 2",))):
        for noise, sums in numbers["sums"].items():
            for (a, b), conv, other in zip(PAIRS, sums["Conv"], sums["MLP"], strict=True):
                name = f"{a} and {b}, noise {noise}"
                yield Cell(f"{what}, Conv above MLP", name, conv[i] > other[i], figures)
    negative = all(value < 0 for value in numbers["curves"]["MLP"][0])
    yield Cell("mean increments", "Conv rises", numbers["trend"]["Conv"] > 0)
    yield Cell("mean increments", "MLP negative at each datum", negative)


def run(at: Run) -> Reproduction:
    """Compare the two kernels on pairs of digits."""
    n, n_networks, n_orders = at.sized((100, 3, 50), (500, 10, 500))
    x, labels = images(at.data / "MNIST", "train")
    sums = {noise: {"MLP": [], "Conv": []} for noise in NOISES}
    curves = {kind: torch.zeros(2, n, dtype=torch.float64) for kind in ("MLP", "Conv")}
    for pair in PAIRS:
        rows = torch.isin(labels, torch.tensor(pair)).nonzero()[:, 0]
        rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:n]]
        y = torch.where(labels[rows] == pair[0], 1.0, -1.0).double()
        for kind in curves:
            at.say(f"digits {pair}: {kind} kernel of {n} images, {n_networks} networks")
            gram = kernel(kind, x[rows], n_networks)
            for noise in NOISES:
                mean = mean_increments(gram, y, noise, n_orders)
                sums[noise][kind].append(mean.sum(1).tolist())
                if noise == NOISE:
                    curves[kind] += mean / len(PAIRS)
    third = n // 3
    trend = {k: float(c[0, -third:].mean() - c[0, :third].mean()) for k, c in curves.items()}
    below = float((curves["MLP"][0] < 0).double().mean())
    table = [
        Row(
            f"{what}, {a} and {b}, noise {noise} (nats)",
            "Conv higher",
            f"Conv {one['Conv'][pair][i]:.1f}, MLP {one['MLP'][pair][i]:.1f}",
            f"n = {n}, {n_networks} networks, {n_orders} orders",
        )
        for (i, what), (noise, one), (pair, (a, b)) in product(
            enumerate(("log P(D)", "L(D)")), sums.items(), enumerate(PAIRS)
        )
    ]
    rising = "mean increment of log P(D), last third minus first, {} (nats per datum)".format
    table += [
        Row(rising("Conv"), "rises", f"{trend['Conv']:+.2f}", f"{n_orders} orders"),
        Row(
            rising("MLP"),
            "",
            f"{trend['MLP']:+.2f}",
            f"{n_orders} orders",
            "rises too, as in the mean over orders for any kernel that fits: more data before, "
            "better predictions",
        ),
        Row(
            "mean increments of log P(D) of the MLP that are negative",
            "all",
            f"{100 * below:.0f} %",
            f"n = {n}",
        ),
    ]
    figure, axes = panels(8, 3.2, 1, 2)
    for axis, j, name in zip(axes, (1, 0), ("L", "log P(D)"), strict=True):
        shown = {f"{kind} kernel": both[j] for kind, both in curves.items()}
        ylabel = f"change of {name} by datum i, nats"
        lines(axis, range(1, n + 1), shown, xlabel="data", ylabel=ylabel)
    return Reproduction(
        table,
        figure,
        {"n": n, "sums": sums, "trend": trend, "curves": curves},
        "the paper states no noise, and which kernel has the higher log P(D) depends on it",
    )
