"""Rows that are given keep their index, and what is given beside them has it, at every door."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from commands import QUICK, run
from messages import refused

import nas_evidence
from nas_evidence.data.given import features_of
from nas_evidence.data.preparation import prepare
from nas_evidence.data.reading import read
from nas_evidence.data.source import source_in_memory

N = 40
R = np.random.default_rng(0)
ROWS = pd.DataFrame({"size": R.normal(size=N), "age": R.normal(size=N)})
PRICE = pd.Series(ROWS["size"] * 3 + 20, name="price")
ORDER = R.permutation(N)
pytestmark = pytest.mark.filterwarnings("ignore:.*rows were in the training data")
INDEXES = {
    "another order": pd.Index(ORDER),
    "labels twice": pd.Index([f"r{i % 7}" for i in range(N)]),
    "dates": pd.date_range("2024-01-01", periods=N, freq="D")[ORDER],
    "two levels": pd.MultiIndex.from_arrays([ORDER % 3, ORDER]),
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> nas_evidence.Study:
    out = tmp_path_factory.mktemp("study") / "prices"
    return nas_evidence.search(ROWS, PRICE, n_trials=2, settings=QUICK, progress=False, out=out)


@pytest.mark.slow
@pytest.mark.parametrize("kind", INDEXES)
def test_predictions_have_the_index_of_the_rows_that_are_given(
    kind: str, study: nas_evidence.Study, tmp_path: Path
) -> None:
    rows = ROWS.set_axis(INDEXES[kind])
    expected = study.predict(ROWS).mean[:, 0]
    rows.to_parquet(tmp_path / "rows.parquet")
    loaded = nas_evidence.Predictor.load(study.export(tmp_path / "export"))
    found = {
        "study": study.predict(rows),
        "ensemble": study.predict(rows, top=2),
        "export": loaded.predict(rows),
        "function": nas_evidence.predict(study, rows).rows,
        "file": study.predict(tmp_path / "rows.parquet"),
        "columns": study.predict({name: rows[name] for name in rows}),
    }
    for door, one in found.items():
        joined = rows.assign(predicted=one.mean[:, 0])
        pd.testing.assert_index_equal(one.to_frame().index, rows.index, exact="equiv")
        if rows.index.is_unique:
            joined["by index"] = one.to_frame()["prediction"]
            np.testing.assert_array_equal(joined["by index"], joined["predicted"], door)
        if door != "ensemble":
            np.testing.assert_allclose(one.mean[:, 0], expected, rtol=1e-6, err_msg=door)
    some = found["study"].at(np.array([3, 1]))
    pd.testing.assert_index_equal(some.to_frame().index, rows.index[[3, 1]])
    assert study.predict(rows.iloc[3]).to_frame().index.tolist() == [rows.index[3]]


def test_rows_without_an_index_are_numbered(study: nas_evidence.Study) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    for rows in (pyarrow.Table.from_pandas(ROWS), ROWS.to_dict("list"), ROWS.to_dict("records")):
        assert study.predict(rows).index is None
        assert study.predict(rows).to_frame().index.equals(pd.RangeIndex(N))


@pytest.mark.parametrize("text", [["€ 1.5", None, "€ 2"], ["2024-01-31", None, "2024-03-01"]])
def test_labels_of_rows_that_occur_twice_change_no_feature(text: list[Any]) -> None:
    frame = pd.DataFrame({"cells": text * 10, "size": R.normal(size=30)})
    twice = frame.set_axis(np.arange(30) % 7)
    preparation = prepare(read(frame), drop=(), categorical=(), numeric=(), where="t")[0]
    np.testing.assert_array_equal(
        features_of(twice, preparation).inputs, features_of(frame, preparation).inputs
    )
    y = pd.Series(R.normal(size=30), twice.index)
    arrays = source_in_memory(twice, y, {}).arrays(seed=0)
    assert arrays.n_train == 30


def _fitted(kind: str) -> Callable[..., Any]:
    def fit(study: nas_evidence.Study, y: Any, **more: Any) -> object:
        estimator = nas_evidence.EvidenceRegressor(n_trials=1, settings=QUICK)
        estimator.predictor_, estimator.n_features_in_ = study.predictor(), 2
        return getattr(estimator, kind)(ROWS, y, **more)

    return fit


DOORS: dict[str, Callable[..., Any]] = {
    "search": lambda study, y: nas_evidence.search(ROWS, y, n_trials=1, out="x"),
    "refit": lambda study, y: study.refit(ROWS, y, out="x"),
    "fit": _fitted("fit"),
    "score": _fitted("score"),
    "evaluate": lambda study, y: study.evaluate(ROWS, y),
    "evaluate of a predictor": lambda study, y: study.predictor().evaluate(ROWS, y),
    "measures": lambda study, y: study.predict(ROWS).measures(y),
}
BESIDE = {
    "groups": lambda study, w: nas_evidence.search(ROWS, PRICE, groups=w, out="x"),
    "weights": lambda study, w: nas_evidence.search(ROWS, PRICE, weights=w, out="x"),
    "time_column": lambda study, w: nas_evidence.search(ROWS, PRICE, time_column=w, out="x"),
    "weights of columns": lambda study, w: nas_evidence.search(
        ROWS.assign(price=PRICE), target="price", weights=w, out="x"
    ),
    "weights of numbers": lambda study, w: nas_evidence.search(
        ROWS["size"], PRICE, weights=w, out="x"
    ),
    "sample_weight": lambda study, w: _fitted("fit")(study, PRICE, sample_weight=w),
    "groups of fit": lambda study, w: _fitted("fit")(study, PRICE, groups=w),
    "sample_weight of score": lambda study, w: _fitted("score")(study, PRICE, sample_weight=w),
    "columns": lambda study, w: study.predict({"size": ROWS["size"], "age": w}),
}


@pytest.mark.slow
@pytest.mark.parametrize("door", [*DOORS, *BESIDE])
def test_pandas_objects_of_another_index_are_refused_with_the_first_row_that_differs(
    door: str, study: nas_evidence.Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = PRICE if door in DOORS else pd.Series(1, ROWS.index)
    for index in (ROWS.index[::-1], ROWS.index + 5):
        with refused("index-not-aligned", 0, index[0]):
            {**DOORS, **BESIDE}[door](study, given.set_axis(index))
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
@pytest.mark.parametrize("rows", [ROWS, ROWS.to_numpy()])
def test_an_array_is_taken_by_position_and_so_is_a_series_beside_one(
    rows: Any, study: nas_evidence.Study
) -> None:
    expected = study.evaluate(ROWS, PRICE)
    given = PRICE.to_numpy() if isinstance(rows, pd.DataFrame) else PRICE.set_axis(ORDER)
    assert dict(study.evaluate(rows, given)) == pytest.approx(dict(expected))


def _with(bad: float, name: str) -> dict[str, Callable[[nas_evidence.Study], Any]]:
    """Write tables whose target of row 7 is bad into this folder; return the doors for them."""
    y = PRICE.where(np.arange(N) != 7, bad)
    labelled = ROWS.assign(**{name: y})
    ROWS.assign(**{name: PRICE}).to_csv("train.csv", index=False)
    labelled.to_csv("new.csv", index=False)
    np.savez("new.npz", x=ROWS.to_numpy(), y=y)
    search = nas_evidence.search
    return {
        **{door: lambda study, door=door: DOORS[door](study, y) for door in DOORS},
        "a column": lambda study: study.evaluate(labelled),
        "a file": lambda study: study.evaluate("new.csv"),
        "an npz file": lambda study: study.evaluate("new.npz"),
        "test rows": lambda study: search("train.csv", target=name, test="new.csv", out="x"),
    }


#: Where a row without a target is left out, and counted.
COUNTED = ("evaluate", "evaluate of a predictor", "a column", "a file", "an npz file")
#: Where it is so before anything runs; see tests/data/test_targets.py and test_as_before.py.
TRAINED = ("search", "refit", "fit", "test rows")


@pytest.mark.slow
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("door", [*DOORS, "a column", "a file", "an npz file", "test rows"])
def test_a_target_that_is_not_finite_is_refused_with_its_row_and_a_missing_one_is_counted(
    door: str,
    bad: float,
    study: nas_evidence.Study,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    call = _with(bad, study.predictor().targets[0])[door]
    if np.isnan(bad) and door in TRAINED:
        return
    if np.isnan(bad) and door in COUNTED:
        with pytest.warns(UserWarning, match=f"1 of {N} rows have no target"):
            assert call(study).n == N - 1
        return
    with pytest.raises(ValueError, match=r"row 7|NaN") as error:
        call(study)
    assert ("test rows" in str(error.value)) == (door == "test rows")
    assert not (tmp_path / "x").exists()


def test_the_row_of_a_bad_target_is_that_of_the_data_where_others_have_none(
    study: nas_evidence.Study,
) -> None:
    y = PRICE.where(np.arange(N) > 3).where(np.arange(N) != 7, np.inf)
    for rows, truth, row in (
        (ROWS, y, 7),
        (ROWS.set_axis(ORDER), y.set_axis(ORDER), ORDER[7]),
        (ROWS, y.astype(object).where(y != np.inf, "dear"), 7),
    ):
        with (
            refused("truth-not-numbers", row),
            pytest.warns(UserWarning, match="4 of 40 rows have no target"),
        ):
            study.evaluate(rows, truth)


@pytest.mark.slow
def test_the_columns_of_a_file_are_copied_in_its_order(
    study: nas_evidence.Study, tmp_path: Path
) -> None:
    rows = ROWS.assign(key=np.arange(N)).iloc[ORDER]
    rows.to_parquet(tmp_path / "new.parquet")
    expected = study.predict(rows).mean[:, 0]
    for to in ("p.csv", "p.parquet"):
        words = ("new.parquet", "--id", "key", "--to", to)
        run("predict", study.folder, *words, folder=tmp_path)
        found = getattr(pd, f"read_{to[2:]}")(tmp_path / to)
        assert found["key"].tolist() == rows["key"].tolist()
        np.testing.assert_allclose(found["prediction"], expected)
