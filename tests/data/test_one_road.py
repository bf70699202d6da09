"""One road from a cell to a number: whatever the source, in training and in new data."""

import datetime
import io
from collections.abc import Callable
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from messages import refused

from nas_evidence.data.arrays import ArrayData
from nas_evidence.data.given import features_of
from nas_evidence.data.source import source_in_memory, source_of
from nas_evidence.data.table_columns import Preparation
from nas_evidence.data.typed import typed_column
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.study import DatasetSpec

N = 40
R = np.random.default_rng(0)
U, Z = R.uniform(size=N), R.normal(size=N)
Y = np.sin(6 * U) + Z
GAPS = np.where(np.arange(N) % 9 == 4, np.nan, U)
CODES = [1, 2, 5, 7] * (N // 4)
SECONDS = pd.Series(GAPS * 3600).round(3)
DAYS = pd.Series(pd.date_range("2024-02-01", periods=N, freq="31h"))
HOUR = pd.Timedelta(hours=1)
few = settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def read(column: Any, **options: Any) -> ArrayData:
    """Return a study of a table with a column `c` beside one of numbers."""
    table = pd.DataFrame({"x": Z}).assign(c=column, y=Y)
    return source_in_memory(table, None, {"target": "y", **options}).arrays(seed=0)


def prepared(arrays: ArrayData) -> Preparation:
    assert arrays.meaning.preparation is not None
    return Preparation.from_json(arrays.meaning.preparation.to_json())


def scaled(arrays: ArrayData) -> np.ndarray:
    return (np.asarray(arrays.x_train) - arrays.mean) / arrays.std


def arrow(values: Any, kind: Any = None) -> pd.Series:
    pyarrow = pytest.importorskip("pyarrow")
    array = pyarrow.array(values, kind)
    return pd.Series(pd.arrays.ArrowExtensionArray(array))


def texts(codes: list[Any]) -> pd.Categorical:
    return pd.Categorical([None if one is None else str(one) for one in codes])


def of_arrow(cell: Callable[[Any], Any]) -> list[Any]:
    return [None if np.isnan(one) else cell(one) for one in GAPS]


#: A column, and the plain one whose features it must have; what stood before is in the comment.
TWINS: dict[str, tuple[Callable[[], Any], Any]] = {
    # -9.2e18 for a missing one, without an indicator
    "durations with gaps": (lambda: pd.to_timedelta(SECONDS, unit="s"), SECONDS),
    "durations of Python": (
        lambda: [None if np.isnan(s) else datetime.timedelta(seconds=s) for s in SECONDS],
        SECONDS,
    ),
    "durations of Arrow": (
        lambda: arrow([None if np.isnan(s) else round(s * 1000) for s in SECONDS], _ms()),
        SECONDS,
    ),
    # 5 of 100 values were left
    "a Julian date": (lambda: 2459000.5 + U, U),
    "milliseconds": (lambda: 1.7e12 + np.round(U * 6e4), np.round(U * 6e4)),
    # all 0
    "tiny numbers": (lambda: U * 1e-46, U),
    # classes without an order were an amount, and a crash with a gap
    "a category of integers": (lambda: pd.Categorical(CODES), texts(CODES)),
    "a category with gaps": (
        lambda: pd.Categorical([None, *CODES[1:]]),
        texts([None, *CODES[1:]]),
    ),
    "a category of Arrow": (
        lambda: arrow(pytest.importorskip("pyarrow").array(CODES).dictionary_encode()),
        texts(CODES),
    ),
    "Decimal": (lambda: of_arrow(lambda one: Decimal(str(one))), GAPS),
    "decimals of Arrow": (lambda: arrow(of_arrow(lambda one: Decimal(str(one)))), GAPS),
    "numbers among objects": (lambda: pd.Series(of_arrow(float), dtype=object), GAPS),
    "numbers of Arrow": (lambda: arrow(of_arrow(float)), GAPS),
    "nullable": (lambda: pd.array(of_arrow(float), "Float64"), GAPS),
    "integers of Arrow": (lambda: arrow([None, *CODES[1:]]), [np.nan, *CODES[1:]]),
    "another byte order": (lambda: GAPS.astype(">f8"), GAPS),
    "long double": (lambda: GAPS.astype(np.longdouble), GAPS),
    "half precision": (lambda: U.astype(np.float16), U.astype(np.float16).astype(float)),
    # a TypeError in new data
    "lists": (lambda: [["a"], ["b"], []] * 13 + [[]], ['["a"]', '["b"]', "[]"] * 13 + ["[]"]),
    "records": (lambda: [{"k": 1}, {"k": 2}] * (N // 2), ['{"k": 1}', '{"k": 2}'] * (N // 2)),
    # refused in new data
    "flags and a word": (
        lambda: ["True", "false", "TRUE", "?"] + ["True", "False"] * 18,
        [True, False, True, None] + [True, False] * 18,
    ),
    # Berlin is one hour before UTC until April.
    "local time": (lambda: DAYS.dt.tz_localize("Europe/Berlin"), DAYS - HOUR),
    "text with a zone": (lambda: DAYS.astype(str) + "+02:00", DAYS - 2 * HOUR),
    "text with two zones": (
        lambda: DAYS.astype(str) + pd.Series(["+01:00", "-03:30"] * (N // 2)),
        DAYS - pd.Series([1, -3.5] * (N // 2)) * HOUR,
    ),
    "periods": (lambda: pd.period_range("2020-01", periods=N, freq="M").to_series(index=range(N)),
                pd.Series(pd.date_range("2020-01-01", periods=N, freq="MS"))),
}  # fmt: skip


def _ms() -> Any:
    return pytest.importorskip("pyarrow").duration("ms")


@pytest.mark.parametrize("kind", TWINS)
def test_a_column_has_the_features_of_its_plain_twin(kind: str) -> None:
    column, twin = TWINS[kind][0](), TWINS[kind][1]
    found, expected = read(column), read(twin)
    np.testing.assert_allclose(scaled(found), scaled(expected), rtol=1e-6, atol=1e-6)
    shapes = [
        [(one.kind, one.indicator, one.part, one.categories) for one in prepared(arrays).columns]
        for arrays in (found, expected)
    ]
    assert shapes[0] == shapes[1]
    new = pd.DataFrame({"x": Z}).assign(c=column)
    np.testing.assert_array_equal(features_of(new, prepared(found)).inputs, found.x_train)
    if kind == "another byte order":
        return  # pandas itself takes no rows of such a column
    rows = [7, 3, 3, 39]
    again = features_of(new.iloc[rows].reset_index(drop=True), prepared(found))
    np.testing.assert_array_equal(again.inputs, found.x_train[rows])
    assert again.doubts == ()
    for row in rows[:2]:  # alone
        one = features_of(new.iloc[[row]], prepared(found)).inputs
        np.testing.assert_array_equal(one[0], found.x_train[row])


@pytest.mark.parametrize("kind", TWINS)
def test_a_typed_column_is_what_parquet_gives_back(kind: str) -> None:
    column = pd.DataFrame({"c": TWINS[kind][0]()})["c"]
    found, _ = typed_column(column)
    buffer = io.BytesIO()
    found.to_frame("c").to_parquet(buffer, index=False)
    stored = pd.read_parquet(buffer)["c"]
    pd.testing.assert_series_equal(typed_column(stored)[0], stored, check_dtype=False)
    assert list(map(str, stored)) == list(map(str, found))


def test_a_target_of_categories_is_of_classes_however_many() -> None:
    codes = pd.Series(np.arange(3 * N) * 3 % 25).astype("category")
    table = pd.DataFrame({"x": np.tile(Z, 3), "y": codes})
    for source in (
        source_in_memory(table, None, {"target": "y"}),
        source_in_memory(table[["x"]], codes, {}),
        source_in_memory(table[["x"]].to_numpy(), codes, {}),
    ):
        assert source.arrays(seed=0).meaning.classes == tuple(range(25))
    plain = source_in_memory(table.astype({"y": int}), None, {"target": "y"})
    assert plain.arrays(seed=0).task == "real"
    asked = source_in_memory(table, None, {"target": "y", "task": "regression"})
    assert asked.arrays(seed=0).task == "real"


BIG = 2**53
#: A target, and its classes; None for real targets.
TARGETS: dict[str, tuple[Callable[[], Any], tuple[Any, ...] | None]] = {
    # 2 classes, one of which never occurs
    "above 2^53": (lambda: np.array([BIG, BIG + 1, BIG + 3, BIG]), (BIG, BIG + 1, BIG + 3)),
    "nullable": (lambda: pd.array([BIG, BIG + 1] * 2, "Int64"), (BIG, BIG + 1)),
    "unsigned": (lambda: np.array([2**64 - 1, 2**64 - 2] * 2, "uint64"), (2**64 - 2, 2**64 - 1)),
    "objects": (lambda: pd.Series([BIG, BIG + 1] * 2, dtype=object), (BIG, BIG + 1)),
    "of Arrow": (lambda: arrow([BIG, BIG + 1] * 2), (BIG, BIG + 1)),
    "above 2^64": (lambda: pd.Series([2**70, 2**70 + 1] * 2), (str(2**70), str(2**70 + 1))),
    "a category": (lambda: pd.Categorical([1, 0, 1, 1]), (0, 1)),
    "case": (lambda: ["CO", "Co"] * 2, ("CO", "Co")),
    # 4 classes
    "Decimal": (lambda: [Decimal("4.5"), Decimal("9.99"), Decimal("19.99"), Decimal(3)], None),
    "floats among objects": (lambda: pd.Series([0.5, 1.5, 2.5, 3.5], dtype=object), None),
    # refused: nanoseconds are no classes
    "durations": (lambda: pd.to_timedelta([5.5, 2.25, 3.5, 7.25], unit="s"), None),
}


@pytest.mark.parametrize("kind", TARGETS)
def test_a_target_is_what_its_type_says(kind: str) -> None:
    values, classes = TARGETS[kind][0](), TARGETS[kind][1]
    column = pd.concat([pd.DataFrame({"y": values})] * (N // 4), ignore_index=True)["y"]
    arrays = source_in_memory(pd.DataFrame({"x": Z, "y": column}), None, {"target": "y"})
    assert arrays.arrays(seed=0).meaning.classes == (classes or ())
    alone = source_in_memory(Z[:, None], column.to_numpy(), {}).arrays(seed=0)
    assert alone.meaning.classes == (classes or ())
    np.testing.assert_array_equal(alone.y_train, arrays.arrays(seed=0).y_train)


MIXED = pd.Series([1, "1", 2, "2"] * (N // 4), dtype=object)


@pytest.mark.parametrize(
    ("code", "table", "options"),
    [
        ("labels-of-two-types", {"y": MIXED}, {}),
        ("target-missing-in-rows", {"y": pd.Categorical([1, 2, np.nan, 3] * 10)}, {}),
        ("unit-of-row", {"c": pd.Categorical([1, 2, np.nan, 3] * 10)}, {"groups": "c"}),
        ("unit-of-row", {"c": pd.to_timedelta(SECONDS, unit="s")}, {"time_column": "c"}),
        ("complex-column", {"c": Z + 1j}, {}),
        ("target-of-dates", {"y": DAYS}, {}),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_sentence(
    code: str, table: dict[str, Any], options: dict[str, Any]
) -> None:
    frame = pd.DataFrame({"x": Z, "y": Y}).assign(**table)
    with refused(code):
        source_in_memory(frame, None, {"target": "y", **options}).arrays(seed=0)
    if code == "labels-of-two-types":
        with refused(code):
            source_in_memory(Z[:, None], MIXED.to_numpy(), {})


#: A column, what is said of it, and how many features it has.
SAID: dict[str, tuple[Any, str, int]] = {
    "a category": (
        pd.Categorical(CODES),
        "column 'c' is a category of numbers, read as categories; numeric=c to change",
        5,
    ),
    "a category of many": (pd.Categorical(np.arange(N)[::-1]), "", 1),
    # dates without a part
    "article numbers": (["1001-23-45", "1002-33-46", "1003-43-47", "1001-23-49"] * 10, "", 5),
    "numbers of substances": (["7732-18-5", "64-17-5", "67-56-1", "7647-14-5"] * 10, "", 5),
    "versions": (["3.11.12", "2.7.18"] * 20, "`categorical` to read categories", 4),
    "one date and gaps": (["2024-01-01", None] * 20, "is read as dates: days", 2),
    "a date of no calendar": (
        [*pd.date_range("2024-01-01", periods=N - 1).strftime("%Y-%m-%d"), "2024-02-30"],
        "column 'c' is read as dates, and 1 cell without a date ('2024-02-30') as missing: days",
        4,
    ),
    "one date in two spellings": (["2024-01-01", "2024-1-1"] * 20, "it has one value only", 0),
    "a zone": (
        DAYS.dt.tz_localize("Europe/Berlin"),
        "column 'c' is read as dates in UTC: days",
        4,
    ),
    "two currencies": (
        [f"${i * i % 37}.5" if i % 2 else f"€{i}" for i in range(N)],
        "is not read as numbers, as they have several units: €, $",
        0,
    ),
    "some per cent": (
        [f"{i * i % 37} %" if i % 2 else f"0.{i}" for i in range(N)],
        "is not read as numbers, as they have several units: %, none",
        0,
    ),
    "flags and a word": (
        ["True", "False", "True", "?"] + ["True", "False"] * 18,
        "column 'c' is read as True and False and '?' as missing; categorical=c to change",
        2,
    ),
    "years of two digits": (
        ["31/12/68", "01/02/69"] * 20,
        "is read as dates, with the day first and years of two digits in 1969 to 2068: days",
        4,
    ),
    "years of four digits": (["31/12/2068", "01/02/1969"] * 20, "with the day first: days", 4),
    "ordered categories": (
        pd.Categorical(["low", "mid", "high", "mid"] * 10, ["low", "mid", "high"], ordered=True),
        "column 'c' is read as categories without their order, low < mid < high; give their "
        "numbers (.cat.codes) to keep it",
        4,
    ),
    "far dates": (["9999-12-31", "2020-01-02", "0001-01-01", "2021-01-02"] * 10, "as dates", 4),
}


@pytest.mark.parametrize("kind", SAID)
def test_what_was_decided_of_a_column_is_said(kind: str) -> None:
    column, says, n_features = SAID[kind]
    arrays = read(column)
    assert says in " | ".join(arrays.meaning.said)
    assert len(prepared(arrays).feature_names) == 1 + n_features


#: A training column, a new one, what is told, and the new features.
NEW: dict[str, tuple[Any, Any, list[str], list[list[float]]]] = {
    "flags of text": (
        [True, False] * 20,
        ["True", "unknown", "FALSE"],
        ["column 'c': 1 cell with text ('unknown'), treated as missing"],
        [[1], [0.5], [0]],
    ),
    "flags for text": (["true", "false", "?", "x"] * 10, [True, "FALSE"], [],
                       [[0, 0, 1, 0, 0], [0, 1, 0, 0, 0]]),
    "a list": (
        [["a"], ["b"]] * 20,
        [["c"]],
        ["column 'c': 1 cell not seen in training ('[\"c\"]'), treated as the category '(other)'"],
        [[0, 0, 1]],
    ),
    "whole numbers beside others": (pd.Categorical([1.5, 2, 2, 1.5] * 10), [2.0], [],
                                    [[0, 1, 0]]),
    "a missing duration": (
        pd.to_timedelta(SECONDS.fillna(5), unit="s"),
        pd.to_timedelta([None, 4], unit="s"),
        ["column 'c': 1 missing cell, replaced by the median"],
        [[SECONDS.fillna(5).median()], [4]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", NEW)
def test_new_cells_are_read_as_the_training_rows_decided(kind: str) -> None:
    column, new, told, expected = NEW[kind]
    preparation = prepared(read(column))
    given_now = pd.DataFrame({"c": new}).assign(x=0.0)
    found = features_of(given_now, preparation)
    assert found.doubts == tuple(told)
    places = preparation.places["c"]
    np.testing.assert_allclose(found.inputs[:, places], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("trained", "new", "told", "hours"),
    [
        ("Europe/Berlin", None, "cells without a time zone", 1),
        (None, "Europe/Berlin", "cells with a time zone, which training had not", -1),
        ("Europe/Berlin", "UTC", "", 1),
        ("UTC", "Europe/Berlin", "", -1),
    ],
)
def test_dates_of_another_zone_are_the_same_instant(
    trained: str | None, new: str | None, told: str, hours: int
) -> None:
    arrays = read(DAYS.dt.tz_localize(trained))
    other = pd.DataFrame({"x": Z, "c": DAYS.dt.tz_localize(new)})
    preparation = prepared(arrays)
    found = features_of(other, preparation)
    assert told in " ".join(found.doubts)
    assert bool(found.doubts) == bool(told)
    days = preparation.feature_names.index("days of c")
    moved = (found.inputs[:, days] - arrays.x_train[:, days]) * 24
    np.testing.assert_allclose(moved, hours, atol=0.01)
    as_text = features_of(other.assign(c=other["c"].astype(str)), preparation)
    np.testing.assert_array_equal(as_text.inputs, found.inputs)


@pytest.mark.parametrize("as_text", [False, True])
def test_a_column_named_as_a_generated_one_keeps_its_own_values(as_text: bool) -> None:
    own: Any = ["a", "b"] * (N // 2) if as_text else Z
    dates = pd.date_range("2020-01-01", periods=N, freq="77D")
    table = pd.DataFrame({"date": dates, "year of date": own, "x": Z, "x is missing": U, "y": Y})
    table.loc[3, "x"] = np.nan
    arrays = source_in_memory(table, None, {"target": "y"}).arrays(seed=0)
    preparation = prepared(arrays)
    assert len({*preparation.feature_names}) == arrays.input_shape[0]
    places = preparation.places
    years = arrays.x_train[:, preparation.feature_names.index("year of date")]
    assert np.diff(years).tolist() == np.diff(dates.year).tolist()
    if not as_text:
        np.testing.assert_allclose(arrays.x_train[:, places["year of date"][0]], Z, rtol=1e-6)
    np.testing.assert_allclose(arrays.x_train[:, places["x is missing"][0]], U, rtol=1e-6)


def test_codes_of_a_file_stay_text_when_a_new_file_holds_digits_alone(tmp_path: Path) -> None:
    cells = [f"{Z[i]},{code},{Y[i]}" for i, code in enumerate(["01", "02", "x", "y"] * 10)]
    (tmp_path / "t.csv").write_text("\n".join(["x,c,y", *cells]))
    spec = DatasetSpec(name="table", path="t.csv", target="y")
    source = source_of(spec, base=tmp_path)
    assert source is not None
    arrays = source.arrays(seed=0)
    (tmp_path / "new.csv").write_text(f"x,c\n{Z[0]},01\n")
    found = features_of(tmp_path / "new.csv", prepared(arrays))
    np.testing.assert_array_equal(found.inputs[0], arrays.x_train[0])
    assert found.doubts == ()


def test_a_masked_array_has_missing_numbers() -> None:
    masked = np.ma.masked_array(np.stack([U, Z], axis=1), mask=np.stack([U > 0.8, Z > 9], axis=1))
    found = source_in_memory(masked, Y, {}).arrays(seed=0)
    expected = source_in_memory(masked.filled(np.nan), Y, {}).arrays(seed=0)
    np.testing.assert_array_equal(found.x_train, expected.x_train)
    assert found.input_shape == (3,)


def test_an_array_of_named_fields_is_a_table_of_these_columns() -> None:
    frame = pd.DataFrame({"u": U, "z": Z})
    for fields in (frame.to_records(index=False), np.array(frame.to_records(index=False))):
        found = source_in_memory(fields, Y, {}).arrays(seed=0)
        np.testing.assert_array_equal(
            found.x_train, source_in_memory(frame, Y, {}).arrays(seed=0).x_train
        )


@pytest.mark.parametrize("kind", ["a set", "a generator", "a 1-D array", "targets below float32"])
def test_what_is_no_list_of_values_is_refused_with_a_remedy(kind: str) -> None:
    x = np.stack([U, Z], axis=1)
    given, message = {
        "a set": ((x, {*Y}), r"y must be a list, .* a set; list\(\.\.\.\) makes"),
        "a generator": ((x, (one for one in Y)), "but is a generator; .* makes a list"),
        "a 1-D array": ((U, Y), r"a single column is x_train\[:, None\]"),
        "targets below float32": ((x, U * 1e-300), "span 9.* give the targets another unit"),
    }[kind]
    with pytest.raises(UserError, match=message):
        source_in_memory(*given, {}).arrays(seed=0)


@pytest.mark.parametrize("kind", ["int64", "uint64", "Int64", "text", "array"])
def test_whole_numbers_that_float64_merges_are_no_amounts(kind: str) -> None:
    """As categories they stay apart; numbers that float64 has, such as 2^60, are amounts."""
    k = np.random.default_rng(1).permutation(N)
    for step, merges in ((1, True), (2**10, False)):
        numbers = [2**60 + int(one) * step for one in k]
        column = pd.Series(numbers, dtype="int64" if kind in ("text", "array") else kind)
        frame = pd.DataFrame({"x0": column.map(str) if kind == "text" else column, "x1": k % 7})
        data: Any = frame.to_numpy() if kind == "array" else frame
        if not merges:
            expected = source_in_memory(frame.astype({"x0": float}), Y, {}).arrays(seed=0)
            np.testing.assert_array_equal(
                source_in_memory(data, Y, {}).arrays(seed=0).x_train, expected.x_train
            )
            continue
        with refused("whole-numbers-that-merge", "'x0'", "drop=x0", "categorical=x0"):
            source_in_memory(data, Y, {}).arrays(seed=0)
        arrays = source_in_memory(data, Y, {"categorical": ["x0"]}).arrays(seed=0)
        names = prepared(arrays).feature_names
        assert {*(f"x0 = {one}" for one in numbers)} <= {*names}


@pytest.mark.parametrize(("value", "told"), [(np.inf, "has inf"), (-1e300, "has -1e+300")])
def test_a_number_that_is_not_finite_is_named(value: float, told: str) -> None:
    with refused("column-not-finite", "'c'", f"row 3 {told}"):
        read(np.where(np.arange(N) == 3, value, U))


def test_dates_that_a_microsecond_does_not_tell_apart_are_not_said_to_be_constant() -> None:
    dates = pd.Series(np.arange(N) % 5 + 10**18).astype("datetime64[ns]")
    data = source_in_memory(pd.DataFrame({"d": dates, "x": Z}), Y, {}).arrays(seed=0)
    said = " ".join(data.meaning.said)
    assert "column 'd' is left out: it has one value only, to the microsecond" in said


@pytest.mark.parametrize(("shift", "says"), [(0.0, False), (2459000.5, True)])
def test_vectors_on_disk_say_where_single_precision_loses_digits(
    shift: float, says: bool, tmp_path: Path
) -> None:
    np.save(tmp_path / "x_train.npy", np.stack([Z, U + shift], axis=1))
    np.save(tmp_path / "y_train.npy", Y)
    source = source_of(DatasetSpec(name="npz", path="."), base=tmp_path)
    assert source is not None
    said = " | ".join(source.arrays(seed=0).meaning.said)
    assert ("x1: far from 0" in said) is says


# --- properties


@st.composite
def tables(draw: Callable[..., Any]) -> pd.DataFrame:
    """Draw a table of columns of the types above, some cells missing."""
    known = [kind for kind in TWINS if kind != "another byte order"]
    kinds = draw(st.lists(st.sampled_from(known), min_size=1, max_size=4, unique=True))
    table = pd.DataFrame({kind: TWINS[kind][0]() for kind in kinds}).assign(x=Z, y=Y)
    for kind in draw(st.lists(st.sampled_from(kinds), max_size=2)):
        table[kind] = table[kind].mask(np.arange(N) % 7 == 2)
    return table


@pytest.mark.slow
@few
@given(table=tables(), seed=st.integers(0, 99), unused=st.booleans())
def test_rows_columns_and_their_order_change_no_feature(
    table: pd.DataFrame, seed: int, unused: bool
) -> None:
    arrays = source_in_memory(table, None, {"target": "y"}).arrays(seed=0)
    preparation = prepared(arrays)
    generator = np.random.default_rng(seed)
    rows = generator.integers(0, N, 30)
    names = generator.permutation(table.columns.drop("y"))
    new = table.iloc[rows].reset_index(drop=True)[[*names]]
    new = new.assign(more="z") if unused else new
    found = features_of(new, preparation)
    np.testing.assert_array_equal(found.inputs, arrays.x_train[rows])
    assert found.unused == (("more",) if unused else ())
    parts = [
        features_of(new.iloc[part], preparation).inputs for part in (slice(11), slice(11, 30))
    ]
    np.testing.assert_array_equal(np.concatenate(parts), found.inputs)


@pytest.mark.slow
@few
@given(
    shift=st.sampled_from([0.0, -3.5, 170.0, 2.5e5, 1.7e9]),
    factor=st.sampled_from([1.0, -2.0, 1e-3, 3600.0, 1e-40]),
)
def test_a_constant_or_another_unit_changes_no_feature(shift: float, factor: float) -> None:
    column = np.round(GAPS * 1000)
    found = scaled(read((column + shift) * factor))
    expected = scaled(read(column)) * [1, np.sign(factor), 1]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@few
@given(kind=st.sampled_from([*TWINS]), row=st.integers(0, N - 1))
def test_a_missing_cell_stays_missing_whatever_its_type(kind: str, row: int) -> None:
    table = pd.DataFrame({"x": Z, "c": TWINS[kind][0](), "y": Y})
    table["c"] = table["c"].mask(np.arange(N) == row)
    arrays = source_in_memory(table, None, {"target": "y"}).arrays(seed=0)
    names = prepared(arrays).feature_names
    missing = next(at for at, one in enumerate(names) if one.endswith(("missing", "(missing)")))
    assert arrays.x_train[row, missing] == 1
    words = int(kind == "flags and a word" and row != 3)
    assert arrays.x_train[:, missing].sum() == table["c"].isna().sum() + words


@pytest.mark.slow
@few
@given(
    labels=st.lists(
        st.one_of(st.integers(BIG, BIG + 9), st.integers(-5, 5)),
        min_size=2,
        max_size=6,
        unique=True,
    ),
    kind=st.sampled_from(["int64", "Int64", "object", "category", "text"]),
)
def test_different_labels_stay_different(labels: list[int], kind: str) -> None:
    values = pd.Series([labels[i % len(labels)] for i in range(N)])
    column = values.map("a{}".format) if kind == "text" else values.astype(kind)
    table = pd.DataFrame({"x": Z, "y": column})
    options = {"target": "y", "task": "classification"}
    arrays = source_in_memory(table, None, options).arrays(seed=0)
    found = np.array(arrays.meaning.classes, dtype=object)[arrays.y_train]
    assert found.tolist() == column.tolist()


@pytest.mark.parametrize(
    "trained", [SECONDS, SECONDS.map("{:.3f}".format, na_action="ignore")], ids=["", "text"]
)
def test_new_durations_where_numbers_were_trained_on_are_refused(trained: pd.Series) -> None:
    """Nobody knows the unit of those numbers; earlier versions read durations in nanoseconds."""
    preparation = prepared(read(trained))
    new = pd.DataFrame({"x": Z, "c": pd.to_timedelta(SECONDS, unit="s")})
    with refused("new-column-durations", "c"):
        features_of(new, preparation)
    features_of(new.assign(c=SECONDS), preparation)
    other = prepared(read(None, drop=["c"]))
    features_of(new, other)  # a column that is not used


@pytest.mark.parametrize(
    "cells", [["u", "v", "", " "], ["5", "7", "", "\u00a0"], [1.5, 2, "", " "]]
)
def test_cells_of_blanks_are_missing_from_every_source(cells: list[Any], tmp_path: Path) -> None:
    table = pd.DataFrame({"x": Z, "c": pd.Series(cells * (N // 4), dtype=object), "y": Y})
    twin = [one if str(one).strip() else None for one in cells] * (N // 4)
    expected, new = prepared(read(twin)), []
    assert prepared(read(table["c"])).columns == expected.columns
    new = [table, table.to_dict("records")]
    for ending in ("csv", "jsonl"):
        new.append(tmp_path / f"t.{ending}")
    table.to_csv(new[-2], index=False)
    table.to_json(new[-1], orient="records", lines=True)
    for one in new:
        np.testing.assert_array_equal(features_of(one, expected).inputs, read(twin).x_train)


def test_a_target_of_blanks_is_missing(tmp_path: Path) -> None:
    with refused("target-missing-in-rows", 20, "row 1"):
        source_in_memory(pd.DataFrame({"x": Z}), ["a", ""] * 20, {}).arrays(seed=0)


# --- codes with leading zeros

ZIPS, POINTS = ["00123", "123", "0123", "456"], ["1.10", "1.1", "1.9", "2"]


def of_csv(folder: Path, table: pd.DataFrame, **options: Any) -> ArrayData:
    table.to_csv(folder / "t.csv", index=False)
    given = {"name": "table", "path": str(folder / "t.csv"), "target": "y", **options}
    source = source_of(DatasetSpec.model_validate(given))
    assert source is not None
    return source.arrays(seed=0)


@pytest.mark.parametrize("codes", [ZIPS, POINTS, ["007", "012"], ["007", "x", "7", ""]])
def test_codes_that_are_categories_are_never_merged(codes: list[str], tmp_path: Path) -> None:
    table = pd.DataFrame({"x": Z, "c": codes * (N // len(codes)), "y": Y})
    found = of_csv(tmp_path, table, categorical=["c"])
    expected = read(table["c"], categorical=["c"])
    np.testing.assert_array_equal(found.x_train, expected.x_train)
    assert prepared(found).columns == prepared(expected).columns
    assert all(f"c = {one}" in prepared(found).feature_names for one in codes if one)
    table.to_parquet(tmp_path / "t.parquet")
    for new in (table, tmp_path / "t.csv", tmp_path / "t.parquet"):
        np.testing.assert_array_equal(features_of(new, prepared(found)).inputs, found.x_train)


@pytest.mark.parametrize("codes", [ZIPS, POINTS])
def test_codes_of_classes_and_of_groups_are_never_merged(codes: list[str], tmp_path: Path) -> None:
    table = pd.DataFrame({"x": Z, "g": codes * (N // 4), "y": codes[::-1] * (N // 4)})
    options = {"task": "classification", "groups": "g"}
    table.to_csv(tmp_path / "test.csv", index=False)
    found = of_csv(tmp_path, table, test_path=str(tmp_path / "test.csv"), **options)
    assert {*found.meaning.classes} == {*codes}
    np.testing.assert_array_equal(found.y_test, found.y_train)
    assert found.units is not None
    assert found.units.count == 4
    truth = features_of(tmp_path / "t.csv", prepared(found), target="y").truth
    assert truth is not None
    assert truth.tolist() == table["y"].tolist()


@pytest.mark.parametrize("values", [Z > 0, pd.Categorical((Z > 0) + 8)])
def test_classes_of_test_rows_may_be_in_another_file(values: Any, tmp_path: Path) -> None:
    table = pd.DataFrame({"x": Z, "y": values})
    table.to_csv(tmp_path / "t.csv", index=False)
    table.to_parquet(tmp_path / "t.parquet")
    for train, test in product((tmp_path / "t.csv", tmp_path / "t.parquet"), repeat=2):
        spec = DatasetSpec(name="table", path=str(train), test_path=str(test), target="y")
        found = source_of(spec).arrays(seed=0)
        np.testing.assert_array_equal(found.y_test, found.y_train)


def test_classes_with_leading_zeros_keep_their_names(tmp_path: Path) -> None:
    table = pd.DataFrame({"x": Z, "y": ["007", "7", "012", "001"] * (N // 4)})
    found = of_csv(tmp_path, table)
    assert found.meaning.classes == ("001", "007", "7", "012")  # in this order in each process
    in_memory = source_in_memory(table, None, {"target": "y"}).arrays(seed=0)
    assert found.meaning.classes == in_memory.meaning.classes
    assert of_csv(tmp_path, table, task="regression").meaning.classes == ()


def test_codes_that_become_one_number_are_said(tmp_path: Path) -> None:
    said = "column 'c': '0123' and '123' are read as one number; categorical=c to keep them apart"
    table = pd.DataFrame({"x": Z, "c": ["123", "0123", "9"] * 13 + ["5"], "y": Y})
    for found in (of_csv(tmp_path, table), read(table["c"])):
        assert said in found.meaning.said
    plain = table.assign(c=["1.50", "1.5"] * (N // 2))  # of measurements
    assert not any("one number" in one for one in of_csv(tmp_path, plain).meaning.said)


@pytest.mark.parametrize("form", ["%Y-%m-%d %I:%M %p", "%d.%m.%Y %I:%M:%S%p", "%m/%d/%Y %I:%M %p"])
def test_clocks_of_twelve_hours_are_dates(form: str) -> None:
    clocks = pd.Series(pd.date_range("2024-02-01 00:07", periods=N, freq="31h"))
    found, expected = read(clocks.dt.strftime(form)), read(clocks)
    np.testing.assert_array_equal(found.x_train, expected.x_train)
