"""Soak campaigns: disturb one study after the other, then compare every table bit by bit.

    make soak CAMPAIGN=kills ARGS="--minutes 5 --to kills.json"

A campaign disturbs studies, numbered or named. What a study found must equal what the undisturbed
one found, in every table, bit by bit, but for attempts, durations and versions. All studies are
asked in batches, because only then proposals do not depend on time.

The result file is written after each study. The same command first tries again what was wrong,
then goes on where the file ends; `--minutes` is the length of one piece. `commits` counts the
studies by the commit of the code. The exit code is 1 where something is wrong.
"""

import argparse
import contextlib
import itertools
import json
import logging
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import ray
import tomli_w
from commands import found as read_found

from nas_evidence import __version__
from nas_evidence.driver.driver import Driver
from nas_evidence.driver.mirror import working_copy
from nas_evidence.plumbing.files import write_whole
from nas_evidence.spec.study import StudySpec
from nas_evidence.spec.toml import FORMAT
from nas_evidence.storage.conditions import note_conditions
from nas_evidence.storage.log import log_files
from nas_evidence.storage.study_folder import locked, open_study
from nas_evidence.storage.tables import TABLES
from nas_evidence.workers.executor import Executor, Watcher

CAMPAIGNS = (
    "kills", "merges", "thousands", "faults", "damage", "pairs", "memory", "disks",
    "locales", "hosts", "shared", "slurm",
)  # fmt: skip
ROOT = Path(__file__).resolve().parents[2]
Tables = dict[str, pd.DataFrame]
Result = dict[str, Any]


@dataclass
class Found:
    """What came of a disturbed study.

    counts  disturbances by kind, or outcomes
    wrong   what must not be; each begins with a word for it
    facts   what else is kept of a named study
    """

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


#: Disturbs the study of a number or name.
Disturb = Callable[[str], Found]
#: The names of a campaign's studies, and what disturbs one.
Studies = tuple[Iterable[str], Disturb]


# --- studies


def write_study(home: Path, *, rows: int, epochs: int, every: int, **changes: Any) -> Path:
    """Write a table of three classes and a study of small networks on it; return the study."""
    home.mkdir(parents=True, exist_ok=True)
    y = np.arange(rows) % 3
    x = np.random.default_rng(0).normal(size=(rows, 4)) + 2 * np.eye(4)[y]
    frame = pd.DataFrame(x, columns=list("abcd")).assign(kind=np.array(["r", "g", "b"])[y])
    frame.to_csv(home / "data.csv", index=False)
    table = {
        "name": "table",
        "path": str(home / "data.csv"),
        "target": "kind",
        "test_fraction": 0.2,
    }
    online = {"every": every, "curvature": "diag_ef"}
    width = {"low": 4, "high": 16, "log": True}
    study = {
        "name": "soak",
        "objective": "diag_ef",
        "estimators": ["diag_ef"],
        "scheduling": "batch",
        "dataset": table | {"test_fraction": 0.2},
        "family": {"mlp": {"width": width, "depth": 1}},
        "plan": {"epochs": epochs, "batch_size": 16, "online": online},
    }
    text = tomli_w.dumps(study | changes)  # with what only the file of a folder has
    (home / "study.toml").write_text(f"# nas-evidence study folder, format {FORMAT}\n{text}")
    return home / "study.toml"


def drive(study: StudySpec, place: str, executor: Callable[[], Executor]) -> bool:
    """Run a study, or what is left of it; return whether something had to be mended."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        store = working_copy(place, Path(scratch) / "s")
        with store.held(steal=True):
            spec = open_study(store.folder, study, steal=True)
            with locked(store.folder, steal=True):
                digest, mended = note_conditions(store.folder, spec, "")
                around = store.around(executor())
                driver = Driver(spec, store.folder, around, Watcher(), content_hash=digest)
                driver.run()
        return bool(mended or driver.notices)


def n_launches(folder: Path) -> int:
    """Return how many attempts a log says were launched."""
    with contextlib.suppress(OSError):
        return sum(path.read_text().count('"launch"') for path in log_files(folder))
    return 0


# --- comparison


def tables_of(place: str | Path) -> Tables:
    """Return what a study found, without what may differ."""
    with tempfile.TemporaryDirectory() as scratch:
        store = working_copy(str(place), Path(scratch) / "s")
        store.pull()
        return read_found(store.folder, without=["attempt"])


def differing(one: Tables, other: Tables) -> list[str]:
    """Return the tables that differ in any bit, as one sentence or none."""
    names = [name for name in TABLES if not one[name].equals(other[name])]
    return [f"differ: {', '.join(names)}"] if names else []


def outcomes_by_kind(result: Result, head: str, outcomes: Sequence[str]) -> str:
    """Return counts named `kind: outcome`, with those of studies that are wrong, as Markdown."""
    found: dict[str, Counter[str]] = {}
    for name, n in sorted(Counter(result["counts"]).items()):
        kind, _, word = name.rpartition(": ")
        found.setdefault(kind, Counter())[word] += n
    for one in result["wrong"].values():
        for what in one["found"]:
            found.setdefault("wrong", Counter())[what.partition(":")[0]] += 1
    found["all"] = sum(found.values(), Counter[str]())
    lines = [
        f"| {head} | times | {' | '.join(outcomes)} |",
        "|---|" + "---:|" * (len(outcomes) + 1),
    ]
    for kind, counts in found.items():
        cells = " | ".join(f"{counts[word]:,}" for word in outcomes)
        lines.append(f"| {kind} | {counts.total():,} | {cells} |")
    return "\n".join(lines)


# --- campaigns


def campaign(name: str) -> ModuleType:
    """Return a campaign: `studies(home, seed)`, a context that gives `Studies`; and `table`.

    Some have `why_not`: why it cannot run here, "" if it can.
    """
    return import_module(f"soak.{name}")


def begun(path: Path, seed: int) -> Result:
    """Return the result so far.

    Raises:
        ValueError: it was begun with another seed or other versions.
    """
    conditions = {
        "seed": seed,
        "hardware": f"{os.cpu_count()} {platform.machine()} cores, shared with other jobs",
        "versions": {
            "nas-evidence": __version__,
            "python": platform.python_version(),
            "ray": ray.__version__,
        },
    }
    nothing: Result = {"commits": {}, "seconds": 0, "done": 0, "counts": {}, "cases": {}}
    stored = json.loads(path.read_text()) if path.exists() else conditions
    if any(stored[key] != value for key, value in conditions.items()):
        raise ValueError(f"{path} was begun under other conditions; move it away")
    return conditions | nothing | {"wrong": {}} | stored


def run(name: str, home: Path, result: Result, given: argparse.Namespace) -> None:
    """Disturb studies, and write the result so far after each."""
    began, before = time.monotonic(), result["seconds"]
    with campaign(name).studies(home, given.seed) as (names, disturb):
        again = [] if given.only else list(result["wrong"])
        rest = given.only or itertools.islice(names, result["done"], None)
        for which in itertools.chain(again, rest):
            enough = counted(result).total() >= given.until and which not in again
            if enough or time.monotonic() > began + 60 * given.minutes:
                break
            note(result, which, disturb(which), is_new=not given.only and which not in again)
            result["seconds"] = before + round(time.monotonic() - began)
            write_whole(given.to, json.dumps(result, indent=1) + "\n")
            for what in result["wrong"].get(which, {}).get("found", []):
                print(f"{which}: {what}", flush=True)


def note(result: Result, which: str, found: Found, *, is_new: bool) -> None:
    """Add what came of a study: to the counts, or to what is wrong, to be tried again."""
    result["wrong"].pop(which, None)
    result["done"] += is_new
    if found.facts:
        result["cases"][which] = found.facts
    if found.wrong:
        result["wrong"][which] = {"found": found.wrong, "counts": dict(found.counts)}
    else:
        result["counts"] = dict(Counter(result["counts"]) + found.counts)
    code = commit()
    result["commits"][code] = result["commits"].get(code, 0) + 1


def counted(result: Result) -> Counter[str]:
    """Return the counts, with those of the studies that are wrong."""
    each = (Counter(one["counts"]) for one in result["wrong"].values())
    return sum(each, Counter(result["counts"]))


def commit() -> str:
    """Return the commit of this code; "-dirty" is added where files differ from it."""
    how = ("git", "-C", str(ROOT), "describe", "--always", "--dirty")
    return subprocess.run(how, check=True, capture_output=True, text=True).stdout.strip()


@contextlib.contextmanager
def kept(home: Path | None) -> Iterator[Path]:
    """Give a folder for undisturbed studies and for data: this one, or a passing one."""
    if home is not None:
        home.mkdir(parents=True, exist_ok=True)
        yield home.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="nas-soak-", dir="/var/tmp") as folder:
        yield Path(folder)


def main() -> None:
    """Run a piece of a campaign, and print what it found so far."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("campaign", choices=CAMPAIGNS)
    parser.add_argument("--until", type=float, default=1e9, help="so many counts in all")
    parser.add_argument("--minutes", type=float, default=1e9, help="length of this piece")
    parser.add_argument("--only", nargs="*", metavar="STUDY", help="these, by number or name")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--home", type=Path, help="keeps the undisturbed studies")
    parser.add_argument("--to", type=Path, help="result file, runs/soak-CAMPAIGN.json by default")
    given = parser.parse_args()
    given.to = given.to or ROOT / "runs" / f"soak-{given.campaign}.json"
    given.to.parent.mkdir(parents=True, exist_ok=True)
    logging.lastResort = None
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    if reason := getattr(campaign(given.campaign), "why_not", str)():
        parser.error(reason)
    try:
        result = begun(given.to, given.seed)
    except ValueError as error:
        parser.error(str(error))
    with kept(given.home) as home:
        run(given.campaign, home, result, given)
    print(campaign(given.campaign).table(result))
    print(f"{result['done']} studies in all, {len(result['wrong'])} wrong")
    sys.exit(bool(result["wrong"]))
