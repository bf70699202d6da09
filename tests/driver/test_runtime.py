"""The forecast: what it is made of, and what each piece adds. Nothing here depends on seconds."""

import math
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import fakes
import numpy as np
import pytest
import torch
from fakes import FakeExecutor, Noisy, drive, facts_in, finished, results_in
from messages import refused

from nas_evidence.data import ArrayData, load
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.driver import runtime
from nas_evidence.driver.driver import MOST_ASKED_AHEAD
from nas_evidence.driver.plan import MOST_AHEAD, to_ask
from nas_evidence.driver.runtime import (
    Pieces,
    forecast_seconds,
    pieces_of,
    trial_seconds,
)
from nas_evidence.plumbing.time_limit import TimeLimit, seconds_of
from nas_evidence.proposing.proposer import Proposer
from nas_evidence.spec.record import TrialRecord, is_race, n_searched
from nas_evidence.spec.study import (
    ArchitectureSpec,
    Assignment,
    DatasetSpec,
    StudySpec,
    TrainingPlan,
)
from nas_evidence.workers.executor import Launch, Verdict

PIECES = Pieces(epoch=1, beside=0.5, update=10, evaluation=1000)
ALL = ("diag_ef", "kfac_ggn", "two_fold")


def plan(**changed: Any) -> TrainingPlan:
    online = {"every": 5, "burn_in": 0}
    return TrainingPlan.model_validate({"epochs": 20, "online": online, **changed})


def study(**changed: Any) -> StudySpec:
    given: dict[str, Any] = {
        "name": "small",
        "n_trials": 6,
        "finalists": 0,
        "dataset": {"name": "digits", "max_train": 64, "max_test": 1},
        "family": {"linear": {}, "mlp": {"width": {"low": 4, "high": 16}}},
        "estimators": ALL,
        "objective": "two_fold",
        "plan": {"epochs": 4, "batch_size": 16},
        "resources": {"workers": 2},
    }
    return StudySpec.model_validate({**given, **changed})


def test_a_trial_is_its_training_its_parts_its_updates_and_its_evaluations() -> None:
    main = 20 * 1 + 4 * 10
    halves = 20 * 0.5 + 4 * 10
    assert trial_seconds(PIECES, plan(), ALL, 100) == main + halves + 4 * 1000


@pytest.mark.parametrize(
    ("changed", "estimators", "more"),
    [
        ({}, ("diag_ef", "kfac_ggn"), -(10 + 40)),  # no halves
        ({}, (*ALL, "two_fold_accuracy"), 0),  # from the same halves
        ({"folds": 1}, ALL, -(5 + 20)),  # one half
        ({}, (*ALL, "heldout_10"), 0.9 * (10 + 40)),  # 90 % of the data
        ({"settle": 1.0}, ALL, 1.0 * (20 + 10)),  # the main training, and both halves together
        ({"online": {"every": 10}}, ALL, -2 * (10 + 10 + 1000)),
        ({"evaluate_every": 10}, ALL, -2 * 1000),
        ({"evaluate_every": 1}, ALL, 16 * 1000),
        ({"online": {"every": 2}, "evaluate_every": 5}, ALL, 6 * (10 + 10)),
        ({"online": {"every": "never"}, "evaluate_every": 5}, ALL, -4 * 10 - 4 * 10),
        ({"online": {"every": 5, "burn_in": 15}}, ALL, -3 * (10 + 10 + 1000)),
    ],
)
def test_what_the_plan_or_a_score_adds(
    changed: dict[str, Any], estimators: tuple[str, ...], more: float
) -> None:
    found = trial_seconds(PIECES, plan(**changed), estimators, 100)
    assert found - trial_seconds(PIECES, plan(), ALL, 100) == pytest.approx(more)


def test_folds_left_to_the_rows_are_counted_by_the_rows() -> None:
    def seconds(n_data: int, **folds: int) -> float:
        return trial_seconds(PIECES, plan(**folds), ("conditional_evidence",), n_data)

    assert seconds(300) == seconds(300, folds=5)
    assert seconds(3000) == seconds(3000, folds=2)
    assert seconds(3000) < seconds(300)


#: Seconds of a trial of each family.
COST = {"linear": 70.0, "mlp": 7.0}


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The families whose pieces were timed; a trial costs what `COST` says."""
    found: list[str] = []

    def pieces(point: ArchitectureSpec, given: StudySpec, data: TensorData) -> Pieces:
        found.append(point.family)
        return Pieces(COST[point.family] / given.plan.epochs, 0, 0, 0)

    monkeypatch.setattr(runtime, "pieces_of", pieces)
    return found


def forecast(
    *,
    n_trials: int | None = None,
    workers: int | None = None,
    patience: float = 6.0,
    **changed: Any,
) -> float:
    given = study(estimators=("diag_ef",), objective="diag_ef", **changed)
    arrays = load(given.dataset, seed=0)
    return forecast_seconds(given, arrays, n_trials=n_trials, workers=workers, patience=patience)


@pytest.mark.usefixtures("timed")
def test_families_count_as_often_as_they_are_tried_and_the_race_as_may_be_left() -> None:
    """The linear network is tried once, the other family six times."""
    each = (70 + 6 * 7) / 7 + runtime._TRIAL_SECONDS
    one = {"workers": 1}
    assert forecast(**one) == pytest.approx(6 * each)
    assert forecast(finalists=3, **one) == pytest.approx(16 * each)  # up to 10 more
    assert forecast(finalists=3, n_trials=4, **one) == pytest.approx(4 * each)


@pytest.mark.usefixtures("timed")
def test_workers_share_trials_and_are_never_more_than_there_are_trials() -> None:
    assert forecast(workers=1) > forecast()
    assert forecast(workers=50) == forecast(workers=6)
    assert forecast(n_trials=1) == forecast(n_trials=1, workers=1)


def test_a_slow_family_has_one_architecture_timed(timed: list[str]) -> None:
    forecast()
    assert timed == ["linear"] + ["mlp"] * runtime.TIMED_PER_FAMILY
    timed.clear()
    forecast(patience=-1.0)
    assert timed == ["linear", "mlp"]


@pytest.mark.parametrize("n", [5, 64, 500, 64_000])
@pytest.mark.parametrize(("fixed", "per_row"), [(3.0, 0.25), (1e-3, 1e-6), (0.0, 1e-3)])
def test_a_cost_per_row_grows_and_a_fixed_cost_does_not(
    n: int, fixed: float, per_row: float
) -> None:
    found = runtime.grown(lambda rows: fixed + per_row * rows, first=32, n=n)
    assert found == pytest.approx(fixed + per_row * n)


def test_what_is_slow_is_timed_on_few_rows_and_what_is_quick_on_many() -> None:
    asked: list[int] = []

    def seconds(rows: int) -> float:
        asked.append(rows)
        return runtime._ENOUGH * rows / 200

    runtime.grown(seconds, first=32, n=10_000)
    assert sorted({*asked}) == [4, 32, 64, 128, 256]
    asked.clear()
    runtime.grown(lambda rows: seconds(rows) + runtime._SLOW, first=32, n=10_000)
    assert asked == [4, 32, 16]


def test_what_a_first_call_loads_is_not_continued_to_all_rows() -> None:
    calls: list[int] = []

    def seconds(rows: int) -> float:
        calls.append(rows)
        return 2.0 * (len(calls) == 1) + 1e-3 * rows

    assert runtime.grown(seconds, first=32, n=10_000) == pytest.approx(10.0)


def of_real_targets() -> ArrayData:
    arrays = load(DatasetSpec(name="diabetes", max_train=60, max_test=1), seed=0)
    assert arrays.task == "real"
    return arrays


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("epochs", [1, 4])
@pytest.mark.parametrize("likelihood", ["categorical", "gaussian"])
def test_every_piece_of_a_real_trial_is_timed(likelihood: str, epochs: int) -> None:
    labels = likelihood == "categorical"
    given = study(plan={"epochs": epochs, "batch_size": 16, "likelihood": likelihood})
    arrays = load(given.dataset, seed=0) if labels else of_real_targets()
    point = ArchitectureSpec(family="mlp", values={"width": 8, "depth": 1})
    torch.set_num_threads(1)
    found = pieces_of(point, given, to_tensors(arrays, "cpu"))
    values = np.array([*vars(found).values()])
    assert np.isfinite(values).all()
    assert (values > 0).all()
    assert math.isfinite(forecast_seconds(given, arrays))
    assert replace(found, evaluation=0.0) != found


# --- trials known together run longest first; nothing but the order of launches changes


WIDTHS = [4, 32, 8, 64, 16, 48, 12, 24]


def grid(**changes: object) -> StudySpec:
    family = {"mlp": {"width": {"options": WIDTHS}}}
    given = {"n_trials": 8, "family": family, "sampler": {"name": "grid"}, "finalists": 0}
    return fakes.study(**(given | changes))


def flops(architecture: ArchitectureSpec) -> float:
    return float(architecture.values["width"])


def launched(
    spec: StudySpec,
    folder: Path,
    *,
    workers: int = 3,
    flops: Callable[[ArchitectureSpec], float] | None = flops,
    **options: object,
) -> list[int]:
    """Run a study and return the widths in the order of their launches."""
    executor = FakeExecutor(workers=workers)
    drive(spec, folder, executor, proposer=Proposer, flops=flops, **options)
    return [int(one.assignment.architecture.values["width"]) for one in executor.launches]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """The table of the grid in order of number, on one worker."""
    folder = tmp_path_factory.mktemp("plain")
    assert launched(grid(), folder, workers=1, flops=None) == WIDTHS
    return results_in(folder)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3, 7])
def test_a_grid_runs_longest_first_with_the_results_of_any_order(
    tmp_path: Path, plain: list[object], workers: int
) -> None:
    assert launched(grid(), tmp_path, workers=workers) == sorted(WIDTHS, reverse=True)
    assert results_in(tmp_path) == plain


def test_trials_that_all_start_at_once_are_not_compared(
    tmp_path: Path, plain: list[object]
) -> None:
    def never(architecture: ArchitectureSpec) -> float:
        raise AssertionError(architecture)

    assert launched(grid(), tmp_path, workers=8, flops=never) == WIDTHS
    assert results_in(tmp_path) == plain


@pytest.mark.slow
@pytest.mark.parametrize(("point", "times"), [("launched", 4), ("written", 2), ("told", 3)])
def test_after_an_end_in_between_the_rest_runs_longest_first(
    tmp_path: Path,
    plain: list[object],
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    times: int,
) -> None:
    passed: list[str] = []

    def ends(name: str) -> None:
        passed.append(name)
        if passed.count(point) == times:
            raise InterruptedError

    monkeypatch.setattr("nas_evidence.driver.driver.crash_point", ends)
    with pytest.raises(InterruptedError):
        launched(grid(), tmp_path)
    monkeypatch.undo()
    rest = launched(grid(), tmp_path, workers=1)
    assert rest == sorted(rest, reverse=True)
    assert len(rest) > 1
    assert results_in(tmp_path) == plain


def test_each_batch_runs_longest_first_and_later_batches_wait(tmp_path: Path) -> None:
    spec = grid(scheduling="batch", batch=4)
    assert launched(spec, tmp_path) == [64, 32, 8, 4, 48, 24, 16, 12]


@pytest.mark.slow
def test_replicates_stay_together_in_order(tmp_path: Path) -> None:
    executor = FakeExecutor(workers=1)
    spec = grid(n_trials=16, replicates=2)
    drive(spec, tmp_path, executor, proposer=Proposer, flops=flops)
    ids = [one.assignment.trial_id for one in executor.launches]
    assert ids[:4] == [6, 7, 10, 11]


def test_a_lost_trial_runs_again_before_longer_ones(tmp_path: Path) -> None:
    lost = iter(["worker died"])

    def lose(assignment: Assignment) -> str | None:
        return next(lost, None) if assignment.architecture.values["width"] == 48 else None

    executor = FakeExecutor(workers=1, misbehave=lose)
    drive(grid(), tmp_path, executor, proposer=Proposer, flops=flops)
    widths = [int(one.assignment.architecture.values["width"]) for one in executor.launches]
    assert widths[:4] == [64, 48, 48, 32]


class Telling(FakeExecutor):
    """Its records have flops."""

    def finish(self, trial_id: int, verdict: Verdict | None = None) -> None:
        super().finish(trial_id, verdict)
        record = self.events.pop()
        assert isinstance(record, TrialRecord)
        known = {"flops": int(flops(record.architecture))}
        self.events.append(record.model_copy(update=known))


@pytest.mark.slow
def test_a_round_of_the_race_runs_longest_first_by_what_the_search_has_found(
    tmp_path: Path,
) -> None:
    def never(architecture: ArchitectureSpec) -> float:
        raise AssertionError(architecture)

    executor = Telling(workers=1)
    spec = grid(finalists=3, sampler={"name": "random"})
    drive(spec, tmp_path, executor, proposer=Proposer, flops=never)
    ids = {i for e in facts_in(tmp_path, "race")[:1] for i in e.trial_ids}
    first = [one.assignment for one in executor.launches if one.assignment.trial_id in ids]
    widths = [int(one.architecture.values["width"]) for one in first]
    assert len(set(widths)) == 3
    assert widths == sorted(widths, reverse=True)
    assert [one.trial_id for one in first] != sorted(ids)


def test_only_a_small_grid_without_rungs_is_asked_ahead() -> None:
    pruning = {"rule": "halving", "first_epoch": 2, "reduction": 2}
    assert to_ask(2, 0, grid()) == 6
    assert to_ask(0, 0, grid(n_trials=MOST_AHEAD)) == MOST_AHEAD
    assert to_ask(0, 0, grid(n_trials=MOST_AHEAD + 1)) == 1
    assert to_ask(2, 0, grid(pruning=pruning)) == 1
    assert to_ask(2, 0, grid(sampler={"name": "tpe"})) == 1


# --- executors whose trials need different room


class Choosing(FakeExecutor):
    """Has room for one wide network at a time, and for narrow ones beside it."""

    def first_with_room(self, launches: Iterable[Launch]) -> int | None:
        wide = [one for one in self.running.values() if width_of(one) > 30]
        fits = (i for i, one in enumerate(launches) if not wide or width_of(one) <= 30)
        return next(fits, None)


def width_of(launch: Launch) -> int:
    return int(launch.assignment.architecture.values["width"])


def test_a_trial_that_has_no_room_lets_the_next_one_pass_that_has_some(tmp_path: Path) -> None:
    executor = Choosing(workers=2)
    drive(grid(), tmp_path, executor, proposer=Proposer, flops=flops)
    widths = [width_of(one) for one in executor.launches]
    assert widths[:2] == [64, 24]
    assert sorted(widths) == [4, 8, 12, 16, 24, 32, 48, 64]
    assert [w for w in widths if w > 30] == [64, 48, 32]


def test_few_proposals_wait_for_room_while_another_one_is_asked_for(tmp_path: Path) -> None:
    """All are wide, so that one runs and the second worker stays idle."""
    asked: list[int] = []

    class Counting(Choosing):
        def poll(self, timeout: float) -> list[Any]:
            asked.append(len(facts_in(tmp_path, "ask")) - len(self.launches))
            return super().poll(timeout)

    family = {"mlp": {"width": {"options": [32, 48, 64]}, "depth": [1, 2, 3, 4]}}
    wide = grid(n_trials=12, sampler={"name": "random"}, family=family)
    executor = Counting(workers=2)
    drive(wide, tmp_path, executor, proposer=Proposer)
    assert len(executor.launches) == 12
    assert max(asked) == MOST_ASKED_AHEAD


# --- claims about a time limit: trials are chosen to fit, on a clock of the executor's own


limited = partial(fakes.study, n_trials=8, finalists=3)


def run(spec: StudySpec, folder: Path, executor: FakeExecutor, seconds: float) -> list[int]:
    """Run a study for so many seconds of the executor's clock; a trial has three slices."""
    left = None if math.isinf(seconds) else lambda: seconds - executor.now()
    drive(spec, folder, executor, time_left=left)
    return sorted(finished(folder))


def test_trials_are_chosen_to_fit_and_those_left_out_run_next_time(tmp_path: Path) -> None:
    executor = FakeExecutor(workers=1)
    spec = limited(finalists=0)
    assert run(spec, tmp_path, executor, 14.0) == [0, 1, 2, 3]  # 12 seconds: a fifth has no room
    assert executor.clock == 12.0
    assert not executor.parked
    assert run(spec, tmp_path, FakeExecutor(workers=1), math.inf) == list(range(8))


def test_a_machine_that_becomes_slow_stops_the_search_in_time_with_its_checkpoint(
    tmp_path: Path,
) -> None:
    executor = FakeExecutor(workers=1)
    executor.slice_seconds = lambda a: 1.0 if a.trial_id < 2 else 10.0
    assert run(limited(finalists=0), tmp_path, executor, 25.0) == [0, 1]
    assert executor.clock == 16.0  # another slice of ten seconds would not end in time
    again = FakeExecutor(workers=1)
    assert len(run(limited(finalists=0), tmp_path, again, math.inf)) == 8
    assert again.launches[0].assignment.trial_id == 2
    assert again.launches[0].resume_from is not None


def test_the_first_trial_goes_on_as_long_as_there_is_time(tmp_path: Path) -> None:
    executor = FakeExecutor(workers=1)
    executor.slice_seconds = lambda a: 0.5 if executor.clock > 10 else 11.0
    assert run(limited(finalists=0), tmp_path, executor, 12.5) == [0]


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
    assert run(limited(), tmp_path, FakeExecutor(), 0.0) == []
    assert run(limited(finalists=0), tmp_path, FakeExecutor(), 1.5) == []
    assert n_searched(dict.fromkeys(run(limited(), tmp_path, FakeExecutor(), math.inf))) == 8


@pytest.mark.slow
def test_the_race_has_its_share_of_the_time_and_ends_in_it_too(tmp_path: Path) -> None:
    executor = Noisy(300.0, workers=1)
    done = run(limited(n_trials=400), tmp_path, executor, 80.0)
    searched = [i for i in done if not is_race(i)]
    assert 15 <= len(searched) <= 20 == 80 // 4
    assert len(done) > len(searched)
    assert executor.clock <= 80.0
    again = run(limited(n_trials=len(searched) + 1), tmp_path, Noisy(300.0, workers=2), math.inf)
    assert n_searched(dict.fromkeys(again)) == len(searched) + 1


@pytest.mark.slow
def test_a_search_of_few_trials_has_no_race_unless_it_is_asked_for(tmp_path: Path) -> None:
    done = run(limited(n_trials=40, finalists=None), tmp_path, FakeExecutor(workers=1), 40.0)
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
