"""When a settled state is near enough to a mode, and the unit of what a descent remembers."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from records import asked

from nas_evidence.data.tensors import TensorData
from nas_evidence.models import build
from nas_evidence.spec.study import ArchitectureSpec
from nas_evidence.training import settling as module
from nas_evidence.training.log_joints import LogJoints
from nas_evidence.training.mode import preconditioner
from nas_evidence.training.network import Network, begin
from nas_evidence.training.quasi_newton import descend
from nas_evidence.training.settling import CLOSER, NEAR_MODE


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
    zero, one = torch.zeros(1).double(), torch.ones(1).double()
    data = TensorData(x, y, x[:0], y[:0], "real", 1, (3,), zero, one)
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
