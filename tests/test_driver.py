"""The loop: ask, run, write, tell; killed anywhere it loses nothing and runs nothing twice."""

import hashlib
from pathlib import Path

import pytest
from fakes import FakeExecutor, Silent, record_of, value_of

import nas_evidence.service.driver as driver_module
from nas_evidence.record import TrialStatus
from nas_evidence.service.driver import MAX_LOSSES, Driver, plan_trials
from nas_evidence.service.executors import Lost
from nas_evidence.service.proposer import Proposal
from nas_evidence.spec import ArchitectureSpec, Assignment, DatasetSpec, IntRange, StudySpec
from nas_evidence.store import finished, read_table


def study(**changes: object) -> StudySpec:
    given: dict[str, object] = {
        "name": "s",
        "n_trials": 10,
        "dataset": DatasetSpec(name="digits"),
        "family": {"mlp": {"width": IntRange(low=4, high=64, log=True)}, "linear": {}},
        "sampler": {"name": "random", "startup_per_family": 3},
        "plan": {"epochs": 6, "online": {"every": 2}},
    }
    return StudySpec.model_validate({**given, **changes})


def run(spec: StudySpec, folder: Path, executor: FakeExecutor | None = None) -> Silent:
    watcher = Silent()
    Driver(spec, folder, executor or FakeExecutor(), watcher).run()
    return watcher


def hashes(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*.parquet"))
    }


def facts(folder: Path) -> list[tuple[object, ...]]:
    trials = read_table(folder, "trials")
    columns = ["trial_id", "replicate", "architecture_key", "status", "seed"]
    return list(trials[columns].itertuples(index=False, name=None))


def test_every_trial_is_run_stored_and_told_once(tmp_path: Path) -> None:
    watcher = run(study(), tmp_path)
    assert sorted(r.trial_id for r in watcher.ends) == list(range(10))
    assert sorted(finished(tmp_path)) == list(range(10))
    assert Driver(study(), tmp_path, FakeExecutor(), Silent())._proposer.told() == set(range(10))
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


@pytest.mark.parametrize("workers", [1, 3])
def test_assignments_do_not_depend_on_the_number_of_workers(tmp_path: Path, workers: int) -> None:
    # Start-up points and a random sampler: proposals do not depend on what was told.
    run(study(), tmp_path / "two")
    run(study(), tmp_path / "other", FakeExecutor(workers))
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
    proposals = [Proposal(i, a) for i, a in enumerate([same, other, same, same])]
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
    executor = FakeExecutor(misbehave=lambda a: "no memory" if a.trial_id == 2 else None)
    run(study(), tmp_path, executor)
    row = read_table(tmp_path, "trials").set_index("trial_id").loc[2]
    assert row["status"] == "failed"
    assert row["cause"] == f"{MAX_LOSSES} attempts lost: no memory"


@pytest.mark.parametrize("status", [TrialStatus.DIVERGED, TrialStatus.FAILED])
def test_a_failure_is_a_row_and_never_told_as_a_value(tmp_path: Path, status: TrialStatus) -> None:
    executor = FakeExecutor(misbehave=lambda a: status if a.trial_id == 3 else None)
    run(study(), tmp_path, executor)
    assert finished(tmp_path)[3].status is status
    proposer = Driver(study(), tmp_path, FakeExecutor(), Silent())._proposer
    rows = [proposer._study.trials[number] for number in proposer._numbers]
    told = [(row.state.name, row.values and row.value) for row in rows]
    expected = [
        ("FAIL", None) if p.number == 3 else ("COMPLETE", value_of(p.architecture))
        for p in proposer.proposals()
    ]
    assert told == expected


def test_a_late_word_of_an_earlier_attempt_is_dropped(tmp_path: Path) -> None:
    driver = Driver(study(), tmp_path, FakeExecutor(), Silent())
    driver._launch_all()
    running = driver._running[0]
    late = running.model_copy(update={"attempt": 7})
    driver._handle(record_of(late))
    driver._handle(Lost(0, 7, "late"))
    driver._handle(record_of(running.model_copy(update={"trial_id": 99})))
    assert finished(tmp_path) == {}
    assert driver._running[0] == running


class Killed(BaseException):
    """Stands for SIGKILL: nothing after it runs."""


@pytest.mark.slow
@pytest.mark.parametrize("arrow", ["asked", "assigned", "checkpoint", "model", "written", "told"])
@pytest.mark.parametrize("at", [1, 4])
def test_killed_at_any_arrow_the_study_ends_as_if_nothing_had_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrow: str, at: int
) -> None:
    spec = study(n_trials=6)
    run(spec, tmp_path / "calm", FakeExecutor(workers=1))
    victim = tmp_path / "victim"
    executor = FakeExecutor(workers=1)
    driver = Driver(spec, victim, executor, Silent())
    count = 0

    def kill_after(place: object, name: str) -> None:
        original = getattr(place, name)

        def wrapped(*args: object, **kwargs: object) -> object:
            nonlocal count
            result = original(*args, **kwargs)
            count += 1
            if count == at:
                raise Killed
            return result

        monkeypatch.setattr(place, name, wrapped)

    places = {
        "asked": (driver._proposer, "ask"),
        "assigned": (executor, "launch"),
        "checkpoint": (executor, "advance"),
        "model": (executor, "finish"),
        "written": (driver_module, "write_record"),
        "told": (driver._proposer, "tell"),
    }
    kill_after(*places[arrow])
    with pytest.raises(Killed):
        driver.run()
    monkeypatch.undo()
    stored = hashes(victim)
    done = set(finished(victim))
    watcher = run(spec, victim, FakeExecutor(workers=1))
    assert not done & {a.trial_id for a in watcher.launches}, "a finished trial ran again"
    assert {name: hashes(victim)[name] for name in stored} == stored, "a finished trial changed"
    assert facts(victim) == facts(tmp_path / "calm")


def test_beyond_the_limit_only_the_best_weights_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "KEEP_ALL_MODELS", 8)
    monkeypatch.setattr(driver_module, "KEEP_BEST_MODELS", 3)
    run(study(), tmp_path)
    done = finished(tmp_path).values()
    best = sorted(done, key=lambda t: t.values["kfac_ggn"], reverse=True)[:3]
    kept = {int(path.stem) for path in (tmp_path / "models").iterdir()}
    assert kept == {t.trial_id for t in best}
