"""Networks that settle side by side: the same losses and modes, and none disturbs another."""

import copy
import math
from collections.abc import Mapping

import pytest
import torch
from lone_trials import tensors_of
from records import asked
from torch import Tensor
from torch.testing import assert_close

from nas_evidence.curvature.products import LogJoint
from nas_evidence.data.tensors import TensorData
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.likelihoods.heteroscedastic import Heteroscedastic
from nas_evidence.models import build
from nas_evidence.spec.schedule import stops
from nas_evidence.spec.study import ArchitectureSpec, TrainingPlan
from nas_evidence.training import settling as module
from nas_evidence.training.checkpoint import restore, state_of
from nas_evidence.training.log_joints import LogJoints
from nas_evidence.training.loop import train_epoch
from nas_evidence.training.mode import parameters_of
from nas_evidence.training.network import Network, begin
from nas_evidence.training.online import update_and_follow
from nas_evidence.training.quasi_newton import Descent, Start
from nas_evidence.training.settling import (
    begin_settling,
    settle_slices,
)

EPOCHS = 4
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
        "epochs": EPOCHS, "batch_size": 16, "learning_rate": 0.02, "online": {"every": 2},
    })  # fmt: skip
    values = {"depth": 1, "width": 6} if family == "mlp" else {}
    given = asked(ArchitectureSpec(family=family, values=values), seed=k, plan=plan)
    model = build(given.architecture, (5,), 3, torch.Generator().manual_seed(k))
    training = begin(model, data, plan, given.seed, family=family)
    for stop in stops(plan):
        train_epoch(training, n_epochs=stop.epoch - training.epoch)
        update_and_follow(training, due=stop.update)
    begin_settling(training, 8.0 * EPOCHS)
    return training


def settled(settlers: list[Network], *, resume: bool = False) -> list[Tensor]:
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
    together = settled([settler_of(task, k, "linear") for k in range(3)])
    for k, theta in enumerate(together):
        alone = settled([settler_of(task, k, "linear")])[0]
        assert_close(theta, alone, atol=2e-3, rtol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["labels", "real"])
def test_a_group_that_resumes_after_every_slice_ends_bit_by_bit_the_same(task: str) -> None:
    whole = settled([settler_of(task, k) for k in range(3)])
    resumed = settled([settler_of(task, k) for k in range(3)], resume=True)
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
