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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _common import ratios, spread, write_json
from _networks import COLOUR, GREY, Network, assignment, pass_over, random_data
from _networks import network as built
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from nas_evidence.data.tensors import TensorData
from nas_evidence.evidence.laplace import laplace_estimate
from nas_evidence.models.layout import laid_out
from nas_evidence.spec.study import TrainingPlan
from nas_evidence.training.loop import Member, begin, train_epoch, train_epochs

Row = dict[str, Any]
KINDS = ("diag_ef", "diag_ggn", "kfac_ggn_mc", "kfac_ggn")
#: Name -> the network and the shape of an image; 3c3d is none of the families.
NETWORKS: Mapping[str, tuple[Network | str, tuple[int, int, int]]] = {
    "mlp": (("mlp", {"depth": 3, "width": 512}), GREY),
    "small cnn": (("cnn", {"depth": 3, "width": 8}), GREY),
    "3c3d": ("3c3d", COLOUR),
    "resnet-20": (("resnet", {"depth": 20, "width": 16}), COLOUR),
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
    """Return a network near its initialisation, channels last in memory as families have it."""
    given, shape = NETWORKS[name]
    model = built(given, shape, seed)
    return (laid_out(model, channels_last=True) if name == "3c3d" else model).to(device)


def member(model: nn.Module, data: TensorData, **changes: object) -> Member:
    """Return a training of a network; learning rate 0.001, so that nothing diverges."""
    plan = TrainingPlan(epochs=1000, learning_rate=1e-3, schedule="constant", **changes)
    return Member(begin(model, plan), data, assignment(("mlp", {}), plan))


def epoch_of(given: Member) -> Callable[[], None]:
    """Return a function that trains for an epoch."""
    return lambda: train_epoch(given.training, given.data, given.assignment)


def evidence_of(kind: str, model: nn.Module, data: TensorData) -> Callable[[], object]:
    """Return a pass of a kind and the evidence from it."""
    run = pass_over(kind, model, data.x_train, data.y_train)
    ones = torch.ones(len(list(model.parameters())), dtype=torch.float64)
    return lambda: laplace_estimate(kind, run(), model, ones)


def passes(name: str, data: TensorData, clock: Clock) -> list[Row]:
    """Return each kind's pass with evidence, as a ratio to the epoch run beside it."""
    model = network(name, data.x_train.device)
    runs: dict[str, Callable[[], object]] = {"epoch": epoch_of(member(model, data))}
    still = copy.deepcopy(model)
    runs |= {kind: evidence_of(kind, still, data) for kind in KINDS}
    seconds = clock.time(runs)
    return [
        {"network": name, "kind": kind, **ratio(seconds[kind], seconds["epoch"])} for kind in KINDS
    ]


def steps(name: str, data: TensorData, clock: Clock) -> list[Row]:
    """Return the seconds of an epoch of each way to take steps, and ratios to the plain one."""
    runs: dict[str, Callable[[], object]] = {}
    rows: list[Row] = []
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


def together(name: str, data: TensorData, k: int, clock: Clock) -> list[Row]:
    """Return the epoch of K networks as one program, as a ratio to K epochs of one."""
    device = data.x_train.device
    alone = epoch_of(member(network(name, device), data))
    members = [member(network(name, device, seed), data) for seed in range(k)]
    seconds = clock.time({"alone": alone, "together": lambda: train_epochs(members)})
    base = [k * value for value in seconds["alone"]]
    return [{"network": name, "k": k, **ratio(seconds["together"], base)}]


def waits(name: str, data: TensorData, clock: Clock) -> list[Row]:
    """Return the operators of a step and of a pass, and the numbers read from the device."""
    model = network(name, data.x_train.device)
    few = random_data(NETWORKS[name][1], 128, data.x_train.device)
    rows: list[Row] = []
    runs = {"epoch of one step": epoch_of(member(copy.deepcopy(model), few))}
    runs |= {kind: evidence_of(kind, model, few) for kind in ("diag_ef", "kfac_ggn_mc")}
    for what, run in runs.items():
        with Operators() as seen:
            run()
        rows.append({"network": name, "what": what, "operators": seen.n, "reads": seen.n_reads})
    return rows


def ratio(seconds: list[float], base: list[float]) -> Row:
    """Return the median and range of ratios, their number, and the median seconds."""
    found = spread(ratios(seconds, base), 4)
    return {"ratio": found.pop("median"), **found, "seconds": round(statistics.median(seconds), 6)}


def about(device: torch.device) -> Row:
    """Return the machine and versions."""
    found: Row = {
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
    result: Row = {
        "what": f"ratios to plain epochs; {n_data} random images, batches of 128, float32",
        **about(device),
    }
    jobs: list[tuple[str, Callable[[Clock], list[Row]]]] = []
    for name in options.networks:
        data = random_data(NETWORKS[name][1], n_data, device)
        jobs += [("passes", partial(passes, name, data)), ("steps", partial(steps, name, data))]
        jobs += [("together", partial(together, name, data, k)) for k in ks]
        jobs += [("waits", partial(waits, name, data))]
    started = time.monotonic()
    for number, (section, job) in enumerate(jobs):
        end = started + 60 * options.minutes * (number + 1) / len(jobs)
        rows = job(Clock(device, repeats, end))
        result.setdefault(section, []).extend(rows)
        for row in rows:
            print(section, json.dumps(row), flush=True)
        write_json(options.out, result)
        gc.collect()


if __name__ == "__main__":
    main()
