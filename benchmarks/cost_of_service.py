"""What the search service costs beside the training: its driver, its start, its scale.

driver       milliseconds of the driver for one trial of three reports: ask, assignment, launch,
             reports, Parquet, tell; 8 simulated workers whose clock takes no time
largest      the same for `--largest` quasi-random trials; left, as if killed, in `--scratch`
resume       a fresh process on that folder until its first launch; then TPE on a copy of it
beside       one more trial beside n finished ones, TPE; with `--before FOLDER` also of another
             checkout, in turn
workers      slices a second of workers that do nothing, through Ray and the whole driver
first_slice  from the start of `nas-evidence search` to the first report and the first slice
tune         200 trials that do nothing, 2 workers: our driver and Ray Tune with OptunaSearch, in
             turns, each in a fresh process with a cluster of its own
small        seconds from the command to the exported winner of small tables: the first trial, the
             last one, the report, the end; the run of fewest seconds, and the ends of all
forecast     what a study is forecast to take beside what its trials take, CPU seconds
slices       of the published grids: flops of each architecture (exact, on the meta device), and a
             training step of some of them on one core
plans        those grids on a virtual clock, on 8 and 64 workers: as fast as a core (measured) or
             as GPUs of three kinds (assumed, see `GPUS`)
parts        the same with the folds of large networks as tasks of their own: a list of tasks,
             longest first, without the driver; from several sizes of a training on
divided      the same with the driver, as it divides trials
folder       studies of `--finished` trials in a folder, CPU seconds: to read the log, to check the
             files, to the first launch, to the launch of 1,000 idle workers; `status`, the report
redesign     what the log was to change: reads, lines, fsyncs, places of a width, lines of code
store        a store of 20 ms a request: `--stored` finished trials until the first launch of a
             fresh driver, and until `status`; then the requests of a trial of twenty slices
sweep        8 to 1024 workers, slices of 1 to 15 s: where the driver becomes the bottleneck

In `plans` and `sweep` the driver, the log and the files are the real ones, trials take virtual
time only. The driver's CPU time passes on the virtual clock too, as if it were alone on one core,
and Ray's part, which is not simulated, comes from `workers`.

    python benchmarks/cost_of_service.py driver largest resume --scratch FOLDER
    python benchmarks/cost_of_service.py small forecast --data DATA

A part replaces its own results in `benchmarks/results`, or in `--to`; `--small` runs the least of
each and stores in `--scratch`. Wall and CPU time: a busy machine shows in the first only. What an
fsync takes meanwhile is stored too. `small` wants an idle machine.
"""

import argparse
import contextlib
import heapq
import importlib
import itertools
import math
import operator
import os
import random
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import datetime
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd
from _common import (
    RESULTS,
    checkouts,
    conditions,
    hardware,
    read_json,
    show,
    spread,
    with_version,
    write_json,
)
from _no_op import SPACE, Stamps, Stop, clocks, ray_workers, study, tune_space, wide_study

import nas_evidence
from nas_evidence.api.control import status_in
from nas_evidence.driver.driver import Driver
from nas_evidence.driver.mirror import Mirror, working_copy
from nas_evidence.driver.status import study_status
from nas_evidence.proposing.startup import grid_points
from nas_evidence.spec.divisions import APART_FLOPS, predicted_folds
from nas_evidence.spec.registry import declared, draws_of
from nas_evidence.spec.schedule import stops
from nas_evidence.spec.study import ArchitectureSpec, Assignment, StudySpec
from nas_evidence.spec.toml import find_study, load_study
from nas_evidence.storage import tables
from nas_evidence.storage.conditions import note_conditions
from nas_evidence.storage.events import Asked, Ended, Launched, Merged, Told
from nas_evidence.storage.faults import CRASH_POINTS
from nas_evidence.storage.log import LOG, Log, log_files, read_log
from nas_evidence.storage.redo import find_done
from nas_evidence.storage.study_folder import open_study
from nas_evidence.storage.trial_row import TrialRow
from nas_evidence.workers.executor import Event, Executor, Launch
from nas_evidence.workers.inline import InlineExecutor
from nas_evidence.workers.stored import StoredWorker

sys.path.insert(0, str(Path(nas_evidence.__file__).parents[1] / "tests"))
from counted_store import CountedStore
from learning_curves import SimulatedTrial, synthetic
from records import at, curve_of, laplace, record_with
from simulated import SimulatedExecutor
from toy_worker import Toy

Row = dict[str, Any]
Options = argparse.Namespace
BLOCK = 100
PACKAGE = Path(nas_evidence.__file__).parent
#: Seconds that a request to the store of `store` takes, and slices of a trial there.
REQUEST_SECONDS, SLICES = 0.02, 20
#: Workers that `folder` fills, and the most trials of which it writes the report.
IDLE, MOST_REPORTED = 1000, 10_000
#: Trials of `tune`; as in `performance_tables.py`.
NO_OPS = 200

# --- the driver


def simulated_workers() -> Executor:
    """Return the pool that the driver's cost is measured with."""
    return SimulatedExecutor(synthetic, workers=8, seed=0)


def drive(sampler: str, n_trials: int, folder: Path, *, of: int | None = None) -> dict[str, Any]:
    """Return what the driver spends until `n_trials` more trials are over; `of` are planned."""
    watcher = Stamps(stop_after=n_trials)
    driver = Driver(study(of or n_trials, sampler), folder, simulated_workers(), watcher)
    watcher.ends = []  # the first trial carries the start of the loop; see `resume` for that
    watcher.stop_after = n_trials - 1
    with contextlib.suppress(Stop):
        driver.run()
    wall, cpu = (per_trial([stamp[i] for stamp in watcher.ends]) for i in (0, 1))
    return {
        "sampler": sampler,
        "trials": n_trials,
        "wall_ms": wall,
        "cpu_ms": cpu,
        "peak_mb": peak_megabytes(),
    }


def per_trial(stamps: list[float]) -> dict[str, Any]:
    """Return milliseconds per trial: mean of all and of each tenth; quartiles of blocks."""
    blocks = [(b - a) / BLOCK * 1e3 for a, b in itertools.pairwise(stamps[::BLOCK])]
    size = len(stamps) // 10
    tenths = [mean_of(stamps[i * size : (i + 1) * size]) for i in range(10)]
    found = {"mean": mean_of(stamps), "mean_of_each_tenth": tenths}
    return found | spread(blocks or [mean_of(stamps)])


def mean_of(stamps: list[float]) -> float:
    """Return the mean distance of stamps in milliseconds."""
    return (stamps[-1] - stamps[0]) / (len(stamps) - 1) * 1e3


def resume(folder: Path, n_trials: int) -> dict[str, Any]:
    """Return the time from a fresh driver on a folder to its first launch."""

    class FirstLaunch(SimulatedExecutor):
        def launch(self, launch: Launch) -> None:
            raise Stop

    began = clocks()
    executor = FirstLaunch(synthetic, workers=8, seed=0)
    driver = Driver(study(n_trials, "qmc"), folder, executor, Stamps())
    opened = clocks()
    try:
        driver.run()
    except Stop:
        launched = clocks()
    attempts = (folder / "checkpoints").glob("*/attempt-*")
    shutil.rmtree(max(attempts, key=lambda attempt: attempt.name))  # as it was before
    return {
        "wall_seconds": launched[0] - began[0],
        "cpu_seconds": launched[1] - began[1],
        "opening_wall_seconds": opened[0] - began[0],
        "peak_mb": peak_megabytes(),
    }


def slices(workers: int, epochs: int, folder: Path) -> dict[str, Any]:
    """Return how fast no-op slices pass through Ray and the driver, all workers busy."""
    watcher = Stamps()
    began = time.perf_counter()
    executor = ray_workers(workers, folder)
    try:
        while sum(w.ready_at is not None for w in executor.workers) < workers:
            executor.poll(timeout=1.0)
        ready = time.perf_counter() - began
        memory = worker_megabytes(executor)
        Driver(
            study(workers, "qmc", epochs=epochs, workers=workers), folder, executor, watcher
        ).run()
    finally:
        executor.close()
    # Those between the first end of a trial and the start of the last one are left out.
    busy = [s for s in watcher.slices if s[0] < watcher.ends[1][0]][workers:]
    wall, cpu = (mean_of([stamp[i] for stamp in busy]) for i in (0, 1))
    return {
        "workers": workers,
        "slices": len(busy),
        "slices_per_second": 1e3 / wall,
        "wall_ms_per_slice": wall,
        "driver_cpu_ms_per_slice": cpu,
        "seconds_until_all_workers_were_ready": ready,
        "workers_mb": memory,
    }


def worker_megabytes(executor: Any) -> dict[str, float]:
    """Return what workers hold: resident, and with shared pages shared out (Linux)."""
    import ray

    pids = ray.get([worker.actor.pid.remote() for worker in executor.workers])
    found: dict[str, float] = {"Rss": 0.0, "Pss": 0.0}
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in found:
                found[name] += float(rest.split()[0]) / 1024
    return {"resident": found["Rss"], "proportional": found["Pss"]}


def first_slice(executor: str, folder: Path) -> dict[str, float]:
    """Return the seconds from the start of a search to its first report and first slice."""
    script = Path(sys.executable).with_name("nas-evidence")
    command = [str(script), "search", "digits", "--out", str(folder), "--trials", "1"]
    command += ["--executor", executor, "--workers", "2", "--set", "plan.epochs=5"]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.time()
    subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    said = (folder / "logs" / "driver.log").read_text()
    found = re.findall(r"^(\S+ \S+) .* report trial_id=\d+ attempt=\d+ epoch=(\d+)$", said, re.M)
    when = "%Y-%m-%d %H:%M:%S,%f"
    reports = [(datetime.strptime(t, when).timestamp(), int(epoch)) for t, epoch in found]
    return {
        "report": reports[0][0] - began,
        "slice": next(t for t, epoch in reports if epoch > 0) - began,
        "cpu_of_the_whole_search": cpu,  # to its end, without processes that Ray left to init
    }


def ours(n: int, folder: Path) -> dict[str, float]:
    """Return seconds of `n` no-op trials through our driver; the cluster's start beside them."""
    began = clocks()
    executor = ray_workers(2, folder)
    started = clocks()
    try:
        Driver(study(n, "tpe", workers=2), folder, executor, Stamps()).run()
        return _timed(began, started, folder)
    finally:
        executor.close()


def tune(n: int, folder: Path) -> dict[str, float]:
    """Return the same through Ray Tune; its workers start within the search."""
    import optuna
    import ray
    from ray import tune as ray_tune
    from ray.tune.search.optuna import OptunaSearch

    class Trial(ray_tune.Trainable):  # type: ignore[misc]
        def step(self) -> dict[str, float]:
            return {"score": -float(self.config["width"]), "done": self.iteration >= 2}

        def reset_config(self, new_config: object) -> bool:
            return True

    began = clocks()
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    started = clocks()
    sampler = optuna.samplers.TPESampler(
        n_startup_trials=18, multivariate=True, group=True, constant_liar=True, seed=0
    )
    storage = optuna.storages.RDBStorage(f"sqlite:///{folder}/study.db")
    search = OptunaSearch(tune_space, metric="score", mode="max", sampler=sampler, storage=storage)
    results = ray_tune.Tuner(
        ray_tune.with_resources(Trial, {"cpu": 1}),
        tune_config=ray_tune.TuneConfig(
            metric="score",
            mode="max",
            search_alg=search,
            num_samples=n,
            max_concurrent_trials=2,
            reuse_actors=True,
        ),
        run_config=ray_tune.RunConfig(
            storage_path=str(folder),
            name="tune",
            verbose=0,
            # Its default saves the last state of each trial; ours has none to save here.
            checkpoint_config=ray_tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    ).fit()
    assert len(results) == n
    assert not results.errors
    found = _timed(began, started, folder)
    ray.shutdown()
    return found


def _timed(
    began: tuple[float, float], started: tuple[float, float], folder: Path
) -> dict[str, float]:
    now = clocks()
    return {
        "total_wall_seconds": now[0] - began[0],
        "start_wall_seconds": started[0] - began[0],
        "search_wall_seconds": now[0] - started[0],
        "search_cpu_seconds_of_the_driver": now[1] - started[1],
        "files": sum(path.is_file() for path in folder.rglob("*")),
    }


def peak_megabytes() -> float:
    """Return the most memory that this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def alone(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a function in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments, **options).result()


def surroundings(scratch: Path) -> Row:
    """Return what else decides about the figures."""
    times = []
    with (scratch / "fsync").open("wb", buffering=0) as file:
        for _ in range(50):
            began = time.perf_counter()
            file.write(bytes(4096))
            os.fsync(file.fileno())
            times.append((time.perf_counter() - began) * 1e3)
    packages = ("ray", "optuna", "pyarrow", "torch", "pydantic")
    return conditions("cost of the service", *packages) | {"fsync_ms": spread(times)}


def in_new_folder(scratch: Path, measure: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a fresh process with a new folder as its last argument, and show."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        return show(alone(measure, *arguments, Path(folder)))


def part_driver(options: Options) -> list[Row]:
    """Measure the driver on small studies."""
    sizes = (
        [(30, "qmc")]
        if options.small
        else [(100, "qmc"), (100, "tpe"), (1000, "qmc"), (1000, "tpe")]
    )
    return [
        in_new_folder(options.scratch, drive, sampler, n_trials)
        for n_trials, sampler in sizes
        for _ in range(options.repeats if n_trials == 100 else 1)  # the long ones have blocks
    ]


def part_largest(options: Options) -> Row:
    """Measure the driver on the largest study; leaves it, killed, in the scratch folder."""
    folder = options.scratch / "largest"
    shutil.rmtree(folder, ignore_errors=True)
    return dict(alone(drive, "qmc", options.largest, folder, of=options.largest + 100))


def part_resume(options: Options) -> Row:
    """Measure resuming on what `part_largest` left, then TPE on a copy of it."""
    folder, copy, largest = options.scratch / "largest", options.scratch / "copy", options.largest
    runs = show([alone(resume, folder, largest + 100) for _ in range(options.repeats)])
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    goes_on = show(alone(drive, "tpe", 30 if options.small else 90, copy, of=largest + 100))
    shutil.rmtree(copy)
    return {"finished_trials": largest, "runs": runs, "then_with_tpe": goes_on}


def part_beside(options: Options) -> list[Row]:
    """Measure one more trial beside n finished ones, on copies of one growing study."""
    packages = checkouts(options.before)
    scratch = Path(tempfile.mkdtemp(dir=options.scratch))
    growing, copy, rows, done = scratch / "growing", scratch / "copy", [], 0
    for size in options.sizes:
        grow = ("beside", "--one", "qmc", size - done, growing)
        with_version(packages["after"], __file__, *grow)
        done = size
        found: dict[str, list[float]] = {name: [] for name in packages}
        for _ in range(options.repeats):
            for name, package in packages.items():
                shutil.copytree(growing, copy)
                more = ("beside", "--one", "tpe", 30 if options.small else 60, copy)
                found[name].append(with_version(package, __file__, *more)["cpu_ms"]["mean"])
                shutil.rmtree(copy)
        spreads = {name: spread(ms) for name, ms in found.items()}
        rows.append(show({"finished": size, **spreads}))
    shutil.rmtree(scratch)
    return rows


def part_workers(options: Options) -> list[Row]:
    """Measure slices through Ray."""
    runs = (
        [(2, 10)] if options.small else [(8, 250)] * options.repeats + [(64, 50)] * options.repeats
    )
    return [in_new_folder(options.scratch, slices, *run) for run in runs]


def part_first_slice(options: Options) -> Row:
    """Measure the time to the first slice, in turns."""
    found: dict[str, list[dict[str, float]]] = {"inline": [], "ray": []}
    for _ in range(options.repeats):
        for executor, runs in found.items():
            with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
                runs.append(show(first_slice(executor, Path(folder) / "study")))
    return {executor: spreads(runs) for executor, runs in found.items()}


def part_tune(options: Options) -> Row:
    """Measure our driver and Ray Tune in turns, each time in another order."""
    ways: list[tuple[str, Callable[..., Any]]] = [("ours", ours), ("tune_reuse_actors", tune)]
    n = 20 if options.small else NO_OPS
    found: dict[str, list[dict[str, float]]] = {name: [] for name, _ in ways}
    for turn in range(options.repeats):
        for name, way in ways[turn % 2 :] + ways[: turn % 2]:
            found[name].append(in_new_folder(options.scratch, way, n))
    return {name: spreads(runs) for name, runs in found.items()}


def spreads(runs: list[dict[str, float]]) -> Row:
    """Return median and range of each measure of some runs."""
    return {key: spread([run[key] for run in runs]) for key in runs[0]}


# --- small studies and the forecast


def part_small(options: Options) -> list[Row]:
    """Measure searches of tables; other rows stay in the file as they are."""
    from _sets import raw

    stored = read_json(options.to / "small_studies_cpu.json", {"runs": []})["runs"]
    for name, n_rows in itertools.product(options.sets, options.rows):
        x, y = raw(name, options.data)
        frame = pd.DataFrame(x, columns=[f"x{i}" for i in range(x.shape[1])])
        frame["target"] = [f"class {label}" for label in y] if y.ndim == 1 else y[:, 0]
        with tempfile.TemporaryDirectory() as folder:
            table = Path(folder) / f"{name}.csv"
            frame.sample(n_rows, random_state=0).to_csv(table, index=False)
            again = range(options.repeats)
            runs = [seconds_of_study(table, options.trials, race=options.race) for _ in again]
        row = {"data": name, "rows": n_rows, "trials": options.trials, "race": options.race}
        best = min(runs, key=lambda one: one["end"])
        found = {**row, "hardware": hardware("all"), **best, "ends": [one["end"] for one in runs]}
        stored = [one for one in stored if not row.items() <= one.items()] + [show(found)]
    return stored


def seconds_of_study(table: Path, trials: int, *, race: bool) -> dict[str, float]:
    """Return the seconds after which a search of a table shows each piece."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "nas_evidence", "search", str(table)]
        command += ["--target", "target", "--trials", str(trials), "--out", f"{folder}/study"]
        command += [] if race else ["--set", "finalists=0"]
        began, shown = time.monotonic(), {}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
            assert process.stdout is not None
            for line in process.stdout:
                now = round(time.monotonic() - began, 1)
                if re.match(r"\[(\d+/\d+|race)\]", line):
                    shown.setdefault("first_trial", now)
                    shown["last_trial"] = now
                elif line.startswith(("report:", "export:")):
                    shown[line.partition(":")[0]] = now
        assert process.returncode == 0, f"{command} failed"
        return shown | {"end": round(time.monotonic() - began, 1)}


#: Study: data, most training rows, trials, settings.
STUDIES: dict[str, tuple[str, int, int, dict[str, Any]]] = {
    "small table, classes": ("ionosphere", 300, 4, {}),
    "small table, real targets": ("bostonHousing", 300, 3, {}),
    "larger table, classes": ("satellite", 1000, 3, {}),
    "8x8 images": ("digits", 500, 5, {"plan.epochs": 10}),
    "28x28 images": ("fashion_mnist", 1500, 3, {"plan.epochs": 5}),
}


def trial_of(row: Any) -> ArchitectureSpec:
    """Return the architecture of a row of the table `trials`."""
    named = {n.removeprefix("arch_"): row[n] for n in row.index if n.startswith("arch_")}
    values = {n: v.item() if hasattr(v, "item") else v for n, v in named.items() if not pd.isna(v)}
    return ArchitectureSpec(family=row["family"], values=values)


def forecast_of(folder: Path, name: str, n_trials: int) -> dict[str, Any]:
    """Run a study and forecast its trials."""
    import tables
    import torch

    from nas_evidence.data import load
    from nas_evidence.data.tensors import to_tensors
    from nas_evidence.driver import runtime

    time.perf_counter = time.process_time  # whatever times a piece
    torch.set_num_threads(1)
    data, rows, most, settings = STUDIES[name]
    n_trials = min(n_trials, most)
    images = data in ("digits", "fashion_mnist")
    given: dict[str, Any] = {"data": data, "data_root": folder if images else None}
    settings = {**settings, "finalists": 0}
    if images:
        settings |= {"dataset.max_train": rows, "dataset.max_test": 200}
    else:
        tables.MOST_TRAIN = rows
        train, _ = tables.split(tables.read(folder, data), 0)
        real = train["target"].dtype.kind == "f"
        given = {"data": train, "target": "target"}
        given["task"] = "regression" if real else "classification"
    with tempfile.TemporaryDirectory() as where:
        out = Path(where) / "study"
        study = nas_evidence.search(
            **given, n_trials=n_trials, settings=settings, out=out, progress=False
        )
        spec = study.spec
        root = str(folder) if images else None
        arrays = load(spec.dataset, seed=spec.seed, data_root=root, base=out.resolve())
        trials = nas_evidence.read_table(out, "trials")
    tensors = to_tensors(arrays, "cpu")
    found: list[dict[str, Any]] = []
    for _, row in trials.iterrows():
        pieces = runtime.pieces_of(trial_of(row), spec, tensors)
        forecast = runtime.trial_seconds(pieces, spec.plan, spec.estimators, len(tensors.x_train))
        seconds = {n: row[f"{n}_seconds"] for n in ("train", "evidence", "settle", "total")}
        found.append(
            {
                "family": row["family"],
                "n_parameters": int(row["n_parameters"]),
                "forecast": round(forecast + runtime._TRIAL_SECONDS, 3),
                **{n: None if pd.isna(v) else round(float(v), 3) for n, v in seconds.items()},
                "pieces": {n: round(v, 5) for n, v in vars(pieces).items()},
            }
        )
    ratio = sum(one["forecast"] for one in found) / sum(one["total"] for one in found)
    return {"study": name, "ratio": round(ratio, 2), "trials": found}


def part_forecast(options: Options) -> list[Row]:
    """Forecast the trials of each study and run them."""
    names = list(STUDIES)[: 1 if options.small else None]
    most = 2 if options.small else 100
    return [show(alone(forecast_of, options.data, name, most)) for name in names]


# --- the published grids on a virtual clock

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
#: Orders of the trials of a grid.
LONGEST, OF_GRID = "longest first", "of the grid"
#: Grid, device, workers, replicates, order.
PLANS = (
    ("fashion_mnist", "core", 64, 1, LONGEST),
    *((name, "middle", workers, 1, LONGEST) for name in GRIDS for workers in (8, 64)),
    *((name, "middle", 8, 1, OF_GRID) for name in GRIDS),
    ("cifar10", "slow", 64, 1, LONGEST),
    ("cifar10", "fast", 64, 1, LONGEST),
    ("cifar10", "middle", 64, 5, LONGEST),
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
    rows = read_json(RESULTS / "service_overhead_cpu.json")["slices"]["results"]
    return statistics.median(row["driver_cpu_ms_per_slice"] for row in rows) / 1e3


def simulate(
    study: StudySpec,
    curves: Callable[[Assignment], SimulatedTrial],
    scratch: Path,
    workers: int,
    flops: Callable[[ArchitectureSpec], float] | None = None,
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
        driver = Driver(study, folder, pool, watcher, flops=flops)
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
        "journal_bytes": sum(path.stat().st_size for path in log_files(folder)),
    }


# --- slices


def grid(name: str) -> StudySpec:
    """Return a published study as it is shipped."""
    return load_study(find_study(name))


def part_slices(options: Options) -> list[dict[str, Any]]:
    """Return flops of all architectures, and seconds of a training step of the smaller ones."""
    import torch

    from nas_evidence.proposing.startup import startup_points
    from nas_evidence.training.cost import cost_of

    torch.set_num_threads(1)
    rows = []
    for name in GRIDS:
        study, (shape, n_outputs, n_train) = grid(name), SHAPES[name]
        points = {point.key: point for point in startup_points(study)}
        for point in [*points.values()][: 2 if options.small else None]:
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
            rows.append(show(row))
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
    rows = read_json(RESULTS / "evidence_cost_cpu.json")["rows"]
    measured = [r for r in rows if r["model"] == "resnet20" and "median" in r]
    passes = {r["candidate"]: float(r["median"]) for r in measured}
    plan = study.plan
    n_slices = len(stops(plan))
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
    epoch_seconds: dict[str, float],
    costs: dict[str, float],
    flops: dict[str, float],
    apart_from: float = math.inf,
) -> Callable[[Assignment], SimulatedTrial]:
    """Return trials with all their trainings.

    Args:
        epoch_seconds: of a plain epoch, by architecture.
        costs: of a trial, in plain epochs.
        flops: of an architecture.
        apart_from: flops from which the halves of a trial are tasks of their own.
    """

    def curves(assignment: Assignment) -> SimulatedTrial:
        shape = assignment.architecture
        # The invented scores are for depths up to five; nothing here depends on them.
        values = {**shape.values, "depth": min(5, int(shape.values["depth"]))}
        shallow = shape.model_copy(update={"values": values})
        trial = synthetic(assignment.model_copy(update={"architecture": shallow}))
        epoch, whole = epoch_seconds[shape.key], costs["main"] + costs["settle"]
        halves = (0.5, 0.5) if flops[shape.key] >= apart_from else ()
        return replace(
            trial,
            costs={**trial.costs, "flops": flops[shape.key]},
            parts=halves,
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


def part_plans(options: Options) -> list[Row]:
    """Simulate the grids, each by itself."""
    plans = PLANS[:1] if options.small else PLANS
    return [show(alone(simulate_plan, *plan, options.scratch)) for plan in plans]


def part_divided(options: Options) -> list[Row]:
    """Simulate the grids with trials divided as the driver divides them."""
    plans = [(name, "middle", workers, 1, LONGEST) for name in GRIDS for workers in (8, 64)]
    chosen = plans[:1] if options.small else plans
    return [show(alone(simulate_plan, *plan, options.scratch, divided=True)) for plan in chosen]


def simulate_plan(
    name: str,
    device: str,
    workers: int,
    replicates: int,
    order: str,
    scratch: Path,
    *,
    divided: bool = False,
) -> dict[str, Any]:
    """Simulate one grid, the longest trials first or in the order of the grid."""
    rows = read_json(RESULTS / "scale.json")["slices"]["results"]
    epoch_seconds = core_epoch(rows) if device == "core" else gpu_epoch(device)
    of_grid = [row for row in rows if row["grid"] == name]
    study = plan_of(name, replicates)
    costs = costs_of(study)
    main, n_slices = costs["main"] + costs["settle"], len(stops(study.plan))
    whole = main + costs["n_folds"] * costs["fold"]
    seconds = {row["key"]: epoch_seconds(row) for row in of_grid}
    longest, total = max(seconds.values()), sum(seconds.values())
    asked = {
        "grid": name,
        "device": device,
        "replicates": replicates,
        "order": order,
        "epochs_of_a_trial": costs | {"whole": whole, "plain": study.plan.epochs},
        "longest_slice_seconds": max(main / n_slices, costs["fold"]) * longest,
        "longest_trial_seconds": whole * longest,
        "device_seconds": replicates * whole * total,
    }
    flops = {row["key"]: float(row["flops"]) for row in of_grid}
    known = (lambda one: flops[one.key]) if order == LONGEST else None
    least = APART_FLOPS / (3 * SHAPES[name][2] * study.plan.epochs) if divided else math.inf
    curves = curves_of(seconds, costs, flops, least)
    return asked | simulate(study, curves, scratch, workers, known)


# --- parts

#: Devices, and flops of a main training from which its folds are tasks of their own; None: never.
SPLITS = (
    *(("middle", least) for least in (None, 4e15, 1e15, 0.0)),
    *((device, least) for device in ("slow", "fast") for least in (None, 1e15)),
)


def listed(tasks: list[tuple[float, float, int]], workers: int) -> float:
    """Return when the last task ends if each idle worker takes the next one, the longest first.

    Args:
        tasks: work that is known in advance, seconds, and slices, whose lengths vary by 10 %.
        workers: of equal speed.
    """
    vary = random.Random(0)
    free = [0.0] * workers
    for _, seconds, n_slices in sorted(tasks, key=lambda task: -task[0]):
        spread_of_it = sum(math.exp(0.1 * vary.gauss(0, 1)) for _ in range(n_slices)) / n_slices
        heapq.heapreplace(free, free[0] + seconds * spread_of_it)
    return max(free)


def part_parts(options: Options) -> list[Row]:
    """Return how long the grids take with folds as tasks."""
    rows, found = read_json(RESULTS / "scale.json")["slices"]["results"], []
    for name, (device, least) in itertools.product(GRIDS, SPLITS):
        study, epoch_seconds = grid(name), gpu_epoch(device)
        costs, n_slices = costs_of(study), len(stops(study.plan))
        n_folds = int(costs["n_folds"]) // n_slices
        main, fold = costs["main"] + costs["settle"], costs["fold"] * n_slices
        tasks: list[tuple[float, float, int]] = []
        of_grid = [row for row in rows if row["grid"] == name]
        for row in of_grid:
            flops = 3 * row["flops"] * SHAPES[name][2] * study.plan.epochs
            epoch = epoch_seconds(row)
            if least is not None and flops >= least:
                tasks += [(flops, main * epoch, n_slices)]
                tasks += n_folds * [(flops / 2, fold * epoch, n_slices)]
            else:
                tasks += [(2 * flops, (main + n_folds * fold) * epoch, (1 + n_folds) * n_slices)]
        total, longest = (of(task[1] for task in tasks) for of in (sum, max))
        found += [
            show({
                "grid": name, "device": device, "from_flops": least, "workers": workers,
                "in_parts": (len(tasks) - len(of_grid)) // n_folds,
                "wall_seconds": listed(tasks, workers),
                "least_seconds": max(longest, total / workers),
            })
            for workers in (8, 64)
        ]  # fmt: skip
    return found


# --- store


def made(n_trials: int, folder: Path, asked: StudySpec) -> None:
    """Write a study with so many finished trials, as its driver would have left it."""
    spec = open_study(folder, asked)
    digest, _ = note_conditions(folder, spec, "")
    log, rows = Log(folder), dict[str, list[Any]]()
    for number, architecture in enumerate(itertools.islice(grid_points(asked), n_trials)):
        log.write(Asked(number=number, architecture=architecture))
        log.write(Launched(trial_id=number, attempt=1))
        score = laplace(-0.5 - number / 1e6, kind=spec.objective)
        record = record_with(
            number,
            architecture=architecture,
            evaluations=at(spec.plan.epochs, score),
            curve=curve_of(lambda epoch: 1 / epoch, spec.plan.epochs),
            content_hash=digest,
            stage="search",
        )
        merged = number < n_trials - n_trials % tables.COMPACT_AT
        files = {} if merged else tables.write_record(folder, record, spec)
        log.write(Ended(row=TrialRow.of(record), files=files, wall_seconds=1.0))
        log.write(Told(number=number, values=(score.value,), pruned=False, constraints={}))
        if not merged:
            continue
        for table, found in tables.rows_of_record(record).items():
            rows.setdefault(table, []).extend(found)
        if (number + 1) % tables.COMPACT_AT == 0:
            part, digests = f"part-{number:032x}", dict[str, str]()
            for table in tables.TABLES:
                path, content = folder / table / f"{part}.parquet", rows.pop(table)
                digests[table] = tables._write_table(
                    path, tables._arrow_table(table, content, spec)
                )
            attempts = tuple((i, 1) for i in range(number + 1 - tables.COMPACT_AT, number + 1))
            log.write(Merged(part=part, files=digests, attempts=attempts))
    log.close()


def resumed_in_folder(n_trials: int, folder: Path) -> Row:
    """Return what a fresh driver takes until its first launch, and until all workers have one."""
    asked, before = wide_study(n_trials + IDLE, IDLE), log_files(folder)
    at_first, memory = 0.0, peak_megabytes()

    class Launches(SimulatedExecutor):
        def launch(self, launch: Launch) -> None:
            nonlocal at_first
            at_first = at_first or time.process_time()
            super().launch(launch)
            if not self.free:
                raise Stop

    began = time.process_time()
    read_log(folder)
    read = time.process_time()
    finds = find_done(folder)
    checked = time.process_time()
    pool = Launches(synthetic, workers=IDLE, seed=0, writes_files=False)
    with contextlib.suppress(Stop):
        Driver(asked, folder, pool, Stamps(), finds=finds).run()
    launched = time.process_time()
    shutil.rmtree(folder / "checkpoints")
    for segment in log_files(folder)[len(before) :]:
        segment.unlink()
    reading = read - began
    return {
        "read_seconds": reading,
        "check_seconds": checked - read,
        "resume_seconds": at_first - read,
        "fill_seconds": launched - at_first,
        "peak_mb": peak_megabytes(),
        "imports_mb": memory,
    }


def looked_at(n_trials: int, folder: Path, report: bool) -> Row:
    """Return what `status` takes of a study, and the report."""
    wide_study(n_trials)
    began = time.process_time()
    assert status_in(working_copy(str(folder)))["n_finished"] == n_trials
    found: Row = {"status_seconds": time.process_time() - began}
    if report:
        from nas_evidence.reporting.contents import report_on
        from nas_evidence.reporting.page import write_report
        from nas_evidence.reporting.study_tables import load_study_tables

        began = time.process_time()
        page = write_report(report_on(load_study_tables(folder)), folder / "report").html
        found["report_seconds"] = time.process_time() - began
        found["page_mb"] = page.stat().st_size / 1e6
    return found


def part_folder(options: Options) -> list[Row]:
    """Measure studies in a folder."""
    found = []
    for n in options.finished:
        with tempfile.TemporaryDirectory(dir=options.scratch) as name:
            folder = Path(name) / "study"
            alone(made, n, folder, wide_study(n + IDLE))
            of_log = sum(file.stat().st_size for file in log_files(folder)) / 1e6
            runs = [alone(resumed_in_folder, n, folder) for _ in range(options.repeats)]
            reports = n <= MOST_REPORTED
            looks = [alone(looked_at, n, folder, reports) for _ in range(options.repeats)]
        found.append(show({"trials": n, "log_mb": of_log} | spreads(runs) | spreads(looks)))
    return found


# --- the redesign of the log

#: Rooms of the service.
ROOMS = ("driver", "workers", "storage", "proposing", "jobs", "plumbing", "spec")
#: What passes a call `advance` on, over Ray with a store.
HOPS = (
    "driver.mirror:MirroredExecutor.advance",
    "workers.pool:Pool.advance",
    "workers.pool:Pool._call",
    "workers.on_ray:RayExecutor._ask",
    "workers.on_ray:_Actor.call",
    "workers.process:WorkerProcess.call",
    "workers.stored:StoredWorker.advance",
    "workers.worker:Worker.advance",
    "workers.trial:Trial.advance",
)
#: What makes a checksum, each in a form of its own.
CHECKSUMS = (
    "plumbing.seals:sealed",
    "plumbing.seals:seal_object",
    "plumbing.seals:sealed_toml",
    "plumbing.tensor_seals:sealed_tensors",
    "plumbing.table_checksum:sealed",
    "plumbing.sums:write_sums",
    "storage.tables:file_digest",
)
#: At commit d34b7fd.
BEFORE: dict[str, float] = {
    "log_reads_until_first_launch": 10,
    "log_lines_per_trial": 8.0,
    "fsyncs_per_trial": 11.1,
    "opening_300_trials_cpu_seconds": 0.72,
    "places_of_a_width": 7,
    "hops_of_advance": 9,
    "crash_points": 10,
    "checksum_formats": 7,
    "service_lines": 13_423,
    "service_files": 89,
}


def known(names: tuple[str, ...]) -> int:
    """Return how many these are; each must be there."""
    for name in names:
        module, _, attribute = name.partition(":")
        operator.attrgetter(attribute)(importlib.import_module(f"nas_evidence.{module}"))
    return len(names)


def reads_of_log(folder: Path, run: Callable[[], object]) -> int:
    """Return how often a call opens the same file of the log to read it."""
    opened = Counter[str]()
    home, counts = str(folder / LOG), True

    def look(event: str, given: tuple[Any, ...]) -> None:
        if counts and event == "open" and str(given[0]).startswith(home):
            opened[str(given[0])] += given[2] & os.O_ACCMODE == os.O_RDONLY

    sys.addaudithook(look)  # for good
    run()
    counts = False
    return max(opened.values(), default=0)


def until_first_launch(asked: StudySpec, folder: Path) -> None:
    """Resume a study until its first launch."""

    class FirstLaunch(SimulatedExecutor):
        def launch(self, launch: Launch) -> None:
            raise Stop

    with contextlib.suppress(Stop):
        Driver(asked, folder, FirstLaunch(synthetic, workers=8, seed=0), Stamps()).run()


def of_300_trials(scratch: Path) -> Row:
    """Return what trials of three reports leave and cost, and what opening them again takes."""
    n, asked, syncs, fsync = 300, study(300, "random"), Counter[str](), os.fsync
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        folder = Path(name) / "study"
        pool = Clocked(synthetic, workers=8, seed=0, ray_seconds=0.0, writes_files=False)
        driver = Driver(asked, folder, pool, Stamps())

        def counting(file: Any) -> None:
            syncs["all"] += 1
            fsync(file)

        os.fsync = counting
        try:
            driver.run()
        finally:
            os.fsync = fsync
        logs = [path for path in folder.glob("logs/**/*.jsonl") if path.is_file()]
        n_lines = sum(path.read_bytes().count(b"\n") for path in logs)
        began = time.process_time()
        Driver(asked, folder, pool, Stamps())
        opening = time.process_time() - began
        reads = reads_of_log(folder, partial(until_first_launch, study(n + 8, "random"), folder))
    return {
        "log_reads_until_first_launch": reads,
        "log_lines_per_trial": round(n_lines / n, 1),
        "fsyncs_per_trial": round(syncs["all"] / n, 1),
        "opening_300_trials_cpu_seconds": opening,
        "driver_cpu_ms_per_trial": pool.driver_seconds / n * 1e3,
    }


def places_of_a_width(scratch: Path) -> int:
    """Return how often the files of a study of one trial say the width of its network."""
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        folder = Path(name) / "study"
        small: Row = {"plan.epochs": 1, "dataset.max_train": 100, "dataset.max_test": 20}
        small |= {"family": {"mlp": {"width": {"low": 4, "high": 64}}}, "finalists": 0}
        nas_evidence.search("digits", n_trials=1, settings=small, out=folder, progress=False)
        (proposed,) = read_log(folder).state.proposals.values()
        said = re.compile(rb'"width\\*": ?%d\b' % int(proposed.values["width"]))
        stored = [*folder.glob("logs/**/*.jsonl"), *folder.glob("models/*")]
        found = sum(len(said.findall(path.read_bytes())) for path in stored if path.is_file())
        return found + ("arch_width" in tables.read_table(folder, "trials"))


def part_redesign(options: Options) -> list[Row]:
    """Measure what the redesign of the log was to change."""
    runs = [alone(of_300_trials, options.scratch) for _ in range(options.repeats)]
    now = {name: of["median"] for name, of in spreads(runs).items()}
    sources = [path for room in ROOMS for path in (PACKAGE / room).rglob("*.py")]
    now |= {
        "places_of_a_width": alone(places_of_a_width, options.scratch),
        "hops_of_advance": known(HOPS),
        "crash_points": len(CRASH_POINTS),
        "checksum_formats": known(CHECKSUMS),
        "service_lines": sum(path.read_bytes().count(b"\n") for path in sources),
        "service_files": len(sources),
    }
    return [show({"what": key, "before": BEFORE.get(key), "now": now[key]}) for key in now]


def left_at_store(n_trials: int, folder: Path) -> Row:
    """Return what a store takes with so many finished trials, made unless they are there."""
    asked = study(n_trials + 100, "qmc")
    if not (folder / "study.toml").exists():
        made(n_trials, folder, asked)
    uri = f"counted://left/{n_trials}"
    Mirror(uri, folder).push(logs=True)
    files = CountedStore.objects.values()
    found = {"trials": n_trials, "files": len(files), "mb": sum(len(c) for c, _ in files) / 1e6}
    CountedStore.reset(REQUEST_SECONDS)
    looking = Mirror(uri)
    looking.looking = "status"
    for name in ("status", "second_look"):
        began = clocks()
        looking.pull()
        fetched = clocks()
        if name == "status":
            assert study_status(looking.folder).n_finished >= n_trials
        found[name] = {"fetch_seconds": fetched[0] - began[0]} | requested(began)
    return found | {"resume": resumed_at_store(uri, asked)}


def resumed_at_store(uri: str, asked: StudySpec) -> Row:
    """Return the time from a fresh driver to its first launch, all it needs fetched first."""

    class FirstLaunch(SimulatedExecutor):
        def launch(self, launch: Launch) -> None:
            found.update(requested(began))
            raise Stop

    found: Row = {}
    began = clocks()
    copy = Mirror(uri)
    with contextlib.suppress(Stop), copy.held():
        found["fetch_seconds"] = clocks()[0] - began[0]
        spec = open_study(copy.folder, asked)
        executor = copy.around(FirstLaunch(synthetic, workers=8, seed=0))
        Driver(spec, copy.folder, executor, Stamps()).run()
    return found


def requested(began: tuple[float, float]) -> Row:
    """Return the seconds since then and the requests, and forget the requests."""
    now = clocks()
    found = {"wall_seconds": now[0] - began[0], "cpu_seconds": now[1] - began[1]}
    found |= {
        "requests": dict(CountedStore.requests),
        "fetched_mb": CountedStore.n_bytes["get"] / 1e6,
    }
    CountedStore.reset(REQUEST_SECONDS)
    return found


def searched_at_store(n_trials: int) -> Row:
    """Return the requests of trials of twenty slices; one worker, nothing trained."""
    uri, began = "counted://searched/s", clocks()
    CountedStore.reset(REQUEST_SECONDS)
    copy = Mirror(uri)
    with copy.held():
        spec = open_study(copy.folder, study(n_trials, "qmc", epochs=SLICES))
        worker = partial(StoredWorker, uri, make_worker=Toy)
        executor = copy.around(InlineExecutor(None, spec.resources, make_worker=worker))
        Driver(spec, copy.folder, executor, Stamps()).run()
    kinds = Counter(
        f"{kind} {'checkpoint' if key.endswith('.pt') else 'other'}"
        for kind, key in CountedStore.log
    )
    per_trial = {kind: n / n_trials for kind, n in sorted(kinds.items())}
    return {"trials": n_trials, "slices": SLICES, "per_trial": per_trial} | requested(began)


def part_store(options: Options) -> list[Row]:
    """Measure a store that takes 20 ms a request."""
    rows = [show(alone(left_at_store, n, options.scratch / f"stored-{n}")) for n in options.stored]
    return [*rows, show(alone(searched_at_store, 2 if options.small else 40))]


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


def part_sweep(options: Options) -> list[Row]:
    """Simulate from 8 to 1024 workers."""
    lines = (("qmc", 10.0), ("qmc", 1.0), ("tpe", 10.0))
    # The proposals of TPE for 1,000 workers alone take a quarter of an hour.
    most = [(1024, ("qmc", seconds)) for seconds in (15.0, 10.0, 1.0)]
    found = []
    for n, (sampler, seconds) in [*itertools.product((8, 64, 256), lines), *most]:
        found.append(show(alone(swept, sampler, seconds, n, options.scratch)))
        if options.small:
            break
    return found


#: Part -> what measures it, its file, and its key there ("" for a file of its own).
PARTS: dict[str, tuple[Callable[[Options], Any], str, str]] = {
    "driver": (part_driver, "service_overhead_cpu.json", "driver"),
    "largest": (part_largest, "service_overhead_cpu.json", "largest"),
    "resume": (part_resume, "service_overhead_cpu.json", "resume"),
    "workers": (part_workers, "service_overhead_cpu.json", "slices"),
    "first_slice": (part_first_slice, "service_overhead_cpu.json", "first_slice"),
    "tune": (part_tune, "service_overhead_cpu.json", "tune"),
    "beside": (part_beside, "driver_cost_cpu.json", "rows"),
    "small": (part_small, "small_studies_cpu.json", "runs"),
    "forecast": (part_forecast, "forecast_cpu.json", "runs"),
    "slices": (part_slices, "scale.json", "slices"),
    "plans": (part_plans, "scale.json", "plans"),
    "parts": (part_parts, "scale.json", "parts"),
    "divided": (part_divided, "scale.json", "divided"),
    "folder": (part_folder, "scale.json", "folder"),
    "redesign": (part_redesign, "log_redesign.json", "rows"),
    "store": (part_store, "scale.json", "store"),
    "sweep": (part_sweep, "scale.json", "sweep"),
}


def main() -> None:
    """Measure some parts; the others stay in the files as they are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="+", choices=PARTS, metavar="|".join(PARTS))
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--largest", type=int, default=10_000)
    parser.add_argument("--before", type=Path, help="a checkout that `beside` compares with")
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1000, 2000, 10_000])
    parser.add_argument("--stored", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--finished", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--data", type=Path, help="folder of the data of `small` and `forecast`")
    parser.add_argument("--sets", nargs="+", default=["waveform", "bostonHousing"])
    parser.add_argument("--rows", type=int, nargs="+", default=[300])
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--race", action="store_true")
    parser.add_argument("--small", action="store_true", help="the least of each part")
    parser.add_argument("--to", type=Path, default=RESULTS)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.scratch = options.scratch.resolve()
    if options.one:
        sampler, trials, folder = options.one
        show(drive(sampler, int(trials), Path(folder), of=11_000))
        return
    if options.small:
        options.repeats, options.largest, options.sizes, options.trials = 1, 30, [30], 2
        options.stored = options.finished = [30]
        options.sets, options.to = options.sets[:1], options.scratch
    for part in options.parts:
        measure, file, key = PARTS[part]
        before = surroundings(options.scratch)
        found = measure(options)
        stored = read_json(options.to / file, {})
        if key in ("rows", "runs"):
            stored |= {} if part == "small" else {"surroundings": before}
            write_json(options.to / file, {**stored, key: found}, rows=key)
        else:
            around = before | {"load_after": round(os.getloadavg()[0], 1)}
            stored[key] = {"surroundings": around, "results": found}
            write_json(options.to / file, stored)


if __name__ == "__main__":
    main()
