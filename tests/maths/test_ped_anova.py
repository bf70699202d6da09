"""Claims about PED-ANOVA: closed form, optuna's own evaluator, and what chance can do."""

import warnings

import numpy as np
import optuna
import pytest
from numpy.testing import assert_allclose
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.importance import PedAnovaImportanceEvaluator

from nas_evidence.maths.ped_anova import (
    MIN_TRIALS,
    Axis,
    density,
    holm,
    ordered_cells,
    pearson_divergence,
    ped_anova,
)


def test_the_divergence_is_the_variance_of_the_ratio() -> None:
    p, q = np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.25, 0.5])
    assert_allclose(pearson_divergence(p, q), 0.25 * 1 + 0.5 * 0.25)
    assert pearson_divergence(q, q) == 0
    rng = np.random.default_rng(0)
    drawn = rng.choice(3, size=200_000, p=q)
    assert_allclose(np.var((p / q)[drawn]), pearson_divergence(p, q), rtol=0.02)


@pytest.mark.parametrize("axis", [Axis(7, ordered=True), Axis(7, ordered=False)])
def test_a_density_sums_to_one_and_is_positive_where_nobody_looked(axis: Axis) -> None:
    found = density(np.array([2, 2, 3, 2]), axis)
    assert_allclose(found.sum(), 1)
    assert found.argmax() == 2
    assert found.min() > 0


def test_a_density_of_categories_is_their_counts_and_one_more_spread_over_all() -> None:
    found = density(np.array([0, 0, 2]), Axis(4, ordered=False))
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
    axes = {"depth": Axis(8, True), "width": Axis(9, True), "rate": Axis(50, True)}
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
    for share in (0.1, 0.25):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            expected = optuna.importance.get_param_importances(
                oracle, evaluator=PedAnovaImportanceEvaluator(target_quantile=share)
            )
        found = ped_anova(cells, score, axes=axes, seed=0, n_best=round(share * len(score)))
        for name, one in found.items():
            assert_allclose(one.share, expected[name], rtol=1e-6, err_msg=name)
    assert found["width"].chance < 0.05 < found["rate"].chance


@pytest.mark.slow
def test_what_decides_nothing_looks_important_as_often_as_chance_says() -> None:
    rng = np.random.default_rng(0)
    axes = {"a": Axis(6, True), "b": Axis(3, False)}
    chances = []
    for seed in range(40):
        cells = {"a": rng.integers(6, size=24), "b": rng.integers(3, size=24)}
        found = ped_anova(cells, rng.normal(size=24), axes=axes, seed=seed)
        chances += [one.chance for one in found.values()]
        assert_allclose(sum(one.share for one in found.values()), 1)
    below = np.mean(np.array(chances) <= 0.25)
    assert abs(below - 0.25) < 4 * np.sqrt(0.25 * 0.75 / len(chances))


def test_too_few_trials_say_nothing_and_missing_scores_do_not_count() -> None:
    n = MIN_TRIALS
    axes, cells = {"a": Axis(n, True)}, {"a": np.arange(n)}
    score = np.arange(n, dtype=float)
    assert ped_anova(cells, score, axes=axes, seed=0)
    score[0] = np.nan
    assert ped_anova(cells, score, axes=axes, seed=0) == {}


def test_corrected_chances_keep_the_order_of_the_chances() -> None:
    """Holm (1979): 3 x 0.01, 2 x 0.03, and 0.04 is at least the corrected one before it."""
    assert_allclose(holm([0.01, 0.04, 0.03]), [0.03, 0.06, 0.06])
