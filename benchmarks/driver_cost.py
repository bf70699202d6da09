"""What the driver spends on one more trial beside n finished ones, before a change and after it.

One study grows with quasi-random proposals on simulated workers. At each size a copy of its folder
goes on for some trials with TPE, in a fresh process, once with each version of the package, in
turns: CPU milliseconds per trial, without opening the folder.

    git worktree add BEFORE COMMIT
    python benchmarks/driver_cost.py --before BEFORE --scratch FOLDER --out F [--sizes 100 1000]
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from service_overhead import drive, spread, surroundings

HERE = Path(__file__).resolve().parent
MOST = 11_000


def measured(package: Path, folder: Path, trials: int, sampler: str) -> dict[str, Any]:
    """Return what `drive` returns, with the package in a folder, in a fresh process."""
    # With -P the folder of this script does not come before the package's own benchmarks.
    command = [sys.executable, "-P", __file__, "--one", sampler, str(trials), str(folder)]
    paths = os.pathsep.join(map(str, (package, package / "benchmarks", HERE)))
    found = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": paths}, check=True, capture_output=True
    )
    return dict(json.loads(found.stdout.splitlines()[-1]))


def main() -> None:
    """Measure, print, and write after each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=3, metavar=("SAMPLER", "TRIALS", "FOLDER"))
    parser.add_argument("--before", type=Path, help="a checkout to compare with")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1000, 2000, 10_000])
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if options.one:
        sampler, trials, folder = options.one
        print(json.dumps(drive(sampler, int(trials), Path(folder), of=MOST)))
        return
    packages = {"after": HERE.parent}
    if options.before:
        packages = {"before": options.before.resolve(), **packages}
    scratch = Path(tempfile.mkdtemp(dir=options.scratch))
    growing, copy = scratch / "growing", scratch / "copy"
    rows: list[dict[str, Any]] = []
    done = 0
    for size in options.sizes:
        measured(packages["after"], growing, size - done, "qmc")
        done = size
        found: dict[str, list[float]] = {name: [] for name in packages}
        for _ in range(options.repeats):
            for name, package in packages.items():
                shutil.copytree(growing, copy)
                found[name].append(
                    measured(package, copy, options.trials, "tpe")["cpu_ms"]["mean"]
                )
                shutil.rmtree(copy)
        rows.append({"finished": size} | {name: spread(ms) for name, ms in found.items()})
        print(json.dumps(rows[-1]), flush=True)
        result = {
            "what": f"CPU milliseconds of the driver per trial, TPE, {options.trials} trials "
            "beside so many finished ones",
            "surroundings": surroundings(scratch),
            "rows": rows,
        }
        if options.out:
            options.out.write_text(json.dumps(result, indent=1) + "\n")
    shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
