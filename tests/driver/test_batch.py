"""Batches: the same proposals and results whatever the workers' speed, crashes and resumes.

The proposer here depends on all that was told, in its order, so that any other course shows.
"""

import signal
from functools import partial
from pathlib import Path

import fakes
import pytest
from fakes import (
    FakeExecutor,
    drive,
    facts_in,
    finished,
    last_log,
    results_in,
    score_at,
    told_in,
)
from processes import in_a_process

from nas_evidence.driver.plan import to_ask, to_tell
from nas_evidence.spec.record import TrialStatus
from nas_evidence.spec.study import Assignment, StudySpec
from nas_evidence.storage.tables import read_table

study = partial(
    fakes.study,
    n_trials=11,
    scheduling="batch",
    batch=4,
    plan={"epochs": 8, "online": {"every": 2}},
    pruning={"rule": "halving", "first_epoch": 2, "reduction": 2, "startup_trials": 2},
)


def run(spec: StudySpec, folder: Path, executor: FakeExecutor | None = None) -> FakeExecutor:
    executor = executor or FakeExecutor()
    drive(spec, folder, executor)
    assert not executor.running
    return executor


def fail(assignment: Assignment) -> TrialStatus | None:
    return TrialStatus.DIVERGED if assignment.trial_id in (2, 9) else None


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[object, ...]]:
    folder = tmp_path_factory.mktemp("calm")
    run(study(), folder, FakeExecutor(workers=1, misbehave=fail))
    found = results_in(folder)
    assert {row[3] for row in found[:-1]} == {"complete", "pruned", "diverged"}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_workers_speed_and_losses_change_nothing(
    tmp_path: Path, calm: list[tuple[object, ...]], seed: int
) -> None:
    seen = set()

    def lose_at(assignment: Assignment, epoch: int) -> str | None:
        key = (assignment.trial_id, epoch)
        unlucky = (assignment.trial_id + epoch + seed) % 5 == 0 and key not in seen
        seen.add(key)
        return "worker died" if unlucky else None

    executor = FakeExecutor(workers=1 + seed, seed=seed, misbehave=fail, lose_at=lose_at)
    run(study(), tmp_path, executor)
    assert results_in(tmp_path) == calm


def killed_at(arrow: str, folder: Path, seed: int) -> bool:
    """Run the study in a process that kills itself at an arrow; tell whether it got there."""
    executor = FakeExecutor(workers=3, seed=seed, misbehave=fail)
    code = in_a_process(lambda: run(study(), folder, executor), crash_at=arrow)
    assert code in (0, -signal.SIGKILL)
    return code != 0


def test_all_of_a_batch_is_asked_before_and_told_after_it_ran(tmp_path: Path) -> None:
    run(study(pruning={"rule": "none"}), tmp_path, FakeExecutor(workers=3, seed=1))
    words = [e.event for e in facts_in(tmp_path, "ask", "tell")]
    assert words == (["ask"] * 4 + ["tell"] * 4) * 2 + ["ask"] * 3 + ["tell"] * 3
    told = [e.number for e in facts_in(tmp_path, "tell")]
    assert told == list(range(11))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 8])
def test_a_batch_is_judged_when_all_of_it_has_reached_the_rung(
    tmp_path: Path, workers: int
) -> None:
    spec = study(n_trials=4)
    executor = run(spec, tmp_path, FakeExecutor(workers=workers, seed=3))
    rows = finished(tmp_path)
    at_two = sorted(rows, key=lambda i: score_at(rows[i].architecture, 2), reverse=True)
    assert [i for i in at_two if rows[i].status is TrialStatus.COMPLETE] == at_two[:1]
    # Two of four pass epoch 2 (the better half), one of these two passes epoch 4.
    epochs = read_table(tmp_path, "trials").set_index("trial_id")["epochs"]
    assert [epochs[i] for i in at_two] == [8, 4, 2, 2]
    assert rows[at_two[3]].cause.startswith("rung 2: kfac_ggn -")
    assert rows[at_two[3]].cause.endswith(" is 4th of 4")
    assert [epoch for _, epoch in executor.parked].count(2) == 3, "all wait but the last to come"
    assert not facts_in(tmp_path, "lost")
    told = told_in(tmp_path)
    assert {number for number, result in told.items() if result.pruned} == set(at_two[1:])


@pytest.mark.slow
def test_without_the_log_of_an_earlier_run_a_batch_still_ends(tmp_path: Path) -> None:
    assert killed_at("reported:9", tmp_path, 0)
    last_log(tmp_path).unlink()
    run(study(), tmp_path, FakeExecutor(misbehave=fail))
    assert len(finished(tmp_path)) == 11


def test_asynchronous_pruning_never_parks_and_judges_by_those_before(tmp_path: Path) -> None:
    spec = study(scheduling="async", n_trials=20, finalists=0)
    executor = run(spec, tmp_path, FakeExecutor(workers=1))
    assert not executor.parked
    rows = finished(tmp_path)
    # One worker: trials come one after the other, so that each is judged by those before it.
    for trial_id, row in rows.items():
        at_two = [score_at(rows[i].architecture, 2) for i in range(trial_id + 1)]
        rank = 1 + sum(score > at_two[-1] for score in at_two)
        stopped = f"is {_ordinal(rank)} of {trial_id + 1}" if trial_id else ""
        if trial_id and rank > max(1, (trial_id + 1) // 2):
            assert row.cause.startswith("rung 2: ")
            assert row.cause.endswith(stopped)
        else:
            assert not row.cause.startswith("rung 2: ")
    assert {str(row.status) for row in rows.values()} == {"complete", "pruned"}


def _ordinal(n: int) -> str:
    return f"{n}{'th' if 10 < n < 14 else {1: 'st', 2: 'nd', 3: 'rd'}.get(n % 10, 'th')}"


@pytest.mark.slow
def test_more_trials_fill_up_the_last_batch_first(tmp_path: Path) -> None:
    run(study(), tmp_path)
    before = results_in(tmp_path)
    run(study(n_trials=17), tmp_path)
    assert results_in(tmp_path)[:11] == before[:11]
    words = [e.event for e in facts_in(tmp_path, "ask", "tell")]
    assert words[22:] == ["ask", "tell"] + ["ask"] * 4 + ["tell"] * 4 + ["ask", "tell"]


def test_replicates_belong_to_the_batch_of_their_proposal(tmp_path: Path) -> None:
    spec = study(replicates=2, batch=2, n_trials=7)
    for workers in (1, 3):
        run(spec, tmp_path / str(workers), FakeExecutor(workers=workers, seed=workers))
    assert results_in(tmp_path / "1") == results_in(tmp_path / "3")
    assert len(finished(tmp_path / "1")) == 7


@pytest.mark.parametrize("n_asked", [8, 9, 11])
def test_a_batch_half_asked_waits_until_the_batches_before_it_are_told(n_asked: int) -> None:
    """A crash may leave a batch half asked, and a torn result of an earlier one runs again."""
    spec = study(n_trials=16)
    assert to_ask(n_asked, 4, spec) == 0
    assert to_ask(n_asked, 8, spec) == 12 - n_asked
    assert to_ask(n_asked, 4, study(n_trials=16, scheduling="async", batch=1, pruning={})) > 0


def test_batches_are_told_in_order_and_asynchronous_proposals_as_they_end() -> None:
    spec, late = study(n_trials=16), set(range(11)) - {1}
    assert to_tell(0, set(), late, spec) == to_tell(4, set(), late, spec) == []
    assert to_tell(1, set(), late | {1}, spec) == list(range(8))
    assert to_tell(11, set(range(8)), set(range(16)), spec) == list(range(8, 16))
    free = study(n_trials=16, scheduling="async", batch=1, pruning={})
    assert to_tell(4, set(), late, free) == [4]
    assert to_tell(1, set(), late, free) == to_tell(4, {4}, late, free) == []


@pytest.mark.slow
def test_a_torn_trial_is_told_before_the_later_batches(
    tmp_path: Path, calm: list[tuple[object, ...]]
) -> None:
    run(study(n_trials=8), tmp_path, FakeExecutor(misbehave=fail))
    for path in (tmp_path / "trials").glob("000000-*"):
        path.write_bytes(path.read_bytes()[:40])
    run(study(), tmp_path, FakeExecutor(misbehave=fail))
    assert results_in(tmp_path) == calm
