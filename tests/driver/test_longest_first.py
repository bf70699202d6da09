"""Trials known together run longest first; nothing but the order of launches changes."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import fakes
import pytest
from fakes import FakeExecutor, drive, facts_in, results_in

from nas_evidence.driver.driver import MOST_ASKED_AHEAD
from nas_evidence.driver.plan import MOST_AHEAD, to_ask
from nas_evidence.proposing.proposer import Proposer
from nas_evidence.spec.record import TrialRecord
from nas_evidence.spec.study import ArchitectureSpec, Assignment, StudySpec
from nas_evidence.workers.executor import Launch, Verdict

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
