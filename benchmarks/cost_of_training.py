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

    python benchmarks/cost_of_training.py groups trials [--repeats 5] [--before FOLDER]
    python benchmarks/cost_of_training.py study [--trials 24] [--executor inline]
    python benchmarks/cost_of_training.py study --data DATA --study fashion_mnist_quick
        --rows 10000 --trials 4 --variants plain shipped --executor inline

Digits, 1,297 images of 8x8, batches of 128, one thread, CPU seconds; medians and ranges of ratios
of the same turn. `--to FILE` stores; together_cpu, study_cost_cpu and study_cost_images_cpu are
committed. `--small` runs the least of each mode.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _common import (
    HERE,
    checkouts,
    conditions,
    in_turn,
    ratios,
    seconds_of,
    show,
    spread,
    with_version,
    write_json,
)
from _networks import Network, assignment, plain_epoch

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
#: Part -> where it is called.
PARTS = {
    "training": (nas_evidence.training.life, "train_epochs"),
    "folds": (nas_evidence.scores.folds.Folds, "advance"),
    "updates": (nas_evidence.training.life, "updated"),
    "evaluations": (nas_evidence.workers.trial, "evaluate"),
}


def one_trial(name: str) -> dict[str, float]:
    """Return the seconds of a trial by part, and scores; called in a process of its own."""
    study, data = digits()
    given = assignment(TRIALS[name], study.plan, 1, study.estimators)
    parts = dict.fromkeys(PARTS, 0.0)
    for part, (owner, function) in PARTS.items():
        setattr(owner, function, _timed(getattr(owner, function), parts, part))
    with tempfile.TemporaryDirectory() as folder:
        # What a process does once is not part of a trial.
        Trial.start(given, data, Path(folder) / "first").report()
        started = time.process_time()
        trial = Trial.start(given, data, Path(folder))
        while trial.status is TrialStatus.RUNNING:
            epoch = trial.report().epoch
            trial.advance(next_stop(given.plan, epoch).epoch)
        record = trial.finish()
        total = time.process_time() - started
    scores = {e.estimate.estimator: e.estimate.value for e in record.evaluations}
    named = {score: scores.get(score) for score in ("two_fold", "kfac_ggn", "diag_ef")}
    return {**parts, "rest": total - sum(parts.values()), "total": total, **named}


def _timed(function: Callable[..., Any], parts: dict[str, float], part: str) -> Callable[..., Any]:
    def timed(*args: object, **kwargs: object) -> object:
        found: list[object] = []
        parts[part] += seconds_of(lambda: found.append(function(*args, **kwargs)))
        return found[0]

    return timed


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
    names = (*PARTS, "rest", "total")
    sums = {
        version: {
            part: sum(statistics.median(r[part] for r in of[version]) for of in runs.values())
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


class Memory:
    """Watches the peak memory of a process and of its largest Ray worker (Linux)."""

    def __init__(self, pid: int) -> None:
        self.pid, self.driver_mb, self.worker_mb = pid, 0.0, 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._over.set()
        self._thread.join()

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


def main() -> None:
    """Measure, print, and store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modes", nargs="+", choices=("groups", "trials", "study"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--before", type=Path, help="a checkout that `trials` compares with")
    parser.add_argument("--trial", choices=TRIALS, help=argparse.SUPPRESS)
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
