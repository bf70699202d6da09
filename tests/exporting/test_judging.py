"""Claims about the winner beside simple models: its own stored predictions, on the same rows."""

from pathlib import Path

import numpy as np
import pytest

from nas_evidence.api.judging import kept_judgement
from nas_evidence.judgement import read_judgement
from nas_evidence.store import read_table


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from nas_evidence.api.study import search

    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 6)).astype(np.float32)
    y = (x[:, 0] + rng.logistic(size=400) > 0).astype(np.int64)
    out = tmp_path_factory.mktemp("judged")
    data = out / "mine.npz"
    np.savez(data, x_train=x[:120], y_train=y[:120], x_test=x[120:], y_test=y[120:])
    quick = {"plan.epochs": 3, "estimators": ["two_fold"]}
    search(data, n_trials=1, settings=quick, out=out / "study", progress=False)
    return out / "study"


@pytest.mark.slow
def test_the_winners_metrics_are_those_of_its_trial_and_the_loss_gaps_are_paired(
    folder: Path,
) -> None:
    found = kept_judgement(folder)
    assert found is not None
    assert found == read_judgement(folder)
    [trial] = read_table(folder, "trials").to_dict("records")
    assert found.metrics["log_loss"] == pytest.approx(trial["test_nll_per_datum"], rel=1e-5)
    assert found.metrics["accuracy"] == pytest.approx(trial["test_accuracy"])
    assert (found.on, found.n) == ("test", 280)
    assert sum(map(sum, found.confusion)) == 280
    assert sum(point.n for point in found.calibration) == 280
    for one in found.yardsticks:
        gap = one.metrics["log_loss"] - found.metrics["log_loss"]
        assert one.behind == pytest.approx(gap)
        assert one.error is not None
    assert kept_judgement(folder) == found
