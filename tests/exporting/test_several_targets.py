"""Several real targets as delivered: coverage and metrics of each, in Python, page and card."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import nas_evidence
from nas_evidence.baselines.comparison import read_comparison
from nas_evidence.storage.tables import read_study_tables

pytestmark = pytest.mark.slow

_NAMES = ("narrow", "wide")


def frame(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    signal = x @ [1.0, -0.6, 0.3]
    narrow, wide = signal + 0.15 * rng.normal(size=n), 100 * (signal + rng.normal(size=n))
    return pd.DataFrame(x, columns=list("abc")).assign(narrow=narrow, wide=wide)


@pytest.fixture(scope="module", params=["gaussian", "heteroscedastic"])
def study(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> nas_evidence.Study:
    return nas_evidence.search(
        frame(200, 0), target=_NAMES, n_trials=1, families="linear", progress=False,
        out=tmp_path_factory.mktemp("several") / "study", test_fraction=0.3,
        settings={"plan.epochs": 60, "finalists": 0, "plan.likelihood": request.param},
    )  # fmt: skip


def test_each_target_has_its_coverage_on_screen_page_card_and_in_python(
    study: nas_evidence.Study,
) -> None:
    report = study.summary()
    found = read_comparison(study.folder)
    assert [one.name for one in found.by_target] == [*_NAMES]
    assert found.quarters == found.pit == found.calibration == ()
    said = " ".join([report.headline.intervals, *report.headline.advice])
    for one in found.by_target:
        assert f"{one.metrics['coverage_90']:.2f} of '{one.name}'" in said
        assert all(len(rival.by_target) == 2 for rival in found.baselines)
    shares = [one.metrics["coverage_90"] for one in found.by_target]
    assert all(0.7 < share <= 1 for share in shares)
    page = study.report().read_text(encoding="utf-8")
    assert '<details id="by-target">' in page
    exported = study.export()
    unseen = json.loads((exported / "evidence.json").read_text())["unseen"]
    card = (exported / "README.md").read_text(encoding="utf-8")
    for name in _NAMES:
        assert (
            f"- {name}: the intervals cover {100 * unseen['by_target'][name]['coverage_50']:.1f}%"
            in card
        )


def test_metrics_of_new_rows_are_of_each_target_and_of_their_mean(
    study: nas_evidence.Study,
) -> None:
    new = frame(400, 1)
    found, predicted = study.evaluate(new, level=0.8), study.predict(new, level=0.8)
    for k, name in enumerate(_NAMES):
        y = new[name].to_numpy()
        inside = (predicted.low[:, k] <= y) & (y <= predicted.high[:, k])
        assert found[f"coverage of {name}"] == pytest.approx(inside.mean())
        rmse = np.sqrt(np.mean((predicted.mean[:, k] - y) ** 2))
        assert found[f"rmse of {name}"] == pytest.approx(rmse)
    assert found["rmse"] == pytest.approx(np.mean([found[f"rmse of {name}"] for name in _NAMES]))
    lines = dict(found.lines())
    assert lines["80 % intervals cover of narrow"] == found["coverage of narrow"]
    assert lines["RMSE of wide"] == found["rmse of wide"]


def test_the_rmse_of_a_trial_is_the_mean_over_targets(study: nas_evidence.Study) -> None:
    trial = read_study_tables(study.folder).row_of_network(0)["test_rmse"]
    found = read_comparison(study.folder) or study.summary().comparison
    each = [one.metrics["rmse"] for one in found.by_target]
    assert trial == pytest.approx(np.mean(each), rel=1e-3)
    assert found.metrics["rmse"] == pytest.approx(np.mean(each))


@pytest.mark.long
def test_each_target_is_judged_on_rows_that_did_not_choose_the_winner(tmp_path: Path) -> None:
    study = nas_evidence.search(
        frame(60, 0), target=_NAMES, n_trials=3, progress=False, out=tmp_path / "study",
        settings={"plan.epochs": 2, "finalists": 0},
    )  # fmt: skip
    study.summary()
    found = read_comparison(study.folder)
    assert (found.on, found.chosen_among, found.corrected) == ("folds", 3, True)
    shares = [one.metrics["coverage_90"] for one in found.by_target]
    assert found.metrics["coverage"] == pytest.approx(np.mean(shares))
