"""One driver at a time: a lock on this host, a lease for the others; and how a study stands."""

import errno
import os
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import fakes
import pytest
from fakes import FakeExecutor, drive, finished
from messages import refused

import nas_evidence.storage.study_folder as study_folder
from nas_evidence.driver.status import study_status
from nas_evidence.plumbing.seals import sealed_json
from nas_evidence.spec.study import BudgetSpec
from nas_evidence.storage.budget import Ledger
from nas_evidence.storage.events import Stopped
from nas_evidence.storage.faults import StudyStoppedError
from nas_evidence.storage.log import Log
from nas_evidence.storage.state import Spent
from nas_evidence.storage.study_folder import (
    check_lease,
    is_locked,
    locked,
    open_study,
    read_lease,
)

study = partial(fakes.study, n_trials=4, plan={"epochs": 4, "online": {"every": 2}})


def leave_lease(folder: Path, *, expires_in: float, host: str = "elsewhere") -> dict[str, Any]:
    lease = {
        "pid": 4321, "host": host, "boot_id": "another", "expires_at": time.time() + expires_in,
    }  # fmt: skip
    (folder / "lock").write_text(sealed_json(lease))
    return lease


def test_a_second_driver_on_this_host_is_refused_and_the_lock_goes_with_its_holder(
    tmp_path: Path,
) -> None:
    with locked(tmp_path):
        assert is_locked(tmp_path)
        lease = read_lease(tmp_path)
        assert 50 < lease.expires_at - time.time() <= 60
        with refused("folder-locked", "process", "host"):
            locked(tmp_path).__enter__()
    assert not is_locked(tmp_path)
    assert read_lease(tmp_path) is None


def test_an_unexpired_lease_of_another_host_refuses_and_says_who_and_until_when(
    tmp_path: Path,
) -> None:
    lease = leave_lease(tmp_path, expires_in=30)
    until = time.strftime("%H:%M:%S", time.localtime(lease["expires_at"]))
    assert is_locked(tmp_path)
    for steal in (False, True):
        with refused("lease-held", until, 4321, "elsewhere"):
            locked(tmp_path, steal=steal).__enter__()
    assert (tmp_path / "lock").read_text() == sealed_json(lease)


def test_an_expired_lease_of_another_host_needs_steal(tmp_path: Path) -> None:
    leave_lease(tmp_path, expires_in=-1)
    assert not is_locked(tmp_path)
    with pytest.raises(ValueError, match="--steal"):
        locked(tmp_path).__enter__()
    with locked(tmp_path, steal=True):
        assert is_locked(tmp_path)
    with locked(tmp_path):
        pass


def test_opening_a_study_of_a_dead_host_needs_steal(tmp_path: Path) -> None:
    open_study(tmp_path, study())
    leave_lease(tmp_path, expires_in=-1)
    with pytest.raises(ValueError, match="--steal"):
        open_study(tmp_path, study(n_trials=6))
    assert open_study(tmp_path, study(n_trials=6), steal=True).n_trials == 6


def test_an_expired_lease_of_this_host_before_it_was_started_anew_is_free(tmp_path: Path) -> None:
    leave_lease(tmp_path, expires_in=-1, host=study_folder.socket.gethostname())
    with locked(tmp_path):
        pass


def test_a_lock_file_without_content_is_nobodys(tmp_path: Path) -> None:
    for nothing in (b"", bytes(512)):
        (tmp_path / "lock").write_bytes(nothing)
        with locked(tmp_path):
            pass


@pytest.mark.parametrize("text", ["{", "[]", '{"pid": 1}', "null"])
def test_a_lease_that_is_not_as_it_was_written_needs_steal(tmp_path: Path, text: str) -> None:
    (tmp_path / "lock").write_text(text)
    with refused("lease-damaged"):
        locked(tmp_path).__enter__()
    with locked(tmp_path, steal=True):
        assert read_lease(tmp_path) is not None


def test_the_lease_is_renewed_while_the_study_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_folder, "RENEW_EVERY", 0.01)
    with locked(tmp_path):
        first = read_lease(tmp_path)
        end = time.monotonic() + 30
        while (now := read_lease(tmp_path)) is None or now.expires_at <= first.expires_at:
            assert time.monotonic() < end
            time.sleep(0.01)


class Thief(FakeExecutor):
    """Another host takes the study over in the midst of it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(workers=1)
        self.folder, self.polls = folder, 0

    def poll(self, timeout: float) -> list[Any]:
        self.polls += 1
        if self.polls == 7:
            leave_lease(self.folder, expires_in=60)
        return super().poll(timeout)


def test_a_driver_whose_lease_was_stolen_stops_and_writes_nothing_more(tmp_path: Path) -> None:
    thief = Thief(tmp_path)
    with (
        locked(tmp_path),
        pytest.raises(StudyStoppedError, match="process 4321 of host elsewhere has taken over"),
    ):
        drive(study(), tmp_path, thief)
    assert thief.polls == 7
    assert len(finished(tmp_path)) == 1
    lease = read_lease(tmp_path)
    assert lease.pid == 4321, "the thief's lease stands"
    assert '"stop"' not in (tmp_path / "logs" / "events.jsonl").read_text()


def test_a_lease_that_cannot_be_read_for_a_moment_stops_nobody_and_then_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, fails = Path.read_text, [errno.EMFILE, errno.ESTALE]

    def failing(self: Path, *given: Any, **named: Any) -> str:
        if self.name == "lock" and fails:
            number = fails.pop()
            raise OSError(number, os.strerror(number), str(self))
        return read(self, *given, **named)

    with locked(tmp_path):
        monkeypatch.setattr(Path, "read_text", failing)
        check_lease(tmp_path)
        assert not fails
        fails.extend([errno.EMFILE] * 99)
        monkeypatch.setattr(study_folder, "RENEW_EVERY", 0.0)
        with pytest.raises(StudyStoppedError, match="lock: Too many open files; raise the limit"):
            check_lease(tmp_path)
        fails.clear()
        (tmp_path / "lock").write_text("")
        with pytest.raises(StudyStoppedError, match="is gone or damaged"):
            check_lease(tmp_path)


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
