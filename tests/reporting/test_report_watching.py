"""Claims about watching: rebuilt when a result has come, until the study is over."""

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from fakes import finished, logged
from messages import refused
from records import mlp
from searched import folder as study
from searched import record

import nas_evidence.reporting.contents as contents
import nas_evidence.reporting.live as live_module
import nas_evidence.storage.tables as tables_module
from nas_evidence.driver.status import study_status
from nas_evidence.reporting.correlations import trust
from nas_evidence.reporting.live import Followed, LiveReport, watch
from nas_evidence.reporting.page import ReportPaths
from nas_evidence.reporting.study_tables import load_study_tables
from nas_evidence.storage.events import Asked, Ended, Event, Launched, Stopped
from nas_evidence.storage.log import Log, ReadLog, events_since
from nas_evidence.storage.study_folder import locked, read_study
from nas_evidence.storage.tables import stamp


class Clock:
    """A clock that only sleeping moves; `events` happen at their times."""

    def __init__(self, events: dict[float, Callable[[], object]]) -> None:
        self.now, self.events, self.slept = 0.0, events, [0.0]

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        for time in [time for time in self.events if time <= self.now]:
            self.events.pop(time)()


def result(folder: Path, trial_id: int, table: str = "trials") -> None:
    path = folder / table / f"{trial_id:06d}-a1.parquet"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x" * (trial_id + 1))


def writes(
    folder: Path, clock: Clock, over_at: float, seconds: float = 0.0
) -> list[tuple[float, int | None]]:
    """Return when a report was due, and when its page loads itself again."""
    made: list[tuple[float, int | None]] = []

    def write(reload_seconds: int | None) -> ReportPaths:
        made.append((clock.now, reload_seconds))
        clock.now += seconds
        return ReportPaths(folder, folder, folder)

    given = {"clock": clock.read, "sleep": clock.sleep, "write": write, "every_seconds": 10.0}
    shown = list(watch(folder, is_over=lambda: clock.now >= over_at, **given))  # type: ignore[arg-type]
    assert len(shown) == len(made)
    return made


def test_reports_are_as_far_apart_as_asked_however_long_one_takes(tmp_path: Path) -> None:
    clock = Clock({})
    times = [time for time, _ in writes(tmp_path, clock, over_at=35, seconds=4)]
    assert times == [0, 10, 20, 30, 40]
    assert set(clock.slept[1:]) == {6.0}


def test_reports_take_at_most_half_of_the_time(tmp_path: Path) -> None:
    times = [time for time, _ in writes(tmp_path, Clock({}), over_at=60, seconds=15)]
    assert times == [0, 30, 60]


def test_a_finished_study_is_written_once_and_its_page_does_not_reload(tmp_path: Path) -> None:
    assert writes(tmp_path, Clock({}), over_at=0) == [(0, None)]
    assert writes(tmp_path, Clock({}), over_at=5) == [(0, 10), (10, None)]


@pytest.mark.slow
def test_a_report_is_written_on_change_and_facts_are_computed_again_with_results_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study(tmp_path, [record(0, 0)], n_trials=3)
    epochs = read_study(tmp_path).plan.epochs
    live, trusted = LiveReport(tmp_path), list[int]()
    monkeypatch.setattr(contents, "trust", lambda *a, **b: trusted.append(1) or trust(*a, **b))
    assert live.write(10)
    assert live.write(10) is None
    assert len(trusted) == 1
    with closing(Log(tmp_path)) as killed:  # a driver that was killed
        killed.write(Asked(number=6, architecture=mlp()))
        killed.write(Launched(trial_id=6, attempt=1))
    with locked(tmp_path), closing(Log(tmp_path)) as log:
        log.write(Asked(number=7, architecture=mlp()))
        log.write(Launched(trial_id=7, attempt=1))
        page = live.write(10).html.read_text("utf-8")
        assert "1 of 3 trials are finished, 1 under way. As of" in page
        assert f">0 of {epochs}</td>" in page
        assert live.write(10) is None
        checkpoint = tmp_path / "checkpoints" / "000007" / "attempt-1" / "epoch-000005.pt"
        checkpoint.parent.mkdir(parents=True)
        checkpoint.touch()
        page = live.write(10).html.read_text("utf-8")
        assert f">5 of {epochs}</td>" in page
        assert 'data-reload="10"' in page
    assert len(trusted) == 1
    page = live.write(10).html.read_text("utf-8")  # its driver is gone
    assert "Waiting for a search" in page
    study(tmp_path, [record(7, 1)], n_trials=3)
    assert live.write(10)
    assert len(trusted) == 2
    page = live.write(None).html.read_text("utf-8")
    assert 'id="live"' not in page
    assert "data-reload" not in page


@pytest.mark.slow
def test_each_line_of_the_log_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study(tmp_path, [record(0, 0), record(1, 1)], n_trials=3)
    live, read = LiveReport(tmp_path), list[int]()

    def counted(folder: Path, past: ReadLog) -> tuple[list[tuple[float, Event]], ReadLog]:
        events, past = events_since(folder, past)
        read.extend(event.trial_id for _, event in events if isinstance(event, Launched))
        return events, past

    monkeypatch.setattr(live_module, "events_since", counted)
    monkeypatch.setattr(tables_module, "read_log", lambda _: pytest.fail("all of it was read"))
    with closing(Log(tmp_path)) as log:
        for trial_id in range(4):
            log.write(Launched(trial_id=trial_id, attempt=1))
            live.write(10)
        live.write(None)
    assert read == [0, 1, 2, 3]


def test_trials_come_in_the_order_in_which_the_log_says_that_they_ended(tmp_path: Path) -> None:
    study(tmp_path, [record(i, i) for i in range(3)], n_trials=3)
    rows, followed = finished(tmp_path), Followed(tmp_path)
    with closing(Log(tmp_path)) as log:
        for trial_id in (2, 0, 1):
            log.write(Launched(trial_id=trial_id, attempt=1))
            log.write(Ended(row=rows[trial_id], files={}))
            followed.update()
        log.write(Launched(trial_id=5, attempt=2))
        followed.update()
        assert list(followed.state.rows) == [2, 0, 1]
        assert list(followed.began) == [5]
        assert load_study_tables(tmp_path).history["trial_id"].tolist() == [2, 0, 1]
        log.write(Stopped(idle_share=0.0, wall_seconds=1.0, device_seconds=1.0))
    followed.update()
    assert not followed.began


def test_new_rewritten_and_joined_files_change_the_stamp(tmp_path: Path) -> None:
    seen = [stamp(tmp_path)]
    result(tmp_path, 0)
    seen.append(stamp(tmp_path))
    result(tmp_path, 0, "curves")
    seen.append(stamp(tmp_path))
    os.utime(tmp_path / "trials" / "000000-a1.parquet", (1, 1))
    seen.append(stamp(tmp_path))
    (tmp_path / "trials" / "000000-a1.parquet").unlink()
    seen.append(stamp(tmp_path))
    assert len(set(seen)) == len(seen)
    (tmp_path / "logs" / "events").mkdir(parents=True)
    (tmp_path / "logs" / "events" / "000000.jsonl").write_text("{}")
    assert stamp(tmp_path) == seen[-1]


def test_a_study_is_over_with_its_last_trial(tmp_path: Path) -> None:
    study(tmp_path, [record(0, 0), record(1, 1)], n_trials=3, finalists=0)
    logged(tmp_path)
    assert study_status(tmp_path).state == "stopped"
    study(tmp_path, [record(2, 2)], n_trials=3, finalists=0)
    logged(tmp_path)
    assert study_status(tmp_path).state == "finished"


def test_a_pause_that_is_not_positive_is_refused(tmp_path: Path) -> None:
    with refused("rebuild-interval", 0):
        next(watch(tmp_path, every_seconds=0))
