"""Algorithm 1 of Immer et al. 2021 on given data, and what is measured after it, for scripts.

The paper updates hyperparameters by Adam on the full GGN, the full empirical Fisher, KFAC or a
diagonal; the online curvature here is any of the package's kinds.
"""

from dataclasses import dataclass
from itertools import pairwise
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
    ArchitectureSpec,
    Assignment,
    DatasetSpec,
    OnlinePlan,
    TrainingPlan,
)
from nas_evidence.training.loop import likelihood_of, train_epoch
from nas_evidence.training.network import Network, begin
from nas_evidence.training.online import update_and_follow
from nas_evidence.training.settling import begin_settling, settle_slices

#: Work of settling in full-batch gradients, where it is asked for.
SETTLING = 500.0


@dataclass
class Fitted:
    """A trained network; `path` has epoch, first precision, evidence per update.

    `moved_at` is the epoch of the first update that changed a precision. Before it, a network with
    learned precisions is the one with fixed ones.
    """

    state: Network
    data: TensorData
    assignment: Assignment
    path: list[tuple[int, float, float]]
    at_test: list[tuple[int, float, float]]  # epoch, log loss and error rate or RSS per datum
    moved_at: int | None = None

    @property
    def plan(self) -> TrainingPlan:
        """How it was trained."""
        return self.assignment.plan

    def evidence(self, kind: str, *, correction: bool = False) -> EvidenceEstimate:
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
            at_mode_correction=correction,
            diagnose=False,
        )

    def outputs(self, x: Tensor) -> Tensor:
        """Return the outputs of the network in evaluation mode."""
        self.state.model.eval()
        with torch.no_grad():
            found: Tensor = self.state.model(x)
        return found

    def probabilities(self, x: Tensor) -> np.ndarray:
        """Return class probabilities at the temperature of the plan, float64 [n, C]."""
        logits = self.outputs(x).double() / self.plan.temperature
        found: np.ndarray = logits.softmax(1).numpy()
        return found

    def test_nll(self) -> float:
        """Return the negative log likelihood of the test data by the mode, nats per datum."""
        f, y = self.outputs(self.data.x_test), self.data.y_test
        if self.plan.likelihood == "categorical":
            return float(nn.functional.cross_entropy(f / self.plan.temperature, y))
        noise = self.state.noise_std * float(self.data.y_std)
        square = ((f - y) * float(self.data.y_std)).square().mean()
        return float(0.5 * square / noise**2 + np.log(noise) + 0.5 * np.log(2 * np.pi))

    def test_accuracy(self) -> float:
        """Return the fraction of test data whose class is right."""
        return float((self.outputs(self.data.x_test).argmax(1) == self.data.y_test).float().mean())


def mlp(sizes: list[int], activation: type[nn.Module], seed: int) -> nn.Sequential:
    """Return a fully connected network with torch's own initialisation."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes[:-1]):
        layers += [nn.Linear(a, b), activation()]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


def fit(
    model: nn.Module,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    *,
    scale: float = 1.0,
    seed: int = 0,
    follow_test: bool = False,
    plan: dict[str, Any],
) -> Fitted:
    """Train a network on the log joint with online updates.

    Args:
        model: changed in place.
        train: inputs and labels, or standardised real targets [n, 1].
        test: likewise.
        scale: standard deviation of the real targets before standardising.
        seed: of the order of the data.
        follow_test: record the test loss and error at each update.
        plan: keys of `TrainingPlan`.
    """
    whole = TrainingPlan(**plan)
    real = whole.likelihood == "gaussian"
    one = torch.ones(1, dtype=torch.float64)
    classes = 1 if real else int(max(train[1].max(), test[1].max())) + 1
    data = TensorData(
        *train,
        *test,
        task="real" if real else "labels",
        n_outputs=classes,
        input_shape=tuple(train[0].shape[1:]),
        y_mean=0 * one,
        y_std=scale * one,
    )
    assignment = Assignment(
        trial_id=0,
        attempt=1,
        replicate=0,
        seed=seed,
        plan=whole,
        estimators=[whole.online.curvature],
        architecture=ArchitectureSpec(family="mlp", values={}),
        dataset=DatasetSpec(name="digits"),
    )
    state = begin(model, data, whole, seed)
    fitted = Fitted(state, data, assignment, [], [])
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


def settle(fitted: Fitted) -> None:
    """Go on to a mode and to the maximum of the evidence there, in place."""
    begin_settling(fitted.state, SETTLING)
    while not settle_slices([fitted.state])[0]:
        pass


def frozen(epochs: int, curvature: str) -> OnlinePlan:
    """Return a plan under which hyperparameters stay as they are."""
    return OnlinePlan(every=epochs, burn_in=epochs, curvature=curvature)


def snelson(data: Path) -> tuple[Tensor, Tensor]:
    """Return the 200 standardised inputs and targets [200, 1] of Snelson's set."""
    read = (np.loadtxt(data / "snelson" / f"train_{n}.txt") for n in ("inputs", "outputs"))
    x, y = (torch.tensor((v - v.mean()) / v.std(), dtype=torch.float32)[:, None] for v in read)
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


def within(ours: float, published: float, error: float, n: int, n_published: int = 10) -> bool:
    """Return whether a mean over n splits is the published one over more, by its standard error.

    The published error is that of `n_published` splits, so one of n has √(n_published / n) times
    as much; two errors of the difference, and half of the last digit printed.
    """
    return abs(ours - published) <= 2 * error * (1 + n_published / n) ** 0.5 + 0.005


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """Return mean and standard error."""
    n = len(values)
    return float(np.mean(values)), float(np.std(values, ddof=1) / n**0.5) if n > 1 else float(
        "nan"
    )


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
    found: np.ndarray = (drawn / one.plan.temperature).softmax(2).mean(0).numpy()
    return found


def real_predictive_nll(one: Fitted) -> float:
    """Return the negative log likelihood of real test data by the linearised network, nats."""
    f, y, scale = one.outputs(one.data.x_test), one.data.y_test, float(one.data.y_std)
    variance = output_covariance(one, one.data.x_test)[:, 0, 0] + one.state.noise_std**2
    square = (f - y)[:, 0].double().square() / variance
    constant = np.log(2 * np.pi * scale**2)
    return float(0.5 * (square + variance.log() + constant).mean())
