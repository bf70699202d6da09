"""What a study of 300 rows costs with five folds, by piece, from the command to the export.

    python benchmarks/small_studies.py DATA_ROOT [--trials 8 24] [--repeats 3] [--out F]

One process, one thread, no race. `cpu_seconds` are user and system time of the command, which
other work on the machine disturbs least; the pieces are seconds on the clock, summed over trials:

    train     scheduled epochs of the networks on all rows          settle  settling of these
    folds     five trainings on four fifths, with their settling    evidence  updates and evidences
    start     command to first launch     search  to the last trial     report, export

The run of fewest CPU seconds is shown. DATA_ROOT holds `uci/bostonHousing` and
`uci-classification/waveform`.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pandas as pd
from settling import raw
from study_cost import parts_of

from nas_evidence.data.arrays import Array

SETS = ("waveform", "bostonHousing")
N_ROWS = 300


def write_table(name: str, root: Path, place: Path) -> None:
    """Write the first rows of a set, in a fixed random order, as a table."""
    x, y = raw(name, root)
    frame = pd.DataFrame(x, columns=[f"x{i}" for i in range(x.shape[1])])
    frame["target"] = _targets(y)
    frame.sample(N_ROWS, random_state=0).to_csv(place, index=False)


def _targets(y: Array) -> Any:
    return [f"class {label}" for label in y] if y.ndim == 1 else y[:, 0]


def run(table: Path, trials: int) -> dict[str, float]:
    """Return the seconds of a study of a table, by piece."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "study"
        command = [sys.executable, "-m", "nas_evidence", "search", str(table)]
        command += ["--target", "target", "--trials", str(trials), "--out", str(out)]
        command += ["--executor", "inline", "--set", 'objective="five_fold"']
        command += ["--set", 'estimators=["five_fold"]', "--set", "finalists=0"]
        before, began = _cpu(), time.time()
        subprocess.run(
            command, stdout=subprocess.DEVNULL, check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        wall, cpu = time.time() - began, _cpu() - before
        parts = parts_of(out, began)
    folds = parts.get("five_fold_seconds", 0.0)
    found = {"cpu": cpu, "wall": wall, "folds": folds}
    found["evidence"] = parts["evidence_seconds"] - folds
    for piece in ("train", "settle", "start", "search", "report", "export"):
        found[piece] = parts[f"{piece}_seconds"]
    return {f"{piece}_seconds": round(seconds, 2) for piece, seconds in found.items()}


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure, print a line each, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data_root", type=Path)
    parser.add_argument("--trials", type=int, nargs="+", default=[8, 24])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.sets:
            table = Path(folder) / f"{name}.csv"
            write_table(name, options.data_root, table)
            for trials in options.trials:
                runs = [run(table, trials) for _ in range(options.repeats)]
                least = min(runs, key=lambda one: one["cpu_seconds"])
                rows.append({"set": name, "trials": trials, "n": len(runs), **least})
                print(json.dumps(rows[-1]), flush=True)
    if options.out:
        found = {
            "what": f"studies of {N_ROWS} rows, five folds, no race, one process and thread",
            "hardware": f"{platform.machine()}, {os.cpu_count()} cores",
            "load": os.getloadavg()[0],
            "rows": rows,
        }
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
