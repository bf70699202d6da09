"""The statistics by which scores are judged on pools are what they say."""

from pathlib import Path

import judge
import numpy as np
import pandas as pd
import pools
import pytest
import result_tables
from scipy.stats import spearmanr


def test_rho_is_spearmans_and_by_own_loss_it_is_the_mean_over_seeds() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 8, (40, 2)).astype(float)  # with ties
    y = x + 2 * rng.normal(size=(40, 2))
    each = [spearmanr(*both)[0] for both in zip(x.T, y.T, strict=True)]
    assert judge.spearman(x, y) == pytest.approx(each)
    assert np.isnan(judge.spearman(x[:, 0], np.ones(40)))
    pool = judge.Ranked(y, -y, {"score": -x}, True, 300, [])
    found = judge.by_own_loss("made", pool, ["score"])["scores"]["score"]
    assert found["rho"] == found["rho_second"] == pytest.approx(np.mean(each))


def _mean_rho(x: np.ndarray, y: np.ndarray) -> float:
    """Return Spearman's rho of the rows [runs, n], mean over runs; no ties."""
    a, b = (v.argsort(1).argsort(1) - (v.shape[1] - 1) / 2 for v in (x, y))
    return float(((a * b).sum(1) / (a * a).sum(1)).mean())


def _simulated(r: float, m: int, shape: str, *, shared: float = 0.0) -> tuple[float, float]:
    """Return rho of a score with the mean of m seeds, and what is said to be attainable.

    18 networks, 4,000 runs. The score is the truth plus `shared` times the noise of seed 0.
    """
    rng = np.random.default_rng(0)
    truth = {"normal": rng.normal, "exponential": rng.exponential}[shape](size=(4000, 18))
    noise = rng.normal(size=(m + 1, 4000, 18)) * np.sqrt(1 / r - 1)
    seeds = truth + noise
    said = judge.attainable(_mean_rho(seeds[0], seeds[m]), m)
    return _mean_rho(truth + shared * noise[0], seeds[:m].mean(0)), said


@pytest.mark.parametrize("m", [1, 2, 3])
@pytest.mark.parametrize("r", [0.1, 0.3, 0.6, 0.9])
def test_a_score_without_noise_reaches_the_root_of_spearman_and_brown_also_in_ranks(
    r: float, m: int
) -> None:
    """Proved for correlations. In ranks a little too high, more so if the truth is skewed."""
    found, said = _simulated(r, m, "normal")
    assert -0.03 < found - said < 0.005
    found, said = _simulated(r, m, "exponential")
    assert -0.09 < found - said < 0.005


@pytest.mark.parametrize("r", [0.3, 0.6, 0.9])
def test_the_reliability_of_a_seed_is_no_limit_and_a_score_that_shares_noise_has_none(
    r: float,
) -> None:
    """Rho with another seed, said**2, was called a ceiling; a score without noise is above it."""
    found, said = _simulated(r, 1, "normal")
    assert found > said**2 + 0.05
    shares, _ = _simulated(r, 1, "normal", shared=0.8)
    assert shares > said + 0.02


def test_what_is_attainable_in_closed_form() -> None:
    assert judge.attainable(1.0) == judge.attainable(1.0, 3) == 1
    assert judge.attainable(0.0, 3) == judge.attainable(-0.2) == 0
    assert judge.attainable(0.25) == pytest.approx(0.5)
    assert judge.attainable(0.5, 2) == pytest.approx((2 / 3) ** 0.5)
    assert np.isnan(judge.attainable(float("nan"), 2))
    losses = np.array([[1.0, 1, 4], [2, 2, 3], [3, 3, 2], [4, 4, 1]])
    assert judge.between_seeds(losses) == pytest.approx((1 - 1 - 1) / 3)
    assert np.isnan(judge.between_seeds(losses[:, :1]))


@pytest.mark.slow
def test_a_difference_has_the_interval_of_the_same_draws_for_both_scores() -> None:
    rng = np.random.default_rng(0)
    loss = rng.normal(size=(18, 1)) + 0.5 * rng.normal(size=(18, 3))
    noise = rng.normal(size=(18, 3))
    scores = {
        "good": -loss,
        "same": -2 * loss,
        "bad": noise,
        "partly": np.where(loss > 1, np.nan, -loss),
    }
    own = judge.Ranked(loss, -loss, scores, True, 300, [("mlp", 1, k) for k in range(18)])
    found = judge.differences([own] * 3, [("good", "same"), ("good", "bad"), ("good", "gone")])
    assert found["good - same, rho"] == found["good - same, regret"] == [0, 0, 0]
    mean, low, high = found["good - bad, rho"]
    assert 0 < low < mean < high
    assert found["good - bad, regret"][0] < 0
    assert "good - gone, rho" not in found
    of = judge.judged(own, ["good", "bad", "partly"])["scores"]
    assert of["bad"]["rho"] < of["partly"]["rho"] <= of["good"]["rho"]


def test_a_pool_is_judged_by_its_files_and_a_run_of_it_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[str] = []

    def row_of(pool: object, data: object, fresh: object, architecture: object, seed: int) -> dict:
        trained.append(f"{architecture} {seed}")
        row = {"status": "complete", "n_data": 300, "test_nll": len(trained), "test_rmse": 0.5}
        return row | {"test_accuracy": None, "e5": -0.1 * len(trained), "cpu_seconds": 1.0}

    monkeypatch.setattr(pools, "drawn", lambda pool, root, seed: (None, None))
    monkeypatch.setattr(pools, "row_of", row_of)
    own, file = pools.Pool("made", 300, 100), tmp_path / "rank" / "made.csv"
    for n, seed in ((2, 0), (5, 0), (5, 0), (5, 1)):
        pools.run(own, seed, tmp_path, file, n)
    assert len(trained) == len({*trained}) == 10
    found = judge.read("rank", "made", tmp_path, complete=True)
    assert found.real
    assert found.loss.T.tolist() == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]
    assert judge.judged(found, ["e5"])["scores"]["e5"] == {"rho": 1, "regret": 0}


def test_trust_is_rho_with_the_test_loss_of_other_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = {0: [1.0, 2.0, 3.0, 4.0], 1: [4.0, 3.0, 2.0, 1.0]}
    rows = [
        (seed, "mlp", 1, width, loss, -loss)
        for seed, each in losses.items()
        for width, loss in zip((8, 16, 32, 64), each, strict=True)
    ]
    made = pd.DataFrame(rows, columns=[*judge.KEY, "test_nll", "last_layer_conditional"])
    monkeypatch.setattr(judge, "read", lambda group, pool: judge.ranked(made))
    # its own loss is ordered perfectly
    assert result_tables.by_another_seed("made") == (-1.0, 0.0)
    alone = judge.ranked(made[made["seed"] == 0])
    monkeypatch.setattr(judge, "read", lambda group, pool: alone)
    assert result_tables.by_another_seed("made") is None
