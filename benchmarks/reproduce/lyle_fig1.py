"""Number of features by evidence and its bounds, and how the bounds close in (Lyle 2020, Fig. 1).

Thirty data, of which 15 features carry the target; models of the first d. Evidence in closed form,
bounds by exact posterior draws and by descents of few steps (Algorithm 1). The paper states
neither the noise nor the prior: here one pair is shown, and the whole grid is in the numbers. In
full it takes about 3 minutes.
"""

from itertools import pairwise, product
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from ._incremental import Predictions, predictions, sampled_bounds
from ._panels import lines, panels
from ._published import Cell, Cells, Numbers, Reproduction, Row, Run, joined
from ._sample_then_optimise import bounds_over_orders

FIGURE = "Fig. 1"
TITLE = "Number of features by the evidence and its bounds"
CLAIM = "All estimates agree on 15 features, and the gap of L_k shrinks with k for both samplers."
RULE = (
    "evidence and L both peak at 15 features, in each setting of noise and prior, of which the "
    "paper states none; in the setting that is drawn the three other estimates peak there too, "
    "and the gap is smaller at each k than at the one before"
)
NEEDS = ()

# Of the linear models, appendix B.1.
N, INFORMATIVE = 30, 15
NOISE = 0.3  # standard deviation of the noise: not stated in the paper
PRIOR_VARIANCE = 0.002  # of a weight: not stated in the paper either
SIZES = tuple(range(5, N + 1))
DRAWS = (2, 4, 8, 16, 32, 64, 128)
ENSEMBLES = 100  # averaged, so that the curves show the estimates and not their noise
STEPS = 10  # of gradient descent for each datum: the paper's fixed, unstated number
GRID = tuple(product((0.05, 0.1, 0.2, 0.3, 0.5, 1.0), (0.002, 0.01, 0.05, 1.0)))


def feature_data(seed: int) -> tuple[Tensor, Tensor]:
    """Return features [30, 30], of which the first 15 carry y, and targets [30]."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.rand(N, dtype=torch.float64, generator=generator)
    noise = torch.randn(N, N, dtype=torch.float64, generator=generator)
    noise[:, :INFORMATIVE] += y[:, None]
    return noise, y


def known(d: int, noise: float = NOISE, variance: float = PRIOR_VARIANCE) -> dict[str, Any]:
    """Return the prior and the noise of the model of d features."""
    prior = torch.full((d,), 1 / variance, dtype=torch.float64)
    return {"prior_precision": prior, "noise_std": noise}


def predicted(seed: int, d: int, **other: float) -> Predictions:
    """Return the predictions of the model of the first d features."""
    x, y = feature_data(seed)
    return predictions(x[:, :d], y, **known(d, **other))


def cells(numbers: Numbers) -> Cells:
    """Yield all settings of noise and prior, all estimates of one, and all steps of k."""
    for name, peaks in numbers["best_by_noise_and_prior"].items():
        yield Cell("settings (noise, prior variance)", name, {*peaks} == {INFORMATIVE})
    for name in ("L_8", "L_S", "L descents"):
        peaks = numbers["best"][name] == INFORMATIVE
        yield Cell("other estimates, drawn setting", name, peaks)
    for name, gaps in numbers["gaps"].items():
        yield Cell("gap of L_k shrinks", name, all(b < a for a, b in pairwise(gaps)))


def run(at: Run) -> Reproduction:
    """Compute the curves over d, the gaps over k, the orders and the grid."""
    n_runs, n_orders = at.sized((5, 20), (50, 200))
    generator = torch.Generator().manual_seed(0)
    curves = []
    for seed in range(n_runs):
        at.say(f"data {seed + 1} of {n_runs}")
        curves.append([_estimates(seed, d, generator) for d in SIZES])
    names = ("log P(D)", "L exact draws", "L_8", "L_S", "L descents")
    means = dict(zip(names, torch.tensor(curves).mean(0).mT, strict=True))
    best = {name: SIZES[int(mean.argmax())] for name, mean in means.items()}
    gaps = _gaps(n_orders, generator)
    spread = _over_orders(10 * n_orders, generator)
    holding = _grid()
    both = sum({*peaks} == {INFORMATIVE} for peaks in holding.values())
    here = f"s = {NOISE:g}, prior variance {PRIOR_VARIANCE:g}"
    rows = [
        Row(
            f"best d by {name}",
            "15",
            str(d),
            f"mean of {n_runs} data sets, {here}",
            "" if d == INFORMATIVE else "flat between 15 and 20 features",
        )
        for name, d in best.items()
    ]
    short = "levels off: short descents are not posterior draws"
    rows += [
        Row(
            f"gap of L_k, {name}: k = {DRAWS[0]}, ..., {DRAWS[-1]} (nats)",
            "shrinks",
            joined(gap, ".2f"),
            f"mean of {n_orders} runs",
            "" if name == "exact draws" else short,
        )
        for name, gap in gaps.items()
    ]
    rows += [
        Row(
            "settings of noise and prior where evidence and L both peak at 15",
            "not stated",
            f"{both} of {len(GRID)}",
            "mean of 5 data sets",
            "a wide prior favours few features, a small noise more than 15",
        ),
        Row(
            "L in other orders of the data: standard deviation (nats)",
            "",
            f"{spread:.2f}",
            f"{10 * n_orders} orders, closed form",
            "log P(D) depends on none",
        ),
    ]
    figure, (left, right) = panels(8, 3.2, 1, 2)
    left.axvline(INFORMATIVE, color="0.8", zorder=0)
    lines(left, SIZES, means, xlabel="features d", ylabel="nats")
    ylabel = "log P(D) − L_k, nats"
    lines(right, DRAWS, gaps, "o-", xscale="log", xlabel="k", ylabel=ylabel, ylim=(0, None))
    return Reproduction(
        rows,
        figure,
        {
            "n": n_runs, "noise_std": NOISE, "prior_variance": PRIOR_VARIANCE, "best": best,
            "gaps": gaps, "draws": DRAWS, "best_by_noise_and_prior": holding,
            "std_over_orders": spread,
        },
        f"drawn with a narrow prior ({here}), one of the {both} in {len(GRID)} settings where both"
        " peak at 15: a wide prior favours few features, a small noise more than 15",
    )  # fmt: skip


def _estimates(seed: int, d: int, generator: torch.Generator) -> list[float]:
    """Return log P(D), L, L_8 and L_S of exact draws, and L of descents."""
    exact, (x, y) = predicted(seed, d), feature_data(seed)
    drawn = [sampled_bounds(exact, n_draws=8, generator=generator) for _ in range(ENSEMBLES)]
    descended = bounds_over_orders(
        x[:, :d], y, **known(d), n_draws=80, n_orders=2, generator=generator, n_steps=STEPS
    )
    return [
        exact.log_evidence(),
        fmean(one.mean_log for one in drawn),
        fmean(one.log_mean for one in drawn),
        fmean(one.moments for one in drawn),
        fmean(one.mean_log for one in descended),
    ]


def _gaps(n_orders: int, generator: torch.Generator) -> dict[str, list[float]]:
    """Return log P(D) − L_k at 15 features, mean over orders, for each k."""
    (x, y), exact = feature_data(0), predicted(0, INFORMATIVE)
    found = {"exact draws": [], "descents": []}
    for k in DRAWS:
        drawn = [sampled_bounds(exact, n_draws=k, generator=generator) for _ in range(n_orders)]
        descended = bounds_over_orders(
            x[:, :INFORMATIVE], y, **known(INFORMATIVE), n_draws=k, n_orders=n_orders,
            generator=generator, n_steps=STEPS,
        )  # fmt: skip
        for gaps, runs in zip(found.values(), (drawn, descended), strict=True):
            gaps.append(exact.log_evidence() - sum(one.log_mean for one in runs) / len(runs))
    return found


def _over_orders(n_orders: int, generator: torch.Generator) -> float:
    """Return the standard deviation over orders of the mean of L, from its closed form."""
    x, y = feature_data(0)
    values = []
    for _ in range(n_orders):
        order = torch.randperm(N, generator=generator)
        one = predictions(x[order, :INFORMATIVE], y[order], **known(INFORMATIVE))
        values.append(one.expected_bound())
    return float(torch.tensor(values).std())


def _grid(n_runs: int = 5) -> dict[str, list[int]]:
    """Return the best d by the mean evidence and by the mean of L for each noise and prior."""
    found = {}
    for noise, variance in GRID:
        table = torch.zeros(n_runs, len(SIZES), 2)
        for seed, (i, d) in product(range(n_runs), enumerate(SIZES)):
            one = predicted(seed, d, noise=noise, variance=variance)
            table[seed, i] = torch.tensor([one.log_evidence(), one.expected_bound()])
        found[f"{noise:g}, {variance:g}"] = [SIZES[int(i)] for i in table.mean(0).argmax(0)]
    return found
