"""Claims about watching: rebuilt when a result has come, until the study is over."""

import os
from collections.abc import Callable
from pathlib import Path

from messages import refused

from nas_evidence.reporting.live import all_finished, stamp, watch
from nas_evidence.reporting.page import ReportPaths


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


def builds(
    folder: Path, clock: Clock, over_at: float, seconds: float = 0.0
) -> list[tuple[float, int | None]]:
    """Return when each report was built, and when its page loads itself again."""
    made: list[tuple[float, int | None]] = []

    def build(where: Path, *, reload_seconds: int | None) -> ReportPaths:
        assert where == folder
        made.append((clock.now, reload_seconds))
        clock.now += seconds
        return ReportPaths(where, where, where)

    given = {"clock": clock.read, "sleep": clock.sleep, "build": build, "every_seconds": 10.0}
    shown = list(watch(folder, is_over=lambda: clock.now >= over_at, **given))  # type: ignore[arg-type]
    assert len(shown) == len(made)
    return made


def test_a_report_is_built_at_once_on_change_and_at_the_end(tmp_path: Path) -> None:
    clock = Clock({23.0: lambda: result(tmp_path, 0), 41.0: lambda: result(tmp_path, 1)})
    assert builds(tmp_path, clock, over_at=65) == [(0, 10), (30, 10), (50, 10), (70, None)]


def test_builds_are_as_far_apart_as_asked_however_long_one_takes(
    tmp_path: Path,
) -> None:
    events = {float(t): (lambda t=t: result(tmp_path, t)) for t in range(1, 40)}
    clock = Clock(events)  # type: ignore[arg-type]
    assert [time for time, _ in builds(tmp_path, clock, over_at=35, seconds=4)] == [
        0,
        10,
        20,
        30,
        40,
    ]
    assert set(clock.slept[1:]) == {6.0}


def test_a_finished_study_is_built_once_and_its_page_does_not_reload(tmp_path: Path) -> None:
    assert builds(tmp_path, Clock({}), over_at=0) == [(0, None)]


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
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "events.jsonl").write_text("{}")
    assert stamp(tmp_path) == seen[-1]


def test_a_study_is_over_with_its_last_trial(tmp_path: Path) -> None:
    from reporting.test_report_search import folder, record

    folder(tmp_path, [record(0, 0), record(1, 1)], n_trials=3)
    assert not all_finished(tmp_path)
    folder(tmp_path, [record(2, 2)], n_trials=3)
    assert all_finished(tmp_path)


def test_a_pause_that_is_not_positive_is_refused(tmp_path: Path) -> None:
    with refused("rebuild-interval", 0):
        next(watch(tmp_path, every_seconds=0))
