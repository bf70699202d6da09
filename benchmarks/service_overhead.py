"""What the search service costs beside the training: milliseconds, megabytes, seconds.

driver       ask, assignment, launch, reports, Parquet, tell: milliseconds of the driver for one
             trial of three reports, 8 simulated workers, SQLite and Parquet on disk. The virtual
             clock takes no time, so that all of it is the driver's (and the simulation's).
             Quartiles are over blocks of 100 trials. TPE goes on where the quasi-random
             study of 10,000 trials was killed.
resume       a fresh process on that folder, 8 trials under way: until the first launch
slices       slices a second of workers that do nothing, through Ray and the whole driver; the
             driver's journal is on disk, workers import no torch
first_slice  from the start of `nas-evidence search` to the first report and the first slice
tune         200 trials of three reports that do nothing, 2 workers, the same TPE and an SQLite
             database: our driver, and Ray Tune with OptunaSearch (actors reused or not), in
             turns, each in a fresh process with a cluster of its own

Wall and CPU time: a busy machine shows in the first only. Of other processes' fsync too: `disk`
says what one takes meanwhile.

    python benchmarks/service_overhead.py driver largest resume --out FILE --scratch FOLDER
"""

import argparse
import contextlib
import itertools
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from no_op import Stamps, Stop, clocks, ray_workers, spread, study, tune_space

from nas_evidence.driver.driver import Driver
from nas_evidence.storage.journal import read_journal
from nas_evidence.workers.executor import Executor, Launch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from learning_curves import synthetic
from simulated import SimulatedExecutor

BLOCK = 100

#: Trials of `tune`; as in `performance_tables.py`.
NO_OPS = 200


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
        while sum(w.ready_at is not None for w in executor._pool.workers) < workers:
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

    pids = ray.get([worker.actor.pid.remote() for worker in executor._pool.workers])
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
    reports = [event for event in read_journal(folder) if event["event"] == "report"]
    trained = next(event for event in reports if event["epoch"] > 0)
    return {
        "report": reports[0]["t"] - began,
        "slice": trained["t"] - began,
        "cpu_of_the_whole_search": cpu,  # to its end, without processes that Ray left to init
    }


def ours(folder: Path) -> dict[str, float]:
    """Return seconds of 200 no-op trials through our driver; the cluster's start beside them."""
    began = clocks()
    executor = ray_workers(2, folder)
    started = clocks()
    try:
        Driver(study(NO_OPS, "tpe", workers=2), folder, executor, Stamps()).run()
        return _timed(began, started, folder)
    finally:
        executor.close()


def tune(folder: Path) -> dict[str, float]:
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
            num_samples=NO_OPS,
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
    assert len(results) == NO_OPS
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


def fsync_ms(folder: Path) -> dict[str, float]:
    """Return what writing 4 kB durably takes now."""
    times = []
    with (folder / "fsync").open("wb", buffering=0) as file:
        for _ in range(50):
            began = time.perf_counter()
            file.write(bytes(4096))
            os.fsync(file.fileno())
            times.append((time.perf_counter() - began) * 1e3)
    return spread(times)


def part_driver(scratch: Path, repeats: int, largest: int) -> list[dict[str, Any]]:
    """Measure the driver on small studies."""
    rows = []
    for n_trials, sampler in ((100, "qmc"), (100, "tpe"), (1000, "qmc"), (1000, "tpe")):
        for _ in range(repeats if n_trials == 100 else 1):  # the long ones have blocks
            with tempfile.TemporaryDirectory(dir=scratch) as folder:
                rows.append(alone(drive, sampler, n_trials, Path(folder)))
            print(json.dumps(rows[-1]), flush=True)
    return rows


def part_largest(scratch: Path, repeats: int, largest: int) -> dict[str, Any]:
    """Measure the driver on the largest study; leaves it, killed, in `scratch`."""
    folder = scratch / "largest"
    shutil.rmtree(folder, ignore_errors=True)
    return dict(alone(drive, "qmc", largest, folder, of=largest + 100))


def part_resume(scratch: Path, repeats: int, largest: int) -> dict[str, Any]:
    """Measure resuming on what `part_largest` left, then TPE on a copy of it."""
    folder, copy = scratch / "largest", scratch / "copy"
    runs = [alone(resume, folder, largest + 100) for _ in range(repeats)]
    print(json.dumps(runs), flush=True)
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    goes_on = alone(drive, "tpe", 90, copy, of=largest + 100)
    shutil.rmtree(copy)
    print(json.dumps(goes_on), flush=True)
    return {"finished_trials": largest, "runs": runs, "then_with_tpe": goes_on}


def part_slices(scratch: Path, repeats: int, largest: int) -> list[dict[str, Any]]:
    """Measure slices through Ray."""
    rows = []
    for workers, epochs in [(8, 250)] * repeats + [(64, 50)] * repeats:
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            rows.append(alone(slices, workers, epochs, Path(folder)))
        print(json.dumps(rows[-1]), flush=True)
    return rows


def part_first_slice(scratch: Path, repeats: int, largest: int) -> dict[str, Any]:
    """Measure the time to the first slice, in turns."""
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(repeats):
        for executor in ("inline", "ray"):
            with tempfile.TemporaryDirectory(dir=scratch) as folder:
                times = first_slice(executor, Path(folder) / "study")
            for name, seconds in times.items():
                found.setdefault(executor, {}).setdefault(name, []).append(seconds)
            print(executor, times, flush=True)
    return {e: {name: spread(s) for name, s in named.items()} for e, named in found.items()}


def part_tune(scratch: Path, repeats: int, largest: int) -> dict[str, Any]:
    """Measure our driver and Ray Tune in turns, each time in another order."""
    ways: list[tuple[str, Callable[..., Any]]] = [("ours", ours), ("tune_reuse_actors", tune)]
    found: dict[str, list[dict[str, float]]] = {name: [] for name, _ in ways}
    for turn in range(repeats):
        for name, way in ways[turn % 2 :] + ways[: turn % 2]:
            with tempfile.TemporaryDirectory(dir=scratch) as folder:
                found[name].append(alone(way, Path(folder)))
            print(name, found[name][-1], flush=True)
    return {
        name: {key: spread([run[key] for run in runs]) for key in runs[0]}
        for name, runs in found.items()
    }


PARTS = {
    "driver": part_driver,
    "largest": part_largest,
    "resume": part_resume,
    "slices": part_slices,
    "first_slice": part_first_slice,
    "tune": part_tune,
}


def surroundings(scratch: Path) -> dict[str, Any]:
    """Return what else decides about the figures."""
    cpu = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = next((x.split(":")[1].strip() for x in cpu.splitlines() if "model name" in x), "")
    packages = ("ray", "optuna", "pyarrow", "sqlalchemy", "torch", "pydantic")
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {model}",
        "versions": {p: version(p) for p in packages} | {"python": platform.python_version()},
        "load_average": os.getloadavg()[0],
        "fsync_ms": fsync_ms(scratch),
    }


def main() -> None:
    """Measure some parts; the others stay in the file as they are."""
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True, help="a folder on a real disk")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--largest", type=int, default=10_000)
    given = parser.parse_args()
    for part in given.parts:
        before = surroundings(given.scratch)
        found = PARTS[part](given.scratch, given.repeats, given.largest)
        after = {"load_average_after": os.getloadavg()[0]}
        results = json.loads(given.out.read_text()) if given.out.exists() else {}
        results[part] = {"surroundings": before | after, "results": found}
        given.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
