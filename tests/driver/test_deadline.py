"""Claims about a time limit: trials are chosen to fit, on a clock of the executor's own."""

import math
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import fakes
import pytest
from fakes import FakeExecutor, Noisy, drive, finished
from messages import refused

from nas_evidence.plumbing.time_limit import TimeLimit, seconds_of
from nas_evidence.spec.record import is_race, n_searched
from nas_evidence.spec.study import StudySpec

study = partial(fakes.study, n_trials=8, finalists=3)


def run(spec: StudySpec, folder: Path, executor: FakeExecutor, seconds: float) -> list[int]:
    """Run a study for so many seconds of the executor's clock; a trial has three slices."""
    left = None if math.isinf(seconds) else lambda: seconds - executor.now()
    drive(spec, folder, executor, time_left=left)
    return sorted(finished(folder))


def test_trials_are_chosen_to_fit_and_those_left_out_run_next_time(tmp_path: Path) -> None:
    executor = FakeExecutor(workers=1)
    spec = study(finalists=0)
    assert run(spec, tmp_path, executor, 14.0) == [0, 1, 2, 3]  # 12 seconds: a fifth has no room
    assert executor.clock == 12.0
    assert not executor.parked
    assert run(spec, tmp_path, FakeExecutor(workers=1), math.inf) == list(range(8))


def test_a_machine_that_becomes_slow_stops_the_search_in_time_with_its_checkpoint(
    tmp_path: Path,
) -> None:
    executor = FakeExecutor(workers=1)
    executor.slice_seconds = lambda a: 1.0 if a.trial_id < 2 else 10.0
    assert run(study(finalists=0), tmp_path, executor, 25.0) == [0, 1]
    assert executor.clock == 16.0  # another slice of ten seconds would not end in time
    again = FakeExecutor(workers=1)
    assert len(run(study(finalists=0), tmp_path, again, math.inf)) == 8
    assert again.launches[0].assignment.trial_id == 2
    assert again.launches[0].resume_from is not None


def test_the_first_trial_goes_on_as_long_as_there_is_time(tmp_path: Path) -> None:
    executor = FakeExecutor(workers=1)
    executor.slice_seconds = lambda a: 0.5 if executor.clock > 10 else 11.0
    assert run(study(finalists=0), tmp_path, executor, 12.5) == [0]


@pytest.mark.slow
def test_the_time_of_a_process_begins_when_it_begins() -> None:
    code = (
        "import time; time.sleep(0.3)\n"
        "from nas_evidence.plumbing.time_limit import seconds_running\n"
        "assert seconds_running() > time.process_time() + 0.25"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_without_time_for_a_trial_there_is_none_and_nothing_is_lost(tmp_path: Path) -> None:
    assert run(study(), tmp_path, FakeExecutor(), 0.0) == []
    assert run(study(finalists=0), tmp_path, FakeExecutor(), 1.5) == []
    assert n_searched(dict.fromkeys(run(study(), tmp_path, FakeExecutor(), math.inf))) == 8


@pytest.mark.slow
def test_the_race_has_its_share_of_the_time_and_ends_in_it_too(tmp_path: Path) -> None:
    executor = Noisy(300.0, workers=1)
    done = run(study(n_trials=400), tmp_path, executor, 80.0)
    searched = [i for i in done if not is_race(i)]
    assert 15 <= len(searched) <= 20 == 80 // 4
    assert len(done) > len(searched)
    assert executor.clock <= 80.0
    again = run(study(n_trials=len(searched) + 1), tmp_path, Noisy(300.0, workers=2), math.inf)
    assert n_searched(dict.fromkeys(again)) == len(searched) + 1


@pytest.mark.slow
def test_a_search_of_few_trials_has_no_race_unless_it_is_asked_for(tmp_path: Path) -> None:
    done = run(study(n_trials=40, finalists=None), tmp_path, FakeExecutor(workers=1), 40.0)
    assert done == list(range(13))


def test_times_are_read_and_what_follows_the_trials_is_kept_free() -> None:
    for wrong in ("", "0", "-5", "5d", "1e3", "nan", True, 0):
        with refused("time-limit-form"):
            seconds_of(wrong)
    limit = TimeLimit(1000.0, after=10.0)
    assert limit.for_trials() <= 980.0 < limit.left() <= 1000.0
    limit.after = 200.0
    assert limit.for_trials() <= 750.0
    limit.after = 300.0
    assert limit.for_trials() <= 700.0


def test_what_has_a_time_is_stopped_in_it_even_where_an_error_is_swallowed() -> None:
    handler = signal.getsignal(signal.SIGALRM)
    swallowed: list[TimeoutError] = []

    def wait() -> None:
        try:
            threading.Event().wait()
        except TimeoutError as error:
            swallowed.append(error)
            threading.Event().wait()

    with pytest.raises(TimeoutError), TimeLimit(1.0).stopping(0.0):
        wait()
    assert len(swallowed) == 1
    assert signal.getsignal(signal.SIGALRM) is handler
