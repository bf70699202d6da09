"""A study on the command line whose driver, workers and Ray are killed (SIGKILL) while it runs.

Used by `chaos.py`. The driver runs with Ray on this machine; the raylet, Ray's agents, or all of
Ray at once (the node) are killed too, after which the driver starts Ray again by itself.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

TARGETS = ("driver", "worker", "raylet", "agent", "node")
#: Most kills of one study, and most that end Ray under one driver, so that each study ends.
MOST_KILLS, MOST_RESTARTS = 10, 2
#: Longest that a driver may take, seconds.
PATIENCE = 300.0
STUDY = """\
# nas-evidence study folder, format 2
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
[pruning]
rule = "{rule}"
first_epoch = 20
reduction = 2
startup_trials = 2
[race]
trials = 4
[retries]
crashes = "unlimited"
"""


def undisturbed(kind: str, home: Path) -> Path:
    """Return the folder of a study that nothing disturbs, run if it is not there."""
    folder, path = home / f"real-calm-{kind}", home / f"{kind}.toml"
    if not folder.exists():
        text = STUDY.format(
            data=home / "data.npz",
            rule="halving" if kind == "pruned" else "none",
            replicates=2 if kind == "replicated" else 1,
            finalists=2 if kind == "raced" else 0,
        )
        path.write_text(text)
        how = ("search", path, "--out", home / "real", "--executor", "inline")
        subprocess.run(_command(*how), check=True, capture_output=True)
        (home / "real").rename(folder)
    return folder


def disturbed(
    kind: str, place: str, folder: Path, home: Path, *, chance: random.Random, end: float
) -> tuple[Counter[str], list[str]]:
    """Run a study to its end; return what was killed, and what ended as it should not.

    Args:
        kind: of study.
        place: of the study, a folder or a URI.
        folder: of the same.
        home: where `undisturbed` left the study file.
        chance: for what is killed when.
        end: from this time on nothing more is killed, `time.monotonic`.
    """
    kills, failed = Counter[str](), list[str]()
    for n_drivers in range(MOST_KILLS + 2):
        verb = ("search", home / f"{kind}.toml", "--out", place, "--executor", "ray")
        process = subprocess.Popen(
            _command(*verb, *(("--steal",) if n_drivers else ())),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            for hit in _kill_again_and_again(
                process, folder, chance, most=MOST_KILLS - kills.total(), end=end
            ):
                kills[f"{kind}: {hit}"] += 1
            text, _ = process.communicate(timeout=PATIENCE)
        finally:
            if process.poll() is None:
                _end(process)
        if process.returncode == 0:
            return kills, failed
        if process.returncode != -signal.SIGKILL:
            failed.append(f"{kind}: exit code {process.returncode}: {text[-300:]}")
    return kills, [*failed, f"{kind}: not finished after {n_drivers + 1} drivers"]


def _kill_again_and_again(
    process: "subprocess.Popen[str]",
    folder: Path,
    chance: random.Random,
    *,
    most: int,
    end: float,
) -> Iterator[str]:
    """Kill one thing after the next slices, until the driver is gone; yield what was killed."""
    restarts = 0
    while most > 0:
        seen, wait = n_events(folder), chance.randrange(1, 4)
        while n_events(folder) < seen + wait:
            time.sleep(0.05)
            if process.poll() is not None or time.monotonic() > end:
                return
        target = chance.choice(TARGETS if restarts < MOST_RESTARTS else TARGETS[:2])
        hit = _victims(target, process.pid)
        for pid in hit:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if hit:
            most -= 1
            yield target
        if target == "driver":
            return
        restarts += target != "worker"


def n_events(folder: Path) -> int:
    """Return how many slices a journal has; a store's parts are read too."""
    paths = [folder / "logs" / "events.jsonl", *(folder / "logs" / "events").glob("*.jsonl")]
    with contextlib.suppress(OSError):
        return sum(path.read_text().count('"report"') for path in paths if path.exists())
    return 0


def _victims(target: str, driver: int) -> list[int]:
    """Return the processes to kill."""
    if target == "driver":
        return [driver]
    words = {
        "worker": ("_Actor",),
        "raylet": ("/raylet/raylet",),
        "agent": ("dashboard/agent.py", "runtime_env/agent"),
        "node": ("/raylet/raylet", "gcs_server", "_Actor", "agent"),
    }[target]
    there = _below(driver)
    found = [pid for pid, text in there.items() if any(word in text for word in words)]
    return found if target == "node" else found[:1]


def _end(process: "subprocess.Popen[str]") -> None:
    """End a driver and all that it started."""
    for pid in (*_below(process.pid), process.pid):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def _below(root: int) -> dict[int, str]:
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


def _command(*words: object) -> list[str]:
    """Return a command line of nas-evidence."""
    return [sys.executable, "-m", "nas_evidence", *map(str, words)]
