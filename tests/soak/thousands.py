"""One long study: its driver is killed again and again, at random changes of files.

The study has thousands of simulated trials (fewer in the tests). A driver is killed after a random
number of changes of files below the study's folder, or of steps between two writes; so some are
killed inside a merge of tables, and some while they recover. The next one goes on, until the
study ends.

    same      the tables are those of the undisturbed study, and nothing is left to mend
    lost      the study could not be brought to its end: must not occur
    silent    tables that differ: must not occur
    left      files that no line of the log names, or that are not as it says: must not occur
"""

import contextlib
import random
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import faulty
from learning_curves import synthetic
from processes import in_a_process
from simulated import SimulatedExecutor
from soak.changes import ending_at
from soak.harness import Found, Result, Studies, differing, drive, outcomes_by_kind, tables_of
from soak.merges import left_over

from nas_evidence.spec.study import StudySpec
from nas_evidence.storage.faults import CRASH_POINTS

OUTCOMES = ("same", "lost", "silent", "left")
#: Maximum number of changes of files, and of passes of one step, before a driver is killed.
MOST_CHANGES, MOST_STEPS = 12_000, 400
#: No trial of this study is parked.
STEPS = [step for step in CRASH_POINTS if step != "parked"]


def long_study(n_trials: int) -> StudySpec:
    """Return a study whose proposals cost nothing."""
    domains = {
        "depth": {"low": 1, "high": 5},
        "width": {"low": 4, "high": 1024},
        "shape": {"options": ["constant", "taper"]},
    }
    return faulty.study(
        n_trials=n_trials,
        scheduling="batch",
        batch=16,
        finalists=0,
        family={"mlp": domains},
        plan={"epochs": 1, "online": {"every": 1}},
        sampler={"name": "qmc"},
        retries={"crashes": "unlimited"},
    )


@contextlib.contextmanager
def studies(home: Path, seed: int) -> Iterator[Studies]:
    def search(n_trials: int, folder: Path, order: int, at: int) -> None:
        tempfile.tempdir = str(home)  # a killed process leaves it
        executor = partial(SimulatedExecutor, synthetic, workers=8, seed=order, writes_files=False)
        ends = ending_at(folder, at, signal.SIGKILL) if at else contextlib.nullcontext()
        with ends:
            drive(long_study(n_trials), str(folder), executor)

    def disturb(name: str) -> Found:
        n_trials, chance = int(name.partition(" ")[0].replace(",", "")), random.Random(seed)
        folder, calm = home / "s", home / f"calm-{n_trials}"
        shutil.rmtree(folder, ignore_errors=True)
        if not calm.exists():
            assert in_a_process(partial(search, n_trials, folder, 0, 0)) == 0
            folder.rename(calm)
        kills = Counter[str]()
        while True:
            scale = min(1.0, n_trials / 3_000)  # so that a short study is killed, too
            at = chance.randrange(1, round(scale * MOST_CHANGES)) if chance.random() < 0.5 else 0
            step = chance.choice(STEPS)
            crash_at = f"{step}:{chance.randrange(1, round(scale * MOST_STEPS))}" if not at else ""
            order = chance.randrange(1000)
            code = in_a_process(partial(search, n_trials, folder, order, at), crash_at=crash_at)
            if code == 0:
                break
            if code != -signal.SIGKILL:
                return Found(kills, [f"lost: exit code {code} after {kills.total()} kills"])
            kills["at a change of a file: same" if at else f"at the step {step}: same"] += 1
        wrong = [f"silent: {one}" for one in differing(tables_of(folder), tables_of(calm))]
        return Found(kills, wrong + left_over(str(folder)), {"trials": n_trials, **kills})

    yield iter(["10,000 trials"]), disturb


def table(result: Result) -> str:
    """Return the kills of the driver by place, as Markdown."""
    return outcomes_by_kind(result, "driver killed", OUTCOMES)
