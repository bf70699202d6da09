"""The same seed gives the same bits: what torch may do, and what a worker makes of it."""

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_gpu import FakeGpu
from lone_trials import ended, mlp_assignment
from records import asked
from torch.utils._python_dispatch import TorchDispatchMode

from nas_evidence.data import load
from nas_evidence.data.tensors import to_tensors
from nas_evidence.spec.record import TrialStatus
from nas_evidence.spec.study import ArchitectureSpec, DatasetSpec, ResourceSpec
from nas_evidence.workers import worker as worker_module
from nas_evidence.workers.executor import Launch
from nas_evidence.workers.shares import MEMORY_FRACTION
from nas_evidence.workers.trial import Trial
from nas_evidence.workers.worker import make_reproducible

#: By the name in the docstring, the operators; of a `NLLLoss` only the one over images has no
#: such kernel (torch 2.15: `alertNotDeterministic` in NLLLoss2d.cu, not in Loss.cu).
WITHOUT = {
    "AvgPool3d": {"avg_pool3d_backward"},
    "AdaptiveAvgPool2d": {"_adaptive_avg_pool2d_backward"},
    "AdaptiveAvgPool3d": {"_adaptive_avg_pool3d_backward"},
    "AdaptiveMaxPool2d": {"adaptive_max_pool2d_backward"},
    "FractionalMaxPool2d": {"fractional_max_pool2d_backward"},
    "FractionalMaxPool3d": {"fractional_max_pool3d_backward"},
    "MaxUnpool1d": {"max_unpool2d"},
    "MaxUnpool2d": {"max_unpool2d"},
    "MaxUnpool3d": {"max_unpool3d"},
    "interpolate": {
        f"upsample_{mode}_backward"
        for mode in ("linear1d", "bilinear2d", "bicubic2d", "trilinear3d")
    },
    "ReflectionPad1d": {"reflection_pad1d_backward"},
    "ReflectionPad2d": {"reflection_pad2d_backward"},
    "ReflectionPad3d": {"reflection_pad3d_backward"},
    "NLLLoss": {"nll_loss2d_forward", "nll_loss2d_backward"},
    "CTCLoss": {"_ctc_loss", "_ctc_loss_backward"},
    "EmbeddingBag": {"_embedding_bag", "_embedding_bag_dense_backward"},
    "put_": {"put_"},
    "histc": {"histc"},
    "bincount": {"bincount with weights"},
    "median": {"median.dim", "nanmedian.dim"},
    "grid_sample": {"grid_sampler_2d_backward", "grid_sampler_3d_backward"},
    "scatter_reduce": {"scatter_reduce", "scatter_reduce_"},
}  # fmt: skip
#: Of other devices than CPUs and CUDA.
ELSEWHERE = {
    "index_put",
    "index_reduce",
    "kthvalue",
    "Embedding",
    "MaxPool2d",
    "MaxPool3d",
    "resize_",
}

#: The docstring of torch 2.11 lists it though its CUDA kernel is deterministic on request there:
#: `inclusive_deterministic_scan` over one row, a block of threads for each of several rows.
#: PyTorch's pull request 190975 corrected the docstring alone.
LISTED_TOO_LONG = {"cumsum"}


class Called(TorchDispatchMode):
    """Names of the operators called, with what matters of their overloads."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = function._overloadpacket.__name__
        self.names |= {name, f"{name}.{function._overloadname}"}
        weights = args[1] if len(args) > 1 else kwargs.get("weights")
        if name == "bincount" and weights is not None:
            self.names.add("bincount with weights")
        return function(*args, **kwargs)


def test_the_list_is_that_of_torch() -> None:
    text = torch.use_deterministic_algorithms.__doc__
    assert text is not None
    second = text.split("throw a\n")[-1].split("In addition")[0]
    named = set(re.findall(r"\* :\w+:`torch\.(?:\w+\.)*(\w+)`", second))
    assert named - ELSEWHERE - LISTED_TOO_LONG <= set(WITHOUT)
    assert len(named) > 15


CASES: dict[str, tuple[str, dict[str, object], dict[str, object]]] = {
    "mlp": ("mlp", {"depth": 1, "width": 8}, {}),
    "cnn, augmented": (
        "cnn",
        {"depth": 2, "width": 4},
        {"augment": ("RandomCrop", "RandomHorizontalFlip")},
    ),
    "resnet": ("resnet", {"depth": 8, "width": 4}, {"optimiser": "adam"}),
    "gaussian": ("mlp", {"depth": 1, "width": 8}, {"likelihood": "gaussian"}),
    "heteroscedastic": ("mlp", {"depth": 1, "width": 8}, {"likelihood": "heteroscedastic"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_no_operator_of_a_trial_is_without_a_deterministic_kernel(
    name: str, tmp_path: Path
) -> None:
    family, values, plan = CASES[name]
    real = "likelihood" in plan
    spec = DatasetSpec(name="diabetes" if real else "digits", max_train=60, max_test=20)
    scores = ("conditional_evidence", "elpd", "diag_ef", "kfac_ggn", "kfac_ggn_mc", "sotl")
    architecture = ArchitectureSpec(family=family, values=values)
    defaults = {"epochs": 2, "batch_size": 16, "online": {"every": 1}}
    given = asked(architecture, scores, seed=1, dataset=spec, **(defaults | plan))
    data = to_tensors(load(spec, seed=0), "cpu")
    with Called() as called:
        trial = Trial.start(given, data, tmp_path)
        trial.advance(2)
        record = ended(trial)
    assert record.status is TrialStatus.COMPLETE, record.cause
    assert len(called.names) > 100
    assert not called.names & set().union(*WITHOUT.values())


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: torch.histc(torch.ones(3)), "histc"),
        (lambda: torch.bincount(torch.ones(3).long(), torch.ones(3)), "bincount"),
        (lambda: torch.ones(3, 2).median(1), "median"),
        (lambda: torch.zeros(3).scatter_reduce(0, torch.zeros(3).long(), torch.ones(3), "sum"),
         "scatter_reduce"),
    ],
)  # fmt: skip
def test_such_an_operator_is_seen(call: Callable[[], object], name: str) -> None:
    with Called() as called:
        torch.bincount(torch.ones(3).long())
        torch.ones(3).median()
    assert not called.names & set().union(*WITHOUT.values())
    with Called() as called:
        call()
    assert called.names & WITHOUT[name]


# --- what a worker sets on a GPU, seen without one


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore what a worker sets for its process."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic
    filled = torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(False)
    cudnn.benchmark, cudnn.deterministic = before
    torch.utils.deterministic.fill_uninitialized_memory = filled
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


def test_kernels_of_a_gpu_are_deterministic() -> None:
    make_reproducible(torch.device("cuda"))
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.benchmark
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_a_users_workspace_is_kept_and_a_cpu_needs_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_reproducible(torch.device("cpu"))
    assert not torch.are_deterministic_algorithms_enabled()
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    make_reproducible(torch.device("cuda"))
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


@pytest.mark.parametrize("share", [1.0, 0.5, 0.25])
def test_a_worker_with_a_part_of_a_gpu_may_allocate_no_more_than_that(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []
    monkeypatch.setattr(worker_module, "device_for", lambda _: torch.device("cuda"))
    monkeypatch.setattr(worker_module, "to_tensors", lambda arrays, device: None)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", limits.append)
    arrays = load(DatasetSpec(name="digits", max_train=20, max_test=10), seed=0)
    worker_module.Worker(arrays, ResourceSpec(), gpu_share=share)
    assert limits == ([] if share == 1 else [share * MEMORY_FRACTION])
    assert torch.are_deterministic_algorithms_enabled()


def test_a_worker_with_a_part_of_a_gpu_runs_its_trial_there(tmp_path: Path) -> None:
    arrays = load(DatasetSpec(name="digits", max_train=40, max_test=10), seed=0)
    given = mlp_assignment("diag_ef", epochs=1)
    with FakeGpu() as gpu:
        worker = worker_module.Worker(arrays, ResourceSpec(), gpu_share=0.5)
        report = worker.start(Launch(given, tmp_path, None))
        while not report.done:
            report = worker.advance(given.plan.epochs)
        record = worker.finish()
        worker.close()
    assert record.status is TrialStatus.COMPLETE, record.error
    assert record.gpu_share == 0.5
    assert json.loads(record.versions)["device"] == "cuda a GPU that does not exist"
    assert gpu.launches.total() > 100
    assert not worker.must_go
