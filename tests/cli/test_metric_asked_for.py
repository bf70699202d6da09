"""The metric asked for: in the report, in `predict`, in the export, in Python."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import run
from messages import refused
from sklearn.metrics import f1_score
from typer.testing import CliRunner
from unseen import delivered_unseen

import nas_evidence
from nas_evidence.baselines.comparison import read_comparison
from nas_evidence.cli.main import app
from nas_evidence.exporting.predictor import Predictor
from nas_evidence.exporting.winner import load_winner
from nas_evidence.plumbing.time_limit import TimeLimit
from nas_evidence.storage.tables import read_study_tables

QUICK = ("--executor", "inline", "--trials", 1, "--set", "plan.epochs=3", "--set",
         'estimators=["diag_ef", "two_fold"]', "--set", "objective=two_fold")  # fmt: skip


def rare(n: int = 120) -> pd.DataFrame:
    """A table with one "yes" in five, of which the inputs tell a little."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(n, 2))
    chance = 1 / (1 + np.exp(-(2 * x[:, 0] - 2)))
    bought = np.where(generator.random(n) < chance, "yes", "no")
    return pd.DataFrame({"x": x[:, 0], "z": x[:, 1], "bought": bought})


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("metric")
    rare().to_csv(folder / "rare.csv", index=False)
    asked = ("--target", "bought", "--metric", "f1")
    text = run("search", "rare.csv", *asked, *QUICK, folder=folder).stdout
    assert "note:   On rows not trained on, F1 0." in text
    assert "`predict` says 'yes' from a probability of 0." in text
    assert "which is best by F1 on rows not trained on." in text
    return folder


@pytest.mark.long
@pytest.mark.slow
def test_the_threshold_is_the_best_on_the_predictions_of_the_folds(home: Path) -> None:
    tables = read_study_tables(home / "runs" / "rare")
    arrays = nas_evidence.load(tables.folder).arrays()
    table = delivered_unseen(load_winner(tables, arrays, 0))
    p = (table[:, :2].double() / table[:, 2:].double()).softmax(1).numpy()[:, 1]
    meaning = json.loads((tables.folder / "export" / "meaning.json").read_text("utf-8"))
    at = meaning["thresholds"]["f1"]
    best = max(f1_score(arrays.y_train, p >= t) for t in p)
    assert f1_score(arrays.y_train, p >= at) == pytest.approx(best)
    stored = read_comparison(tables.folder)
    assert stored.thresholds == meaning["thresholds"]
    assert stored.metrics["f1"] == pytest.approx(f1_score(arrays.y_train, p > 0.5))


@pytest.mark.slow
def test_the_export_predicts_the_class_by_the_threshold_of_the_metric(home: Path) -> None:
    predictor = Predictor.load(home / "runs" / "rare" / "export")
    found = predictor.predict(rare(40))
    assert found.metric == "f1"
    assert ((found.labels == "yes") == (found.probabilities[:, 1] >= found.threshold)).all()
    judged = found.measures(rare(40)["bought"])
    assert next(iter(judged)) == "f1"
    assert judged["f1"] == pytest.approx(
        f1_score(rare(40)["bought"], found.labels, pos_label="yes")
    )
    plain = predictor.predict(rare(40), metric="log_loss")
    assert plain.threshold is None
    assert ((plain.labels == "yes") == (plain.probabilities[:, 1] > 0.5)).all()  # type: ignore[index]
    with refused("unknown-metric", "'rmse'", "real targets"):
        predictor.predict(rare(40), metric="rmse")


@pytest.mark.slow
def test_predict_says_the_metric_first_and_where_the_classes_part(home: Path) -> None:
    lines = run("predict", "runs/rare", "rare.csv", folder=home).stdout.splitlines()
    n_rows = len(pd.read_csv(home / "rare.csv"))
    at = lines.index(f"predictions: predictions.csv ({n_rows} rows)")
    assert at == 6  # after the header and five rows
    assert lines[at + 1].startswith("class: yes from a probability of 0.")
    assert lines[at + 1].endswith("the best by f1 on rows not trained on")
    assert lines[at + 2].startswith("F1\t")
    asked = ("--metric", "roc_auc", "--to", "other.csv")
    other = run("predict", "runs/rare", "rare.csv", *asked, folder=home).stdout.splitlines()
    assert other[at + 1].startswith("ROC AUC\t")


@pytest.mark.long
@pytest.mark.slow
def test_a_metric_may_change_when_a_study_goes_on_and_its_export_follows(home: Path) -> None:
    run("search", "rare.csv", "--target", "bought", "--out", "again", *QUICK, folder=home)
    more = ("--executor", "inline", "--metric", "balanced_accuracy")
    run("resume", "again", *more, folder=home)
    found = nas_evidence.load(home / "again").predict(rare(40))
    assert found.metric == "balanced_accuracy"
    assert Predictor.load(home / "again" / "export").meaning["metric"] == "balanced_accuracy"


@pytest.mark.long
@pytest.mark.slow
def test_report_and_predict_say_the_same_numbers_of_the_same_weighted_rows(
    tmp_path: Path,
) -> None:
    frame = rare().assign(price=lambda f: 1000 * f["x"] ** 2).drop(columns="bought")
    frame["n"] = np.arange(len(frame)) % 3
    frame[:80].to_csv(tmp_path / "train.csv", index=False)
    frame[80:].to_csv(tmp_path / "test.csv", index=False)
    asked = ("--target", "price", "--test", "test.csv", "--metric", "mae", "--weights", "n",
             "--out", "s")  # fmt: skip
    run("search", "train.csv", *asked, *QUICK, folder=tmp_path)
    reported = read_comparison(tmp_path / "s")
    said = json.loads(run("predict", "s", "test.csv", "--json", folder=tmp_path).stdout)
    for name, value in reported.metrics.items():
        assert said["measures"][name] == pytest.approx(value, rel=1e-4), name
    assert next(iter(said["measures"])) == "mae"
    assert "nll" not in said["measures"]
    frame.drop(columns="n").to_csv(tmp_path / "plain.csv", index=False)
    for name, words in (("test", "often as in the column 'n'"), ("plain", "once: there is no")):
        asked = ("s", f"{name}.csv", "--to", f"{name}-said.csv")
        assert (
            f"metrics: each row counts {'as ' * (name == 'test')}{words}"
            in run("predict", *asked, folder=tmp_path).stdout
        )


@pytest.mark.slow
def test_a_search_without_time_for_simple_models_says_the_metric_and_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def at_once(self: TimeLimit, seconds: float) -> Iterator[None]:
        raise TimeoutError
        yield

    monkeypatch.setattr(TimeLimit, "stopping", at_once)
    monkeypatch.setattr("nas_evidence.cli.search._log_to", lambda path: None)
    monkeypatch.chdir(tmp_path)
    rare().to_csv("rare.csv", index=False)
    asked = ["search", "rare.csv", "--target", "bought", "--metric", "f1", "--time", "1h"]
    said = CliRunner().invoke(app, [*asked, *map(str, QUICK)], catch_exceptions=False).stdout
    assert "note:   On rows not trained on, F1 0." in said
    assert (
        "there was no time for majority class, logistic regression, gradient boosting, importance "
        "of the columns: "
    ) in said
