"""Cancelling from another terminal: within a slice, nothing lost; and only what is at work."""

import threading
from contextlib import closing
from pathlib import Path

import pytest
from commands import assert_same, found, run, start, write_study
from fakes import FakeExecutor, drive, finished, study
from messages import refused
from processes import wait_for
from records import mlp

from nas_evidence.driver.cancel import cancel
from nas_evidence.driver.mirror import working_copy
from nas_evidence.spec.record import TrialStatus
from nas_evidence.storage.events import Asked, Launched
from nas_evidence.storage.log import Log
from nas_evidence.storage.log_lines import fact_lines, log_lines
from nas_evidence.storage.requests import is_open, request_cancel
from nas_evidence.storage.study_folder import locked, open_study


class Asking(FakeExecutor):
    """Cancels something when trial `at` has advanced to epoch 2."""

    def __init__(self, folder: Path, at: int, *trials: int | None, workers: int = 2) -> None:
        super().__init__(workers)
        self.folder, self.at, self.wanted = folder, at, trials
        self.epochs_at_request: dict[int, int] = {}

    def advance(self, trial_id: int, until_epoch: int, *, timeout: float | None = None) -> None:
        super().advance(trial_id, until_epoch, timeout=timeout)
        if trial_id == self.at and until_epoch == 2:
            for trial in self.wanted:
                request_cancel(self.folder, trial)
            self.epochs_at_request = {t: self.epochs[t] for t in self.running}


def statuses(folder: Path) -> dict[int, TrialStatus]:
    return {trial_id: row.status for trial_id, row in sorted(finished(folder).items())}


def test_a_cancelled_trial_ends_with_its_slice_and_the_others_go_on(tmp_path: Path) -> None:
    executor = Asking(tmp_path, 1, 1)
    drive(study(), tmp_path, executor)
    assert statuses(tmp_path) == {
        i: TrialStatus.CANCELLED if i == 1 else TrialStatus.COMPLETE for i in range(6)
    }
    assert executor.epochs[1] == 2
    assert not is_open(tmp_path, 1)
    assert any("status=cancelled" in line for line in log_lines(tmp_path, 1))


@pytest.mark.slow
def test_a_cancelled_study_parks_within_a_slice_and_ends_as_if_undisturbed(
    tmp_path: Path,
) -> None:
    folder, calm = tmp_path / "s", tmp_path / "calm"
    batches = study(scheduling="batch", batch=3)
    executor = Asking(folder, 2, None)
    driver = drive(batches, folder, executor)
    assert driver.requests.study
    assert 0 < len(finished(folder)) < 6
    assert executor.parked
    for trial, epoch in executor.parked:
        assert epoch <= executor.epochs_at_request[trial] + 2
    assert not is_open(folder)

    drive(batches, folder, FakeExecutor(1))
    drive(batches, calm, FakeExecutor(1))
    one, other = (found(f, without=["attempt"]) for f in (calm, folder))
    for name in ("trials", "evidence"):  # a stand-in has no curves
        assert_same({name: one[name]}, {name: other[name]})


def test_a_trial_parked_at_a_rung_comes_back_to_be_cancelled(tmp_path: Path) -> None:
    spec = study(
        scheduling="batch",
        batch=3,
        pruning={"rule": "halving", "first_epoch": 2, "reduction": 2},
    )
    # With one worker trial 0 is parked at epoch 2 until 1 and 2 are there.
    drive(spec, tmp_path, Asking(tmp_path, 1, 0, workers=1))
    assert statuses(tmp_path)[0] is TrialStatus.CANCELLED
    assert len(finished(tmp_path)) == 6


def test_a_request_for_a_trial_outlives_its_driver_and_one_for_the_study_does_not(
    tmp_path: Path,
) -> None:
    open_study(tmp_path, study())
    request_cancel(tmp_path)
    request_cancel(tmp_path, 3)
    open_study(tmp_path, study())
    assert not is_open(tmp_path)
    drive(study(), tmp_path)
    assert statuses(tmp_path)[3] is TrialStatus.CANCELLED


def test_what_is_not_at_work_is_not_cancelled(tmp_path: Path) -> None:
    store = working_copy(str(tmp_path))
    with refused("not-a-study-folder"):
        cancel(store)
    open_study(tmp_path, study())
    with refused("cancel-study-not-running", "stopped"):
        cancel(store)
    with locked(tmp_path), refused("cancel-trial-not-running", 3):
        cancel(store, 3)
    drive(study(), tmp_path)
    with refused("cancel-trial-ended", 3, "complete"):
        cancel(store, 3)
    assert not list((tmp_path / "requests").glob("*"))


def test_cancel_says_when_the_driver_ends_before_it_hears(tmp_path: Path) -> None:
    open_study(tmp_path, study())
    with closing(Log(tmp_path)) as log:
        log.write(Asked(number=0, architecture=mlp()))
        log.write(Launched(trial_id=0, attempt=1))
    over = threading.Event()

    def hold() -> None:
        with locked(tmp_path):
            over.wait(30)

    driver = threading.Thread(target=hold)
    driver.start()
    try:
        lock = tmp_path / "lock"
        wait_for(lambda: lock.exists() and lock.read_text().strip())

        def leave(seconds: float) -> None:
            over.set()
            driver.join()

        with refused("cancel-driver-ended", 0):
            cancel(working_copy(str(tmp_path)), 0, sleep=leave)
    finally:
        over.set()
        driver.join()
    assert not is_open(tmp_path, 0)


def test_the_log_is_in_order_of_time_and_keeps_a_traceback_with_its_line(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    with closing(Log(tmp_path)) as log:
        log.write(Launched(trial_id=7, attempt=1))
    (logs / "driver.log").write_text(
        "2030-01-02 00:00:00,000 WARNING a late trial_id=7\n"
        "2030-01-01 00:00:00,000 WARNING a early trial_id=71\nTraceback: trial_id=7 is not it\n"
    )
    lines = log_lines(tmp_path)
    words = [line.split() for line in lines]
    assert words[0][2] == "begin"
    assert [one[-1] for one in words[1:]] == ["attempt=1", "it", "trial_id=7"]
    assert len(log_lines(tmp_path, 71)) == 1
    assert fact_lines(tmp_path)[1].endswith("launch trial_id=7 attempt=1")


@pytest.mark.long
@pytest.mark.slow
def test_a_local_study_is_cancelled_from_another_terminal_and_resumed(tmp_path: Path) -> None:
    study_file = write_study(tmp_path)
    text = study_file.read_text().replace("epochs = 4", "epochs = 4000")
    study_file.write_text(text)
    search = start("search", study_file, "--out", "s", "--executor", "inline", folder=tmp_path)
    try:
        wait_for(lambda: list((tmp_path / "s").glob("checkpoints/*/attempt-*/epoch-*.pt")))
        first = run("cancel", "s", "0", folder=tmp_path).stdout
        told = run("cancel", "s", folder=tmp_path).stdout
        _, err = search.communicate(timeout=600)
    finally:
        search.kill()
    assert first.startswith("trial 0: cancelled")
    assert "stopped" in told
    assert "resume s" in told
    assert search.returncode == 130
    assert "Nothing is lost" in err
    assert "cannot be cancelled" not in run("status", "s", folder=tmp_path).stdout
    again = run("cancel", "s", folder=tmp_path, code=2).stderr
    assert "so there is nothing to cancel" in again
