"""When to stop, on Boston housing (Duvenaud et al. 2016, Fig. 3).

A network 13-100-1 of tanh units on a tenth of the data (51 rows), unit noise on standardised
targets, first weights N(0, 0.1²), full batches, 500 steps of 0.008 / 51 along the gradient of the
summed negative log likelihood. By the definitions: -log p(y|f) = r²/2 + log(2π)/2, the log prior
is in the bound, and the entropy S_t belongs to θ_t. The published code has r² in place of r²/2 (so
its step of 0.004 / 51 is ours of 0.008 / 51), no log prior in the bound, S_{t+1} beside θ_t, and
a gradient threshold of 1 that the paper does not mention; one run, where we average many. In full
it takes about 6 minutes.
"""

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from nas_evidence.evidence.network_density import flat_log_likelihood, spread_precision
from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.scores.sampling_plan import EntropyPlan
from nas_evidence.scores.sgd_entropy import descend

from ._panels import panels
from ._published import Cell, Cells, Numbers, Reproduction, Row, Run, joined

FIGURE = "Fig. 3"
TITLE = "When to stop: the bound and the test error along descent on Boston housing"
CLAIM = "The bound, from training data alone, peaks where the held-out likelihood does."
RULE = (
    "stopping where the bound peaks costs less than 0.02 nats of test log likelihood per datum,"
    " for our bound and for the published one"
)
NEEDS = ("uci",)

STEPS, RATE, SPREAD = 500, 0.008, 0.1
THRESHOLDS = {"plain": None, "threshold 1": 1.0}
SCALES = (0.1, 0.3)  # of the first weights, for the bound to choose from


def rows_of(data: Path) -> tuple[Tensor, Tensor]:
    """Return 51 training rows and the rest, columns and target standardised by the training."""
    table = torch.tensor(np.loadtxt(data / "uci" / "bostonHousing" / "data.txt"))
    table = table[torch.randperm(len(table), generator=torch.Generator().manual_seed(0))]
    train = table[: len(table) // 10 + 1]
    table = (table - train.mean(0)) / train.std(0).clamp(min=1e-9)
    return table[: len(train)], table[len(train) :]


def outputs(positions: Tensor, x: Tensor) -> Tensor:
    """Return the outputs [R, n] of networks with flat parameters [R, 1501]."""
    w1, b1, w2, b2 = positions.split([1300, 100, 100, 1], 1)
    inner = torch.tanh(x @ w1.view(-1, 100, 13).mT + b1[:, None])
    return (inner @ w2[..., None])[..., 0] + b2


class Followed:
    """A descent, with what its draws say of the test rows at each checkpoint.

    test       log likelihood per datum, mean over draws [K]      rmse   the same [K]
    ensemble   log likelihood per datum of all draws together [K]
    """

    def __init__(
        self, train: Tensor, test: Tensor, *, spread: float, threshold: float | None, n_seeds: int
    ) -> None:
        model = nn.Sequential(nn.Linear(13, 100), nn.Tanh(), nn.Linear(100, 1)).double()
        log_likelihood, x, y = flat_log_likelihood(
            model, train[:, :13], train[:, 13:], Gaussian(1.0)
        )
        found = []

        def watch(t: int, positions: Tensor) -> None:
            residual = outputs(positions, test[:, :13]) - test[:, 13]
            each = -0.5 * residual.square() - 0.5 * math.log(2 * math.pi)
            together = each.logsumexp(0) - math.log(len(each))
            rmse = residual.square().mean(1).sqrt().mean()
            log_prior = -0.5 * (positions / spread).square().sum(1).mean()
            summary = each.mean(), rmse, together.mean(), log_prior
            found.append(tuple(float(one) for one in summary))

        self.curve = descend(
            log_likelihood,
            x,
            y,
            prior_precision=spread_precision(model, 1 / spread**2),
            plan=EntropyPlan(
                learning_rate=RATE, n_steps=STEPS, n_seeds=n_seeds, threshold=threshold,
                stop=False, n_checks=5,
            ),
            generator=torch.Generator().manual_seed(0),
            watch=watch,
        )  # fmt: skip
        self.test, self.rmse, self.ensemble, log_prior = map(list, zip(*found, strict=True))
        self.bound = self.curve.bounds.mean(0)
        self.best, self.least = int(self.bound.argmax()), int(np.argmax(self.test))
        # The published bound has r² for r²/2 and no log prior, on the same path.
        fit = self.curve.log_joint.mean(0) - torch.tensor(log_prior)
        self.published = int((2 * fit + self.curve.entropy.mean(0)).argmax())

    def step(self, checkpoint: int) -> int:
        """Return the step of a checkpoint."""
        return self.curve.steps[checkpoint]

    def rows(self, name: str, n_seeds: int) -> list[Row]:
        """Return where the bounds peak, and what stopping there costs."""
        n, best, least = f"n = {n_seeds} draws", self.step(self.best), self.step(self.least)
        value = float(self.bound[self.best])
        error = float(self.curve.bounds[:, self.best].std()) / n_seeds**0.5
        at = [self.test[k] for k in (self.best, self.least, -1)]
        similar = "a similar number"
        return [
            Row(
                f"{name}: step of the best bound, of the best test likelihood",
                similar, f"{best}, {least}", n,
            ),
            Row(
                f"{name}: the same with the published bound, r² for r²/2 and no log prior",
                similar, f"{self.step(self.published)}, {least}", n,
                "its likelihood counts twice and its prior not at all: no bound on an evidence",
            ),
            Row(
                f"{name}: test log likelihood at the best bound, at its own best, at the end",
                "", joined(at, ".4f"), n,
            ),
            Row(
                f"{name}: best bound (nats), largest eigenvalue times step",
                "", f"{value:.1f}, {self.curve.largest:.2f}", f"± {error:.1f}, {n}",
            ),
        ]  # fmt: skip


def cells(numbers: Numbers) -> Cells:
    """Yield whether each bound stops each descent at about the best test likelihood."""
    for bound in ("ours", "published"):
        for name in THRESHOLDS:
            test, peak = numbers[name]["test"], numbers[name]["peaks"][bound]
            yield Cell(f"the peak of the bound, {bound}", name, max(test) - test[peak] < 0.02)


def run(at: Run) -> Reproduction:
    """Follow plain and entropy-friendly descents, then descents from several first scales."""
    rows, n_seeds = rows_of(at.data), at.sized(8, 100)

    def follow(spread: float, threshold: float | None) -> Followed:
        at.say(f"first weights {spread}, threshold {threshold}")
        return Followed(*rows, spread=spread, threshold=threshold, n_seeds=n_seeds)

    followed = {name: follow(SPREAD, threshold) for name, threshold in THRESHOLDS.items()}
    plain = followed["plain"]
    scaled = {spread: plain if spread == SPREAD else follow(spread, None) for spread in SCALES}
    bounds = {spread: float(one.bound[one.best]) for spread, one in scaled.items()}
    tests = {spread: one.test[one.best] for spread, one in scaled.items()}
    chosen = max(bounds, key=bounds.__getitem__)
    table = [row for name, one in followed.items() for row in one.rows(name, n_seeds)]
    table += [
        Row(
            "worked example: ensemble of the draws at the best bound, test log likelihood",
            "",
            f"{plain.ensemble[plain.best]:.4f}, one draw {plain.test[plain.best]:.4f}",
            f"n = {n_seeds} draws",
        ),
        Row(
            f"worked example: spread of the first weights of {SCALES}, chosen by the bound",
            "",
            f"{chosen}: test {tests[chosen]:.4f}; all: {joined(tests.values(), '.4f')}",
            f"bounds {joined(bounds.values(), '.0f')}; n = {n_seeds}",
        ),
    ]
    figure, (top, bottom) = panels(7, 4.5, 2, sharex=True)
    for i, (name, one) in enumerate(followed.items()):
        top.plot(one.curve.steps, one.rmse, color=f"C{i}", label=name)
        bottom.plot(one.curve.steps, one.bound, color=f"C{i}")
        for axis in (top, bottom):
            axis.axvline(one.step(one.best), color=f"C{i}", linestyle="--", linewidth=0.8)
    top.set_ylabel("test RMSE")
    top.legend(frameon=False)
    bottom.set(xlabel="step", ylabel="bound (nats)")
    peaks = "; ".join(
        f"{name}: bound at {one.step(one.best)}, test likelihood at {one.step(one.least)}, with "
        f"the published bound {one.step(one.published)}"
        for name, one in followed.items()
    )
    lost = [one.test[one.least] - one.test[one.best] for one in followed.values()]
    return Reproduction(
        table,
        figure,
        {
            "n": n_seeds,
            "steps": plain.curve.steps,
            **{
                name: {
                    "bound": one.bound, "test": one.test, "rmse": one.rmse,
                    "ensemble": one.ensemble, "largest": one.curve.largest,
                    "peaks": {"ours": one.best, "published": one.published},
                }
                for name, one in followed.items()
            },
        },
        f"{peaks}; stopping by the bound costs {joined(lost, '.3f')} nats per test datum",
    )  # fmt: skip
