"""Seconds from the command to the exported winner of small studies, on an idle machine.

    python benchmarks/small_studies.py DATA_ROOT [--sets waveform bostonHousing] [--rows 300]
                                       [--trials 24] [--race] [--repeats 3] [--to F]

The default search of a table: workers as it chooses them, five folds below 1,000 rows, and
`finalists = 0` unless `--race`. When lines appear is what a user sees: the first trial, the last
one, the report (after the simple models), the end. The run of fewest seconds is stored, with the
totals of all. DATA_ROOT holds `uci/` and `uci-classification/`. Other work on the machine makes
these numbers wrong.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
from _sets import raw

from nas_evidence.data.arrays import Array

RESULTS = Path(__file__).resolve().parent / "results" / "small_studies_cpu.json"


def write_table(name: str, root: Path, n_rows: int, place: Path) -> None:
    """Write the first rows of a set, in a fixed random order, as a table."""
    x, y = raw(name, root)
    frame = pd.DataFrame(x, columns=[f"x{i}" for i in range(x.shape[1])])
    frame["target"] = _targets(y)
    frame.sample(n_rows, random_state=0).to_csv(place, index=False)


def _targets(y: Array) -> list[str] | Array:
    return [f"class {label}" for label in y] if y.ndim == 1 else y[:, 0]


def run(table: Path, trials: int, *, race: bool) -> dict[str, float]:
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


def main() -> None:
    """Run the studies and write what they took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--sets", nargs="+", default=["waveform", "bostonHousing"])
    parser.add_argument("--rows", type=int, nargs="+", default=[300])
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--race", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--to", type=Path, default=RESULTS)
    given = parser.parse_args()
    hardware = f"{os.cpu_count()} {platform.machine()} cores"
    stored = json.loads(given.to.read_text()) if given.to.exists() else {"runs": []}
    for name in given.sets:
        for n_rows in given.rows:
            with tempfile.TemporaryDirectory() as folder:
                table = Path(folder) / f"{name}.csv"
                write_table(name, given.data, n_rows, table)
                runs = [run(table, given.trials, race=given.race) for _ in range(given.repeats)]
            best = min(runs, key=lambda one: one["end"])
            row = {"data": name, "rows": n_rows, "trials": given.trials, "race": given.race}
            found = {**row, "hardware": hardware, **best, "ends": [one["end"] for one in runs]}
            print(json.dumps(found), flush=True)
            stored["runs"] = [one for one in stored["runs"] if not row.items() <= one.items()]
            stored["runs"].append(found)
            lines = ",\n  ".join(map(json.dumps, stored["runs"]))
            given.to.write_text(f'{{"runs": [\n  {lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
