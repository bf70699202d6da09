"""What the trainings of a study cost beside plain ones: side by side, in a trial, in a study.

groups  K epochs one after another over an epoch of K trainings as one program, and an epoch of one
        training over a bare loop in torch, without prior, clipping and kept losses. Networks that
        `n_together` would not put into one program are put into one here.
trials  A trial of the digits study over its main training alone, by part; with `--before FOLDER`
        also of another checkout, in turn.
study   All trials of a study over the plain trainings of its networks, and what stands around
        them: start, search, report, export, peak memory. The studies take turns and have the same
        architectures (quasi-random, no race): plain, the scheduled epochs alone in one process;
        shipped, as it is; settled, with `plan.settle = 1`, settling booked apart.

cells   Where the time of a search goes, how it grows with rows, parameters, trials and workers,
        and what other ways to find a network cost; see `cells`.

    python benchmarks/cost_of_training.py cells --to benchmarks/results/cost_cells_cpu.json
        [--only rows width trials workers demo] [--repeats 3]
    python benchmarks/cost_of_training.py groups trials [--repeats 5] [--before FOLDER]
    python benchmarks/cost_of_training.py study [--trials 24] [--executor inline]
    python benchmarks/cost_of_training.py study --data DATA --study fashion_mnist_quick
        --rows 10000 --trials 4 --variants plain shipped --executor inline

Digits, 1,297 images of 8x8, batches of 128, one thread, CPU seconds; medians and ranges of ratios
of the same turn. `--to FILE` stores; together_cpu, study_cost_cpu and cost_cells_cpu are
committed. `--small` runs the least of each mode.
"""

import argparse
import ctypes
import itertools
import json
import math
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import (
    HERE,
    checkouts,
    conditions,
    in_turn,
    ratios,
    read_json,
    show,
    spread,
    with_version,
    write_json,
)
from _networks import Network, assignment, plain_epoch
from torch import Tensor, nn

import nas_evidence
import nas_evidence.scores.folds
import nas_evidence.training.life
import nas_evidence.workers.trial
from nas_evidence.data import load
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.models import build
from nas_evidence.spec.record import TrialStatus
from nas_evidence.spec.schedule import next_stop
from nas_evidence.spec.study import StudySpec
from nas_evidence.spec.toml import load_study
from nas_evidence.storage.log import events
from nas_evidence.storage.tables import read_table
from nas_evidence.training import loop, together
from nas_evidence.training.network import Network as TrainedNetwork
from nas_evidence.training.network import begin
from nas_evidence.workers.trial import Trial


def digits() -> tuple[StudySpec, TensorData]:
    """Return the digits study and its data."""
    study = load_study(HERE.parent / "search_spaces" / "digits.toml")
    return study, to_tensors(load(study.dataset, seed=0), "cpu")


# --- groups

SIZES = (2, 3, 5, 8)
NETWORKS: dict[str, Network] = {
    "MLP-16": ("mlp", {"depth": 2, "width": 16}),
    "MLP-64": ("mlp", {"depth": 2, "width": 64}),
    "MLP-256": ("mlp", {"depth": 2, "width": 256}),
    "CNN-4": ("cnn", {"depth": 2, "width": 4}),
    "CNN-8": ("cnn", {"depth": 2, "width": 8}),
    "CNN-16": ("cnn", {"depth": 2, "width": 16}),
    "ResNet-8": ("resnet", {"depth": 8, "width": 8}),
}


def groups(options: argparse.Namespace) -> dict[str, Any]:
    """Return gain by network and K, and the overhead of one training over a bare loop."""
    together._WIDE = together._LARGEST = sys.maxsize
    (study, data), found = digits(), {}
    for name, given in [*NETWORKS.items()][: 1 if options.small else None]:
        members = []
        for seed in range(max(SIZES)):
            one = assignment(given, study.plan, seed, study.estimators)
            generator = torch.Generator().manual_seed(seed)
            model = build(one.architecture, data.input_shape, data.n_outputs, generator)
            members.append(begin(model, data, one.plan, one.seed))
            bare = partial(plain_epoch, model, data.x_train, data.y_train, 0.01)
        runs = {str(k): partial(_epoch, members[:k]) for k in (1, *SIZES)}
        seconds = in_turn({"bare": bare, **runs}, options.repeats, least=0.1)
        gains = {k: _ends([k * s for s in seconds["1"]], seconds[str(k)]) for k in SIZES}
        found[name] = {"over a bare loop": _ends(seconds["1"], seconds["bare"]), "gain": gains}
        show({name: found[name]})
    return found


def _epoch(members: list[TrainedNetwork]) -> None:
    for member in members:
        member.epoch = 0  # at the first learning rate for ever
    loop.train_epochs(members)


def _ends(above: list[float], below: list[float]) -> list[float]:
    """Return the median and the range of ratios of the same turn."""
    found = spread(ratios(above, below), 2)
    return [found["median"], found["min"], found["max"]]


# --- trials

TRIALS: dict[str, Network] = {
    "MLP 3x21": ("mlp", {"depth": 3, "width": 21}),
    "MLP 2x144": ("mlp", {"depth": 2, "width": 144}),
    "CNN-5, depth 1": ("cnn", {"depth": 1, "width": 5}),
    "CNN-10, depth 3": ("cnn", {"depth": 3, "width": 10}),
    "ResNet-8, width 10": ("resnet", {"depth": 8, "width": 10}),
    "ResNet-14, width 6": ("resnet", {"depth": 14, "width": 6}),
}
#: Part -> where it is called. What one part calls of another is booked there.
PARTS = {
    "training": [(nas_evidence.training.life, "train_epochs")],
    "updates": [(nas_evidence.training.life, "updated")],
    "settling": [
        (nas_evidence.training.life, "begin_settling"),
        (nas_evidence.training.life, "settle_slices"),
    ],
    "density": [(nas_evidence.scores.folds, "density_of")],
    "evaluations": [(nas_evidence.workers.trial, "evaluate")],
    "folds": [(nas_evidence.scores.folds.Folds, name) for name in ("advance", "went_on")],
    "rest of trials": [(Trial, name) for name in ("start", "advance", "finish")],
}
#: Parts of networks, whose seconds are shared out by rows: those of the trial's own network, and
#: "... of folds".
SHARED = ("training", "updates", "settling")


class Clock:
    """Books the CPU time of this process to the part that runs, and to the family of the trial."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.of_family: dict[str, Counter[str]] = {}
        self._running: list[dict[str, float]] = []  # shares of parts
        self._since, self._own, self._family = 0.0, None, ""

    def watch(self) -> None:
        """Time all `PARTS` from now on."""
        for part, places in PARTS.items():
            for owner, name in places:
                found = owner.__dict__[name]
                inner = getattr(found, "__func__", found)
                timed = self._timed(inner, part)
                setattr(owner, name, classmethod(timed) if inner is not found else timed)

    def _timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> object:
            self._turn()
            if args[0] is Trial:  # it is about to start
                self._own, self._family = None, args[1].architecture.family
            elif isinstance(args[0], Trial):
                self._own, self._family = args[0].network, args[0].assignment.architecture.family
            self._running.append(self._shares(part, args[0]))
            try:
                return function(*args, **kwargs)
            finally:
                self._turn()
                self._running.pop()

        return timed

    def _shares(self, part: str, given: Any) -> dict[str, float]:
        if part not in SHARED:
            return {part: 1.0}
        networks = [given] if isinstance(given, TrainedNetwork) else given
        rows = [len(one.data.x_train) for one in networks]
        own = sum(n for n, one in zip(rows, networks, strict=True) if one is self._own)
        share = own / max(1, sum(rows))
        return {name: s for name, s in ((part, share), (f"{part} of folds", 1 - share)) if s}

    def _turn(self) -> None:
        now = time.process_time()
        for part, share in self._running[-1].items() if self._running else ():
            self.seconds[part] += share * (now - self._since)
            parts = self.of_family.setdefault(self._family, Counter())
            parts[part] += share * (now - self._since)
        self._since = now


def one_trial(name: str) -> dict[str, float]:
    """Return the seconds of a trial by part, and scores; called in a process of its own."""
    study, data = digits()
    given = assignment(TRIALS[name], study.plan, 1, study.estimators)
    with tempfile.TemporaryDirectory() as folder:
        # What a process does once is not part of a trial.
        Trial.start(given, data, Path(folder) / "first").report()
        (clock := Clock()).watch()
        trial = Trial.start(given, data, Path(folder))
        while trial.status is TrialStatus.RUNNING:
            epoch = trial.report().epoch
            trial.advance(next_stop(given.plan, epoch).epoch)
        record = trial.finish()
    scores = {e.estimate.estimator: e.estimate.value for e in record.evaluations}
    named = {score: scores.get(score) for score in ("two_fold", "kfac_ggn", "diag_ef")}
    return {**clock.seconds, "total": clock.seconds.total(), **named}


def trials(options: argparse.Namespace) -> dict[str, Any]:
    """Return seconds of trials by part, and over the main training alone of either version."""
    versions = checkouts(options.before)
    versions["now"] = versions.pop("after")
    runs: dict[str, dict[str, list[dict[str, float]]]] = {}
    for _ in range(options.repeats):
        for name in [*TRIALS][: 1 if options.small else None]:
            for version, folder in versions.items():
                found = with_version(folder, __file__, "trials", "--trial", name)
                runs.setdefault(name, {}).setdefault(version, []).append(show(found))
    names = (*PARTS, *(f"{part} of folds" for part in SHARED), "total")
    sums = {
        version: {
            part: sum(statistics.median(r.get(part, 0) for r in o[version]) for o in runs.values())
            for part in names
        }
        for version in versions
    }
    every: dict[str, Any] = {
        version: {part: round(s / parts["training"], 3) for part, s in parts.items()}
        for version, parts in sums.items()
    }
    if "before" in sums:
        now, before = sums["now"]["total"], sums["before"]
        every["now over the trainings before"] = round(now / before["training"], 3)
        every["now over before"] = round(now / before["total"], 3)
    return {"trials": runs, "all": every}


# --- study

PLAIN = {
    "estimators": "[]", "objective": '"sotl"', "plan.online.every": "never", "plan.settle": "0",
}  # fmt: skip
VARIANTS = {"plain": PLAIN, "shipped": {}, "settled": {"plan.settle": "1"}}


def one_study(name: str, options: argparse.Namespace) -> dict[str, float]:
    """Return the seconds and the memory of one study, by part."""
    keys = {"plan.epochs": options.epochs, "dataset.max_train": options.rows}
    asked = {key: str(value) for key, value in keys.items() if value is not None}
    # The finalists of a race differ from variant to variant, so none is held.
    asked |= {"sampler.name": '"qmc"', "finalists": "0", **VARIANTS[name]}
    executor = "inline" if name == "plain" else options.executor
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "study"
        command = [sys.executable, "-m", "nas_evidence", "search", options.study]
        command += ["--out", str(out), "--trials", str(options.trials), "--executor", executor]
        command += ["--data-root", options.data] if options.data else []
        for key, value in asked.items():
            command += ["--set", f"{key}={value}"]
        began = time.time()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        memory = Memory(process.pid)
        code = process.wait()
        memory.stop()
        if code:
            raise subprocess.CalledProcessError(code, command)
        found = {"wall_seconds": time.time() - began, **parts_of(out, began)}
        found |= {"driver_peak_mb": memory.driver_mb, "worker_peak_mb": memory.worker_mb}
        return {part: round(value, 2) for part, value in found.items()}


def parts_of(out: Path, began: float) -> dict[str, float]:
    """Return seconds summed over trials, and those of the parts around them."""
    found = read_table(out, "trials")
    names = ("train_seconds", "evidence_seconds", "settle_seconds", "total_seconds")
    parts = {name: float(found[name].fillna(0.0).sum()) for name in names}
    evidence = read_table(out, "evidence")
    last = evidence.drop_duplicates(["trial_id", "estimator"], keep="last")
    for estimator, seconds in last.groupby("estimator")["seconds"].sum().items():
        if seconds > 0:
            parts[f"{estimator}_seconds"] = float(seconds)
    times = [(t, event.event) for t, event in events(out)]
    launched = next(t for t, word in times if word == "launch")
    stopped = next(t for t, word in reversed(times) if word == "stop")
    reported = (out / "report" / "index.html").stat().st_mtime
    exported = (out / "export" / "README.md").stat().st_mtime
    return parts | {
        "start_seconds": launched - began,
        "search_seconds": stopped - launched,
        "report_seconds": reported - stopped,
        "export_seconds": exported - reported,
    }


class Watch:
    """Looks at processes from a thread of its own until `stop`."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        raise NotImplementedError


class Memory(Watch):
    """Watches the peak memory of a process and of its largest Ray worker (Linux)."""

    def __init__(self, pid: int) -> None:
        self.pid, self.driver_mb, self.worker_mb = pid, 0.0, 0.0
        super().__init__()

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            own = {self.pid}
            for process in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
                try:
                    status = (process / "status").read_text()
                except OSError:  # it has ended
                    continue
                facts = dict(re.findall(r"^(Name|PPid|VmHWM):\s+(\S+)", status, re.MULTILINE))
                pid, megabytes = int(process.name), float(facts.get("VmHWM", 0)) / 1024
                if pid == self.pid:
                    self.driver_mb = max(self.driver_mb, megabytes)
                elif int(facts.get("PPid", 0)) in own:
                    own.add(pid)
                    if facts["Name"].startswith("ray::"):
                        self.worker_mb = max(self.worker_mb, megabytes)


def study(options: argparse.Namespace) -> dict[str, Any]:
    """Return the parts of each study, and all trials over the plain trainings of the same turn."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in options.variants}
    for _ in range(options.repeats):
        for name in options.variants:
            runs[name].append(one_study(name, options))
            show({name: runs[name][-1]})
    over = {}
    plain = [one["train_seconds"] for one in runs["plain"]]
    for name in (name for name in options.variants if name != "plain"):
        for booked, part in (("with settling", 0.0), ("without settling", 1.0)):
            whole = [one["total_seconds"] - part * one["settle_seconds"] for one in runs[name]]
            over[f"{name}, {booked}"] = spread(ratios(whole, plain), 9)
    return {
        "study": options.study, "rows": options.rows, "trials": options.trials,
        "executor": options.executor, "runs": runs, "over_plain": show(over),
    }  # fmt: skip


# --- cells

ROWS, WIDTHS = (300, 1000, 3000, 10_000), (16, 64, 256, 512)
NUMBERS, WORKERS = (4, 16, 64), (1, 2, 4)
SETS = {"cancer": ("load_breast_cancer", 24), "diabetes": ("load_diabetes", 12)}
METHODS = ("ours", "optuna", "sklearn")
#: What is measured, each in a process of its own; see `cells`.
CELLS = [
    *(f"rows/{n}" for n in ROWS),
    *(f"width/{width}" for width in WIDTHS),
    *(f"trials/{n}" for n in NUMBERS),
    *(f"workers/{n}" for n in WORKERS),
    *(f"{name}/{method}/{seed}" for seed in range(3) for name in SETS for method in METHODS),
    "demo/24",
    "images/10000",
    *(f"{name}/processes/{seed}" for seed in range(3) for name in SETS),
]


def cells(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the cells of which a file lacks runs; each is stored at once, in turns.

    rows      three trainings of an MLP 1x32 on so many rows of 20 columns, two classes, by part
    width     two of an MLP of depth 2 on 300 rows, ten classes
    trials    so many trainings of MLPs of depth 1 and widths 24 to 40 on 300 such rows
    workers   sixteen of them, by so many workers
    SET       CPU seconds of all processes with their imports, and the log loss of test rows:
              ours with its race, Optuna with a bare loop and a hold-out, scikit-learn's MLP;
              "processes" is the command `search`, which has two workers
    demo      the digits study as shipped with its race, in one process, by part and family
    images    four networks of Fashion-MNIST, quasi-random, no race; needs --data
    """
    found = conditions("CPU seconds", "torch", "optuna", "scikit-learn", "ray")
    found |= {"runs": []} | (read_json(options.to, {}) if options.to else {})
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # processes that outlive their parents are ours
    chosen = [name for name in CELLS if any(name.startswith(begin) for begin in options.only)]
    chosen = [name for name in chosen if options.data or not name.startswith("images/")]
    for turn in range(options.repeats):
        for name in chosen:
            if sum(run["cell"] == name for run in found["runs"]) <= turn:
                found["runs"].append(show(one_run(name, options.data)))
                if options.to:
                    write_json(options.to, found, rows="runs")
    return found


def one_run(name: str, data: str | None) -> dict[str, Any]:
    """Return what a cell measures in a process of its own, and the seconds of all processes."""
    asked = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(asked, cwd=HERE, capture_output=True, text=True, check=True).stdout
    load, used = os.getloadavg()[0], resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-W", "ignore", __file__, "cells", "--cell", name]
    command += ["--data", data] if data else []
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1"}
    kind, _, rest = name.partition("/")
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryFile("w+") as printed:
        if rest.startswith("processes/"):
            csv, n, seed = Path(place) / "train.csv", SETS[kind][1], rest.partition("/")[2]
            table_of(kind)[0].to_csv(csv, index=False)
            command = [sys.executable, "-m", "nas_evidence", "search", str(csv)]
            command += ["--target", "target", "--out", f"{place}/s", "--trials", str(n)]
            command += ["--set", f"seed={seed}"]
        began = time.perf_counter()
        process = subprocess.Popen(command, env=environment, stdout=printed)
        tree = Tree(process.pid)
        code = process.wait()
        wall = time.perf_counter() - began
        tree.stop()
        printed.seek(0)
        lines = ["{}", *(line for line in printed.read().splitlines() if line.startswith("{"))]
    if code:
        raise subprocess.CalledProcessError(code, command)
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    return {
        "cell": name, "commit": commit.strip(), "load": round(load, 1), "wall": round(wall, 2),
        "cpu": round(cpu, 2), "roles": tree.roles(), **json.loads(lines[-1]),
    }  # fmt: skip


class Tree(Watch):
    """Watches the CPU seconds of a process and of all that it starts (Linux)."""

    def __init__(self, pid: int) -> None:
        self._parent = {pid: 0}
        self._ticks: dict[int, int] = {}
        self._words: dict[int, str] = {}
        super().__init__()

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
                pid = int(folder.name)
                try:
                    fields = (folder / "stat").read_text().rpartition(")")[2].split()
                    parent = int(fields[1])
                    if pid not in self._parent and parent not in self._parent:
                        continue
                    self._words[pid] = (folder / "cmdline").read_text() or self._words.get(pid, "")
                except OSError:  # it has ended
                    continue
                self._parent.setdefault(pid, parent)
                self._ticks[pid] = int(fields[11]) + int(fields[12])

    def roles(self) -> dict[str, float]:
        """Return the seconds of the driver, of the server that forks, and of each fork."""
        found: Counter[str] = Counter()
        forks = 0
        for pid, ticks in self._ticks.items():
            parent = self._parent[pid]
            role = "others"
            if parent == 0:
                role = "driver"
            elif "fork_server" in self._words[pid]:
                is_fork = "fork_server" in self._words.get(parent, "")
                forks += is_fork
                role = f"fork {forks}" if is_fork else "server"
            found[role] += ticks
        return {role: round(n / os.sysconf("SC_CLK_TCK"), 2) for role, n in found.items()}


def one_cell(name: str, data: str | None) -> dict[str, Any]:
    """Measure a cell in this process."""
    kind, value, *seed = name.split("/")
    if kind in SETS:
        return {"log_loss": RIVALS[value](*table_of(kind), SETS[kind][1], int(seed[0]))}
    if kind == "demo":
        return parts_of_search("digits", n_trials=int(value))
    if kind == "images":
        of_images = {"dataset.max_train": int(value), "sampler.name": "qmc", "finalists": 0}
        given: dict[str, Any] = {"n_trials": 4, "data_root": data, "settings": of_images}
        return parts_of_search("fashion_mnist_quick", **given)
    many = kind in ("trials", "workers")
    n = int(value) if kind == "rows" else 300
    settings: dict[str, object] = {"family.mlp.depth": [2], "family.mlp.width": [int(value)]}
    if kind != "width":
        settings = {"family.mlp.depth": [1], "family.mlp.width": [32]}
    if many:
        settings["family.mlp.width"] = [*range(24, 41)]
    x, y = drawn(n, *((64, 10) if kind == "width" else (20, 2)))
    number = {"rows": 3, "width": 2, "trials": int(value), "workers": 16}[kind]
    return parts_of_search(
        x, y, families=["mlp"], n_trials=number, settings=settings | {"finalists": 0},
        workers=int(value) if kind == "workers" else 1,
    )  # fmt: skip


def drawn(n: int, columns: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs [n, columns], and labels [n] of a random network with noise."""
    rng = np.random.default_rng(n)
    x = rng.normal(size=(n, columns)).astype(np.float32)
    hidden = np.tanh(x @ rng.normal(size=(columns, 30)) / columns**0.5)
    outputs = hidden @ rng.normal(size=(30, classes))
    return x, (outputs + rng.normal(size=outputs.shape)).argmax(1)


def parts_of_search(*data: Any, workers: int = 1, **options: Any) -> dict[str, Any]:
    """Return the CPU seconds of a search in this process, by part and family."""
    (clock := Clock()).watch()
    with tempfile.TemporaryDirectory() as place:
        out, began = Path(place) / "s", time.process_time()
        nas_evidence.search(*data, out=out, workers=workers, progress=False, **options)
        total = time.process_time() - began
        rows = read_table(out, "trials")
    found: dict[str, Any] = {
        "parts": _rounded(clock.seconds),
        "outside": round(total - clock.seconds.total(), 3),
        "n_parameters": int(rows["n_parameters"].iloc[0]),
        "trials": len(rows),
    }
    if len(clock.of_family) > 1:
        found["of_family"] = {
            family: {"trials": number, **_rounded(clock.of_family[family])}
            for family, number in Counter(rows["family"]).items()
        }
    return found


def _rounded(seconds: Counter[str]) -> dict[str, float]:
    return {part: round(value, 3) for part, value in seconds.items()}


def table_of(name: str) -> tuple[Any, Any, str]:
    """Return 300 rows to train on and the others as DataFrames, and the target."""
    from sklearn import datasets

    frame = getattr(datasets, SETS[name][0])(as_frame=True).frame.sample(frac=1, random_state=0)
    return frame[:300], frame[300:], "target"


def by_ours(train: Any, test: Any, target: str, n: int, seed: int) -> float:
    """Return the test log loss of what a search as shipped delivers."""
    with tempfile.TemporaryDirectory() as place:
        study = nas_evidence.search(
            train, target=target, n_trials=n, seed=seed, out=Path(place) / "s", progress=False,
        )  # fmt: skip
        density = study.predict(test.drop(columns=target)).density
        if density is None:
            return float(study.evaluate(test)["log_loss"])
        truth = test[target].to_numpy(np.float64)[:, None]
        return float(-density.log_density(truth).mean())  # in the unit of the target


def _standardised(train: Any, test: Any, target: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return inputs of mean 0 and deviation 1 by the training rows, and targets."""
    x, mean, std = (train.drop(columns=target), *(0, 0))
    mean, std = x.mean(), x.std()
    given = [(each.drop(columns=target) - mean) / std for each in (train, test)]
    as_float = [torch.from_numpy(each.to_numpy(np.float32)) for each in given]
    return as_float[0], as_float[1], *(torch.tensor(e[target].to_numpy()) for e in (train, test))


def by_optuna(train: Any, test: Any, target: str, n: int, seed: int) -> float:
    """Return the test log loss of TPE with a bare loop: a hold-out of a fifth, then a refit."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    x, x_test, y, y_test = _standardised(train, test, target)
    classes = int(y.max()) + 1 if y.dtype == torch.int64 else 0
    centre, unit = (0.0, 1.0) if classes else (y.mean(), y.std())
    y = y if classes else ((y - centre) / unit).float()[:, None]
    loss = nn.functional.cross_entropy if classes else nn.functional.mse_loss
    held = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    kept, held = held[len(x) // 5 :], held[: len(x) // 5]

    def trained(values: dict[str, Any], rows: Tensor) -> nn.Module:
        torch.manual_seed(seed)
        sizes = [x.shape[1], *[values["width"]] * values["depth"]]
        layers = [
            layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())
        ]
        model = nn.Sequential(*layers, nn.Linear(sizes[-1], classes or 1))
        how = {"lr": values["rate"], "weight_decay": values["decay"]}
        optimiser = torch.optim.Adam(model.parameters(), **how)
        for _ in range(EPOCHS):
            for part in rows[torch.randperm(len(rows))].split(64):
                optimiser.zero_grad()
                loss(model(x[part]), y[part]).backward()
                optimiser.step()
        return model

    def objective(trial: Any) -> float:
        values = {
            "depth": trial.suggest_int("depth", 1, 3),
            "width": trial.suggest_int("width", 8, 64, log=True),
            "rate": trial.suggest_float("rate", 1e-3, 1e-2, log=True),
            "decay": trial.suggest_float("decay", 1e-6, 1e-1, log=True),
        }
        model = trained(values, kept)
        with torch.no_grad():
            return float(loss(model(x[held]), y[held]))

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    study.optimize(objective, n_trials=n)
    best = trained(study.best_params, torch.arange(len(x)))
    with torch.no_grad():
        found = best(x_test)
        if classes:
            return float(loss(found, y_test))
        # The noise is that of the rows held out.
        variance = study.best_value * float(unit) ** 2
        error = ((found[:, 0] * unit + centre - y_test) ** 2).mean()
        return float(error / variance + math.log(2 * math.pi * variance)) / 2


#: Of the bare loop: those of ours for 300 rows.
EPOCHS = 133


def by_sklearn(train: Any, test: Any, target: str, n: int, seed: int) -> float:
    """Return the test log loss of scikit-learn's MLP: random search, five folds, refit."""
    from scipy import stats
    from sklearn.metrics import log_loss
    from sklearn.model_selection import RandomizedSearchCV
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    x, x_test, y, y_test = (one.numpy() for one in _standardised(train, test, target))
    sizes = [(w,) * d for d in (1, 2, 3) for w in (8, 16, 32, 64)]
    space = {"hidden_layer_sizes": sizes, "alpha": stats.loguniform(1e-6, 1e1)}
    labels = y.dtype.kind == "i"
    model = (MLPClassifier if labels else MLPRegressor)(max_iter=500, random_state=seed)
    scoring = "neg_log_loss" if labels else "neg_mean_squared_error"
    unit = 1.0 if labels else y.std()
    search = RandomizedSearchCV(model, space, n_iter=n, cv=5, scoring=scoring, random_state=seed)
    search.fit(x, y if labels else (y - y.mean()) / unit)
    if labels:
        return float(log_loss(y_test, search.predict_proba(x_test)))
    variance = -search.best_score_ * unit**2
    error = ((search.predict(x_test) * unit + y.mean() - y_test) ** 2).mean()
    return float(error / variance + math.log(2 * math.pi * variance)) / 2


RIVALS = {"ours": by_ours, "optuna": by_optuna, "sklearn": by_sklearn}


def main() -> None:
    """Measure, print, and store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modes", nargs="+", choices=("groups", "trials", "study", "cells"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--before", type=Path, help="a checkout that `trials` compares with")
    parser.add_argument("--trial", choices=TRIALS, help=argparse.SUPPRESS)
    parser.add_argument("--cell", choices=CELLS, help=argparse.SUPPRESS)
    parser.add_argument("--only", nargs="+", default=[""], help="beginnings of cells")
    parser.add_argument("--data", help="folder of the data of a study of images")
    parser.add_argument("--study", default="digits")
    parser.add_argument("--rows", type=int, help="training rows, if not as the study says")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--epochs", type=int, help="of the main training, if not as shipped")
    parser.add_argument("--executor", choices=("ray", "inline"), default="ray")
    parser.add_argument("--small", action="store_true", help="the least of each mode")
    parser.add_argument("--to", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.trial:
        show(one_trial(options.trial))
        return
    if options.cell:
        warnings.simplefilter("ignore")
        show(one_cell(options.cell, options.data))
        return
    if "cells" in options.modes:
        cells(options)
        return
    if options.small:
        options.repeats, options.trials, options.epochs, options.rows = 1, 3, 5, 200
        options.variants, options.executor = ["plain", "shipped"], "inline"
    found = conditions("ratios of CPU time", "torch", "ray", "optuna")
    found |= {"repeats": options.repeats, "load": os.getloadavg()}
    if "study" in options.modes:
        found |= study(options)
    for mode in ("groups", "trials"):
        if mode in options.modes:
            found[mode] = {"groups": groups, "trials": trials}[mode](options)
    write_json(options.to, found)


if __name__ == "__main__":
    main()
