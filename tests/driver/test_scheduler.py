"""The rules at the rungs: who goes on, who is pruned, and that order of arrival is no matter."""

import itertools
import math
import statistics
from contextlib import closing
from functools import partial
from pathlib import Path

import fakes
import pytest
from fakes import FakeExecutor, Noisy, Silent, drive, facts_in, finished, record_of
from hypothesis import given, settings
from hypothesis import strategies as st
from records import plain_study

from nas_evidence.data import load
from nas_evidence.driver.driver import Driver
from nas_evidence.driver.plan import RACE_REPLICATES, plan_race
from nas_evidence.driver.race import (
    budget_of,
    chosen_so_far,
    finalists,
    next_round,
    race_left,
)
from nas_evidence.driver.rungs import Rungs
from nas_evidence.driver.scheduler import MAX_COMPARED, decide, point_of, ranks
from nas_evidence.maths.finalists import MIN_REPEATS
from nas_evidence.maths.pareto import Point, fronts, on_front
from nas_evidence.reporting.problems import pruning_sentence
from nas_evidence.reporting.study_tables import load_study_tables
from nas_evidence.spec.record import RACE_IDS, SliceReport, TrialStatus, is_race, n_searched
from nas_evidence.spec.schedule import rungs
from nas_evidence.spec.study import ArchitectureSpec, Assignment, StudySpec
from nas_evidence.spec.toml import dump_study
from nas_evidence.storage.best import Standings
from nas_evidence.storage.log import Log, read_log
from nas_evidence.storage.tables import read_table
from nas_evidence.storage.trial_row import TrialRow
from nas_evidence.workers.inline import InlineExecutor

SCORES = st.floats(min_value=-9, max_value=0)


def study(rule: str = "halving", *, minimise: tuple[str, ...] = (), **more: object) -> StudySpec:
    pruning = {"rule": rule, "startup_trials": 1, **more}
    return plain_study(objective="kfac_ggn", minimise=minimise, pruning=pruning)


def all_at_once(at_rung: dict[int, Point | None], spec: StudySpec) -> dict[int, str | None]:
    """The decision on every trial of a batch whose trials have all reached the rung."""
    return {trial_id: decide(trial_id, at_rung, spec) for trial_id in at_rung}


def alone(scores: list[float]) -> dict[int, Point | None]:
    return {i: (score,) for i, score in enumerate(scores)}


@pytest.mark.slow
@given(st.lists(SCORES, min_size=1, max_size=20, unique=True), st.integers(2, 4))
def test_halving_keeps_exactly_the_best_share(scores: list[float], reduction: int) -> None:
    verdicts = all_at_once(alone(scores), study(reduction=reduction))
    best = sorted(range(len(scores)), key=lambda i: -scores[i])
    kept = {i for i, reason in verdicts.items() if reason is None}
    assert kept == set(best[: max(1, len(scores) // reduction)])


@pytest.mark.slow
@given(st.lists(SCORES, min_size=1, max_size=20))
def test_the_median_rule_prunes_what_is_below_the_others_median(scores: list[float]) -> None:
    for i, reason in all_at_once(alone(scores), study("median")).items():
        others = scores[:i] + scores[i + 1 :]
        below = bool(others) and scores[i] < statistics.median(others)
        assert (reason is not None) == below


@pytest.mark.slow
@given(st.permutations(list(range(7))), st.sampled_from(["halving", "median"]))
def test_the_order_of_arrival_decides_nothing_in_a_cohort(order: list[int], rule: str) -> None:
    points = alone([-0.5, -0.1, -0.5, -0.9, -0.2, -0.3, -0.3])
    assert all_at_once({i: points[i] for i in order}, study(rule)) == all_at_once(
        points, study(rule)
    )


def test_nobody_is_pruned_before_enough_are_seen_or_without_a_rule() -> None:
    scores = alone([-0.1, -0.9, -0.5])
    assert decide(1, scores, study(startup_trials=4)) is None
    assert decide(1, scores, study(startup_trials=3)) == "kfac_ggn -0.9 is 3rd of 3"
    assert decide(1, scores, study("none")) is None


def test_a_trial_without_a_score_goes_on_and_counts_for_nobody() -> None:
    scores = alone([-0.1, -0.9, -0.5]) | {7: None}
    assert decide(7, scores, study()) is None
    assert decide(1, scores, study()) == "kfac_ggn -0.9 is 3rd of 3"
    assert decide(1, scores, study("median")) == "kfac_ggn -0.9 is below the median -0.3"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_infinite_or_missing_coordinate_is_no_point(bad: float) -> None:
    spec = study(minimise=("flops",))
    assert point_of(spec, {"kfac_ggn": -0.5}, {"flops": 7.0}) == (-0.5, -7.0)
    assert point_of(spec, {"kfac_ggn": bad}, {"flops": 7.0}) is None
    assert point_of(spec, {"kfac_ggn": -0.5}, {"flops": bad}) is None
    assert point_of(spec, {"kfac_ggn": -0.5}, {}) is None
    assert point_of(spec, {"diag_ef": -0.5}, {"flops": 7.0}) is None


def dominates(a: Point, b: Point) -> bool:
    return a != b and all(x >= y for x, y in zip(a, b, strict=True))


def peeled(points: list[Point]) -> list[int]:
    """Brute force: peel off the points that nothing left dominates, front after front."""
    fronts, left, front = [0] * len(points), set(range(len(points))), 0
    while left:
        top = {i for i in left if not any(dominates(points[j], points[i]) for j in left)}
        for i in top:
            fronts[i] = front
        left, front = left - top, front + 1
    return fronts


POINTS = st.integers(2, 3).flatmap(
    lambda m: st.lists(st.tuples(*[st.integers(0, 5).map(float)] * m), min_size=1, max_size=25)
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(POINTS)
def test_ranks_follow_the_fronts_that_peeling_finds(points: list[Point]) -> None:
    found, expected = ranks(points), peeled(points)
    assert fronts(points) == expected
    assert on_front(points) == [front == 0 for front in expected]
    for i, j in itertools.combinations(range(len(points)), 2):
        if expected[i] != expected[j]:
            assert (found[i] < found[j]) == (expected[i] < expected[j])
        if points[i] == points[j]:
            assert found[i] == found[j]
    assert min(found) == 1


def test_within_a_front_the_ends_and_the_thin_parts_come_first() -> None:
    line = [(0.0, 10.0), (1.0, 9.0), (2.0, 8.0), (6.0, 4.0), (10.0, 0.0)]
    # Distances (neighbours, both axes): inf, 0.2 + 0.2, 0.5 + 0.5, 0.8 + 0.8, inf.
    assert ranks(line) == [1, 5, 4, 3, 1]


def test_with_several_objectives_small_models_are_not_pruned_for_their_score() -> None:
    spec = study(minimise=("n_parameters",), reduction=2)
    at_rung = {0: (-0.9, -10.0), 1: (-0.2, -900.0), 2: (-0.95, -500.0), 3: (-0.3, -950.0)}
    verdicts = all_at_once(at_rung, spec)
    assert [i for i, reason in verdicts.items() if reason is None] == [0, 1]
    assert verdicts[2] == "kfac_ggn -0.95 with n_parameters 500 is 3rd of 4"


def test_of_very_many_points_of_several_objectives_the_latest_are_compared() -> None:
    spec = study(minimise=("flops",))
    at_rung = {i: (-float(i), -float(i)) for i in range(MAX_COMPARED + 500)}
    reason = decide(MAX_COMPARED + 499, at_rung, spec)
    assert reason.endswith(f"is {MAX_COMPARED}th of {MAX_COMPARED}")


# --- claims about the race of the finalists: who runs again, when it ends, and that it resumes


race_study = partial(fakes.study, n_trials=8, finalists=3)


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
    done = run(race_study(), tmp_path, Noisy(3.0, workers=2))
    assert n_searched(done) == 8
    raced = [one for i, one in done.items() if is_race(i)]
    assert 6 <= len(raced) <= budget_of(race_study()) == 10
    best = {one.architecture_key for one in finalists(race_study(), done)}
    assert {one.architecture_key for one in raced} == best
    for key in best:
        values = [one for one in done.values() if one.architecture_key == key]
        assert len(values) >= MIN_REPEATS
        assert len({one.replicate for one in values}) == len(values)
    trials = read_table(tmp_path, "trials").set_index("trial_id")
    assert set(trials.loc[[i for i in done if is_race(i)], "stage"]) == {"race"}
    assert set(trials.loc[range(8), "stage"]) == {"search"}
    assert race_left(race_study(), read_log(tmp_path).state.race, done) == 0


@pytest.mark.slow
@pytest.mark.parametrize("scheduling", ["async", "batch"])
def test_any_number_of_workers_gives_the_same_race(tmp_path: Path, scheduling: str) -> None:
    given = race_study(scheduling=scheduling, batch=4) if scheduling == "batch" else race_study()
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
    whole = run(race_study(), tmp_path / "a", Noisy(20.0, workers=2))

    class Killed(Exception):
        pass

    def kill(assignment: Assignment, epoch: int) -> None:
        if assignment.trial_id == RACE_IDS + 3:
            raise Killed

    with pytest.raises(Killed):
        run(race_study(), tmp_path / "b", Noisy(20.0, workers=2, lose_at=kill))
    stopped = finished(tmp_path / "b")
    assert n_searched(stopped) == 8
    assert len(stopped) < len(whole)
    assert race_left(race_study(), read_log(tmp_path / "b").state.race, stopped) > 0
    again = run(race_study(), tmp_path / "b", Noisy(20.0, workers=1))
    assert {i: one.values for i, one in again.items()} == {
        i: one.values for i, one in whole.items()
    }
    assert len(facts_in(tmp_path / "b", "race")) == len(facts_in(tmp_path / "a", "race"))


@pytest.mark.slow
def test_a_longer_search_keeps_the_race_and_races_again(tmp_path: Path) -> None:
    first = run(race_study(), tmp_path, Noisy(5.0, workers=2))
    longer = run(race_study(n_trials=45), tmp_path, Noisy(5.0, workers=2))
    assert n_searched(longer) == 45
    for i, one in first.items():
        assert longer[i].values == one.values
    keys = {one.architecture_key for one in finalists(race_study(n_trials=45), longer)}
    raced = {one.architecture_key for i, one in longer.items() if is_race(i)}
    assert keys <= raced


@pytest.mark.slow
def test_race_trials_are_never_pruned(tmp_path: Path) -> None:
    given = race_study(pruning={"rule": "halving", "first_epoch": 2, "startup_trials": 2})
    done = run(given, tmp_path, FakeExecutor())
    assert any(one.status is TrialStatus.PRUNED for one in done.values())
    assert all(one.status is TrialStatus.COMPLETE for i, one in done.items() if is_race(i))


def test_a_lucky_seed_does_not_rank_before_the_raced() -> None:
    rows = [row(0, 10, 5.0), row(RACE_IDS, 10, 4.0), row(1, 11, 4.9), row(2, 12, 4.8)]
    order = Standings(race_study(), rows).first()
    assert [one.mean for one in order] == [4.5, 4.9, 4.8]
    assert order[0].raced


def test_rounds_bring_all_to_three_first_and_end_with_a_sure_first_or_the_budget() -> None:
    given = race_study(finalists=3, race={"trials": 7})
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
    assert next_round(race_study(finalists=0), done, {}) == {}


def test_a_round_whose_line_is_lost_keeps_its_trials_where_one_of_them_has_a_result() -> None:
    given = race_study(finalists=3, race={"trials": 8})
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
    planned = plan_race(chosen, {}, race_study())
    assert [one.replicate - RACE_REPLICATES for one in planned] == [0, 0, 1]
    assert len({one.seed for one in planned}) == 3
    assert [one.trial_id for one in plan_race(chosen, {RACE_IDS}, race_study())] == [
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
        race_study(**changes)


def test_fakes_write_the_stage_of_the_search_by_themselves() -> None:
    planned = plan_race({RACE_IDS: ArchitectureSpec(family="linear")}, {}, race_study())
    assert record_of(planned[0]).stage == "search"  # the driver marks the race


# --- scores known before the first epoch prune there: one half of the data is enough to judge by


PRUNING = {"rule": "halving", "reduction": 2, "startup_trials": 2, "first_epoch": 4}


def early_study(**changes: object) -> StudySpec:
    given: dict[str, object] = {
        "name": "s",
        "n_trials": 6,
        "estimators": ["diag_ef", "two_fold"],
        "dataset": {"name": "digits", "max_train": 120, "max_test": 60},
        "family": {
            "mlp": {"width": {"options": [4, 6, 8, 12, 16, 24]}, "depth": {"options": [1]}}
        },
        "plan": {"epochs": 6, "batch_size": 16, "learning_rate": 0.03, "online": {"every": 2}},
        "sampler": {"name": "grid"},
        "pruning": PRUNING,
    }
    return StudySpec.model_validate({**given, **changes})


def run_early(spec: StudySpec, folder: Path) -> Path:
    folder.mkdir()
    (folder / "study.toml").write_text(dump_study(spec))
    executor = InlineExecutor(load(spec.dataset, seed=spec.seed), spec.resources)
    Driver(spec, folder, executor, Silent()).run()
    return folder


def test_a_score_known_before_the_first_epoch_has_a_rung_there() -> None:
    assert rungs(early_study()) == (0, 4)
    assert (
        rungs(early_study(estimators=["conditional_evidence"], objective="conditional_evidence"))[
            0
        ]
        == 0
    )
    assert rungs(early_study(pruning={**PRUNING, "score": "sotl"})) == (4,)
    assert rungs(early_study(pruning={"rule": "none"})) == ()


def report(epoch: int, **scores: float) -> SliceReport:
    return SliceReport(
        trial_id=3, attempt=1, epoch=epoch, epochs=6, done=False, scores=scores
    )  # fmt: skip


def test_a_trial_is_not_at_the_first_rung_before_it_has_a_score(tmp_path: Path) -> None:
    log = Log(tmp_path)
    rungs = Rungs(early_study(), log)
    assert not rungs.note(report(0))
    assert not rungs.reached(3, 0)
    assert rungs.note(report(0, two_fold=-0.4))
    assert rungs.reached(3, 0)
    assert not rungs.note(report(0, two_fold=-0.5))  # of both folds: not judged
    log.close()
    assert rungs.rivals(3, 0, done=()) == {3: (-0.4,)}
    again = Rungs(early_study(), Log(tmp_path))
    assert again.rivals(3, 0, done=()) == {3: (-0.4,)}


def test_who_has_passed_a_rung_is_not_judged_again_by_those_that_come_later(
    tmp_path: Path,
) -> None:
    log = Log(tmp_path)
    rungs = Rungs(early_study(), log)
    rungs.note(report(0, two_fold=-0.4))
    rivals = rungs.rivals(3, 0, done=())
    assert rivals is not None
    mine = report(0, two_fold=-0.4)
    assert rungs.decide(mine, rivals) is None
    for trial_id in (4, 5, 6, 7):
        better = report(0, two_fold=-0.1).model_copy(update={"trial_id": trial_id})
        rungs.note(better)
    assert not rungs.reached(3, 0)
    assert rungs.reached(4, 0)
    later = rungs.rivals(3, 0, done=()) or {}
    assert rungs.decide(mine, later) is None  # if it were asked again
    with closing(Log(tmp_path / "fresh")) as other:
        fresh = Rungs(early_study(), other)
        fresh.note(mine)
        assert fresh.decide(mine, later) is not None  # had it come last
    log.close()


def test_a_trial_without_a_score_passes_the_first_rung_and_counts_for_nobody(
    tmp_path: Path,
) -> None:
    log = Log(tmp_path)
    rungs = Rungs(early_study(), log)
    assert rungs.note(report(2))
    log.close()
    assert rungs.rivals(3, 0, done=()) == {3: None}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study in which every trial runs to its end."""
    return run_early(
        early_study(pruning={"rule": "none"}), tmp_path_factory.mktemp("study") / "whole"
    )


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("scheduling", ["async", "batch"])
def test_pruned_before_training_are_the_worse_by_one_half_and_the_others_are_as_ever(
    scheduling: str, whole: Path, tmp_path: Path
) -> None:
    folder = run_early(early_study(scheduling=scheduling), tmp_path / "pruned")
    trials = read_table(folder, "trials").set_index("trial_id")
    pruned = trials[trials["status"] == TrialStatus.PRUNED]
    early = pruned[pruned["cause"].str.startswith("rung 0: two_fold -")]
    assert len(early) == {"async": 1, "batch": 3}[scheduling]
    assert (early["epochs"] == 0).all()
    assert (early["train_seconds"] == 0).all()

    terms = read_table(whole, "terms")
    half = terms[(terms["estimator"] == "two_fold") & (terms["group"] == "fold 1")]
    half = half[(half["term"] == "log_predictive") & (half["epoch"] == 6)]
    by_half = half.set_index("trial_id")["value"]
    evidence = read_table(folder, "evidence")
    own = evidence[evidence["estimator"] == "two_fold"]
    at_zero = own[own["epoch"] == 0].set_index("trial_id")["value"]
    assert set(at_zero.index) == set(early.index)
    for trial_id, value in at_zero.items():
        # Beside the other half the same training differs by rounding.
        assert value == pytest.approx(by_half[trial_id], rel=1e-3)
    if scheduling == "batch":
        assert set(early.index) == set(by_half.sort_values().index[:3])

    final = read_table(whole, "evidence")
    final = final[(final["estimator"] == "two_fold") & (final["epoch"] == 6)]
    final_value = final.set_index("trial_id")["value"]
    complete = trials.index[trials["status"] == TrialStatus.COMPLETE]
    assert len(complete)
    last = own[own["epoch"] == 6].set_index("trial_id")["value"]
    for trial_id in complete:
        assert last[trial_id] == pytest.approx(final_value[trial_id], rel=1e-3)

    assert "Pruning stopped" in pruning_sentence(load_study_tables(folder))
