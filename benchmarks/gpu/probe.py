"""How fast and how large is it on a GPU? What decides defaults; one JSON line per finding.

    python benchmarks/gpu/probe.py --seconds 110 --out probe.jsonl
    python benchmarks/gpu/probe.py --device cpu --quick --out probe.jsonl       does it run?

    steps      milliseconds of a training step of 128 rows, plain and in other ways; peak memory
    memory     peak memory of a training beside the estimate that decides shares
    passes     seconds of curvature passes over 50,000 rows
    together   K networks as one program / K times one alone
    packed     steps per second of several processes on one GPU

Random images of the size of CIFAR-10. Kernels are those of workers (`make_reproducible`). No
section begins after `--seconds`; the most valuable come first.
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import torch
from _networks import COLOUR, Network, network, pass_over, random_data
from _networks import assignment as assignment_of

from nas_evidence.data.tensors import TensorData
from nas_evidence.models.layout import laid_out
from nas_evidence.spec.study import TrainingPlan
from nas_evidence.training.cost import cost_of
from nas_evidence.training.loop import train_epochs
from nas_evidence.training.network import Network as Trained
from nas_evidence.training.network import begin
from nas_evidence.training.online import updated
from nas_evidence.workers.worker import make_reproducible

NETWORKS: Mapping[str, Network] = {
    "mlp 3x200": ("mlp", {"depth": 3, "width": 200}),
    "cnn 1x32": ("cnn", {"depth": 1, "width": 32}),
    "cnn 3x16": ("cnn", {"depth": 3, "width": 16}),
    "cnn 5x64": ("cnn", {"depth": 5, "width": 64}),
    "resnet-8 w16": ("resnet", {"depth": 8, "width": 16}),
    "resnet-20 w16": ("resnet", {"depth": 20, "width": 16}),
    "resnet-14 w32": ("resnet", {"depth": 14, "width": 32}),
    "resnet-32 w48": ("resnet", {"depth": 32, "width": 48}),
}
#: Of most sections; the others are only in `memory`.
TIMED = ("resnet-20 w16", "resnet-32 w48", "cnn 3x16", "resnet-14 w32")
WAYS: Mapping[str, dict[str, Any]] = {
    "plain": {}, "bf16": {"precision": "bf16"}, "channels first": {},
    "batches of 512": {"batch_size": 512}, "free kernels": {},
}  # fmt: skip


@dataclass
class Probe:
    """Where findings go, and how much is measured.

    n_rows   of the random data
    repeats  of each run; the median counts
    """

    device: torch.device
    out: Path
    n_rows: int
    repeats: int

    @property
    def data(self) -> TensorData:
        """Random images on the device."""
        return random_data(COLOUR, self.n_rows, self.device)

    def say(self, section: str, **found: Any) -> None:
        """Print a finding and store it."""
        line = json.dumps({"section": section, **found})
        print(line, flush=True)
        with self.out.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def wait(self) -> None:
        """Wait for the GPU."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def seconds(self, run: Callable[[], object], repeats: int | None = None) -> float:
        """Return the median time of a run; the first call is not counted."""
        run()
        found = []
        for _ in range(repeats or self.repeats):
            self.wait()
            started = time.perf_counter()
            run()
            self.wait()
            found.append(time.perf_counter() - started)
        return statistics.median(found)

    @contextmanager
    def peak(self) -> Iterator[Callable[[], float | None]]:
        """Yield what returns the most memory so far beyond that at entry, in MB; None on a CPU."""
        if self.device.type != "cuda":
            yield lambda: None
            return
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        yield lambda: round((torch.cuda.max_memory_allocated() - before) / 1e6, 1)

    def per_step(self, seconds_of_epoch: float) -> float:
        """Return milliseconds per 128 rows."""
        return round(1e3 * seconds_of_epoch / (self.n_rows / 128), 3)


def member(name: str, data: TensorData, seed: int = 0, **changes: Any) -> Trained:
    """Return a training of a network; its learning rate is small, so that nothing diverges."""
    given = NETWORKS[name]
    plan = TrainingPlan(epochs=1000, learning_rate=1e-3, schedule="constant", settle=0, **changes)
    model = network(given, COLOUR, seed).to(data.x_train.device)
    return begin(model, data, plan, assignment_of(given, plan, seed).seed)


def estimate_mb(name: str, plan: TrainingPlan, n_rows: int) -> float:
    """Return what the driver estimates for a trial on a GPU, without its data, in MB."""
    task = assignment_of(NETWORKS[name], plan)
    cost = cost_of(task.architecture, COLOUR, 10, plan, (), n_rows, device="cuda")
    return round(cost.memory_bytes / 1e6, 1)


def kernels(probe: Probe, run: Callable[[], object]) -> dict[str, float]:
    """Return the launches of a run, and the share of its time in which kernels ran."""
    if probe.device.type != "cuda":
        return {}
    from torch.profiler import ProfilerActivity, profile

    plain = probe.seconds(run, 1)
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
        run()
        probe.wait()
    events = [e for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    busy = sum(event.device_time for event in events) / 1e6
    return {"kernels": len(events), "busy": round(busy / plain, 3)}


def steps(probe: Probe, name: str) -> None:
    """Training steps in several ways."""
    data, n_steps = probe.data, probe.n_rows / 128
    for how, changes in WAYS.items():
        with probe.peak() as peak:
            one = member(name, data, **changes)
            if how == "channels first":
                laid_out(one.model, channels_last=False)
            if how == "free kernels":
                torch.use_deterministic_algorithms(False)
                torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = False, True
            run = partial(train_epochs, [one])
            milliseconds = probe.per_step(probe.seconds(run))
            found = {"network": name, "how": how, "ms_per_128": milliseconds, "peak_mb": peak()}
        if how == "plain":
            seen = kernels(probe, run)
            found |= {k: round(v / n_steps, 1) if k == "kernels" else v for k, v in seen.items()}
        probe.say("steps", **found)
        if how == "free kernels":
            make_reproducible(probe.device)


def memory(probe: Probe, name: str) -> None:
    """Peak memory of a training with one update, beside the estimate."""
    data = probe.data
    for batch in (128, 512):
        with probe.peak() as peak:
            one = member(name, data, batch_size=batch, online={"every": 1})
            train_epochs([one])
            updated([one])
            found = peak()
        estimate = estimate_mb(name, one.plan, probe.n_rows)
        probe.say("memory", network=name, batch=batch, peak_mb=found, estimate_mb=estimate)


def passes(probe: Probe, name: str) -> None:
    """Curvature passes."""
    data = probe.data
    model = member(name, data).model
    for kind in ("diag_ef", "kfac_ggn_mc"):
        with probe.peak() as peak:
            seconds = probe.seconds(pass_over(kind, model, data.x_train, data.y_train), 1)
            per_50000 = round(seconds * 50000 / probe.n_rows, 2)
            probe.say(
                "passes", network=name, kind=kind, seconds_per_50000=per_50000, peak_mb=peak()
            )


def together(probe: Probe, name: str, k: int) -> None:
    """K networks as one program, for which the convolutions have K groups."""
    data = probe.data
    alone, many = member(name, data), [member(name, data, seed) for seed in range(k)]
    one = probe.seconds(partial(train_epochs, [alone]), 2)
    all_ = probe.seconds(partial(train_epochs, many), 2)
    probe.say("together", network=name, k=k, ratio=round(all_ / (k * one), 3))


def packed(probe: Probe, k: int) -> None:
    """Several processes on the device, each with its own training."""
    command = [sys.executable, __file__, "--device", probe.device.type, "--as-worker", "3"]
    command += ["--quick"] if probe.n_rows < 1000 else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    runs = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        for _ in range(k)
    ]
    for run in runs:
        assert run.stdout is not None
        assert run.stdin is not None
        run.stdout.readline()
    for run in runs:
        run.stdin.write("go\n")
        run.stdin.flush()
    rates = [float(run.communicate()[0].split()[-1]) for run in runs]
    mps = bool(os.environ.get("CUDA_MPS_PIPE_DIRECTORY"))
    probe.say("packed", k=k, mps=mps, steps_per_second=round(sum(rates), 1), least=min(rates))


def worker(probe: Probe, seconds: float) -> None:
    """Train in a process of `packed` for some seconds; print the steps per second."""
    one = member("cnn 3x16" if probe.n_rows < 1000 else "resnet-20 w16", probe.data)
    train_epochs([one])
    probe.wait()
    print("ready", flush=True)
    sys.stdin.readline()
    started, n_steps = time.perf_counter(), 0
    while time.perf_counter() < started + seconds:
        train_epochs([one])
        probe.wait()
        n_steps += probe.n_rows // 128
    print(round(n_steps / (time.perf_counter() - started), 2), flush=True)


def jobs_of(probe: Probe, *, quick: bool) -> list[tuple[str, Callable[[], None]]]:
    """Return the name of the section of each job, and the job."""
    names = ("cnn 3x16",) if quick else TIMED
    found: list[tuple[str, Callable[[], None]]] = []
    found += [("steps", partial(steps, probe, name)) for name in names]
    found += [("memory", partial(memory, probe, name)) for name in (names if quick else NETWORKS)]
    found += [("passes", partial(passes, probe, name)) for name in names[:2]]
    for name in names[::2]:
        for k in (2,) if quick else (2, 5):
            found += [("together", partial(together, probe, name, k))]
    found += [("packed", partial(packed, probe, k)) for k in ((2,) if quick else (1, 8, 16))]
    return found


def main() -> None:
    """Measure until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--seconds", type=float, default=110)
    parser.add_argument("--sections", nargs="+", help="only these")
    parser.add_argument("--quick", action="store_true", help="few rows and networks")
    parser.add_argument("--out", type=Path, default=Path("probe.jsonl"))
    parser.add_argument("--as-worker", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(options.device)
    make_reproducible(device)
    n_rows, repeats = (256, 1) if options.quick else (2560, 3)
    probe = Probe(device, options.out, n_rows, repeats)
    if options.as_worker:
        worker(probe, options.as_worker)
        return
    end = time.perf_counter() + options.seconds
    for section, job in jobs_of(probe, quick=options.quick):
        if time.perf_counter() > end or (options.sections and section not in options.sections):
            continue
        try:
            job()
        except Exception as error:  # the other sections go on
            what = f"{type(error).__name__}: {error}"[:300]
            probe.say("failed", job=str(getattr(job, "args", section))[-80:], error=what)
        gc.collect()


if __name__ == "__main__":
    main()
