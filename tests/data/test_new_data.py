"""New data: what cannot be used is named, and what can be used is."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from messages import refused

from nas_evidence.data.given import features_of
from nas_evidence.data.preparation import prepare
from nas_evidence.data.source import source_in_memory, source_of
from nas_evidence.data.table_columns import Preparation
from nas_evidence.exporting.predictor import Prediction
from nas_evidence.spec.study import DatasetSpec


def trained() -> tuple[pd.DataFrame, Preparation]:
    n = 40
    table = pd.DataFrame({"size": np.linspace(0, 1, n) ** 2, "town": ["oslo", "bern"] * (n // 2)})
    return table, prepare(table, drop=(), categorical=(), numeric=(), where="t")[0]


@pytest.mark.parametrize(
    ("wrong", "shape"),
    [(np.inf, (5, 3)), (1e300, (5, 3)), (np.nan, (5, 1, 4, 4)), (np.inf, (5, 1, 4, 4))],
)
def test_arrays_that_are_not_finite_are_refused_with_their_row(
    wrong: float, shape: tuple[int, ...]
) -> None:
    x = np.zeros(shape)
    x[3, 0] = wrong
    with (
        np.errstate(over="ignore"),
        refused("inputs-not-finite", 1, 5, 3),
    ):
        features_of(x, None)


@pytest.mark.parametrize(
    ("content", "says"),
    [("", "is empty; a table has a line of names"), ("size,town\n", "the new data have no rows")],
)
def test_a_file_without_rows_is_one_sentence(content: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text(content)
    with pytest.raises(ValueError, match=says):
        features_of(tmp_path / "new.csv", trained()[1])


def test_rows_without_a_label_do_not_hide_those_with_one() -> None:
    table, preparation = trained()
    given = features_of(table.assign(y=[1.0, None] * 20), preparation, target="y")
    labelled = given.labelled()
    np.testing.assert_array_equal(labelled.inputs, given.inputs[::2])
    assert labelled.truth.tolist() == [1.0] * 20
    assert given.warnings == ("20 of 40 rows have no target: metrics are of the others",)
    unlabelled = features_of(table.assign(y=None), preparation, target="y")
    assert (unlabelled.labelled(), unlabelled.warnings) == (None, ())
    assert features_of(table, preparation, target="y").labelled() is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, []),
        ({"town": "lima"}, ["column 'town': 40 cells not seen in training ('lima')"]),
        ({"size": ["big", *["2"] * 39]}, ["column 'size': 1 cell with text ('big')"]),
        ({"size": [None, *[2] * 39]}, ["column 'size': 1 missing cell, replaced by the median"]),
        (
            {"town": [None, *["bern"] * 39]},
            ["column 'town': 1 missing cell, replaced by the category"],
        ),
        ({"size": None}, ["column 'size' is empty"]),
        ({"size": [2.0, -1.0] * 20}, []),  # outside, but not further than the range is wide
        (
            {"size": [2.5, *[0.1] * 39]},
            ["'size': 1 cell (2.5) is far outside all training values (0 to 1); used unchanged"],
        ),
        (
            {"size": ["-1e6", "3", *["0.1"] * 38]},
            ["'size': 2 cells (-1000000.0, 3.0) are far outside all training values (0 to 1)"],
        ),
    ],
)
def test_cells_unlike_those_of_the_training_are_told_by_column(
    changes: dict[str, Any], says: list[str]
) -> None:
    table, preparation = trained()
    doubts = features_of(table.assign(**changes), preparation).doubts
    assert len(doubts) == len(says)
    assert all(text in doubt for text, doubt in zip(says, doubts, strict=True))


def test_labels_that_differ_in_case_are_two_when_predictions_are_judged() -> None:
    found = Prediction(("CO", "Co"), (), 0.9, probabilities=np.array([[0.9, 0.1], [0.2, 0.8]]))
    assert found.measures(["CO", "Co"])["accuracy"] == 1
    with refused("unknown-true-label", "'maybe'"):
        found.measures(["CO", "maybe"])


def test_rows_with_a_truth_count_as_often_as_their_weight_and_others_need_none() -> None:
    table, preparation = trained()
    new = table[:4].assign(price=[1.0, 2.0, np.nan, 4.0], n=[2, 0, np.nan, 1])
    found = features_of(new, preparation, target="price", weights="n").labelled()
    assert found.truth.tolist() == [1.0, 1.0, 4.0]
    with refused("weight-not-whole", "'n'", "0.5", 1):
        features_of(new.assign(n=0.5, price=1.0).assign(n=[1, 0.5, 1, 1]), preparation,
                    target="price", weights="n").labelled()  # fmt: skip


def test_arrays_in_a_file_bring_their_targets_and_weights(tmp_path: Path) -> None:
    x, path = np.arange(6.0).reshape(3, 2), tmp_path / "new.npz"
    np.savez(path, x=x, y=[1.0, 2.0, 3.0], n=[2, 0, 1], times=[1, 2, 3])
    found = features_of(path, None, weights="n").labelled()
    assert found.truth.tolist() == [1.0, 1.0, 3.0]
    assert found.inputs.tolist() == [[0, 1], [0, 1], [4, 5]]
    plain = features_of(path, None).labelled()
    assert plain.inputs.tolist() == x.tolist()
    np.savez(path, x_test=x, y_test=[1.0, 2.0])
    with refused("npz-lengths", "x_test", 3, 2):
        features_of(path, None)


def test_a_folder_of_arrays_is_predicted_as_it_is_searched(tmp_path: Path) -> None:
    x = np.arange(6.0).reshape(3, 2)
    for name, array in {"x_train": x, "y_train": np.array([1, 0, 1])}.items():
        np.save(tmp_path / f"{name}.npy", array)
    found = features_of(tmp_path, None)
    assert found.inputs.tolist() == x.tolist()
    assert found.truth.tolist() == [1, 0, 1]
    np.save(tmp_path / "x_test.npy", x[:1])
    (tmp_path / "x_train.npy").unlink()
    found = features_of(tmp_path, None)
    assert (found.inputs.tolist(), found.truth) == ([[0, 1]], None)


@pytest.mark.parametrize("kind", ["memory", "npz", "folder"])
def test_nan_in_arrays_is_filled_as_in_a_frame(kind: str, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(40, 3)), generator.normal(size=(40, 2))
    x[3, 0] = x[5, 0] = np.nan
    if kind == "memory":
        source: Any = source_in_memory(x, y, {})
    elif kind == "npz":
        np.savez(tmp_path / "d.npz", x=x, y=y)
        source = source_of(DatasetSpec(name="npz", path="d.npz"), base=tmp_path)
    else:
        np.save(tmp_path / "x_train.npy", x)
        np.save(tmp_path / "y_train.npy", y)
        source = source_of(DatasetSpec(name="npz", path="."), base=tmp_path)
    arrays = source.arrays(seed=0)
    frame = pd.DataFrame(x).add_prefix("x").assign(y=y[:, 0])
    expected = source_in_memory(frame, None, {"target": "y"}).arrays(seed=0)
    for name in ("x_train", "mean", "std"):
        np.testing.assert_array_equal(getattr(arrays, name), getattr(expected, name))
    assert arrays.meaning.said[1] == expected.meaning.said[1]
    preparation = Preparation.from_json(arrays.meaning.preparation.to_json())
    np.testing.assert_array_equal(features_of(x, preparation).inputs, arrays.x_train)
    np.savez(tmp_path / "new.npz", x_test=x, y_test=y)
    found = features_of(tmp_path / "new.npz", preparation)
    np.testing.assert_array_equal(found.inputs, arrays.x_train)
    assert found.truth is not None
    np.testing.assert_array_equal(found.truth, y)


@pytest.mark.parametrize("unused", [np.nan, 7.0])
@pytest.mark.parametrize("text", [False, True])
def test_new_arrays_hold_the_columns_that_training_left_out(unused: float, text: bool) -> None:
    x: Any = np.stack([np.arange(20.0) % 7, np.full(20, unused), np.arange(20.0) % 3], axis=1)
    x = x.astype(object) if text else x
    if text:
        x[:, 2] = ["a", "b"] * 10
    arrays = source_in_memory(x, np.arange(20.0), {}).arrays(seed=0)
    preparation = arrays.meaning.preparation
    assert preparation is not None
    assert [*preparation.places] == ["x0", "x2"]
    np.testing.assert_array_equal(features_of(x, preparation).inputs, arrays.x_train)
    with refused("other-columns", 3, "[20, 2]"):
        features_of(x[:, [0, 2]], preparation)


def test_a_network_of_arrays_predicts_tables_by_the_place_of_their_columns() -> None:
    x = np.random.default_rng(0).normal(size=(20, 3))
    preparation = source_in_memory(x, x[:, 0], {}).arrays(seed=0).meaning.preparation
    named = pd.DataFrame(x, columns=["a", "b", "c"]).assign(y=1.0)
    found = features_of(named, preparation, target="y")
    np.testing.assert_array_equal(found.inputs, x.astype(np.float32))
    assert found.truth is not None
    with refused("other-columns", 3, 2):
        features_of(named[["a", "b"]], preparation)


def test_a_row_number_in_an_array_is_kept_by_the_option_that_is_named() -> None:
    x = np.stack([np.arange(20.0), np.arange(20.0) % 7], axis=1)
    assert "'x0' is left out" in " ".join(
        source_in_memory(x, np.arange(20.0), {}).arrays(seed=0).meaning.said
    )
    kept = source_in_memory(x, np.arange(20.0), {"numeric": ["x0"]}).arrays(seed=0)
    assert kept.input_shape == (2,)
    images = np.random.default_rng(0).normal(size=(20, 4, 4))
    with refused("columns-of-no-table", "[20, 1, 4, 4]"):
        source_in_memory(images, images[:, 0, 0], {"drop": ["x0"]}).arrays(seed=0)


def test_nan_in_new_arrays_alone_is_told_and_in_images_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "new.npz", x=np.full((2, 3), np.nan))
    told = "6 missing cells, none in training, replaced by the mean"
    assert features_of(tmp_path / "new.npz", None).doubts == (told,)
    with refused("npz-not-finite", "float32", 20):
        source_in_memory(np.full((20, 4, 4), np.nan), np.arange(20.0), {}).arrays(seed=0)


def test_one_hot_labels_are_those_of_their_columns() -> None:
    found = Prediction(("no", "yes"), (), 0.9, probabilities=np.array([[0.9, 0.1], [0.2, 0.8]]))
    assert found.measures(np.array([[1, 0], [1, 0]]))["accuracy"] == 0.5
