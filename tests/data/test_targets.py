"""Targets of any kind become labels with names, or real numbers; what cannot is one sentence."""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from messages import refused
from table_sources import Z, every, few, new, source, study, written

import nas_evidence
from nas_evidence.api.request import asked_for, of_memory
from nas_evidence.data.digest import data_digest
from nas_evidence.data.source import Source, array_source
from nas_evidence.data.targets import targets_of
from nas_evidence.spec.likelihoods import TARGET_KINDS
from nas_evidence.spec.study import DatasetSpec


def found(y: Any, test: Any = None, task: Any = None, **more: Any) -> Any:
    return targets_of(np.asarray(y), test, task=task, where="y of mine", **more)


BIG = 2**53
GRADES = ["good", "fair", "very good", "ideal", "fair"]
IN_ORDER = ("fair", "good", "ideal", "very good")
#: The cells of a target, and its classes; none of real targets.
TARGETS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "text": (["dog", "cat"], ("cat", "dog")),
    "text among objects": (np.array(["b", "a"], dtype=object), ("a", "b")),
    "a category of text": (pd.Categorical(GRADES), IN_ORDER),
    "grades in words have no order": (GRADES, IN_ORDER),
    "booleans": ([True, False], (False, True)),
    "whole numbers": ([1, 2, 3], (1, 2, 3)),
    "signs": ([-1, 1], (-1, 1)),
    "whole numbers as floats": ([0.0, 1.0], (0, 1)),
    "floats among objects that are whole": (np.array([3.0, 7.0], dtype=object), (3, 7)),
    "a column": ([[1], [2]], (1, 2)),
    "a column of text": ([["b"], ["a"]], ("a", "b")),
    "one-hot": ([[1, 0], [0, 1], [1, 0]], (0, 1)),
    "one-hot booleans": ([[True, False], [False, True]], (0, 1)),
    "above 2^53": (np.array([BIG, BIG + 1, BIG + 3]), (BIG, BIG + 1, BIG + 3)),
    "nullable": (pd.array([BIG, BIG + 1], "Int64"), (BIG, BIG + 1)),
    "unsigned": (np.array([2**64 - 1, 2**64 - 2], "uint64"), (2**64 - 2, 2**64 - 1)),
    "objects": (pd.Series([BIG, BIG + 1], dtype=object), (BIG, BIG + 1)),
    "of Arrow": (pd.Series([BIG, BIG + 1], dtype="int64[pyarrow]"), (BIG, BIG + 1)),
    "above 2^64": (pd.Series([2**70, 2**70 + 1]), (str(2**70), str(2**70 + 1))),
    "a category": (pd.Categorical([1, 0, 1, 1]), (0, 1)),
    "case": (["CO", "Co"], ("CO", "Co")),
    "case and blanks": (["AB", "Ab", "cd", "Ab "], ("AB", "Ab", "Ab ", "cd")),
    "the order of numbers": (["10", "9", "-1"], ("-1", "9", "10")),
    "the order of numbers in text": (["type 10", "type 9"], ("type 9", "type 10")),
    "the order of letters": (["b", "a", "B"], ("B", "a", "b")),
    "Decimal": ([Decimal("4.5"), Decimal("9.99"), Decimal("19.99"), Decimal(3)], ()),
    "floats among objects": (pd.Series([0.5, 1.5, 2.5, 3.5], dtype=object), ()),
    "durations": (pd.to_timedelta([5.5, 2.25, 3.5, 7.25], unit="s"), ()),
    "reals": ([0.5, 1.5, 2.0], ()),
    "several columns": ([[0.1, 2.0], [3.0, 4.0]], ()),
}


@pytest.mark.parametrize("kind", TARGETS)
def test_a_target_is_what_its_type_says(kind: str) -> None:
    cells, classes = TARGETS[kind]
    if wide := np.ndim(cells) == 2:
        values: Any = np.array(every(cells, 60))
    else:
        column = pd.concat([pd.DataFrame({"y": cells})] * 30, ignore_index=True)["y"][:60]
        values = column.to_numpy()
    arrays = study(Z[:60, None], values)
    assert arrays.meaning.classes == classes
    assert arrays.y_train.dtype == (np.int64 if classes else np.float64)
    if not wide and kind not in ("case and blanks", "the order of numbers"):  # as in a file
        table = study(pd.DataFrame({"x": Z[:60], "y": column}))
        assert table.meaning.classes == classes
        np.testing.assert_array_equal(table.y_train, arrays.y_train)
    sentence = arrays.meaning.said[0]
    if not classes:
        assert arrays.y_train.shape[1] == (2 if kind == "several columns" else 1)
        assert sentence.endswith("; task=classification to change") is not wide
    elif wide and values.shape[1] > 1:
        assert arrays.y_train.tolist() == values.argmax(1).tolist()
    else:
        labels = [str(classes[i]) for i in arrays.y_train]
        assert labels == [str(one) for one in values.ravel()] or "floats" in kind
    if classes:
        assert sentence.startswith(f"classification, {len(classes)} classes: ")


def test_the_sentence_of_a_target_names_its_classes_or_its_range() -> None:
    one = targets_of(["AB", "Ab", "cd", "Ab "] * 4, ["Ab"], task=None, where="y")
    assert (one.said, one.test.tolist()) == ("classification, 4 classes: AB, Ab, 'Ab ', cd", [1])
    two = found([[0.1, 2.0], [3.0, 4.0]])
    assert two.sentence == "regression, 2 targets from 0.1 to 4"


@given(
    st.lists(st.sampled_from("abcde"), min_size=10, max_size=40).filter(lambda y: len(set(y)) > 1)
)
def test_labels_and_class_names_give_the_texts_back(y: list[str]) -> None:
    result = found(y)
    assert [result.classes[i] for i in result.train] == y


@pytest.mark.slow
@few
@given(
    labels=st.lists(
        st.integers(BIG, BIG + 9) | st.integers(-5, 5), min_size=2, max_size=6, unique=True
    ),
    kind=st.sampled_from(["int64", "Int64", "object", "category", "text"]),
)
def test_different_labels_stay_different(labels: list[int], kind: str) -> None:
    values = pd.Series(every(labels, 40))
    column = values.map("a{}".format) if kind == "text" else values.astype(kind)
    arrays = study(pd.DataFrame({"x": Z[:40], "y": column}), task="classification")
    classes = np.array(arrays.meaning.classes, dtype=object)
    assert classes[arrays.y_train].tolist() == column.tolist()


def test_a_target_of_categories_is_of_classes_however_many() -> None:
    codes = pd.Series(np.arange(120) * 3 % 25).astype("category")
    x = pd.DataFrame({"x": Z[:120]})
    table = x.assign(y=codes)
    for given_as in ((table,), (x, codes), (x.to_numpy(), codes)):
        assert study(*given_as).meaning.classes == tuple(range(25))
    assert study(table.astype({"y": int})).task == "real"
    assert study(table, task="regression").task == "real"


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


def test_counts_are_real_targets_and_ranks_are_classes() -> None:
    generator = np.random.default_rng(0)
    counts = generator.negative_binomial(2, 0.25, 120)
    assert 15 <= len(np.unique(counts)) <= 20
    assert not found(counts).classes
    ranks: list[tuple[Any, int]] = [(range(12), 400), (range(3, 9), 60), ([10, 20, 50, 100], 60)]
    for of, n in ranks:
        assert found(generator.choice(of, n)).classes


def test_the_task_that_is_asked_for_wins() -> None:
    assert found([1, 2, 1, 2], task="regression").train.tolist() == [[1], [2], [1], [2]]
    assert found([1.0, 2.0] * 30, task="classification").classes == (1, 2)
    assert "to change" not in found([1, 2, 1, 2], task="regression").sentence


def test_labels_given_for_a_classification_stay_as_they_are() -> None:
    frame, y = pd.DataFrame({"c": ["1,5", "2,25"] * 10}), ["10 %", "5 %"] * 10
    arrays = study(frame, y, task="classification")
    assert arrays.meaning.classes == ("5 %", "10 %")
    assert new(frame.assign(target=y), arrays, "target").truth.tolist() == y


def test_numbered_labels_of_arrays_may_be_many() -> None:
    y = list(range(100)) * 2
    assert found(y).classes == ()
    assert len(found(y, integers_are_labels=True).classes) == 100


def test_ordered_grades_are_refused_until_the_task_is_given(tmp_path: Path) -> None:
    grades = pd.Categorical(
        ["low", "mid", "high", "mid"] * 10, ["low", "mid", "high"], ordered=True
    )
    graded = pd.DataFrame({"x": Z[:40], "y": grades})
    path = str(written(graded, tmp_path / "graded.parquet"))
    doors: list[Callable[[], Any]] = [
        lambda: study(graded),
        lambda: study(graded[["x"]], pd.Series(grades)),
        lambda: asked_for(path, (), {"target": "y"}),
    ]
    for door in doors:
        with refused("ordered-grades", "low, mid, high"):
            door()
    assert study(graded, task="classification").n_outputs == 3


@pytest.mark.parametrize("task", sorted({"counts", "poisson", "ordinal"} - TARGET_KINDS.keys()))
def test_a_task_without_a_likelihood_is_one_sentence(task: str) -> None:
    with pytest.raises(ValueError, match="no likelihood of their own: give regression"):
        DatasetSpec.model_validate({"name": "npz", "path": "x.npz", "task": task})


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
        ([1.0, 2.5, 3.5, 1e300], None, "regression", "must be finite .* but 1 of 4 rows .* row 3"),
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
    if door in ("arrays", "table and y"):
        return source(X[rows] if door == "arrays" else frame, y, **keys)
    columns = (
        {"y": y} if np.ndim(y[0]) == 0 else dict(zip("uvw", zip(*y, strict=True), strict=False))
    )
    frame = frame.assign(**{name: list(values) for name, values in columns.items()})
    keys["target"] = ",".join(columns)
    if door == "table":
        return source(frame, **keys)
    of_rows = {k: v for k, v in keys.items() if isinstance(v, np.ndarray)}
    frame = frame.assign(**{f"of {k}": v for k, v in of_rows.items()})
    return source(written(frame, home / "t.csv"), **keys | {k: f"of {k}" for k in of_rows})


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
    frame = pd.DataFrame(X).assign(y=pd.Series(large, dtype=object))
    for arrays in (study(frame), study(X, large)):
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
        study(X, y, task="regression")


# --- several targets


def of_two() -> pd.DataFrame:
    x = np.random.default_rng(0).normal(size=(40, 2)).round(4)
    frame = pd.DataFrame(x, columns=["p", "q"])
    return frame.assign(a=(frame["p"] * 2).round(3), b=frame["q"] - 1, k=["u", "v"] * 20)


def test_columns_named_together_are_the_targets_and_no_features(tmp_path: Path) -> None:
    path = written(of_two(), tmp_path / "t.csv")
    arrays = asked_for(str(path), (), {"target": "b, a"}).arrays
    np.testing.assert_array_equal(arrays.y_train, of_two()[["b", "a"]].to_numpy())
    assert arrays.meaning.targets == ("b", "a")
    assert "2 targets" in arrays.meaning.said[0]
    assert [*arrays.meaning.preparation.places] == ["p", "q", "k"]


def test_a_list_of_names_and_targets_beside_a_table_are_the_same() -> None:
    frame = of_two()
    named = of_memory(frame, None, {"target": ["a", "b"]}, ()).arrays
    beside = of_memory(frame.drop(columns=["a", "b"]), frame[["a", "b"]], {}, ()).arrays
    np.testing.assert_array_equal(named.x_train, beside.x_train)
    np.testing.assert_array_equal(named.y_train, beside.y_train)


def test_a_column_with_a_comma_in_its_name_is_one_target() -> None:
    frame = of_two().rename(columns={"a": "a,b"})
    assert study(frame, target="a,b").n_outputs == 1


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
        study(frame, target=target)


def test_new_data_bring_all_targets_or_none() -> None:
    arrays = study(of_two(), target="a,b")
    found = new(of_two()[:3], arrays, "a,b")
    assert found.truth.shape == (3, 2)
    assert found.unused == ()
    some = new(of_two()[:3].drop(columns="b"), arrays, "a,b")
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
