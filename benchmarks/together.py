"""What trainings of one architecture gain side by side, and what a default trial costs.

    groups  K epochs one after another over an epoch of K trainings as one program; and an epoch of
            one training over a bare loop in torch, without prior, clipping and kept losses
    trials  a trial of the digits study over its main training alone, by part; with `--before DIR`
            also that of another checkout of this repository, in turn

Digits, 1,297 images of 8x8, batches of 128, one thread; seconds of processor time, medians and
ranges. Networks that `n_together` would not put into one program are put into one here.

    python benchmarks/together.py [--repeats 5] [--only groups] [--before DIR] [--out F]
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import torch

import nas_evidence.scores.folds
import nas_evidence.workers.trial
from nas_evidence.data import load
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.models import build
from nas_evidence.spec.record import TrialStatus
from nas_evidence.spec.study import ArchitectureSpec, Assignment
from nas_evidence.spec.toml import load_study
from nas_evidence.training.loop import begin
from nas_evidence.workers.trial import Trial

STUDY = Path(__file__).parents[1] / "search_spaces" / "digits.toml"
SIZES = (2, 3, 5, 8)
NETWORKS = {
    "MLP-16": ("mlp", {"depth": 2, "width": 16}),
    "MLP-64": ("mlp", {"depth": 2, "width": 64}),
    "MLP-256": ("mlp", {"depth": 2, "width": 256}),
    "CNN-4": ("cnn", {"depth": 2, "width": 4}),
    "CNN-8": ("cnn", {"depth": 2, "width": 8}),
    "CNN-16": ("cnn", {"depth": 2, "width": 16}),
    "ResNet-8": ("resnet", {"depth": 8, "width": 8}),
}
TRIALS = {
    "MLP 3x21": ("mlp", {"depth": 3, "width": 21}),
    "MLP 2x144": ("mlp", {"depth": 2, "width": 144}),
    "CNN-5, depth 1": ("cnn", {"depth": 1, "width": 5}),
    "CNN-10, depth 3": ("cnn", {"depth": 3, "width": 10}),
    "ResNet-8, width 10": ("resnet", {"depth": 8, "width": 10}),
    "ResNet-14, width 6": ("resnet", {"depth": 14, "width": 6}),
}


def assignment_of(family: str, values: dict[str, int], seed: int) -> Assignment:
    """Return the trial of an architecture in the digits study."""
    study = load_study(STUDY)
    new = {"curves": False} if "curves" in Assignment.model_fields else {}
    return Assignment(
        trial_id=0, attempt=1, replicate=0, seed=seed, dataset=study.dataset, plan=study.plan,
        architecture=ArchitectureSpec(family=family, values=values),
        estimators=study.estimators, **new,
    )  # fmt: skip


def digits() -> TensorData:
    """Return the data of the digits study."""
    return to_tensors(load(load_study(STUDY).dataset, seed=0), "cpu")


def groups(repeats: int) -> dict[str, dict[str, object]]:
    """Return gain by network and K, and the overhead of one training over a bare loop."""
    from nas_evidence.training import loop, together  # absent in older checkouts

    together._WIDE = together._LARGEST = sys.maxsize
    data, found = digits(), {}
    for name, (family, values) in NETWORKS.items():
        given = [assignment_of(family, values, seed) for seed in range(max(SIZES))]
        members = [loop.Member(begin(_network(g, data), g.plan), data, g) for g in given]

        def epochs(n: int, members: list[loop.Member] = members) -> None:
            for member in members[:n]:
                member.training.epoch = 0  # at the first learning rate for ever
            loop.train_epochs(members[:n])

        network = _network(given[0], data)
        runs: dict[str, Callable[[], None]] = {
            "bare": lambda network=network: _bare_epoch(network, data),  # type: ignore[misc]
            **{str(k): lambda k=k, run=epochs: run(k) for k in (1, *SIZES)},
        }
        seconds = _in_turn(runs, repeats)
        gains = {k: _ratio([k * s for s in seconds["1"]], seconds[str(k)]) for k in SIZES}
        found[name] = {"over a bare loop": _ratio(seconds["1"], seconds["bare"]), "gain": gains}
        print(name, found[name], flush=True)
    return found


def _network(given: Assignment, data: TensorData) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(given.seed)
    return build(given.architecture, data.input_shape, data.n_outputs, generator)


def _bare_epoch(network: torch.nn.Module, data: TensorData) -> None:
    optimiser = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    for rows in torch.randperm(len(data.x_train)).split(128):
        loss = torch.nn.functional.cross_entropy(network(data.x_train[rows]), data.y_train[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def _in_turn(runs: dict[str, Callable[[], None]], repeats: int) -> dict[str, list[float]]:
    """Return seconds of each run, which take turns; short ones are repeated within a turn."""
    times = {}
    for name, run in runs.items():
        run()
        times[name] = max(1, int(0.1 / _seconds(run)))
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            total = sum(_seconds(run) for _ in range(times[name]))
            seconds[name].append(total / times[name])
    return seconds


def _seconds(run: Callable[[], None]) -> float:
    started = time.process_time()
    run()
    return time.process_time() - started


def _ratio(above: list[float], below: list[float]) -> list[float]:
    """Return the median and the range of ratios of the same turn."""
    all_ = sorted(a / b for a, b in zip(above, below, strict=True))
    return [round(x, 2) for x in (statistics.median(all_), all_[0], all_[-1])]


def trial_seconds(name: str) -> dict[str, float]:
    """Return the seconds of a trial by part; called in a process of its own."""
    torch.set_num_threads(1)
    data, given = digits(), assignment_of(*TRIALS[name], seed=1)
    parts = {"training": 0.0, "folds": 0.0, "updates": 0.0, "evaluations": 0.0}
    _time(nas_evidence.workers.trial, "train_epoch", parts, "training")
    _time(nas_evidence.scores.folds.Folds, "advance", parts, "folds")
    _time(nas_evidence.workers.trial, "update_and_follow", parts, "updates")
    _time(nas_evidence.workers.trial, "evaluate", parts, "evaluations")
    with tempfile.TemporaryDirectory() as folder:
        # What a process does once is not part of a trial.
        Trial.start(given, data, Path(folder) / "first").report()
        started = time.process_time()
        trial = Trial.start(given, data, Path(folder))
        while trial.status is TrialStatus.RUNNING:
            epoch = trial.report().epoch
            trial.advance(min(e for e in given.plan.evaluation_epochs() if e > epoch))
        record = trial.finish()
        total = time.process_time() - started
    scores = {e.estimate.estimator: e.estimate.value for e in record.evaluations}
    named = {score: scores[score] for score in ("two_fold", "kfac_ggn", "diag_ef")}
    return {**parts, "rest": total - sum(parts.values()), "total": total, **named}


def _time(owner: object, name: str, parts: dict[str, float], part: str) -> None:
    function = getattr(owner, name)

    def timed(*args: object, **kwargs: object) -> object:
        started = time.process_time()
        try:
            return function(*args, **kwargs)
        finally:
            parts[part] += time.process_time() - started

    setattr(owner, name, timed)


def trials(repeats: int, before: Path | None) -> dict[str, dict[str, object]]:
    """Return seconds of trials by part, and over the main training alone of either version."""
    versions = {"now": Path(__file__).parents[1], **({"before": before} if before else {})}
    runs: dict[str, dict[str, list[dict[str, float]]]] = {}
    for _ in range(repeats):
        for name in TRIALS:
            for version, folder in versions.items():
                command = [sys.executable, "-W", "ignore", __file__, "--trial", name]
                environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
                said = subprocess.run(
                    command, env=environment, cwd=folder, check=True, capture_output=True
                ).stdout
                runs.setdefault(name, {}).setdefault(version, []).append(json.loads(said))
                print(name, version, said.decode().strip(), flush=True)
    return {"trials": runs, "all": _summary(runs)}


def _summary(runs: dict[str, dict[str, list[dict[str, float]]]]) -> dict[str, object]:
    """Return the parts summed over trials, medians over repeats, relative to main trainings."""
    found: dict[str, object] = {}
    sums: dict[str, dict[str, float]] = {}
    for version in next(iter(runs.values())):
        parts = ("training", "folds", "updates", "evaluations", "rest", "total")
        sums[version] = {
            part: sum(statistics.median(r[part] for r in of[version]) for of in runs.values())
            for part in parts
        }
        plain = sums[version]["training"]
        found[version] = {part: round(s / plain, 3) for part, s in sums[version].items()}
    if "before" in sums:
        now, then = sums["now"], sums["before"]
        found["now over the trainings before"] = round(now["total"] / then["training"], 3)
        found["now over before"] = round(now["total"] / then["total"], 3)
    return found


def main() -> None:
    """Measure and print; write the table where `--out` says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=("groups", "trials"))
    parser.add_argument("--before", type=Path)
    parser.add_argument("--trial", choices=tuple(TRIALS), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.trial:
        print(json.dumps(trial_seconds(options.trial)))
        return
    torch.set_num_threads(1)
    result: dict[str, object] = {
        "what": "processor time; ratios as median, lowest, highest over the repeats",
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores, one thread",
        "load": os.getloadavg(),
        "versions": {"torch": metadata.version("torch")},
        "repeats": options.repeats,
    }
    if options.only != "trials":
        result["groups"] = groups(options.repeats)
    if options.only != "groups":
        result["trials"] = trials(options.repeats, options.before)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
