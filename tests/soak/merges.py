"""A driver is ended inside the merge of its tables, at each change of a file that a merge makes.

A merge writes four joined tables, reads them back, names them in the log, and removes the files
that they replace; a driver merges while it runs, and when it starts. Trials are simulated, and six
files are joined in place of 256. Each study is ended twice: inside a merge, then inside what the
next driver mends or merges. SIGKILL ends it at once; SIGTERM as the command line does. The kinds
of studies are those of `kills`.

    same      the tables are those of the undisturbed study, and nothing is left to mend
    lost      a study that could not be brought to its end: must not occur
    silent    tables that differ: must not occur
    left      files that no line of the log names, or that are not as it says: must not occur
"""

import contextlib
import os
import random
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from learning_curves import synthetic
from processes import in_a_process
from simulated import SimulatedExecutor
from soak.changes import ending_at
from soak.harness import Found, Result, Studies, differing, drive, outcomes_by_kind, tables_of
from soak.kills import KINDS, simulated_study

from nas_evidence.cli.main import _interrupt
from nas_evidence.driver import driver as driver_module
from nas_evidence.driver.driver import Driver
from nas_evidence.driver.mirror import working_copy
from nas_evidence.storage.log import read_log
from nas_evidence.storage.redo import find_done
from nas_evidence.storage.state import State, is_part
from nas_evidence.storage.tables import TABLES, compact

#: Files that are joined at a time, in place of 256.
JOINED = 6
#: More changes of files than a merge makes.
MOST_CHANGES = 36
INTERRUPTED = 130
SIGNALS = (signal.SIGKILL, signal.SIGTERM)
#: What must not occur.
WRONG = ("lost", "silent", "left")
OUTCOMES = ("same", *WRONG)


def merging(at: int, signal_number: int, which: int, *, recovering: bool = False) -> None:
    """Merge six files at a time in this process; end it at a change of a file inside a merge.

    Args:
        at: number of the change of a file; 0 ends nothing.
        signal_number: what ends it.
        which: of the merges.
        recovering: count the changes of files in what a driver mends at its start, instead.
    """
    patch, merges = pytest.MonkeyPatch(), count()
    patch.setattr(driver_module, "COMPACT_AT", JOINED)

    def joined(log: Any, folder: Path) -> None:
        ends = at and not recovering and next(merges) == which
        with ending_at(folder, at, signal_number) if ends else contextlib.nullcontext():
            compact(log, folder, JOINED)

    patch.setattr(driver_module, "compact", joined)
    if at and recovering:
        recover = Driver._recover

        def recovered(driver: Driver) -> None:
            with ending_at(driver._folder, at, signal_number):
                recover(driver)

        patch.setattr(Driver, "_recover", recovered)


@contextlib.contextmanager
def studies(home: Path, seed: int) -> Iterator[Studies]:
    def search(kind: str, place: str, order: int, **how: Any) -> None:
        tempfile.tempdir = str(home)  # a killed process leaves it
        signal.signal(signal.SIGTERM, _interrupt)
        merging(**({"at": 0, "signal_number": 0, "which": 0} | how))
        executor = partial(SimulatedExecutor, synthetic, workers=3, seed=order)
        with contextlib.suppress(KeyboardInterrupt):
            drive(simulated_study(kind), place, executor)
            return  # to `in_a_process`
        os._exit(INTERRUPTED)

    def disturb(number: str) -> Found:
        n, kind = divmod(int(number), len(KINDS))
        kind, chance = KINDS[kind], random.Random(f"{seed}-merges-{number}")
        # Each change of a file in a merge in turn, by either signal; then they begin again.
        at, how = 1 + n // len(SIGNALS) % MOST_CHANGES, SIGNALS[n % len(SIGNALS)]
        folder, calm = home / "s", home / f"calm-{kind}"
        shutil.rmtree(folder, ignore_errors=True)
        if not calm.exists():
            assert in_a_process(partial(search, kind, str(folder), 0)) == 0
            folder.rename(calm)
        place = f"file://{folder}" if kind == "stored" else str(folder)
        counts, name = Counter[str](), how.name
        first = partial(
            search, kind, place, 0, at=at, signal_number=how, which=chance.randrange(3)
        )
        again = partial(
            search, kind, place, 1, at=chance.randrange(1, MOST_CHANGES), signal_number=how,
            which=0, recovering=chance.random() < 0.5,
        )  # fmt: skip
        ended = 0
        for one in (first, again):
            code = in_a_process(one)
            if code not in (0, -signal.SIGKILL, INTERRUPTED):
                return Found(counts, [f"lost: {kind}, exit code {code} in a merge"])
            ended += code != 0
        if code := in_a_process(partial(search, kind, place, 2)):
            return Found(counts, [f"lost: {kind}, last run, exit code {code}"])
        counts[f"{name}, {kind}: same"] += ended
        differ = [f"silent: {one}" for one in differing(tables_of(place), tables_of(calm))]
        return Found(counts, differ + left_over(place))

    yield map(str, count()), disturb


def left_over(place: str) -> list[str]:
    """Return what a finished study has to mend, as one sentence or none."""
    with tempfile.TemporaryDirectory() as scratch:
        store = working_copy(place, Path(scratch) / "s")
        store.pull()
        finds, state = find_done(store.folder), read_log(store.folder).state
        unnamed = [
            path.relative_to(store.folder).as_posix()
            for table in TABLES
            for path in (store.folder / table).glob("*")
            if path.stem not in state.files
        ]
        words = [*map(str, finds.wrong), *finds.past.problems, *unnamed, *_twice(state)]
    return [f"left: {', '.join(words)}"] if words or finds.redo or finds.found else []


def _twice(state: State) -> list[str]:
    """Return the single files that a log still names beside the part that has their rows."""
    parts = {a for a, stem in state.stems.items() if is_part(stem)}
    return [
        f"{stem}: named twice"
        for a, stem in state.stems.items()
        if a in parts and not is_part(stem)
    ]


def table(result: Result) -> str:
    """Return the outcomes by signal and kind of study, as Markdown."""
    return outcomes_by_kind(result, "driver ended by, study", OUTCOMES)
