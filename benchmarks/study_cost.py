"""What a study of the digits, or of images, costs beside the plain trainings of its networks.

    plain    the scheduled epochs alone, one network after another in one process
    shipped  the study as it is: Laplace evidences, and two_fold, which trains once on each half
    settled  the same with `plan.settle = 1`; settling is booked apart

The architectures are the same in all (quasi-random, no sampler that learns), and the studies take
turns. A ratio divides the seconds of all trials by those of the plain trainings. Around the trials
there are the start (command to first launch), the search, the report and the export; the peak
memory is that of the driver and of the largest worker.

    python benchmarks/study_cost.py [--repeats 3] [--trials 24] [--executor inline] [--out F]
    python benchmarks/study_cost.py DATA --study fashion_mnist_quick --rows 10000
                                    --trials 6 --variants plain shipped --executor inline
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from nas_evidence.storage.journal import read_journal
from nas_evidence.storage.tables import read_table

PLAIN = {
    "estimators": "[]", "objective": '"sotl"', "plan.online.every": "never", "plan.settle": "0",
}  # fmt: skip
VARIANTS: dict[str, dict[str, str]] = {
    "plain": PLAIN,
    "shipped": {},
    "settled": {"plan.settle": "1"},
}


def run(name: str, study: str, given: list[str], changed: dict[str, str]) -> dict[str, float]:
    """Return the seconds and the memory of one study, by part.

    Args:
        name: of the variant.
        study: to search.
        given: further options.
        changed: keys of the study.
    """
    # The finalists of a race differ from variant to variant, so none is held.
    changes = {"sampler.name": '"qmc"', "finalists": "0", **changed, **VARIANTS[name]}
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "study"
        command = [
            sys.executable,
            "-m",
            "nas_evidence",
            "search",
            study,
            "--out",
            str(out),
            *given,
        ]
        if name == "plain":
            command += ["--executor", "inline"]
        for key, value in changes.items():
            command += ["--set", f"{key}={value}"]
        began = time.time()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        memory = Memory(process.pid)
        code = process.wait()
        memory.stop()
        if code:
            raise subprocess.CalledProcessError(code, command)
        return {
            "wall_seconds": time.time() - began,
            **parts_of(out, began),
            "driver_peak_mb": memory.driver_mb,
            "worker_peak_mb": memory.worker_mb,
        }


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
    events = list(read_journal(out))
    launched = next(e["t"] for e in events if e["event"] == "launch")
    stopped = next(e["t"] for e in reversed(events) if e["event"] == "stop")
    reported = (out / "report" / "index.html").stat().st_mtime
    exported = (out / "export" / "MODEL_CARD.md").stat().st_mtime
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


def ratios_of(runs: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Return the seconds of all trials over those of the plain trainings of the same turn."""
    found: dict[str, Any] = {}
    for name in (name for name in ("shipped", "settled") if name in runs):
        for booked, settling in (("with settling", 0.0), ("without settling", 1.0)):
            whole = sorted(
                (one["total_seconds"] - settling * one["settle_seconds"]) / plain["train_seconds"]
                for one, plain in zip(runs[name], runs["plain"], strict=True)
            )
            ends = {"min": whole[0], "max": whole[-1], "n": len(whole)}
            found[f"{name}, {booked}"] = {"median": statistics.median(whole), **ends}
    return found


def main() -> None:
    """Measure and print; write the results where `--out` says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data_root", nargs="?", help="of a study of images")
    parser.add_argument("--study", default="digits")
    parser.add_argument("--rows", type=int, help="training rows, if not as the study says")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--epochs", type=int, help="of the main training, if not as shipped")
    parser.add_argument("--executor", choices=("ray", "inline"), default="ray")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    given = ["--trials", str(options.trials), "--executor", options.executor]
    if options.study != "digits":
        given += ["--data-root", options.data_root]
    keys = {"plan.epochs": options.epochs, "dataset.max_train": options.rows}
    changed = {key: str(value) for key, value in keys.items() if value is not None}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in options.variants}
    load = [os.getloadavg()[0]]
    for _ in range(options.repeats):
        for name in options.variants:
            found = run(name, options.study, given, changed)
            runs[name].append({part: round(value, 2) for part, value in found.items()})
            load.append(os.getloadavg()[0])
            print(name, runs[name][-1], flush=True)
    over = ratios_of(runs)
    print({name: round(ratio["median"], 2) for name, ratio in over.items()})
    result = {
        "what": f"{options.study} beside the plain trainings of its networks, seconds",
        "rows": options.rows,
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores, executor {options.executor}",
        "load": load,
        "versions": {name: metadata.version(name) for name in ("torch", "ray", "optuna")},
        "trials": options.trials,
        "runs": runs,
        "over_plain": over,
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
