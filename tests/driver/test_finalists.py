"""Claims about the finalists' networks of all rows, where trials train their folds alone."""

import math
from collections.abc import Container
from functools import partial
from pathlib import Path
from typing import Any

import fakes
import numpy as np
import pytest
from fakes import FakeExecutor, Noisy, drive, finished

import nas_evidence
from nas_evidence.api import progress
from nas_evidence.driver.deadline import Deadline
from nas_evidence.driver.race import is_finished
from nas_evidence.spec.record import WHOLE_IDS, TrialRecord, TrialStatus, n_searched, ranks
from nas_evidence.spec.study import Assignment, StudySpec
from nas_evidence.spec.toml import dump_study
from nas_evidence.storage.best import Standings
from nas_evidence.storage.log import read_log
from nas_evidence.storage.tables import read_study_tables
from nas_evidence.storage.told_order import best_trial
from nas_evidence.storage.trial_row import TrialRow
from nas_evidence.workers.executor import Verdict


def run(spec: StudySpec, folder: Path, executor: FakeExecutor) -> dict[int, TrialRow]:
    drive(spec, folder, executor)
    return finished(folder)


of_folds = partial(
    fakes.study, n_trials=8, finalists=3, race={"trials": 6}, objective="conditional_evidence",
    estimators=["conditional_evidence", "diag_ef"],
    plan={"epochs": 6, "folds": 2, "whole": False, "online": {"every": 2}},
)  # fmt: skip


class OfFolds(Noisy):
    """Trials that train their folds alone, and networks of all rows of which some fail."""

    def __init__(
        self, noise: float, failing: Container[int] = (), held_out: float = 0.5, **options: Any
    ) -> None:
        super().__init__(noise, **options)
        self.failing, self.held_out = failing, held_out

    def finish(self, trial_id: int, verdict: Verdict | None = None) -> None:
        super().finish(trial_id, verdict)
        record = self.events.pop()
        assert isinstance(record, TrialRecord)
        if ranks(trial_id):
            [last] = record.evaluations
            named = {"estimator": "conditional_evidence", "per_datum": -self.held_out}
            loss = {"estimator": "train_nll_per_datum", "value": -0.3, "standard_error": 0.1}
            both = (last.estimate.model_copy(update=one) for one in (named, loss))
            found = tuple(last.model_copy(update={"estimate": one}) for one in both)
            update = {"evaluations": found, "of": "folds"}
        else:
            diverged = {"status": TrialStatus.DIVERGED} if trial_id in self.failing else {}
            update = {"evaluations": (), **diverged}
        self.events.append(record.model_copy(update=update))


def run_of_folds(folder: Path, executor: FakeExecutor, **changes: Any) -> dict[int, TrialRow]:
    folder.mkdir(exist_ok=True)
    (folder / "study.toml").write_text(dump_study(of_folds(**changes)))
    return run(of_folds(**changes), folder, executor)


@pytest.mark.slow
def test_the_finalists_are_trained_on_all_rows_after_the_race_by_the_seeds_of_their_trials(
    tmp_path: Path,
) -> None:
    executor = OfFolds(3.0, workers=2)
    done = run_of_folds(tmp_path, executor)
    best = Standings(of_folds(), done.values()).first(3)
    assert sorted(i for i in done if not ranks(i)) == sorted(WHOLE_IDS + o.trial_id for o in best)
    launched = {one.assignment.trial_id: one.assignment for one in executor.launches}
    assert [ranks(i) for i in launched] == [True] * (len(done) - 3) + [False] * 3
    for one in best:
        given, whole = launched[one.trial_id], launched[WHOLE_IDS + one.trial_id]
        assert (whole.seed, whole.replicate) == (given.seed, given.replicate)
        assert (given.plan.whole, whole.plan.whole) == (False, True)
        assert whole.estimators == ("diag_ef",)
    assert n_searched(done) == 8
    assert is_finished(of_folds(), read_log(tmp_path).state.race, done)
    tables = read_study_tables(tmp_path)
    assert {*tables.trials["of"]} == {"folds"}
    assert {*tables.whole["trials"]["of"], *tables.whole["trials"]["stage"]} == {"whole"}
    assert best_trial(tables) == best[0].trial_id


@pytest.mark.slow
@pytest.mark.parametrize("finalists", [0, None])
def test_without_a_race_the_five_best_are_trained_on_all_rows(
    tmp_path: Path, finalists: int | None
) -> None:
    done = run_of_folds(tmp_path, OfFolds(0.0, workers=3), finalists=finalists)
    best = sorted(
        (i for i in done if ranks(i)), key=lambda i: -done[i].values["conditional_evidence"]
    )
    keys = [*dict.fromkeys(done[i].architecture_key for i in best)][:5]
    assert {done[i].architecture_key for i in done if not ranks(i)} == {*keys}


@pytest.mark.slow
def test_a_network_of_all_rows_that_fails_gives_way_to_its_next_seed_and_then_to_the_next(
    tmp_path: Path,
) -> None:
    first = run_of_folds(tmp_path / "a", OfFolds(3.0))
    order = Standings(of_folds(), first.values()).first()
    best, *_ = order
    seeds = sorted(best.values, key=lambda i: -best.values[i])
    one = run_of_folds(tmp_path / "b", OfFolds(3.0, {WHOLE_IDS + seeds[0]}))
    tables = read_study_tables(tmp_path / "b")
    assert tables.standings.first()[0].key == best.key
    assert best_trial(tables) == seeds[1]
    assert one[WHOLE_IDS + seeds[1]].status is TrialStatus.COMPLETE
    every = {WHOLE_IDS + i for i in seeds}
    run_of_folds(tmp_path / "c", OfFolds(3.0, every))
    tables = read_study_tables(tmp_path / "c")
    assert [one.key for one in tables.standings.first()] == [
        *[one.key for one in order[1:]], best.key
    ]  # fmt: skip
    assert best_trial(tables) == order[1].trial_id
    complete = [row for row in tables.whole_rows if row.status is TrialStatus.COMPLETE]
    assert len(complete) == 3
    assert len(tables.whole_rows) == 3 + len(seeds)


@pytest.mark.slow
def test_finalists_killed_in_training_on_all_rows_go_on_and_give_the_same(tmp_path: Path) -> None:
    whole = run_of_folds(tmp_path / "a", OfFolds(3.0, workers=1))

    class Killed(Exception):
        pass

    def kill(assignment: Assignment, epoch: int) -> None:
        if not ranks(assignment.trial_id) and epoch == 4:
            raise Killed

    with pytest.raises(Killed):
        run_of_folds(tmp_path / "b", OfFolds(3.0, workers=1, lose_at=kill))
    assert not is_finished(of_folds(), {}, finished(tmp_path / "b"))
    again = OfFolds(3.0, workers=1)
    assert {i: row.values for i, row in run_of_folds(tmp_path / "b", again).items()} == {
        i: row.values for i, row in whole.items()
    }
    assert again.launches[0].resume_from is not None  # the leader, from its checkpoint
    assert all(not ranks(launch.assignment.trial_id) for launch in again.launches)


@pytest.mark.slow
def test_after_an_interrupt_the_leader_alone_is_trained_and_the_search_goes_on_as_it_would_have(
    tmp_path: Path,
) -> None:
    undisturbed = run_of_folds(tmp_path / "a", OfFolds(3.0, workers=1))

    def stop(assignment: Assignment, epoch: int) -> None:
        if assignment.trial_id == 5:
            raise KeyboardInterrupt

    folder = tmp_path / "b"
    with pytest.raises(KeyboardInterrupt):
        run_of_folds(folder, OfFolds(3.0, workers=1, lose_at=stop))
    [leader] = Standings(of_folds(), finished(folder).values()).first(1)
    executor = OfFolds(3.0, workers=1)
    drive(of_folds(), folder, executor, leader_alone=True)
    assert [one.assignment.trial_id for one in executor.launches] == [WHOLE_IDS + leader.trial_id]
    assert len(finished(folder)) == 6
    done = run_of_folds(folder, OfFolds(3.0, workers=1))
    assert {i: row.values for i, row in undisturbed.items() if ranks(i)} == {
        i: row.values for i, row in done.items() if ranks(i)
    }
    assert undisturbed.keys() <= done.keys() <= {*undisturbed, WHOLE_IDS + leader.trial_id}


def test_before_a_limit_of_time_the_training_of_the_leader_is_kept_room_for() -> None:
    left = 100.0
    deadline = Deadline(lambda: left)
    deadline.begin()
    deadline.launched(0, 0.0)
    deadline.ended(0, 10.0)  # a trial takes 10 s
    left = 25.0
    assert deadline.fits("race", races=True, follows=True)
    left = 15.0
    assert not deadline.fits("race", races=True, follows=True)
    assert deadline.fits("whole", races=True, follows=True)
    assert (deadline.full, deadline.ended_whole) == (True, False)
    left = 5.0
    assert not deadline.fits("whole", races=True, follows=True)
    assert deadline.ended_whole


class Interrupts(nas_evidence.Watcher):
    """Interrupts a search when its first trial has ended."""

    def ended(self, record: TrialRecord) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("again", [False, True])
def test_an_interrupted_search_trains_its_leader_and_a_second_interrupt_leaves_it_to_predict(
    again: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write = progress.write

    def interrupted(line: str) -> None:
        write(line)
        if again and "is trained on all rows" in line:
            raise KeyboardInterrupt

    monkeypatch.setattr(progress, "write", interrupted)
    x = np.random.default_rng(0).normal(size=(40, 2))
    with pytest.raises(KeyboardInterrupt, match="1 of 3 trials"):
        nas_evidence.search(
            x, x[:, 0] > 0, n_trials=3, out=tmp_path / "s", executor="inline",
            callbacks=[Interrupts()], settings={"plan.epochs": 4},
        )  # fmt: skip
    assert (
        "of trial 0, is trained on all rows first: less than a minute" in capsys.readouterr().out
    )
    network = tmp_path / f"s/models/{WHOLE_IDS}.safetensors"
    assert network.is_file() is not again
    study = nas_evidence.load(tmp_path / "s")
    assert ("training trial 0 on all rows" in study.forecast(["predict"])) is again
    assert len(study.predict(x).labels) == 40


@pytest.mark.parametrize(("held_out", "largest"), [(0.35, 0.3 + 0.1 * math.sqrt(2)), (0.9, 0.9)])
def test_the_loss_of_a_finalist_is_bounded_by_its_two_folds_and_the_rows_held_out_of_them(
    held_out: float, largest: float, tmp_path: Path
) -> None:
    """Mean and standard deviation of their training losses, or the held-out loss if larger."""
    executor = OfFolds(0.0, held_out=held_out, workers=1)
    run_of_folds(tmp_path, executor, n_trials=1, finalists=0)
    *_, last = executor.launches
    assert last.assignment.trial_id == WHOLE_IDS
    assert last.assignment.largest_loss == pytest.approx(largest)
