"""Operators that a curvature pass launches on a GPU, beside those of a training step.

Counted on "meta": tensors without values take the branches for devices that are no CPU. A view or
an allocation is no launch. Networks are those of the published grid, images are 3x32x32.
"""

from collections import Counter
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from nas_evidence.curvature import curvature_pass
from nas_evidence.data.tensors import TensorData
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.models import skeleton
from nas_evidence.spec.study import ArchitectureSpec, TrainingPlan
from nas_evidence.training.network import begin
from nas_evidence.training.together import Batch, Program

ROWS, SHAPE = 128, (3, 32, 32)
ALLOCATIONS = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"}
SILENT = ALLOCATIONS | {"detach", "_unsafe_view", "lift_fresh", "is_same_size"}


class Launches(TorchDispatchMode):
    """Counts operators with a tensor of the device, and answers the reads of its values."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            return 1
        if function is torch.ops.aten._to_copy.default and args[0].is_meta:
            target = kwargs.get("device") or args[0].device
            if target.type == "cpu":
                return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        name = function._overloadpacket.__name__
        if not function.is_view and name not in SILENT:
            self.names[name] += 1
        return function(*args, **kwargs)


def resnet(depth: int, width: int) -> nn.Module:
    spec = ArchitectureSpec(family="resnet", values={"depth": depth, "width": width})
    return skeleton(spec, SHAPE, 10).to("meta")


def launches_of_a_step(model: nn.Module) -> int:
    plan = TrainingPlan()
    state = begin(model.train(), cast(TensorData, None), plan, 0)
    x = torch.empty(1, ROWS, *SHAPE, device="meta")
    y = torch.empty(1, ROWS, dtype=torch.int64, device="meta")
    with Program([model], [state.optimiser], plan) as program:
        program.set_decay(torch.ones(1, len(program.sizes)))
        program.begin_epoch([0.1], [1])
        with Launches() as launches:
            program.step(Batch(0, x, y, (ROWS,), None), None)
    return launches.names.total()


def launches_of_a_pass(kind: str, model: nn.Module, n_batches: int = 1) -> int:
    n = n_batches * ROWS
    x = torch.empty(n, *SHAPE, device="meta")
    y = torch.empty(n, dtype=torch.int64, device="meta")
    generator = torch.Generator().manual_seed(0)
    with Launches() as launches:
        curvature_pass(kind, model, x, y, Categorical(), batch_size=ROWS, generator=generator)
    return launches.names.total()


@pytest.mark.parametrize(
    ("depth", "times"),
    [
        pytest.param(8, 4, marks=pytest.mark.slow),
        *(pytest.param(depth, 6, marks=pytest.mark.long) for depth in (14, 20, 26, 32)),
    ],
)
def test_a_pass_of_diag_ef_launches_a_few_times_what_a_training_step_does(
    depth: int, times: int
) -> None:
    step = launches_of_a_step(resnet(depth, 48))
    for width in (16, 48):
        assert launches_of_a_pass("diag_ef", resnet(depth, width)) <= times * step


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["diag_ef", "ekfac_ggn", "kfac_ggn_mc"])
def test_a_pass_launches_as_much_for_wide_networks_as_for_narrow_ones(kind: str) -> None:
    assert len({launches_of_a_pass(kind, resnet(8, width)) for width in (16, 48)}) == 1
