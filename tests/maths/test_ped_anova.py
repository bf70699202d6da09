"""Claims about PED-ANOVA: closed form, and optuna's own evaluator."""

import numpy as np
import optuna
import pytest
from numpy.testing import assert_allclose
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.importance import PedAnovaImportanceEvaluator

from nas_evidence.maths.ped_anova import Grid, density, ordered_cells, pearson_divergence


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
