"""Number of features by evidence and its bounds, and how the bounds close in (Lyle 2020, Fig. 1).

Thirty data, of which 15 features carry the target; models of the first d. Evidence in closed form,
bounds by exact posterior draws and by descents of few steps (Algorithm 1). The paper states
neither the noise nor the prior: here one pair is shown, and the whole grid is in the numbers.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from nas_evidence_reproduce._incremental import predictions, sampled_bounds
from nas_evidence_reproduce._published import Cell, Reproduction, Row
from nas_evidence_reproduce._sample_then_optimise import bounds_over_orders

from ._shared_data import INFORMATIVE, NOISE, PRIOR_VARIANCE, N, feature_data

PAPER = "Lyle et al. 2020"
FIGURE = "Fig. 1"
TITLE = "Number of features by the evidence and its bounds"
CLAIM = "All estimates agree on 15 features, and the gap of L_k shrinks with k for both samplers."
RULE = (
    "evidence and L both peak at 15 features, in each setting of noise and prior, of which the "
    "paper states none; in the setting that is drawn the three other estimates peak there too, "
    "and the gap is smaller at each k than at the one before"
)
NEEDS = ()
FULL_HOURS = 0.05

SIZES = tuple(range(5, N + 1))
DRAWS = (2, 4, 8, 16, 32, 64, 128)
ENSEMBLES = 100  # averaged, so that the curves show the estimates and not their noise
STEPS = 10  # of gradient descent for each datum: the paper's fixed, unstated number
GRID = [(s, v) for s in (0.05, 0.1, 0.2, 0.3, 0.5, 1.0) for v in (0.002, 0.01, 0.05, 1.0)]


def cells(numbers: Mapping[str, Any]) -> list[Cell]:
    """Return all settings of noise and prior, all estimates of one, and all steps of k."""
    found = [
        Cell("settings (noise, prior variance)", setting, peaks == [INFORMATIVE, INFORMATIVE])
        for setting, peaks in numbers["best_by_noise_and_prior"].items()
    ]
    found += [
        Cell("other estimates, drawn setting", name, numbers["best"][name] == INFORMATIVE)
        for name in ("L_8", "L_S", "L descents")
    ]
    found += [
        Cell("gap of L_k shrinks", name, all(b < a for a, b in pairwise(gaps)))
        for name, gaps in numbers["gaps"].items()
    ]
    return found


def run(*, quick: bool, data: Path | None, say: Callable[[str], None]) -> Reproduction:
    """Compute the curves over d, the gaps over k, the orders and the grid."""
    n_runs, n_orders = (5, 20) if quick else (50, 200)
    generator = torch.Generator().manual_seed(0)
    curves: dict[str, list[list[float]]] = {
        name: [] for name in ("log P(D)", "L exact draws", "L_8", "L_S", "L descents")
    }
    for seed in range(n_runs):
        say(f"data {seed + 1} of {n_runs}")
        x, y = feature_data(seed)
        found: dict[str, list[float]] = {name: [] for name in curves}
        for d in SIZES:
            known = {"prior_precision": _prior(d), "noise_std": NOISE}
            exact = predictions(x[:, :d], y, **known)
            drawn = [
                sampled_bounds(exact, n_draws=8, generator=generator) for _ in range(ENSEMBLES)
            ]
            descended = bounds_over_orders(
                x[:, :d], y, **known, n_draws=80, n_orders=2, generator=generator, n_steps=STEPS
            )
            values = (
                exact.log_evidence(),
                fmean(one.mean_log for one in drawn),
                fmean(one.log_mean for one in drawn),
                fmean(one.moments for one in drawn),
                fmean(one.mean_log for one in descended),
            )
            for name, value in zip(found, values, strict=True):
                found[name].append(value)
        for name, one in found.items():
            curves[name].append(one)
    means = {name: torch.tensor(rows).mean(0) for name, rows in curves.items()}
    best = {name: SIZES[int(mean.argmax())] for name, mean in means.items()}
    gaps = _gaps(n_runs, n_orders, generator)
    spread = _over_orders(n_orders, generator)
    holding = _grid(n_runs)
    return _result(n_runs, n_orders, means, best, gaps, spread, holding)


def _prior(d: int) -> Tensor:
    return torch.full((d,), 1 / PRIOR_VARIANCE, dtype=torch.float64)


def _gaps(n_runs: int, n_orders: int, generator: torch.Generator) -> dict[str, list[float]]:
    """Return log P(D) − L_k at 15 features, mean over orders, for each k."""
    x, y = feature_data(0)
    x = x[:, :INFORMATIVE]
    known = {"prior_precision": _prior(INFORMATIVE), "noise_std": NOISE}
    exact = predictions(x, y, **known)
    truth = exact.log_evidence()
    found: dict[str, list[float]] = {"exact draws": [], "descents": []}
    for k in DRAWS:
        drawn = [sampled_bounds(exact, n_draws=k, generator=generator) for _ in range(n_orders)]
        descended = bounds_over_orders(
            x, y, **known, n_draws=k, n_orders=n_orders, generator=generator, n_steps=STEPS
        )
        for name, runs in (("exact draws", drawn), ("descents", descended)):
            found[name].append(truth - sum(run.log_mean for run in runs) / len(runs))
    return found


def _over_orders(n_orders: int, generator: torch.Generator) -> float:
    """Return the standard deviation over orders of the mean of L, from its closed form."""
    x, y = feature_data(0)
    values = []
    for _ in range(10 * n_orders):
        order = torch.randperm(N, generator=generator)
        known = {"prior_precision": _prior(INFORMATIVE), "noise_std": NOISE}
        values.append(predictions(x[order, :INFORMATIVE], y[order], **known).expected_bound())
    return float(torch.tensor(values).std())


def _grid(n_runs: int) -> dict[str, list[int]]:
    """Return the best d by the mean evidence and by the mean of L for each noise and prior."""
    found = {}
    for noise, variance in GRID:
        table = torch.zeros(2, min(n_runs, 5), len(SIZES))
        for seed in range(min(n_runs, 5)):
            x, y = feature_data(seed)
            for i, d in enumerate(SIZES):
                prior = torch.full((d,), 1 / variance, dtype=torch.float64)
                one = predictions(x[:, :d], y, prior_precision=prior, noise_std=noise)
                table[:, seed, i] = torch.tensor([one.log_evidence(), one.expected_bound()])
        peaks = table.mean(1).argmax(1)
        found[f"{noise:g}, {variance:g}"] = [SIZES[int(i)] for i in peaks]
    return found


def _result(
    n_runs: int,
    n_orders: int,
    means: dict[str, Tensor],
    best: dict[str, int],
    gaps: dict[str, list[float]],
    spread: float,
    holding: dict[str, list[int]],
) -> Reproduction:
    both = sum(peaks == [INFORMATIVE, INFORMATIVE] for peaks in holding.values())
    at = f"s = {NOISE:g}, prior variance {PRIOR_VARIANCE:g}"
    rows = [
        Row(
            f"best d by {name}",
            "15",
            str(d),
            f"mean of {n_runs} data sets, {at}",
            "" if d == INFORMATIVE else "flat between 15 and 20 features",
        )
        for name, d in best.items()
    ]
    for name, gap in gaps.items():
        rows.append(
            Row(
                f"gap of L_k, {name}: k = {DRAWS[0]}, ..., {DRAWS[-1]} (nats)",
                "shrinks",
                ", ".join(f"{g:.2f}" for g in gap),
                f"mean of {n_orders} runs",
                ""
                if name == "exact draws"
                else "levels off: short descents are not posterior draws",
            )
        )
    rows.append(
        Row(
            "settings of noise and prior where evidence and L both peak at 15",
            "not stated",
            f"{both} of {len(GRID)}",
            "mean of 5 data sets",
            "a wide prior favours few features, a small noise more than 15",
        )
    )
    rows.append(
        Row(
            "L in other orders of the data: standard deviation (nats)",
            "",
            f"{spread:.2f}",
            f"{10 * n_orders} orders, closed form",
            "log P(D) depends on none",
        )
    )
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, mean in means.items():
        left.plot(SIZES, mean, label=name)
    left.axvline(INFORMATIVE, color="0.8", zorder=0)
    left.set(xlabel="features d", ylabel="nats")
    left.legend(fontsize=7)
    for name, gap in gaps.items():
        right.plot(DRAWS, gap, "o-", label=name)
    right.set(xscale="log", xlabel="k", ylabel="log P(D) − L_k, nats", ylim=(0, None))
    right.legend(fontsize=7)
    return Reproduction(
        tuple(rows),
        figure,
        {
            "n": n_runs,
            "noise_std": NOISE,
            "prior_variance": PRIOR_VARIANCE,
            "best": best,
            "gaps": gaps,
            "draws": DRAWS,
            "best_by_noise_and_prior": holding,
            "std_over_orders": spread,
        },
        f"drawn with a narrow prior ({at}), one of the {both} in {len(GRID)} settings where both "
        "peak at 15: a wide prior favours few features, a small noise more than 15",
    )
