"""Kill everything that a study needs, again and again; compare every table bit by bit.

    python benchmarks/chaos.py --real 200 --simulated 800 --minutes 5 --home DIR --to FILE.json

Real kills (SIGKILL) hit the command line with Ray on this machine: `real_kills.py`. Simulated ones
hit a driver, in a process of its own, at a random step between two writes (`storage/faults.py`);
between two drivers a line of the journal or a table is sometimes torn.

A study is plain, pruned, replicated, raced, or stored at a URI; all are asked in batches, because
only then proposals do not depend on time. It ends undisturbed first. Every table of the disturbed
study must then equal that one in every column but attempts, durations and versions.

The result is written after each study, and the same command goes on from it until the numbers are
reached: `--minutes` is the length of one piece. `--home` keeps the undisturbed studies in between.
`commits` counts the kills by the commit of the code that was hit.
"""

import argparse
import contextlib
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_AUTH_MODE"] = "disabled"

import numpy as np
import pandas as pd
from real_kills import disturbed, undisturbed

from nas_evidence import __version__
from nas_evidence.driver.driver import Driver
from nas_evidence.driver.mirror import open_store
from nas_evidence.plumbing.files import write_whole
from nas_evidence.spec.study import StudySpec
from nas_evidence.storage.faults import ARROWS
from nas_evidence.storage.study_folder import locked, open_study
from nas_evidence.storage.tables import TABLES, read_tables
from nas_evidence.workers.executor import Watcher

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from learning_curves import synthetic
from simulated import SimulatedExecutor

KINDS = ("plain", "pruned", "replicated", "raced", "stored")
#: Most simulated kills of one study, so that each ends.
MOST_KILLS = 6
Result = dict[str, Any]


def tables_of(place: str) -> dict[str, pd.DataFrame]:
    """Return what a study found, without what may differ."""
    store = open_store(place)
    store.pull()
    frames, unreadable = read_tables(store.folder)
    assert not unreadable
    return {
        name: frame.drop(
            columns=[c for c in frame if c.endswith("seconds") or c in ("versions", "attempt")]
        )
        for name, frame in frames.items()
    }


def differing(place: str, calm: str) -> list[str]:
    """Return the tables of two studies that differ in any bit."""
    one, other = tables_of(place), tables_of(calm)
    return [name for name in TABLES if not one[name].equals(other[name])]


def simulated_study(kind: str) -> StudySpec:
    """Return a study of simulated trials."""
    return StudySpec.model_validate(
        {
            "name": "chaos",
            "objective": "kfac_ggn",
            "n_trials": 24,
            "scheduling": "batch",
            "batch": 4,
            "replicates": 2 if kind == "replicated" else 1,
            "finalists": 3 if kind == "raced" else 0,
            "dataset": {"name": "digits"},
            "family": {"mlp": {"width": {"low": 4, "high": 256, "log": True}}},
            "plan": {"epochs": 8, "online": {"every": 2}},
            "pruning": {
                "rule": "halving" if kind == "pruned" else "none",
                "first_epoch": 2,
                "reduction": 2,
                "startup_trials": 2,
            },
            "retries": {"crashes": "unlimited"},
        }
    )


def drive(study: StudySpec, place: str, seed: int) -> None:
    """Run a study of simulated trials, or what is left of it."""
    store = open_store(place)
    with store.held(steal=True):
        spec = open_study(store.folder, study, steal=True)
        executor = SimulatedExecutor(synthetic, workers=3, seed=seed)
        with locked(store.folder, steal=True):
            Driver(spec, store.folder, store.around(executor), Watcher()).run()


def forked(study: StudySpec, place: str, seed: int, crash_at: str) -> int:
    """Run a driver in a process of its own; return how it ended."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.environ["NAS_EVIDENCE_CRASH_AT"] = crash_at
            os.fsync = lambda descriptor: None  # the loss of power is not simulated
            drive(study, place, seed)
            code = 0
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def damage(folder: Path, chance: random.Random) -> str:
    """Add half a line to the journal or tear a table; return which, "" for none."""
    what = chance.choice(["", "", "", "", "journal", "table"])
    files = sorted(folder.glob("[et][vr]*/*.parquet"))
    if what == "journal":
        parts = [folder / "logs" / "events.jsonl", *sorted(folder.glob("logs/events/*.jsonl"))]
        for path in [part for part in parts if part.exists()][-1:]:
            path.write_bytes(path.read_bytes() + b'{"t": 1.0, "event": "ask", "numb')
    elif what == "table" and files:
        path = chance.choice(files)
        path.write_bytes(path.read_bytes()[:-30])
    return what if what != "table" or files else ""


def simulated(kind: str, home: Path, chance: random.Random) -> Result:
    """Kill one simulated study until it ends; return what happened to it."""
    kills, damages, failed = Counter[str](), Counter[str](), list[str]()
    study, calm, folder = simulated_study(kind), home / f"calm-{kind}", home / "s"
    if "optuna.samplers" not in sys.modules:  # imported here, not again in each process
        with tempfile.TemporaryDirectory() as passing:
            drive(study, passing, 0)
    if not calm.exists():
        assert forked(study, str(home / "s"), 0, "") == 0
        folder.rename(calm)
    place = f"file://{folder}" if kind == "stored" else str(folder)
    for _ in range(MOST_KILLS):
        arrow = chance.choice(ARROWS)
        crash_at = f"{arrow}:{chance.randrange(1, 12)}"
        code = forked(study, place, chance.randrange(1000), crash_at)
        if code == -signal.SIGKILL:
            kills[f"{kind}: {arrow}"] += 1
            damages[damage(folder, chance)] += 1
        else:
            if code != 0:
                failed.append(f"{kind} {crash_at}: exit code {code}")
            break
    if (code := forked(study, place, 0, "")) != 0:
        failed.append(f"{kind}, last run: exit code {code}")
    return {"kills": kills, "damages": damages, "failures": failed, "place": place, "calm": calm}


def real(kind: str, home: Path, chance: random.Random, end: float) -> Result:
    """Kill one real study until it ends; return what happened to it."""
    calm, folder = undisturbed(kind, home), home / "real"
    place = f"file://{folder}" if kind == "stored" else str(folder)
    kills, failed = disturbed(kind, place, folder, home, chance=chance, end=end)
    return {"kills": kills, "damages": {}, "failures": failed, "place": place, "calm": calm}


def piece(part: str, so_far: Result, home: Path, *, n_kills: int, seed: int, end: float) -> bool:
    """Disturb the next study and add it to the result of a part; False if there is none."""
    number = sum(so_far["studies"].values())
    if sum(so_far["kills"].values()) >= n_kills or time.monotonic() > end:
        return False
    kind, chance = KINDS[number % len(KINDS)], random.Random(f"{seed}-{part}-{number}")
    is_real = part == "real"
    shutil.rmtree(home / ("real" if is_real else "s"), ignore_errors=True)
    found = real(kind, home, chance, end) if is_real else simulated(kind, home, chance)
    for key in ("kills", "damages"):
        for name, count in found[key].items():
            if name:
                so_far[key][name] = so_far[key].get(name, 0) + count
    n_new, code = sum(found["kills"].values()), commit()
    so_far["commits"][code] = so_far["commits"].get(code, 0) + n_new
    so_far["failures"] += found["failures"]
    if not found["failures"] and (wrong := differing(found["place"], str(found["calm"]))):
        so_far["tables_that_differ"].append(f"{kind}, study {number}: {', '.join(wrong)}")
    so_far["studies"][kind] = so_far["studies"].get(kind, 0) + 1
    return True


def commit() -> str:
    """Return the commit of this code; "-dirty" is added where files differ from it."""
    how = ("git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty")
    return subprocess.run(how, check=True, capture_output=True, text=True).stdout.strip()


def empty() -> Result:
    """Return the result of no study."""
    nothing: Result = {"kills": {}, "damages": {}, "studies": {}, "commits": {}, "seconds": 0}
    return nothing | {"tables_that_differ": [], "failures": []}


def stored(path: Path) -> Result:
    """Return the result so far; empty if there is none."""
    found: Result = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def summary(part: Result) -> str:
    """Return the counts of a part in one line."""
    by_what = Counter[str]()
    for name, count in part["kills"].items():
        by_what[name.partition(": ")[2]] += count
    return (
        f"{sum(part['kills'].values())} kills in {sum(part['studies'].values())} studies "
        f"({dict(by_what)}), {sum(part['damages'].values())} damages, "
        f"{len(part['tables_that_differ'])} differ, {len(part['failures'])} failed"
    )


@contextlib.contextmanager
def kept(home: Path | None) -> Iterator[Path]:
    """Give a folder for undisturbed studies and for data: this one, or a passing one."""
    if home is None:
        with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
            yield Path(folder)
        return
    home.mkdir(parents=True, exist_ok=True)
    yield home.resolve()


def main() -> None:
    """Run one piece of both parts and write the result so far."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--real", type=int, default=200, help="real kills in all")
    parser.add_argument("--simulated", type=int, default=800, help="simulated kills in all")
    parser.add_argument("--minutes", type=float, default=1e9, help="length of this piece")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--home", type=Path, help="keeps the undisturbed studies")
    parser.add_argument("--to", type=Path, default=Path("benchmarks/results/chaos.json"))
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    conditions = {
        "seed": given.seed,
        "hardware": f"{os.cpu_count()} {platform.machine()} cores, shared with other jobs",
        "versions": {"nas-evidence": __version__, "python": platform.python_version()},
    }
    result = stored(given.to) or {"simulated": empty(), "real": empty()} | conditions
    if {name: result.get(name) for name in conditions} != conditions:
        parser.error(f"{given.to} was begun under other conditions; move it away")
    end = time.monotonic() + 60 * given.minutes
    with kept(given.home) as home:
        y = np.arange(180) % 3
        x = np.random.default_rng(0).normal(size=(180, 6)) + 2 * np.eye(6)[y]
        arrays = {"x_train": x[:120], "y_train": y[:120], "x_test": x[120:], "y_test": y[120:]}
        if not (home / "data.npz").exists():
            np.savez(home / "data.npz", **arrays)
        for part, wanted in (("real", given.real), ("simulated", given.simulated)):
            began = time.monotonic()
            while piece(part, result[part], home, n_kills=wanted, seed=given.seed, end=end):
                result[part]["seconds"] += round(time.monotonic() - began)
                began = time.monotonic()
                # The other part may be running elsewhere.
                result = (stored(given.to) or result) | {part: result[part]}
                write_whole(given.to, json.dumps(result, indent=1) + "\n")
            print(f"{part}: {summary(result[part])}", flush=True)
    parts = [result["simulated"], result["real"]]
    sys.exit(any(part["tables_that_differ"] or part["failures"] for part in parts))


if __name__ == "__main__":
    main()
