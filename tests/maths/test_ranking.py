"""Claims about rank statistics: published values, brute force, properties."""

import math
from itertools import combinations, permutations

import claims_folds
import comparison_coverage
import numpy as np
import optuna
import pandas as pd
import pytest
from cases import GOLDEN_FOLDER
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.importance import PedAnovaImportanceEvaluator
from scipy import stats

from nas_evidence.maths import ranking
from nas_evidence.maths.bias_corrected import (
    N_DRAWS,
    chosen,
    draws_of_rows,
    factor_of_folds,
    interval_of,
    mean_left_out,
)
from nas_evidence.maths.paired import Paired, expected_variance_of_classes, paired_interval
from nas_evidence.maths.pareto import on_front
from nas_evidence.maths.ped_anova import Grid, density, ordered_cells, pearson_divergence
from nas_evidence.maths.pruning_rule import Rule, judge
from nas_evidence.maths.ranking import (
    MIN_PAIRS,
    Floats,
    RankStatistics,
    random_statistics,
    rank_statistics,
    regret,
    resampling_plan,
    share_at_least_as_good,
    spearman,
)

PUBLISHED = [
    ("c9_cifar10", 0.9718, 0.30, 0.961),
    ("c10_cifar100", 0.9692, 0.00, 0.945),
    ("c11_fmnist", 0.6389, 3.62, -0.284),
]


def statistics(score: object, target: object, *, n_resamples: int = 50) -> RankStatistics:
    plan = resampling_plan(np.size(score), seed=0, n_resamples=n_resamples)
    return rank_statistics(score, target, plan=plan)  # type: ignore[arg-type]


def with_ties(seed: int, n: int = 9, levels: int = 5) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    x = rng.integers(levels, size=n).astype(float)
    return x, np.where(rng.random(n) < 0.5, x, rng.integers(levels, size=n))


@pytest.mark.parametrize(("table", "rho", "regret_1", "rho_n_parameters"), PUBLISHED)
def test_the_published_tables_give_their_statistics(
    table: str, rho: float, regret_1: float, rho_n_parameters: float
) -> None:
    data = pd.read_csv(GOLDEN_FOLDER / f"immer2021_table_{table}.csv")
    target = data["test_accuracy_percent"]
    evidence = statistics(data["log_evidence_per_datum_nats"], target)
    assert_allclose(evidence.rho, rho, rtol=0, atol=5e-5)
    assert_allclose(evidence.regret[1], regret_1, rtol=0, atol=1e-9)
    baseline = statistics(data["n_parameters"], target)
    assert_allclose(baseline.rho, rho_n_parameters, rtol=0, atol=5e-4)


@pytest.mark.parametrize("seed", range(5))
def test_kendall_tau_matches_counting_pairs(seed: int) -> None:
    x, y = with_ties(seed)
    pairs = list(combinations(range(len(x)), 2))
    signs = np.array([(np.sign(x[i] - x[j]), np.sign(y[i] - y[j])) for i, j in pairs])
    expected = signs.prod(1).sum() / np.sqrt(abs(signs).sum(0).prod())
    assert_allclose(statistics(x, y).tau, expected, rtol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_intervals_match_resampling_one_by_one(seed: int) -> None:
    x, y = with_ties(seed, n=12)
    plan = resampling_plan(12, seed=seed, n_resamples=60)
    result = rank_statistics(x, y, plan=plan)
    rho, tau = [], []
    for counts in plan.astype(int):
        drawn = np.repeat(np.arange(12), counts)
        rho.append(stats.spearmanr(x[drawn], y[drawn]).statistic)
        tau.append(stats.kendalltau(x[drawn], y[drawn]).statistic)
    assert_allclose(
        [result.rho_interval.low, result.rho_interval.high], np.quantile(rho, [0.025, 0.975])
    )
    assert_allclose(
        [result.tau_interval.low, result.tau_interval.high], np.quantile(tau, [0.025, 0.975])
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("k", [1, 2, 3])
def test_regret_is_the_worst_over_all_orders_of_ties(seed: int, k: int) -> None:
    x, y = with_ties(seed, n=7, levels=3)
    allowed = [
        chosen
        for chosen in combinations(range(7), k)
        if min(x[list(chosen)]) >= max(np.delete(x, chosen))
    ]
    assert regret(x, y, k) == max(y.max() - y[list(chosen)].max() for chosen in allowed)


def test_a_perfect_score_has_rho_one_and_no_regret() -> None:
    target = np.array([0.1, 0.5, 0.3, 0.9, 0.7, 0.2])
    result = statistics(np.exp(target), target)
    assert_allclose([result.rho, result.tau], [1.0, 1.0])
    assert result.regret == {1: 0.0, 3: 0.0, 10: 0.0}
    assert result.rho_interval.high == 1.0
    assert 0.2 < result.rho_interval.low < 0.6  # six pairs in the same order prove little


@pytest.mark.slow
@pytest.mark.parametrize(("n", "rho"), [(6, 0.89), (6, 0.97), (8, 0.97), (11, 0.6)])
def test_an_interval_of_few_pairs_holds_rho_as_often_as_it_says(n: int, rho: float) -> None:
    rng, plan = np.random.default_rng(0), resampling_plan(n, seed=0, n_resamples=300)
    normal = 2 * np.sin(np.pi * rho / 6)  # Pearson's correlation of normals with this rho
    held = 0
    for _ in range(400):
        x, noise = rng.normal(size=(2, n))
        found = spearman(x, normal * x + np.sqrt(1 - normal**2) * noise, plan=plan)
        held += found[1] is not None and found[1].low <= rho <= found[1].high
    assert held / 400 > 0.94  # less a standard error of 0.011; percentiles alone: 0.67 to 0.97


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), missing=st.integers(1, 4))
def test_missing_values_are_dropped_pairwise_and_counted(seed: int, missing: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(2, 12))
    x[:missing] = np.nan
    y[missing] = np.nan
    result, expected = statistics(x, y), statistics(x[missing + 1 :], y[missing + 1 :])
    assert (result.n, result.n_missing) == (11 - missing, missing + 1)
    assert_allclose([result.rho, result.tau], [expected.rho, expected.tau], rtol=1e-12)
    assert result.regret == expected.regret


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), of_target=st.booleans())
def test_an_infinite_value_is_first_or_last_in_an_order_as_scipy_ranks_it(
    seed: int, of_target: bool
) -> None:
    rng = np.random.default_rng(seed)
    x, y, z = rng.integers(6, size=(3, 14)).astype(float)
    ends = y if of_target else x
    ends[ends == 0], ends[ends == 5] = -np.inf, np.inf
    ranks = [stats.rankdata(values) for values in (x, y)]
    plan = resampling_plan(14, seed=0, n_resamples=50)
    found = rank_statistics(x, y, plan=plan, given=z)
    expected = rank_statistics(*ranks, plan=plan, given=z)
    assert (found.n, found.n_missing) == (14, 0)
    assert_allclose(found.rho, stats.spearmanr(*ranks).statistic, rtol=1e-12)
    assert_allclose(found.tau, stats.kendalltau(*ranks).statistic, rtol=1e-12)
    assert found.rho_interval == expected.rho_interval
    assert found.tau_interval == expected.tau_interval
    assert found.partial_interval == expected.partial_interval
    if not of_target:
        by_rank = rank_statistics(ranks[0], y, plan=plan)
        assert (found.regret, found.regret_intervals) == (by_rank.regret, by_rank.regret_intervals)
    assert spearman(x, y, plan=plan) == (found.rho, found.rho_interval)
    assert share_at_least_as_good(x, x, y, plan=plan) == 1.0


def test_the_regret_of_a_choice_that_is_last_of_all_is_infinite() -> None:
    x, y = np.arange(6.0), np.array([3.0, 0.0, 1.0, 2.0, -np.inf, -np.inf])
    found = statistics(x, y)
    assert found.regret == {1: np.inf, 3: 1.0, 10: 0.0}
    assert found.regret_intervals[1].high == np.inf
    assert regret(-x, y, 1) == 0.0
    assert regret(x, [np.inf] * 6, 1) == 0.0
    by_chance = random_statistics(y, regret_at=(1, 2, 3))
    assert by_chance.regret[1] == by_chance.regret[2] == np.inf  # two of six are the last
    first = [max(chosen) for chosen in permutations(y, 3)]
    assert_allclose(by_chance.regret[3], np.mean(3 - np.array(first)), rtol=1e-12)


@pytest.mark.parametrize(
    ("score", "target", "reason"),
    [
        ([1, 2, 3, 4], [1, 2, 3, 4], "only 4 with both values"),
        ([], [], "only 0 with both values"),
        ([1, 2, 3, 4, np.nan], [1, 2, 3, 4, 5], "only 4 with both values"),
        ([2, 2, 2, 2, 2], [1, 2, 3, 4, 5], "the score is the same"),
        ([1, 2, 3, 4, 5], [3, 3, 3, 3, 3], "the target is the same"),
    ],
)
def test_too_few_or_constant_values_are_undefined_with_a_reason(
    score: list[float], target: list[float], reason: str
) -> None:
    result = statistics(score, target)
    assert (result.rho, result.rho_interval, result.tau, result.regret) == (None,) * 4
    assert reason in result.reason


def test_the_plan_is_seeded_and_every_resample_has_the_size_of_the_data() -> None:
    plan = resampling_plan(MIN_PAIRS, seed=3, n_resamples=40)
    assert plan.shape == (40, MIN_PAIRS)
    assert (plan.sum(1) == MIN_PAIRS).all()
    assert (plan == resampling_plan(MIN_PAIRS, seed=3, n_resamples=40)).all()
    assert (plan != resampling_plan(MIN_PAIRS, seed=4, n_resamples=40)).any()


def test_rivals_are_compared_resample_by_resample() -> None:
    rng = np.random.default_rng(0)
    target = rng.normal(size=30)
    score, rival = target + 0.1 * rng.normal(size=30), rng.normal(size=30)
    plan = resampling_plan(30, seed=0, n_resamples=200)
    assert share_at_least_as_good(rival, score, target, plan=plan) == 0.0
    assert share_at_least_as_good(score, rival, target, plan=plan) == 1.0
    assert share_at_least_as_good(score, score, target, plan=plan) == 1.0
    assert share_at_least_as_good(0 * score, score, target, plan=plan) is None


# --- regret and partial correlation in resamples -------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_regret_intervals_match_resampling_one_by_one(seed: int) -> None:
    x, y = with_ties(seed, n=12)
    plan = resampling_plan(12, seed=seed, n_resamples=60)
    result = rank_statistics(x, y, plan=plan)
    for k in (1, 3, 10):
        lost = [regret(x[counts > 0], y[counts > 0], k) for counts in plan]
        interval = (result.regret_intervals or {})[k]
        assert_allclose([interval.low, interval.high], np.quantile(lost, [0.025, 0.975]))


@pytest.mark.parametrize("seed", range(3))
def test_partial_correlation_is_that_of_residual_ranks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    z = rng.integers(4, size=15).astype(float)
    x, y = z + rng.normal(size=15), z + rng.normal(size=15)

    def residual(x: Floats, y: Floats, z: Floats) -> float:
        ranks = [stats.rankdata(values) for values in (x, y, z)]
        a, b = (r - np.polyval(np.polyfit(ranks[2], r, 1), ranks[2]) for r in ranks[:2])
        return float(np.corrcoef(a, b)[0, 1])

    plan = resampling_plan(15, seed=seed, n_resamples=40)
    result = rank_statistics(x, y, plan=plan, given=z)
    assert_allclose(result.partial, residual(x, y, z), rtol=1e-9)
    drawn = [np.repeat(np.arange(15), counts.astype(int)) for counts in plan]
    expected = np.quantile([residual(x[i], y[i], z[i]) for i in drawn], [0.025, 0.975])
    assert_allclose([result.partial_interval.low, result.partial_interval.high], expected)


def fisher(r: float, variance: float) -> tuple[float, float]:
    """Return the interval of Fisher's transformation, written down again."""
    low, high = np.tanh(np.arctanh(r) + np.array([-1.96, 1.96]) * np.sqrt(variance))
    return float(low), float(high)


def test_of_few_pairs_intervals_hold_fishers_with_its_degrees_of_freedom() -> None:
    """Tau has variance 0.437 / (n - 4); a partial rho one degree less than rho."""
    for seed in range(5):
        x, y, z = np.random.default_rng(seed).normal(size=(3, 6))
        found = rank_statistics(x, y, given=z, plan=resampling_plan(6, seed=0))
        assert None not in (found.rho, found.tau, found.partial)
        for value, interval, variance in (
            (found.rho, found.rho_interval, (1 + found.rho**2 / 2) / (6 - 3)),
            (found.tau, found.tau_interval, 0.437 / (6 - 4)),
            (found.partial, found.partial_interval, (1 + found.partial**2 / 2) / (5 - 3)),
        ):
            low, high = fisher(np.clip(value, -14 / 15, 14 / 15), variance)
            assert interval.low <= low + 1e-4
            assert interval.high >= high - 1e-4


def test_a_score_that_is_the_size_has_no_partial_correlation() -> None:
    x, y = with_ties(0)
    plan = resampling_plan(len(x), seed=0, n_resamples=20)
    assert rank_statistics(x, y, plan=plan, given=2 * x).partial is None
    assert rank_statistics(x, y, plan=plan, given=0 * x).partial is None
    assert rank_statistics(x, y, plan=plan).partial is None


def test_spearman_alone_says_what_rank_statistics_says() -> None:
    x, y = with_ties(1)
    plan = resampling_plan(len(x), seed=0, n_resamples=50)
    full = rank_statistics(x, y, plan=plan)
    assert spearman(x, y, plan=plan) == (full.rho, full.rho_interval)
    assert spearman(0 * x, y, plan=plan) is None


# --- pareto front, rule of pruning --------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), k=st.integers(1, 3))
def test_the_front_is_what_nothing_dominates(seed: int, k: int) -> None:
    points = np.random.default_rng(seed).integers(4, size=(9, k)).astype(float)
    expected = [
        not any((other >= one).all() and (other > one).any() for other in points) for one in points
    ]
    assert on_front([tuple(point) for point in points.tolist()]) == expected


def test_a_cohort_keeps_the_best_share_and_ties_share_a_verdict() -> None:
    def kept(*scores: float, rule: Rule = "halving", reduction: int = 3) -> list[bool]:
        return [
            judge(one, [*scores[:i], *scores[i + 1 :]], rule=rule, reduction=reduction).goes_on
            for i, one in enumerate(scores)
        ]

    assert kept(5, 1, 4, 3, 2, 0) == [True, False, True, False, False, False]
    assert kept(1, 1, 1, 0, reduction=4) == [True, True, True, False]
    assert kept(4, 3, 2, 1, rule="median") == [True, True, False, False]


def test_a_random_order_gives_what_all_orders_give_on_average() -> None:
    target = np.array([0.3, 0.9, 0.1, 0.5, 0.5, 0.2])
    orders = [np.array(order) for order in permutations(range(6))]
    found = random_statistics(target, regret_at=(1, 3, 10))
    for k in (1, 3, 10):
        lost = [regret(order, target, k) for order in orders]
        assert_allclose(found.regret[k], np.mean(lost))
        ends = found.regret_intervals[k]
        shares = np.mean(np.array(lost) < ends.low - 1e-12), np.mean(np.array(lost) > ends.high)
        assert max(shares) <= 0.025 + 1e-12
    assert (found.rho, found.tau, found.partial) == (0.0, 0.0, None)
    assert random_statistics(np.ones(6)).reason == "the target is the same for all 6"
    assert random_statistics([1.0, np.nan, 2.0]).n_missing == 1


@pytest.mark.slow
def test_the_spread_of_a_random_order_is_that_of_shuffles() -> None:
    rng = np.random.default_rng(0)
    n, target = 15, np.arange(15.0)
    found = random_statistics(target)
    shuffles = [rng.permutation(n) for _ in range(2000)]
    rho = [stats.spearmanr(one, target).statistic for one in shuffles]
    tau = [stats.kendalltau(one, target).statistic for one in shuffles[:500]]
    assert_allclose(found.rho_interval.high, np.quantile(np.abs(rho), 0.95), rtol=0.08)
    assert_allclose(found.tau_interval.high, np.quantile(np.abs(tau), 0.95), rtol=0.12)


@pytest.mark.slow
@pytest.mark.parametrize("missing", [0, 300])
def test_of_many_data_few_are_resampled_and_the_intervals_are_those_of_all(
    monkeypatch: pytest.MonkeyPatch, missing: int
) -> None:
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(2, 1500))
    y = x + 0.5 * z + rng.normal(size=1500)
    x[:missing] = np.nan
    found = []
    for most in (ranking.MOST_RESAMPLED, 10**6):
        monkeypatch.setattr(ranking, "MOST_RESAMPLED", most)
        plan = resampling_plan(1500, seed=0)
        found.append(rank_statistics(x, y, plan=plan, given=z))
    few, every = found
    assert (few.n, few.rho, few.tau, few.partial) == (every.n, every.rho, every.tau, every.partial)
    assert few.regret == every.regret
    for name in ("rho_interval", "tau_interval", "partial_interval"):
        one, other = getattr(few, name), getattr(every, name)
        width = other.high - other.low
        # of 500 resamples the ends have standard errors of 6 % of the width
        assert [one.low, one.high] == pytest.approx([other.low, other.high], abs=0.25 * width)


def test_of_many_data_a_rival_that_is_as_good_is_so_in_half_of_the_resamples() -> None:
    rng = np.random.default_rng(1)
    y = rng.normal(size=3000)
    one, other, worse = (y + spread * rng.normal(size=3000) for spread in (1.0, 1.0, 1.3))
    plan = resampling_plan(3000, seed=0)
    assert 0.02 < share_at_least_as_good(other, one, y, plan=plan) < 0.98
    assert share_at_least_as_good(worse, one, y, plan=plan) < 0.02


# --- claims about paired differences: the interval covers what it says, and holds rare mistakes


def test_without_skewness_the_interval_is_students() -> None:
    values = np.random.default_rng(0).normal(size=40)
    values = np.concatenate([values, -values])
    found = paired_interval(values + 3.0)
    error = values.std(ddof=1) / np.sqrt(80)
    assert found == pytest.approx((3.0, *stats.t.interval(0.95, 79, 3.0, error)))


def test_skewness_moves_the_end_on_its_side_alone() -> None:
    values = np.random.default_rng(1).exponential(size=60)
    mean, low, high = paired_interval(values)
    error = values.std(ddof=1) / np.sqrt(60)
    below, above = stats.t.interval(0.95, 59, mean, error)
    assert low == pytest.approx(below)
    assert high > above + 0.2 * error
    assert paired_interval(-values) == pytest.approx((-mean, -high, -low))


def test_the_further_end_undoes_halls_transformation() -> None:
    values = np.random.default_rng(2).exponential(size=30)
    mean, _, high = paired_interval(values)
    n, skewness = 30, stats.skew(values)
    a, b = skewness / (3 * math.sqrt(n)), skewness / (6 * math.sqrt(n))
    t = (mean - high) / values.std(ddof=1) * math.sqrt(n)
    assert t + a * t**2 + a**2 * t**3 / 3 + b == pytest.approx(-stats.t.ppf(0.975, n - 1))


def test_one_datum_says_nothing_and_equal_models_do_not_differ() -> None:
    assert paired_interval(np.array([2.0])) == (2.0, -math.inf, math.inf)
    assert paired_interval(np.zeros(9)) == (0.0, 0.0, 0.0)
    assert paired_interval(np.full(9, 0.1) + 1e-17 * np.arange(9)) == pytest.approx((0.1,) * 3)


def test_the_expected_variance_is_that_of_labels_drawn_from_the_believed_mixture() -> None:
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(3), size=60), rng.dirichlet(np.ones(3), size=60)
    y = (p.cumsum(1) < rng.random((60, 1))).sum(1)
    # The weight by brute force: sampled from its prior, weighed by the likelihood.
    w = rng.random(40_000)
    rows = np.arange(60)
    logs = np.log(np.outer(w, p[rows, y]) + np.outer(1 - w, q[rows, y])).sum(1)
    weight = np.average(w, weights=np.exp(logs - logs.max()))
    mixed, n = weight * p + (1 - weight) * q, 400_000
    row = rng.integers(60, size=n)
    drawn = (mixed[row].cumsum(1) < rng.random((n, 1))).sum(1)
    gaps = np.log(p[row, drawn] / q[row, drawn])
    error = np.std((gaps - gaps.mean()) ** 2) / np.sqrt(n)
    found = expected_variance_of_classes(p, q, y)
    assert found == pytest.approx(gaps.var(), abs=4 * error + 0.01 * found)


def test_a_mistake_too_rare_to_be_seen_counts_for_labels() -> None:
    sure, even = np.tile([0.99, 0.01], (120, 1)), np.tile([0.97, 0.03], (120, 1))
    y = np.zeros(120, np.int64)  # as both expect with probability 0.03 to 0.3
    gaps = np.log(sure[:, 0] / even[:, 0])
    alone = paired_interval(gaps)
    held = paired_interval(gaps, expected_variance=expected_variance_of_classes(sure, even, y))
    assert alone.low == pytest.approx(alone.high)
    assert held.low < 0.0 < held.high


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("ratio", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("situation", comparison_coverage.REAL)
def test_the_interval_of_real_targets_covers_within_two_points_at_any_noise_ratio(
    situation: str, ratio: float
) -> None:
    n_times = 2000  # four standard errors of a coverage of 0.95 are 0.02
    found = comparison_coverage.coverage_of("real", situation, ratio, 50, n_times, seed=1)
    assert found.covered == pytest.approx(0.95, abs=0.02 + 0.02)


@pytest.mark.slow
@pytest.mark.parametrize("situation", comparison_coverage.LABELS)
def test_the_interval_of_classes_covers_at_least_two_points_less_than_it_says(
    situation: str,
) -> None:
    found = comparison_coverage.coverage_of("labels", situation, 0.3, 60, 1000, seed=1)
    assert found.covered > 0.95 - 0.02 - 0.03  # four standard errors


# --- claims about cross-validation that is judged on other rows than those that chose


def test_each_draw_is_judged_on_the_rows_that_it_leaves_out() -> None:
    rng = np.random.default_rng(0)
    own, others = rng.normal(size=(30, 4)), rng.normal(size=(30, 2))
    draws = draws_of_rows(30, seed=1)
    found = chosen(own, others, draws, winner=int(own.mean(0).argmax()))
    by_row: list[list[float]] = [[] for _ in own]
    for b, draw in enumerate(draws):
        rows = np.repeat(np.arange(30), draw.astype(int))
        assert len(rows) == 30
        k, j = own[rows].mean(0).argmax(), others[rows].mean(0).argmax()
        assert (found.own[b], found.other[b]) == (k, j)
        left_out = np.setdiff1d(np.arange(30), rows)
        gaps = own[left_out, k] - others[left_out, j]
        assert found.gaps[b] == pytest.approx(gaps.mean())
        for row, gap in zip(left_out, gaps, strict=True):
            by_row[row].append(gap)
    assert found.gap == pytest.approx(np.mean([np.mean(each) for each in by_row]))
    apparent = own.mean(0).max() - others.mean(0).max()
    assert found.optimism == pytest.approx(apparent - found.gap)
    assert found.value == pytest.approx(mean_left_out(own, found.own, draws))


def test_rows_of_a_group_are_drawn_or_left_out_together() -> None:
    units = np.array([7, 3, 3, 7, 9, 9, 9, 1])
    draws = draws_of_rows(8, units)
    assert 0 < len(draws) <= N_DRAWS
    for unit in np.unique(units):
        assert (np.ptp(draws[:, units == unit], axis=1) == 0).all()
    assert (draws == 0).any(1).all()


def test_a_single_group_has_no_rows_left_out() -> None:
    assert draws_of_rows(5, np.zeros(5, np.int64)).shape == (0, 5)


def test_one_architecture_and_one_simple_model_are_judged_on_all_rows() -> None:
    rng = np.random.default_rng(0)
    own, others = rng.normal(size=(40, 1)), rng.normal(size=(40, 1))
    found = chosen(own, others, draws_of_rows(40))
    assert found.gap == pytest.approx((own - others).mean())
    assert found.optimism == pytest.approx(0.0, abs=1e-12)


def test_the_interval_holds_that_of_the_winner_widened_by_the_folds() -> None:
    rng = np.random.default_rng(0)
    own, others = rng.normal(size=(40, 1)), rng.normal(size=(40, 1))
    found, winner = chosen(own, others, draws_of_rows(40)), paired_interval((own - others)[:, 0])
    low, high = interval_of(found, winner, 1.5)
    assert low <= winner.mean - 1.5 * (winner.mean - winner.low) + 1e-12
    assert high >= winner.mean + 1.5 * (winner.high - winner.mean) - 1e-12
    wide = interval_of(found, Paired(winner.mean, winner.mean, winner.mean), 1.0)
    assert wide == pytest.approx(tuple(np.quantile(found.gaps, [0.025, 0.975])))


def test_the_lower_end_takes_off_what_shared_training_rows_add_to_the_choice() -> None:
    rng = np.random.default_rng(0)
    own, none = rng.normal(size=(60, 20)), np.zeros((60, 1))
    found = chosen(own, none, draws_of_rows(60), winner=int(own.mean(0).argmax()))
    assert found.optimism > 0.1
    far = Paired(0.0, -1.0, 1.0)
    low, high = interval_of(found, far, 2.0)
    assert (low, high) == pytest.approx((found.gap - found.optimism - 2.0, found.gap + 2.0))


def test_a_winner_behind_what_the_mean_chooses_is_judged_by_its_own_rows() -> None:
    rng = np.random.default_rng(0)
    own, none = rng.normal(size=(60, 3)) - [2.0, 0.0, 0.5], np.zeros((60, 1))
    draws, best = draws_of_rows(60), int(own.mean(0).argmax())
    first, last = (chosen(own, none, draws, winner=k) for k in (best, 0))
    assert first.behind == 0.0
    assert last.gap == last.value == pytest.approx(own[:, 0].mean())
    assert last.behind == pytest.approx(first.value - own[:, 0].mean())
    point = Paired(0.0, 0.0, 0.0)
    (low, high), (before, above) = (interval_of(one, point, 1.0) for one in (last, first))
    assert (low, high) == pytest.approx((before - last.behind, above))


@pytest.mark.parametrize(("k", "factor"), [(2, 3**0.5), (5, 1.5), (10, (19 / 9) ** 0.5)])
def test_the_factor_of_k_folds_is_that_of_nadeau_and_bengio(k: int, factor: float) -> None:
    naive, corrected = 1 / k, 1 / k + 1 / (k - 1)  # of the variance between the folds
    assert factor_of_folds([(1, k - 1)] * k) == pytest.approx(factor)
    assert factor**2 == pytest.approx(corrected / naive)


def test_of_equal_architectures_the_winner_is_above_its_truth_but_not_after_the_correction() -> (
    None
):
    rng, n, n_studies, below, corrected = np.random.default_rng(0), 60, 60, 0, 0
    means, draws, rival = [], draws_of_rows(n)[:300], np.zeros((n, 1))
    for _ in range(n_studies):  # the truth is 0
        own = 0.5 * rng.normal(size=(n, 24))
        winner = paired_interval(own[:, own.mean(0).argmax()])
        found = chosen(own, rival, draws, winner=int(own.mean(0).argmax()))
        below += winner.low > 0
        corrected += interval_of(found, winner, 1.5)[0] > 0
        means.append((winner.mean, found.gap))
    assert below > 0.25 * n_studies  # as before the correction; 2.5 % is promised
    assert corrected <= 0.05 * n_studies
    (apparent, gap), (_, spread) = np.mean(means, axis=0), np.std(means, axis=0)
    assert apparent > 0.1
    assert abs(gap) < 3 * spread / n_studies**0.5


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("task", ["real", "classes"])
def test_where_folds_chose_the_winner_the_truth_is_seldom_below_the_interval(task: str) -> None:
    found = {one["by"]: one for one in claims_folds.cell(task, 100, 24, 40)}
    for by, one in found.items():
        assert one["after"]["below_folds"] <= 0.1, by  # 5 % promised, within 1.6 standard errors
        assert one["after"]["false_yes_folds"] <= 0.05, by
    assert found["mean"]["before"]["below_folds"] > 0.2
    assert found["mean"]["after"]["said"] < found["mean"]["before"]["said"]


# --- claims about PED-ANOVA: closed form, and optuna's own evaluator


def test_the_divergence_is_the_variance_of_the_ratio() -> None:
    cells, axis = np.array([0, 0, 1, 2, 2, 2]), Grid(3, ordered=False)
    p, q = np.array([2 + 1 / 3, 1 / 3, 1 / 3]) / 3, np.array([2, 1, 3]) / 6
    q = (6 * q + 1 / 3) / 7
    found = pearson_divergence(cells, axis, n_best=2)
    assert_allclose(found, ((p - q) ** 2 / q).sum())
    drawn = np.random.default_rng(0).choice(3, size=200_000, p=q)
    assert_allclose(np.var((p / q)[drawn]), found, rtol=0.02)
    assert pearson_divergence(cells, axis, n_best=6) == 0


@pytest.mark.parametrize("axis", [Grid(7, ordered=True), Grid(7, ordered=False)])
def test_a_density_sums_to_one_and_is_positive_where_nobody_looked(axis: Grid) -> None:
    found = density(np.array([2, 2, 3, 2]), axis)
    assert_allclose(found.sum(), 1)
    assert found.argmax() == 2
    assert found.min() > 0


def test_a_density_of_categories_is_their_counts_and_one_more_spread_over_all() -> None:
    found = density(np.array([0, 0, 2]), Grid(4, ordered=False))
    assert_allclose(found, np.array([2.25, 0.25, 1.25, 0.25]) / 4)


def study(n: int = 60) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(3)
    values = {
        "depth": rng.integers(1, 9, size=n).astype(float),
        "width": np.exp(rng.uniform(np.log(4), np.log(256), size=n)).round(),
        "rate": rng.uniform(0, 1, size=n),
    }
    score = 3 * np.log(values["width"]) - 0.5 * (values["depth"] - 4) ** 2
    return values, score


def test_the_importances_are_those_of_optuna() -> None:
    values, score = study()
    domains = {
        "depth": IntDistribution(1, 8),
        "width": IntDistribution(4, 256, log=True),
        "rate": FloatDistribution(0, 1),
    }
    axes = {"depth": Grid(8, True), "width": Grid(9, True), "rate": Grid(50, True)}
    cells = {
        name: ordered_cells(
            list(values[name]),
            low=domain.low,
            high=domain.high,
            log=domain.log,
            m=axes[name].cells,
        )
        for name, domain in domains.items()
    }
    oracle = optuna.create_study(direction="maximize")
    types = {"depth": int, "width": int, "rate": float}
    for i, value in enumerate(score):
        params = {name: types[name](values[name][i]) for name in domains}
        oracle.add_trial(
            optuna.create_trial(params=params, distributions=domains, value=float(value))
        )
    best_first = np.argsort(-score)
    for share in (0.1, 0.25):
        expected = PedAnovaImportanceEvaluator(target_quantile=share).evaluate(oracle)
        n_best = round(share * len(score))
        for name, axis in axes.items():
            found = share**2 * pearson_divergence(cells[name][best_first], axis, n_best=n_best)
            assert_allclose(found, expected[name], rtol=1e-6, err_msg=name)
