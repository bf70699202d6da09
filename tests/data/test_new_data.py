"""New data: what cannot be used is named, and what can be used is, also to judge predictions."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from messages import refused
from table_sources import U, Z, beside, new, prepared, said, study

from nas_evidence.data.given import features_of
from nas_evidence.data.targets import targets_of
from nas_evidence.exporting.predicted import Prediction
from nas_evidence.maths.normals import Normals

TABLE = beside(U[:40]).drop(columns="y")


@pytest.mark.parametrize(
    ("wrong", "shape"),
    [(np.inf, (5, 3)), (1e300, (5, 3)), (np.nan, (5, 1, 4, 4)), (np.inf, (5, 1, 4, 4))],
)
def test_arrays_that_are_not_finite_are_refused_with_their_row(
    wrong: float, shape: tuple[int, ...]
) -> None:
    x = np.zeros(shape)
    x[3, 0] = wrong
    with np.errstate(over="ignore"), refused("inputs-not-finite", 1, 5, 3):
        features_of(x, None)


@pytest.mark.parametrize(
    ("content", "says"),
    [("", "is empty; a table has a line of names"), ("x,c\n", "the new data have no rows")],
)
def test_a_file_without_rows_is_one_sentence(content: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text(content)
    with pytest.raises(ValueError, match=says):
        new(tmp_path / "new.csv", study(beside(U[:40])))


def test_rows_without_a_label_do_not_hide_those_with_one() -> None:
    trained = study(beside(U[:40]))
    found = new(TABLE.assign(y=[1.0, None] * 20), trained, "y")
    labelled = found.labelled()
    np.testing.assert_array_equal(labelled.inputs, found.inputs[::2])
    assert labelled.truth.tolist() == [1.0] * 20
    assert found.warnings == ("20 of 40 rows have no target: metrics are of the others",)
    unlabelled = new(TABLE.assign(y=None), trained, "y")
    assert (unlabelled.labelled(), unlabelled.warnings) == (None, ())
    assert new(TABLE, trained, "y").labelled() is None


def test_rows_with_a_truth_count_as_often_as_their_weight_and_others_need_none() -> None:
    preparation = prepared(study(beside(U[:40])))
    rows = TABLE[:4].assign(y=[1.0, 2.0, np.nan, 4.0], n=[2, 0, np.nan, 1])
    found = features_of(rows, preparation, target="y", weights="n").labelled()
    assert found.truth.tolist() == [1.0, 1.0, 4.0]
    whole = rows.assign(n=[1, 0.5, 1, 1], y=1.0)
    with refused("weight-not-whole", "'n'", "0.5", 1):
        features_of(whole, preparation, target="y", weights="n").labelled()


def test_arrays_in_a_file_bring_their_targets_and_weights(tmp_path: Path) -> None:
    x, path = np.arange(6.0).reshape(3, 2), tmp_path / "new.npz"
    np.savez(path, x=x, y=[1.0, 2.0, 3.0], n=[2, 0, 1], times=[1, 2, 3])
    found = features_of(path, None, weights="n").labelled()
    assert found.truth.tolist() == [1.0, 1.0, 3.0]
    assert found.inputs.tolist() == [[0, 1], [0, 1], [4, 5]]
    assert features_of(path, None).labelled().inputs.tolist() == x.tolist()
    np.savez(path, x_test=x, y_test=[1.0, 2.0])
    with refused("npz-lengths", "x_test", 3, 2):
        features_of(path, None)


def test_a_folder_of_arrays_is_predicted_as_it_is_searched(tmp_path: Path) -> None:
    x = np.arange(6.0).reshape(3, 2)
    np.save(tmp_path / "x_train.npy", x)
    np.save(tmp_path / "y_train.npy", np.array([1, 0, 1]))
    found = features_of(tmp_path, None)
    assert (found.inputs.tolist(), found.truth.tolist()) == (x.tolist(), [1, 0, 1])
    np.save(tmp_path / "x_test.npy", x[:1])
    (tmp_path / "x_train.npy").unlink()
    found = features_of(tmp_path, None)
    assert (found.inputs.tolist(), found.truth) == ([[0, 1]], None)


@pytest.mark.parametrize("unused", [np.nan, 7.0])
@pytest.mark.parametrize("text", [False, True])
def test_new_arrays_hold_the_columns_that_training_left_out(unused: float, text: bool) -> None:
    x: Any = np.stack([np.arange(20.0) % 7, np.full(20, unused), np.arange(20.0) % 3], axis=1)
    x = x.astype(object) if text else x
    if text:
        x[:, 2] = ["a", "b"] * 10
    arrays = study(x, np.arange(20.0))
    assert [*prepared(arrays).places] == ["x0", "x2"]
    np.testing.assert_array_equal(new(x, arrays).inputs, arrays.x_train)
    with refused("other-columns", 3, "[20, 2]"):
        new(x[:, [0, 2]], arrays)


def test_a_network_of_arrays_predicts_tables_by_the_place_of_their_columns() -> None:
    x = Z[:60].reshape(20, 3)
    named = pd.DataFrame(x, columns=["a", "b", "c"]).assign(y=1.0)
    arrays = study(x, x[:, 0])
    found = new(named, arrays, "y")
    np.testing.assert_array_equal(found.inputs, x.astype(np.float32))
    assert found.truth is not None
    with refused("other-columns", 3, 2):
        new(named[["a", "b"]], arrays)


def test_a_row_number_in_an_array_is_kept_by_the_option_that_is_named() -> None:
    x = np.stack([np.arange(20.0), np.arange(20.0) % 7], axis=1)
    assert "'x0' is left out" in said(x, np.arange(20.0))
    assert study(x, np.arange(20.0), numeric=["x0"]).input_shape == (2,)
    images = Z[:160].reshape(10, 4, 4)
    with refused("columns-of-no-table", "[10, 1, 4, 4]"):
        study(images, images[:, 0, 0], drop=["x0"])


def test_nan_in_new_data_alone_is_told_and_in_images_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "new.npz", x=np.full((2, 3), np.nan))
    told = "cells, none in training, replaced by the mean"
    assert features_of(tmp_path / "new.npz", None).doubts == (f"6 missing {told}",)
    frame = pd.DataFrame({"a": pd.array([1, None, None], dtype="Int64")})
    assert features_of(frame, None).doubts == (f"2 missing {told}",)
    with refused("npz-not-finite", "float32", 20):
        study(np.full((20, 4, 4), np.nan), np.arange(20.0))


# --- what predictions are compared with

P = np.array([[0.9, 0.1], [0.2, 0.8]])
PRICE = Prediction(
    density=Normals.single(np.array([[1.0], [2.0]]), np.ones((2, 1))),
    targets=("price",),
    unit=np.ones(1),
)


@pytest.mark.parametrize(
    ("classes", "truth"),
    [
        ((0, 1), [False, True]),
        ((0, 1), ["False", "True"]),
        ((0, 1), ["0.0", "1.0"]),
        ((0, 1), [0.0, 1.0]),
        ((False, True), [0, 1]),
        ((False, True), ["0", "1"]),
        ((False, True), ["false", "TRUE"]),
        (("0", "1"), [0, 1]),
        ((10, 20), ["10.0", "20"]),
        (("CO", "Co"), ["CO", "Co"]),
    ],
)
def test_the_truth_may_be_written_unlike_the_classes(classes: Any, truth: list[Any]) -> None:
    found = Prediction(classes, probabilities=P)
    for values in (np.array(truth), np.array(truth, dtype=object)):
        assert found.measures(values)["accuracy"] == 1
        tested = targets_of(np.array(classes), values, task="classification", where="y")
        assert tested.test.tolist() == tested.train.tolist()


@pytest.mark.parametrize(
    ("classes", "wrong"),
    [((0, 1), "yes"), ((1, 2), "True2"), (("01", "1"), "1.0"), (("no", "yes"), "True"),
     (("CO", "Co"), "co"), ((1, 2**53), str(2**53 + 1))],
)  # fmt: skip
def test_another_label_is_none_of_the_classes(classes: Any, wrong: str) -> None:
    with refused("unknown-test-label", repr(wrong)):
        targets_of(np.array(classes), np.array([wrong]), task="classification", where="y")
    with refused("unknown-true-label", repr(wrong), classes[0]):
        Prediction(classes, probabilities=P).measures(np.array([wrong, wrong], dtype=object))


def test_one_hot_labels_are_those_of_their_columns() -> None:
    found = Prediction(("no", "yes"), (), 0.9, probabilities=P)
    assert found.measures(np.array([[1, 0], [1, 0]]))["accuracy"] == 0.5


def test_real_targets_have_no_labels_and_classes_no_density() -> None:
    with refused("labels-of-real-targets", "price", "mean"):
        _ = PRICE.labels
    with refused("density-of-classes", "cat", "dog"):
        _ = Prediction(("cat", "dog"), probabilities=P).low


@pytest.mark.parametrize(
    ("truth", "code", "says"),
    [
        (["1", "42509 USD"], "truth-not-numbers", ("'price'", "row 1", "'42509 USD'")),
        ([["1", "2"], ["3", "4"]], "truth-shape", ("'price'", "[2, 2]")),
    ],
)
def test_a_true_target_that_is_no_number_is_named_with_its_row(
    truth: list[Any], code: str, says: tuple[object, ...]
) -> None:
    with refused(code, *says):
        PRICE.measures(np.array(truth, dtype=object))
