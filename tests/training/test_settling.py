"""Settling: closed forms, brute force, what is kept, and resumption after every slice."""

import copy
import io
import math
import operator
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import reference
import torch
from lone_trials import tensors_of
from records import asked
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.testing import assert_close

from nas_evidence.curvature.products import LogJoint
from nas_evidence.data.tensors import TensorData
from nas_evidence.evidence.laplace import laplace_estimate
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.likelihoods.heteroscedastic import Heteroscedastic
from nas_evidence.models import build
from nas_evidence.spec.schedule import interval, stops
from nas_evidence.spec.study import ArchitectureSpec, Assignment, TrainingPlan
from nas_evidence.training import settling as module
from nas_evidence.training.checkpoint import restore, state_of
from nas_evidence.training.log_joints import LogJoints
from nas_evidence.training.loop import train_epoch
from nas_evidence.training.mode import (
    gradient_cost,
    log_joint,
    newton_decrement,
    parameters_of,
    preconditioner,
    write_parameters,
)
from nas_evidence.training.network import Network, begin
from nas_evidence.training.online import passes_of, rescaled_precision, update_and_follow
from nas_evidence.training.quasi_newton import Descent, History, Start, _direction, descend
from nas_evidence.training.settling import (
    CLOSER,
    NEAR_MODE,
    Settling,
    begin_settling,
    settle_slices,
)

pytestmark = pytest.mark.slow

EPOCHS = 6
FAMILIES = {
    "linear": {},
    "mlp": {"depth": 1, "width": 8},
    "cnn": {"depth": 1, "width": 2},
    "resnet": {"depth": 8, "width": 4},
}


def labels(images: bool = False) -> TensorData:
    random = torch.Generator().manual_seed(5)
    x = torch.randn(150, 36, generator=random)
    logits = x[:, :4] @ torch.randn(4, 3, generator=random) * 1.5
    y = (logits + torch.randn(150, 3, generator=random)).argmax(1)
    x = x.view(-1, 1, 6, 6) if images else x[:, :6]
    return tensors_of(x, y, 100, n_outputs=3)


def real() -> TensorData:
    random = torch.Generator().manual_seed(6)
    x = torch.randn(120, 5, generator=random)
    y = torch.sin(x) @ torch.randn(5, 2, generator=random)
    y += 0.3 * torch.randn(120, 2, generator=random)
    y = (y - y[:80].mean(0)) / y[:80].std(0)
    return tensors_of(x, y, 80)


def scheduled(data: TensorData, family: str = "mlp", **plan: object) -> tuple[Network, Assignment]:
    """A training after its last epoch."""
    given = {
        "likelihood": "gaussian" if data.task == "real" else "categorical",
        "epochs": EPOCHS, "batch_size": 16, "learning_rate": 0.02, "online": {"every": 2},
    } | plan  # fmt: skip
    assignment = asked(ArchitectureSpec(family=family, values=FAMILIES[family]), seed=3, **given)
    generator = torch.Generator().manual_seed(assignment.derived_seed("init"))
    model = build(assignment.architecture, data.input_shape, data.n_outputs, generator)
    training = begin(model, data, assignment.plan, assignment.seed, family=family)
    for stop in stops(assignment.plan):
        train_epoch(training, n_epochs=stop.epoch - training.epoch)
        update_and_follow(training, due=stop.update)
    return training, assignment


def settled(
    training: Network, data: TensorData, assignment: Assignment, budget: float = EPOCHS
) -> Settling:
    settling = begin_settling(training, budget)
    for _ in range(500):
        if settle_slices([training])[0]:
            return settling
    raise AssertionError("the settling does not end")


def test_where_nobody_asks_for_the_decrement_the_same_state_is_kept_without_it() -> None:
    data, kept = real(), []
    for reported in (True, False):
        training, _ = scheduled(data)
        settling = begin_settling(training, EPOCHS)
        settling.reported = reported
        while not settle_slices([training])[0]:
            pass
        assert (settling.decrement_per_datum is not None) is reported
        kept.append((flat(training.model), training.prior_precision, settling.kept))
    (theta, precision, state), again = kept
    assert torch.equal(theta, again[0])
    assert torch.equal(precision, again[1])
    assert state == again[2]


def each(training: Network) -> Tensor:
    sizes = torch.tensor([p.numel() for p in training.model.parameters()])
    return training.prior_precision.repeat_interleave(sizes)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().double().flatten() for p in model.parameters()])


def dense_decrement(training: Network, data: TensorData, plan: TrainingPlan) -> float:
    """By the slow definition, in float64."""
    model = copy.deepcopy(training.model).double().eval()
    x = data.x_train.double()
    noise = training.likelihood.each_scale if data.task == "real" else None
    y = data.y_train.double() if data.task == "real" else data.y_train
    power, precision = plan.likelihood_power, each(training)
    residual = reference.output_residual(model(x).detach(), y, noise)
    slope = torch.einsum("ncp,nc->p", reference.jacobian(model, x), residual)
    gradient = precision * flat(model) - power * slope
    matrix = power * reference.full_ggn(model, x, noise) + torch.diag(precision)
    return float(gradient @ torch.linalg.solve(matrix, gradient))


@pytest.mark.crossed
@pytest.mark.parametrize("task", ["labels", "real"])
@pytest.mark.parametrize("power", [1.0, 0.4])
def test_the_decrement_matches_the_dense_one(task: str, power: float) -> None:
    data = labels() if task == "labels" else real()
    training, assignment = scheduled(data, likelihood_power=power)
    expected = dense_decrement(training, data, assignment.plan)
    found, n_products = newton_decrement(training)
    # From below, and complete to about 1 % where the iteration ends by its own rule.
    assert 0.97 * expected < found <= expected * (1 + 1e-6)
    assert 0 < n_products < 100


def test_settling_lowers_the_decrement_and_keeps_the_better_state() -> None:
    for data in (labels(), real()):
        training, assignment = scheduled(data)
        before = dense_decrement(training, data, assignment.plan)
        settling = settled(training, data, assignment, 8 * EPOCHS)
        assert settling.kept == "settled"
        assert settling.evidence > settling.scheduled_evidence
        after = dense_decrement(training, data, assignment.plan)
        limit = max(NEAR_MODE * len(data.x_train), CLOSER * before)
        assert after <= 1.03 * limit < before
        assert settling.decrement_per_datum == pytest.approx(after / len(data.x_train), rel=0.03)
        assert settling.seconds > 0


def test_a_state_half_way_to_a_mode_is_not_kept_though_it_has_more_evidence() -> None:
    """Its evidence says little of it: on images the log loss of such networks doubled."""
    data = labels()
    training, assignment = scheduled(data)
    before = flat(training.model)
    settling = settled(training, data, assignment, 1)  # an epoch
    assert settling.first_evidence > settling.scheduled_evidence
    half_way = copy.deepcopy(training)
    write_parameters(half_way, settling.first)
    assert dense_decrement(half_way, data, assignment.plan) > NEAR_MODE * len(before)
    assert (settling.kept, settling.converged) == ("scheduled", False)
    assert torch.equal(flat(training.model), before)


@pytest.mark.parametrize("family", ["cnn", pytest.param("resnet", marks=pytest.mark.slow)])
def test_images_settle_with_fixup_scalars_and_convolutions(family: str) -> None:
    data = labels(images=True)
    training, assignment = scheduled(data, family)
    joint = log_joint(training, double=True)
    before = joint.value(flat(training.model))
    settling = settled(training, data, assignment)
    assert settling.first is not None
    # At one and the same hyperparameters; a few epochs have left both networks untrained.
    assert joint.value(settling.first) < 0.9 * before
    if settling.kept == "settled":
        assert settling.evidence >= settling.scheduled_evidence


def test_a_linear_network_settles_at_ridge_regression() -> None:
    data = real()
    training, assignment = scheduled(data, "linear")
    settling = settled(training, data, assignment)
    assert settling.converged
    assert settling.kept == "settled"
    model = copy.deepcopy(training.model).double()
    x = torch.cat([data.x_train.double(), torch.ones(80, 1)], 1)
    ridge = []
    for noise, y in zip(training.likelihood.each_scale, data.y_train.double().mT, strict=True):
        weight, bias = training.prior_precision * noise**2
        prior = torch.diag(torch.cat([weight.expand(5), bias[None]]))
        ridge.append(torch.linalg.solve(x.mT @ x + prior, x.mT @ y))
    found = torch.cat([model.head.weight, model.head.bias[:, None]], 1).mT
    # The tolerance of 1e-6 nats per datum, by the curvature of 80 data.
    assert_close(found.detach(), torch.stack(ridge, 1), atol=2e-3, rtol=0)
    assert dense_decrement(training, data, assignment.plan) < 80e-6


@pytest.mark.parametrize("seed", range(4))
def test_a_linear_network_settles_without_noise(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(120, 5, generator=random)
    y = x @ torch.randn(5, 1, generator=random) + 0.3
    y = (y - y.mean()) / y.std()
    data = tensors_of(x, y, 100)
    training, assignment = scheduled(data, "linear")
    settling = settled(training, data, assignment)
    assert training.noise_std < 1e-6
    assert settling.converged
    assert settling.work < 0.2 * settling.budget
    assert newton_decrement(training, theta=settling.theta)[0] < 100e-6
    # The network that is kept holds these parameters as exactly as float32 can.
    assert torch.equal(flat(training.model), settling.theta.float().double())


@pytest.mark.crossed
@pytest.mark.parametrize("every", ["never", EPOCHS + 1])
@pytest.mark.parametrize("task", ["real", "labels"])
def test_nothing_is_settled_at_hyperparameters_that_never_moved(
    every: str | int, task: str
) -> None:
    data = real() if task == "real" else labels()
    training, assignment = scheduled(data, "linear", online={"every": every})
    settling = settled(training, data, assignment)
    assert settling.decrement_per_datum < 1e-6
    assert torch.equal(training.prior_precision, torch.ones(2).double())
    assert training.noise_std == 1.0
    assert not settling.converged


def test_a_linear_network_settles_at_logistic_regression() -> None:
    data = labels()
    training, assignment = scheduled(data, "linear", online={"every": 2, "burn_in": EPOCHS})
    settling = settled(training, data, assignment, 0.5)  # epochs: too few but for convexity
    assert settling.kept == "settled"
    assert not settling.converged  # the hyperparameters never moved
    assert torch.equal(training.prior_precision, torch.ones(2).double())
    # sklearn leaves the intercept free: take it for a feature of its own.
    x = np.hstack([data.x_train.numpy(), np.ones((100, 1), np.float32)])
    fit = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-10, max_iter=5000)
    fit.fit(x, data.y_train.numpy())
    found = torch.cat([training.model.head.weight, training.model.head.bias[:, None]], 1)
    assert_close(found.detach().double(), torch.from_numpy(fit.coef_).double(), atol=5e-3, rtol=0)


def test_a_linear_network_settles_also_where_that_has_less_evidence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = labels()
    training, assignment = scheduled(data, "linear")
    precision = training.prior_precision.clone()
    monkeypatch.setattr(module, "_evidence_of", _falling())
    settling = settled(training, data, assignment)
    assert (settling.kept, settling.converged) == ("settled", True)
    # Of the two modes that with the hyperparameters of the schedule has more.
    assert torch.equal(training.prior_precision, precision)
    assert dense_decrement(training, data, assignment.plan) < 1e-6 * 100 * 1.1


def test_the_mode_at_the_scheduled_hyperparameters_is_no_candidate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They were learned at no mode: on most sets of labels the log loss rose there."""
    data = real()
    training, assignment = scheduled(data)
    noise = training.noise_std
    found = iter((1.0, 2.0))  # scheduled, first mode; then all others
    monkeypatch.setattr(module, "_evidence_of", lambda *_: next(found, 1.5))
    monkeypatch.setattr(module, "_may_be_in_vain", lambda *_: False)
    monkeypatch.setattr(module, "TRIAL_FALLS", ())
    settling = settled(training, data, assignment, 6 * EPOCHS)
    assert settling.rounds > 0
    assert (settling.kept, settling.evidence, settling.first_evidence) == ("settled", 1.5, 2.0)
    assert training.noise_std != noise


@pytest.mark.parametrize(
    ("lost", "rounds"),
    [((0.21,), 0), ((0.1, 0.13), 0), ((0.1, 0.11), 1), ((0.15, 0.1), 1), ((-0.1, -0.05), 1)],
    ids=["a fifth of a nat", "twice", "once", "and rises again", "from more than it had"],
)
def test_settling_of_real_targets_ends_where_the_way_to_a_mode_loses_evidence(
    monkeypatch: pytest.MonkeyPatch, lost: tuple[float, ...], rounds: int
) -> None:
    data = real()
    training, assignment = scheduled(data)
    n_data = len(data.x_train)
    monkeypatch.setattr(module, "TRIAL_FALLS", ())
    found = iter((0.0, *lost))  # scheduled; then the way to the mode
    monkeypatch.setattr(module, "_evidence_of", lambda *_: -n_data * next(found, 0.04))
    settling = settled(training, data, assignment, 6 * EPOCHS)
    assert min(settling.rounds, 1) == rounds
    assert settling.kept == "scheduled"
    assert (settling.work < 3 * EPOCHS) == (rounds == 0)


@pytest.mark.parametrize(
    ("lost", "slices"),
    [((0.21,), 1), ((0.19, 0.11), 2), ((0.19, 0.09, 0.03), 3)],
    ids=["first", "second", "third"],
)
def test_a_trial_that_falls_too_far_leaves_the_scheduled_state(
    monkeypatch: pytest.MonkeyPatch, lost: tuple[float, ...], slices: int
) -> None:
    data = real()
    training, _ = scheduled(data)
    before, hyper = flat(training.model), training.hyper
    found = iter((0.0, *lost))  # scheduled; then the rounds of the trial
    monkeypatch.setattr(module, "_evidence_of", lambda *_: -len(data.x_train) * next(found))
    settling = begin_settling(training, 6 * EPOCHS)
    ends = [settle_slices([training])[0] for _ in range(slices)]
    assert ends == [False] * (slices - 1) + [True]
    assert (settling.kept, settling.rounds) == ("scheduled", 0)
    assert torch.equal(flat(training.model), before)
    assert torch.equal(training.prior_precision, hyper.precision)
    assert training.noise_std == hyper.scale


def test_a_settling_after_its_trial_ends_as_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    data, ends = real(), []
    for falls in ((math.inf,) * 3, ()):
        monkeypatch.setattr(module, "TRIAL_FALLS", falls)
        training, assignment = scheduled(data)
        settling = settled(training, data, assignment, 2 * EPOCHS)
        ends.append((settling.theta, flat(training.model), training.prior_precision))
        ends[-1] += (torch.tensor([settling.evidence, settling.work, settling.rounds]),)
    for one, other in zip(*ends, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("family", "task", "plan"),
    [
        ("linear", "real", {}),
        ("mlp", "labels", {}),
        ("mlp", "real", {"online": {"every": "never"}}),
    ],
    ids=["a convex loss", "labels", "hyperparameters that never move"],
)
def test_no_trial_of(family: str, task: str, plan: dict[str, object]) -> None:
    training, _ = scheduled(real() if task == "real" else labels(), family, **plan)
    assert begin_settling(training, EPOCHS).trial == 0


def test_real_targets_keep_a_settled_state_of_more_evidence_however_far_from_a_mode() -> None:
    data = real()
    training, assignment = scheduled(data)
    settling = settled(training, data, assignment, 2 * EPOCHS)
    assert settling.rounds > 0
    more = settling.evidence > settling.scheduled_evidence
    assert settling.kept == ("settled" if more else "scheduled")


def test_nothing_moves_at_a_mode() -> None:
    data = real()
    training, assignment = scheduled(data, "linear")
    settled(training, data, assignment)
    mode = flat(training.model)
    again = settled(training, data, assignment)
    assert again.converged
    # Half the tolerance in the hyperparameters still moves the mode a little.
    assert_close(flat(training.model), mode, atol=3e-3, rtol=0)


@pytest.mark.parametrize("task", ["labels", "real"])
def test_a_settling_that_resumes_after_every_slice_ends_bit_by_bit_the_same(task: str) -> None:
    data = labels() if task == "labels" else real()
    training, assignment = scheduled(data)
    other = copy.deepcopy(training)
    undisturbed = settled(training, data, assignment, 8 * EPOCHS)
    assert undisturbed.rounds > 1
    begin_settling(other, 8 * EPOCHS)
    done = False
    while not done:
        done = settle_slices([other])[0]
        file = io.BytesIO()
        torch.save(state_of(other), file)
        file.seek(0)
        restore(other, torch.load(file, weights_only=True))
    found, expected = (state_of(one)["settling"] for one in (other, training))
    for name in expected.keys() - {"seconds", "scheduled", "history"}:
        same = torch.equal if isinstance(expected[name], Tensor) else operator.eq
        assert same(found[name], expected[name]), name
    assert torch.equal(flat(other.model), flat(training.model))
    assert torch.equal(other.prior_precision, training.prior_precision)
    assert other.noise_std == training.noise_std


def test_the_scheduled_state_is_kept_until_the_settling_ends() -> None:
    data = labels()
    training, _ = scheduled(data)
    before, precision = flat(training.model), training.prior_precision.clone()
    settling = begin_settling(training, 8 * EPOCHS)
    mode = training.model.training
    while not settle_slices([training])[0]:
        assert torch.equal(settling.scheduled.theta, before)
        assert torch.equal(settling.scheduled.hyper.precision, precision)
        assert training.model.training is mode
    assert not torch.equal(flat(training.model), before)


def test_a_state_of_less_evidence_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    data = labels()
    training, assignment = scheduled(data)
    before, precision = flat(training.model), training.prior_precision.clone()
    expected = dense_decrement(training, data, assignment.plan) / len(data.x_train)
    monkeypatch.setattr(module, "_evidence_of", _falling())
    settling = settled(training, data, assignment)
    assert settling.kept == "scheduled"
    assert not settling.converged
    assert torch.equal(flat(training.model), before)
    assert torch.equal(training.prior_precision, precision)
    assert settling.decrement_per_datum == pytest.approx(expected, rel=0.03)


def _falling():
    values = iter(range(0, -1000, -1))
    return lambda *_: float(next(values))


def test_a_state_that_is_not_finite_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = labels()
    training, assignment = scheduled(data)
    before = flat(training.model)

    def broken(losses, starts):
        return {
            k: Descent(start.theta * math.nan, start.history, 1, False, 0.0)
            for k, start in starts.items()
        }

    monkeypatch.setattr(module, "descend", broken)
    settling = settled(training, data, assignment)
    assert settling.kept == "scheduled"
    assert settling.evidence is None
    assert torch.equal(flat(training.model), before)


def test_no_budget_changes_nothing() -> None:
    data = labels()
    training, _ = scheduled(data)
    before = flat(training.model)
    settling = begin_settling(training, 0.0)
    assert settle_slices([training])[0]
    assert (settling.kept, settling.converged) == ("scheduled", False)
    assert settling.decrement_per_datum is None
    assert torch.equal(flat(training.model), before)


def test_the_work_stays_within_the_budget_but_for_one_round() -> None:
    data = labels()
    training, assignment = scheduled(data)
    cost = gradient_cost(training)
    assert 0 < cost <= 1
    settling = settled(training, data, assignment, 3.0)
    # A round may end a line search and test a decrement beyond it.
    assert settling.work < 3.0 + interval(assignment.plan) + 100 * cost


def test_the_ratios_of_precisions_come_to_rest_where_free_ones_drift() -> None:
    data = labels()
    training, _ = scheduled(data)
    settling = begin_settling(training, 60.0)
    last = training.prior_precision
    while not settle_slices([training])[0]:
        if settling.rounds > 1:
            ratio = training.prior_precision / last
            assert_close(ratio, ratio[:1].expand_as(ratio))
        last = training.prior_precision
    assert settling.moved < module.MOVE_TOLERANCE


def test_one_factor_has_most_evidence_among_all_factors() -> None:
    data = labels()
    online = {"every": 2, "curvature": "diag_ggn"}
    training, _ = scheduled(data, online=online)
    passes, start = passes_of(training), training.prior_precision * 3
    pass_ = passes.of("diag_ggn")[0]

    def evidence(precision: Tensor) -> float:
        return laplace_estimate("diag_ggn", pass_, training.model, precision).value

    best = rescaled_precision(start, passes)
    ratio = best / start
    assert_close(ratio, ratio[:1].expand_as(ratio))
    for factor in (0.5, 0.98, 1.02, 2.0):
        assert evidence(factor * best) < evidence(best)


def test_nothing_settles_above_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    data = labels()
    training, assignment = scheduled(data)
    before = flat(training.model)
    for above in (True, False):
        limit = len(data.x_train) * len(before) - above
        monkeypatch.setattr(module, "FULL_BATCH", limit)
        settling = settled(training, data, assignment, 8 * EPOCHS)
        assert (settling.rounds == 0) == above
        assert torch.equal(flat(training.model), before) == above


def test_descent_finds_the_minimum_of_a_quadratic_and_survives_new_hyperparameters() -> None:
    random = torch.Generator().manual_seed(0)
    root = torch.randn(12, 12, generator=random).double()
    matrix, target = root @ root.mT, torch.randn(12, generator=random).double()

    class Quadratic:
        def __init__(self, scale: float, precision: Tensor) -> None:
            self.matrix = scale * matrix + torch.diag(precision)
            self.slope = scale * target

        def values(self, at: Mapping[int, Tensor]) -> dict[int, float]:
            return {k: value for k, (value, _) in self.gradients(at).items()}

        def gradients(self, at: Mapping[int, Tensor]) -> dict[int, tuple[float, Tensor]]:
            found = {k: self.matrix @ theta - self.slope for k, theta in at.items()}
            return {
                k: (float(0.5 * at[k] @ (gradient - self.slope)), gradient)
                for k, gradient in found.items()
            }

    theta, history = torch.zeros(12).double(), History.none(torch.zeros(12).double())
    used = []
    for scale, delta in ((1.0, 0.1), (1.3, 0.2)):
        precision = torch.full((12,), delta).double()
        loss = Quadratic(scale, precision)
        start = Start(
            theta, history, lambda v: v / 10, precision=precision,
            likelihood_scale=scale, n_gradients=200, small_slope=1e-14,
        )  # fmt: skip
        found = descend(loss, {7: start})[7]
        theta, history = found.theta, found.history
        used.append(found.n_gradients)
        assert_close(theta, torch.linalg.solve(loss.matrix, loss.slope), atol=1e-6, rtol=0)
    # Updates at other hyperparameters still tell the curvature.
    assert used[1] < used[0]


# --- when a settled state is near enough to a mode, and the unit of what a descent remembers


@pytest.mark.parametrize(
    ("scheduled", "candidate", "is_near"),
    [
        (5.0, 0.9 * NEAR_MODE, True),  # per datum: near a mode,
        (5.0, 0.9 * CLOSER * 5.0, True),  # or much nearer than before:
        (0.2, 0.9 * NEAR_MODE, True),  # one of both is enough
        (5.0, 1.1 * CLOSER * 5.0, False),
        (0.2, 1.1 * NEAR_MODE, False),
    ],
)
def test_one_of_two_limits_makes_a_settled_state_near_enough_to_a_mode(
    scheduled: float, candidate: float, is_near: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 50
    monkeypatch.setattr(module, "newton_decrement", lambda *_, **__: (n * candidate, 5))
    settling = SimpleNamespace(scheduled_decrement=n * scheduled, budget=1.0, cost=0.1)
    data = SimpleNamespace(x_train=torch.zeros(n, 1))
    network = SimpleNamespace(settling=settling, data=data)
    found = module._decrement_near_a_mode(cast(Network, network))
    assert (found is not None) is is_near


@pytest.mark.parametrize("noise_std", [0.2, 3.0])
def test_a_descent_remembers_the_curvature_of_squares_whatever_the_noise(
    noise_std: float,
) -> None:
    """For a linear network Σ x xᵀ times each step, so that a later noise can use it."""
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, 3, generator=random), torch.randn(30, 1, generator=random)
    data = tensors_of(x, y)
    given = asked(
        ArchitectureSpec(family="linear", values={}), likelihood="gaussian", epochs=2,
        online={"every": 2},
    )  # fmt: skip
    training = begin(build(given.architecture, (3,), 1, random), data, given.plan, given.seed)
    training.hyper = replace(training.hyper, scale=noise_std)
    module.begin_settling(training, 1.0)
    joint, start = module._begin_descent(training, preconditioner(training))
    found = descend(LogJoints({0: joint}), {0: start})[0].history
    assert len(found.steps) >= 1
    inputs = torch.cat([x, torch.ones(30, 1)], 1).double()  # weights, then the bias
    expected = found.steps.double() @ (inputs.T @ inputs)
    torch.testing.assert_close(found.changes.double(), expected, rtol=2e-2, atol=1e-3)


# --- networks that settle side by side: the same losses and modes, and none disturbs another


FEW_EPOCHS = 4
SIZES = (60, 41, 60)
POWER = 0.7


def data_of(task: str, n: int, seed: int) -> TensorData:
    random = torch.Generator().manual_seed(seed)
    x, way = torch.randn(n, 5, generator=random), torch.randn(5, 3, generator=random)
    y = x @ way + 0.5 * torch.randn(n, 3, generator=random)
    y = y.argmax(1) if task == "labels" else y / y.std(0)
    return tensors_of(x, y, n_outputs=3)


def joints_of(task: str, values: dict[str, int], dtype: torch.dtype) -> dict[int, LogJoint]:
    """Log joints of different data, hyperparameters and numbers of rows."""
    found = {}
    for k, n in enumerate(SIZES):
        random = torch.Generator().manual_seed(k)
        width = 6 if task == "pairs" else 3
        architecture = ArchitectureSpec(family="mlp", values=values)
        model = build(architecture, (5,), width, random).to(dtype)
        p = sum(parameter.numel() for parameter in model.parameters())
        data, spread = data_of(task, n, k), 0.4 + 0.3 * k
        likelihood = {
            "real": Gaussian(spread), "labels": Categorical(spread), "pairs": Heteroscedastic(),
        }[task]  # fmt: skip
        precision = torch.rand(p, generator=random, dtype=torch.float64)
        found[k] = LogJoint(
            model, data.x_train, data.y_train, likelihood, precision, POWER, rows=25
        )
    return found


@pytest.mark.parametrize("task", ["labels", "real", "pairs"])
@pytest.mark.parametrize("members", [(0, 1, 2), (1, 2), (1,)])
def test_losses_and_gradients_side_by_side_are_those_of_each_alone(
    task: str, members: tuple[int, ...]
) -> None:
    joints = joints_of(task, {"depth": 2, "width": 7}, torch.float64)
    random = torch.Generator().manual_seed(9)
    at = {
        k: torch.randn(len(joints[k].precision), generator=random, dtype=torch.float64)
        for k in members
    }
    all_of_them = LogJoints(joints)
    found, values = all_of_them.gradients(at), all_of_them.values(at)
    assert tuple(found) == tuple(values) == members
    for k, (value, gradient) in found.items():
        right, slope = joints[k].value_and_gradient(at[k])
        assert math.isclose(value, right, rel_tol=1e-12)
        assert math.isclose(values[k], right, rel_tol=1e-12)
        assert_close(gradient, slope, atol=1e-10, rtol=1e-10)


def settler_of(task: str, k: int, family: str = "mlp") -> Network:
    """A network after its schedule, about to settle."""
    data = data_of(task, SIZES[k], 20 + k)
    plan = TrainingPlan.model_validate({
        "likelihood": "gaussian" if task == "real" else "categorical",
        "epochs": FEW_EPOCHS, "batch_size": 16, "learning_rate": 0.02, "online": {"every": 2},
    })  # fmt: skip
    values = {"depth": 1, "width": 6} if family == "mlp" else {}
    given = asked(ArchitectureSpec(family=family, values=values), seed=k, plan=plan)
    model = build(given.architecture, (5,), 3, torch.Generator().manual_seed(k))
    training = begin(model, data, plan, given.seed, family=family)
    for stop in stops(plan):
        train_epoch(training, n_epochs=stop.epoch - training.epoch)
        update_and_follow(training, due=stop.update)
    begin_settling(training, 8.0 * FEW_EPOCHS)
    return training


def settled_together(settlers: list[Network], *, resume: bool = False) -> list[Tensor]:
    """Settle side by side to the end; return θ of each."""
    left = dict(enumerate(settlers))
    while left:
        done = settle_slices(list(left.values()))
        for (k, one), over in zip(list(left.items()), done, strict=True):
            if resume:
                restore(one, copy.deepcopy(state_of(one)))
            if over:
                del left[k]
    return [parameters_of(one) for one in settlers]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["labels", "real"])
def test_linear_networks_side_by_side_settle_where_each_would_alone(task: str) -> None:
    together = settled_together([settler_of(task, k, "linear") for k in range(3)])
    for k, theta in enumerate(together):
        alone = settled_together([settler_of(task, k, "linear")])[0]
        assert_close(theta, alone, atol=2e-3, rtol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["labels", "real"])
def test_a_group_that_resumes_after_every_slice_ends_bit_by_bit_the_same(task: str) -> None:
    whole = settled_together([settler_of(task, k) for k in range(3)])
    resumed = settled_together([settler_of(task, k) for k in range(3)], resume=True)
    assert all(torch.equal(a, b) for a, b in zip(whole, resumed, strict=True))


@pytest.mark.slow
def test_one_that_is_not_finite_keeps_its_schedule_and_disturbs_no_other() -> None:
    settlers = [settler_of("real", k) for k in range(3)]
    broken = settlers[1].settling
    broken.scheduled_evidence = -math.inf
    with torch.no_grad():
        next(settlers[1].model.parameters()).fill_(math.nan)
    assert settle_slices(settlers) == [False, True, False]
    assert (broken.kept, broken.evidence) == ("scheduled", None)
    assert all(bool(one.settling.theta.isfinite().all()) for one in (settlers[0], settlers[2]))


@pytest.mark.slow
def test_a_network_that_gets_stuck_in_float32_descends_once_in_a_slice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    descended: list[int] = []

    def stuck(losses: LogJoints, starts: Mapping[int, Start]) -> dict[int, Descent]:
        descended.extend(starts)
        return {k: Descent(s.theta, s.history, 1, True, math.inf) for k, s in starts.items()}

    monkeypatch.setattr(module, "descend", stuck)
    settlers = [settler_of("real", k) for k in range(3)]
    settlers[1].settling.double = True
    settle_slices(settlers)
    assert sorted(descended) == [0, 1, 2]
    assert all(one.settling.double for one in settlers)


# --- the direction of L-BFGS


P = 6


def problem(n_updates: int, seed: int) -> tuple[Tensor, Start]:
    """A gradient, and updates of a quadratic loss c y₁ + D s; the preconditioner is wrong."""
    g = torch.Generator().manual_seed(seed)
    root = torch.randn(P, P, generator=g, dtype=torch.float64)
    precision = torch.rand(P, generator=g, dtype=torch.float64) + 0.1
    steps = torch.randn(n_updates, P, generator=g, dtype=torch.float64)
    gradient = torch.randn(P, generator=g, dtype=torch.float64)
    diagonal = torch.rand(P, generator=g, dtype=torch.float64) + 0.1
    history = History(steps, steps @ root @ root.T)
    start = Start(steps[0], history, lambda v: v / diagonal, precision, 0.7, 10, 0.0)
    return gradient, start


def inverse_hessian(start: Start) -> Tensor:
    """The matrix B [P, P] of the BFGS updates of the preconditioner, one pair after the other."""
    eye = torch.eye(P, dtype=torch.float64)
    b = torch.stack([start.precondition(column) for column in eye], 1)
    for step, change in zip(start.history.steps, start.history.changes, strict=True):
        y = start.likelihood_scale * change + start.precision * step
        if (curvature := float(step @ y)) > 0:
            left = eye - torch.outer(step, y) / curvature
            b = left @ b @ left.T + torch.outer(step, step) / curvature
    return b


@pytest.mark.parametrize("n_updates", [1, 2, 5])
@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_product_with_the_matrix_of_the_bfgs_updates(n_updates: int, seed: int) -> None:
    gradient, start = problem(n_updates, seed)
    expected = inverse_hessian(start) @ gradient
    assert_close(_direction(gradient, start.history, start), expected, rtol=1e-9, atol=1e-9)


def test_a_pair_of_negative_curvature_is_left_out() -> None:
    gradient, start = problem(4, 0)
    changes = start.history.changes.clone()
    changes[2] = -10 * changes[2]
    start = Start(**{**vars(start), "history": History(start.history.steps, changes)})
    expected = inverse_hessian(start) @ gradient
    assert_close(_direction(gradient, start.history, start), expected, rtol=1e-9, atol=1e-9)


def test_the_newest_change_of_the_gradient_gives_the_newest_step() -> None:
    _, start = problem(3, 1)
    step, change = start.history.steps[-1], start.history.changes[-1]
    newest = start.likelihood_scale * change + start.precision * step
    assert_close(_direction(newest, start.history, start), step, rtol=1e-9, atol=1e-9)


def test_without_pairs_it_is_that_of_the_preconditioner() -> None:
    gradient, start = problem(1, 2)
    none = History.none(gradient)
    assert_close(_direction(gradient, none, start), start.precondition(gradient))


class Quadratic:
    """½ θᵀ (2 K + D) θ, with K the curvature of the likelihood at unit noise and c = 2."""

    def __init__(self, hessian: Tensor) -> None:
        self.hessian = hessian

    def values(self, at: Mapping[int, Tensor]) -> dict[int, float]:
        return {k: 0.5 * float(theta @ self.hessian @ theta) for k, theta in at.items()}

    def gradients(self, at: Mapping[int, Tensor]) -> dict[int, tuple[float, Tensor]]:
        return {k: (self.values(at)[k], self.hessian @ theta) for k, theta in at.items()}


def test_pairs_keep_the_part_of_the_likelihood_alone() -> None:
    """So they stay true when the prior changes."""
    curvature, prior = torch.diag(torch.tensor([1.0, 5.0])).double(), torch.tensor([3.0, 0.5])
    prior = prior.double()
    losses = Quadratic(2 * curvature + torch.diag(prior))
    theta = torch.ones(2).double()
    start = Start(theta, History.none(theta), lambda v: v / 10, prior, 2.0, 5, 0.0)
    history = descend(losses, {0: start})[0].history
    assert len(history.steps) >= 2
    assert_close(history.changes, history.steps @ curvature)


def test_a_step_that_raises_the_loss_a_little_is_not_taken() -> None:
    """The first step overshoots from 1 to -1.0001."""
    losses, theta = Quadratic(torch.eye(1).double()), torch.ones(1).double()
    start = Start(theta, History.none(theta), lambda v: 2.0001 * v, theta, 1.0, 2, 0.0)
    found = descend(losses, {0: start})[0]
    assert abs(float(found.theta)) < 0.1
