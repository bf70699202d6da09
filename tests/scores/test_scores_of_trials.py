"""The scores that need training, in two short trials.

    trial          labels drawn by a coin: no score that predicts them can beat even odds; and
                   scores of the training curve, from the curve itself
    trial-linear   linear regression: predictive scores and evidences, against closed forms

In the second one every truth follows from the maximum over prior precisions and noise of the
evidence in closed form: of all data, what training of prior and noise must reach; of the data that
a predictive score has trained on, the density of those that it predicts.
"""

import math
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest
import scipy.optimize
import torch
from lone_trials import mlp_assignment, run
from lone_trials import run as followed_run
from records import asked, plain_study
from safetensors.torch import load_file
from torch import Tensor

from nas_evidence.audit.rows import Claim, around
from nas_evidence.data import load
from nas_evidence.data.tensors import to_tensors
from nas_evidence.driver.plan import plan_trials
from nas_evidence.evidence.exact_linear import log_evidence_of_linear
from nas_evidence.scores.folds import fold_tasks
from nas_evidence.scores.sotl import (
    SOTL_EPOCHS,
    SOTL_GAMMA,
    prequential_epoch1,
    sotl,
    sotl_e,
    sotl_ema,
)
from nas_evidence.spec.divisions import division_of
from nas_evidence.spec.record import TrialRecord
from nas_evidence.spec.registry import CURVATURES
from nas_evidence.spec.study import (
    ArchitectureSpec,
    Assignment,
    DatasetSpec,
    OnlinePlan,
    StudySpec,
    TrainingPlan,
    derive_seed,
)
from nas_evidence.training.parts import order_of_data

_ROUNDING = 1e-8  # relative
_N_DATA, _N_FEATURES, _NOISE = 160, 3, 0.4
_FOLDS = ("two_fold", "five_fold", "ten_fold", "heldout_10")
_N_COINS, _N_COIN_FEATURES = 160, 40
_MLP = {"depth": 1, "width": 16}
#: Nats above those of even odds that coins give with a probability of e^-8.
_LUCK = 8.0


def assert_all(record: TrialRecord, claims: dict[str, Claim]) -> None:
    for name, claim in claims.items():
        found = record.final_estimate(name)
        assert found is not None, name
        assert found.valid, (name, found.note)
        low, high = claim.low, claim.high
        assert low is None or found.value >= low, (name, claim.text, found.value, low)
        assert high is None or found.value <= high, (name, claim.text, found.value, high)


@pytest.mark.slow
def test_no_score_predicts_a_coin_and_those_of_the_curve_are_the_curve() -> None:
    """For a density Q of n labels drawn by a coin, log Q + n log 2 exceeds b with e^-b (Markov).

    A network that has seen the labels it predicts exceeds it by far. The number that are predicted
    correctly is binomial.
    """
    random = np.random.default_rng(derive_seed(0, "coins"))
    n = _N_COINS
    x = random.normal(size=(n + 10, _N_COIN_FEATURES)).astype(np.float32)
    y = random.integers(0, 2, size=len(x))
    plan = TrainingPlan(
        epochs=60, optimiser="adam", learning_rate=0.05, batch_size=16,
        prior_precision=0.1, online=OnlinePlan(every=20, curvature="diag_ggn"),
    )  # fmt: skip
    claims = coin_claims(n)
    record, _ = trained(x, y, n, plan, ArchitectureSpec(family="mlp", values=_MLP), claims)
    n_parameters = (_N_COIN_FEATURES + 1) * 16 + 17 * 2
    claims |= from_the_curve(record, n) | {"n_parameters": exactly(n_parameters)}
    assert_all(record, claims)


def test_half_of_the_labels_by_luck_is_not_within_the_limits_of_coins() -> None:
    """A network that knows its 80 labels gains 55 nats, one that knows 16 of them 11."""
    claim = coin_claims(160)["two_fold"]
    assert -80 * np.log(2) < claim.high < -64 * np.log(2)


@pytest.mark.slow
def test_scores_of_linear_regression_are_near_their_closed_forms() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(_N_DATA + 10, _N_FEATURES)).astype(np.float32)
    y = x @ np.array([1.0, -0.5, 0.25]) + 0.7 + _NOISE * random.normal(size=len(x))
    plan = TrainingPlan(
        likelihood="gaussian", epochs=30, learning_rate=0.05, batch_size=64, noise_std=0.8,
        prior_precision=0.5, online=OnlinePlan(every=10, curvature="block_ggn"),
    )  # fmt: skip
    names = (*CURVATURES, *_FOLDS, "conditional_evidence")
    record, given = trained(x, y, _N_DATA, plan, ArchitectureSpec(family="linear"), names)
    tensors = to_tensors(load(given.dataset, seed=0), "cpu")
    claims = linear_claims(tensors.x_train[:].double(), tensors.y_train.double(), given)
    claims |= from_the_curve(record, _N_DATA) | {"n_parameters": exactly(_N_FEATURES + 1)}
    assert_all(record, claims)


def coin_claims(n: int) -> dict[str, Claim]:
    """Return the limits of the scores that predict labels drawn by a coin, of `n` in all."""
    predicted = {
        "two_fold": n // 2, "five_fold": n // 5, "ten_fold": n // 10,
        "heldout_10": n - int(0.9 * n),
    }  # fmt: skip
    claims = {
        f"{name}_accuracy": around(0.5, 2 / math.sqrt(size), "4 errors of a coin")
        for name, size in predicted.items()
    }
    for name, size in predicted.items():
        fair = -size * math.log(2)
        claims[name] = Claim("no luck with coins; little worse than even", fair - 10, fair + _LUCK)
    high = _LUCK - n // 5 * math.log(2)
    return claims | {"conditional_evidence": Claim("no luck with coins", high=high)}


def linear_claims(x: Tensor, y: Tensor, assignment: Assignment) -> dict[str, Claim]:
    """Return what closed forms say of the scores of linear regression on x [n, d], y [n, 1]."""
    phi = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    whole, order = MaximisedEvidence(phi, y), order_of_data(len(x), assignment)
    claims = {
        name: around(whole.value, 1.0, "1 nat of the maximum: the features are independent")
        for name in CURVATURES
    }
    claims["full_ggn"] = Claim(
        "at most the maximum over prior and noise, and half a nat below it at most",
        whole.value - 0.5, whole.value + 1e-3,
    )  # fmt: skip
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


def exactly(value: float) -> Claim:
    return around(value, _ROUNDING * abs(value), "the definition")


def from_the_curve(record: TrialRecord, n_data: int) -> dict[str, Claim]:
    losses = [point.train_nll_per_datum for point in record.curve]
    weights = [SOTL_GAMMA ** (len(losses) - 1 - t) for t in range(len(losses))]
    exact = {
        "sotl": -sum(losses),
        "sotl_e": -sum(losses[-SOTL_EPOCHS:]),
        "sotl_ema": -sum(w * loss for w, loss in zip(weights, losses, strict=True)),
        "prequential_epoch1": -n_data * losses[0],
        "train_nll_per_datum": -losses[-1],
    }
    return {name: exactly(value) for name, value in exact.items()}


def trained(
    x: np.ndarray,
    y: np.ndarray,
    n: int,
    plan: TrainingPlan,
    architecture: ArchitectureSpec,
    estimators: Iterable[str],
) -> tuple[TrialRecord, Assignment]:
    """Return a trial of the first `n` rows, and its assignment."""
    path = Path(tempfile.mkdtemp()) / "rows.npz"
    np.savez(path, x_train=x[:n], y_train=y[:n], x_test=x[n:], y_test=y[n:])
    dataset = DatasetSpec(name="npz", path=str(path))
    given = asked(architecture, tuple(estimators), plan=plan, dataset=dataset)
    return run(given, to_tensors(load(given.dataset, seed=0), "cpu"), path.parent / "trial"), given


# --- scores that are followed: sums of losses at no cost, and Laplace scores of a pass each


KINDS = ("diag_ef", "kfac_ggn")


def epochs_of(record: TrialRecord, name: str) -> list[int]:
    return [e.epoch for e in record.evaluations if e.estimate.estimator == name]


def study(**keys: object) -> StudySpec:
    return plain_study(**{"estimators": ["diag_ef", "kfac_ggn", "two_fold"], **keys})


@pytest.mark.slow
def test_laplace_scores_are_taken_at_the_end_and_followed_ones_at_every_evaluation(
    tmp_path: Path,
) -> None:
    arrays = load(DatasetSpec(name="digits", max_train=48, max_test=20), seed=0)
    data = to_tensors(arrays, "cpu")
    plain = mlp_assignment(*KINDS, epochs=5, online={"every": 2})
    records = {
        name: followed_run(plain.model_copy(update={"followed": followed}), data, tmp_path / name)
        for name, followed in {"end": (), "one": ("diag_ef",), "all": KINDS}.items()
    }
    assert epochs_of(records["end"], "diag_ef") == epochs_of(records["end"], "kfac_ggn") == [5]
    assert epochs_of(records["one"], "diag_ef") == [2, 4, 5]
    assert epochs_of(records["one"], "kfac_ggn") == [5]
    assert epochs_of(records["all"], "kfac_ggn") == [2, 4, 5]
    assert epochs_of(records["end"], "sotl") == [2, 4, 5]  # free

    # What is followed changes neither the training, its best epoch, nor the scores at its end.
    ended, followed = records["end"], records["all"]
    assert (ended.best_epoch, ended.best_evidence) == (
        followed.best_epoch,
        followed.best_evidence,
    )
    for kind in KINDS:
        one, other = ended.final_estimate(kind), followed.final_estimate(kind)
        assert one.value == other.value
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("end", "all")]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][name], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("keys", "followed"),
    [
        ({}, ()),
        ({"curves": True}, ("diag_ef", "kfac_ggn", "two_fold")),
        ({"objective": "kfac_ggn"}, ()),
        ({"objective": "kfac_ggn", "pruning": {"rule": "halving"}}, ("kfac_ggn",)),
        ({"pruning": {"rule": "median", "score": "diag_ef"}}, ("diag_ef",)),
        ({"pruning": {"rule": "median", "score": "sotl"}}, ()),
    ],
)
def test_a_study_follows_what_it_prunes_by_or_all_scores_if_it_asks_for_curves(
    keys: dict[str, object], followed: tuple[str, ...]
) -> None:
    asked = study(**keys)
    assert asked.followed == followed
    planned = plan_trials([ArchitectureSpec(family="linear")], set(), asked)
    assert planned[0].followed == followed


LOSSES = [2.0, 1.0, 0.5, 0.25]


def test_hand_example() -> None:
    assert sotl(LOSSES) == 3.75
    assert sotl_e(LOSSES, 1) == 0.25
    assert sotl_e(LOSSES, 3) == 1.75
    assert sotl_ema(LOSSES, 0.5) == 0.25 + 0.5 * 0.5 + 0.25 * 1.0 + 0.125 * 2.0
    assert prequential_epoch1(LOSSES, 10) == 20.0


def test_all_epochs_counted_once_and_with_full_weight_give_sotl() -> None:
    assert sotl_e(LOSSES, len(LOSSES)) == sotl_e(LOSSES, 99) == sotl(LOSSES)
    assert sotl_ema(LOSSES, 1 - 1e-12) == pytest.approx(sotl(LOSSES))


def test_impossible_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="n_epochs >= 1"):
        sotl_e(LOSSES, 0)
    with pytest.raises(ValueError, match="gamma < 1"):
        sotl_ema(LOSSES, 1.0)
    with pytest.raises(ValueError, match="first epoch"):
        prequential_epoch1([], 3)
