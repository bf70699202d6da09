"""The driver, workers and Ray are killed (SIGKILL), again and again, under the command line.

The driver runs with Ray on this machine; the raylet, one of Ray's agents, or all of Ray at once
(the node) are killed too, after which the driver starts Ray again by itself. A study is plain,
pruned, replicated, raced, or stored at a URI.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import faulty
from commands import run, start
from processes import members
from soak.harness import (
    Found,
    Result,
    Studies,
    counted,
    differing,
    n_launches,
    tables_of,
    write_study,
)

from nas_evidence.spec.study import StudySpec

KINDS = ("plain", "pruned", "replicated", "raced", "stored")
TARGETS = {
    "driver": (),
    "worker": ("_Actor",),
    "raylet": ("/raylet/raylet",),
    "agent": ("dashboard/agent.py", "runtime_env/agent"),
    "node": ("/raylet/raylet", "gcs_server", "_Actor", "agent"),
}
#: Maximum number of kills of one study, so that each study ends.
MOST_KILLS = 10
#: In the last line of a driver whose Ray was killed.
RAY_HAS_DIED = "this process was ended from outside"
#: Longest that a driver may take, seconds.
PATIENCE = 300.0


def of_kind(kind: str, *, finalists: int, first_epoch: int) -> dict[str, Any]:
    """Return what makes a study one of a kind."""
    rule = "halving" if kind == "pruned" else "none"
    return {
        "scheduling": "batch",
        "replicates": 2 if kind == "replicated" else 1,
        "finalists": finalists if kind == "raced" else 0,
        "pruning": {
            "rule": rule,
            "first_epoch": first_epoch,
            "reduction": 2,
            "startup_trials": 2,
        },
        "retries": {"crashes": "unlimited"},
    }


def simulated_study(kind: str, n_trials: int = 24) -> StudySpec:
    """Return a study of a kind for trials that `simulated` plays."""
    return faulty.study(
        n_trials=n_trials,
        batch=4,
        family={"mlp": {"width": {"low": 4, "high": 256, "log": True}}},
        plan={"epochs": 8, "online": {"every": 2}},
        **of_kind(kind, finalists=3, first_epoch=2),
    )


@contextlib.contextmanager
def studies(home: Path, seed: int) -> Iterator[Studies]:
    def disturb(number: str) -> Found:
        kind = KINDS[int(number) % len(KINDS)]
        study = write_study(
            home / kind, rows=180, epochs=60, every=10, n_trials=6, batch=3, race={"trials": 4},
            **of_kind(kind, finalists=2, first_epoch=20),
        )  # fmt: skip
        folder, calm = home / "disturbed", home / kind / "calm"
        shutil.rmtree(folder, ignore_errors=True)
        if not calm.exists():
            run("search", study, "--out", folder, "--executor", "inline", folder=home)
            folder.rename(calm)
        place = f"file://{folder}" if kind == "stored" else str(folder)
        chance = random.Random(f"{seed}-real-{number}")
        found = kill_until_it_ends(kind, study, place, folder, chance)
        return found if found.wrong else Found(
            found.counts, differing(tables_of(place), tables_of(calm))
        )  # fmt: skip

    yield map(str, count()), disturb


def kill_until_it_ends(
    kind: str, study: Path, place: str, folder: Path, chance: random.Random
) -> Found:
    kills, wrong = Counter[str](), list[str]()
    for n_drivers in range(MOST_KILLS + 2):
        how = ("--executor", "ray", *(("--steal",) if n_drivers else ()))
        command = ("search", study, "--out", place, *how)
        with start(*command, folder=folder.parent, stderr=subprocess.STDOUT) as driver:
            try:
                for hit in killed(driver, folder, chance, most=MOST_KILLS - kills.total()):
                    kills[f"{kind}: {hit}"] += 1
                text, _ = driver.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                return Found(kills, [*wrong, f"hung: {kind}"])
            finally:
                if driver.poll() is None:
                    end(members(driver.pid))
        if driver.returncode == 0:
            return Found(kills, wrong)
        if driver.returncode != -signal.SIGKILL and RAY_HAS_DIED not in text:
            wrong.append(f"failed: {kind}, exit code {driver.returncode}: {text[-300:]}")
    return Found(kills, [*wrong, f"lost: {kind}, not finished after {n_drivers + 1} drivers"])


def killed(
    driver: "subprocess.Popen[str]", folder: Path, chance: random.Random, *, most: int
) -> Iterator[str]:
    """Kill one thing after the next slices, until the driver is gone; yield what was killed."""
    while most > 0:
        enough, patience = n_launches(folder) + chance.randrange(1, 4), time.monotonic() + PATIENCE
        while n_launches(folder) < enough:
            time.sleep(0.05)
            if driver.poll() is not None or time.monotonic() > patience:
                return
        target = chance.choice(list(TARGETS))
        everyone = members(driver.pid)
        hit = [pid for pid, name in everyone.items() if any(w in name for w in TARGETS[target])]
        hit = [driver.pid] if target == "driver" else hit if target == "node" else hit[:1]
        end(hit)
        if hit:
            most -= 1
            yield target
        if target == "driver":
            return


def end(processes: Any) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def table(result: Result) -> str:
    """Return what was killed, in one line."""
    by_target = Counter[str]()
    for name, n in counted(result).items():
        by_target[name.partition(": ")[2]] += n
    return f"{by_target.total()} kills: {dict(by_target)}"
