"""Algorithm 1 of Immer et al. 2021 on given data, and what is measured after it, for scripts.

The paper updates hyperparameters by Adam on the full GGN, the full empirical Fisher, KFAC or a
diagonal; the online curvature here is any of the package's kinds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nas_evidence.data.tensors import TensorData
from nas_evidence.evidence.estimate import estimate_evidence
from nas_evidence.evidence.posterior import fit_posterior
from nas_evidence.spec.estimates import EvidenceEstimate
from nas_evidence.spec.schedule import updates_after
from nas_evidence.spec.study import (
    OnlinePlan,
    TrainingPlan,
)
from nas_evidence.training.loop import likelihood_of, train_epoch
from nas_evidence.training.network import Network, begin
from nas_evidence.training.online import update_and_follow

from ._published import Cell, Row
from ._shared_data import Examples, dense


@dataclass
class Fitted:
    """A trained network; `path` has epoch, first precision, evidence per update.

    `moved_at` is the epoch of the first update that changed a precision. Before it, a network with
    learned precisions is the one with fixed ones.
    """

    state: Network
    data: TensorData
    plan: TrainingPlan
    path: list[tuple[int, float, float]]
    at_test: list[tuple[int, float, float]]  # epoch, log loss and error rate or RSS per datum
    moved_at: int | None = None

    def evidence(self, kind: str, *, diagnose: bool = False) -> EvidenceEstimate:
        """Return the Laplace evidence on the training data at the learned hyperparameters."""
        gaussian = self.plan.likelihood == "gaussian"
        return estimate_evidence(
            self.state.model,
            self.data.x_train,
            self.data.y_train,
            likelihood=self.plan.likelihood,
            curvature=kind,
            prior_precision=self.state.prior_precision,
            noise_std=self.state.noise_std if gaussian else None,
            temperature=self.plan.temperature,
            diagnose=diagnose,
        )

    def outputs(self, x: Tensor) -> Tensor:
        """Return the outputs of the network in evaluation mode."""
        self.state.model.eval()
        with torch.no_grad():
            return self.state.model(x)

    def probabilities(self, x: Tensor) -> np.ndarray:
        """Return class probabilities at the temperature of the plan, float64 [n, C]."""
        logits = self.outputs(x).double() / self.plan.temperature
        return logits.softmax(1).numpy()

    def test_nll(self) -> float:
        """Return the negative log likelihood of the test data by the mode, nats per datum."""
        f, y = self.outputs(self.data.x_test), self.data.y_test
        if self.plan.likelihood == "categorical":
            return float(nn.functional.cross_entropy(f / self.plan.temperature, y))
        noise = self.state.noise_std * float(self.data.y_std)
        square = ((f - y) * float(self.data.y_std)).square().mean()
        return float(0.5 * square / noise**2 + np.log(noise) + 0.5 * np.log(2 * np.pi))

    def accuracy(self, x: Tensor, y: Tensor) -> float:
        """Return the fraction of data whose class is right."""
        return float((self.outputs(x).argmax(1) == y).float().mean())

    def test_accuracy(self) -> float:
        """Return the fraction of test data whose class is right."""
        return self.accuracy(self.data.x_test, self.data.y_test)


def mlp(sizes: list[int], activation: type[nn.Module], seed: int) -> nn.Sequential:
    """Return a fully connected network with torch's own initialisation."""
    torch.manual_seed(seed)
    return nn.Sequential(*dense(sizes, activation))


def tensors(
    train: Examples, test: Examples, *, real: bool = False, scale: float = 1
) -> TensorData:
    """Return data as they are; `scale` is that of real targets before they were standardised."""
    one = torch.ones(1, dtype=torch.float64)
    return TensorData(
        *train,
        *test,
        task="real" if real else "labels",
        n_outputs=1 if real else int(max(train[1].max(), test[1].max())) + 1,
        input_shape=tuple(train[0].shape[1:]),
        y_mean=0 * one,
        y_std=scale * one,
    )


def fit(
    model: nn.Module,
    train: Examples,
    test: Examples,
    *,
    scale: float = 1.0,
    seed: int = 0,
    follow_test: bool = False,
    **plan: Any,
) -> Fitted:
    """Train a network on the log joint with online updates.

    Args:
        model: changed in place.
        train: inputs and labels, or standardised real targets [n, 1].
        test: likewise.
        scale: standard deviation of the real targets before standardising.
        seed: of the order of the data.
        follow_test: record the test loss and error at each update.
        **plan: keys of `TrainingPlan`; Adam at a constant rate if they do not say.
    """
    whole = TrainingPlan(**{"optimiser": "adam", "schedule": "constant", **plan})
    real = whole.likelihood == "gaussian"
    data = tensors(train, test, real=real, scale=scale)
    state = begin(model, data, whole, seed)
    fitted = Fitted(state, data, whole, [], [])
    kind = whole.online.curvature
    for epoch in range(1, whole.epochs + 1):
        train_epoch(state)
        state.epoch = epoch
        if updates_after(whole, epoch):
            before = state.prior_precision
            passes = update_and_follow(state)
            if fitted.moved_at is None and not torch.allclose(state.prior_precision, before):
                fitted.moved_at = epoch
            value = passes.estimate(kind, passes.of(kind)[0]).value
            fitted.path.append((epoch, float(state.prior_precision[0]), value))
            if follow_test:
                error = 0.0 if real else 1 - fitted.test_accuracy()
                fitted.at_test.append((epoch, fitted.test_nll(), error))
    return fitted


def adam(curvature: str, every: int, steps: int, rate: float, **more: Any) -> dict[str, Any]:
    """Return an online plan whose updates are steps of Adam, every so many epochs."""
    return {
        "every": every, "curvature": curvature, "hyper_step": "adam", "hyper_steps": steps,
        "hyper_learning_rate": rate, **more,
    }  # fmt: skip


def frozen(epochs: int, curvature: str) -> OnlinePlan:
    """Return a plan under which hyperparameters stay as they are."""
    return OnlinePlan(every=epochs, burn_in=epochs, curvature=curvature)


def snelson(data: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the 200 inputs and targets of Snelson's set, in their own unit [200]."""
    x, y = (np.loadtxt(data / "snelson" / f"train_{n}.txt") for n in ("inputs", "outputs"))
    return x, y


def standardised_snelson(data: Path) -> Examples:
    """Return the 200 standardised inputs and targets of Snelson's set [200, 1]."""
    scaled = ((v - v.mean()) / v.std() for v in snelson(data))
    x, y = (torch.tensor(v, dtype=torch.float32)[:, None] for v in scaled)
    return x, y


def must_have_moved(one: Fitted, what: str) -> None:
    """Raise if no update changed a precision in the first half of the training.

    Online updates raise no precision while the network explains the data hardly better than a
    constant does (training/online.py). A training that ends there has learned no prior, and its
    comparison with a fixed prior compares nothing.

    Raises:
        RuntimeError: naming the training and the epoch of the first change.
    """
    if one.moved_at is None or one.moved_at > one.plan.epochs // 2:
        raise RuntimeError(
            f"{what}: the first update that changed a precision was at epoch {one.moved_at} of "
            f"{one.plan.epochs}, too late to train with learned ones; more epochs, or shorter "
            'steps (hyper_step = "adam"), let it move.'
        )


def agreement(first: float, second: float, published: tuple[float, float]) -> bool:
    """Return whether two values of ours are in the published order; equal ones are in none."""
    return (first - second) * (published[0] - published[1]) > 0


def ordered(
    group: str,
    what: str,
    pair: tuple[Any, Any],
    place: int,
    of: tuple[Mapping[Any, Any], Mapping[Any, Any]],
    figures: tuple[str, ...],
) -> Cell:
    """Return whether two entries have a value in the published order.

    The keys are a `pair`, the value is at a `place` of each; `of` are our entries and the
    published ones.
    """
    ours, theirs = ([float(one[key][place]) for key in pair] for one in of)
    return Cell(group, what, agreement(*ours, theirs), figures)


def within(ours: float, published: float, error: float, n: int, n_published: int = 10) -> bool:
    """Return whether a mean over n splits is the published one over more, by its standard error.

    The published error is that of `n_published` splits, so one of n has √(n_published / n) times
    as much; two errors of the difference, and half of the last digit printed.
    """
    return abs(ours - published) <= 2 * error * (1 + n_published / n) ** 0.5 + 0.005


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """Return mean and standard error, NaN for a single value."""
    n = len(values)
    error = float(np.std(values, ddof=1) / n**0.5) if n > 1 else float("nan")
    return float(np.mean(values)), error


def averaged(
    what: str,
    published: str,
    values: list[float],
    digits: int,
    unit: str,
    more: str = "",
    why: str = "",
) -> Row:
    """Return a row of the mean with its standard error over splits, seeds or another unit."""
    mean, error = mean_and_error(values)
    n = len(values)
    spread = f"± {error:.{digits}f}, n = {n} {unit}s" if n > 1 else f"one {unit}"
    return Row(what, published, f"{mean:.{digits}f}", spread + more, why)


def output_covariance(one: Fitted, x: Tensor) -> Tensor:
    """Return the covariance of the linearised outputs [n, C, C] under the Laplace posterior."""
    state, model = one.state, one.state.model
    likelihood = likelihood_of(one.plan, state.noise_std)
    names = [name for name, _ in model.named_parameters()]
    precision = {n: p[None] for n, p in zip(names, state.prior_precision, strict=True)}
    posterior = fit_posterior(model, one.data.x_train, one.data.y_train, likelihood, precision)
    return posterior.output_covariance(model, x)


def predictive(one: Fitted, x: Tensor, n_draws: int = 500) -> np.ndarray:
    """Return mean class probabilities of the linearised network, float64 [n, C]."""
    covariance = output_covariance(one, x)
    values, vectors = torch.linalg.eigh(covariance)
    root = vectors * values.clamp(min=0).sqrt()[:, None, :]
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(n_draws, *root.shape[:2], dtype=torch.float64, generator=generator)
    drawn = one.outputs(x).double() + torch.einsum("ncd,snd->snc", root, normal)
    return (drawn / one.plan.temperature).softmax(2).mean(0).numpy()


def real_predictive_nll(one: Fitted) -> float:
    """Return the negative log likelihood of real test data by the linearised network, nats."""
    f, y, scale = one.outputs(one.data.x_test), one.data.y_test, float(one.data.y_std)
    variance = output_covariance(one, one.data.x_test)[:, 0, 0] + one.state.noise_std**2
    square = (f - y)[:, 0].double().square() / variance
    constant = np.log(2 * np.pi * scale**2)
    return float(0.5 * (square + variance.log() + constant).mean())
