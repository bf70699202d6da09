"""Kill everything that a study needs, again and again; compare every table bit by bit.

    python benchmarks/chaos.py --real 20 --simulated 800 --to benchmarks/results/chaos.json

Real kills (SIGKILL) hit the command line with Ray on this machine: the driver, a worker, the
raylet, Ray's agents, or all of Ray at once (the node). Simulated ones hit a driver, in a process
of its own, at a random step between two writes (`storage/faults.py`); between two drivers the
database is sometimes deleted or a table torn.

A study is plain, pruned, replicated, raced, or stored at a URI; all are asked in batches, because
only then proposals do not depend on time. It ends undisturbed first. Every table of the disturbed
study must then equal that one in every column but attempts, durations and versions.
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

from nas_evidence import __version__
from nas_evidence.api.running import Silent
from nas_evidence.driver.driver import Driver
from nas_evidence.driver.mirror import open_store
from nas_evidence.spec import StudySpec
from nas_evidence.storage.faults import ARROWS
from nas_evidence.storage.study_folder import locked, open_study
from nas_evidence.store import TABLES, read_tables
from nas_evidence.workers.learning_curves import synthetic
from nas_evidence.workers.simulated import SimulatedExecutor

KINDS = ("plain", "pruned", "replicated", "raced", "stored")
TARGETS = ("driver", "worker", "raylet", "agent", "node")
#: Most kills of one study, so that each ends.
MOST_KILLS = 6
STUDY = """\
name = "chaos"
n_trials = 6
objective = "diag_ef"
estimators = ["diag_ef"]
scheduling = "batch"
batch = 3
replicates = {replicates}
finalists = {finalists}
[dataset]
name = "npz"
path = "{data}"
[family.mlp]
width = {{low = 4, high = 16, log = true}}
depth = 1
[plan]
epochs = 60
batch_size = 16
[plan.online]
every = 10
curvature = "diag_ef"
[sampler]
startup_per_family = 2
[pruning]
rule = "{rule}"
first_epoch = 20
reduction = 2
startup_trials = 2
[race]
trials = 4
[retries]
crashes = "unlimited"
machine_losses = "unlimited"
"""


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


# --- simulated


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
            "sampler": {"startup_per_family": 2},
            "pruning": {
                "rule": "halving" if kind == "pruned" else "none",
                "first_epoch": 2,
                "reduction": 2,
                "startup_trials": 2,
            },
            "retries": {"crashes": "unlimited", "machine_losses": "unlimited"},
        }
    )


def drive(study: StudySpec, place: str, seed: int) -> None:
    """Run a study of simulated trials, or what is left of it."""
    store = open_store(place)
    with store.held(steal=True):
        spec = open_study(store.folder, study, steal=True)
        executor = SimulatedExecutor(synthetic, workers=3, seed=seed)
        with locked(store.folder, steal=True):
            Driver(spec, store.folder, store.around(executor), Silent()).run()


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
    """Delete the database or tear a table; return which, "" for none."""
    what = chance.choice(["", "", "", "", "database", "table"])
    files = sorted(folder.glob("[et][vr]*/*.parquet"))
    if what == "database":
        (folder / "study.db").unlink(missing_ok=True)
    elif what == "table" and files:
        path = chance.choice(files)
        path.write_bytes(path.read_bytes()[:-30])
    return what if what != "table" or files else ""


def simulated(n_kills: int, seconds: float, home: Path, seed: int) -> dict[str, Any]:
    """Kill simulated studies; return counts."""
    chance, kills, damages = random.Random(seed), Counter[str](), Counter[str]()
    studies, different, failed = Counter[str](), list[str](), list[str]()
    end = time.monotonic() + seconds
    while kills.total() < n_kills and time.monotonic() < end:
        kind = KINDS[studies.total() % len(KINDS)]
        study, calm, folder = simulated_study(kind), home / f"calm-{kind}", home / "s"
        if not calm.exists():
            assert forked(study, str(calm), 0, "") == 0
        place = f"file://{folder}" if kind == "stored" else str(folder)
        for _ in range(MOST_KILLS):
            arrow = chance.choice(ARROWS)
            crash_at = f"{arrow}:{chance.randrange(1, 12)}"
            code = forked(study, place, chance.randrange(1000), crash_at)
            if code == -signal.SIGKILL:
                kills[f"{kind}: {arrow}"] += 1
                if what := damage(folder, chance):
                    damages[what] += 1
            else:
                if code != 0:
                    failed.append(f"{kind} {crash_at}: exit code {code}")
                break
        if (code := forked(study, place, 0, "")) != 0:
            failed.append(f"{kind}, last run: exit code {code}")
        elif wrong := differing(place, str(calm)):
            different.append(f"{kind}: {', '.join(wrong)}")
        studies[kind] += 1
        shutil.rmtree(folder, ignore_errors=True)
    by_kind = Counter[str]()
    for name, count in kills.items():
        by_kind[name.partition(":")[0]] += count
    return {
        "kills": kills.total(),
        "kills_by_kind": dict(by_kind),
        "damages_between_drivers": dict(damages),
        "studies": dict(studies),
        "tables_that_differ": different,
        "failures": failed,
    }


# --- real


def command(*words: object) -> list[str]:
    """Return a command line of nas-evidence."""
    return [sys.executable, "-m", "nas_evidence", *map(str, words)]


def below(root: int) -> dict[int, str]:
    """Return the processes below one: pid -> command."""
    found: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            text = (entry / "cmdline").read_text().replace("\0", " ")
            found[int(entry.name)] = parent, text
    mine = {root}
    for _ in range(6):
        mine |= {pid for pid, (parent, _) in found.items() if parent in mine}
    return {pid: found[pid][1] for pid in mine - {root} if pid in found}


def victims(target: str, driver: int) -> list[int]:
    """Return the processes to kill."""
    if target == "driver":
        return [driver]
    there = below(driver)
    words = {
        "worker": ("_Actor",),
        "raylet": ("/raylet/raylet",),
        "agent": ("dashboard/agent.py", "runtime_env/agent"),
        "node": ("/raylet/raylet", "gcs_server", "_Actor", "agent"),
    }[target]
    found = [pid for pid, text in there.items() if any(word in text for word in words)]
    return found if target == "node" else found[:1]


def n_events(folder: Path) -> int:
    """Return how many slices and ends a journal has; a store's parts are read too."""
    paths = [folder / "logs" / "events.jsonl", *(folder / "logs" / "events").glob("*.jsonl")]
    with contextlib.suppress(OSError):
        return sum(path.read_text().count('"report"') for path in paths if path.exists())
    return 0


def real(n_kills: int, seconds: float, home: Path, seed: int) -> dict[str, Any]:
    """Kill real processes; return counts."""
    chance, kills, studies = random.Random(seed), Counter[str](), Counter[str]()
    different, failed = list[str](), list[str]()
    end = time.monotonic() + seconds
    while kills.total() < n_kills and time.monotonic() < end:
        kind = KINDS[studies.total() % len(KINDS)]
        calm, folder = home / f"real-calm-{kind}", home / "real"
        path = home / f"{kind}.toml"
        if not calm.exists():
            text = STUDY.format(
                data=home / "data.npz",
                rule="halving" if kind == "pruned" else "none",
                replicates=2 if kind == "replicated" else 1,
                finalists=2 if kind == "raced" else 0,
            )
            path.write_text(text)
            how = ("search", path, "--out", calm, "--executor", "inline")
            subprocess.run(command(*how), check=True, capture_output=True)
        place = f"file://{folder}" if kind == "stored" else str(folder)
        n_here, verb = 0, ("search", path, "--out", place)
        while True:
            left = n_kills - kills.total()
            quiet = n_here >= MOST_KILLS or left <= 0 or time.monotonic() > end
            process = subprocess.Popen(
                command(*verb, *(("--steal",) if n_here else ())),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            for hit in () if quiet else disturb(process, folder, chance):
                kills[hit] += 1
                n_here += 1
            text, _ = process.communicate(timeout=600)
            if process.returncode == 0:
                break
            if process.returncode != -signal.SIGKILL:
                failed.append(f"{kind}: exit code {process.returncode}: {text[-300:]}")
                if quiet:
                    break
        if wrong := differing(place, str(calm)):
            different.append(f"{kind}: {', '.join(wrong)}")
        studies[kind] += 1
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "kills": kills.total(),
        "kills_by_target": dict(kills),
        "studies": dict(studies),
        "tables_that_differ": different,
        "failures": failed,
    }


def disturb(
    process: "subprocess.Popen[str]", folder: Path, chance: random.Random
) -> Iterator[str]:
    """Kill one thing after the next slices, until the driver is gone; yield what was killed."""
    while process.poll() is None:
        seen, wait = n_events(folder), chance.randrange(1, 4)
        while n_events(folder) < seen + wait:
            time.sleep(0.05)
            if process.poll() is not None:
                return
        target = chance.choice(TARGETS)
        hit = victims(target, process.pid)
        for pid in hit:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if hit:
            yield target
        if target in ("driver", "raylet", "node", "agent"):
            return  # the driver is gone, or starts Ray again


def main() -> None:
    """Run both parts and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--real", type=int, default=20, help="real kills")
    parser.add_argument("--simulated", type=int, default=800, help="simulated kills")
    parser.add_argument("--seconds", type=float, default=1e9, help="most time of each part")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--to", type=Path, default=None, help="JSON file of the result")
    given = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="chaos-"))
    y = np.arange(180) % 3
    x = np.random.default_rng(0).normal(size=(180, 6)) + 2 * np.eye(6)[y]
    np.savez(home / "data.npz", x_train=x[:120], y_train=y[:120], x_test=x[120:], y_test=y[120:])
    began = time.monotonic()
    try:
        result = {
            "simulated": simulated(given.simulated, given.seconds, home, given.seed),
            "real": real(given.real, given.seconds, home, given.seed),
            "seed": given.seed,
            "minutes": round((time.monotonic() - began) / 60, 1),
            "hardware": f"{os.cpu_count()} {platform.machine()} cores, shared with other jobs",
            "versions": {"nas-evidence": __version__, "python": platform.python_version()},
        }
    finally:
        shutil.rmtree(home, ignore_errors=True)
    text = json.dumps(result, indent=1)
    print(text)
    if given.to is not None:
        given.to.write_text(text + "\n")
    parts = [result["simulated"], result["real"]]
    sys.exit(any(part["tables_that_differ"] or part["failures"] for part in parts))  # type: ignore[index]


if __name__ == "__main__":
    main()
