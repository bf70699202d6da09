"""The scores that need training, in two short trials of the audit.

    trial          digits, a small network: scores of the training curve, from the curve itself
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

from nas_evidence.auditing_rows import AuditRow, Claim, around, judged
from nas_evidence.data import load
from nas_evidence.data.tensors import to_tensors
from nas_evidence.evidence.linear import log_evidence_of_linear
from nas_evidence.record import TrialRecord, TrialStatus
from nas_evidence.registry import CURVATURES, SCORES
from nas_evidence.scores.folds import fold_tasks
from nas_evidence.scores.sotl import SOTL_EPOCHS, SOTL_GAMMA
from nas_evidence.spec import ArchitectureSpec, Assignment, DatasetSpec, OnlinePlan, TrainingPlan
from nas_evidence.training.parts import order_of_data
from nas_evidence.trial import Trial

_ROUNDING = 1e-8  # relative
_N_DATA, _N_FEATURES, _NOISE = 160, 3, 0.4
_FOLDS = ("two_fold", "five_fold", "heldout_10")


def trial_rows(seed: int, sampled: Sequence[str]) -> list[AuditRow]:
    """Return the rows of a short trial on digits; the estimators in `sampled` are left out."""
    names = trial_names(sampled)
    assignment = Assignment(
        trial_id=0,
        attempt=1,
        replicate=0,
        architecture=ArchitectureSpec(family="mlp", values={"depth": 1, "width": 4}),
        dataset=DatasetSpec(name="digits", max_train=60, max_test=20),
        plan=TrainingPlan(epochs=3, online=OnlinePlan(every=3, curvature="diag_ef")),
        estimators=tuple(names),
        seed=seed,
    )
    record, seconds = _trained(assignment)
    n_parameters = 64 * 4 + 4 + 4 * 10 + 10
    expected = {**_from_the_curve(record, 60), "n_parameters": float(n_parameters)}
    claims: dict[str, Claim] = {}
    for name in names:
        if name in expected:
            exact = expected[name]
            claims[name] = around(exact, _ROUNDING * abs(exact), "from the training curve")
        elif SCORES[name].unit == "fraction":
            claims[name] = Claim("a fraction", 0.0, 1.0)
        else:
            claims[name] = Claim("a log probability of labels", high=0.0)
    return _rows("trial", record, claims, (n_parameters, 60), seconds)


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
    exact = expected["prequential_epoch1"]
    claims["prequential_epoch1_laplace"] = Claim(
        "between 1.5 times the code with a point and the maximised evidence",
        1.5 * exact, claims["full_ggn"].high,
    )  # fmt: skip
    for name, exact in expected.items():
        claims[name] = around(exact, _ROUNDING * abs(exact), "from the training curve")
    asked = {name: claims.get(name, Claim()) for name in names}
    return _rows("trial-linear", record, asked, (_N_FEATURES + 1, _N_DATA), seconds)


def trial_names(sampled: Sequence[str]) -> list[str]:
    """Return the estimators of the trial on digits."""
    return [name for name in SCORES if name not in (*CURVATURES, *sampled)]


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
    for name in _FOLDS:
        tasks = fold_tasks(name, order, assignment.plan)
        exact = sum(whole.conditional(t.trained, t.predicted) for t in tasks) / len(tasks)
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
