"""Long studies: everything is there, and the thousandth trial costs the driver what the first did.

Counted are files opened, folders listed and Parquet read, not time: a count is the same on a busy
machine.
"""

import math
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import Silent, asked_in, finished, told_in
from learning_curves import synthetic
from records import plain_study
from simulated import SimulatedExecutor

from nas_evidence.driver.driver import Driver
from nas_evidence.spec.record import TrialRecord, TrialStatus
from nas_evidence.spec.study import StudySpec
from nas_evidence.storage import budget
from nas_evidence.storage import tables as store
from nas_evidence.storage.tables import COMPACT_AT, read_tables

pytestmark = [pytest.mark.slow, pytest.mark.long]

N_TRIALS, EPOCHS = 1_100, 3
#: Trials under way at the borders of a window may fall on either side of them.
LEEWAY = 1.03


class Counting(Silent):
    """Notes how much was done when each trial ended."""

    def __init__(self, work: Counter[str]) -> None:
        super().__init__()
        self.work = work
        self.after: list[Counter[str]] = [Counter()]

    def ended(self, record: TrialRecord) -> None:
        self.after.append(Counter(self.work))

    def between(self, first: int, last: int) -> Counter[str]:
        return self.after[last] - self.after[first]


@pytest.fixture(scope="module")
def work() -> Iterator[Counter[str]]:
    """Counts while it is in use: Python's own opens and listings, and Parquet reads."""
    counts: Counter[str] = Counter()
    counting = True

    def audit(what: str, arguments: tuple[object, ...]) -> None:  # a hook is for ever
        if counting and what in ("open", "os.listdir", "os.scandir"):
            counts[what] += 1

    def load(path: Path) -> object:
        counts["parquet_read"] += 1
        return store_load(path)

    store_load = store._load
    sys.addaudithook(audit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "_load", load)
        yield counts
    counting = False


@pytest.fixture(scope="module")
def study() -> StudySpec:
    """One family, so that every proposal has as many parameters as the next."""
    domains = {
        "depth": {"low": 1, "high": 5},
        "width": {"low": 4, "high": 1024},
        "shape": {"options": ["constant", "taper"]},
    }
    return plain_study(
        name="long", objective="kfac_ggn", n_trials=N_TRIALS, finalists=0,
        family={"mlp": domains}, plan={"epochs": EPOCHS, "online": {"every": 1}},
        sampler={"name": "qmc"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def long_study(
    study: StudySpec, work: Counter[str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Counting]:
    """The study, run with eight simulated workers."""
    folder, watcher = tmp_path_factory.mktemp("long") / "study", Counting(work)
    executor = SimulatedExecutor(synthetic, workers=8, seed=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "WRITE_EVERY", math.inf)  # by the clock, and not for a trial
        Driver(study, folder, executor, watcher).run()
    return folder, watcher


def test_a_long_study_leaves_all_its_rows(long_study: tuple[Path, Counting]) -> None:
    folder, _ = long_study
    tables, unreadable = read_tables(folder)
    assert unreadable == ()
    assert list(tables["trials"]["trial_id"]) == list(range(N_TRIALS))
    assert set(tables["trials"]["status"]) == {TrialStatus.COMPLETE}
    assert tables["trials"]["architecture_key"].nunique() == N_TRIALS
    per_trial = tables["curves"].groupby("trial_id")["epoch"].apply(list)
    assert len(per_trial) == N_TRIALS
    assert all(epochs == [*range(1, EPOCHS + 1)] for epochs in per_trial)
    objective = tables["evidence"][tables["evidence"]["estimator"] == "kfac_ggn"]
    assert len(objective) == N_TRIALS  # of the last epoch
    assert finished(folder).keys() == set(range(N_TRIALS))
    assert len(asked_in(folder)) == len(told_in(folder)) == N_TRIALS
    assert list((folder / "checkpoints").iterdir()) == []


def test_a_late_trial_opens_no_more_files_than_an_early_one(
    long_study: tuple[Path, Counting],
) -> None:
    """A hundred trials without a compaction, early and late: the same work, no Parquet read."""
    _, watcher = long_study
    early, late = watcher.between(300, 400), watcher.between(900, 1_000)
    assert set(early) == {"open", "os.listdir", "os.scandir"}
    assert all(late[what] <= LEEWAY * early[what] for what in late), (early, late)


def test_a_late_compaction_reads_no_more_than_an_early_one(
    long_study: tuple[Path, Counting],
) -> None:
    """The parts that are there are not read again; of each, who is in it is asked once."""
    _, watcher = long_study
    windows = [
        watcher.between(k * COMPACT_AT, (k + 1) * COMPACT_AT)
        for k in range(1, N_TRIALS // COMPACT_AT)
    ]
    early, late = windows[0], windows[-1]
    assert late["parquet_read"] <= early["parquet_read"]
    for what in ("open", "os.listdir", "os.scandir"):
        assert late[what] <= LEEWAY * early[what], what
