"""Training and curvature on one GPU: the table that a machine without one cannot write.

    passes      each curvature pass / one plain training epoch, and its evidence, for four networks
    steps       an epoch of training steps: plain, bfloat16, compiled into CUDA graphs, channels
                first; in seconds, and as ratios to the plain one
    together    K equal networks as one program / K times one alone
    waits       operators of one step, and of one curvature pass

Random data of the sizes of Fashion-MNIST and CIFAR-10 images: no download, no Ray, no peers.
Every figure is a median over repeats, which take turns, with range and number; a GPU is
synchronised before the clock is read. It stops adding repeats when its time is up, and writes one
JSON file after every section, so that an interrupted run loses one section.

    python benchmarks/gpu.py --out gpu.json [--minutes 10]     on a GPU
    python benchmarks/gpu.py --device cpu --quick              does it run?
"""

import argparse
import copy
import gc
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from nas_evidence.curvature import curvature_pass
from nas_evidence.curvature.batch_rows import rows_at_once
from nas_evidence.curvature.likelihood import Categorical
from nas_evidence.data.tensors import TensorData
from nas_evidence.evidence.laplace import laplace_estimate
from nas_evidence.models import build
from nas_evidence.models.layout import laid_out
from nas_evidence.spec.study import ArchitectureSpec, Assignment, DatasetSpec, TrainingPlan
from nas_evidence.training.loop import Member, begin, train_epoch, train_epochs

KINDS = ("diag_ef", "diag_ggn", "kfac_ggn_mc", "kfac_ggn")
GREY, COLOUR = (1, 28, 28), (3, 32, 32)
#: Name -> family, its values and the shape of an image; 3c3d is none of the families.
NETWORKS: Mapping[str, tuple[str, dict[str, int], tuple[int, int, int]]] = {
    "mlp": ("mlp", {"depth": 3, "width": 512}, GREY),
    "small cnn": ("cnn", {"depth": 3, "width": 8}, GREY),
    "3c3d": ("", {}, COLOUR),
    "resnet-20": ("resnet", {"depth": 20, "width": 16}, COLOUR),
}
#: Changes of a plan whose epochs are compared; "first" has its channels first in memory.
STEPS: Mapping[str, dict[str, object]] = {
    "plain": {},
    "bf16": {"precision": "bf16"},
    "compiled": {"compile": True},
    "compiled bf16": {"compile": True, "precision": "bf16"},
    "channels first": {},
}


@dataclass
class Clock:
    """Times functions in turns until there are enough repeats or the time is up."""

    device: torch.device
    repeats: int
    end: float
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def time(self, runs: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
        """Return the seconds of each function; the first call of each is not counted."""
        found: dict[str, list[float]] = {name: [] for name in runs}
        for run in runs.values():
            run()
        for repeat in range(self.repeats):
            if repeat and time.monotonic() > self.end:
                break
            for name, run in runs.items():
                self._wait()
                started = time.perf_counter()
                run()
                self._wait()
                found[name].append(time.perf_counter() - started)
        return found

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class Operators(TorchDispatchMode):
    """Counts operators, which on a GPU are launches or more."""

    def __init__(self) -> None:
        super().__init__()
        self.n, self.n_reads = 0, 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Count and run."""
        self.n += 1
        self.n_reads += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


def network(name: str, device: torch.device, seed: int = 0) -> nn.Module:
    """Return a network near its initialisation; no weight is at Fixup's zeros."""
    family, values, shape = NETWORKS[name]
    generator = torch.Generator().manual_seed(seed)
    if family:
        architecture = ArchitectureSpec(family=family, values=values)
        model = build(architecture, shape, 10, generator)
    else:
        torch.manual_seed(seed)
        model = three_conv_three_dense()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
    return model.to(device)


def three_conv_three_dense() -> nn.Module:
    """Return the network called 3c3d: 895,210 parameters on 3 x 32 x 32."""
    pool = {"kernel_size": 3, "stride": 2, "ceil_mode": True}
    model = nn.Sequential(
        nn.Conv2d(3, 64, 5), nn.ReLU(), nn.MaxPool2d(**pool),
        nn.Conv2d(64, 96, 3), nn.ReLU(), nn.MaxPool2d(**pool),
        nn.Conv2d(96, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(**pool),
        nn.Flatten(), nn.Linear(1152, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(),
        nn.Linear(256, 10),
    )  # fmt: skip
    return laid_out(model, channels_last=True)


def random_data(name: str, n_data: int, device: torch.device) -> TensorData:
    """Return random images and labels."""
    shape = NETWORKS[name][2]
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n_data, *shape, generator=generator).to(device)
    y = torch.randint(0, 10, (n_data,), generator=generator).to(device)
    zero = torch.zeros(10, dtype=torch.float64)
    return TensorData(x, y, x[:1], y[:1], "labels", 10, shape, zero, zero + 1)


def member(model: nn.Module, data: TensorData, **changes: object) -> Member:
    """Return a training of a network; learning rate 0.001, so that nothing diverges."""
    plan = TrainingPlan(epochs=1000, learning_rate=1e-3, schedule="constant", **changes)
    assignment = Assignment(
        trial_id=0,
        attempt=1,
        replicate=0,
        architecture=ArchitectureSpec(family="mlp", values={}),
        dataset=DatasetSpec(name="digits"),
        plan=plan,
        estimators=(),
        seed=0,
    )
    return Member(begin(model, plan), data, assignment)


def epoch_of(given: Member) -> Callable[[], None]:
    """Return a function that trains for an epoch."""
    return lambda: train_epoch(given.training, given.data, given.assignment)


def evidence_of(kind: str, model: nn.Module, data: TensorData) -> Callable[[], object]:
    """Return a pass of a kind and the evidence from it."""
    rows = rows_at_once(model, data.x_train)
    generator = torch.Generator().manual_seed(0)
    n_tensors = len(list(model.parameters()))

    def run() -> object:
        pass_ = curvature_pass(
            kind, model, data.x_train, data.y_train, Categorical(),
            batch_size=rows, generator=generator,
        )  # fmt: skip
        return laplace_estimate(kind, pass_, model, torch.ones(n_tensors, dtype=torch.float64))

    return run


def passes(name: str, data: TensorData, clock: Clock) -> list[dict[str, object]]:
    """Return each kind's pass with evidence, as a ratio to the epoch run beside it."""
    model = network(name, data.x_train.device)
    runs: dict[str, Callable[[], object]] = {"epoch": epoch_of(member(model, data))}
    still = copy.deepcopy(model)
    runs |= {kind: evidence_of(kind, still, data) for kind in KINDS}
    seconds = clock.time(runs)
    return [
        {"network": name, "kind": kind, **ratio(seconds[kind], seconds["epoch"])} for kind in KINDS
    ]


def steps(name: str, data: TensorData, clock: Clock) -> list[dict[str, object]]:
    """Return the seconds of an epoch of each way to take steps, and ratios to the plain one."""
    runs: dict[str, Callable[[], object]] = {}
    rows: list[dict[str, object]] = []
    for how, changes in STEPS.items():
        model = network(name, data.x_train.device)
        if how == "channels first":
            laid_out(model, channels_last=False)
        run = epoch_of(member(model, data, **changes))
        try:
            run()
        except Exception as error:  # a backend may be missing; the table says so
            rows.append({"network": name, "how": how, "failed": f"{error}".splitlines()[0][:200]})
        else:
            runs[how] = run
    seconds = clock.time(runs)
    for how, found in seconds.items():
        rows.append({"network": name, "how": how, **ratio(found, seconds["plain"])})
    return rows


def together(name: str, data: TensorData, clock: Clock, k: int) -> list[dict[str, object]]:
    """Return the epoch of K networks as one program, as a ratio to K epochs of one."""
    device = data.x_train.device
    alone = epoch_of(member(network(name, device), data))
    members = [member(network(name, device, seed), data) for seed in range(k)]
    seconds = clock.time({"alone": alone, "together": lambda: train_epochs(members)})
    base = [k * value for value in seconds["alone"]]
    return [{"network": name, "k": k, **ratio(seconds["together"], base)}]


def waits(name: str, data: TensorData) -> list[dict[str, object]]:
    """Return the operators of a step and of a pass, and the numbers read from the device."""
    model = network(name, data.x_train.device)
    few = TensorData(
        data.x_train[:128], data.y_train[:128], data.x_test, data.y_test, data.task, 10,
        data.input_shape, data.y_mean, data.y_std,
    )  # fmt: skip
    rows: list[dict[str, object]] = []
    runs = {"epoch of one step": epoch_of(member(copy.deepcopy(model), few))}
    runs |= {kind: evidence_of(kind, model, few) for kind in ("diag_ef", "kfac_ggn_mc")}
    for what, run in runs.items():
        with Operators() as seen:
            run()
        rows.append({"network": name, "what": what, "operators": seen.n, "reads": seen.n_reads})
    return rows


def ratio(seconds: list[float], base: list[float]) -> dict[str, object]:
    """Return the median and range of ratios, their number, and the median seconds."""
    ratios = [a / b for a, b in zip(seconds, base, strict=True)]
    return {
        "ratio": round(statistics.median(ratios), 4),
        "min": round(min(ratios), 4),
        "max": round(max(ratios), 4),
        "n": len(ratios),
        "seconds": round(statistics.median(seconds), 6),
    }


def about(device: torch.device) -> dict[str, object]:
    """Return the machine and versions."""
    found: dict[str, object] = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "device": device.type,
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "gpu": properties.name,
            "gpu_gib": round(properties.total_memory / 2**30, 1),
            "cuda": torch.version.cuda,
        }
    return found


def main() -> None:
    """Measure, print a line for each section, and write the file after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--quick", action="store_true", help="few data and repeats: does it run?")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    n_data, repeats = (64, 1) if options.quick else (4096, 7)
    ks = (2,) if options.quick else (2, 8, 32)
    result: dict[str, Any] = {
        "what": f"ratios to plain epochs; {n_data} random images, batches of 128, float32",
        **about(device),
    }
    jobs: list[tuple[str, Callable[[Clock], list[dict[str, object]]]]] = []
    for name in options.networks:
        data = random_data(name, n_data, device)
        jobs.append(("passes", lambda clock, n=name, d=data: passes(n, d, clock)))
        jobs.append(("steps", lambda clock, n=name, d=data: steps(n, d, clock)))
        jobs += [
            ("together", lambda clock, n=name, d=data, k=k: together(n, d, clock, k)) for k in ks
        ]
        jobs.append(("waits", lambda clock, n=name, d=data: waits(n, d)))
    started = time.monotonic()
    for number, (section, job) in enumerate(jobs):
        end = started + 60 * options.minutes * (number + 1) / len(jobs)
        rows = job(Clock(device, repeats, end))
        result.setdefault(section, []).extend(rows)
        for row in rows:
            print(section, json.dumps(row), flush=True)
        if options.out:
            options.out.write_text(json.dumps(result, indent=1) + "\n")
        gc.collect()


if __name__ == "__main__":
    main()
