"""Targets of any kind become labels with names, or real numbers; what cannot is one sentence."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from messages import refused

import nas_evidence
from nas_evidence.api.request import asked_for, of_memory
from nas_evidence.data.digest import data_digest
from nas_evidence.data.given import features_of
from nas_evidence.data.source import Source, array_source, source_in_memory, source_of
from nas_evidence.data.targets import targets_of
from nas_evidence.spec.study import DatasetSpec


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
def test_whole_numbers_that_look_like_counts_are_real_and_say_what_there_is_for_counts(
    task: Any,
) -> None:
    rng = np.random.default_rng(0)
    says = "they look like counts, and a likelihood for counts is missing"
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
        ([5.0, 5.0], None, "regression", "targets span 0, from 5 on, so there is nothing"),
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
    with pytest.raises(ValueError, match=says) as caught:
        found(y, test, task)
    assert str(caught.value).startswith("y of mine: ")


# --- rows without a target

N, LACKING = 60, [5, 17]
X = np.random.default_rng(0).normal(size=(N, 3))
KNOWN = np.setdiff1d(np.arange(N), LACKING)
#: Targets of each kind, and what stands in the place of one that is missing.
HOLES: dict[str, tuple[list[Any], Any]] = {
    "text": (["a", "b", "c"] * 20, None),
    "empty text": (["a", "b", "c"] * 20, ""),
    "booleans": ([True, False, True] * 20, None),
    "whole numbers": ([4, 5, 6] * 20, None),
    "whole numbers as floats": ([4.0, 5.0, 6.0] * 20, np.nan),
    "real": ((X[:, 0] ** 3).tolist(), np.nan),
    "real objects": ((X[:, 0] ** 3).tolist(), None),
    "several": ((X[:, :2] ** 3).tolist(), [np.nan, 1.0]),
    "one-hot": (np.eye(3)[np.arange(N) % 3].tolist(), [np.nan] * 3),
}
OF_ROWS: dict[str, dict[str, Any]] = {
    "alone": {},
    "groups": {"groups": np.arange(N) // 4},
    "times": {"time_column": np.arange(N)[::-1]},
    "weights": {"weights": np.arange(N) % 3},
    "a test": {"test_fraction": 0.2},
}


def given_as(door: str, y: list[Any], rows: Any, keys: dict[str, Any], home: Path) -> Source:
    """Return some rows of X and y as data come: with holes if their kind has such."""
    y = [y[i] for i in rows]
    keys = {k: v[rows] if isinstance(v, np.ndarray) else v for k, v in keys.items()}
    frame = pd.DataFrame(X[rows], columns=[*"abc"], index=np.asarray(rows)[::-1] + 100)
    if door == "arrays":
        return source_in_memory(X[rows], y, keys)
    if door == "table and y":
        return source_in_memory(frame, y, keys)
    columns = (
        {"y": y} if np.ndim(y[0]) == 0 else dict(zip("uvw", zip(*y, strict=True), strict=False))
    )
    frame = frame.assign(**{name: list(values) for name, values in columns.items()})
    keys["target"] = ",".join(columns)
    if door == "table":
        return source_in_memory(frame, None, keys)
    of_rows = {k: v for k, v in keys.items() if isinstance(v, np.ndarray)}
    frame.assign(**{f"of {k}": v for k, v in of_rows.items()}).to_csv(home / "t.csv", index=False)
    keys |= {k: f"of {k}" for k in of_rows}
    found = source_of(DatasetSpec(name="table", path=str(home / "t.csv"), **keys))
    assert found is not None
    return found


@pytest.mark.parametrize("more", OF_ROWS)
@pytest.mark.parametrize("door", ["arrays", "table", "table and y", "file"])
@pytest.mark.parametrize("kind", HOLES)
def test_rows_without_a_target_are_left_out_as_if_they_had_not_been_given(
    kind: str, door: str, more: str, tmp_path: Path
) -> None:
    if kind == "one-hot" and door != "arrays":
        pytest.skip("columns of 0 and 1 are no targets")
    y, none = HOLES[kind]
    holes = [none if i in LACKING else one for i, one in enumerate(y)]
    keys = OF_ROWS[more]
    arrays = given_as(door, holes, np.arange(N), keys, tmp_path).arrays(seed=0)
    expected = given_as(door, y, KNOWN, keys, tmp_path).arrays(seed=0)
    assert data_digest(arrays) == data_digest(expected)
    assert arrays.meaning.classes == expected.meaning.classes
    told = "left out: 2 of 60 rows, as they have no target; the first is row 5"
    assert [*arrays.meaning.said[:-1]][-1] == told
    said = [one for one in arrays.meaning.said if one != told]
    if kind != "booleans" or door != "arrays":  # which are numbers beside a gap
        assert said == [*expected.meaning.said]


def test_integers_beside_a_missing_target_stay_apart() -> None:
    large = [None, *(2**60 + i % 3 for i in range(1, N))]
    for data, y, keys in (
        (pd.DataFrame(X).assign(y=pd.Series(large, dtype=object)), None, {"target": "y"}),
        (X, large, {}),
    ):
        arrays = source_in_memory(data, y, keys).arrays(seed=0)
        assert [*map(str, arrays.meaning.classes)] == [str(2**60 + i) for i in range(3)]


@pytest.mark.parametrize(("n", "lacking"), [(60, 12), (60, 13)])
@pytest.mark.parametrize("part", ["train", "test"])
def test_up_to_a_fifth_of_the_rows_may_lack_a_target(n: int, lacking: int, part: str) -> None:
    y = np.arange(n) % 3 + 0.5
    holes = np.where(np.arange(n) < lacking, np.nan, y)
    arrays = {"x_train": X, "y_train": y, "x_test": X + 1, "y_test": y}
    found = array_source(
        arrays | {f"y_{part}": holes}, DatasetSpec(name="npz", path="data"), given="mine"
    )
    if lacking > 12:
        with refused("target-missing-in-rows", lacking, n, "row 0", "20%"):
            found.arrays(seed=0)
        return
    kept = found.arrays(seed=0)
    assert len(kept.x_train if part == "train" else kept.x_test) == n - lacking
    word = "" if part == "train" else "test "
    assert f"left out: 12 of 60 {word}rows, as they have no target; the first is row 0" in (
        kept.meaning.said
    )


def test_row_numbers_after_rows_were_left_out_say_of_which_rows_they_are() -> None:
    y = np.where(np.arange(N) == 3, np.nan, np.arange(N) % 3)
    y[10] = np.inf
    with refused("target-not-finite", "row 9", "rows with a target"):
        source_in_memory(X, y, {"task": "regression"}).arrays(seed=0)


# --- several targets


def of_two() -> pd.DataFrame:
    x = np.random.default_rng(0).normal(size=(40, 2)).round(4)
    frame = pd.DataFrame(x, columns=["p", "q"])
    return frame.assign(a=(frame["p"] * 2).round(3), b=frame["q"] - 1, k=["u", "v"] * 20)


def test_columns_named_together_are_the_targets_and_no_features(tmp_path: Path) -> None:
    of_two().to_csv(tmp_path / "t.csv", index=False)
    arrays = asked_for(str(tmp_path / "t.csv"), (), {"target": "b, a"}).arrays
    assert arrays is not None
    np.testing.assert_array_equal(arrays.y_train, of_two()[["b", "a"]].to_numpy())
    assert arrays.meaning.targets == ("b", "a")
    assert "2 targets" in arrays.meaning.said[0]
    assert arrays.meaning.preparation is not None
    assert [*arrays.meaning.preparation.places] == ["p", "q", "k"]


def test_a_list_of_names_and_targets_beside_a_table_are_the_same() -> None:
    frame = of_two()
    named = of_memory(frame, None, {"target": ["a", "b"]}, ()).arrays
    beside = of_memory(frame.drop(columns=["a", "b"]), frame[["a", "b"]], {}, ()).arrays
    np.testing.assert_array_equal(named.x_train, beside.x_train)
    np.testing.assert_array_equal(named.y_train, beside.y_train)


def test_a_column_with_a_comma_in_its_name_is_one_target() -> None:
    frame = of_two().rename(columns={"a": "a,b"})
    assert source_in_memory(frame, None, {"target": "a,b"}).arrays(seed=0).n_outputs == 1


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("a,gone", "no-such-column"),
        ("a,k", "regression-of-text"),
        ("c,d", "several-targets-of-classes"),
    ],
)
def test_targets_that_cannot_be_are_refused(target: str, code: str) -> None:
    frame = of_two().assign(c=[0, 1] * 20, d=[1, 1, 0, 0] * 10)
    with refused(code):
        source_in_memory(frame, None, {"target": target}).arrays(seed=0)


def test_new_data_bring_all_targets_or_none() -> None:
    arrays = source_in_memory(of_two(), None, {"target": "a,b"}).arrays(seed=0)
    preparation = arrays.meaning.preparation
    found = features_of(of_two()[:3], preparation, target="a,b")
    assert found.truth is not None
    assert found.truth.shape == (3, 2)
    assert found.unused == ()
    some = features_of(of_two()[:3].drop(columns="b"), preparation, target="a,b")
    assert some.truth is None
    assert some.unused == ("a",)


@pytest.mark.slow
def test_search_predict_and_evaluate_take_several_targets(tmp_path: Path) -> None:
    quick = {"plan.epochs": 8, "plan.settle": 0, "plan.folds": 2}
    study = nas_evidence.search(  # a linear network would settle for a hundred rounds
        of_two(), target="a,b", n_trials=1, settings=quick, families="mlp", out=tmp_path / "s",
        progress=False,
    )  # fmt: skip
    found = study.predict(of_two()[["p", "q", "k"]][:4])
    assert found.targets == ("a", "b")
    assert found.mean.shape == (4, 2)
    with pytest.warns(UserWarning, match="10 of 10 rows were in the training data"):
        metrics = study.evaluate(of_two()[:10])
    assert metrics["rmse"] > 0
