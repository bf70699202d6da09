"""Compiled and bfloat16 steps beside the plain ones, which import no compiler."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from matrix import REST
from records import asked, mlp
from torch import Tensor, nn

from nas_evidence.data import load
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.models import build
from nas_evidence.spec.study import ArchitectureSpec, DatasetSpec, TrainingPlan
from nas_evidence.training import compiled as compiled_module
from nas_evidence.training.compiled import Forward, compiled, planned
from nas_evidence.training.loop import train_epoch
from nas_evidence.training.network import begin
from nas_evidence.training.stacked import Stack, stacked_outputs

MLP = ArchitectureSpec(family="mlp", values={"depth": 1, "width": 4})
CNN = ArchitectureSpec(family="cnn", values={"depth": 1, "width": 2})
DATA = DatasetSpec(name="digits", max_train=60, max_test=10)


@pytest.fixture(scope="module")
def data() -> TensorData:
    return to_tensors(load(DATA, seed=0), "cpu")


@pytest.fixture(autouse=True)
def forget() -> None:
    compiled_module._kept.clear()
    torch.compiler.reset()


def pair(architecture: ArchitectureSpec, seed: int = 0) -> tuple[nn.Module, Forward, list[Tensor]]:
    """Return two networks as one program: the first, its forward pass, and the parameters."""
    models = [
        build(architecture, (1, 8, 8), 3, torch.Generator().manual_seed(seed + i)) for i in (0, 1)
    ]
    ids = [id(parameter) for parameter in models[0].parameters()]

    def forward(leaves: list[Tensor], x: Tensor) -> Tensor:
        return stacked_outputs(models[0], Stack(len(x), dict(zip(ids, leaves, strict=True))), x)

    rows = zip(*(model.parameters() for model in models), strict=True)
    random = torch.Generator().manual_seed(7)
    leaves = [torch.stack([p.detach() for p in row]) for row in rows]
    leaves = [leaf + 0.1 * torch.randn(leaf.shape, generator=random) for leaf in leaves]
    return models[0], forward, [leaf.requires_grad_() for leaf in leaves]


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [pytest.param(MLP, marks=REST), CNN])
def test_a_compiled_step_has_the_outputs_and_gradients_of_the_plain_one(
    architecture: ArchitectureSpec,
) -> None:
    model, plain, leaves = pair(architecture)
    fast = compiled(plain, model, "aot_eager")
    assert compiled(plain, model, "aot_eager") is fast
    for n_data in (5, 3):  # the last minibatch is smaller
        x = torch.randn(2, n_data, 1, 8, 8, generator=torch.Generator().manual_seed(n_data))
        found, expected = fast(leaves, x), plain(leaves, x)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        gradients = (torch.autograd.grad(out.square().sum(), leaves) for out in (found, expected))
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.long
@pytest.mark.slow
def test_more_networks_than_are_kept_compile_without_end() -> None:
    x = torch.randn(2, 4, 1, 8, 8)
    for seed in range(compiled_module._NETWORKS + 1):
        model, plain, leaves = pair(MLP, seed)
        found = compiled(plain, model, "aot_eager")(leaves, x)
        torch.testing.assert_close(found, plain(leaves, x), rtol=1e-5, atol=1e-5)
    assert len(compiled_module._kept) == 1


def test_a_plain_plan_and_a_cpu_run_the_forward_pass_itself() -> None:
    model, forward, _ = pair(MLP)
    for plan in (TrainingPlan(), TrainingPlan(compile=True)):
        assert planned(forward, model, plan, torch.device("cpu")) is forward


def test_a_graph_is_asked_for_on_a_gpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    model, forward, _ = pair(MLP)
    asked: list[nn.Module] = []

    def record(given: Forward, owner: nn.Module) -> Forward:
        asked.append(owner)
        return given

    monkeypatch.setattr(compiled_module, "compiled", record)
    planned(forward, model, TrainingPlan(compile=True), torch.device("cuda"))
    planned(forward, model, TrainingPlan(), torch.device("cuda"))
    assert asked == [model]


@pytest.mark.parametrize("width", [4, 300])  # stacked, and too wide for that
def test_bfloat16_steps_leave_everything_else_in_float32(data: TensorData, width: int) -> None:
    losses = {}
    for precision in ("float32", "bf16"):
        plan = TrainingPlan(epochs=2, batch_size=16, precision=precision)
        assignment = asked(mlp(depth=1, width=width), dataset=DATA, plan=plan)
        model = build(assignment.architecture, data.input_shape, data.n_outputs, torch.Generator())
        state = begin(model, data, plan, assignment.seed)
        for _ in range(2):
            train_epoch(state)
        losses[precision] = state.curve[-1].train_nll_per_datum
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        moments = [m for each in state.optimiser.moments.values() for m in each]
        assert moments
        assert {m.dtype for m in moments} == {torch.float32}
        assert not torch.is_autocast_enabled("cpu")
    assert losses["bf16"] != losses["float32"]
    assert losses["bf16"] == pytest.approx(losses["float32"], rel=0.02)


# --- what a process that trains does not import


_TRIALS = """
import sys
from pathlib import Path
from nas_evidence.data import load
from nas_evidence.data.tensors import to_tensors
from nas_evidence.spec.study import ArchitectureSpec, Assignment, DatasetSpec
from nas_evidence.workers.trial import Trial

spec = DatasetSpec(name="npz", path=sys.argv[1])
data = to_tensors(load(spec, seed=0), "cpu")
for family, depth in (("mlp", 1), ("cnn", 1), ("resnet", 8)):
    assignment = Assignment(
        trial_id=0, attempt=1, replicate=0, dataset=spec, seed=0,
        architecture=ArchitectureSpec(family=family, values={"depth": depth, "width": 4}),
        plan={"epochs": 2, "batch_size": 20, "settle": 0.5},
        estimators=("two_fold", "kfac_ggn", "diag_ef"),
    )
    trial = Trial.start(assignment, data, Path(sys.argv[2]) / family)
    while trial.status == "running":
        trial.advance(2)
    print(trial.finish().status)
slow = ("torch._dynamo", "torch.fx.experimental.symbolic_shapes")
print("imported" if any(name in sys.modules for name in slow) else "never")
"""


@pytest.mark.slow
@pytest.mark.long
def test_a_trial_does_not_import_the_compiler_of_torch(tmp_path: Path) -> None:
    """It takes more than a second of every process, a part of what a small study takes."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(40, 1, 8, 8)).astype(np.float32), np.arange(40) % 3
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    command = [sys.executable, "-c", _TRIALS, str(tmp_path / "d.npz"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["complete"] * 3 + ["never"], done.stderr
