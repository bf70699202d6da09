"""One road from a cell to a feature: whatever its type, in training and in new data."""

import datetime
import re
import tomllib
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from messages import refused
from sklearn.compose import ColumnTransformer
from sklearn.impute import MissingIndicator
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder
from table_sources import (
    U,
    Y,
    Z,
    beside,
    every,
    few,
    new,
    prepared,
    said,
    same,
    source,
    study,
    written,
)

from nas_evidence.data.arrays import ArrayData
from nas_evidence.data.cells import READ, with_numbers_read
from nas_evidence.data.preparation import inputs_of
from nas_evidence.data.source import stored_source
from nas_evidence.data.table_columns import OTHER, Column, Preparation

CASES = tomllib.loads((Path(__file__).parent / "cases.toml").read_text("utf-8"))
N = 40
GAPS = np.where(np.arange(N) % 9 == 4, np.nan, U[:N])
CODES = [1, 2, 5, 7] * 10
SECONDS = pd.Series(GAPS * 3600).round(3)
DAYS = pd.Series(pd.date_range("2024-02-01 00:07", periods=N, freq="31h"))
HOUR = pd.Timedelta(hours=1)


def scaled(arrays: ArrayData) -> np.ndarray:
    return (np.asarray(arrays.x_train) - arrays.mean) / arrays.std


def arrow(values: Any, kind: Any = None) -> pd.Series:
    return pd.Series(pd.arrays.ArrowExtensionArray(pa.array(values, kind)))


def texts(codes: list[Any]) -> pd.Categorical:
    return pd.Categorical([None if one is None else str(one) for one in codes])


def of_gaps(cell: Callable[[Any], Any], values: Any = GAPS) -> list[Any]:
    return [None if np.isnan(one) else cell(one) for one in values]


def decimal(one: float) -> Decimal:
    return Decimal(str(one))


#: A column, and the plain one whose features it must have.
TWINS: dict[str, tuple[Any, Any]] = {
    "durations with gaps": (pd.to_timedelta(SECONDS, unit="s"), SECONDS),
    "durations of Python": (of_gaps(lambda s: datetime.timedelta(seconds=s), SECONDS), SECONDS),
    "durations of Arrow": (
        arrow(of_gaps(lambda s: round(s * 1000), SECONDS), pa.duration("ms")), SECONDS),
    "a Julian date": (2459000.5 + U[:N], U[:N]),
    "milliseconds": (1.7e12 + np.round(U[:N] * 6e4), np.round(U[:N] * 6e4)),
    "tiny numbers": (U[:N] * 1e-46, U[:N]),
    "a category of integers": (pd.Categorical(CODES), texts(CODES)),
    "a category with gaps": (pd.Categorical([None, *CODES[1:]]), texts([None, *CODES[1:]])),
    "a category of Arrow": (arrow(pa.array(CODES).dictionary_encode()), texts(CODES)),
    "Decimal": (of_gaps(decimal), GAPS),
    "decimals of Arrow": (arrow(of_gaps(decimal)), GAPS),
    "numbers among objects": (pd.Series(of_gaps(float), dtype=object), GAPS),
    "numbers of Arrow": (arrow(of_gaps(float)), GAPS),
    "nullable": (pd.array(of_gaps(float), "Float64"), GAPS),
    "integers of Arrow": (arrow([None, *CODES[1:]]), [np.nan, *CODES[1:]]),
    "another byte order": (GAPS.astype(">f8"), GAPS),
    "long double": (GAPS.astype(np.longdouble), GAPS),
    "half precision": (U[:N].astype(np.float16), U[:N].astype(np.float16).astype(float)),
    "lists": ([["a"], ["b"], [], []] * 10, ['["a"]', '["b"]', "[]", "[]"] * 10),
    "records": ([{"k": 1}, {"k": 2}] * 20, ['{"k": 1}', '{"k": 2}'] * 20),
    "flags and a word": (
        ["True", "false", "TRUE", "?"] + ["True", "False"] * 18,
        [True, False, True, None] + [True, False] * 18),
    # Berlin is one hour before UTC until April.
    "local time": (DAYS.dt.tz_localize("Europe/Berlin"), DAYS - HOUR),
    "text with a zone": (DAYS.astype(str) + "+02:00", DAYS - 2 * HOUR),
    "text with two zones": (
        DAYS.astype(str) + pd.Series(["+01:00", "-03:30"] * 20),
        DAYS - pd.Series([1, -3.5] * 20) * HOUR),
    "periods": (
        pd.period_range("2020-01", periods=N, freq="M").to_series(index=range(N)),
        pd.Series(pd.date_range("2020-01-01", periods=N, freq="MS"))),
    "a clock of twelve hours": (DAYS.dt.strftime("%Y-%m-%d %I:%M %p"), DAYS),
    "a clock of twelve hours by points": (DAYS.dt.strftime("%d.%m.%Y %I:%M:%S%p"), DAYS),
    "a clock of twelve hours by slashes": (DAYS.dt.strftime("%m/%d/%Y %I:%M %p"), DAYS),
}  # fmt: skip


@pytest.mark.parametrize("kind", TWINS)
def test_a_column_has_the_features_of_its_plain_twin(kind: str, tmp_path: Path) -> None:
    """Also alone, in another order, and where a study has stored it."""
    table, twin = beside(TWINS[kind][0]), study(beside(TWINS[kind][1]))
    given_table = source(table)
    found = given_table.arrays(seed=0)
    np.testing.assert_allclose(scaled(found), scaled(twin), rtol=1e-6, atol=1e-6)
    shapes = [
        [(one.kind, one.indicator, one.part, one.categories) for one in prepared(arrays).columns]
        for arrays in (found, twin)
    ]
    assert shapes[0] == shapes[1]
    given_table.write(tmp_path)
    same(stored_source(given_table.spec, base=tmp_path).arrays(seed=0), found)
    table = table.drop(columns="y")
    np.testing.assert_array_equal(new(table, found).inputs, found.x_train)
    if kind == "another byte order":
        return  # pandas itself takes no rows of such a column
    rows = [7, 3, 3, 39]
    again = new(table.iloc[rows].reset_index(drop=True), found)
    np.testing.assert_array_equal(again.inputs, found.x_train[rows])
    assert again.doubts == ()
    for row in rows[:2]:
        alone = new(table.iloc[[row]], found).inputs
        np.testing.assert_array_equal(alone[0], found.x_train[row])


@pytest.mark.parametrize("kind", TWINS)
def test_a_missing_cell_stays_missing_whatever_its_type(kind: str) -> None:
    table = beside(TWINS[kind][0])
    table["c"] = table["c"].mask(np.arange(N) == 5)
    arrays = study(table)
    names = prepared(arrays).feature_names
    missing = next(at for at, one in enumerate(names) if one.endswith(("missing", "(missing)")))
    assert arrays.x_train[5, missing] == 1
    words = kind == "flags and a word"
    assert arrays.x_train[:, missing].sum() == table["c"].isna().sum() + words


def test_rows_columns_and_their_order_change_no_feature() -> None:
    table = pd.DataFrame({k: one for k, (one, _) in TWINS.items() if k != "another byte order"})
    for kind in [*table][::3]:
        table[kind] = table[kind].mask(np.arange(N) % 7 == 2)
    arrays, draw = study(table.assign(y=Y[:N])), np.random.default_rng(0)
    rows = draw.integers(0, N, 30)
    some = table.iloc[rows].reset_index(drop=True)[[*draw.permutation([*table])]]
    found = new(some.assign(more="z"), arrays)
    np.testing.assert_array_equal(found.inputs, arrays.x_train[rows])
    assert found.unused == ("more",)
    parts = [new(some.iloc[part], arrays).inputs for part in (slice(11), slice(11, 30))]
    np.testing.assert_array_equal(np.concatenate(parts), found.inputs)


@pytest.mark.slow
@few
@given(
    shift=st.sampled_from([0.0, -3.5, 170.0, 2.5e5, 1.7e9]),
    factor=st.sampled_from([1.0, -2.0, 1e-3, 3600.0, 1e-40]),
)
def test_a_constant_or_another_unit_changes_no_feature(shift: float, factor: float) -> None:
    column = np.round(GAPS * 1000)
    found = scaled(study(beside((column + shift) * factor)))
    expected = scaled(study(beside(column))) * [1, np.sign(factor), 1]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


# --- cells as people write them


@pytest.mark.slow
@pytest.mark.parametrize("door", ["commas", "semicolons", "memory"])
@pytest.mark.parametrize("claim", CASES["numbers"])
def test_a_cell_is_the_number_that_is_meant_in_its_table_and_alone(
    claim: str, door: str, tmp_path: Path
) -> None:
    cells, *others = CASES["numbers"][claim]
    if claim == "tabs" and door != "memory":
        return  # they separate columns

    def placed(cells: list[str], name: str) -> Any:
        frame = pd.DataFrame({"c": cells, "y": [i * 37 % 41 for i in range(len(cells))]})
        if door == "memory":
            return frame
        return written(frame, tmp_path / name, sep=";" if door == "semicolons" else ",", quoting=1)

    arrays = study(placed(every([*cells], N), "t.csv"), task="regression")
    [column] = prepared(arrays).columns
    found = arrays.x_train[:, 0] * column.unit + column.shift
    assert found == pytest.approx(every([*cells.values()], N))
    for cell, value in (cells | dict(*others)).items():
        inputs = new(placed([cell], "new.csv"), arrays).inputs
        assert inputs * column.unit + column.shift == pytest.approx(value)
        assert new(pd.DataFrame({"c": [cell]}), arrays).inputs.tolist() == inputs.tolist()
        if cell in cells:
            assert inputs[0] == arrays.x_train[[*cells].index(cell)]


def features(column: Any, cells: Any) -> dict[str, list[float]]:
    """Return the features of new cells by name, in the unit of the cells."""
    arrays = study(beside(column))
    preparation = prepared(arrays)
    found = new(pd.DataFrame({"x": Z[: len(cells)], "c": cells}), arrays).inputs.astype(float)
    for at, one in enumerate(c for c in preparation.columns if c.kind == "number"):
        found[:, at] = found[:, at] * one.unit + one.shift
    names = preparation.feature_names
    return {names[at]: found[:, at].tolist() for at in preparation.places["c"]}


@pytest.mark.parametrize("claim", CASES["dates"])
def test_dates_are_read_in_the_order_that_the_training_rows_have(
    claim: str, tmp_path: Path
) -> None:
    *cells, cell = CASES["dates"][claim]
    found = features(cells * 10, [cell, None, "soon"])
    day = (pd.Timestamp("2024-02-05") - pd.Timestamp(0)).days
    assert found["days of c"][0] == day
    assert found["days of c"][1] == found["days of c"][2]
    in_file = study(written(beside(cells * 10), tmp_path / "t.csv"))
    same(in_file, study(beside(cells * 10)))
    row = written(beside([cells[1]]), tmp_path / "new.csv")
    np.testing.assert_allclose(new(row, in_file).inputs[0, 1:], in_file.x_train[1, 1:])


def test_a_date_is_its_days_year_month_weekday_and_hour() -> None:
    dates = pd.date_range("2023-11-05", periods=60, freq="29h")
    found = features(dates, ["2024-02-29 12:00"])  # a Thursday
    days = (pd.Timestamp("2024-02-29 12:00") - pd.Timestamp(0)) / pd.Timedelta(days=1)
    parts = {"days": days, "year": 2024, "month": 2, "weekday": 3, "hour": 12}
    assert found == {f"{part} of c": [pytest.approx(value)] for part, value in parts.items()}
    gap = features([*dates[:20], None], ["2024-01-02", None])
    assert gap["days of c is missing"] == [0, 1]


def test_categories_are_one_up_to_blanks_around_them_and_differ_in_case() -> None:
    found = features(["CO", "CO ", "Co"] * 5, ["CO", " Co", "co"])
    assert found == {"c = CO": [1, 0, 0], "c = Co": [0, 1, 0], f"c = {OTHER}": [0, 0, 1]}
    assert features([OTHER, "a", "b"] * 5, [OTHER, "new"]) == {
        "c = a": [0, 0], "c = b": [0, 0], f"c = {OTHER}": [1, 1],
    }  # fmt: skip


def test_a_table_without_written_numbers_is_left_as_it_is() -> None:
    frame = pd.DataFrame({"b": ["x", "y"], "c": [1, 2], "d": [True, False]})
    found = with_numbers_read(frame)
    pd.testing.assert_frame_equal(found, frame)
    assert READ not in found.attrs


@pytest.mark.parametrize("cell", ["{0}.5", "{0},{0:03}"])
def test_words_for_missing_are_those_of_the_training(cell: str, tmp_path: Path) -> None:
    cells = ["not known" if k % 20 == 5 else cell.format(k % 20 + 1) for k in range(N)]
    arrays = study(written(beside(cells), tmp_path / "t.csv"))
    assert prepared(arrays).feature_names == ("x", "c", "c is missing")
    assert arrays.x_train[:, 2].tolist() == [float(k % 20 == 5) for k in range(N)]
    for k in (4, 5):
        row = written(beside([cells[k]]).assign(x=Z[k]), tmp_path / "new.csv")
        np.testing.assert_array_equal(new(row, arrays).inputs[0], arrays.x_train[k])
    words = new(pd.DataFrame({"x": 0.0, "c": ["not known", "not known "]}), arrays)
    np.testing.assert_array_equal(words.inputs[:, 1:], arrays.x_train[[5, 5], 1:])
    assert words.doubts == ("column 'c' is empty; the default from training is used",)


@pytest.mark.parametrize("digits", ["$１００", "١٢٣", "1 days 02:30:00"])
def test_numbers_of_other_notations_stay_text(digits: str) -> None:
    names = prepared(study(beside([digits, "7", "7", "7"] * 10))).feature_names
    assert names[1:3] == ("c = 7", f"c = {digits}")


def test_test_rows_and_true_targets_are_read_as_in_training(tmp_path: Path) -> None:
    amounts = [f"{i % 7},{i % 10}" for i in range(30)]
    path = written(pd.DataFrame({"x": amounts, "y": amounts}), tmp_path / "t.csv")
    (tmp_path / "test.csv").write_text('x,y\n"1,234","5,678"\n')
    arrays = study(path, test_path=str(tmp_path / "test.csv"))
    assert arrays.x_test.tolist() == [[np.float32(1.234)]]
    assert arrays.y_test.tolist() == [[5.678]]
    assert new(tmp_path / "test.csv", arrays, "y").truth.tolist() == [5.678]


# --- columns of two notations

ISO_DAYS = pd.date_range("2020-01-01", periods=60, freq="13D")
ISO = [f"{day:%Y-%m-%d}" for day in ISO_DAYS]
SLASHES = [f"{day:%d/%m/%Y}" for day in ISO_DAYS]
PRICES = [f"${100_000 + 997 * k:,}" for k in range(60)]
USD = [f"{100_000 + k} USD" for k in range(60)]


def some(cells: list[Any], others: list[Any], every: int = 5) -> list[Any]:
    """Return cells with every fifth one replaced."""
    return [others[k] if k % every == 0 else cell for k, cell in enumerate(cells)]


#: A column, and what it is not read as, with the numbers of cells and a cell of each notation.
TWO_NOTATIONS: dict[str, tuple[list[Any], tuple[str, int, str, int, str]]] = {
    "the day first": (some(ISO, SLASHES), ("dates", 48, "2020-01-14", 12, "01/01/2020")),
    "mostly the other": (some(SLASHES, ISO), ("dates", 48, "14/01/2020", 12, "2020-01-01")),
    "dates and words": (
        some(ISO, [f"about {k}" for k in range(60)]), ("dates", 48, "2020-01-14", 12, "about 0")),
    "prices": (some(PRICES, USD), ("numbers", 48, "$100,997", 12, "100000 USD")),
    "prices with gaps": (
        [*some(PRICES, USD)[:-6], *[None] * 6], ("numbers", 43, "$100,997", 11, "100000 USD")),
    "numbers and ranges": (
        some([f"{k}.5" for k in range(60)], [f"{k}-{k + 1}" for k in range(60)]),
        ("numbers", 48, "1.5", 12, "0-1")),
}  # fmt: skip


@pytest.mark.parametrize("kind", TWO_NOTATIONS)
def test_a_column_of_two_notations_says_so_and_not_to_read_categories(
    kind: str, tmp_path: Path
) -> None:
    """As a target it is refused for that."""
    cells, (what, n, one, m, other) = TWO_NOTATIONS[kind]
    told = said(beside(cells))
    assert f"column 'c' is not read as {what}: {n} of {n + m} cells are {what} ({one!r})" in told
    assert f"{m} are not ({other!r}); write all in one notation" in told
    assert "categorical=c" not in told
    if "gaps" in kind:
        return
    frame = pd.DataFrame({"x": Z[:60], "y": cells})
    for data, y, keys in (
        (frame, None, {}),
        (frame[["x"]], frame["y"], {"task": "regression"}),
        (written(frame, tmp_path / "t.csv"), None, {}),
    ):
        with refused("target-of-two-notations", "'y'", what, n, repr(one), m, repr(other)):
            study(data, y, **keys)


# --- dates that nanoseconds cannot hold, and of zones

FAR: list[tuple[str, Any]] = [
    (end, some(ISO, [end] * 60, 20))
    for end in ("9999-12-31", "9999-12-31 23:59:59", "0001-01-01", "1500-01-01", "2262-04-12")
] + [
    ("31.12.9999", some([f"{day:%d.%m.%Y}" for day in ISO_DAYS], ["31.12.9999"] * 60, 20)),
    ("12/31/9999", some([f"{day:%m/%d/%Y}" for day in ISO_DAYS], ["12/31/9999"] * 60, 20)),
    *(("9999-12-31", pd.Series(np.array(some(ISO, ["9999-12-31"] * 60, 20), f"datetime64[{of}]")))
      for of in ("us", "s")),
    ("9999-12-31", some([*ISO_DAYS.date], [datetime.date(9999, 12, 31)] * 60, 20)),
]  # fmt: skip


@pytest.mark.parametrize(("end", "cells"), FAR)
def test_dates_that_nanoseconds_cannot_hold_are_read_and_said(end: str, cells: Any) -> None:
    arrays = study(beside(cells))
    told = f"column 'c': 3 of 60 dates are far from the others ({end!r})"
    assert told in " ".join(arrays.meaning.said)
    at = prepared(arrays).feature_names.index("days of c")
    assert len(np.unique(new(beside(cells), arrays).inputs[:, at])) == 58


@pytest.mark.parametrize("end", ["9999-12-31", "0001-01-01"])
def test_new_data_and_times_may_have_dates_that_nanoseconds_cannot_hold(
    end: str, tmp_path: Path
) -> None:
    found = new(written(beside([end, ISO[1]]), tmp_path / "new.csv"), study(beside(ISO)))
    assert np.isfinite(found.inputs).all()
    assert found.doubts == ()
    units = study(beside([*ISO[:-1], end]), time_column="c").units
    assert units is not None
    first = int(end == "0001-01-01")
    assert units.of.tolist() == [*range(first, 59 + first), 59 * (1 - first)]


@pytest.mark.parametrize(
    ("trained", "other", "told", "hours"),
    [
        ("Europe/Berlin", None, "cells without a time zone", 1),
        (None, "Europe/Berlin", "cells with a time zone, which training had not", -1),
        ("Europe/Berlin", "UTC", "", 1),
        ("UTC", "Europe/Berlin", "", -1),
    ],
)
def test_dates_of_another_zone_are_the_same_instant(
    trained: str | None, other: str | None, told: str, hours: int
) -> None:
    arrays, table = study(beside(DAYS.dt.tz_localize(trained))), beside(DAYS.dt.tz_localize(other))
    found = new(table, arrays)
    assert told in " ".join(found.doubts)
    assert bool(found.doubts) == bool(told)
    days = prepared(arrays).feature_names.index("days of c")
    moved = (found.inputs[:, days] - arrays.x_train[:, days]) * 24
    np.testing.assert_allclose(moved, hours, atol=0.01)
    as_text = new(table.assign(c=table["c"].astype(str)), arrays)
    np.testing.assert_array_equal(as_text.inputs, found.inputs)


# --- what is decided of a column, and said

DATES = [f"{day:%Y-%m-%d}" for day in pd.date_range("2024-01-01", periods=N - 1)]
#: As `said` in cases.toml, of other types than text.
SAID: dict[str, tuple[Any, str, int]] = {
    "a category": (pd.Categorical(CODES), "column 'c' is a category of numbers, read as "
                   "categories; numeric=c to change", 5),
    "a category of many": (pd.Categorical(np.arange(N)[::-1]), "", 1),
    "a date of no calendar": ([*DATES, "2024-02-30"], "column 'c' is read as dates, and 1 cell "
                              "without a date ('2024-02-30') as missing: days", 4),
    "a zone": (DAYS.dt.tz_localize("Europe/Berlin"), "column 'c' is read as dates in UTC: days",
               4),
    "two currencies": ([f"${i * i % 37}.5" if i % 2 else f"€{i}" for i in range(N)],
                       "is not read as numbers, as they have several units: €, $", 0),
    "some per cent": ([f"{i * i % 37} %" if i % 2 else f"0.{i}" for i in range(N)],
                      "is not read as numbers, as they have several units: %, none", 0),
    "flags and a word": (TWINS["flags and a word"][0], "column 'c' is read as True and False and "
                         "'?' as missing; categorical=c to change", 2),
    "ordered categories": (
        pd.Categorical(["low", "mid", "high", "mid"] * 10, ["low", "mid", "high"], ordered=True),
        "column 'c' is read as categories without their order, low < mid < high; give their "
        "numbers (.cat.codes) to keep it", 4),
    "a constant": ([7.0] * N, "'c' is left out: it has one value only", 0),
    "nothing": ([None] * N, "'c' is left out: it is empty", 0),
    "row numbers": (range(N), "'c' is left out: it looks like a row number; numeric=c to keep", 0),
    "texts, each twice": ([f"name {i}" for i in range(40)] * 2, "", 41),
    "free text": ([f"name {i}" for i in range(120)], "has 120 different texts in 120 rows", 0),
    "words for missing": ([*["1.5", "2"] * 19, "?", "n/a"],
                          "read as numbers and '?', 'n/a' as missing", 2),
    "prices": ([f"${1000 + 7 * i % 31:,}" for i in range(N)], "is read as numbers: '$1,0", 1),
    "many categories": ([f"town {i % 57}" for i in range(120)], "", 51),
    "dates": (DATES, "is read as dates: days", 3),
    "a microsecond": (pd.Series(np.arange(N) % 5 + 10**18).astype("datetime64[ns]"),
                      "column 'c' is left out: it has one value only, to the microsecond", 0),
}  # fmt: skip


@pytest.mark.parametrize("kind", [*SAID, *(f"cells of {one}" for one in CASES["said"])])
def test_what_was_decided_of_a_column_is_said_and_the_option_changes_it(kind: str) -> None:
    if kind in SAID:
        column, says, n_features = SAID[kind]
    else:
        cells, says, n_features = CASES["said"][kind.removeprefix("cells of ")]
        column = every(cells, N)
    table = beside(column)
    arrays = study(table)
    of_column = [one for one in arrays.meaning.said if "'c'" in one]
    assert says in " | ".join(of_column)
    assert len(prepared(arrays).feature_names) == 1 + n_features
    for sentence in of_column:
        for found in re.finditer(r"(drop|categorical|numeric)=c\b", sentence):
            after = study(table, **{found[1]: ["c"]})
            assert sentence not in after.meaning.said
            assert prepared(after).feature_names != prepared(arrays).feature_names


#: A training column, new cells, what is told of each column, and the features unless None.
SIZES, TOWNS = np.linspace(0, 1, N) ** 2, ["oslo", "bern"] * 20
OUTSIDE = "outside all training values (0 to 1)"
NEW: dict[str, tuple[Any, list[Any], str, list[list[float]] | None]] = {
    "flags of text": ([True, False] * 20, ["True", "unknown", "FALSE"],
                      "1 cell with text ('unknown'), treated as missing", [[1], [0.5], [0]]),
    "flags for text": (["true", "false", "?", "x"] * 10, [True, "FALSE"], "",
                       [[0, 0, 1, 0, 0], [0, 1, 0, 0, 0]]),
    "whole numbers beside others": (pd.Categorical([1.5, 2, 2, 1.5] * 10), [2.0], "", [[0, 1, 0]]),
    "a missing duration": (
        pd.to_timedelta(SECONDS.fillna(5), unit="s"), [pd.NaT, pd.Timedelta(seconds=4)],
        "1 missing cell, replaced by the median", [[SECONDS.fillna(5).median()], [4]]),
    "an unseen category": (TOWNS, ["lima", "oslo"], "1 cell not seen in training ('lima')",
                           [[0, 0, 1], [0, 1, 0]]),
    "a missing category": (TOWNS, [None, "bern"], "1 missing cell, replaced by the category",
                           None),
    "a text": (SIZES, ["big", "2"], "1 cell with text ('big')", None),
    "a missing number": (SIZES, [None, 2], "1 missing cell, replaced by the median", None),
    "no number at all": (SIZES, [None, None], "column 'c' is empty", None),
    "a little outside": (SIZES, [2.0, -1.0], "", [[2], [-1]]),
    "far outside": (SIZES, [2.5, 0.1], f"1 cell (2.5) is far {OUTSIDE[:-1]}); used unchanged",
                    [[2.5], [0.1]]),
    "texts far outside": (SIZES, ["-1e6", "3", "0.1"],
                          f"2 cells (-1000000.0, 3.0) are far {OUTSIDE}", None),
    "another rule": (["1.5", "2.25"] * 20, ["1,5", "2.0"],
                     "1 cell with text ('1,5'), treated as missing", None),
    "another order of dates": (["2024-01-31", "2025-03-02T05:00"] * 20, ["5.2.2024", "2024-02-05"],
                               "1 cell without a date ('5.2.2024'), treated as missing", None),
    "a word beside one of training": (
        ["?", *(f"{i}.5" for i in range(19))] * 2, ["?", "1.5", "unknown"],
        "1 cell with text ('unknown'), treated as missing", None),
}  # fmt: skip


@pytest.mark.parametrize("kind", NEW)
def test_cells_unlike_those_of_the_training_are_told_by_column(kind: str) -> None:
    column, cells, told, expected = NEW[kind]
    arrays = study(beside(column))
    found = new(pd.DataFrame({"x": 0.0, "c": cells}), arrays)
    assert len(found.doubts) == bool(told)
    assert all("column 'c'" in one and told in one for one in found.doubts), found.doubts
    if expected is not None:
        [column] = [one for one in prepared(arrays).columns if one.name == "c"]
        inputs = found.inputs[:, prepared(arrays).places["c"]] * column.unit + column.shift
        np.testing.assert_allclose(inputs, expected, rtol=1e-6)


MIXED = pd.Series([1, "1", 2, "2"] * 10, dtype=object)
GAP = pd.Categorical([1, 2, np.nan, 3] * 10)
REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any], tuple[object, ...]]] = {
    "labels of two types": ("labels-of-two-types", {"y": MIXED}, {}, ()),
    "no target": ("target-missing-in-rows", {"y": GAP}, {}, ()),
    "blanks as target": ("target-missing-in-rows", {"y": ["a", ""] * 20}, {}, (20, "row 1")),
    "no group": ("unit-of-row", {"c": GAP}, {"groups": "c"}, ()),
    "durations as times": (
        "unit-of-row", {"c": pd.to_timedelta(SECONDS, unit="s")}, {"time_column": "c"}, ()),
    "complex numbers": ("complex-column", {"c": Z[:N] + 1j}, {}, ()),
    "dates as target": ("target-of-dates", {"y": DAYS}, {}, ()),
    "infinity": ("column-not-finite", {"c": [*U[:3], np.inf] * 10}, {}, ("'c'", "row 3 has inf")),
    "beyond float32": (
        "column-not-finite", {"c": [*U[:3], -1e300] * 10}, {}, ("'c'", "row 3 has -1e+300")),
    "an option of no column": ("option-names-no-feature", {}, {"drop": ["d"]}, ("drop", "'d'")),
    "an option misspelt": (
        "option-names-no-feature", {}, {"drop": ["cc"]}, ("did you mean 'c'",)),
    "numeric words": (
        "numeric-without-number", {"c": ["a", "b"] * 20}, {"numeric": ["c"]}, ("'c'",)),
    "two options": (
        "categorical-and-numeric", {}, {"numeric": ["c"], "categorical": ["c"]}, ("'c'",)),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_used_is_refused_in_a_sentence(kind: str) -> None:
    code, changes, options, says = REFUSED[kind]
    with refused(code, *says):
        study(beside(U[:N]).assign(**changes), **options)
    if code == "labels-of-two-types":
        with refused(code):
            study(Z[:N, None], MIXED.to_numpy())


@pytest.mark.parametrize(
    "trained", [SECONDS, SECONDS.map("{:.3f}".format, na_action="ignore")], ids=["", "text"]
)
def test_new_durations_where_numbers_were_trained_on_are_refused(trained: pd.Series) -> None:
    """Nobody knows the unit of those numbers; earlier versions read durations in nanoseconds."""
    arrays, durations = study(beside(trained)), beside(pd.to_timedelta(SECONDS, unit="s"))
    with refused("new-column-durations", "c"):
        new(durations, arrays)
    new(durations.assign(c=SECONDS), arrays)
    new(durations, study(beside(trained), drop=["c"]))  # a column that is not used


# --- features


def test_features_are_those_of_the_column_transformer_of_scikit_learn() -> None:
    table = pd.DataFrame(
        {
            "age": [3.0, np.nan, 5.0, 8.0],
            "town": ["a", "b", "b", "c"],
            "size": [1, 2, 3, 4],
            "kind": ["x", "x", "y", "y"],
        }
    )
    columns = (
        Column("age", "number", fill=4.0, indicator=True),
        Column("town", "category", categories=("b", "a")),
        Column("size", "number", fill=2.0),
        Column("kind", "category", categories=("x", "y")),
    )
    known = table.assign(town=table["town"].replace("c", OTHER))
    one_hot = OneHotEncoder(categories=[["b", "a", OTHER], ["x", "y", OTHER]], sparse_output=False)
    fill = FunctionTransformer(pd.DataFrame.fillna, kw_args={"value": {"age": 4.0, "size": 2.0}})
    expected = ColumnTransformer(
        [
            ("numbers", fill, ["age", "size"]),
            ("missing", MissingIndicator(features="all"), ["age"]),
            ("categories", one_hot, ["town", "kind"]),
        ],
        sparse_threshold=0,
    ).fit_transform(known)
    np.testing.assert_array_equal(inputs_of(Preparation(columns), table, "t.csv"), expected)


def homes() -> pd.DataFrame:
    generator = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "size": generator.normal(50, 10, N),
            "town": generator.choice(["rome", "oslo", "bern"], N),
            "rooms": generator.integers(1, 5, N),
            "new": generator.random(N) < 0.5,
        }
    )
    table.loc[1, "size"] = np.nan
    table.loc[2, "town"] = None
    return table.assign(y=np.linspace(1.5, 9, N))


def test_features_are_what_their_names_say() -> None:
    table, arrays = homes(), study(homes())
    preparation = prepared(arrays)
    x = pd.DataFrame(arrays.x_train, columns=preparation.feature_names)
    median = table["size"].median()
    shifts = {column.name: column.shift for column in preparation.columns}
    np.testing.assert_allclose(x["size"] + shifts["size"], table["size"].fillna(median), rtol=1e-6)
    assert x["size is missing"].tolist() == table["size"].isna().astype(float).tolist()
    for town in ("rome", "oslo", "bern"):
        assert x[f"town = {town}"].tolist() == (table["town"] == town).astype(float).tolist()
    assert x["town = (missing)"].sum() == 1
    assert x[f"town = {OTHER}"].sum() == 0
    assert preparation.scaled.sum() == 3
    told = "features: 3 numeric columns and 1 of categories, missing values in 1 filled with the"
    assert f"{told} median" in arrays.meaning.said
    # another table: an unseen category, a missing value, and more columns
    other = pd.DataFrame({"new": [True], "rooms": [None], "town": ["lima"], "size": [3], "z": [1]})
    found = dict(zip(preparation.feature_names, new(other, arrays).inputs[0], strict=True))
    assert found[f"town = {OTHER}"] == 1
    assert found["rooms"] + shifts["rooms"] == table["rooms"].median()
    assert found["size"] + shifts["size"] == pytest.approx(3, abs=1e-5)
    with refused("columns-missing", "'town'", "did you mean 'Town'"):
        new(other.rename(columns={"town": "Town"}), arrays)
    with refused("column-not-numbers", "'size'", "'big'"):
        new(other.assign(size="big"), arrays)


def test_flags_change_what_was_decided() -> None:
    table = pd.DataFrame({"id": range(20), "code": [1, 2] * 10, "a": U[:20], "y": Y[:20]})
    arrays = study(table, numeric=["id"], categorical=["code"], drop=["a"])
    assert prepared(arrays).feature_names == ("id", "code = 1", "code = 2", f"code = {OTHER}")


def test_numbers_are_scaled_by_the_training_rows_and_features_of_0_and_1_are_not() -> None:
    data = study(homes(), test_fraction=0.25)
    assert (data.n_train, len(data.x_test)) == (30, 10)
    scaled = prepared(data).scaled
    np.testing.assert_allclose(data.mean[scaled], data.x_train.mean(0)[scaled], rtol=1e-5)
    assert (data.mean[~scaled] == 0).all()
    assert (data.std[~scaled] == 1).all()


def test_the_split_is_seeded_and_stratified_and_without_it_there_is_no_test() -> None:
    table = homes().assign(y=["cheap", "dear", "cheap", "cheap"] * 10)
    split = source(table, test_fraction=0.2)
    one, same_seed, other = (split.arrays(seed=seed).x_test for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same_seed)
    assert not np.array_equal(one, other)
    assert np.bincount(split.arrays(seed=1).y_test).tolist() == [6, 2]
    whole = study(table)
    assert (len(whole.x_test), len(whole.y_test), whole.n_train) == (0, 0, 40)


@pytest.mark.parametrize("as_text", [False, True])
def test_a_column_named_as_a_generated_one_keeps_its_own_values(as_text: bool) -> None:
    own: Any = ["a", "b"] * 20 if as_text else Z[:N]
    dates = pd.date_range("2020-01-01", periods=N, freq="77D")
    table = pd.DataFrame(
        {"date": dates, "year of date": own, "x": Z[:N], "x is missing": U[:N], "y": Y[:N]}
    )
    table.loc[3, "x"] = np.nan
    arrays = study(table)
    preparation = prepared(arrays)
    assert len({*preparation.feature_names}) == arrays.input_shape[0]
    places = preparation.places
    years = arrays.x_train[:, preparation.feature_names.index("year of date")]
    assert np.diff(years).tolist() == np.diff(dates.year).tolist()
    if not as_text:
        np.testing.assert_allclose(arrays.x_train[:, places["year of date"][0]], own, rtol=1e-6)
    np.testing.assert_allclose(arrays.x_train[:, places["x is missing"][0]], U[:N], rtol=1e-6)
