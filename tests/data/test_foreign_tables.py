"""Tables of other libraries are read as the DataFrame they stand for, or refused in a sentence."""

import sys
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from messages import refused
from scipy import sparse

from nas_evidence.api.request import asked_for
from nas_evidence.data.arrays import ArrayData
from nas_evidence.data.cells import READ, how_read
from nas_evidence.data.given import features_of
from nas_evidence.data.reading import MOST_CELLS, plain, read_frame
from nas_evidence.data.source import source_in_memory
from nas_evidence.spec.dataset import DatasetSpec
from nas_evidence.spec.likelihoods import TARGET_KINDS

N = 40


def table() -> pd.DataFrame:
    generator = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "size": generator.normal(size=N),
            "count": generator.integers(0, 100, N),
            "town": generator.choice(["oslo", "bern"], N),
            "big": generator.random(N) > 0.5,
            "pet": generator.choice(["cat", "dog"], N),
        }
    )


def arrays(data: Any, y: Any = None) -> ArrayData:
    keys = {"target": "pet"} if y is None else {}
    return source_in_memory(data, y, keys).arrays(seed=0)


class Converts:
    """What polars offers: a table that converts itself, with pyarrow."""

    def __init__(self, frame: pd.DataFrame | None) -> None:
        self.frame = frame

    def to_pandas(self) -> pd.DataFrame:
        if self.frame is None:
            raise ModuleNotFoundError("pyarrow is required")
        return self.frame


class Streams:
    """What speaks Arrow and nothing else."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.table = pa.Table.from_pandas(frame)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


class Lazy:
    """What a LazyFrame offers."""

    def collect_schema(self) -> None:
        """Not the rows."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    ["nullable", "arrow types", "categories", "pyarrow", "converts", "streams", "duckdb"],
)
def test_a_table_of_any_kind_gives_the_same_inputs_in_training_and_prediction(kind: str) -> None:
    plain_table = table()
    given: Any = {
        "nullable": lambda: plain_table.convert_dtypes(),
        "arrow types": lambda: plain_table.convert_dtypes(dtype_backend="pyarrow"),
        "categories": lambda: plain_table.astype({"town": "category", "pet": "category"}),
        "pyarrow": lambda: pa.Table.from_pandas(plain_table),
        "converts": lambda: Converts(plain_table),
        "streams": lambda: Streams(plain_table),
        "duckdb": lambda: duckdb.from_df(plain_table),
    }[kind]()
    usual, found = arrays(plain_table), arrays(given)
    np.testing.assert_allclose(found.x_train, usual.x_train, rtol=1e-6)
    np.testing.assert_array_equal(found.y_train, usual.y_train)
    new = features_of(given, found.meaning.preparation, target="pet")
    np.testing.assert_allclose(new.inputs, usual.x_train, rtol=1e-6)
    assert new.truth.tolist() == plain_table["pet"].tolist()


def test_sparse_matrices_and_columns_are_trained_on_as_dense_ones() -> None:
    x, y = np.eye(N)[:, :3], np.arange(N) % 2
    np.testing.assert_array_equal(arrays(sparse.csr_matrix(x), y).x_train, x)
    np.testing.assert_array_equal(features_of(sparse.csr_array(x), None).inputs, x)
    frame = pd.DataFrame.sparse.from_spmatrix(sparse.csr_matrix(x))
    np.testing.assert_array_equal(plain(frame).to_numpy(), x)
    with pytest.raises(ValueError, match="TruncatedSVD"):
        plain(sparse.csr_matrix((MOST_CELLS, 2)))


@pytest.mark.parametrize(
    ("data", "says"), [(Converts(None), "pip install pyarrow"), (Lazy(), "compute it and give")]
)
def test_what_cannot_be_converted_is_one_sentence_with_the_remedy(data: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        arrays(data)
    assert "\n" not in str(caught.value)


def test_ordered_grades_are_refused_until_the_task_is_given(tmp_path: Path) -> None:
    grades = pd.Categorical(
        ["low", "mid", "high", "mid"] * 10, ["low", "mid", "high"], ordered=True
    )
    graded = table().assign(pet=grades)
    with refused("ordered-grades", "low, mid, high"):
        arrays(graded)
    with pytest.raises(ValueError, match="ordered grades"):
        arrays(table()[["size"]], pd.Series(grades))
    graded.to_parquet(tmp_path / "graded.parquet")
    with pytest.raises(ValueError, match="ordered grades"):
        asked_for(str(tmp_path / "graded.parquet"), (), {"target": "pet"})
    keys = {"target": "pet", "task": "classification"}
    assert source_in_memory(graded, None, keys).arrays(seed=0).n_outputs == 3


@pytest.mark.parametrize("task", sorted({"counts", "poisson", "ordinal"} - TARGET_KINDS.keys()))
def test_a_task_without_a_likelihood_is_one_sentence(task: str) -> None:
    with pytest.raises(ValueError, match="no likelihood of their own: give regression"):
        DatasetSpec.model_validate({"name": "npz", "path": "x.npz", "task": task})


def test_a_spreadsheet_names_what_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pets.xlsx"
    path.write_bytes(b"PK\x03\x04")
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with refused("table-needs-package", "openpyxl"):
        asked_for(str(path), (), {"target": "pet"})
    monkeypatch.setattr(pd, "read_excel", lambda _, **how: {"a": table()})
    found = asked_for(str(path), (), {"target": "pet"}).arrays
    np.testing.assert_array_equal(found.x_train, arrays(table()).x_train)


@pytest.mark.parametrize("data", [np.zeros((0, 3)), pd.DataFrame({"a": []})])
def test_no_rows_are_one_sentence(data: Any) -> None:
    with refused("nothing-to-predict"):
        features_of(data, None)


def test_what_a_frame_for_a_network_of_arrays_misses_is_told() -> None:
    missing = pd.DataFrame({"a": pd.array([1, None], dtype="Int64")})
    told = "1 missing cell, none in training, replaced by the mean"
    assert features_of(missing, None).doubts == (told,)


@pytest.mark.parametrize("attributes", [b"5", b"[1]", b'"text"', b"null", b"{broken"])
def test_attributes_of_another_kind_are_passed_over(attributes: bytes, tmp_path: Path) -> None:
    found = pa.Table.from_pandas(table())
    metadata = {**found.schema.metadata, b"PANDAS_ATTRS": attributes}
    pq.write_table(found.replace_schema_metadata(metadata), tmp_path / "t.parquet")
    assert read_frame(tmp_path / "t.parquet").shape == table().shape


def test_the_attributes_of_a_table_are_not_taken_for_our_words(tmp_path: Path) -> None:
    frame = table()
    frame.attrs = {READ: ["buy now"]}
    frame.to_parquet(tmp_path / "t.parquet")
    assert how_read(read_frame(tmp_path / "t.parquet"))[0] == ()
    source = source_in_memory(frame, None, {"target": "big"})
    assert "buy now" not in source.arrays(seed=0).meaning.said


def test_a_named_index_of_a_parquet_file_is_a_column_as_in_csv(tmp_path: Path) -> None:
    frame = table().set_index("town")
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_csv(tmp_path / "t.csv")
    found = [read_frame(tmp_path / name) for name in ("t.parquet", "t.csv")]
    assert list(found[0]) == list(found[1]) == ["town", *frame]


def test_of_a_spreadsheet_with_several_sheets_the_first_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cover = pd.DataFrame({"Sales": ["see data"], "Unnamed: 1": [None]})
    sheets = {"cover": cover, "data": table()}
    monkeypatch.setattr(pd, "read_excel", lambda *_, **__: sheets)
    (tmp_path / "t.xlsx").touch()
    says = "no column 'big'.*; sheet 'cover' of t.xlsx is read, the first of 2"
    with pytest.raises(ValueError, match=says):
        asked_for(str(tmp_path / "t.xlsx"), (), {"target": "big"})


def test_a_file_that_only_has_the_ending_of_a_spreadsheet_is_told_so(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    (tmp_path / "t.xlsx").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="not a zip file; write or download it again"):
        read_frame(tmp_path / "t.xlsx")
