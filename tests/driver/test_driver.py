"""The loop: ask, run, write, tell; killed anywhere it loses nothing and runs nothing twice."""

import errno
import os
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import fakes
import pytest
from commands import hashes
from fakes import (
    FakeExecutor,
    Silent,
    asked_in,
    drive,
    facts_in,
    finished,
    last_log,
    record_of,
    told_in,
    value_of,
)
from messages import refused
from records import asked, mlp
from toy_worker import Toy

import nas_evidence.driver.driver as driver_module
import nas_evidence.driver.outcomes as results_module
from nas_evidence.driver.plan import plan_trials
from nas_evidence.proposing.proposer import ProposalResult, Proposer
from nas_evidence.spec.record import LossKind, SliceReport, TrialRecord, TrialStatus
from nas_evidence.spec.study import (
    ArchitectureSpec,
    Assignment,
    ResourceSpec,
    RetrySpec,
    StudySpec,
)
from nas_evidence.storage.best import Standings
from nas_evidence.storage.events import Asked
from nas_evidence.storage.faults import StudyStoppedError
from nas_evidence.storage.log import Log, read_log
from nas_evidence.storage.state import MACHINE_LOSSES
from nas_evidence.storage.tables import read_table
from nas_evidence.workers.executor import Event, Launch, Lost, Verdict, Watcher, checked
from nas_evidence.workers.inline import InlineExecutor
from nas_evidence.workers.pool import Pool, Seat
from nas_evidence.workers.process import Answer

study = partial(
    fakes.study,
    n_trials=10,
    family={"mlp": {"width": {"low": 4, "high": 64, "log": True}}, "linear": {}},
)


def run(
    spec: StudySpec, folder: Path, executor: FakeExecutor | None = None, **options: Any
) -> Silent:
    watcher = Silent()
    drive(spec, folder, executor, watcher, **options)
    return watcher


MAX_CRASHES = int(RetrySpec().crashes)


def facts(folder: Path) -> list[tuple[object, ...]]:
    trials = read_table(folder, "trials")
    columns = ["trial_id", "replicate", "architecture_key", "status", "seed"]
    return list(trials[columns].itertuples(index=False, name=None))


def test_every_trial_is_run_stored_and_told_once(tmp_path: Path) -> None:
    watcher = run(study(), tmp_path, proposer=Proposer)
    assert sorted(r.trial_id for r in watcher.ends) == list(range(10))
    assert sorted(finished(tmp_path)) == list(range(10))
    assert drive(study(), tmp_path, proposer=Proposer)._told.keys() == set(range(10))
    assert not list((tmp_path / "checkpoints").iterdir())
    assert len(list((tmp_path / "models").iterdir())) == 10


def test_a_finished_study_runs_nothing_and_more_trials_only_the_rest(tmp_path: Path) -> None:
    run(study(), tmp_path)
    before = hashes(tmp_path)
    assert run(study(), tmp_path).launches == []
    more = run(study(n_trials=14), tmp_path)
    assert sorted(a.trial_id for a in more.launches) == [10, 11, 12, 13]
    after = hashes(tmp_path)
    assert {name: after[name] for name in before} == before


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_assignments_do_not_depend_on_the_number_of_workers(tmp_path: Path, workers: int) -> None:
    # Start-up points and a random sampler: proposals do not depend on what was told.
    run(study(), tmp_path / "two", proposer=Proposer)
    run(study(), tmp_path / "other", FakeExecutor(workers), proposer=Proposer)
    assert facts(tmp_path / "two") == facts(tmp_path / "other")


def test_replicates_share_the_architecture_and_differ_in_the_seed(tmp_path: Path) -> None:
    watcher = run(study(replicates=3, n_trials=9), tmp_path)
    by_id = {a.trial_id: a for a in watcher.launches}
    for first in (0, 3, 6):
        trio = [by_id[first + r] for r in range(3)]
        assert [a.replicate for a in trio] == [0, 1, 2]
        assert len({a.architecture.key for a in trio}) == 1
        assert len({a.seed for a in trio}) == 3


def test_an_architecture_proposed_again_becomes_its_next_replicate() -> None:
    same = ArchitectureSpec(family="mlp", values={"width": 5})
    other = ArchitectureSpec(family="linear")
    proposals = [same, other, same, same]
    planned = plan_trials(proposals, {}, study())
    assert [p.replicate for p in planned] == [0, 0, 1, 2]


def test_a_lost_attempt_goes_on_from_its_checkpoint_with_the_same_seed(tmp_path: Path) -> None:
    def misbehave(assignment: Assignment) -> str | None:
        return "gone" if assignment.trial_id == 4 and assignment.attempt == 1 else None

    executor = FakeExecutor(misbehave=misbehave)
    watcher = run(study(), tmp_path, executor)
    attempts = [launch for launch in executor.launches if launch.assignment.trial_id == 4]
    first, second = (launch.assignment for launch in attempts)
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.model_copy(update={"attempt": 2}) == second
    assert [loss.trial_id for loss in watcher.losses] == [4]
    assert finished(tmp_path)[4].attempt == 2


def test_a_trial_lost_again_and_again_is_given_up_with_its_cause(tmp_path: Path) -> None:
    executor = FakeExecutor(misbehave=lambda a: "worker died" if a.trial_id == 2 else None)
    run(study(), tmp_path, executor)
    row = read_table(tmp_path, "trials").set_index("trial_id").loc[2]
    assert row["status"] == "failed"
    assert row["cause"] == f"{MAX_CRASHES} attempts lost: worker died"
    told = {number: result.values for number, result in told_in(tmp_path).items()}
    assert [number for number, values in told.items() if values is None] == [2]


@pytest.mark.slow
def test_losses_with_progress_never_end_a_trial(tmp_path: Path) -> None:
    def lose_at(assignment: Assignment, epoch: int) -> str | None:
        return "flaky" if epoch == assignment.attempt + 1 else None

    # Lost in every slice: an attempt gets one checkpoint further than the one before.
    spec = study(n_trials=2, plan={"epochs": 40, "online": {"every": 1}})
    run(spec, tmp_path, FakeExecutor(lose_at=lose_at))
    rows = finished(tmp_path)
    assert [rows[i].status for i in range(2)] == [TrialStatus.COMPLETE] * 2
    assert [rows[i].attempt for i in range(2)] == [40, 40]


def test_out_of_memory_is_tried_once_more_with_twice_the_share(tmp_path: Path) -> None:
    def misbehave(a: Assignment) -> TrialStatus | None:
        too_small = a.trial_id == 1 or (a.trial_id == 2 and a.attempt == 1)
        return TrialStatus.OUT_OF_MEMORY if too_small else None

    tight = FakeExecutor(share=0.25, misbehave=misbehave)
    run(study(n_trials=4), tmp_path, tight)
    rows = finished(tmp_path)
    assert [rows[i].status.value for i in range(4)] == [
        "complete", "out_of_memory", "complete", "complete",
    ]  # fmt: skip
    assert [rows[i].attempt for i in range(4)] == [1, 2, 2, 1]
    shares = {(a.assignment.trial_id, a.assignment.attempt): a.min_share for a in tight.launches}
    assert shares[1, 1] == shares[3, 1] == 0.0
    assert shares[1, 2] == shares[2, 2] == 0.5


@pytest.mark.parametrize("share", [None, 0.0, 1.0])
def test_out_of_memory_is_final_on_a_cpu_and_on_a_whole_gpu(
    tmp_path: Path, share: float | None
) -> None:
    run(
        study(n_trials=2),
        tmp_path,
        FakeExecutor(share=share, misbehave=lambda a: TrialStatus.OUT_OF_MEMORY),
    )
    assert {row.attempt for row in finished(tmp_path).values()} == {1}


def test_a_slice_may_take_five_times_the_longest_and_at_least_the_limit(tmp_path: Path) -> None:
    executor = FakeExecutor(workers=1, slice_seconds=lambda a: 100.0 if a.trial_id == 0 else 1.0)
    spec = study(n_trials=2, resources={"slice_timeout_seconds": 50.0})
    run(spec, tmp_path, executor)
    assert executor.timeouts == [50.0, 500.0, 500.0, 500.0, 500.0, 500.0]


@pytest.mark.slow
@pytest.mark.parametrize("status", [TrialStatus.DIVERGED, TrialStatus.FAILED])
def test_a_failure_is_a_row_and_never_told_as_a_value(tmp_path: Path, status: TrialStatus) -> None:
    executor = FakeExecutor(misbehave=lambda a: status if a.trial_id == 3 else None)
    run(study(), tmp_path, executor, proposer=Proposer)
    assert finished(tmp_path)[3].status is status
    expected = {n: ProposalResult((value_of(a),)) for n, a in enumerate(asked_in(tmp_path))}
    assert told_in(tmp_path) == {**expected, 3: ProposalResult(None)}


def test_an_infeasible_trial_tells_by_how_much_it_is_above_the_limit(tmp_path: Path) -> None:
    limited = {"n_parameters": 200, "memory_bytes": 10}
    spec = study(limits=limited)

    def misbehave(assignment: Assignment) -> TrialStatus | None:
        assert assignment.limits.n_parameters == 200
        wide = int(assignment.architecture.values.get("width", 1)) > 20
        return TrialStatus.INFEASIBLE if wide else None

    run(spec, tmp_path, FakeExecutor(misbehave=misbehave))
    told = told_in(tmp_path)
    assert len(told) == 10
    for number, row in finished(tmp_path).items():
        width = int(row.architecture.values.get("width", 1))
        assert told[number].constraints == {"n_parameters": pytest.approx(width / 20 - 1)}
        assert (told[number].values is None) == (width > 20)
        assert not told[number].pruned


def test_several_objectives_are_told_together(tmp_path: Path) -> None:
    spec = study(minimise=("n_parameters",))
    run(spec, tmp_path, proposer=Proposer)
    assert told_in(tmp_path) == {
        n: ProposalResult((value_of(a), 10.0 * int(a.values.get("width", 1))))
        for n, a in enumerate(asked_in(tmp_path))
    }


@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_stops_the_study_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    run(study(scheduling="batch", batch=3), tmp_path / "calm")
    folder = tmp_path / "full"
    original = driver_module.write_record

    def write(
        place: Path, record: TrialRecord, spec: StudySpec, own: dict[str, type]
    ) -> dict[str, str]:
        if record.trial_id == 4:
            raise OSError(number, os.strerror(number), str(place / "trials"))
        return original(place, record, spec, own)

    monkeypatch.setattr(driver_module, "write_record", write)
    with pytest.raises(StudyStoppedError, match=r"Nothing is lost") as caught:
        run(study(scheduling="batch", batch=3), folder)
    assert os.strerror(number) in str(caught.value)
    assert str(folder / "trials") in str(caught.value)
    assert 4 not in finished(folder)
    assert list((folder / "checkpoints" / "000004").glob("attempt-1/epoch-*.pt"))
    monkeypatch.setattr(driver_module, "write_record", original)
    watcher = run(study(scheduling="batch", batch=3), folder)
    assert {a.trial_id: a.attempt for a in watcher.launches}[4] == 2
    assert facts(folder) == facts(tmp_path / "calm")


def test_a_worker_with_a_full_disk_stops_the_study_and_costs_no_attempt(tmp_path: Path) -> None:
    cause = OSError(errno.ENOSPC, "No space left on device", "epoch-000002.pt")
    executor = FakeExecutor(misbehave=lambda a: cause if a.trial_id == 3 else None)
    with pytest.raises(StudyStoppedError, match=r"at epoch-000002\.pt: No space left"):
        run(study(), tmp_path, executor)
    assert (tmp_path / "checkpoints" / "000003" / "attempt-1").exists()
    run(study(), tmp_path)
    assert len(finished(tmp_path)) == 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "attempts"), [(LossKind.CRASH, MAX_CRASHES), (LossKind.MACHINE, MACHINE_LOSSES)]
)
def test_losses_with_a_machine_are_counted_apart_and_the_next_driver_goes_on_counting(
    tmp_path: Path, kind: LossKind, attempts: int
) -> None:
    def lost(assignment: Assignment) -> LossKind | None:
        if assignment.trial_id != 3:
            return None
        if assignment.attempt == 2 and not stopped:
            stopped.append(True)
            raise KeyboardInterrupt
        return kind

    stopped: list[bool] = []
    with pytest.raises(KeyboardInterrupt):
        run(study(), tmp_path, FakeExecutor(misbehave=lost))
    run(study(), tmp_path, FakeExecutor(misbehave=lost))
    assert [event.kind for event in facts_in(tmp_path, "lost")] == [kind] * attempts
    assert finished(tmp_path)[3].status is TrialStatus.FAILED


def test_other_errors_of_the_system_are_not_taken_for_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*_: object) -> None:
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(driver_module, "write_record", write)
    with pytest.raises(PermissionError):
        run(study(), tmp_path)


class Gossip(FakeExecutor):
    """Hands over words of attempts and trials that nobody waits for."""

    def poll(self, timeout: float) -> list[Event]:
        late: list[Event] = []
        for trial_id, launch in self.running.items():
            other = launch.assignment.model_copy(update={"attempt": 7})
            late += [record_of(other), Lost(trial_id, 7, "late")]
        late.append(Lost(99, 1, "unknown"))
        return late + super().poll(timeout)


@pytest.mark.slow
def test_a_late_word_of_an_earlier_attempt_is_dropped(tmp_path: Path) -> None:
    executor = Gossip()
    watcher = run(study(), tmp_path, executor)
    assert [row.attempt for row in finished(tmp_path).values()] == [1] * 10
    assert len(watcher.ends) == 10
    assert not watcher.losses


@pytest.mark.slow
def test_a_spent_budget_parks_and_a_higher_one_goes_on(tmp_path: Path) -> None:
    run(study(scheduling="batch", batch=5), tmp_path / "calm")
    folder = tmp_path / "tight"
    executor = FakeExecutor(workers=3)
    run(study(scheduling="batch", batch=5, budget={"wall_seconds": 4.0}), folder, executor)
    n_done = len(finished(folder))
    assert n_done < 10
    assert executor.parked
    assert not executor.running
    used = read_log(folder).state.spent.wall_seconds
    assert used >= 4.0
    again = FakeExecutor()
    run(study(scheduling="batch", batch=5, budget={"wall_seconds": 4.0}), folder, again)
    assert not again.launches, "the budget survives a resume"
    more = FakeExecutor(workers=3)
    run(study(scheduling="batch", batch=5, budget={"wall_seconds": used + 8.0}), folder, more)
    assert n_done < len(finished(folder)) < 10
    first = more.launches[: len(executor.parked)]
    # Parked trials go first, from their checkpoints.
    assert [(a.assignment.trial_id, a.assignment.attempt) for a in first] == sorted(
        (trial_id, 2) for trial_id, _ in executor.parked
    )
    assert all(launch.resume_from for launch in first)
    run(study(scheduling="batch", batch=5), folder)
    assert facts(folder) == facts(tmp_path / "calm")
    assert not facts_in(folder, "lost")


def test_the_order_of_asks_and_tells_is_in_the_log(tmp_path: Path) -> None:
    run(study(n_trials=3), tmp_path, FakeExecutor(workers=1))
    words = [e.event for e in facts_in(tmp_path)]
    assert words == ["begin"] + ["ask", "launch", "end", "tell"] * 3 + ["stop"]


def test_a_torn_line_of_the_log_is_closed_and_skipped(tmp_path: Path) -> None:
    with closing(Log(tmp_path)) as log:
        log.write(Asked(number=0, architecture=mlp()))
        log.write(Asked(number=1, architecture=mlp()))
    path = last_log(tmp_path)
    path.write_bytes(path.read_bytes()[:-5])
    with closing(Log(tmp_path)) as log:
        log.write(Asked(number=2, architecture=mlp()))
    assert [e.number for e in facts_in(tmp_path, "ask")] == [0, 2]
    assert read_log(tmp_path).problems == []


def test_beyond_the_limit_only_the_best_weights_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results_module, "KEEP_ALL_MODELS", 8)
    monkeypatch.setattr(results_module, "KEEP_BEST_MODELS", 3)
    run(study(), tmp_path)
    done = finished(tmp_path).values()
    best = Standings(study(), done).first(3)
    kept = {int(path.stem) for path in (tmp_path / "models").iterdir()}
    assert kept == {standing.trial_id for standing in best}
    monkeypatch.setattr(results_module, "KEEP_BEST_MODELS", 1)
    driver = driver_module.Driver(study(), tmp_path, FakeExecutor(), Watcher())
    assert len([*(tmp_path / "models").iterdir()]) == 3  # it does not hold the study yet
    driver.run()
    assert len([*(tmp_path / "models").iterdir()]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("costs", [(), ("n_parameters",)])
def test_the_weights_of_the_pareto_front_are_kept_too_in_any_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, costs: tuple[str, ...]
) -> None:
    monkeypatch.setattr(results_module, "KEEP_ALL_MODELS", 8)
    monkeypatch.setattr(results_module, "KEEP_BEST_MODELS", 2)
    spec = study(n_trials=30, minimise=costs, finalists=0)
    kept = set()
    for seed in range(3):
        folder = tmp_path / str(seed)
        with pytest.raises(KeyboardInterrupt):
            run(spec, folder, Interrupted(workers=4, seed=seed, after=15))
        run(spec, folder, FakeExecutor(workers=3, seed=seed))
        done = finished(folder).values()
        best = Standings(spec, done).first(2)
        # One larger network is better up to a width of 20 and worse from there.
        front = {
            Standings(spec, done).of(t.architecture_key).trial_id
            for t in done
            if not any(
                o.values["kfac_ggn"] >= t.values["kfac_ggn"]
                and o.costs["n_parameters"] < t.costs["n_parameters"]
                for o in done
            )
            and not any(
                o.values["kfac_ggn"] > t.values["kfac_ggn"]
                and o.costs["n_parameters"] <= t.costs["n_parameters"]
                for o in done
            )
        }
        kept = {int(path.stem) for path in (folder / "models").iterdir()}
        assert kept == {t.trial_id for t in best} | (front if costs else set())
    assert (len(kept) > 3) == bool(costs)


class Interrupted(FakeExecutor):
    """Someone presses Ctrl-C after so many records."""

    def __init__(self, *args: object, after: int, **facts: object) -> None:
        super().__init__(*args, **facts)  # type: ignore[arg-type]
        self.left = after

    def poll(self, timeout: float) -> list[Event]:
        events = super().poll(timeout)
        self.left -= sum(isinstance(event, TrialRecord) for event in events)
        if self.left < 0:
            raise KeyboardInterrupt
        return events


class Mourner(Silent):
    """Ends the driver at the first loss."""

    def lost(self, loss: Lost) -> None:
        super().lost(loss)
        raise KeyboardInterrupt


def test_losses_count_on_in_the_next_driver(tmp_path: Path) -> None:
    def executor() -> FakeExecutor:
        return FakeExecutor(misbehave=lambda a: "worker died" if a.trial_id == 2 else None)

    for _ in range(MAX_CRASHES - 1):
        with pytest.raises(KeyboardInterrupt):
            drive(study(), tmp_path, executor(), Mourner())
    drive(study(), tmp_path, executor(), Mourner())
    row = finished(tmp_path)[2]
    assert row.status is TrialStatus.FAILED
    assert row.cause == f"{MAX_CRASHES} attempts lost: worker died"
    assert row.attempt == MAX_CRASHES


def test_a_larger_share_of_a_gpu_is_asked_for_in_the_next_driver(tmp_path: Path) -> None:
    def executor() -> FakeExecutor:
        return FakeExecutor(
            workers=1,
            share=0.25,
            misbehave=lambda a: TrialStatus.OUT_OF_MEMORY if a.trial_id == 1 else None,
        )

    with pytest.raises(KeyboardInterrupt):
        drive(study(n_trials=3), tmp_path, executor(), Mourner())
    again = executor()
    drive(study(n_trials=3), tmp_path, again, Mourner())
    assert again.launches[0].assignment.trial_id == 1
    assert [launch.min_share for launch in again.launches] == [0.5, 0.0]
    assert finished(tmp_path)[1].status is TrialStatus.OUT_OF_MEMORY
    assert finished(tmp_path)[1].attempt == 2


def test_what_a_kill_kept_from_the_log_is_written_by_the_next_driver(tmp_path: Path) -> None:
    run(study(n_trials=3), tmp_path, FakeExecutor(workers=1))
    path = last_log(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    words = [e.event for e in facts_in(tmp_path)]
    last = max(i for i, word in enumerate(words) if word == "tell")
    path.write_bytes(b"".join(lines[:last]) + lines[last][:9])
    run(study(n_trials=3), tmp_path)
    events = facts_in(tmp_path, "ask", "end", "tell")
    assert [e.event for e in events] == ["ask", "end", "tell"] * 3
    assert (events[-1].number, events[-1].recovered) == (2, True)


def test_files_that_a_killed_writer_left_half_written_go_away(tmp_path: Path) -> None:
    run(study(n_trials=3), tmp_path)
    before = hashes(tmp_path)
    half = tmp_path / "terms" / f".000003-a1.parquet.{'0123' * 8}"
    half.write_bytes(b"PAR1")
    run(study(n_trials=4), tmp_path)
    assert not half.exists()
    assert {name: hashes(tmp_path)[name] for name in before} == before


def test_a_killed_attempts_weights_do_not_outlive_the_failure_of_the_next(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "1.safetensors").write_bytes(b"of an attempt that was killed")
    failing = FakeExecutor(misbehave=lambda a: "worker died" if a.trial_id == 1 else None)
    run(study(n_trials=3), tmp_path, failing)
    assert sorted(p.stem for p in (tmp_path / "models").iterdir()) == ["0", "2"]


def test_the_watcher_hears_of_parked_trials(tmp_path: Path) -> None:
    executor = FakeExecutor(workers=3)
    watcher = run(study(budget={"wall_seconds": 4.0}), tmp_path, executor)
    assert watcher.parks == [trial_id for trial_id, _ in executor.parked] != []


@pytest.mark.parametrize("seconds", ["often", "nan", "-1", "2s"])
def test_a_wrong_time_between_checkpoints_is_said_before_a_trial_fails_of_it(
    seconds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAS_EVIDENCE_SAVE_EVERY", seconds)
    with refused("save-every", "NAS_EVIDENCE_SAVE_EVERY", seconds.lstrip("-")):
        run(study(n_trials=1), tmp_path)
    monkeypatch.setenv("NAS_EVIDENCE_SAVE_EVERY", " ")  # as if unset
    assert run(study(n_trials=1), tmp_path).ends


# --- an answer that is not of the trial under way is a lost attempt: nothing waits, nothing lies


OTHER = ArchitectureSpec(family="mlp", values={"width": 63})
#: What makes an answer one of another trial, and what the loss must say.
WRONG: dict[str, Callable[[Any], Any]] = {
    "trial_id": lambda event: event.model_copy(update={"trial_id": 77}),
    "attempt": lambda event: event.model_copy(update={"attempt": 9}),
    "architecture": lambda record: record.model_copy(update={"architecture": OTHER}),
    "seed": lambda record: record.model_copy(update={"seed": record.seed + 1}),
    "replicate": lambda record: record.model_copy(update={"replicate": 5}),
    "running": lambda record: record.model_copy(update={"status": TrialStatus.RUNNING}),
    "NoneType": lambda record: None,
    "str": lambda record: "done",
}


class Confused(Toy):
    """Its trial 2 ends, once, in an answer of another trial."""

    spoil: Callable[[Any], Any]
    spoiled = False

    def finish(self, verdict: Verdict | None) -> TrialRecord:
        record = super().finish(verdict)
        if record.trial_id == 2 and not type(self).spoiled:
            type(self).spoiled = True
            return cast("TrialRecord", type(self).spoil(record))
        return record

    def close(self) -> None:
        pass


class Impatient(InlineExecutor):
    """Ends a test that would wait for ever."""

    empty = 0

    def poll(self, timeout: float) -> list[Event]:
        events = super().poll(timeout)
        self.empty = 0 if events else self.empty + 1
        assert self.empty < 100, "the driver waits for a trial that has ended"
        return events


@pytest.mark.parametrize("what", WRONG)
def test_an_answer_of_another_trial_is_a_lost_attempt_and_the_study_ends_the_same(
    tmp_path: Path, what: str
) -> None:
    spec, watcher = fakes.study(n_trials=4), Silent()
    drive(spec, tmp_path / "calm", FakeExecutor(workers=1))
    make = type("Once", (Confused,), {"spoil": staticmethod(WRONG[what]), "spoiled": False})
    executor = Impatient(None, ResourceSpec(), make_worker=make)
    drive(spec, tmp_path / "s", executor, watcher)
    [loss] = watcher.losses
    assert (loss.trial_id, loss.attempt) == (2, 1)
    assert what in loss.cause
    calm, found = finished(tmp_path / "calm"), finished(tmp_path / "s")
    assert {i: row.architecture_key for i, row in found.items()} == {
        i: row.architecture_key for i, row in calm.items()
    }
    assert {i: row.attempt for i, row in found.items()} == {0: 1, 1: 1, 2: 2, 3: 1}


def test_a_worker_that_always_answers_for_another_trial_fails_its_trial_and_no_other(
    tmp_path: Path,
) -> None:
    class Never(FakeExecutor):
        """An executor of others, which checks nothing itself."""

        def poll(self, timeout: float) -> list[Event]:
            events = super().poll(timeout)
            return [
                WRONG["seed"](e) if isinstance(e, TrialRecord) and e.trial_id == 1 else e
                for e in events
            ]

    drive(fakes.study(n_trials=3), tmp_path, Never(workers=1))
    rows = finished(tmp_path)
    assert [rows[i].status for i in range(3)] == ["complete", "failed", "complete"]


def test_a_pool_replaces_a_worker_that_answers_for_another_trial() -> None:
    assignment = asked(trial_id=3)
    report = SliceReport(trial_id=3, attempt=assignment.attempt, epoch=1, epochs=4, done=False)
    lost: list[str] = []
    pool = SimpleNamespace(
        _over=set(),
        _note=lambda worker, answer, is_over: None,
        lose=lambda worker, why, kind: lost.append(why),
    )
    seat = Seat(None, 0.0, launch=Launch(assignment, Path("x"), None), started=True)

    def collected(event: object) -> object:
        return Pool._collect(cast("Pool", pool), seat, Answer(event, 0.0, 0, ""))

    assert collected(report) == report
    assert not lost
    for wrong in (WRONG["trial_id"](report), WRONG["attempt"](report), None):
        assert collected(wrong) is None
    assert len(lost) == 3
    seat.launch, seat.started = None, False
    assert collected(None) is None  # an answer to `park`
    assert len(lost) == 3


def test_a_loss_of_the_trial_under_way_stays_as_it_is() -> None:
    assignment = asked(trial_id=3)
    loss = Lost(3, assignment.attempt, "no answer")
    assert checked(loss, assignment) is loss
