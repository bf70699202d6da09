"""Class weights are costs: they decide the class and weight the accuracy, and nothing else."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lone_trials import mlp_assignment, run
from messages import refused
from pydantic import ValidationError
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score
from sklearn.utils.class_weight import compute_class_weight
from unseen import delivered_unseen

import nas_evidence
from nas_evidence.api.request import of_source
from nas_evidence.baselines.comparison import read_comparison
from nas_evidence.data import ArrayData, load
from nas_evidence.data.digest import data_digest
from nas_evidence.data.source import source_in_memory
from nas_evidence.data.targets import class_weights
from nas_evidence.data.tensors import to_tensors
from nas_evidence.exporting.predictor import Prediction, Predictor
from nas_evidence.exporting.winner import load_winner
from nas_evidence.spec.dataset import DatasetSpec
from nas_evidence.storage.tables import read_study_tables

N = 60
QUICK = {"plan.epochs": 3, "objective": "two_fold", "estimators": ["two_fold"]}


def cells(n: int = N) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    x = generator.normal(0, 1, n)
    y = np.where(x + generator.normal(0, 0.5, n) > 0.8, "rare", "usual")
    return pd.DataFrame({"x": x, "z": generator.normal(0, 1, n), "y": y})


def loaded(folder: Path, table: pd.DataFrame, **keys: Any) -> ArrayData:
    table.to_csv(folder / "t.csv", index=False)
    return load(DatasetSpec(name="table", path=str(folder / "t.csv"), target="y", **keys), seed=1)


@pytest.mark.slow
@given(st.lists(st.integers(0, 4), min_size=2, max_size=50))
def test_balanced_is_that_of_scikit_learn(drawn: list[int]) -> None:
    present, y = np.unique(drawn, return_inverse=True)
    names = [str(name) for name in present]
    expected = compute_class_weight("balanced", classes=np.arange(len(present)), y=y)
    np.testing.assert_allclose(class_weights(y, names, "balanced"), expected, rtol=1e-12)


def test_the_data_are_those_without_class_weights(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"weights": "n", "test_fraction": 0.3}
    table = cells().assign(n=np.arange(N) % 3)
    plain = loaded(tmp_path, table, **keys)
    found = loaded(tmp_path, table, class_weight={"rare": 2.5}, **keys)
    assert data_digest(found) == data_digest(plain)
    assert found.meaning.class_weight == {"rare": 2.5, "usual": 1}
    assert plain.meaning.class_weights is None


def test_balanced_counts_the_training_rows_as_often_as_they_occur(tmp_path: Path) -> None:
    table = cells().assign(n=np.arange(N) % 3)
    data = loaded(tmp_path, table, class_weight="balanced", weights="n", test_fraction=0.3)
    counts = np.bincount(data.y_train)
    expected = data.n_train / (2 * counts)
    np.testing.assert_allclose(data.meaning.class_weights, expected)


def test_the_study_of_the_data_is_that_without_class_weights() -> None:
    plain, weighed = (
        of_source(source_in_memory(cells(), None, {"target": "y", **keys}))
        for keys in ({}, {"class_weight": {"rare": 2}})
    )
    assert (weighed.spec.objective, weighed.spec.estimators) == (
        plain.spec.objective, plain.spec.estimators,
    )  # fmt: skip
    (said,) = {*weighed.decided} - {*plain.decided}
    assert said == (
        "class weights: rare 2, usual 1; the class with the largest weight times probability is "
        "predicted; training and scores are as without them"
    )


@pytest.mark.slow
def test_scores_probabilities_and_weights_are_bit_equal_with_and_without(tmp_path: Path) -> None:
    names = ("kfac_ggn", "diag_ef", "five_fold", "conditional_evidence")
    given = mlp_assignment(*names, epochs=3, folds=5)
    records = []
    for keys in ({}, {"class_weight": {"rare": 30.0}}):
        data = to_tensors(loaded(tmp_path, cells(), test_fraction=0.3, **keys), "cpu")
        records.append(run(given, data, tmp_path / str(len(records))))
    plain, weighed = records
    for name in (*names, "five_fold_accuracy", "sotl", "prequential_epoch1"):
        before, after = plain.final_estimate(name), weighed.final_estimate(name)
        assert (after.value, after.terms, after.valid) == (before.value, before.terms, True), name
    assert plain.test_nll_per_datum == weighed.test_nll_per_datum
    assert plain.test_accuracy != weighed.test_accuracy


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("blanced", "must be \"balanced\" or weights by class, but got 'blanced'"),
        ({}, 'must be "balanced" or weights by class'),
        ("rare=2,usual", 'must be "balanced" or weights by class'),
        ("rare=2, rare=3", 'must be "balanced" or weights by class'),
        ("=2", 'must be "balanced" or weights by class'),
        ({"rare": 0}, "must be a number above 0, but that of 'rare' is 0; correct it, or leave"),
        ({"rare": -1.5}, r"that of 'rare' is -1\.5"),
        ({"rare": float("nan")}, "that of 'rare' is nan"),
        ({"rare": float("inf")}, "that of 'rare' is inf"),
        ("rare=many", "that of 'rare' is many"),
        ({1.0: None}, "that of '1' is None"),
    ],
)
def test_weights_that_are_no_costs_are_refused(given: object, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        DatasetSpec(name="table", path="t", target="y", class_weight=given)
    with pytest.raises(ValueError, match=says) as raised:
        nas_evidence.search(cells(), target="y", class_weight=given)  # type: ignore[call-arg]
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("rare=3", {"rare": 3}),
        ("rare=0.5, usual=1", {"rare": 0.5, "usual": 1}),
        ({"rare": 3}, {"rare": 3}),
        ({np.int64(0): np.float32(0.5), 1.0: 2, np.float32(2): 3}, {"0": 0.5, "1": 2, "2": 3}),
        ({True: 2}, {"True": 2}),
    ],
)
def test_they_are_read_from_text_and_from_classes_of_any_kind(
    given: object, expected: Mapping[str, float]
) -> None:
    assert DatasetSpec(name="table", path="t", target="y", class_weight=given).class_weight == (
        expected
    )


def test_classes_that_are_not_there_and_real_targets_are_refused(tmp_path: Path) -> None:
    with refused("class-weight-unknown-class", "'rar'", "rare, usual"):
        loaded(tmp_path, cells(), class_weight={"rar": 3})
    with refused("class-weight-of-numbers"):
        loaded(tmp_path, cells().assign(y=cells()["x"] * 1.5), class_weight="balanced")


def test_balanced_is_refused_for_a_class_without_training_rows(tmp_path: Path) -> None:
    """A class of numbers alone that the subset has lost keeps its number, and weighs 1."""
    y, rng = np.array([0, 1] * 20 + [2]), np.random.default_rng(0)
    np.savez(
        tmp_path / "d.npz", x_train=rng.normal(size=(41, 2)), y_train=y,
        x_test=rng.normal(size=(4, 2)), y_test=np.array([0, 1, 2, 2]),
    )  # fmt: skip
    keys: dict[str, Any] = {"name": "npz", "path": str(tmp_path / "d.npz"), "max_train": 10}
    with pytest.raises(ValueError, match="training rows of every class, but class '2' has none"):
        load(DatasetSpec(class_weight="balanced", **keys), seed=0)
    data = load(DatasetSpec(class_weight={"1": 2}, **keys), seed=0)
    assert data.meaning.class_weight == {"0": 1, "1": 2, "2": 1}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> nas_evidence.Study:
    """A study with test rows, whose weights cost an error on a rare row six times as much."""
    found = nas_evidence.search(
        cells(200), target="y", test_fraction=0.4, class_weight={"rare": 6}, n_trials=2,
        settings=QUICK, out=tmp_path_factory.mktemp("weighed") / "study", progress=False,
    )  # fmt: skip
    found.report()
    return found


def of_test_rows(study: nas_evidence.Study) -> tuple[Prediction, np.ndarray, np.ndarray]:
    """The prediction of the test rows, their labels, and the weight of each."""
    arrays = study.arrays()
    truth = np.array(arrays.meaning.classes)[arrays.y_test]
    return study.predict(arrays.x_test), truth, np.where(truth == "rare", 6.0, 1.0)


@pytest.mark.slow
def test_the_class_predicted_is_the_largest_weight_times_probability(
    study: nas_evidence.Study,
) -> None:
    found, truth, weight = of_test_rows(study)
    expected = (found.probabilities * [6, 1]).argmax(1)
    np.testing.assert_array_equal(found.labels, np.array(["rare", "usual"])[expected])
    assert (found.labels != np.array(["rare", "usual"])[found.probabilities.argmax(1)]).any()
    measures = found.measures(truth)
    assert measures["accuracy"] == pytest.approx(
        accuracy_score(truth, found.labels, sample_weight=weight)
    )
    assert measures["f1"] == pytest.approx(f1_score(truth, found.labels, pos_label="usual"))


@pytest.mark.slow
def test_the_report_weighs_winner_and_simple_models_alike(study: nas_evidence.Study) -> None:
    found, truth, _ = of_test_rows(study)
    judged = read_comparison(study.folder)
    assert judged.class_weight == {"rare": 6, "usual": 1}
    expected = found.measures(truth)
    assert judged.metrics["accuracy"] == pytest.approx(expected["accuracy"])
    network = read_study_tables(study.folder).row_of_network(judged.trial_id)
    assert judged.metrics["accuracy"] == pytest.approx(network["test_accuracy"])
    assert judged.metrics["balanced_accuracy"] == pytest.approx(
        balanced_accuracy_score(truth, found.labels)
    )
    assert judged.confusion[0][0] == ((truth == "rare") & (found.labels == "rare")).sum()
    assert judged.recall["0"] == pytest.approx((found.labels == "rare")[truth == "rare"].mean())
    majority = {one.name: one for one in judged.baselines}["majority class"]
    n_rare = int((truth == "rare").sum())
    shares = np.bincount(study.arrays().y_train) * [6, 1]
    right = 6 * n_rare if shares.argmax() == 0 else len(truth) - n_rare
    assert majority.metrics["accuracy"] == pytest.approx(
        right / (6 * n_rare + len(truth) - n_rare)
    )
    page = (study.folder / "report" / "report.md").read_text("utf-8")
    assert "Class weights (rare 6, usual 1) decide in this report" in page
    assert "Accuracy is weighted by class; scores, log loss" in page


@pytest.mark.slow
def test_an_export_decides_by_its_weights_and_says_so(
    study: nas_evidence.Study, tmp_path: Path
) -> None:
    study.export(tmp_path / "one")
    meaning = json.loads((tmp_path / "one" / "meaning.json").read_text("utf-8"))
    assert meaning["class_weight"] == {"rare": 6, "usual": 1}
    assert "Class weights: rare 6, usual 1." in (tmp_path / "one" / "README.md").read_text()
    loaded = Predictor.load(tmp_path / "one")
    found, truth, weight = of_test_rows(study)
    alone = loaded.predict(study.arrays().x_test)
    np.testing.assert_array_equal(alone.labels, found.labels)
    study.export(tmp_path / "two", top=2)
    both = Predictor.load(tmp_path / "two").predict(study.arrays().x_test)
    chosen = (both.probabilities * [6, 1]).argmax(1)
    np.testing.assert_array_equal(both.labels, np.array(["rare", "usual"])[chosen])
    for metric in ("accuracy", "f1"):  # a metric that is named has a threshold of its own
        by_metric = loaded.predict(study.arrays().x_test, metric=metric)
        at = by_metric.threshold
        assert at == meaning["thresholds"][metric]
        np.testing.assert_array_equal(
            by_metric.labels == "usual", by_metric.probabilities[:, 1] >= at
        )
        assert by_metric.measures(truth)["accuracy"] == pytest.approx(
            accuracy_score(truth, by_metric.labels, sample_weight=weight)
        )


@pytest.mark.slow
def test_the_threshold_of_accuracy_is_that_of_the_weighted_one(
    study: nas_evidence.Study, tmp_path: Path
) -> None:
    """On the predictions of the folds, by a search over all, of one network and of an ensemble."""
    tables, arrays = read_study_tables(study.folder), study.arrays()
    y = arrays.y_train
    study.export(tmp_path / "two", top=2)
    ensemble = json.loads((tmp_path / "two" / "ensemble.json").read_text("utf-8"))
    members = [(one["trial_id"], one["weight"]) for one in ensemble["members"]]
    judged = read_comparison(study.folder)
    for kept, weights in ((judged.thresholds, [(judged.trial_id, 1.0)]),
                          (ensemble["thresholds"], members)):  # fmt: skip
        p = 0.0
        for trial_id, weight in weights:
            table = delivered_unseen(load_winner(tables, arrays, trial_id))
            p += weight * (table[:, :2].double() / table[:, 2:].double()).softmax(1)[:, 1].numpy()

        def reached(at: float, p: Any = p) -> float:
            return float(accuracy_score(y, p >= at, sample_weight=np.array([6.0, 1.0])[y]))

        assert reached(kept["accuracy"]) == pytest.approx(max(map(reached, [*p, 2.0])))


@pytest.mark.slow
def test_the_estimator_of_scikit_learn_has_them() -> None:
    """Of labels that are numbers; probabilities are bit-equal with and without."""
    x = cells(200)[["x", "z"]].to_numpy()
    y = np.where(cells(200)["y"] == "rare", 2.0, 1.0)
    plain, weighed, balanced = (
        nas_evidence.EvidenceClassifier(1, settings=QUICK, class_weight=weight).fit(x, y)
        for weight in (None, {2.0: 4.5}, "balanced")
    )
    p = plain.predict_proba(x)
    np.testing.assert_array_equal(weighed.predict_proba(x), p)
    np.testing.assert_array_equal(weighed.predict(x), np.where(4.5 * p[:, 1] > p[:, 0], 2, 1))
    w = compute_class_weight("balanced", classes=np.array([1, 2]), y=y)
    np.testing.assert_array_equal(balanced.predict(x), 1 + (w * p).argmax(1))
