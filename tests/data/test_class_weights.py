"""Class weights: rows of a class stand as often as it weighs; nothing is then an evidence."""

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

import nas_evidence
from nas_evidence.api.request import of_source
from nas_evidence.data import ArrayData, load
from nas_evidence.data.digest import data_digest
from nas_evidence.data.in_memory import source_in_memory
from nas_evidence.data.tensors import to_tensors
from nas_evidence.data.weights import balanced
from nas_evidence.spec.dataset import DatasetSpec
from nas_evidence.spec.registry import SCORES
from nas_evidence.spec.study import StudySpec

N = 60


def cells(n: int = N) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    x = generator.normal(0, 1, n)
    y = np.where(x + generator.normal(0, 0.5, n) > 0.8, "rare", "usual")
    return pd.DataFrame({"x": x, "z": generator.normal(0, 1, n), "y": y})


def loaded(folder: Path, table: pd.DataFrame, **keys: Any) -> ArrayData:
    table.to_csv(folder / "t.csv", index=False)
    return load(DatasetSpec(name="table", path=str(folder / "t.csv"), target="y", **keys), seed=1)


def test_a_class_weight_is_the_weight_of_each_row_of_the_class(tmp_path: Path) -> None:
    by_class = loaded(tmp_path, cells(), class_weight={"rare": 3})
    each = np.where(cells()["y"] == "rare", 3, 1)
    by_row = loaded(tmp_path, cells().assign(n=each), weights="n")
    assert data_digest(by_class) == data_digest(by_row)
    np.testing.assert_array_equal(by_class.units.of, by_row.units.of)


def test_it_multiplies_the_weights_of_rows_and_keeps_their_groups(tmp_path: Path) -> None:
    table = cells().assign(n=2, patient=np.arange(N) // 3)
    keys = {"weights": "n", "groups": "patient"}
    plain = loaded(tmp_path, table, **keys)
    found = loaded(tmp_path, table, class_weight={"rare": 3}, **keys)
    n_rare = int((table["y"] == "rare").sum())
    assert found.n_train == 2 * N + 2 * 2 * n_rare
    assert found.units.count == plain.units.count


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([90, 10], [1, 9]),
        ([10, 10], [1, 1]),
        ([60, 40], [2, 3]),
        ([100, 50, 25], [1, 2, 4]),
        ([105, 100], [1, 1]),
    ],
)
def test_balanced_makes_the_classes_equally_frequent_within_a_tenth(
    counts: list[int], expected: list[int]
) -> None:
    assert balanced(np.array(counts)).tolist() == expected


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=12))
def test_balanced_is_as_near_as_few_copies_allow(counts_of: list[int]) -> None:
    """Never further from equal than no weights at all, nor than 2 to 1, and not many more rows.

    Whole multiples bring each class to 2/3 to 4/3 of the largest.
    """
    counts = np.array(counts_of)
    rows = counts * balanced(counts)
    assert rows.max() / rows.min() <= min(2, counts.max() / counts.min())
    assert rows.sum() <= max(5, 4 / 3 * len(counts)) * counts.sum()


def test_test_rows_are_weighed_with_the_weights_of_the_training_rows(tmp_path: Path) -> None:
    plain = loaded(tmp_path, cells(), test_fraction=0.3)
    found = loaded(tmp_path, cells(), test_fraction=0.3, class_weight="balanced")
    train, test = (np.bincount(y) for y in (plain.y_train, plain.y_test))
    times = balanced(train)
    np.testing.assert_array_equal(np.bincount(found.y_train), train * times)
    np.testing.assert_array_equal(np.bincount(found.y_test), test * times)


def test_a_subset_without_a_class_keeps_its_number(tmp_path: Path) -> None:
    """A class of numbers alone that only test rows have weighs 1, and has its output."""
    y = np.array([0, 1] * 20 + [2])
    y_test = np.array([0, 1, 2, 2])
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "d.npz", x_train=rng.normal(size=(41, 2)), y_train=y,
        x_test=rng.normal(size=(4, 2)), y_test=y_test,
    )  # fmt: skip
    keys = {"name": "npz", "path": str(tmp_path / "d.npz"), "max_train": 10}
    data = load(DatasetSpec(class_weight={"1": 2}, **keys), seed=0)
    assert data.n_outputs == load(DatasetSpec(**keys), seed=0).n_outputs == 3
    assert np.bincount(data.y_test).tolist() == [1, 2, 2]


def test_the_design_effect_is_that_of_kish(tmp_path: Path) -> None:
    """By the weights w of the distinct rows: sum w^2 / sum w."""
    weights = np.where(cells()["y"] == "rare", 5, 1)
    data = loaded(tmp_path, cells(), class_weight={"rare": 5})
    assert data.meaning.copies(data.y_train) == pytest.approx((weights**2).sum() / weights.sum())
    assert loaded(tmp_path, cells()).meaning.copies(data.y_train) == 1


@pytest.mark.slow
def test_every_evidence_is_invalid_with_its_reason_and_cross_validations_are_not(
    tmp_path: Path,
) -> None:
    names = ("kfac_ggn", "diag_ef", "five_fold", "conditional_evidence")
    data = loaded(tmp_path, cells(), class_weight={"rare": 3})
    given = mlp_assignment(*names, epochs=3, folds=5)
    plain = run(given, to_tensors(data, "cpu"), tmp_path / "plain")
    dataset = given.dataset.model_copy(update={"class_weight": {"rare": 3}})
    weighed = run(
        given.model_copy(update={"dataset": dataset}), to_tensors(data, "cpu"), tmp_path / "w"
    )
    for name in (*names, "five_fold_accuracy", "sotl", "prequential_epoch1"):
        before, after = plain.final_estimate(name), weighed.final_estimate(name)
        assert after.value == before.value
        assert before.valid
        assert after.valid is (not SCORES[name].is_evidence), name
        assert ("class weights" in after.note) is SCORES[name].is_evidence


def test_what_is_an_evidence_is_declared_once() -> None:
    plain = {name for name, score in SCORES.items() if not score.is_evidence}
    folds = {"two_fold", "five_fold", "ten_fold", "heldout_10"}
    free = {"sotl", "sotl_e", "sotl_ema", "n_parameters", "train_nll_per_datum"}
    assert plain == folds | {f"{name}_accuracy" for name in folds} | free


@pytest.mark.parametrize(("n", "folds"), [(60, "five_fold"), (1500, "two_fold")])
def test_data_alone_are_then_ranked_by_a_cross_validation(n: int, folds: str) -> None:
    source = source_in_memory(cells(n), None, {"target": "y", "class_weight": {"rare": 2}})
    asked = of_source(source)
    assert asked.spec.objective == folds
    assert {"conditional_evidence", folds} <= {*asked.spec.estimators}
    (said,) = [line for line in asked.decided if line.startswith("class weights:")]
    n_rare = int((cells(n)["y"] == "rare").sum())
    assert said == (
        f"class weights: rare 2, usual 1, so that {n} rows for training count as {n + n_rare}; no "
        "score is then an evidence, and a cross-validation ranks"
    )


def test_a_ranking_by_an_evidence_is_refused_with_what_ranks_instead() -> None:
    table = {"name": "table", "path": "t.csv", "target": "y", "class_weight": "balanced"}
    study = {"name": "s", "dataset": table, "family": {"mlp": {}}}
    with pytest.raises(
        ValidationError,
        match=r'no evidence with `class_weight`, but got "kfac_ggn"; give "five_fold"',
    ):
        StudySpec.model_validate({**study, "objective": "kfac_ggn", "estimators": ["kfac_ggn"]})
    spec = StudySpec.model_validate(study)
    assert (spec.objective, "five_fold" in spec.estimators) == ("five_fold", True)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("blanced", "must be \"balanced\" or whole numbers by class, but got 'blanced'"),
        ({"rare": 0}, "must be whole numbers from 1 on, but that of 'rare' is 0"),
        ({"rare": 2.5}, r"but that of 'rare' is 2\.5; multiply all by one number"),
        ({}, "must be"),
        ("rare=2,usual", "must be"),
    ],
)
def test_weights_that_are_no_frequencies_are_refused(given: object, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        DatasetSpec(name="table", path="t", target="y", class_weight=given)


@pytest.mark.parametrize("given", ["rare=3", "rare=3, usual=1", {"rare": 3}])
def test_they_are_read_from_text_too(given: object) -> None:
    found = DatasetSpec(name="table", path="t", target="y", class_weight=given).class_weight
    assert isinstance(found, dict)
    assert found["rare"] == 3


def test_classes_that_are_not_there_and_real_targets_are_refused(tmp_path: Path) -> None:
    with refused("class-weight-unknown-class", "'rar'", "rare, usual"):
        loaded(tmp_path, cells(), class_weight={"rar": 3})
    with refused("class-weight-of-numbers"):
        loaded(tmp_path, cells().assign(y=cells()["x"] * 1.5), class_weight="balanced")


@pytest.mark.slow
def test_more_of_the_rare_class_is_found() -> None:
    """The recall of the rare class, in scikit-learn's clothes."""
    table = cells(200)
    fast = {"plan.epochs": 10, "plan.batch_size": 16}
    found = [
        nas_evidence.EvidenceClassifier(1, settings=fast, class_weight=weight)
        .fit(table[["x", "z"]], table["y"])
        .predict(table[["x", "z"]])
        for weight in (None, "balanced")
    ]
    rare = (table["y"] == "rare").to_numpy()
    plain, weighed = ((one[rare] == "rare").mean() for one in found)
    assert weighed > plain


@pytest.mark.parametrize("given", [{"rare": 0.5}, "rare"])
def test_data_in_memory_are_refused_in_one_sentence_too(given: object) -> None:
    with pytest.raises(ValueError, match="whole numbers") as raised:
        nas_evidence.search(cells(), target="y", class_weight=given)  # type: ignore[call-arg]
    assert "\n" not in str(raised.value)


def test_tensors_know_how_often_a_row_stands_by_its_class(tmp_path: Path) -> None:
    plain = to_tensors(loaded(tmp_path, cells()), "cpu")
    found = to_tensors(loaded(tmp_path, cells(), class_weight={"rare": 4}), "cpu")
    n_rare = int((cells()["y"] == "rare").sum())
    n_other = len(cells()) - n_rare
    assert plain.copies == 1
    assert found.copies == pytest.approx((n_other + 16 * n_rare) / (n_other + 4 * n_rare))
