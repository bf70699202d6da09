"""Claims about which columns of a table a network uses."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator
from sklearn.inspection import permutation_importance

import nas_evidence
from nas_evidence.baselines.comparison import ColumnImportance, Importance, read_comparison
from nas_evidence.baselines.permutation import loss_increases
from nas_evidence.data.preparation import prepare
from nas_evidence.reporting.figures import drawn_columns
from nas_evidence.reporting.svg import colour
from nas_evidence.reporting.templating import caption
from nas_evidence.reporting.words import MOST
from nas_evidence.spec.likelihoods import TARGET_KINDS

pytestmark = pytest.mark.usefixtures("no_shortcuts")

BETA = np.array([2.0, -1.0, 0.0])


def linear() -> tuple[np.ndarray, np.ndarray]:
    """Return inputs of three scales, and what a linear model says of them."""
    x = np.random.default_rng(0).normal(size=(200, 3)) * [1.0, 3.0, 2.0]
    return x, x @ BETA


def test_permuting_a_column_of_a_linear_model_raises_the_squared_error_by_twice_its_share() -> (
    None
):
    x, y = linear()
    found = loss_increases(
        lambda z: float(((z @ BETA - y) ** 2).mean()), x, [[0], [1], [2]],
        rng=np.random.default_rng(1), repeats=200,
    )  # fmt: skip
    expected = 2 * BETA**2 * x.var(0)  # the mean over all permutations of these very rows
    errors = found.std(1, ddof=1) / np.sqrt(200)
    assert (np.abs(found.mean(1) - expected) <= 4 * errors + 1e-12).all()
    assert (found[2] == 0).all()


def test_columns_that_move_together_keep_what_lies_between_them() -> None:
    x, _ = linear()
    x[:, 1] = x[:, 0]
    rng = np.random.default_rng(0)
    found = loss_increases(lambda z: float(np.abs(z[:, 0] - z[:, 1]).sum()), x, [[0, 1]], rng=rng)
    assert (found == 0).all()


class _Linear(BaseEstimator):
    def fit(self, x: np.ndarray, y: np.ndarray) -> "_Linear":
        return self

    def predict(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(x @ BETA)


@pytest.mark.slow
def test_importance_is_that_of_scikit_learn_within_the_noise_of_permutations() -> None:
    x, y = linear()
    theirs = permutation_importance(
        _Linear(), x, y, scoring="neg_mean_squared_error", n_repeats=100, random_state=0
    )
    ours = loss_increases(
        lambda z: float(((z @ BETA - y) ** 2).mean()), x, [[0], [1], [2]],
        rng=np.random.default_rng(1), repeats=100,
    )  # fmt: skip
    slack = 4 * theirs.importances_std * np.sqrt(2 / 100)
    assert (np.abs(ours.mean(1) - theirs.importances_mean) <= slack).all()
    assert ours.std(1)[:2] == pytest.approx(theirs.importances_std[:2], rel=0.4)


def test_the_features_of_each_column_are_found_by_its_name() -> None:
    frame = pd.DataFrame(
        {
            "pet": ["cat", "dog", "cat", "dog"],
            "age": [1.5, np.nan, 7.25, 3.0],
            "day": ["2024-01-02", "2024-03-01", "2025-05-09", "2025-06-03"],
        }
    )
    prepared, _ = prepare(frame, drop=(), categorical=(), numeric=(), where="it")
    assert list(prepared.places) == ["pet", "age", "day"]
    names = prepared.feature_names
    of = {name: {names[at] for at in places} for name, places in prepared.places.items()}
    assert of["pet"] == {"pet = cat", "pet = dog", "pet = (other)"}
    assert of["age"] == {"age", "age is missing"}
    assert all(name.endswith("of day") for name in of["day"])
    assert sorted(at for places in prepared.places.values() for at in places) == list(
        range(len(names))
    )


def many(on: str = "test", metric: str = "rmse") -> Importance:
    columns = tuple(ColumnImportance(column=f"c{i}", mean=1 - i / 9, std=0.1) for i in range(25))
    return Importance(metric=metric, on=on, n=1000, repeats=5, left_out=3, columns=columns)


def test_the_chart_says_which_rows_it_is_from_and_what_is_left_out() -> None:
    figure = str(drawn_columns(many(), TARGET_KINDS["regression"]))
    bars = re.findall(r'class="box".*?fill="(.*?)".*?<title>(.*?)</title>', figure)
    assert len(bars) == MOST["columns"]
    assert bars[1][1].endswith(": 0.9 ± 0.1")
    assert [fill == colour(0) for fill, _ in bars[7:10]] == [True, False, False]
    on_test, on_training = caption("columns", many()), caption("columns", many("training"))
    assert "on 1,000 test rows." in on_test
    assert "on 1,000 rows that the winner was trained on, so the values are optimistic" in (
        on_training
    )
    assert "The first 10 of 25 columns are drawn. 3 more columns were not tried." in on_test


@pytest.mark.parametrize(
    ("metric", "task", "words"),
    [
        ("log_loss", "classification", "rise in log loss"),
        ("accuracy", "classification", "fall in accuracy"),
        ("r2", "regression", "fall in R²"),
        ("coverage", "regression", "coverage of the 90 % intervals: further from 90 %"),
    ],
)
def test_the_axis_says_which_way_a_prediction_becomes_worse(
    metric: str, task: str, words: str
) -> None:
    assert f">{words}</text>" in drawn_columns(many(metric=metric), TARGET_KINDS[task])


@pytest.fixture(scope="module", params=["classes", "real"])
def study(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> nas_evidence.Study:
    """A study of a table in which `kind` and `x` alone decide; `flat` is constant in the test."""
    rng = np.random.default_rng(0)
    x, noise, kind = rng.normal(size=300), rng.normal(size=300), rng.choice(["a", "b"], size=300)
    flat = np.where(np.arange(300) < 200, rng.normal(size=300), 0.5)
    y = 2 * x + 2 * (kind == "a") + 0.1 * rng.normal(size=300)
    target = np.where(y > 1, "yes", "no") if request.param == "classes" else y
    frame = pd.DataFrame({"noise": noise, "kind": kind, "x": x, "flat": flat, "target": target})
    folder = tmp_path_factory.mktemp(request.param)
    frame[:200].to_csv(folder / "mine.csv", index=False)
    frame[200:].to_csv(folder / "test.csv", index=False)
    return nas_evidence.search(
        folder / "mine.csv", target="target", test=folder / "test.csv", n_trials=1,
        out=folder / "study", progress=False, settings={"plan.epochs": 30, "finalists": 0},
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.slow
def test_a_column_that_decides_ranks_first_noise_is_near_0_and_a_constant_column_is_exactly_0(
    study: nas_evidence.Study,
) -> None:
    found = study.importance()
    assert list(found.columns) == ["column", "mean", "std"]
    assert list(found["column"][:2]) == ["x", "kind"]
    by = found.set_index("column")
    decide = by.loc[["x", "kind"]]
    assert (decide["mean"] > 2 * decide["std"]).all()  # as the chart shows in colour
    assert abs(by.loc["noise", "mean"]) < 0.05 * by.loc["x", "mean"]
    assert tuple(by.loc["flat"]) == (0.0, 0.0)
    pd.testing.assert_frame_equal(found, study.importance())


@pytest.mark.slow
def test_the_report_draws_what_the_export_says_and_keeps_it(study: nas_evidence.Study) -> None:
    page = study.report()
    stored = read_comparison(study.folder)
    assert (stored.importance.on, stored.importance.n) == ("test", 100)
    told = pd.DataFrame([one.model_dump() for one in stored.importance.columns])
    pd.testing.assert_frame_equal(told, study.importance(), rtol=1e-4, atol=1e-6)
    html = page.read_text(encoding="utf-8")
    assert '<div id="columns" class="figure">' in html
    assert "Which columns of the table the winner uses" in html
    first = told.iloc[0]
    text = (page.parent / "report.md").read_text(encoding="utf-8")
    assert f"| {first['column']} | {first['mean']:.4f} | {first['std']:.4f} |" in text
    values = json.loads((page.parent / "report.json").read_text(encoding="utf-8"))
    columns = values["comparison"]["importance"]["columns"]
    assert [one["column"] for one in columns] == list(told["column"])


@pytest.mark.slow
def test_a_metric_of_which_more_is_better_is_turned_round(study: nas_evidence.Study) -> None:
    labels = study.spec.plan.likelihood == "categorical"
    found = study.importance("accuracy" if labels else "r2").set_index("column")
    assert found.loc["x", "mean"] > 0.1
    with pytest.raises(ValueError, match="the metric of"):
        study.importance("rmse" if labels else "f1")


@pytest.mark.slow
def test_the_columns_of_an_array_are_named_by_their_place(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3)).astype(np.float32)
    quick = {"plan.epochs": 2, "finalists": 0, "estimators": ["two_fold"], "objective": "two_fold"}
    study = nas_evidence.search(
        x, (x[:, 0] > 0).astype(int), n_trials=1, out=tmp_path / "s", settings=quick,
        progress=False,
    )  # fmt: skip
    assert set(study.importance()["column"]) == {"x0", "x1", "x2"}
