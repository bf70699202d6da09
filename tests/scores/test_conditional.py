"""Conditional evidence: a difference of Laplace evidences, hyperparameters of the early data."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lone_trials import assert_parking_changes_nothing, mlp_assignment, run
from torch import nn

from nas_evidence import estimate_evidence
from nas_evidence.data import load
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.evidence.exact_linear import mode_of_linear
from nas_evidence.scores.conditional import KIND, NAME, conditional_estimate
from nas_evidence.scores.laplace_scores import laplace_estimates
from nas_evidence.spec.record import EvidenceEstimate
from nas_evidence.spec.registry import SCORES
from nas_evidence.spec.study import Assignment, DatasetSpec
from nas_evidence.training.loop import Training, begin, train_epoch
from nas_evidence.training.online import passes_of
from nas_evidence.training.parts import new_run, order_of_data, part_of
from nas_evidence.workers.trial import Trial

NOISE_STD = 0.3
PRECISION = torch.tensor([0.5, 4.0], dtype=torch.float64)  # of weight and bias


def regression(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, dtype=torch.float64, generator=generator)
    y = x.sum(1, keepdim=True) + torch.randn(n, 1, dtype=torch.float64, generator=generator)
    return x, y


def with_bias(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, torch.ones_like(x[:, :1])], 1)


def at_mode(x: torch.Tensor, y: torch.Tensor) -> EvidenceEstimate:
    """The evidence of linear regression on some data, at the mode for them."""
    precision = PRECISION[torch.tensor([0, 0, 0, 1])]
    mode = mode_of_linear(with_bias(x), y, prior_precision=precision, noise_std=NOISE_STD)
    model = nn.Linear(3, 1).double()
    with torch.no_grad():
        model.weight.copy_(mode[:-1].T)
        model.bias.copy_(mode[-1])
    return estimate_evidence(
        model, x, y, likelihood="gaussian", curvature="full_ggn", prior_precision=PRECISION,
        noise_std=NOISE_STD,
    )  # fmt: skip


@pytest.mark.parametrize("n_early", [1, 2, 20])  # fewer and more than parameters
def test_on_linear_models_it_is_the_density_of_the_late_data_given_the_early_ones(
    n_early: int,
) -> None:
    x, y = regression(30, seed=n_early)
    found = conditional_estimate(
        at_mode(x[:n_early], y[:n_early]),
        at_mode(x, y),
        n_early=n_early,
        n_data=30,
        labels=False,
    )
    prior = torch.diag(1 / PRECISION[torch.tensor([0, 0, 0, 1])])
    phi = with_bias(x)
    covariance = phi @ prior @ phi.T + NOISE_STD**2 * torch.eye(30).double()
    early, late = slice(0, n_early), slice(n_early, 30)
    gain = covariance[late, early] @ covariance[early, early].inverse()
    truth = torch.distributions.MultivariateNormal(
        (gain @ y[early])[:, 0], covariance[late, late] - gain @ covariance[early, late]
    ).log_prob(y[late, 0])
    assert found.estimator == NAME
    assert found.relation == SCORES[found.estimator].relation == "EXACT_ON_LINEAR"
    assert found.value == pytest.approx(float(truth), rel=1e-8)
    assert found.per_datum == pytest.approx(float(truth) / (30 - n_early), rel=1e-8)


def estimate(value: float, **fields: object) -> EvidenceEstimate:
    return EvidenceEstimate.model_validate({"estimator": "full_ggn", "value": value} | fields)


def test_a_density_may_be_above_zero_and_a_probability_of_labels_may_not() -> None:
    early, whole = estimate(-50.0), estimate(-20.0)
    real, labels = (
        conditional_estimate(early, whole, n_early=10, n_data=40, labels=which)
        for which in (False, True)
    )
    assert (real.value, real.per_datum, real.valid) == (30.0, 1.0, True)
    assert not labels.valid
    assert "30 nats is above 0" in labels.note


def test_an_estimate_that_is_not_valid_makes_none() -> None:
    wrong = estimate(math.nan, valid=False, note="a parameter is not finite")
    found = conditional_estimate(estimate(-1.0), wrong, n_early=1, n_data=2, labels=True)
    assert (found.valid, found.note) == (False, "a parameter is not finite")


@pytest.mark.parametrize(("n_early", "n_data"), [(0, 5), (5, 5)])
def test_two_kinds_and_no_late_data_are_refused(n_early: int, n_data: int) -> None:
    one = estimate(-1.0)
    with pytest.raises(ValueError, match=f"full_ggn on {n_early} and full_ggn on {n_data}"):
        conditional_estimate(one, one, n_early=n_early, n_data=n_data, labels=True)
    with pytest.raises(ValueError, match="two estimates of one kind"):
        conditional_estimate(
            one,
            estimate(-1.0, estimator="diag_ggn"),
            n_early=1,
            n_data=2,
            labels=True,
        )


# --- through a trial


def assignment_of(**plan: object) -> Assignment:
    return mlp_assignment(NAME, **({"epochs": 4} | plan))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def data() -> TensorData:
    return to_tensors(load(DatasetSpec(name="digits", max_train=120, max_test=50), seed=0), "cpu")


def by_hand(given: Assignment, data: TensorData, folder: Path) -> float:
    """A lone trial on the first half, then epochs on all data at its hyperparameters.

    Those that it was trained with to its end: its parameters are at the mode for them, and not for
    what an update after the last epoch makes of them.
    """
    rows = order_of_data(120, given)[:60]
    seed = given.derived_seed("conditional")
    some = replace(data, x_train=data.x_train[rows], y_train=data.y_train[rows])
    alone = given.model_copy(update={"estimators": (), "seed": seed})
    first = Trial.start(alone, some, folder)
    first.advance(given.plan.epochs - 1)
    early = first.training
    assert early is not None
    train_epoch(early, some, alone)
    assert bool((early.prior_precision != 1).all())  # it has learned some, to be held
    whole: Training = begin(
        new_run(part_of(None, data, given, "conditional")).training.model, given.plan
    )
    whole.prior_precision, whole.temperature = early.prior_precision, early.temperature
    for _ in range(given.plan.epochs):
        train_epoch(whole, data, alone)
    ends = ((whole, data), (early, some))
    late, first_half = (laplace_estimates([KIND], passes_of(*end, alone))[0] for end in ends)
    return late.value - first_half.value


@pytest.mark.slow
def test_a_trial_gives_the_difference_of_two_trainings_at_one_set_of_hyperparameters(
    data: TensorData, tmp_path: Path
) -> None:
    given = assignment_of(epochs=12, learning_rate=0.05)
    record = run(given, data, tmp_path / "whole")
    found = record.final_estimate(NAME)
    assert found is not None
    assert found.value == pytest.approx(by_hand(given, data, tmp_path / "hand"), rel=1e-6)
    assert found.note.endswith("60 data after 60, hyperparameters of the early ones")
    assert {term.group for term in found.terms} == {"0-60", "0-120"}


@pytest.mark.slow
def test_late_labels_do_not_change_what_the_early_data_say(
    data: TensorData, tmp_path: Path
) -> None:
    given = assignment_of()
    late = order_of_data(120, given)[60:]
    labels = data.y_train.clone()
    labels[late] = (labels[late] + 1) % 10
    early = [
        {t.group: t.value for t in found.terms}
        for i, one in enumerate((data, replace(data, y_train=labels)))
        if (found := run(given, one, tmp_path / str(i)).final_estimate(NAME))
    ]
    assert early[0]["0-60"] == early[1]["0-60"]
    assert early[0]["0-120"] != early[1]["0-120"]


@pytest.mark.slow
@pytest.mark.parametrize("parked_after", [1, pytest.param(2, marks=pytest.mark.slow), 3,
                                          pytest.param(4, marks=pytest.mark.slow)])  # fmt: skip
def test_a_trial_parked_at_any_slice_ends_bit_identical(
    parked_after: int, data: TensorData, tmp_path: Path
) -> None:
    report = assert_parking_changes_nothing(
        (NAME,), assignment_of(), data, tmp_path, slices=parked_after
    )
    assert report.epoch == 0


def test_a_training_that_diverges_is_no_estimate_and_says_where(
    data: TensorData, tmp_path: Path
) -> None:
    given = assignment_of()
    inputs = data.x_train.clone()
    inputs[order_of_data(120, given)[90]] = 1e30  # among all data, not among the early ones
    trial = Trial.start(given, replace(data, x_train=inputs), tmp_path)
    for _ in range(3):
        trial.advance(2)
    found = [e.estimate for e in trial.finish().evaluations]
    assert [e.valid for e in found] == [False]
    assert "training on 120 data diverged" in found[0].note


@pytest.mark.slow
def test_real_targets_have_a_conditional_evidence_too(tmp_path: Path) -> None:
    data = to_tensors(load(DatasetSpec(name="diabetes", max_train=120), seed=0), "cpu")
    given = assignment_of(likelihood="gaussian", learning_rate=0.01, epochs=20)
    found = run(given, data, tmp_path).final_estimate(NAME)
    assert found is not None
    assert found.valid
    assert -2.5 < (found.per_datum or -math.inf) < 0
