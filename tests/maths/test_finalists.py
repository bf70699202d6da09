"""Claims about the race: probabilities that hold, and replicates where they decide."""

import numpy as np
import pytest
from scipy import stats

from nas_evidence.maths.finalists import N_DRAWS, next_replicates, posterior_of

#: Standard errors that a frequency over the draws may be off.
K = 4.0


def test_two_architectures_with_many_repeats_differ_as_a_normal_says() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(size=400)
    noise = (noise - noise.mean()) / noise.std()
    values = [noise + shift for shift in (0.06, 0.0, -3.0, -4.0, -5.0, -7.0)]  # a wide prior
    found = posterior_of(values, ["mlp"] * 6, seed=1)
    assert found is not None
    expected = stats.norm.cdf(0.06 / np.sqrt(2 / 400))
    assert abs(found.best[0] - expected) < 0.03
    assert found.noise == pytest.approx([1.0] * 6, rel=0.1)


def test_probabilities_add_up_and_the_worse_half_has_none() -> None:
    values = [[float(i), i + 0.3, i - 0.2] if i > 16 else [float(i)] for i in range(20)]
    found = posterior_of(values, ["mlp", "cnn"] * 10, seed=0)
    assert found is not None
    assert found.best.sum() == pytest.approx(1.0)
    assert (found.best[:10] == 0).all()
    assert found.draws.shape == (N_DRAWS, 20)


def test_a_winner_of_one_seed_is_expected_to_fall_back() -> None:
    rng = np.random.default_rng(3)
    values = [[x, x + rng.normal(), x + rng.normal()] for x in rng.normal(size=9)]
    values.append([max(map(np.mean, values)) + 3.0])
    found = posterior_of(values, ["mlp"] * 10, seed=0)
    assert found is not None
    assert found.draws[:, -1].mean() < values[-1][0] - 0.5


def test_the_noise_of_a_family_is_its_own() -> None:
    rng = np.random.default_rng(0)
    calm = [list(3 + 0.01 * rng.normal(size=6)) for _ in range(4)]
    loud = [list(3 + 1.0 * rng.normal(size=6)) for _ in range(4)]
    found = posterior_of([*calm, *loud], ["mlp"] * 4 + ["cnn"] * 4, seed=0)
    assert found is not None
    assert found.noise[0] < 0.2 * found.noise[-1]


@pytest.mark.parametrize("values", [[[1.0, 2.0]], [[1.0], [2.0]], [[1.0, 1.0], [2.0, 2.0]]])
def test_without_noise_to_measure_nothing_is_said(values: list[list[float]]) -> None:
    assert posterior_of(values, ["mlp"] * len(values), seed=0) is None


def test_replicates_go_to_those_that_may_be_best_and_repeat_with_the_seed() -> None:
    values = [[3.0, 3.1, 2.9], [3.05, 2.95, 3.0], [0.0, 0.1, 0.2], [-1.0, -1.1, -0.9]]
    found = posterior_of(values, ["mlp"] * 4, seed=0)
    assert found is not None
    chosen = next_replicates(found, [0, 1, 2, 3], 40, seed=5)
    assert set(chosen) == {0, 1}
    assert 10 <= chosen.count(0) <= 30
    assert next_replicates(found, [0, 1, 2, 3], 40, seed=5) == chosen


@pytest.mark.slow
def test_a_claim_holds_as_often_as_it_says_in_studies_drawn_from_the_model() -> None:
    rng = np.random.default_rng(0)
    claims, hits = [], []
    for _ in range(150):
        truth = rng.normal(size=8) if rng.random() < 0.5 else -rng.exponential(size=8)
        values = [truth[i] + 0.5 * rng.normal(size=3) for i in range(8)]
        found = posterior_of(values, ["mlp"] * 8, seed=1)
        assert found is not None
        first = int(np.argmax([v.mean() for v in values]))
        claims.append(found.best[first])
        hits.append(first == truth.argmax())
    error = np.sqrt(sum(p * (1 - p) for p in claims)) / 150
    assert abs(np.mean(hits) - np.mean(claims)) < K * error
