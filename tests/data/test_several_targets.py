"""Several columns of real targets: one network predicts all of them."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from messages import refused

import nas_evidence
from nas_evidence.api.request import asked_for
from nas_evidence.data.given import features_of
from nas_evidence.data.source import source_in_memory

N = 40


def table() -> pd.DataFrame:
    x = np.random.default_rng(0).normal(size=(N, 2)).round(4)
    frame = pd.DataFrame(x, columns=["p", "q"])
    return frame.assign(a=(frame["p"] * 2).round(3), b=frame["q"] - 1, k=["u", "v"] * (N // 2))


def test_columns_named_together_are_the_targets_and_no_features(tmp_path: Path) -> None:
    table().to_csv(tmp_path / "t.csv", index=False)
    arrays = asked_for(str(tmp_path / "t.csv"), (), {"target": "b, a"}).arrays
    assert arrays is not None
    np.testing.assert_array_equal(arrays.y_train, table()[["b", "a"]].to_numpy())
    assert arrays.meaning.targets == ("b", "a")
    assert "2 targets" in arrays.meaning.said[0]
    assert arrays.meaning.preparation is not None
    assert [*arrays.meaning.preparation.places] == ["p", "q", "k"]


def test_a_list_of_names_and_targets_beside_a_table_are_the_same() -> None:
    frame = table()
    named = asked(frame, None, target=["a", "b"])
    beside = asked(frame.drop(columns=["a", "b"]), frame[["a", "b"]])
    np.testing.assert_array_equal(named.x_train, beside.x_train)
    np.testing.assert_array_equal(named.y_train, beside.y_train)


def asked(data, y, **options):  # type: ignore[no-untyped-def]
    from nas_evidence.api.request import of_memory

    return of_memory(data, y, options, ()).arrays


def test_a_column_with_a_comma_in_its_name_is_one_target() -> None:
    frame = table().rename(columns={"a": "a,b"})
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
    frame = table().assign(c=[0, 1] * (N // 2), d=[1, 1, 0, 0] * (N // 4))
    with refused(code):
        source_in_memory(frame, None, {"target": target}).arrays(seed=0)


def test_new_data_bring_all_targets_or_none() -> None:
    arrays = source_in_memory(table(), None, {"target": "a,b"}).arrays(seed=0)
    preparation = arrays.meaning.preparation
    found = features_of(table()[:3], preparation, target="a,b")
    assert found.truth is not None
    assert found.truth.shape == (3, 2)
    assert found.unused == ()
    some = features_of(table()[:3].drop(columns="b"), preparation, target="a,b")
    assert some.truth is None
    assert some.unused == ("a",)


@pytest.mark.slow
def test_search_predict_and_evaluate_take_several_targets(tmp_path: Path) -> None:
    quick = {"plan.epochs": 8, "plan.settle": 0, "plan.folds": 2}
    study = nas_evidence.search(  # a linear network would settle for a hundred rounds
        table(), target="a,b", n_trials=1, settings=quick, families="mlp", out=tmp_path / "s",
        progress=False,
    )  # fmt: skip
    found = study.predict(table()[["p", "q", "k"]][:4])
    assert found.targets == ("a", "b")
    assert found.mean.shape == (4, 2)
    with pytest.warns(UserWarning, match="10 of 10 rows were in the training data"):
        metrics = study.evaluate(table()[:10])
    assert metrics["rmse"] > 0
