"""Targets of any kind become labels with names, or real numbers; what cannot is one sentence."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nas_evidence.data.targets import targets_of
from nas_evidence.spec.likelihoods import TARGET_KINDS


def found(y: Any, test: Any = None, task: Any = None, **more: Any) -> Any:
    return targets_of(np.asarray(y), test, task=task, where="y of mine", **more)


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        (["dog", "cat", "dog", "cat"], ("cat", "dog")),
        ([True, False, True, False], (False, True)),
        ([1, 2, 3, 1, 2, 3], (1, 2, 3)),
        ([-1, 1, -1, 1], (-1, 1)),
        ([0.0, 1.0, 0.0, 1.0], (0, 1)),
        ([[1], [2], [1], [2]], (1, 2)),
        ([["b"], ["a"], ["b"], ["a"]], ("a", "b")),
        ([[1, 0], [0, 1], [1, 0]], (0, 1)),
        ([[True, False], [False, True]], (0, 1)),
        (np.array(["b", "a", "b", "a"], dtype=object), ("a", "b")),
        (np.array([3.0, 7.0, 3.0, 7.0], dtype=object), (3, 7)),
    ],
)
def test_labels_of_any_kind_are_a_classification(y: Any, classes: tuple[Any, ...]) -> None:
    result = found(y)
    assert result.classes == classes
    assert result.train.dtype == np.int64
    plain = np.asarray(y)
    if plain.ndim == 1 or plain.shape[1] == 1:
        assert [classes[i] for i in result.train] == plain.ravel().tolist()
    else:
        assert result.train.tolist() == plain.argmax(1).tolist()
    assert result.sentence.startswith(f"classification, {len(classes)} classes: ")


@pytest.mark.parametrize("y", [[0.5, 1.5, 2.0], list(range(30))])
def test_other_numbers_are_a_regression_and_the_sentence_says_how_to_change_it(y: Any) -> None:
    result = found(y)
    assert result.train.dtype == np.float64
    assert result.train.ndim == 2
    assert result.sentence.endswith("; task=classification to change")


def test_several_columns_of_numbers_are_a_regression_and_nothing_else() -> None:
    result = found([[0.1, 2.0], [3.0, 4.0]])
    assert result.train.tolist() == [[0.1, 2.0], [3.0, 4.0]]
    assert result.sentence == "regression, 2 targets from 0.1 to 4"


@given(
    st.lists(st.sampled_from("abcde"), min_size=10, max_size=40).filter(lambda y: len(set(y)) > 1)
)
def test_labels_and_class_names_give_the_texts_back(y: list[str]) -> None:
    result = found(y)
    assert [result.classes[i] for i in result.train] == y


@pytest.mark.parametrize("task", [None, "regression"])
@pytest.mark.parametrize("declared", [False, True])
def test_whole_numbers_that_look_like_counts_are_real_and_say_what_there_is_for_counts(
    task: Any, declared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    says = "they look like counts, and a likelihood for counts is missing"
    monkeypatch.delitem(TARGET_KINDS, "counts", raising=False)
    if declared:
        monkeypatch.setitem(TARGET_KINDS, "counts", TARGET_KINDS["regression"])
        says = "they look like counts: give task=counts"
    result = found(rng.poisson(9, 300), task=task)
    assert result.train.dtype == np.float64
    assert result.sentence.startswith(f"regression, target from 1 to 19; {says}")
    whole_prices, shares = rng.integers(326, 18_823, 300), rng.poisson(9, 300) + 0.5
    negative, all_different = rng.poisson(9, 300) - 5, np.arange(300)
    for other in (whole_prices, shares, negative, all_different):
        assert says not in found(other, task="regression").sentence


@pytest.mark.parametrize("kind", [str, object, "category"])
def test_grades_in_words_are_classes_without_an_order(kind: Any) -> None:
    grades = pd.Series(["good", "fair", "very good", "ideal", "fair"] * 4).astype(kind)
    result = found(grades)
    assert result.classes == ("fair", "good", "ideal", "very good")
    assert result.sentence == "classification, 4 classes: fair, good, ideal, very good"


def test_the_task_that_is_asked_for_wins() -> None:
    assert found([1, 2, 1, 2], task="regression").train.tolist() == [[1], [2], [1], [2]]
    assert found([1.0, 2.0] * 30, task="classification").classes == (1, 2)
    assert "to change" not in found([1, 2, 1, 2], task="regression").sentence


def test_numbered_labels_of_arrays_may_be_many() -> None:
    y = list(range(100)) * 2
    assert found(y).classes == ()
    assert len(found(y, integers_are_labels=True).classes) == 100


@pytest.mark.parametrize(
    ("y", "test", "task", "says"),
    [
        (["a", "a"], None, None, "at least 2 classes, but every training row has 'a'"),
        ([5.0, 5.0], None, "regression", "all 2 training targets are 5, so there is nothing"),
        (["a", None, "b"], None, None, "1 of 3 rows have no value, the first at row 1"),
        ([1.0, float("nan")], None, None, "1 of 2 rows have no value, the first at row 1"),
        (list("abcdefgh"), None, None, "8 different values in 8 rows are not classes"),
        (["a", "a"], None, "regression", "numbers, but there is 'a'; give task=classification"),
        ([0.5, 1.0], None, "classification", "whole numbers or text, but row 0 has 0.5"),
        (["a", "b", "a", "b"], ["c"], None, "test labels must be among .* 'c' is not"),
        ([1.0, float("inf")], None, "regression", "must be finite in float32, but 1 of 2 rows"),
        ([[0.1, 1.0], [1.0, 2.0]], None, "classification", "one label per row"),
        ([[True, True], [True, False]], None, None, "exactly one true value, but row 0 has 2"),
        ([[[1.0]]], None, None, r"the shape is \[1, 1, 1\]"),
    ],
)
def test_what_cannot_be_a_target_is_one_sentence_with_its_place(
    y: Any, test: Any, task: Any, says: str
) -> None:
    plain = np.array(y, dtype=object if None in list(np.ravel(np.array(y, object))) else None)
    with pytest.raises(ValueError, match=says) as caught:
        found(plain, test, task)
    assert str(caught.value).startswith("y of mine: ")
