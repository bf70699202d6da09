"""What evidence adds to a whole study: the digits with it, and the same training without.

The architectures are the same in both (quasi-random, no sampler that learns), the studies take
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
WITHOUT = ["--set", "estimators=[]", "--set", "objective=sotl", "--set", "plan.online.every=1000"]


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
    runs: dict[str, list[dict[str, float]]] = {"with": [], "without": []}
    for _ in range(options.repeats):
        for name, changes in (("with", []), ("without", WITHOUT)):
            runs[name].append(run(changes, options.trials))
            print(name, {k: round(v, 1) for k, v in runs[name][-1].items()}, flush=True)
    pairs = zip(runs["with"], runs["without"], strict=True)
    ratios = [one["wall_seconds"] / other["wall_seconds"] for one, other in pairs]
    print(f"with / without, wall: {statistics.median(ratios):.2f} {sorted(ratios)}")
    result = {
        "what": "the digits study with evidence and the same training without, seconds",
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores, 2 workers",
        "versions": {name: metadata.version(name) for name in ("torch", "ray", "optuna")},
        "trials": options.trials,
        "runs": runs,
        "wall_ratio": {"n": len(ratios), "median": statistics.median(ratios), "all": ratios},
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
