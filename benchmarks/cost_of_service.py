"""What the search service costs beside the training: its driver, its start, its scale.

    python -m benchmarks.run ray_slices [--only workers=8]
    python -m benchmarks.run small_searches --data DATA

Cases of `run.py`; seconds are CPU seconds of the process, or `wall`.

ray_slices      slices a second of workers that do nothing, through Ray and the whole driver
first_report    from the start of `nas-evidence search` to the first report and the first slice
no_ops          200 trials that do nothing, 2 workers: our driver and Ray Tune with OptunaSearch,
                in turns, each in a fresh process with a cluster of its own
beside          milliseconds of the driver for one more trial beside n finished ones, TPE; 8
                simulated workers whose clock takes no time
small_searches  seconds from the command to each piece of small tables; wants an idle machine
forecast        what a study is forecast to take beside what its trials take
grids           of the published grids: flops of each architecture, exact, on the meta device
grid_plans      those grids on a virtual clock, on 8 and 64 GPUs of an assumed speed, the longest
                trials first
folder          studies of n trials in a folder: to read the log, to check the files, to the first
                launch, to the launch of 1,000 idle workers; `status`, the report
store           a store of 20 ms a request: n finished trials until the first launch of a fresh
                driver, and until `status`; then the requests of a trial of twenty slices
sweep           8 to 1024 workers, slices of 1 to 15 s: where the driver becomes the bottleneck

In `grid_plans` and `sweep` the driver, the log and the files are the real ones, trials take
virtual time only. The driver's CPU time passes on the virtual clock too, as if it were alone on
one core, and Ray's part, which is not simulated, comes from `ray_slices`.
"""

import contextlib
import itertools
import math
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
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from _common import RESULTS, spread
from _no_op import SPACE, Stamps, Stop, clocks, ray_workers, study, tune_space, wide_study
from _sets import raw
from run import Case, Given, Row, alone, cells_of, stored

import nas_evidence
from nas_evidence.api.control import status_in
from nas_evidence.driver.driver import Driver
from nas_evidence.driver.mirror import Mirror, working_copy
from nas_evidence.driver.status import study_status
from nas_evidence.proposing.startup import grid_points, startup_points
from nas_evidence.spec.divisions import predicted_folds
from nas_evidence.spec.registry import declared, draws_of
from nas_evidence.spec.schedule import stops
from nas_evidence.spec.study import ArchitectureSpec, Assignment, StudySpec
from nas_evidence.spec.toml import find_study, load_study
from nas_evidence.storage import tables
from nas_evidence.storage.conditions import note_conditions
from nas_evidence.storage.events import Asked, Ended, Launched, Merged, Told
from nas_evidence.storage.log import Log, log_files, read_log
from nas_evidence.storage.redo import find_done
from nas_evidence.storage.study_folder import open_study
from nas_evidence.storage.trial_row import TrialRow
from nas_evidence.workers.executor import Event, Launch
from nas_evidence.workers.inline import InlineExecutor
from nas_evidence.workers.stored import StoredWorker

sys.path.insert(0, str(Path(nas_evidence.__file__).parents[1] / "tests"))
from counted_store import CountedStore
from learning_curves import SimulatedTrial, synthetic
from records import at, curve_of, laplace, record_with
from simulated import SimulatedExecutor
from toy_worker import Toy

#: Seconds that a request to the store of `store` takes, and slices of a trial there.
REQUEST_SECONDS, SLICES = 0.02, 20
#: Workers that `folder` fills, and the most trials of which it writes the report.
IDLE, MOST_REPORTED = 1000, 10_000
#: Trials of `no_ops`, and measurements of a cell of which a row has the spread.
NO_OPS, REPEATS = 200, 3


class FirstLaunch(SimulatedExecutor):
    """Simulated workers; the first launch ends the driver, as a kill would."""

    def launch(self, launch: Launch) -> None:
        """End the driver."""
        raise Stop


def ms_between(stamps: list[float]) -> float:
    """Return the mean distance of stamps in milliseconds."""
    return (stamps[-1] - stamps[0]) / (len(stamps) - 1) * 1e3


def peak_megabytes() -> float:
    """Return the most memory that this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def spreads(runs: list[dict[str, float]]) -> dict[str, Any]:
    """Return median and range of each measure of some runs."""
    return {key: spread([run[key] for run in runs]) for key in runs[0]}


def repeated(given: Given) -> range:
    """Return a range of the measurements of a cell."""
    return range(1 if given.quick else REPEATS)


# --- the driver


def beside(cell: Row, given: Given) -> Row:
    """Return what the driver spends on a trial beside so many finished ones."""
    n = 30 if given.quick else int(cell["finished"])
    return {
        "cpu_ms": spread([alone(one_more, n, 30 if given.quick else 60) for _ in repeated(given)])
    }


def one_more(finished: int, more: int) -> float:
    """Return milliseconds of CPU of the driver for a trial, mean over some more of them."""
    with tempfile.TemporaryDirectory() as name:
        folder, asked = Path(name) / "study", study(finished + more + 100, "tpe")
        made(finished, folder, asked)
        watcher = Stamps(stop_after=more)
        pool = SimulatedExecutor(synthetic, workers=8, seed=0)
        with contextlib.suppress(Stop):
            Driver(asked, folder, pool, watcher).run()
        return ms_between([cpu for _, cpu in watcher.ends[1:]])  # the first carries the start


def ray_slices(cell: Row, given: Given) -> Row:
    """Return how fast no-op slices pass through Ray and the driver, all workers busy."""
    workers, epochs = (2, 10) if given.quick else (cell["workers"], 2000 // cell["workers"])
    with tempfile.TemporaryDirectory() as folder:
        return slices_of(workers, max(epochs, 50), Path(folder))


def slices_of(workers: int, epochs: int, folder: Path) -> Row:
    """Return the same for so many workers."""
    watcher = Stamps()
    began = time.perf_counter()
    executor = ray_workers(workers, folder)
    try:
        while sum(w.ready_at is not None for w in executor.workers) < workers:
            executor.poll(timeout=1.0)
        ready = time.perf_counter() - began
        Driver(
            study(workers, "qmc", epochs=epochs, workers=workers), folder, executor, watcher
        ).run()
    finally:
        executor.close()
    # Those between the first end of a trial and the start of the last one are left out.
    busy = [s for s in watcher.slices if s[0] < watcher.ends[1][0]][workers:]
    wall, cpu = (ms_between([stamp[i] for stamp in busy]) for i in (0, 1))
    return {
        "slices": len(busy),
        "slices_per_second": 1e3 / wall,
        "wall_ms_per_slice": wall,
        "driver_cpu_ms_per_slice": cpu,
        "seconds_until_all_workers_were_ready": ready,
    }


def first_report(cell: Row, given: Given) -> Row:
    """Return the seconds from the start of a search to its first report and first slice."""
    runs = []
    for _ in repeated(given):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(seconds_until_reports(cell["executor"], Path(folder) / "study"))
    return spreads(runs)


def seconds_until_reports(executor: str, folder: Path) -> dict[str, float]:
    """Return the same of one search."""
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


def no_ops(cell: Row, given: Given) -> list[Row]:
    """Return both ways, measured in turns, each time in another order."""
    ways: list[tuple[str, Callable[..., Any]]] = [("ours", ours), ("tune_reuse_actors", tune)]
    found: dict[str, list[dict[str, float]]] = {name: [] for name, _ in ways}
    for turn in repeated(given):
        for name, way in ways[turn % 2 :] + ways[: turn % 2]:
            with tempfile.TemporaryDirectory() as folder:
                found[name].append(alone(way, 20 if given.quick else NO_OPS, Path(folder)))
    return [{"way": name, **spreads(runs)} for name, runs in found.items()]


# --- small searches and the forecast


def frame_of(name: str, data: Path, n_rows: int) -> pd.DataFrame:
    """Return some rows of a set with the column `target`."""
    x, y = raw(name, data)
    frame = pd.DataFrame(x, columns=[f"x{i}" for i in range(x.shape[1])])
    frame["target"] = [f"class {label}" for label in y] if y.ndim == 1 else y[:, 0]
    return frame.sample(min(n_rows, len(frame)), random_state=0)


def small_searches(cell: Row, given: Given) -> Row:
    """Return the run of fewest seconds, and the ends of all."""
    n_trials = 2 if given.quick else 24
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / f"{cell['data']}.csv"
        frame_of(cell["data"], given.data, cell["rows"]).to_csv(table, index=False)
        runs = [seconds_of_study(table, n_trials, race=cell["race"]) for _ in repeated(given)]
    best = min(runs, key=lambda one: one["end"])
    return {"trials": n_trials, **best, "ends": [one["end"] for one in runs]}


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


def forecast(cell: Row, given: Given) -> Row:
    """Run a study and forecast its trials."""
    import torch

    from nas_evidence.data import load
    from nas_evidence.data.tensors import to_tensors
    from nas_evidence.driver import runtime

    time.perf_counter = time.process_time  # whatever times a piece
    torch.set_num_threads(1)
    name, n_rows, n_trials, settings = STUDIES[cell["study"]]
    images = name in ("digits", "fashion_mnist")
    root = str(given.data) if images else None
    asked: dict[str, Any] = {"data": name, "data_root": root}
    settings = {**settings, "finalists": 0}
    if images:
        settings |= {"dataset.max_train": n_rows, "dataset.max_test": 200}
    else:
        asked = {"data": frame_of(name, given.data, n_rows), "target": "target"}
    with tempfile.TemporaryDirectory() as where:
        out = Path(where) / "study"
        searched = nas_evidence.search(
            **asked, n_trials=2 if given.quick else n_trials, settings=settings, out=out,
            progress=False,
        )  # fmt: skip
        spec = searched.spec
        arrays = load(spec.dataset, seed=spec.seed, data_root=root, base=out.resolve())
        trials = nas_evidence.read_table(out, "trials")
    tensors, found = to_tensors(arrays, "cpu"), []
    for _, row in trials.iterrows():
        pieces = runtime.pieces_of(trial_of(row), spec, tensors)
        seconds = runtime.trial_seconds(pieces, spec.plan, spec.estimators, len(tensors.x_train))
        found.append({"family": row["family"], "n_parameters": int(row["n_parameters"]),
                      "forecast": round(seconds + runtime._TRIAL_SECONDS, 3),
                      "total": round(float(row["total_seconds"]), 3)})  # fmt: skip
    ratio = sum(one["forecast"] for one in found) / sum(one["total"] for one in found)
    return {"ratio": round(ratio, 2), "trials": found}


# --- the published grids on a virtual clock

GRIDS = ("fashion_mnist", "cifar10", "cifar100")
SHAPES = {
    "fashion_mnist": ((1, 28, 28), 10, 60_000),
    "cifar10": ((3, 32, 32), 10, 50_000),
    "cifar100": ((3, 32, 32), 100, 50_000),
}
#: Assumed, not measured: FLOP/s of float32 sustained in such small networks, and the least
#: seconds that a training step takes for each layer (kernels wait to be launched).
SPEED, LAUNCH = 10e12, 0.15e-3
#: Seconds; five epochs and an evaluation of the largest network take an hour on a slow GPU.
SLICE_TIMEOUT = 1e6
#: Grid, workers, replicates.
PLANS = (*((name, workers, 1) for name in GRIDS for workers in (8, 64)), ("cifar10", 64, 5))


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
    rows = stored(RESULTS / "cost" / "ray_slices.csv")
    return statistics.median(float(row["driver_cpu_ms_per_slice"]) for row in rows) / 1e3


def simulate(
    study: StudySpec,
    curves: Callable[[Assignment], SimulatedTrial],
    workers: int,
    flops: Callable[[ArchitectureSpec], float] | None = None,
) -> Row:
    """Run a study on simulated workers in a new folder and return what it cost."""
    with tempfile.TemporaryDirectory() as name:
        ray_seconds = ray_seconds_per_slice()
        pool = Clocked(curves, workers=workers, seed=0, ray_seconds=ray_seconds)
        watcher = Stamps()
        Driver(study, Path(name) / "study", pool, watcher, flops=flops).run()
        n_trials = len(watcher.ends) - 1
        return {
            "trials": n_trials,
            "slices": len(watcher.slices),
            "wall_seconds": pool.now(),
            "idle_share": pool.idle_share(),
            "driver_share_of_a_core": pool.driver_seconds / pool.now(),
            "driver_ms_per_trial": pool.driver_seconds / n_trials * 1e3,
            "of_it_ray_ms": pool.n_events * ray_seconds / n_trials * 1e3,
            "peak_mb": peak_megabytes(),
        }


def grid(name: str) -> StudySpec:
    """Return a published study as it is shipped."""
    return load_study(find_study(name))


def grid_cells() -> list[Row]:
    """Return a cell for each architecture of each grid."""
    found = [(name, point.key) for name in GRIDS for point in startup_points(grid(name))]
    return [{"grid": name, "key": key} for name, key in dict.fromkeys(found)]


def of_grid(cell: Row, given: Given) -> Row:
    """Return the flops and the steps of an architecture."""
    from nas_evidence.training.cost import cost_of

    asked, (shape, n_outputs, n_train) = grid(cell["grid"]), SHAPES[cell["grid"]]
    point = next(one for one in startup_points(asked) if one.key == cell["key"])
    cost = cost_of(point, shape, n_outputs, asked.plan, ())
    return {
        "family": point.family,
        **point.values,
        "n_parameters": cost.n_parameters,
        "flops": cost.flops,
        "steps_per_epoch": math.ceil(n_train / asked.plan.batch_size),
    }


def rows_of_grids() -> list[dict[str, Any]]:
    """Return the committed rows of `grids`, numbers as such."""
    names = ("depth", "n_parameters", "flops", "steps_per_epoch")
    return [
        {**row, **{name: int(row[name]) for name in names}}
        for row in stored(RESULTS / "cost" / "grids.csv")
    ]


def costs_of(study: StudySpec) -> dict[str, float]:
    """Return what the trainings of one trial cost, in epochs of the main training.

    main      scheduled epochs, an update at each evaluation, and the Laplace scores at the last
    settle    the budget of settling
    fold      one slice of a training on a half of the data, with the update at its end
    n_folds   number of those slices

    The passes are those of ResNet-20, the dearest of the measured networks.
    """
    rows = [row for row in stored(RESULTS / "cost" / "passes.csv") if row["model"] == "resnet20"]
    passes = {row["candidate"]: float(row["median"]) for row in rows if row["median"]}
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


def epoch_seconds(row: dict[str, Any]) -> float:
    """Return the seconds of an epoch of an architecture on the assumed GPU."""
    computing, launching = 3 * row["flops"] * 128 / SPEED, (row["depth"] + 1) * LAUNCH
    return float(row["steps_per_epoch"] * max(computing, launching))


def curves_of(
    epoch_seconds: dict[str, float], costs: dict[str, float], flops: dict[str, float]
) -> Callable[[Assignment], SimulatedTrial]:
    """Return trials with all their trainings.

    Args:
        epoch_seconds: of a plain epoch, by architecture.
        costs: of a trial, in plain epochs.
        flops: of an architecture.
    """

    def curves(assignment: Assignment) -> SimulatedTrial:
        shape = assignment.architecture
        # The invented scores are for depths up to five; nothing here depends on them.
        values = {**shape.values, "depth": min(5, int(shape.values["depth"]))}
        shallow = shape.model_copy(update={"values": values})
        trial = synthetic(assignment.model_copy(update={"architecture": shallow}))
        epoch, whole = epoch_seconds[shape.key], costs["main"] + costs["settle"]
        return replace(
            trial,
            costs={**trial.costs, "flops": flops[shape.key]},
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


def grid_plan(cell: Row, given: Given) -> Row:
    """Simulate one grid, the longest trials first."""
    name, replicates = cell["grid"], cell["replicates"]
    own = [row for row in rows_of_grids() if row["grid"] == name]
    study = plan_of(name, replicates)
    costs = costs_of(study)
    main, n_slices = costs["main"] + costs["settle"], len(stops(study.plan))
    whole = main + costs["n_folds"] * costs["fold"]
    seconds = {row["key"]: epoch_seconds(row) for row in own}
    longest, total = max(seconds.values()), sum(seconds.values())
    flops = {row["key"]: float(row["flops"]) for row in own}
    curves = curves_of(seconds, costs, flops)
    return {
        "epochs_of_a_trial": costs | {"whole": whole, "plain": study.plan.epochs},
        "longest_slice_seconds": max(main / n_slices, costs["fold"]) * longest,
        "longest_trial_seconds": whole * longest,
        "device_seconds": replicates * whole * total,
        **simulate(study, curves, cell["workers"], lambda one: flops[one.key]),
    }


# --- folder and store


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
    pool = Launches(synthetic, workers=IDLE, seed=0)
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


def folder(cell: Row, given: Given) -> Row:
    """Measure a study in a folder."""
    n = 30 if given.quick else cell["trials"]
    with tempfile.TemporaryDirectory() as name:
        place = Path(name) / "study"
        alone(made, n, place, wide_study(n + IDLE))
        log_mb = sum(file.stat().st_size for file in log_files(place)) / 1e6
        runs = [alone(resumed_in_folder, n, place) for _ in repeated(given)]
        looks = [alone(looked_at, n, place, n <= MOST_REPORTED) for _ in repeated(given)]
    return {"log_mb": log_mb} | spreads(runs) | spreads(looks)


def store(cell: Row, given: Given) -> Row:
    """Measure a store that takes 20 ms a request, with so many finished trials or a search."""
    if cell["what"] == "search":
        return searched_at_store(2 if given.quick else 40)
    with tempfile.TemporaryDirectory() as name:
        return left_at_store(30 if given.quick else int(cell["what"]), Path(name) / "study")


def left_at_store(n_trials: int, folder: Path) -> Row:
    """Return what a store takes with so many finished trials."""
    asked = study(n_trials + 100, "qmc")
    made(n_trials, folder, asked)
    uri = f"counted://left/{n_trials}"
    Mirror(uri, folder).push(logs=True)
    files = CountedStore.objects.values()
    found: dict[str, Any] = {"files": len(files), "mb": sum(len(c) for c, _ in files) / 1e6}
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
    began = clocks()
    copy, found = Mirror(uri), dict[str, Any]()
    with contextlib.suppress(Stop), copy.held():
        found["fetch_seconds"] = clocks()[0] - began[0]
        spec = open_study(copy.folder, asked)
        executor = copy.around(FirstLaunch(synthetic, workers=8, seed=0))
        try:
            Driver(spec, copy.folder, executor, Stamps()).run()
        finally:
            found |= requested(began)
    return found


def requested(began: tuple[float, float]) -> dict[str, Any]:
    """Return the seconds since then and the requests, and forget the requests."""
    now = clocks()
    found: dict[str, Any] = {"wall_seconds": now[0] - began[0], "cpu_seconds": now[1] - began[1]}
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


# --- sweep


def swept(cell: Row, given: Given) -> Row:
    """Simulate up to three trials for two workers, each of eight slices of about this length."""
    workers = cell["workers"]
    study = StudySpec.model_validate(
        {
            "name": "sweep",
            "n_trials": max(100, min(3 * workers // 2, 1024)),
            "finalists": 0,
            "dataset": {"name": "digits"},
            "family": SPACE,
            "plan": {"epochs": 40, "online": {"every": 5}},
            "sampler": {"name": cell["sampler"]},
            "resources": {"workers": workers, "gpus": 0},
        }
    )

    def curves(assignment: Assignment) -> SimulatedTrial:
        return replace(synthetic(assignment), seconds_per_epoch=cell["slice_seconds"] / 5)

    return simulate(study, curves, workers)


def sweep_cells() -> list[Row]:
    """Return the cells; the proposals of TPE for 1,000 workers alone take a quarter of an hour."""
    found = [
        (*line, n) for n in (8, 64, 256) for line in (("qmc", 10.0), ("qmc", 1.0), ("tpe", 10.0))
    ]
    found += [("qmc", seconds, 1024) for seconds in (15.0, 10.0, 1.0)]
    return [dict(zip(SWEPT, one, strict=True)) for one in found]


SWEPT = ("sampler", "slice_seconds", "workers")
PLANNED = ("grid", "workers", "replicates")
SEARCHED = ("data", "rows", "race")
SMALL = (
    ("waveform", 300, False), ("bostonHousing", 300, False), ("waveform", 1000, False),
    ("kin8nm", 1000, False), ("waveform", 300, True), ("bostonHousing", 300, True),
)  # fmt: skip
PACKAGES = ("ray", "optuna", "pyarrow", "torch", "pydantic")


def _case(
    name: str, keys: tuple[str, ...], cells: Callable[[], list[Row]],
    measure: Callable[[Row, Given], Any], *, apart: bool = True,
) -> Case:  # fmt: skip
    return Case(keys, cells, measure, lambda cell: f"cost/{name}.csv", apart, PACKAGES)


def _of(key: str, *values: Any) -> tuple[tuple[str, ...], Callable[[], list[Row]]]:
    return (key,), cells_of((key,), values)


CASES = {
    name: _case(name, *rest, apart=name not in ("no_ops", "first_report", "small_searches"))
    for name, rest in {
        "ray_slices": (
            ("workers", "repeat"), cells_of(("workers", "repeat"), (8, 64), range(3)), ray_slices,
        ),
        "first_report": (*_of("executor", "inline", "ray"), first_report),
        "no_ops": (*_of("way", "ours", "tune_reuse_actors"), no_ops),
        "beside": (*_of("finished", 100, 1000, 2000, 10_000), beside),
        "small_searches": (
            SEARCHED, lambda: [dict(zip(SEARCHED, one, strict=True)) for one in SMALL],
            small_searches,
        ),
        "forecast": (*_of("study", *STUDIES), forecast),
        "grids": (("grid", "key"), grid_cells, of_grid),
        "grid_plans": (
            PLANNED, lambda: [dict(zip(PLANNED, one, strict=True)) for one in PLANS], grid_plan,
        ),
        "folder": (*_of("trials", 1000, 10_000, 100_000), folder),
        "store": (*_of("what", 1000, 10_000, "search"), store),
        "sweep": (SWEPT, sweep_cells, swept),
    }.items()
}  # fmt: skip
