"""Properties of reading: the same numbers are the same study, however they are given."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nas_evidence
from nas_evidence.data.arrays import ArrayData
from nas_evidence.data.given import features_of
from nas_evidence.data.source import source_in_memory, source_of
from nas_evidence.data.table_columns import Preparation
from nas_evidence.spec.study import DatasetSpec

N_ROWS = 24
few = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
_INTEGERS = st.integers(-50, 50).map(float)
_REALS = st.floats(-1e6, 1e6, width=32)
_MISSING = st.sampled_from([np.nan, 0.5, 2.0, 3.0])
_CONSTANT = st.just(7.0)


@st.composite
def numbers(draw: Callable[..., Any]) -> np.ndarray:
    """Draw columns of integers, reals, missing numbers and constants; the first one varies."""
    kinds = draw(st.lists(st.sampled_from([_INTEGERS, _REALS, _MISSING, _CONSTANT]), max_size=4))
    columns = [draw(st.lists(kind, min_size=N_ROWS, max_size=N_ROWS)) for kind in kinds]
    return np.array([[0.25, 1.5, 1.5] * (N_ROWS // 3), *columns]).T


def same(found: ArrayData, expected: ArrayData) -> None:
    for name in ("x_train", "x_test", "y_train", "y_test", "mean", "std"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def prepared(arrays: ArrayData) -> Preparation:
    assert arrays.meaning.preparation is not None
    return arrays.meaning.preparation


@pytest.mark.slow
@few
@given(x=numbers(), in_32_bits=st.booleans(), labels=st.booleans())
def test_an_array_is_the_table_of_its_numbers(
    x: np.ndarray, in_32_bits: bool, labels: bool
) -> None:
    x = x.astype(np.float32) if in_32_bits else x
    y = np.arange(N_ROWS) % 2 if labels else np.sin(np.arange(N_ROWS))
    options = {"test_fraction": 0.25}
    names = [chr(ord("a") + i) for i in range(x.shape[1])]
    array = source_in_memory(x, y, options).arrays(seed=0)
    table = source_in_memory(pd.DataFrame(x, columns=names), y, options).arrays(seed=0)
    same(array, table)
    assert len(array.meaning.said) == len(table.meaning.said)
    new = features_of(x[::-1], prepared(array))
    named = features_of(pd.DataFrame(x[::-1], columns=names), prepared(table))
    np.testing.assert_array_equal(new.inputs, named.inputs)
    assert len(new.doubts) == len(named.doubts)


def people() -> pd.DataFrame:
    """Return a table of every kind of column that all formats hold, with gaps."""
    generator, n = np.random.default_rng(3), N_ROWS
    frame = pd.DataFrame(
        {
            "size": generator.normal(170, 9, n).round(2),
            "mass": generator.normal(70, 12, n).round(3),
            "town": generator.choice(["rome", "Köln, am Rhein", 'the "hague"', "a\nb"], n),
            "since": pd.date_range("2024-01-31", periods=n, freq="37D").strftime("%Y-%m-%d"),
            "born": (2459000.5 + generator.uniform(0, 9, n)).round(4),
            "code": generator.choice(["01", "02", "x3"], n),
            "count": pd.array(generator.integers(0, 9, n), "Int64"),
            "id": [f"{2**60 + k % 3}" if k % 5 else None for k in range(n)],
            "seen": [f"2024-0{1 + i % 9}-01 10:00:00+0{1 + i % 2}:00" for i in range(n)],
            "member": generator.choice([True, False], n).astype(object),
            "paid": [f"${1000 + 7 * i}" for i in range(n)],
            "share": [f"{i * i % 17} %" for i in range(n)],
        }
    )
    frame.loc[2, ["mass", "count"]] = np.nan
    frame.loc[4, "member"] = None
    return frame.assign(price=(frame["size"] * 2.5).round(2))


PEOPLE = people()
OPTIONS = {"target": "price", "categorical": ["id", "code"]}


def _written(frame: pd.DataFrame, name: str, folder: Path) -> Any:
    """Return rows in memory, or the path of a file with them."""
    folder.mkdir(exist_ok=True)
    if name == "frame":
        return frame
    if name == "records":
        return json.loads(frame.to_json(orient="records"))
    if name == "polars":
        return pytest.importorskip("polars").from_pandas(frame)
    if name == "pyarrow":
        return pytest.importorskip("pyarrow").Table.from_pandas(frame)
    if name == "numpy":
        return frame[["size", "born"]].to_numpy()
    WRITERS[name](frame, folder / name)
    return folder / name


WRITERS: dict[str, Callable[[pd.DataFrame, Path], None]] = {
    "t.csv": lambda frame, path: frame.to_csv(path, index=False),
    "t.tsv": lambda frame, path: frame.to_csv(path, index=False, sep="\t"),
    "t.txt": lambda frame, path: frame.to_csv(path, index=False, sep="|"),
    "utf-16.csv": lambda frame, path: frame.to_csv(path, index=False, encoding="utf-16"),
    "commas.csv": lambda frame, path: frame.to_csv(path, index=False, sep=";", decimal=","),
    "t.csv.gz": lambda frame, path: frame.to_csv(path, index=False),
    "commas.csv.xz": lambda frame, path: frame.to_csv(path, index=False, sep=";", decimal=","),
    "t.tsv.bz2": lambda frame, path: frame.to_csv(path, index=False, sep="\t"),
    "t.csv.zip": lambda frame, path: frame.to_csv(path, index=False),
    "t.parquet": lambda frame, path: frame.to_parquet(path, index=False),
    "t.feather": lambda frame, path: frame.to_feather(path),
    "t.jsonl": lambda frame, path: frame.to_json(path, orient="records", lines=True),
    "t.json": lambda frame, path: frame.to_json(path),
    "records.json": lambda frame, path: frame.to_json(path, orient="records"),
}
SOURCES = [*WRITERS, "frame", "records", "polars", "pyarrow", "numpy"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
def test_a_row_has_its_training_inputs_from_every_source_whatever_is_beside_it(
    name: str, tmp_path: Path
) -> None:
    """Integers above 2^53 stay apart; a table is the same study in every format."""
    data = _written(PEOPLE, name, tmp_path / "all")
    if isinstance(data, Path):
        source = source_of(
            DatasetSpec.model_validate({"name": "table", "path": str(data), **OPTIONS})
        )
        assert source is not None
    elif name == "numpy":
        source = source_in_memory(data, PEOPLE["price"], {})
    else:
        source = source_in_memory(data, None, OPTIONS)
    arrays = source.arrays(seed=0)
    preparation = Preparation.from_json(prepared(arrays).to_json())
    if name != "numpy":
        same(arrays, source_in_memory(PEOPLE, None, OPTIONS).arrays(seed=0))
        ids = {one for one in preparation.feature_names if one.startswith(f"id = {2**60}"[:12])}
        assert ids == {f"id = {2**60 + k}" for k in range(3)}

    places = iter(range(99))

    @few
    @given(rows=st.lists(st.integers(0, N_ROWS - 1), min_size=1, max_size=5), target=st.booleans())
    def holds(rows: list[int], target: bool) -> None:
        some = PEOPLE.iloc[rows].reset_index(drop=True)
        some = some if target else some.drop(columns="price")
        new = _written(some, name, tmp_path / str(next(places)))
        found = features_of(new, preparation, target="price")
        np.testing.assert_array_equal(found.inputs, arrays.x_train[rows])
        assert (found.truth is not None) is (target and name != "numpy")
        assert not [one for one in found.doubts if "is empty" not in one]

    holds()


CELLS = {
    "decimal commas": ["1,234", "1,5", "2,25", "3"],
    "thousands by comma": ["1,234", "1,234,567", "12", "2,500"],
    "thousands by point": ["1.234", "1.234,5", "12", "2.500"],
    "decimal points": ["1.234", "1.5", "12", "2.25"],
    "currency": ["$1,234", "$1,234.50", "$12", "$7"],
    "per cent": ["12 %", "7 %", "1.5 %", "3 %"],
    "a unit": ["1.1 ct", "0.9 ct", "2 ct", "1.234 ct"],
    "negative in brackets": ["(3)", "4", "(5)", "6"],
    "days first": ["03/04/2024", "31/01/2024", "02/05/2023", "30/06/2024"],
    "months first": ["03/04/2024", "01/31/2024", "02/05/2023", "06/30/2024"],
    "texts": ["7 a", "8 b", "9 c", "7 d"],
}
READ_ALIKE = [(kind, separator) for kind in CELLS for separator in (",", ";")]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "separator"), READ_ALIKE)
def test_a_row_of_a_file_is_read_alone_as_it_was_in_training(
    kind: str, separator: str, tmp_path: Path
) -> None:
    cells = [cell for cell in CELLS[kind] for _ in range(6)]
    rows = [f'"{cell}"{separator}{i % 7}' for i, cell in enumerate(cells)]
    _read_alike(rows, separator, [0, 6, 12, 18], tmp_path)


def test_a_word_for_missing_is_read_alone_as_it_was_in_training(tmp_path: Path) -> None:
    rows = [f"{'not known' if i in (5, 11) else i * i % 31},{i % 7}" for i in range(24)]
    _read_alike(rows, ",", [4, 5, 11], tmp_path)


def _read_alike(rows: list[str], separator: str, chosen: list[int], folder: Path) -> None:
    head = f"a{separator}y"
    (folder / "t.csv").write_text("\n".join([head, *rows]) + "\n")
    spec = DatasetSpec(name="table", path="t.csv", target="y", task="regression")
    source = source_of(spec, base=folder)
    assert source is not None
    arrays = source.arrays(seed=0)
    for row in chosen:
        (folder / "new.csv").write_text(f"{head}\n{rows[row]}\n")
        new = features_of(folder / "new.csv", prepared(arrays), target="y")
        np.testing.assert_array_equal(new.inputs[0], arrays.x_train[row])


@pytest.mark.slow
def test_the_evidence_of_an_array_is_that_of_a_table_to_the_last_bit(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(30, 3))
    x[4, 1], x[:, 2], y = np.nan, 7.0, x[:, 0] + 0.5
    quick = {"plan.epochs": 2, "plan.settle": 0, "plan.folds": 2}
    tables = {"array": x, "frame": pd.DataFrame(x, columns=["a", "b", "c"])}
    values = []
    for name, data in tables.items():
        out = tmp_path / name
        nas_evidence.search(data, y, n_trials=1, settings=quick, out=out, progress=False)
        evidence = pd.read_parquet(out / "evidence").sort_values(["trial_id", "estimator"])
        values.append(evidence["value"].to_numpy())
    assert len(values[0]) > 0
    np.testing.assert_array_equal(*values)
