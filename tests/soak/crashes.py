"""A driver of simulated trials is killed at random steps between two writes.

The steps are those of `storage/faults.py`. Each driver is a process of its own; between two of
them a line of the log or a table is sometimes torn. The kinds of studies are those of `kills`.
"""

import contextlib
import random
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

import faulty
import optuna.samplers  # noqa: F401  # here, not again in each process
from learning_curves import synthetic
from processes import in_a_process
from simulated import SimulatedExecutor
from soak.harness import Found, Studies, differing, drive, tables_of
from soak.kills import KINDS, of_kind, table

from nas_evidence.spec.study import StudySpec
from nas_evidence.storage.faults import CRASH_POINTS
from nas_evidence.storage.log import log_files

__all__ = ["studies", "table"]

#: Most kills of one study, so that each ends.
MOST_KILLS = 6


def simulated_study(kind: str, n_trials: int = 24) -> StudySpec:
    return faulty.study(
        n_trials=n_trials,
        batch=4,
        family={"mlp": {"width": {"low": 4, "high": 256, "log": True}}},
        plan={"epochs": 8, "online": {"every": 2}},
        **of_kind(kind, finalists=3, first_epoch=2),
    )


@contextlib.contextmanager
def studies(home: Path, seed: int) -> Iterator[Studies]:
    def search(kind: str, place: str, order: int) -> None:
        tempfile.tempdir = str(home)  # a killed process leaves it
        executor = partial(SimulatedExecutor, synthetic, workers=3, seed=order)
        drive(simulated_study(kind), place, executor)

    def disturb(number: str) -> Found:
        kind, chance = KINDS[int(number) % len(KINDS)], random.Random(f"{seed}-simulated-{number}")
        folder, calm = home / "s", home / f"calm-{kind}"
        shutil.rmtree(folder, ignore_errors=True)
        if not calm.exists():
            assert in_a_process(partial(search, kind, str(folder), 0)) == 0
            folder.rename(calm)
        place = f"file://{folder}" if kind == "stored" else str(folder)
        counts, wrong = Counter[str](), list[str]()
        for _ in range(MOST_KILLS):
            arrow = chance.choice(CRASH_POINTS)
            crash_at = f"{arrow}:{chance.randrange(1, 12)}"
            code = in_a_process(
                partial(search, kind, place, chance.randrange(1000)), crash_at=crash_at
            )
            if code != -signal.SIGKILL:
                wrong += [f"failed: {kind}, {crash_at}, exit code {code}"] if code else []
                break
            counts[f"{kind}: {arrow}"] += 1
            counts.update(torn(folder, chance))
        if code := in_a_process(partial(search, kind, place, 0)):
            wrong.append(f"failed: {kind}, last run, exit code {code}")
        return Found(counts, wrong or differing(tables_of(place), tables_of(calm)))

    yield map(str, count()), disturb


def torn(folder: Path, chance: random.Random) -> list[str]:
    """Add half a line to the log or tear a table, or neither; return which."""
    what = chance.choice(["", "", "", "", "log", "table"])
    files = sorted(folder.glob("[et][vr]*/*.parquet"))
    if what == "log":
        for path in log_files(folder)[-1:]:
            path.write_bytes(path.read_bytes() + b'{"t": 1.0, "event": "ask", "numb')
    elif what == "table" and files:
        path = chance.choice(files)
        path.write_bytes(path.read_bytes()[:-30])
    return [f"torn: {what}"] if what == "log" or (what and files) else []
