"""The paper-scale plan on a virtual clock: 64 GPUs, the three published grids.

    slices    what one epoch of each architecture costs: its flops (exact, on the meta device), a
              training step of some of them on one core (measured), the passes of an evaluation in
              epochs (measured, `evidence_cost_cpu.json`)
    plans     the published studies as they are shipped, with the trainings on parts of the data,
              on 8 and 64 workers: as fast as one core of this machine (measured), or as GPUs of
              three kinds (assumed, see `GPUS`)
    sweep     8 to 1024 workers and slices of 1 and 10 s: where the driver becomes the bottleneck

The driver, the journal and the files are the real ones; trials take virtual time only. The CPU
time that the driver uses passes on the virtual clock too, as if it were alone on one core, and
Ray's part, which is not simulated, comes from `service_overhead_cpu.json`.

    python benchmarks/scale.py slices plans sweep plot --scratch FOLDER
"""

import argparse
import itertools
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from no_op import SPACE, Stamps
from service_overhead import alone, peak_megabytes, surroundings

from nas_evidence.driver.driver import Driver
from nas_evidence.spec.divisions import predicted_folds
from nas_evidence.spec.registry import declared, draws_of
from nas_evidence.spec.study import Assignment, StudySpec
from nas_evidence.spec.toml import find_study, load_study
from nas_evidence.workers.executor import Event

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from learning_curves import SimulatedTrial, synthetic
from simulated import SimulatedExecutor

HERE = Path(__file__).parent
OUT = HERE / "results" / "scale.json"
PICTURE = HERE.parent / "docs" / "images" / "scale.png"
GRIDS = ("fashion_mnist", "cifar10", "cifar100")
SHAPES = {
    "fashion_mnist": ((1, 28, 28), 10, 60_000),
    "cifar10": ((3, 32, 32), 10, 50_000),
    "cifar100": ((3, 32, 32), 100, 50_000),
}
#: Assumed, not measured: FLOP/s of float32 sustained in such small networks, and the least
#: milliseconds that a training step takes for each layer (kernels wait to be launched).
GPUS = {"slow": (2e12, 0.3), "middle": (10e12, 0.15), "fast": (40e12, 0.05)}
#: Seconds; five epochs and an evaluation of the largest network take an hour on a slow GPU.
SLICE_TIMEOUT = 1e6
#: Grid, device, workers, replicates.
PLANS = (
    ("fashion_mnist", "core", 64, 1),
    *((name, "middle", workers, 1) for name in GRIDS for workers in (8, 64)),
    ("cifar10", "slow", 64, 1),
    ("cifar10", "fast", 64, 1),
    ("cifar10", "middle", 64, 5),
)
#: Architectures above this are not timed: flops of a training step.
TIMED_FLOPS = 5e10


class Clocked(SimulatedExecutor):
    """Simulated workers that wait for the driver: its CPU time passes on their clock.

    `ray_seconds` more pass for each event: what real actors would cost the driver.
    """

    def __init__(self, *arguments: Any, ray_seconds: float, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._ray_seconds, self._seen = ray_seconds, time.process_time()
        self.driver_seconds, self.n_events = 0.0, 0

    def poll(self, timeout: float) -> list[Event]:
        """As of the simulated executor; what the driver was late for happens now."""
        spent = time.process_time() - self._seen
        if self._events:
            spent += self._ray_seconds
            self.n_events += 1
        self.driver_seconds += spent
        now = self._clock + spent
        events = super().poll(timeout)
        self._clock = max(self._clock, now)
        self._seen = time.process_time()  # what the simulation takes is not the driver's
        return events


def ray_seconds_per_slice() -> float:
    """Return what a slice costs the driver with real actors, seconds of CPU.

    A bound from above of Ray's part: it holds the driver's own part too, which is counted twice.
    """
    measured = json.loads((HERE / "results" / "service_overhead_cpu.json").read_text())
    rows = measured["slices"]["results"]
    return statistics.median(row["driver_cpu_ms_per_slice"] for row in rows) / 1e3


def simulate(
    study: StudySpec, curves: Callable[[Assignment], SimulatedTrial], scratch: Path, workers: int
) -> dict[str, Any]:
    """Run a study on simulated workers in a new folder and return what it cost."""
    n_fsyncs, fsync = 0, os.fsync

    def counting(file: Any) -> None:
        nonlocal n_fsyncs
        n_fsyncs += 1
        fsync(file)

    with tempfile.TemporaryDirectory(dir=scratch) as name:
        folder = Path(name) / "study"
        pool = Clocked(curves, workers=workers, seed=0, ray_seconds=ray_seconds_per_slice())
        watcher = Stamps()
        driver = Driver(study, folder, pool, watcher)
        os.fsync = counting
        try:
            driver.run()
        finally:
            os.fsync = fsync
        n_trials = len(watcher.ends) - 1
        return {
            "workers": workers,
            "trials": n_trials,
            "slices": len(watcher.slices),
            "wall_seconds": pool.now(),
            "idle_share": pool.idle_share(),
            "driver_share_of_a_core": pool.driver_seconds / pool.now(),
            "driver_ms_per_trial": pool.driver_seconds / n_trials * 1e3,
            "of_it_ray_ms": pool.n_events * ray_seconds_per_slice() / n_trials * 1e3,
            "fsyncs_per_trial": n_fsyncs / n_trials,
            "peak_mb": peak_megabytes(),
            **on_disk(folder),
        }


def on_disk(folder: Path) -> dict[str, int]:
    """Return how many files a finished study leaves, and how many bytes."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    tables = [path for path in files if path.suffix == ".parquet"]
    return {
        "files": len(files),
        "parquet_files": len(tables),
        "parquet_bytes": sum(path.stat().st_size for path in tables),
        "journal_bytes": (folder / "logs" / "events.jsonl").stat().st_size,
    }


# --- slices


def grid(name: str) -> StudySpec:
    """Return a published study as it is shipped."""
    return load_study(find_study(name))


def part_slices(scratch: Path) -> list[dict[str, Any]]:
    """Return flops of all architectures, and seconds of a training step of the smaller ones."""
    import torch

    from nas_evidence.proposing.startup import startup_points
    from nas_evidence.training.cost import cost_of

    torch.set_num_threads(1)
    rows = []
    for name in GRIDS:
        study, (shape, n_outputs, n_train) = grid(name), SHAPES[name]
        points = {point.key: point for point in startup_points(study)}
        for point in points.values():
            cost = cost_of(point, shape, n_outputs, study.plan, ())
            row = {
                "grid": name,
                "key": point.key,
                "family": point.family,
                **point.values,
                "n_parameters": cost.n_parameters,
                "flops": cost.flops,
                "steps_per_epoch": math.ceil(n_train / study.plan.batch_size),
                "step_seconds_of_a_core": None,
            }
            if 3 * cost.flops * study.plan.batch_size < TIMED_FLOPS:
                row["step_seconds_of_a_core"] = step_seconds(point, shape, n_outputs, study)
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


def step_seconds(point: Any, shape: tuple[int, ...], n_outputs: int, study: StudySpec) -> float:
    """Return the CPU seconds of one training step, the median of three after one to warm up."""
    import torch

    from nas_evidence.models import build

    generator = torch.Generator().manual_seed(0)
    model = build(point, shape, n_outputs, generator)
    x = torch.randn(study.plan.batch_size, *shape, generator=generator)
    y = torch.randint(n_outputs, (study.plan.batch_size,), generator=generator)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    times = []
    for _ in range(4):
        began = time.process_time()
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
        times.append(time.process_time() - began)
    return statistics.median(times[1:])


# --- plans


def costs_of(study: StudySpec) -> dict[str, float]:
    """Return what the trainings of one trial cost, in epochs of the main training.

    main      scheduled epochs, an update at each evaluation, and the Laplace scores at the last
    settle    the budget of settling
    fold      one slice of a training on a half of the data, with the update at its end
    n_folds   number of those slices

    The passes are those of ResNet-20, the dearest of the measured networks.
    """
    rows = json.loads((HERE / "results" / "evidence_cost_cpu.json").read_text())["rows"]
    measured = [r for r in rows if r["model"] == "resnet20" and "median" in r]
    passes = {r["candidate"]: float(r["median"]) for r in measured}
    plan = study.plan
    n_slices = len(plan.evaluation_epochs())
    update = passes[plan.online.curvature]
    kinds = [name for name in study.estimators if declared(name).is_laplace]
    draws = {k: draws_of(k) for k in kinds}
    last = sum(passes[k] * draws[k] for k in kinds)
    folds = predicted_folds(plan, study.estimators, 60_000).get("two_fold", 0)
    return {
        "main": plan.epochs + n_slices * update + last,
        "settle": plan.settle * plan.epochs,
        "fold": 0.5 * (plan.epochs / n_slices * (1 + plan.settle) + update),
        "n_folds": folds * n_slices,
    }


def core_epoch(rows: list[dict[str, Any]]) -> Callable[[dict[str, Any]], float]:
    """Return row -> seconds of an epoch on one core: measured, or by the rate of its family."""
    rates: dict[str, list[float]] = {}
    for row in rows:
        if row["step_seconds_of_a_core"]:
            rate = row["flops"] / row["step_seconds_of_a_core"]
            rates.setdefault(row["family"], []).append(rate)
    # Of the larger half: of small networks the rate is that of the overhead.
    typical = {family: statistics.median(sorted(r)[len(r) // 2 :]) for family, r in rates.items()}

    def seconds(row: dict[str, Any]) -> float:
        step = row["step_seconds_of_a_core"] or row["flops"] / typical[row["family"]]
        return float(row["steps_per_epoch"] * step)

    return seconds


def gpu_epoch(kind: str) -> Callable[[dict[str, Any]], float]:
    """Return row -> seconds of an epoch on an assumed GPU."""
    rate, launch_ms = GPUS[kind]

    def seconds(row: dict[str, Any]) -> float:
        computing = 3 * row["flops"] * 128 / rate
        launching = (row["depth"] + 1) * launch_ms / 1e3
        return float(row["steps_per_epoch"] * max(computing, launching))

    return seconds


def curves_of(
    epoch_seconds: dict[str, float], costs: dict[str, float]
) -> Callable[[Assignment], SimulatedTrial]:
    """Return trials with all their trainings; seconds of a plain epoch by architecture."""

    def curves(assignment: Assignment) -> SimulatedTrial:
        shape = assignment.architecture
        # The invented scores are for depths up to five; nothing here depends on them.
        values = {**shape.values, "depth": min(5, int(shape.values["depth"]))}
        shallow = shape.model_copy(update={"values": values})
        trial = synthetic(assignment.model_copy(update={"architecture": shallow}))
        epoch, whole = epoch_seconds[shape.key], costs["main"] + costs["settle"]
        return replace(
            trial,
            seconds_per_epoch=epoch * whole / assignment.plan.epochs,
            slices_before=int(costs["n_folds"]),
            slice_seconds_before=epoch * costs["fold"],
        )

    return curves


def plan_of(name: str, replicates: int) -> StudySpec:
    """Return a published grid, each architecture so many times.

    With the shipped `slice_timeout_seconds` the slices of the largest networks pass for hung.
    """
    study = grid(name)
    patient = study.resources.model_copy(update={"slice_timeout_seconds": SLICE_TIMEOUT})
    return study.model_copy(
        update={
            "n_trials": study.n_trials * replicates,
            "replicates": replicates,
            "resources": patient,
        }
    )


def part_plans(scratch: Path) -> list[dict[str, Any]]:
    """Simulate the grids, each by itself."""
    found = []
    for plan in PLANS:
        found.append(alone(simulate_plan, *plan, scratch))
        print(json.dumps(found[-1]), flush=True)
    return found


def simulate_plan(
    name: str, device: str, workers: int, replicates: int, scratch: Path
) -> dict[str, Any]:
    """Simulate one grid."""
    rows = json.loads(OUT.read_text())["slices"]["results"]
    epoch_seconds = core_epoch(rows) if device == "core" else gpu_epoch(device)
    of_grid = [row for row in rows if row["grid"] == name]
    study = plan_of(name, replicates)
    costs = costs_of(study)
    main, n_slices = costs["main"] + costs["settle"], len(study.plan.evaluation_epochs())
    whole = main + costs["n_folds"] * costs["fold"]
    seconds = {row["key"]: epoch_seconds(row) for row in of_grid}
    longest, total = max(seconds.values()), sum(seconds.values())
    asked = {
        "grid": name,
        "device": device,
        "replicates": replicates,
        "epochs_of_a_trial": costs | {"whole": whole, "plain": study.plan.epochs},
        "longest_slice_seconds": max(main / n_slices, costs["fold"]) * longest,
        "longest_trial_seconds": whole * longest,
        "device_seconds": replicates * whole * total,
    }
    return asked | simulate(study, curves_of(seconds, costs), scratch, workers)


# --- sweep


def swept(sampler: str, slice_seconds: float, workers: int, scratch: Path) -> dict[str, Any]:
    """Simulate up to three trials for two workers, each of eight slices of about this length."""
    study = StudySpec.model_validate(
        {
            "name": "sweep",
            "n_trials": max(100, min(3 * workers // 2, 1024)),
            "finalists": 0,
            "dataset": {"name": "digits"},
            "family": SPACE,
            "plan": {"epochs": 40, "online": {"every": 5}},
            "sampler": {"name": sampler},
            "resources": {"workers": workers, "gpus": 0},
        }
    )

    def curves(assignment: Assignment) -> SimulatedTrial:
        return replace(synthetic(assignment), seconds_per_epoch=slice_seconds / 5)

    asked = {"sampler": sampler, "slice_seconds": slice_seconds}
    return asked | simulate(study, curves, scratch, workers)


def part_sweep(scratch: Path) -> list[dict[str, Any]]:
    """Simulate from 8 to 1024 workers."""
    found = []
    lines = (("qmc", 10.0), ("qmc", 1.0), ("tpe", 10.0))
    for workers, (sampler, seconds) in itertools.product((8, 64, 256, 1024), lines):
        if (workers, sampler) == (1024, "tpe"):
            continue  # its proposals alone take a quarter of an hour
        found.append(alone(swept, sampler, seconds, workers, scratch))
        print(json.dumps(found[-1]), flush=True)
    return found


def part_plot(scratch: Path) -> None:
    """Draw idle share and driver load over the number of workers."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = json.loads(OUT.read_text())["sweep"]["results"]
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    titles = {
        "driver_share_of_a_core": "driver load (share of one core)",
        "idle_share": "time that workers wait",
    }
    for axis, (column, title) in zip(axes, titles.items(), strict=True):
        for sampler, seconds in dict.fromkeys((r["sampler"], r["slice_seconds"]) for r in rows):
            line = [r for r in rows if (r["sampler"], r["slice_seconds"]) == (sampler, seconds)]
            label = f"{sampler}, slices of {seconds:g} s"
            axis.plot([r["workers"] for r in line], [r[column] for r in line], "o-", label=label)
        axis.set(xscale="log", xlabel="workers", title=title, ylim=(0, 1.05))
        axis.set_xticks([8, 64, 256, 1024], ["8", "64", "256", "1024"])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].legend(frameon=False)
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=120)


PARTS = {"slices": part_slices, "plans": part_plans, "sweep": part_sweep, "plot": part_plot}


def main() -> None:
    """Run some parts; the others stay in the file as they are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()))
    given = parser.parse_args()
    for part in given.parts:
        before = surroundings(given.scratch)
        found = PARTS[part](given.scratch)
        if found is None:  # a picture
            continue
        results = json.loads(OUT.read_text()) if OUT.exists() else {}
        results[part] = {
            "surroundings": before | {"load_average_after": os.getloadavg()[0]},
            "results": found,
        }
        OUT.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
