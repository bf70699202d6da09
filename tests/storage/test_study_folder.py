"""One driver at a time: the log decides, a file says who it is; and how a study stands."""

import os
import shutil
import socket
import time
from contextlib import closing, nullcontext
from contextvars import Context
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import fakes
import pytest
from commands import contents
from fakes import (
    FakeExecutor,
    FakeProposer,
    Silent,
    drive,
    facts_in,
    finished,
    leave_holder,
)
from faulty import flipped
from messages import refused

import nas_evidence.storage.holding as holding
from nas_evidence.driver.driver import Driver
from nas_evidence.driver.status import study_status
from nas_evidence.plumbing.seals import sealed_json
from nas_evidence.spec.study import BudgetSpec
from nas_evidence.storage import study_folder
from nas_evidence.storage.budget import Ledger
from nas_evidence.storage.events import Launched, Stopped
from nas_evidence.storage.faults import StudyStoppedError
from nas_evidence.storage.holding import Holder, boot_id
from nas_evidence.storage.log import (
    LOG,
    Log,
    ReadLog,
    events_since,
    log_files,
    mend_log,
    piece,
    read_log,
)
from nas_evidence.storage.state import Spent
from nas_evidence.storage.study_folder import holder_of, is_locked, locked, open_study

study = partial(fakes.study, n_trials=4, plan={"epochs": 4, "online": {"every": 2}})


def test_a_second_driver_on_this_host_is_refused_and_the_lock_goes_with_its_holder(
    tmp_path: Path,
) -> None:
    with locked(tmp_path):
        assert is_locked(tmp_path)
        holder = holder_of(tmp_path)
        assert holder is not None
        assert holder.is_me
        with refused("study-held-here", tmp_path):
            locked(tmp_path).__enter__()
        with refused("folder-locked", "process", "host"):  # another thread may wait
            Context().run(locked(tmp_path).__enter__)
    assert not is_locked(tmp_path)
    assert holder_of(tmp_path) is None


def test_a_holder_on_another_host_that_is_heard_of_is_left_alone_and_named(tmp_path: Path) -> None:
    holder = leave_holder(tmp_path, seconds_ago=30)
    heard_of = time.strftime("%H:%M:%S", time.localtime(holder.heard_of))
    assert is_locked(tmp_path)
    for steal in (False, True):
        with refused("study-held", heard_of, 4321, "elsewhere"):
            locked(tmp_path, steal=steal).__enter__()
    assert holder_of(tmp_path) == holder


@pytest.mark.parametrize("shared", [False, True])
def test_the_lock_of_this_machine_decides_only_on_its_own_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    monkeypatch.setattr(study_folder, "is_shared", lambda folder: shared)
    now, other = time.time(), "pid:[1]"
    for silent, code in ((1.0, "study-held"), (61.0, "holder-silent")):
        there = Holder(1, "container-2", boot_id(), now - silent, now - 99, other)
        (tmp_path / "lock").write_text(sealed_json(asdict(there)).ljust(512))
        with refused(code, "container-2") if shared else nullcontext(), locked(tmp_path):
            pass


def test_who_is_about_to_take_a_study_over_is_named_before_it_has_written_a_line(
    tmp_path: Path,
) -> None:
    with closing(Log(tmp_path)) as log:
        log.write(Launched(trial_id=0, attempt=1))
        leave_holder(tmp_path, seconds_ago=1)
        (tmp_path / piece(1)).touch()
        with refused("about-to-be-taken-over", 4321, "elsewhere", tmp_path):
            log.write(Launched(trial_id=0, attempt=2))


def test_a_silent_holder_on_another_host_needs_steal(tmp_path: Path) -> None:
    leave_holder(tmp_path, seconds_ago=61)
    assert not is_locked(tmp_path)
    with pytest.raises(ValueError, match="option `steal`"):
        locked(tmp_path).__enter__()
    with locked(tmp_path, steal=True):
        assert is_locked(tmp_path)
    with locked(tmp_path):
        pass


def test_a_study_that_could_not_be_read_back_is_refused_before_there_is_a_folder(
    tmp_path: Path,
) -> None:
    study = fakes.study()
    for name in ("nets:main.<locals>.Fam", "my-nets:Fam"):
        unreadable = study.model_copy(update={"family": {name: {}}})
        with refused("family-module-form", name):
            open_study(tmp_path / "s", unreadable)
    assert not (tmp_path / "s").exists()
    open_study(tmp_path / "s", study)


def test_opening_a_study_of_a_dead_host_needs_steal(tmp_path: Path) -> None:
    open_study(tmp_path, study())
    leave_holder(tmp_path, seconds_ago=61)
    with pytest.raises(ValueError, match="option `steal`"):
        open_study(tmp_path, study(n_trials=6))
    assert open_study(tmp_path, study(n_trials=6), steal=True).n_trials == 6


def test_a_silent_holder_of_this_host_before_it_was_started_anew_is_free(tmp_path: Path) -> None:
    leave_holder(tmp_path, seconds_ago=61, host=socket.gethostname())
    with locked(tmp_path):
        pass


def test_a_lock_file_without_content_is_nobodys(tmp_path: Path) -> None:
    for nothing in (b"", bytes(512)):
        (tmp_path / "lock").write_bytes(nothing)
        with locked(tmp_path):
            pass


@pytest.mark.parametrize(
    "content",
    [b"{", b"[]", b'{"pid": 1}', b"null", b'{"pid": "x"}', b"\xff\xfe\x00garbage", b"{" * 10_000,
     "{}".encode("utf-16"), sealed_json({"pid": 1, "host": 2, "heard_of": "x"}).encode()],
)  # fmt: skip
def test_a_holder_that_is_not_as_it_was_written_needs_steal(
    tmp_path: Path, content: bytes
) -> None:
    open_study(tmp_path, study())
    (tmp_path / "lock").write_bytes(content)
    assert not is_locked(tmp_path)
    assert study_status(tmp_path).state == "stopped"
    with refused("lock-damaged"):
        locked(tmp_path).__enter__()
    with locked(tmp_path, steal=True):
        holder = holder_of(tmp_path)
        assert holder is not None, "nothing of what was there is left"
        assert holder.is_me


def test_heartbeats_are_written_while_the_study_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding, "BEAT_EVERY", 0.01)
    with locked(tmp_path):
        first = holder_of(tmp_path)
        end = time.monotonic() + 30
        while (now := holder_of(tmp_path)) is None or now.heard_of <= first.heard_of:
            assert time.monotonic() < end
            time.sleep(0.01)


# --- who is superseded


class Thief(FakeExecutor):
    """Another process takes the study over in the midst of it, and goes on to the end."""

    def __init__(self, folder: Path, wakes_at: int = 7) -> None:
        super().__init__(workers=1)
        self.folder, self.polls, self.wakes_at = folder, 0, wakes_at
        self.there: dict[str, bytes] = {}

    def poll(self, timeout: float) -> list[Any]:
        self.polls += 1
        if self.polls == self.wakes_at:
            drive(study(), self.folder)
            self.there = contents(self.folder)
        return super().poll(timeout)


class Mover(FakeExecutor):
    """Somebody moves the folder of a study in the midst of it."""

    def __init__(self, folder: Path, then: str) -> None:
        super().__init__(workers=1)
        self.folder, self.then, self.polls = folder, then, 0

    def poll(self, timeout: float) -> list[Any]:
        self.polls += 1
        log, backup = self.folder / piece(0), self.folder.with_name("backup")
        if self.polls == 4:
            shutil.copytree(self.folder, backup)
        if self.polls == 7 and self.then == "edited":
            log.with_name("new").write_bytes(log.read_bytes())
            log.with_name("new").replace(log)
        elif self.polls == 7:
            self.folder.rename(self.folder.with_name("moved"))
            if self.then == "restored":
                backup.rename(self.folder)
        return super().poll(timeout)


@pytest.mark.parametrize("then", ["moved", "restored", "edited"])
def test_a_driver_stops_when_its_folder_is_moved_and_begins_no_other_one(
    tmp_path: Path, then: str
) -> None:
    folder = tmp_path / "s"
    open_study(folder, study())
    with refused("folder-moved", folder, piece(0)):
        drive(study(), folder, Mover(folder, then))
    if then == "moved":
        assert not folder.exists()
        assert finished(tmp_path / "moved")
    drive(study(), folder := tmp_path / "moved" if then == "moved" else folder)
    assert len(finished(folder)) == 4


@pytest.mark.slow
@pytest.mark.parametrize("wakes_at", [1, 4, 7, 10])
def test_a_driver_that_was_superseded_changes_nothing_more_and_says_who_has_it(
    tmp_path: Path, wakes_at: int
) -> None:
    """As after SIGSTOP, or a sleep of its machine, of any length."""
    open_study(tmp_path, study())
    thief = Thief(tmp_path, wakes_at)
    who = f"process {os.getpid()} of host {socket.gethostname()} has taken over {tmp_path}"
    with pytest.raises(StudyStoppedError, match=who):
        drive(study(), tmp_path, thief)
    assert thief.polls == wakes_at
    assert contents(tmp_path) == thief.there
    assert read_log(tmp_path).problems == []
    assert finished(tmp_path).keys() == set(range(4))
    assert study_status(tmp_path).state == "finished"


@pytest.mark.parametrize("n_before", [0, 1, 2])
def test_a_process_looks_for_the_very_next_file_however_many_went_before(
    tmp_path: Path, n_before: int
) -> None:
    for attempt in range(n_before):
        with closing(Log(tmp_path)) as log:
            log.write(Launched(trial_id=0, attempt=attempt))
    with closing(Log(tmp_path)) as asleep:
        asleep.write(Launched(trial_id=1, attempt=1))
        (tmp_path / piece(n_before + 1)).touch()
        with refused("about-to-be-taken-over"):
            asleep.check()


def test_of_two_processes_that_take_a_study_up_one_creates_the_next_file(tmp_path: Path) -> None:
    with closing(Log(tmp_path)) as one, closing(Log(tmp_path)) as other:
        other.check = lambda: None  # type: ignore[method-assign]  # both have looked
        one.write(Launched(trial_id=0, attempt=1))
        with refused("taken-over", os.getpid()):
            other.write(Launched(trial_id=0, attempt=2))
    assert read_log(tmp_path).state.under_way == {0: 1}


def test_a_process_whose_predecessor_still_writes_does_not_begin(tmp_path: Path) -> None:
    with closing(Log(tmp_path)) as first:
        first.write(Launched(trial_id=0, attempt=1))
        with closing(Log(tmp_path)) as second:
            first.write(Launched(trial_id=1, attempt=1))
            with refused("still-at-work", os.getpid()):
                second.write(Launched(trial_id=0, attempt=2))
        with refused("about-to-be-taken-over"):
            first.write(Launched(trial_id=2, attempt=1))
    assert read_log(tmp_path).state.under_way == {0: 1, 1: 1}


class Early(FakeExecutor):
    """Another process reads the log, and takes the study over after one more trial has ended."""

    def __init__(self, folder: Path) -> None:
        super().__init__(workers=1)
        self.folder, self.there = folder, dict[str, bytes]()
        self.other: Driver | None = None

    def poll(self, timeout: float) -> list[Any]:
        n_done = len(finished(self.folder))
        if n_done == 1 and self.other is None:
            self.other = Driver(
                study(), self.folder, FakeExecutor(), Silent(), proposer=FakeProposer
            )
        elif n_done == 2:
            self.there = contents(self.folder / "trials")
            with refused("still-at-work", os.getpid()):
                self.other.run()
        return super().poll(timeout)


def test_who_takes_over_removes_nothing_that_was_stored_since_it_read_the_log(
    tmp_path: Path,
) -> None:
    open_study(tmp_path, study())
    first = Early(tmp_path)
    with refused("about-to-be-taken-over"):
        drive(study(), tmp_path, first)
    assert len(first.there) == 2
    assert contents(tmp_path / "trials") == first.there
    assert len(finished(tmp_path)) == 2


def test_a_folder_has_the_same_log_under_each_of_its_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Log(tmp_path)) as log:
        log.write(Launched(trial_id=0, attempt=1))
    monkeypatch.chdir(tmp_path.parent)
    past = read_log(Path(tmp_path.name))
    with closing(Log(tmp_path, past)) as log:
        log.write(Launched(trial_id=0, attempt=2))
    events, now = events_since(tmp_path, past)
    assert (len(events), now is past) == (2, True)


@pytest.mark.parametrize("name", ["0000000.jsonl", "00000.jsonl", "000000-0.jsonl", "0 (2).jsonl"])
def test_a_copy_under_another_name_hides_no_file_of_the_log(tmp_path: Path, name: str) -> None:
    with closing(Log(tmp_path)) as log:
        log.write(Launched(trial_id=0, attempt=1))
        (tmp_path / LOG / name).write_bytes((tmp_path / piece(0)).read_bytes())
        log.write(Launched(trial_id=1, attempt=1))
    assert read_log(tmp_path).state.under_way == {0: 1, 1: 1}
    assert log_files(tmp_path) == [tmp_path / piece(0)]


@pytest.mark.parametrize("size", [0, 1, 60, -1])
def test_a_begin_that_a_crash_cut_short_is_no_damage_and_fences_all_the_same(
    tmp_path: Path, size: int
) -> None:
    with closing(Log(tmp_path)) as log:
        log.write(Launched(trial_id=0, attempt=1))
        with closing(Log(tmp_path)) as dead:
            dead.write(Launched(trial_id=0, attempt=2))
        path = tmp_path / piece(1)
        path.write_bytes(path.read_bytes().splitlines(keepends=True)[0][: size or None][:size])
        with refused("about-to-be-taken-over"):
            log.write(Launched(trial_id=0, attempt=3))
    past = read_log(tmp_path)
    assert (past.problems, past.state.under_way, past.last) == ([], {0: 1}, 1)
    with closing(Log(tmp_path)) as log:
        log.write(Launched(trial_id=0, attempt=4))
    assert read_log(tmp_path).problems == []
    assert read_log(tmp_path).state == log.state


def three_processes(folder: Path) -> list[Path]:
    for number in range(3):
        with closing(Log(folder)) as log:
            log.write(Launched(trial_id=number, attempt=1))
            log.write(Launched(trial_id=number, attempt=2))
    return log_files(folder)


def test_a_lost_file_of_the_log_is_named(tmp_path: Path) -> None:
    for lost in (0, 1):
        path = three_processes(tmp_path / str(lost))[lost]
        path.unlink()
        missing = f"lines are missing before line 1 of 00000{lost + 1}.jsonl"
        assert read_log(tmp_path / str(lost)).problems == [missing]
        mended = mend_log(tmp_path / str(lost), read_log(tmp_path / str(lost)))
        assert mended.problems == []
        assert len(mended.state.under_way) == 2


def test_a_damaged_begin_is_named_and_the_lines_after_it_count(tmp_path: Path) -> None:
    path = three_processes(tmp_path)[1]
    flipped(path, 30)
    past = read_log(tmp_path)
    assert past.problems == ["line 1 of 000001.jsonl cannot be used: not as written"]
    assert past.state.under_way == {0: 2, 1: 2, 2: 2}


def test_a_log_that_is_being_mended_when_its_process_dies_is_void_or_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flipped(three_processes(tmp_path)[1], 30)
    before = read_log(tmp_path)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nas_evidence.storage.log.set_aside", killed)
    with pytest.raises(KeyboardInterrupt):
        mend_log(tmp_path, before)
    monkeypatch.undo()
    now = read_log(tmp_path)
    assert now.state == before.state
    assert now.problems
    assert mend_log(tmp_path, now).problems == []
    assert len(log_files(tmp_path)) == 1


def test_who_follows_a_log_reads_what_is_new_and_all_of_a_log_of_which_lines_were_void(
    tmp_path: Path,
) -> None:
    events, past = events_since(tmp_path, ReadLog())
    assert events == []
    with closing(Log(tmp_path)) as asleep:
        asleep.write(Launched(trial_id=0, attempt=1))
        events, past = events_since(tmp_path, past)
        assert len(events) == 2
        assert events_since(tmp_path, past) == ([], past)
        log = Log(tmp_path)
        asleep.write(Launched(trial_id=0, attempt=2))
        events, now = events_since(tmp_path, past)
        assert (len(events), now is past) == (1, True)
        assert past.state == read_log(tmp_path).state
        log._past = read_log(tmp_path)  # it began at the same moment
        log.write(Launched(trial_id=0, attempt=3))
        log.close()
    events, now = events_since(tmp_path, past)
    assert now is not past
    assert [e for _, e in events] == facts_in(tmp_path)
    assert facts_in(tmp_path, "launch")[-1].attempt == 3


def test_a_study_says_that_its_budget_is_spent_until_it_has_more(tmp_path: Path) -> None:
    spec = open_study(tmp_path, study(budget={"wall_seconds": 3.0}))
    drive(spec, tmp_path)
    assert study_status(tmp_path).state == "budget spent"
    spec = open_study(tmp_path, study(budget={"wall_seconds": 100.0}))
    assert study_status(tmp_path).state == "stopped"
    drive(spec, tmp_path)
    assert study_status(tmp_path).state == "finished"


def test_the_ledger_charges_walls_and_devices_and_goes_on_after_a_stop(tmp_path: Path) -> None:
    for _ in range(2):
        with closing(Log(tmp_path)) as log:
            ledger = Ledger(log, now=100.0)
            ledger.account(110.0, 3)
            ledger.account(112.0, 1)
            log.write(
                Stopped(
                    idle_share=0.0,
                    wall_seconds=ledger.spent.wall_seconds,
                    device_seconds=ledger.spent.device_seconds,
                )
            )
    assert Log(tmp_path).state.spent == Spent(24.0, 64.0)
    assert Spent(24.0, 64.0).exceeds(BudgetSpec(wall_seconds=24))
    assert not Spent(24.0, 64.0).exceeds(BudgetSpec(wall_seconds=25))
    assert not Spent(24.0, 64.0).exceeds(BudgetSpec())
