"""The rules at the rungs: who goes on, who is pruned, and that order of arrival is no matter."""

import itertools
import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nas_evidence.driver.scheduler import MAX_COMPARED, decide, point_of, ranks
from nas_evidence.maths.pareto import Point, fronts, on_front
from nas_evidence.spec.domains import IntRange
from nas_evidence.spec.study import DatasetSpec, StudySpec

SCORES = st.floats(min_value=-9, max_value=0)


def study(rule: str = "halving", *, minimise: tuple[str, ...] = (), **more: object) -> StudySpec:
    return StudySpec.model_validate(
        {
            "name": "s",
            "objective": "kfac_ggn",
            "dataset": DatasetSpec(name="digits"),
            "family": {"mlp": {"width": IntRange(low=4, high=8)}},
            "minimise": minimise,
            "pruning": {"rule": rule, "startup_trials": 1, **more},
        }
    )


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
