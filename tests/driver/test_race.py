"""Claims about the race of the finalists: who runs again, when it ends, and that it resumes."""

from collections.abc import Container
from functools import partial
from pathlib import Path
from typing import Any

import fakes
import pytest
from fakes import FakeExecutor, Noisy, drive, facts_in, finished, record_of

from nas_evidence.driver.plan import RACE_REPLICATES, plan_race
from nas_evidence.driver.race import (
    budget_of,
    chosen_so_far,
    finalists,
    is_finished,
    next_round,
    race_left,
)
from nas_evidence.maths.finalists import MIN_REPEATS
from nas_evidence.spec.record import (
    RACE_IDS,
    WHOLE_IDS,
    TrialRecord,
    TrialStatus,
    is_race,
    n_searched,
    ranks,
)
from nas_evidence.spec.study import ArchitectureSpec, Assignment, StudySpec
from nas_evidence.spec.toml import dump_study
from nas_evidence.storage.best import Standings
from nas_evidence.storage.log import read_log
from nas_evidence.storage.tables import read_study_tables, read_table
from nas_evidence.storage.told_order import best_trial
from nas_evidence.storage.trial_row import TrialRow
from nas_evidence.workers.executor import Verdict

study = partial(fakes.study, n_trials=8, finalists=3)


def run(spec: StudySpec, folder: Path, executor: FakeExecutor) -> dict[int, TrialRow]:
    drive(spec, folder, executor)
    return finished(folder)


def row(trial_id: int, width: int, value: float) -> TrialRow:
    return TrialRow(
        trial_id=trial_id, attempt=1, replicate=0, status=TrialStatus.COMPLETE,
        architecture=ArchitectureSpec(family="mlp", values={"width": width}),
        values={"kfac_ggn": value}, costs={},
    )  # fmt: skip


@pytest.mark.slow
def test_the_race_comes_on_top_as_replicates_of_the_best_and_is_marked(tmp_path: Path) -> None:
    done = run(study(), tmp_path, Noisy(3.0, workers=2))
    assert n_searched(done) == 8
    raced = [one for i, one in done.items() if is_race(i)]
    assert 6 <= len(raced) <= budget_of(study()) == 10
    best = {one.architecture_key for one in finalists(study(), done)}
    assert {one.architecture_key for one in raced} == best
    for key in best:
        values = [one for one in done.values() if one.architecture_key == key]
        assert len(values) >= MIN_REPEATS
        assert len({one.replicate for one in values}) == len(values)
    trials = read_table(tmp_path, "trials").set_index("trial_id")
    assert set(trials.loc[[i for i in done if is_race(i)], "stage"]) == {"race"}
    assert set(trials.loc[range(8), "stage"]) == {"search"}
    assert race_left(study(), read_log(tmp_path).state.race, done) == 0


@pytest.mark.slow
@pytest.mark.parametrize("scheduling", ["async", "batch"])
def test_any_number_of_workers_gives_the_same_race(tmp_path: Path, scheduling: str) -> None:
    given = study(scheduling=scheduling, batch=4) if scheduling == "batch" else study()
    search = run(given.model_copy(update={"finalists": 0}), tmp_path / "0", Noisy(20.0, workers=1))
    found = []
    for name, workers, seed in (("a", 1, None), ("b", 5, 3)):
        folder = tmp_path / name
        if scheduling == "async":  # the same search; asynchronous ones depend on the workers
            run(given.model_copy(update={"finalists": 0}), folder, Noisy(20.0, workers=1))
        done = run(given, folder, Noisy(20.0, workers=workers, seed=seed))
        found.append({i: (one.architecture, dict(one.values)) for i, one in done.items()})
    assert found[0] == found[1]
    assert len(found[0]) > len(search)


@pytest.mark.slow
def test_a_race_that_was_killed_goes_on_and_gives_the_same(tmp_path: Path) -> None:
    whole = run(study(), tmp_path / "a", Noisy(20.0, workers=2))

    class Killed(Exception):
        pass

    def kill(assignment: Assignment, epoch: int) -> None:
        if assignment.trial_id == RACE_IDS + 3:
            raise Killed

    with pytest.raises(Killed):
        run(study(), tmp_path / "b", Noisy(20.0, workers=2, lose_at=kill))
    stopped = finished(tmp_path / "b")
    assert n_searched(stopped) == 8
    assert len(stopped) < len(whole)
    assert race_left(study(), read_log(tmp_path / "b").state.race, stopped) > 0
    again = run(study(), tmp_path / "b", Noisy(20.0, workers=1))
    assert {i: one.values for i, one in again.items()} == {
        i: one.values for i, one in whole.items()
    }
    assert len(facts_in(tmp_path / "b", "race")) == len(facts_in(tmp_path / "a", "race"))


@pytest.mark.slow
def test_a_longer_search_keeps_the_race_and_races_again(tmp_path: Path) -> None:
    first = run(study(), tmp_path, Noisy(5.0, workers=2))
    longer = run(study(n_trials=45), tmp_path, Noisy(5.0, workers=2))
    assert n_searched(longer) == 45
    for i, one in first.items():
        assert longer[i].values == one.values
    keys = {one.architecture_key for one in finalists(study(n_trials=45), longer)}
    raced = {one.architecture_key for i, one in longer.items() if is_race(i)}
    assert keys <= raced


@pytest.mark.slow
def test_race_trials_are_never_pruned(tmp_path: Path) -> None:
    given = study(pruning={"rule": "halving", "first_epoch": 2, "startup_trials": 2})
    done = run(given, tmp_path, FakeExecutor())
    assert any(one.status is TrialStatus.PRUNED for one in done.values())
    assert all(one.status is TrialStatus.COMPLETE for i, one in done.items() if is_race(i))


def test_a_lucky_seed_does_not_rank_before_the_raced() -> None:
    rows = [row(0, 10, 5.0), row(RACE_IDS, 10, 4.0), row(1, 11, 4.9), row(2, 12, 4.8)]
    order = Standings(study(), rows).first()
    assert [one.mean for one in order] == [4.5, 4.9, 4.8]
    assert order[0].raced


def test_rounds_bring_all_to_three_first_and_end_with_a_sure_first_or_the_budget() -> None:
    given = study(finalists=3, race={"trials": 7})
    done = {i: row(i, 10 + i, float(i)) for i in range(6)}
    first = next_round(given, done, {})
    assert list(first) == list(range(RACE_IDS, RACE_IDS + 6))
    assert [a.values["width"] for a in first.values()] == [15, 14, 13] * 2
    sure = dict(done)
    for i, architecture in first.items():
        width = int(architecture.values["width"])  # type: ignore[call-overload]
        sure[i] = row(i, width, width - 10 + 1e-3 * (i % 2))
    assert next_round(given, sure, first) == {}
    unsure = dict(done) | {
        i: row(i, int(a.values["width"]), 5.0 + i % 4) for i, a in first.items()
    }  # type: ignore[call-overload]
    last = next_round(given, unsure, first)
    assert len(last) == 1  # of seven trials six have run
    assert next_round(given, unsure, first | last) == {}
    assert next_round(study(finalists=0), done, {}) == {}


def test_a_round_whose_line_is_lost_keeps_its_trials_where_one_of_them_has_a_result() -> None:
    given = study(finalists=3, race={"trials": 8})
    done = {i: row(i, 10 + i, float(i)) for i in range(6)}
    first = next_round(given, done, {})
    ended = {i: row(i, int(first[i].values["width"]), 5.0 + i % 4) for i in first}  # type: ignore[call-overload]
    assert chosen_so_far(given, {}, done) == {}
    assert chosen_so_far(given, {}, done | {RACE_IDS + 1: ended[RACE_IDS + 1]}) == first
    second = next_round(given, done | ended, first)
    one = min(second)
    raced = done | ended | {one: row(one, int(second[one].values["width"]), 5.0)}  # type: ignore[call-overload]
    assert chosen_so_far(given, {}, raced) == first | second
    other = raced | {RACE_IDS: row(RACE_IDS, 10, 5.0)}  # the search has gone on since
    assert chosen_so_far(given, {}, other).keys() == other.keys() - done.keys()


def test_each_race_trial_has_its_own_seed_and_the_same_split_as_its_rivals() -> None:
    a, b = (ArchitectureSpec(family="mlp", values={"width": w}) for w in (4, 5))
    chosen = {RACE_IDS: a, RACE_IDS + 1: b, RACE_IDS + 2: a}
    planned = plan_race(chosen, {}, study())
    assert [one.replicate - RACE_REPLICATES for one in planned] == [0, 0, 1]
    assert len({one.seed for one in planned}) == 3
    assert [one.trial_id for one in plan_race(chosen, {RACE_IDS}, study())] == [
        RACE_IDS + 1, RACE_IDS + 2,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"finalists": 1}, "must be 0 .* or at least 2, but got 1"),
        ({"finalists": 3, "minimise": ["n_parameters"]}, "must be 0 with `minimise`"),
    ],
)
def test_a_race_that_makes_no_sense_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        study(**changes)


def test_fakes_write_the_stage_of_the_search_by_themselves() -> None:
    planned = plan_race({RACE_IDS: ArchitectureSpec(family="linear")}, {}, study())
    assert record_of(planned[0]).stage == "search"  # the driver marks the race


# --- finalists on all rows, where trials train their folds alone

of_folds = partial(
    study, race={"trials": 6}, objective="conditional_evidence",
    estimators=["conditional_evidence", "diag_ef"],
    plan={"epochs": 6, "folds": 2, "whole": False, "online": {"every": 2}},
)  # fmt: skip


class OfFolds(Noisy):
    """Trials that train their folds alone, and networks of all rows of which some fail."""

    def __init__(self, noise: float, failing: Container[int] = (), **options: Any) -> None:
        super().__init__(noise, **options)
        self.failing = failing

    def finish(self, trial_id: int, verdict: Verdict | None = None) -> None:
        super().finish(trial_id, verdict)
        record = self.events.pop()
        assert isinstance(record, TrialRecord)
        if ranks(trial_id):
            [last] = record.evaluations
            estimate = last.estimate.model_copy(update={"estimator": "conditional_evidence"})
            update = {"evaluations": (last.model_copy(update={"estimate": estimate}),),
                      "of": "folds"}  # fmt: skip
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
