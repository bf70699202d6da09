"""Other predictors than the network as trained, and scores of them.

The last linear layer has weights w with the prior N(0, 1/δ) on the features of a trained network.
All matrices are dense, float64: networks of the pools have at most some 1,500 such weights.

    B   the outputs at the mode w* of these weights on the rows trained on
    C   the posterior predictive N(w*, H⁻¹), by `N_DRAWS` draws for classes, exact for real targets
    D   the same around the weights as trained, N(w_trained, H_trained⁻¹)

    H_k = log ∫ p(D_k | w) N(w; w_trained, H⁻¹) dw      by Laplace's method for classes
    E_k = log q(D_k | D_without_k)                      `conditional_evidence`, here as a check

Each predictor is tested with a factor on its spread that its own out-of-fold predictions fit.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from nas_evidence.data.tensors import TensorData, select
from nas_evidence.evidence.last_layer import last_layer_of
from nas_evidence.evidence.softmax_layer import LastLayer
from nas_evidence.likelihoods import Likelihood
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.scores.folds import Folds, FoldTask, cross_fitted, restored
from nas_evidence.training.loop import likelihood_of
from nas_evidence.training.network import Network
from nas_evidence.training.predict_rows import predict_rows
from nas_evidence.workers.trial import Trial

N_DRAWS = 300
#: Degrees of freedom of the robust score of real targets.
_DEGREES = 8.0
_STEPS, _SMALL = 100, 1e-10
PREDICTORS = "BCD"


@dataclass(frozen=True)
class Weights:
    """Gaussian weights: mean [C, d], Cholesky factor of the precision [C d, C d]."""

    mean: Tensor
    factor: Tensor

    @property
    def log_det(self) -> float:
        """log|H| of the precision H."""
        return 2 * float(self.factor.diagonal().log().sum())


@dataclass(frozen=True)
class Model:
    """Some rows of features [n, d] with their targets and likelihood."""

    phi: Tensor
    y: Tensor
    likelihood: Likelihood
    power: float

    def value(self, w: Tensor) -> float:
        """Return κ log p(y | w) in nats."""
        return self.power * float(self.likelihood.log_likelihood(self.phi @ w.mT, self.y))

    def slope(self, w: Tensor) -> Tensor:
        """Return its gradient [C d]."""
        residual = self.likelihood.residual(self.phi @ w.mT, self.y)
        return (self.power * residual.mT @ self.phi).flatten()

    def curvature(self, w: Tensor) -> Tensor:
        """Return minus its Hessian [C d, C d]."""
        (c, d), phi = w.shape, self.phi
        found = phi.new_zeros(c, d, c, d)
        if isinstance(self.likelihood, Gaussian):
            gram = self.power / self.likelihood.noise_std**2 * phi.mT @ phi
            for i in range(c):
                found[i, :, i] = gram
            return found.view(c * d, c * d)
        assert isinstance(self.likelihood, Categorical)
        p = (phi @ w.mT / self.likelihood.temperature).softmax(1)
        weight = self.power / self.likelihood.temperature**2
        for i in range(c):
            for j in range(i, c):
                own = weight * p[:, i] * (float(i == j) - p[:, j])
                block = (own[:, None] * phi).mT @ phi
                found[i, :, j] = block
                found[j, :, i] = block
        return found.view(c * d, c * d)


def updated(
    model: Model, centre: Tensor, precision: Tensor, start: Tensor
) -> tuple[Weights, float]:
    """Return Laplace's posterior from the prior N(centre, precision⁻¹), and its log normaliser.

    The normaliser leaves out ½ log|precision|. Exact for Gaussian likelihoods.
    """
    w = start.clone()

    def joint(v: Tensor) -> float:
        away = (v - centre).flatten()
        return model.value(v) - 0.5 * float(away @ (precision @ away))

    now = joint(w)
    for _ in range(_STEPS):
        factor = torch.linalg.cholesky(precision + model.curvature(w))
        slope = model.slope(w) - precision @ (w - centre).flatten()
        step = torch.cholesky_solve(slope[:, None], factor)[:, 0]
        gain, size = float(slope @ step), 1.0
        if gain <= _SMALL * (1 + abs(now)):
            break
        while (new := joint(w + size * step.view_as(w))) < now and size > 1e-9:
            size /= 2
        if new < now:
            break
        w, now = w + size * step.view_as(w), new
    factor = torch.linalg.cholesky(precision + model.curvature(w))
    found = Weights(w, factor)
    return found, now - 0.5 * found.log_det


def predictive(
    weights: Weights, phi: Tensor, likelihood: Likelihood, *, mode: bool
) -> tuple[Tensor, Tensor]:
    """Return outputs [n, C] and spread [n, 1 or C], whose table `restored` takes."""
    outputs = phi @ weights.mean.mT
    if isinstance(likelihood, Gaussian):
        noise = torch.full_like(outputs, likelihood.noise_std)
        if mode:
            return outputs, noise
        (c, d), inverse = weights.mean.shape, torch.cholesky_inverse(weights.factor)
        own = [inverse.view(c, d, c, d)[i, :, i] for i in range(c)]
        variance = torch.stack([((phi @ s) * phi).sum(1) for s in own], 1)
        return outputs, (noise**2 + variance.clamp(min=0)).sqrt()
    assert isinstance(likelihood, Categorical)
    ones = outputs.new_ones(len(outputs), 1)
    if mode:
        return outputs / likelihood.temperature, ones
    generator = torch.Generator().manual_seed(0)
    luck = torch.randn(weights.mean.numel(), N_DRAWS, generator=generator, dtype=torch.float64)
    away = torch.linalg.solve_triangular(weights.factor.mT, luck, upper=True)
    total = torch.zeros_like(outputs)
    for column in away.mT:
        drawn = weights.mean + column.view_as(weights.mean)
        total += (phi @ drawn.mT / likelihood.temperature).softmax(1)
    return (total / N_DRAWS).clamp(min=1e-300).log(), ones


@dataclass
class Found:
    """What the folds of one network said.

    unseen  outputs and spread of each datum by the network without it [n, C + 1 or 2 C]
    """

    n: int
    unseen: dict[str, Tensor] = field(default_factory=dict)
    held: list[float] = field(default_factory=list)
    evidence: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)
    tested: list[float] = field(default_factory=list)

    def take(self, data: TensorData, trial: Trial, task: FoldTask, training: Network) -> None:
        """Take the network trained without a fold."""
        plan = trial.assignment.plan
        likelihood = likelihood_of(plan, training.noise_std)
        rows = torch.cat([task.trained, task.predicted])
        layer = last_layer_of(training.model, select(data.x_train, rows), training.prior_precision)
        y, n = data.y_train[rows], len(task.trained)
        y = y if data.task == "labels" else y.double()
        early = Model(layer.features[:n], y[:n], likelihood, plan.likelihood_power)
        late = Model(layer.features[n:], y[n:], likelihood, plan.likelihood_power)
        whole = Model(layer.features, y, likelihood, plan.likelihood_power)
        prior, nothing = prior_of(layer), torch.zeros_like(layer.weights)
        given, first = updated(early, nothing, prior, layer.weights)
        _, second = updated(whole, nothing, prior, given.mean)
        held = as_trained(early, layer)
        _, density = updated(late, layer.weights, held.factor @ held.factor.mT, layer.weights)
        self.evidence.append(second - first)
        self.held.append(density + 0.5 * held.log_det)
        self.plain.append(late.value(layer.weights))
        self.tested.append(test_loss(training, data, trial, task))
        for name, at, mode in (("B", given, True), ("C", given, False), ("D", held, False)):
            outputs, spread = predictive(at, late.phi, likelihood, mode=mode)
            table = torch.cat([outputs, spread], 1)
            self.unseen.setdefault(name, torch.zeros(self.n, table.shape[1], dtype=torch.float64))
            self.unseen[name][task.predicted] = table


def test_loss(training: Network, data: TensorData, trial: Trial, task: FoldTask) -> float:
    """Return the test log loss of a network without a fold, with a factor that the fold fits."""
    seen, y = select(data.x_train, task.trained), data.y_train[task.trained]
    predict = predict_rows(training, seen, y)
    held = predict(select(data.x_train, task.predicted))
    tested = predict(data.x_test).at(held.factor(data.y_train[task.predicted]))
    return -float(tested.log_density(data.y_test).mean())


def prior_of(layer: LastLayer) -> Tensor:
    """Return the prior precision of the weights [C d, C d]."""
    return torch.diag(layer.precision.repeat(len(layer.weights)))


def as_trained(model: Model, layer: LastLayer) -> Weights:
    """Return the Gaussian around the trained weights."""
    precision = prior_of(layer) + model.curvature(layer.weights)
    return Weights(layer.weights, torch.linalg.cholesky(precision))


def watched(trial: Trial) -> Found | None:
    """Return what the folds of a started trial will say; None if it has none."""
    folds = next((s for s in trial.scorers.values() if isinstance(s, Folds)), None)
    if folds is None or folds.given is None:
        return None
    found, before = Found(len(trial.data.x_train)), folds._predict

    def predicted(training: Network, data: TensorData, task: FoldTask) -> dict[str, Any]:
        if task.score == folds.given:
            try:
                found.take(trial.data, trial, task, training)
            except torch.linalg.LinAlgError:
                found.held.append(math.nan)
        return before(training, data, task)

    folds._predict = predicted  # type: ignore[method-assign]
    return found


def columns(trial: Trial, found: Found) -> Mapping[str, Any]:
    """Return test losses of the predictors, and scores, of a complete trial; per datum.

    With K folds, K = 5 in the names below:

    test_nll_X    log loss of predictor X with its own factor; alone_X without one
    held5         H;  check5  E again
    factored5     plain five folds with the factor fitted on the other folds, of the network
    factored5_X   the same of predictor X
    robust5       as plain five folds, with a Student density of 8 degrees; real targets alone
    e5_k, plain5_k  of each fold, nats
    without_k     test log loss of the network trained without fold k, as a hold-out delivers it
    """
    n, data, training = found.n, trial.data, trial.network
    folds = next(s for s in trial.scorers.values() if isinstance(s, Folds))
    assert training is not None
    y, y_test = data.y_train, data.y_test
    of = len(found.held)
    row: dict[str, Any] = {
        f"held{of}": sum(found.held) / n,
        f"check{of}": sum(found.evidence) / n,
    }
    row |= {f"e{of}_{k}": v for k, v in enumerate(found.evidence, 1)}
    row |= {f"plain{of}_{k}": v for k, v in enumerate(found.plain, 1)}
    row |= {f"without_{k}": v for k, v in enumerate(found.tested, 1)}
    plan = trial.assignment.plan
    likelihood = likelihood_of(plan, training.noise_std)
    both = torch.cat([data.x_train, data.x_test])
    layer = last_layer_of(training.model, both, training.prior_precision)
    own = y if data.task == "labels" else y.double()
    seen = Model(layer.features[:n], own, likelihood, plan.likelihood_power)
    mode, _ = updated(seen, torch.zeros_like(layer.weights), prior_of(layer), layer.weights)
    at = {"B": (mode, True), "C": (mode, False), "D": (as_trained(seen, layer), False)}
    for name, (weights, is_mode) in at.items():
        outputs, spread = predictive(weights, layer.features[n:], likelihood, mode=is_mode)
        table, tested = found.unseen[name], restored(torch.cat([outputs, spread], 1), plan)
        calibrated = tested.at(restored(table, plan).factor(y))
        row[f"test_nll_{name}"] = -float(calibrated.log_density(y_test).mean())
        row[f"alone_{name}"] = -float(tested.log_density(y_test).mean())
        row[f"factored{of}_{name}"] = _factored(table, trial)
    assert folds.unseen is not None
    row[f"factored{of}"] = _factored(folds.unseen, trial)
    if y.ndim > 1:
        wide = y.shape[1]
        z = (y - folds.unseen[:, :-wide]) / folds.unseen[:, -wide:]
        student = torch.distributions.StudentT(torch.tensor(_DEGREES, dtype=torch.float64))
        log = student.log_prob(z.double()) - folds.unseen[:, -wide:].double().log()
        row[f"robust{of}"] = float(log.sum()) / n
    return row


def _factored(table: Tensor, trial: Trial) -> float:
    """Return the plain log density of the folds, each with the factor of the others."""
    fitted = cross_fitted(table, trial.data, trial.assignment)
    unseen = restored(fitted, trial.assignment.plan)
    return float(unseen.log_density(trial.data.y_train).mean())
