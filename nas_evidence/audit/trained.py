"""The scores that need training, in two short trials of the audit.

    trial          labels drawn by a coin: no score that predicts them can beat even odds; and
                   scores of the training curve, from the curve itself
    trial-linear   linear regression: predictive scores and evidences, against closed forms

In the second one every truth follows from the maximum over prior precisions and noise of the
evidence in closed form: of all data, what training of prior and noise must reach; of the data that
a predictive score has trained on, the density of those that it predicts.
"""

import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from nas_evidence.audit.rows import AuditRow, Claim, around, judged
from nas_evidence.data import load
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.evidence.exact_linear import log_evidence_of_linear
from nas_evidence.models import build
from nas_evidence.scores.folds import fold_tasks
from nas_evidence.scores.sotl import SOTL_EPOCHS, SOTL_GAMMA
from nas_evidence.spec.divisions import division_of
from nas_evidence.spec.record import TrialRecord, TrialStatus
from nas_evidence.spec.registry import CURVATURES, SCORES
from nas_evidence.spec.study import (
    ArchitectureSpec,
    Assignment,
    DatasetSpec,
    OnlinePlan,
    TrainingPlan,
    derive_seed,
)
from nas_evidence.training.loop import begin, train_epoch
from nas_evidence.training.parts import order_of_data
from nas_evidence.workers.trial import Trial

_ROUNDING = 1e-8  # relative
_N_DATA, _N_FEATURES, _NOISE = 160, 3, 0.4
_FOLDS = ("two_fold", "five_fold", "ten_fold", "heldout_10")
_N_COINS, _N_COIN_FEATURES = 160, 40
#: Nats above those of even odds that coins give with a probability of e^-8.
_LUCK = 8.0


def trial_rows(seed: int, sampled: Sequence[str]) -> list[AuditRow]:
    """Return the rows of a short trial on labels drawn by a coin; those of `sampled` are left out.

    Nobody can predict a coin. For a density Q of n labels, given anything but these labels, the
    mean of Q 2ⁿ is at most 1, so that log Q exceeds −n log 2 by b nats with probability e^-b at
    most (Markov); the same holds for the geometric mean of several such Q. A network that has
    seen the labels it predicts exceeds it by far. The number that are predicted correctly is
    binomial.
    """
    names = trial_names(sampled)
    random = np.random.default_rng(derive_seed(seed, "coins"))
    n = _N_COINS
    x = random.normal(size=(n + 10, _N_COIN_FEATURES)).astype(np.float32)
    y = random.integers(0, 2, size=len(x))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "coins.npz"
        np.savez(path, x_train=x[:n], y_train=y[:n], x_test=x[n:], y_test=y[n:])
        assignment = Assignment(
            trial_id=0,
            attempt=1,
            replicate=0,
            architecture=ArchitectureSpec(family="mlp", values={"depth": 1, "width": 16}),
            dataset=DatasetSpec(name="npz", path=str(path)),
            plan=TrainingPlan(
                epochs=60, optimiser="adam", learning_rate=0.05, batch_size=16,
                prior_precision=0.1, online=OnlinePlan(every=20, curvature="diag_ggn"),
            ),
            estimators=tuple(names),
            seed=seed,
        )  # fmt: skip
        record, seconds = _trained(assignment)
    n_parameters = (_N_COIN_FEATURES + 1) * 16 + 17 * 2
    expected = {**_from_the_curve(record, n), "n_parameters": float(n_parameters)}
    luck = _LUCK - n * math.log(2)
    code = expected.pop("prequential_epoch1")
    claims = coin_claims(n) | {
        name: around(exact, _ROUNDING * abs(exact), "from the training curve")
        for name, exact in expected.items()
    }
    claims["prequential_epoch1"] = Claim(
        "from the training curve; no luck with coins", code - 1e-6, min(code + 1e-6, luck)
    )
    asked = {name: claims[name] for name in names}
    return _rows("trial", record, asked, (n_parameters, n), seconds)


def coin_claims(n: int) -> dict[str, Claim]:
    """Return the limits of the scores that predict labels drawn by a coin, of `n` in all."""
    predicted = {
        "two_fold": n // 2, "five_fold": n // 5, "ten_fold": n // 10,
        "heldout_10": n - int(0.9 * n), "prequential_replay": n - n // 4,
    }  # fmt: skip
    claims = {
        f"{name}_accuracy": around(0.5, 2 / math.sqrt(predicted[name]), "4 errors of a coin")
        for name in _FOLDS
    }
    for name, size in predicted.items():
        fair = -size * math.log(2)
        claims[name] = Claim("no luck with coins; little worse than even", fair - 10, fair + _LUCK)
    for name, size in {"tangent_conditional": n // 2, "last_layer_conditional": n // 2,
                       "conditional_evidence": n // 5,
                       "prequential_epoch1_laplace": n}.items():  # fmt: skip
        claims[name] = Claim("no luck with coins", high=_LUCK - size * math.log(2))
    return claims


def linear_trial_rows(seed: int, sampled: Sequence[str]) -> list[AuditRow]:
    """Return the rows of a trial of linear regression, with every score that real targets have."""
    names = linear_trial_names(sampled)
    random = np.random.default_rng(seed)
    x = random.normal(size=(_N_DATA + 10, _N_FEATURES)).astype(np.float32)
    weights = np.array([1.0, -0.5, 0.25])
    y = x @ weights + 0.7 + _NOISE * random.normal(size=len(x))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "linear.npz"
        n = _N_DATA
        np.savez(path, x_train=x[:n], y_train=y[:n], x_test=x[n:], y_test=y[n:])
        assignment = Assignment(
            trial_id=0,
            attempt=1,
            replicate=0,
            architecture=ArchitectureSpec(family="linear"),
            dataset=DatasetSpec(name="npz", path=str(path)),
            plan=TrainingPlan(
                likelihood="gaussian", epochs=30, learning_rate=0.05, batch_size=64,
                noise_std=0.8, prior_precision=0.5,
                online=OnlinePlan(every=10, curvature="block_ggn"),
            ),
            estimators=tuple(names),
            seed=seed,
        )  # fmt: skip
        tensors = to_tensors(load(assignment.dataset, seed=0), "cpu")
        record, seconds = _trained(assignment)
    given, targets = tensors.x_train[:].double(), tensors.y_train.double()
    claims = linear_claims(given, targets, assignment)
    expected = {**_from_the_curve(record, _N_DATA), "n_parameters": _N_FEATURES + 1.0}
    exact = first_epoch_code(assignment, tensors)
    claims["prequential_epoch1_laplace"] = around(exact, 1e-4 * abs(exact), "by dense algebra")
    for name, exact in expected.items():
        claims[name] = around(exact, _ROUNDING * abs(exact), "from the training curve")
    asked = {name: claims.get(name, Claim()) for name in names}
    return _rows("trial-linear", record, asked, (_N_FEATURES + 1, _N_DATA), seconds)


def first_epoch_code(assignment: Assignment, data: TensorData) -> float:
    """Return `prequential_epoch1_laplace` of a linear network in nats, by dense algebra.

    The steps are those of the trial; variances are Σ x² / (δ + Σ_seen x² / s²) with x_0 = 1.
    """
    generator = torch.Generator().manual_seed(assignment.derived_seed("init"))
    model = build(assignment.architecture, data.input_shape, data.n_outputs, generator)
    state, noise = begin(model, assignment.plan), assignment.plan.noise_std
    seen = torch.full((_N_FEATURES + 1,), assignment.plan.prior_precision, dtype=torch.float64)
    total = 0.0

    def predict(x: Tensor, y: Tensor) -> float:
        nonlocal total, seen
        squares = torch.cat([x, torch.ones_like(x[:, :1])], 1).double().square()
        spread = noise**2 + (squares / seen).sum(1)
        away = (y.double() - model(x).detach().double())[:, 0].square()
        total -= 0.5 * float((away / spread + (2 * math.pi * spread).log()).sum())
        seen = seen + squares.sum(0) / noise**2
        return 0.0

    train_epoch(state, data, assignment, predict)
    return total


def trial_names(sampled: Sequence[str]) -> list[str]:
    """Return the estimators of the trial on coins: those that predict labels, and free ones."""
    free = [name for name, score in SCORES.items() if not score.on_request]
    accuracies = [name for name, score in SCORES.items() if score.labels_only]
    names = [*coin_claims(_N_COINS), *free, *accuracies]
    return [name for name in SCORES if name in names and name not in sampled]


def linear_trial_names(sampled: Sequence[str]) -> list[str]:
    """Return the estimators of the trial of linear regression."""
    names = [n for n, s in SCORES.items() if n not in sampled and s.unit != "fraction"]
    return [n for n in names if not SCORES[n].labels_only]


def linear_claims(x: Tensor, y: Tensor, assignment: Assignment) -> dict[str, Claim]:
    """Return what closed forms say of the scores of a trial of linear regression.

    Args:
        x: [n, d].
        y: [n, 1].
        assignment: of the trial; its plan and its order of the data are read.
    """
    phi = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    whole = MaximisedEvidence(phi, y)
    order = order_of_data(len(x), assignment)
    half, quarter = order[: len(x) // 2], order[: len(x) // 4]
    late = whole.conditional(half, order[len(x) // 2 :])
    rest = whole.conditional(quarter, order[len(x) // 4 :])
    best = Claim(
        "at most the maximum over prior and noise, and half a nat below it at most",
        whole.value - 0.5, whole.value + 1e-3,
    )  # fmt: skip
    claims = {
        name: around(whole.value, 1.0, "1 nat of the maximum: the features are independent")
        for name in (*CURVATURES, "full_ggn_slq", "ntk_init")
    }
    claims |= {"full_ggn": best, "tangent": best}
    for name, score in SCORES.items():
        if score.taken == "before" and score.curvature is not None:
            claims[name] = around(late, 1.0, "1 nat of the density of one half given the other")
    for name in ("tangent_conditional", "last_layer_conditional"):
        both = 0.5 * (late + whole.conditional(order[len(x) // 2 :], half))
        claims[name] = around(both, 1.0, "1 nat of the mean density of each half")
    for name in (*_FOLDS, "conditional_evidence"):
        division = division_of(name, assignment.plan, len(x))
        tasks = fold_tasks(division, order, assignment.plan)
        exact = sum(whole.conditional(t.trained, t.predicted) for t in tasks) / len(tasks)
        if name == "conditional_evidence":
            claims[name] = around(exact, 1.0, "1 nat of the mean density of a fold")
            continue
        claims[name] = Claim(
            "the density of a fold given the others, less log 25 at most for the scale",
            exact - 4.0, exact + 1.0,
        )  # fmt: skip
    claims["prequential_replay"] = Claim(
        "at most 8 nats below the density of three quarters given one", rest - 8.0, rest + 2.0
    )
    return claims


class MaximisedEvidence:
    """The largest log evidence of linear regression over precisions of weight and bias, and noise.

    phi, y  features with a last column of ones [n, d + 1], targets [n, 1]
    value   the maximum for all data, nats
    """

    def __init__(self, phi: Tensor, y: Tensor) -> None:
        self.phi, self.y = phi, y
        self.value = self._maximised(torch.arange(len(phi)))[0]

    def conditional(self, early: Tensor, late: Tensor) -> float:
        """Return log p(late | early) in nats at the maximum for the early rows alone."""
        before, at = self._maximised(early)
        return self._at(at, torch.cat([early, late])) - before

    def _maximised(self, rows: Tensor) -> tuple[float, Sequence[float]]:
        found = scipy.optimize.minimize(
            lambda log: -self._at(log, rows), np.zeros(3), method="Nelder-Mead",
            options={"xatol": 1e-5, "fatol": 1e-8, "maxiter": 2000},
        )  # fmt: skip
        return -float(found.fun), list(found.x)

    def _at(self, log: Sequence[float], rows: Tensor) -> float:
        weight, bias, noise = (math.exp(v) for v in log)
        size = self.phi.shape[1]
        precision = torch.tensor([weight] * (size - 1) + [bias], dtype=torch.float64)
        return log_evidence_of_linear(
            self.phi[rows], self.y[rows], prior_precision=precision, noise_std=noise
        )


def _from_the_curve(record: TrialRecord, n_data: int) -> dict[str, float]:
    losses = [point.train_nll_per_datum for point in record.curve]
    weights = [SOTL_GAMMA ** (len(losses) - 1 - t) for t in range(len(losses))]
    return {
        "sotl": -sum(losses),
        "sotl_e": -sum(losses[-SOTL_EPOCHS:]),
        "sotl_ema": -sum(w * loss for w, loss in zip(weights, losses, strict=True)),
        "prequential_epoch1": -n_data * losses[0],
        "train_nll_per_datum": -losses[-1],
    }


def _rows(
    problem: str,
    record: TrialRecord,
    claims: dict[str, Claim],
    sizes: tuple[int, int],
    seconds: float,
) -> list[AuditRow]:
    rows = []
    for name, claim in claims.items():
        found = record.final_estimate(name)
        value = math.nan if found is None or not found.valid else found.value
        row = AuditRow(
            problem=problem, estimator=name, n_parameters=sizes[0], n_data=sizes[1],
            value=value, spread=None if found is None else found.standard_error,
            seconds=seconds / len(claims), holds=True,
        )  # fmt: skip
        rows.append(judged(row, claim))
    return rows


def _trained(assignment: Assignment) -> tuple[TrialRecord, float]:
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        tensors = to_tensors(load(assignment.dataset, seed=0), "cpu")
        trial = Trial.start(assignment, tensors, Path(folder))
        while trial.status is TrialStatus.RUNNING:
            trial.advance(assignment.plan.epochs)
        return trial.finish(), time.process_time() - started
