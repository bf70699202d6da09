"""`predict` for somebody who predicts a second time, the wrong file, or what was trained on."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import QUICK, run
from messages import refused
from sklearn.metrics import f1_score
from typer.testing import CliRunner
from unseen import delivered_unseen

import nas_evidence
from nas_evidence.baselines.comparison import read_comparison
from nas_evidence.cli.main import app
from nas_evidence.cli.predict import _beside, predict
from nas_evidence.data.given import rows_seen
from nas_evidence.exporting.predictor import Predictor
from nas_evidence.exporting.winner import load_winner
from nas_evidence.plumbing.time_limit import TimeLimit
from nas_evidence.storage.tables import read_study_tables


def visits(seed: int, n: int = 60) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    age = generator.normal(50, 9, n)
    return pd.DataFrame(
        {
            "key": [f"{i:03d}" for i in range(n)],
            "age": age,
            "town": generator.choice(["rome", "oslo"], n),
            "ill": np.where(age > 50, "yes", "no"),
        }
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    nas_evidence.search(
        visits(0), target="ill", drop=["key"], n_trials=1, settings=QUICK, progress=False,
        out=folder / "runs" / "ills",
    )  # fmt: skip
    visits(0).to_csv(folder / "old.csv", index=False)
    visits(1).to_csv(folder / "new.csv", index=False)
    visits(1).assign(ill=["perhaps", *visits(1)["ill"][1:]]).to_csv(
        folder / "odd.csv", index=False
    )
    return folder


@pytest.mark.slow
def test_predict_says_which_rows_were_trained_on(home: Path) -> None:
    for place in ("runs/ills", "runs/ills/export"):
        said = run("predict", place, "old.csv", "--to", "p.csv", "--force", folder=home)
        assert (
            "60 of 60 rows were in the training data: these metrics are not of new data"
            in said.stderr
        )
        assert "accuracy\t" in said.stdout
    said = run("predict", "runs/ills", "new.csv", "--to", "p-new.csv", folder=home)
    assert "training data" not in said.stderr
    assert "columns that the network does not use: key" in said.stderr


@pytest.mark.slow
def test_predict_says_how_class_weights_decide(home: Path, tmp_path: Path) -> None:
    nas_evidence.search(
        visits(0), target="ill", drop=["key"], class_weight={"yes": 2.5}, n_trials=1,
        settings=QUICK, progress=False, out=tmp_path / "s",
    )  # fmt: skip
    said = run("predict", tmp_path / "s", "new.csv", "--to", "w.csv", folder=home).stdout
    assert "class: the largest class weight times probability (no 1, yes 2.5)" in said
    assert "metrics: accuracy is weighted by class (no 1, yes 2.5); all others are not" in said


@pytest.mark.slow
def test_a_class_that_training_has_not_seen_leaves_out_the_metrics_alone(home: Path) -> None:
    said = run("predict", "runs/ills", "odd.csv", "--to", "odd-p.csv", folder=home)
    assert "metrics are left out: true label 'perhaps' is not among the classes" in said.stderr
    assert "accuracy" not in said.stdout
    assert len(pd.read_csv(home / "odd-p.csv")) == 60


@pytest.mark.slow
def test_python_predicts_and_judges_in_one_call_what_the_command_line_prints(home: Path) -> None:
    printed = run(
        "predict", "runs/ills", "new.csv", "--json", "--ood", "old.csv", folder=home
    ).stdout
    measures = json.loads(printed)["measures"]
    warned: list[str] = []
    for place in (home / "runs/ills", home / "runs/ills/export"):
        found = nas_evidence.predict(
            place, home / "new.csv", ood=home / "old.csv", warn=warned.append
        )
        assert found.metrics == pytest.approx(measures)
        assert {"accuracy", "ood_auroc"} <= measures.keys()
        assert len(found.rows.to_frame()) == 60
        assert found.notes == ("columns that the network does not use: key",)
    assert warned == []
    with pytest.warns(UserWarning, match="60 of 60 rows were in the training data"):
        nas_evidence.predict(home / "runs/ills", home / "old.csv")
    with refused("trial-of-an-export", "is an export"):
        nas_evidence.predict(home / "runs/ills/export", home / "new.csv", trial_id=0)


@pytest.mark.parametrize("place", ["pets/cat/1.png", "pets/cat", "pets"])
def test_predictions_of_images_are_not_written_among_the_classes(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pets" / "cat").mkdir(parents=True)
    (tmp_path / "pets" / "cat" / "1.png").touch()
    monkeypatch.chdir(tmp_path)
    assert _beside(Path(place), force=False) == Path("predictions.csv")
    assert _beside(Path("pets/table.csv"), force=False) == Path("pets/predictions.csv")


@pytest.mark.slow
def test_columns_are_copied_as_they_are_written_and_predictions_replaced_when_asked(
    home: Path,
) -> None:
    run("predict", "runs/ills", "new.csv", folder=home)
    assert "key" not in pd.read_csv(home / "predictions.csv")
    run("predict", "runs/ills", "new.csv", "--force", "--id", "key", folder=home)
    written = pd.read_csv(home / "predictions.csv", dtype=str)
    assert list(written)[:2] == ["key", "prediction"]
    assert written["key"].tolist() == visits(1)["key"].tolist()
    found = run("predict", "runs/ills", "new.csv", "--json", "--id", "key", folder=home).stdout
    assert json.loads(found)["predictions"][7]["key"] == "007"


@pytest.mark.slow
def test_wrong_arguments_of_predict_are_refused_before_torch_is_imported(home: Path) -> None:
    (home / "predictions.csv").touch()
    wrong = {
        "runs/ilss new.csv": "Did you mean runs/ills?",
        "ills new.csv": "Did you mean runs/ills?",
        "runs/ills gone.csv": "there is no file gone.csv",
        "runs/ills nwe.csv": "there is no file nwe.csv; did you mean new.csv?",
        "runs/ills new.csv": "predictions.csv exists",
        "runs/ills new.csv --to new.csv": "would replace the data",
        "runs/ills new.csv --to none/p.csv": "a folder that does not exist",
        "runs/ills new.csv --to k.csv --id kye": "did you mean 'key'",
        "runs/ills/export new.csv --trial 0": "is an export",
    }
    code = f"""
        import sys
        from nas_evidence.cli.main import app
        for arguments, says in {wrong!r}.items():
            try:
                app(["predict", *arguments.split()], standalone_mode=False)
            except ValueError as error:
                assert says in str(error), (arguments, error)
            else:
                raise AssertionError(arguments)
        assert "torch" not in sys.modules
    """
    subprocess.run(
        [sys.executable, "-c", code.replace("\n        ", "\n")], cwd=home, check=True, timeout=600
    )


def test_a_wrong_study_is_named_before_predictions_that_exist(tmp_path: Path) -> None:
    data, kept = tmp_path / "new.csv", tmp_path / "predictions.csv"
    data.write_text("a\n1\n")
    kept.write_text("mine")
    with refused("not-a-study-folder", "nowhere"):
        predict("nowhere", data)
    assert kept.read_text() == "mine"


@pytest.mark.slow
def test_rows_of_few_values_that_meet_by_chance_are_not_taken_for_training_rows(
    tmp_path: Path,
) -> None:
    def coarse(seed: int, n: int = 80) -> tuple[np.ndarray, np.ndarray]:
        generator = np.random.default_rng(seed)
        return generator.integers(0, 2, (n, 4)).astype(float), generator.integers(0, 2, n)

    x, y = coarse(0)
    fine = np.random.default_rng(2).normal(size=(20, 4))
    mixed = np.concatenate([fine, x[:5]])
    for name, rows, weights, expected in (
        ("coarse", x, None, 0),
        ("fine", np.concatenate([fine] * 4) + np.arange(80)[:, None], None, 20),
        ("weighed", np.concatenate([fine] * 4) + np.arange(80)[:, None], np.full(80, 2), 20),
    ):
        study = nas_evidence.search(
            rows, y, n_trials=1, settings=QUICK, out=tmp_path / name, weights=weights,
            progress=False,
        )  # fmt: skip
        new = coarse(1)[0] if name == "coarse" else rows[:20]
        assert rows_seen(study.predictor().given(new).inputs, study.arrays()) == expected
    assert rows_seen(mixed.astype(np.float32), study.arrays()) == 1


# --- the metric asked for: in the report, in `predict`, in the export, in Python


METRIC_QUICK = ("--executor", "inline", "--trials", 1, "--set", "plan.epochs=3", "--set",
         'estimators=["diag_ef", "two_fold"]', "--set", "objective=two_fold")  # fmt: skip


def rare(n: int = 120) -> pd.DataFrame:
    """A table with one "yes" in five, of which the inputs tell a little."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(n, 2))
    chance = 1 / (1 + np.exp(-(2 * x[:, 0] - 2)))
    bought = np.where(generator.random(n) < chance, "yes", "no")
    return pd.DataFrame({"x": x[:, 0], "z": x[:, 1], "bought": bought})


@pytest.fixture(scope="module")
def metric_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("metric")
    rare().to_csv(folder / "rare.csv", index=False)
    asked = ("--target", "bought", "--metric", "f1")
    text = run("search", "rare.csv", *asked, *METRIC_QUICK, folder=folder).stdout
    assert "note:   On rows not trained on, F1 0." in text
    assert "`predict` says 'yes' from a probability of 0." in text
    assert "which is best by F1 on rows not trained on." in text
    return folder


@pytest.mark.long
@pytest.mark.slow
def test_the_threshold_is_the_best_on_the_predictions_of_the_folds(metric_home: Path) -> None:
    tables = read_study_tables(metric_home / "runs" / "rare")
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
def test_the_export_predicts_the_class_by_the_threshold_of_the_metric(metric_home: Path) -> None:
    predictor = Predictor.load(metric_home / "runs" / "rare" / "export")
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
def test_predict_says_the_metric_first_and_where_the_classes_part(metric_home: Path) -> None:
    lines = run("predict", "runs/rare", "rare.csv", folder=metric_home).stdout.splitlines()
    n_rows = len(pd.read_csv(metric_home / "rare.csv"))
    at = lines.index(f"predictions: predictions.csv ({n_rows} rows)")
    assert at == 6  # after the header and five rows
    assert lines[at + 1].startswith("class: yes from a probability of 0.")
    assert lines[at + 1].endswith("the best by f1 on rows not trained on")
    assert lines[at + 2].startswith("F1\t")
    asked = ("--metric", "roc_auc", "--to", "other.csv")
    other = run("predict", "runs/rare", "rare.csv", *asked, folder=metric_home).stdout.splitlines()
    assert other[at + 1].startswith("ROC AUC\t")


@pytest.mark.long
@pytest.mark.slow
def test_a_metric_may_change_when_a_study_goes_on_and_its_export_follows(
    metric_home: Path,
) -> None:
    run(
        "search",
        "rare.csv",
        "--target",
        "bought",
        "--out",
        "again",
        *METRIC_QUICK,
        folder=metric_home,
    )
    more = ("--executor", "inline", "--metric", "balanced_accuracy")
    run("resume", "again", *more, folder=metric_home)
    found = nas_evidence.load(metric_home / "again").predict(rare(40))
    assert found.metric == "balanced_accuracy"
    assert (
        Predictor.load(metric_home / "again" / "export").meaning["metric"] == "balanced_accuracy"
    )


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
    run("search", "train.csv", *asked, *METRIC_QUICK, folder=tmp_path)
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
    said = (
        CliRunner().invoke(app, [*asked, *map(str, METRIC_QUICK)], catch_exceptions=False).stdout
    )
    assert "note:   On rows not trained on, F1 0." in said
    assert (
        "there was no time for majority class, logistic regression, gradient boosting, importance "
        "of the columns: "
    ) in said
