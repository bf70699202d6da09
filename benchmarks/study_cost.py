"""What evidence adds to a whole study of the digits.

    shipped  as it is: Laplace evidences, and two_fold, which trains once on each half
    laplace  the Laplace evidences alone
    without  the same training without any

The architectures are the same in all (quasi-random, no sampler that learns), the studies take
turns, and everything counts: start, training, evidence, files, report, export.

    python benchmarks/study_cost.py [--repeats 3] [--trials 24] [--out F]
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
from importlib import metadata
from pathlib import Path

from nas_evidence.store import read_table

COMMAND = Path(sys.executable).with_name("nas-evidence")
SAME = ["--set", "sampler.name=qmc"]
LAPLACE = ["--set", 'estimators=["diag_ef", "kfac_ggn"]', "--set", "objective=kfac_ggn"]
WITHOUT = ["--set", "estimators=[]", "--set", "objective=sotl", "--set", "plan.online.every=1000"]
VARIANTS = {"shipped": [], "laplace": LAPLACE, "without": WITHOUT}


def run(options: list[str], trials: int) -> dict[str, float]:
    """Return the seconds of one study, and of its parts summed over trials."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "study"
        command = [str(COMMAND), "search", "digits", "--out", str(out), "--trials", str(trials)]
        started = time.perf_counter()
        subprocess.run([*command, *SAME, *options], check=True, stdout=subprocess.DEVNULL)
        wall = time.perf_counter() - started
        found = read_table(out, "trials")
        parts = ("train_seconds", "evidence_seconds", "total_seconds")
        return {"wall_seconds": wall} | {part: float(found[part].sum()) for part in parts}


def main() -> None:
    """Measure and print; write the table where `--out` says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data_root", nargs="?", help="not read; `make bench` passes it to all")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in VARIANTS}
    for _ in range(options.repeats):
        for name, changes in VARIANTS.items():
            runs[name].append(run(changes, options.trials))
            print(name, {k: round(v, 1) for k, v in runs[name][-1].items()}, flush=True)
    ratios = {}
    for name in ("shipped", "laplace"):
        for part in ("wall_seconds", "total_seconds"):
            pairs = zip(runs[name], runs["without"], strict=True)
            found = sorted(one[part] / other[part] for one, other in pairs)
            ratios[f"{name}, {part}"] = {"median": statistics.median(found), "all": found}
            print(f"{name} / without, {part}: {statistics.median(found):.2f}")
    result = {
        "what": "the digits study with evidence and the same training without, seconds",
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores, 2 workers",
        "versions": {name: metadata.version(name) for name in ("torch", "ray", "optuna")},
        "trials": options.trials,
        "runs": runs,
        "over_without": ratios,
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
