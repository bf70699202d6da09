"""A torn or flipped table file is noticed, and its trial runs again with the same result."""

import random
from pathlib import Path

import pandas as pd
import pytest
from commands import found
from fakes import FakeExecutor, compacted, finished, last_log
from faulty import flipped, run, study
from messages import refused

import nas_evidence
from nas_evidence.cli.validate import Check
from nas_evidence.spec.record import TrialStatus
from nas_evidence.spec.study import Assignment
from nas_evidence.storage.redo import ask_to_retry
from nas_evidence.storage.study_folder import open_study
from nas_evidence.storage.tables import COMPACT_AT, read_table, read_tables

pytestmark = pytest.mark.slow


SPEC = study(n_trials=4)


def test_a_torn_part_costs_only_its_own_trials_another_run(tmp_path: Path) -> None:
    run(SPEC, tmp_path)
    calm = found(tmp_path, without=["attempt"])
    compacted(tmp_path)
    (part,) = (tmp_path / "evidence").glob("part-*")
    part.write_bytes(part.read_bytes()[:-20])
    run(SPEC, tmp_path)
    assert read_table(tmp_path, "trials")["attempt"].tolist() == [2] * 4
    pd.testing.assert_frame_equal(
        found(tmp_path, without=["attempt"])["evidence"], calm["evidence"]
    )
    assert COMPACT_AT > 4


@pytest.mark.long
def test_no_flipped_bit_of_a_table_is_read_as_another_value(tmp_path: Path) -> None:
    run(study(n_trials=1), tmp_path)
    right = found(tmp_path)
    chance = random.Random(0)
    for table in ("trials", "evidence"):
        path = tmp_path / table / "000000-a1.parquet"
        sound = path.read_bytes()
        for _ in range(60):
            flipped(path, chance.randrange(len(sound)), chance.randrange(8))
            tables, unreadable = read_tables(tmp_path)
            if not unreadable:
                got = tables[table][right[table].columns]
                pd.testing.assert_frame_equal(got, right[table], check_exact=True)
            path.write_bytes(sound)


def test_failed_trials_run_again_on_request_and_their_history_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def unlucky(assignment: Assignment) -> str | None:
        return "bad machine" if assignment.trial_id in (1, 2) else None

    open_study(tmp_path, SPEC)
    run(SPEC, tmp_path, FakeExecutor(misbehave=unlucky))
    before = finished(tmp_path)
    assert [before[i].status.value for i in (1, 2)] == ["failed", "failed"]
    assert ask_to_retry(tmp_path, [2]) == [2]
    executor = FakeExecutor()
    run(SPEC, tmp_path, executor)
    assert [launch.assignment.trial_id for launch in executor.launches] == [2]
    now = finished(tmp_path)
    assert now[2].status is TrialStatus.COMPLETE
    assert now[2].attempt > before[2].attempt
    assert (tmp_path / "trials" / f"000002-a{before[2].attempt}.parquet").exists()
    with refused("retry-not-failed", 0):
        ask_to_retry(tmp_path, [0])
    last = last_log(tmp_path).read_bytes()
    with refused("conditions-lost"):  # after the trials: those here ran without data
        nas_evidence.resume(tmp_path, retry_failed=True, progress=Check())
    assert "retry: 1 failed trial\n" in (said := capsys.readouterr().out)
    assert "1 of 4 trials" in said
    assert last_log(tmp_path).read_bytes() == last
    assert ask_to_retry(tmp_path, None) == [1]


def test_a_retried_trial_has_all_its_attempts_again(tmp_path: Path) -> None:
    unlucky = FakeExecutor(misbehave=lambda a: "bad machine" if a.trial_id == 1 else None)
    run(SPEC, tmp_path, unlucky)
    ask_to_retry(tmp_path, None)
    again = FakeExecutor(misbehave=lambda a: "bad" if a.attempt < 6 else None)
    run(SPEC, tmp_path, again)
    assert finished(tmp_path)[1].status is TrialStatus.COMPLETE


def test_preemptions_of_a_trial_that_makes_progress_never_end_it(tmp_path: Path) -> None:
    spec = study(n_trials=1, plan={"epochs": 30, "online": {"every": 1}})

    def preempted(assignment: Assignment, epoch: int) -> str | None:
        return "preempted" if epoch == assignment.attempt + 1 else None

    run(spec, tmp_path, FakeExecutor(lose_at=preempted))
    assert finished(tmp_path)[0].status is TrialStatus.COMPLETE
    assert finished(tmp_path)[0].attempt > 20


def test_a_trial_of_an_asynchronous_search_that_runs_again_is_judged_as_before(
    tmp_path: Path,
) -> None:
    pruning = {"rule": "halving", "first_epoch": 2, "reduction": 2, "startup_trials": 1}
    spec = study(n_trials=16, scheduling="async", pruning=pruning)
    run(spec, tmp_path)
    before = finished(tmp_path)
    assert len({row.status for row in before.values()}) == 2  # some pruned, some complete
    for path in tmp_path.glob("trials/*.parquet"):
        path.unlink()
    run(spec, tmp_path)
    now = finished(tmp_path)
    assert {i: row.status for i, row in now.items()} == {i: r.status for i, r in before.items()}
