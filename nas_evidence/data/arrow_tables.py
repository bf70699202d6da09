"""What Arrow does better than pandas: cells of text files, numbers in text, Parquet and Feather.

Arrow reads numbers to the last bit and quickly, and keeps integers beside gaps and categories of
numbers. pandas makes float64 of both, which merges integers above 2^53.
"""

import re
from base64 import b64decode
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

#: What pandas calls a level of the index without a name.
_UNNAMED = re.compile(r"__index_level_\d+__")
#: Cells of a column that show whether it may be of numbers.
_FEW = 100
#: Columns from which on a table is wide, and bytes that Arrow reads at a time of one that is not
#: and that is: few pieces of many columns, or pieces that fit into the caches.
_WIDE, _BLOCKS = 1000, (1 << 22, 1 << 26)


def cells_of(text: str, names: Sequence[str], separator: str) -> pd.DataFrame | None:
    """Return the cells of a text as text, None if rows do not have a cell for each name."""
    import pyarrow  # late, as everywhere: data in memory do without
    from pyarrow import csv

    try:
        table = csv.read_csv(
            pyarrow.BufferReader(text.encode()),
            csv.ReadOptions(
                use_threads=False, block_size=_BLOCKS[len(names) >= _WIDE], column_names=names
            ),
            csv.ParseOptions(delimiter=separator, newlines_in_values='"' in text),
            csv.ConvertOptions(column_types=dict.fromkeys(names, pyarrow.string())),
        )
    except pyarrow.ArrowInvalid:
        return None
    found: pd.DataFrame = table.to_pandas(types_mapper=pd.ArrowDtype)
    return found


def texts_of(values: pd.Series, missing: Collection[str] | None = None) -> Any:
    """Return a column of text [n] as Arrow has it; with `missing`, trimmed and without these.

    Args:
        values: cells of text.
        missing: words that are a missing cell; blank cells are too.
    """
    import pyarrow
    from pyarrow import compute

    text = pyarrow.array(values, from_pandas=True)
    text = text if text.type == pyarrow.string() else text.cast(pyarrow.string())
    if missing is None:
        return text
    text = compute.utf8_trim_whitespace(text)
    words = pyarrow.array(["", *missing], pyarrow.string())
    return compute.if_else(compute.is_in(text, words), pyarrow.scalar(None, text.type), text)


def numbers_of(text: Any) -> Any:
    """Return text [n] as an array of int64, uint64 or float64.

    None if a cell is no number, or no type holds all of them apart.
    """
    import pyarrow

    if text.null_count == len(text) or (found := _cast(text, pyarrow.float64())) is None:
        return None
    numbers = found.to_numpy(zero_copy_only=False)
    n_present = len(text) - text.null_count
    small = np.count_nonzero(np.abs(numbers) < 2**53) == n_present  # without inf and nan
    few = numbers[:_FEW]
    if (few[np.isfinite(few)] % 1 == 0).all() and not (small and text.null_count):
        for kind, whole in (
            (pyarrow.int64(), pd.Int64Dtype()),
            (pyarrow.uint64(), pd.UInt64Dtype()),
        ):
            if (exact := _cast(text, kind)) is not None:
                return whole.__from_arrow__(exact) if text.null_count else exact.to_numpy()
    # Digits that no type holds would merge, and inf and nan are words.
    return numbers if small or not holds(text, r"^[+-]?\d{16,}$|[nN]") else None


def _cast(text: Any, kind: Any) -> Any:
    """Return text in a type of numbers, None if it cannot be; failing cells are slow."""
    import pyarrow

    try:
        if len(text) > 10 * _FEW:
            text[:_FEW].cast(kind)
        return text.cast(kind)
    except pyarrow.ArrowInvalid:
        return None


def holds(text: Any, pattern: str) -> bool:
    """Tell whether a cell of text [n] has a pattern of RE2."""
    from pyarrow import compute

    return bool(compute.any(compute.match_substring_regex(text, pattern)).as_py())


def read_arrow(path: Path) -> pd.DataFrame:
    """Return the table in a file of Parquet or Feather."""
    import pyarrow
    from pyarrow import feather, parquet

    with path.open("rb") as file:  # not by its name, which Arrow needs as UTF-8
        if path.suffix.lower() == ".feather":
            return frame_of(feather.read_table(file))
        opened = parquet.ParquetFile(file)
        stored = (opened.metadata.metadata or {}).get(b"ARROW:schema", b"")
        schema = stored and pyarrow.ipc.read_schema(pyarrow.py_buffer(b64decode(stored)))
        return frame_of(opened.read(), schema)


def table_of_arrow(data: Any) -> Any:
    """Return what speaks Arrow (`__arrow_c_stream__`), or a Hugging Face set, as a Table."""
    import pyarrow

    of_set = hasattr(data, "with_format") and not hasattr(data, "__arrow_c_stream__")
    return data.with_format("arrow")[:] if of_set else pyarrow.table(data)


def frame_of(table: Any, noted: Iterable[Any] = ()) -> pd.DataFrame:
    """Return a `pyarrow.Table` as a DataFrame, named levels of its index as columns.

    Args:
        table: whose notes by pandas say which columns are categories.
        noted: fields of the table that was written, which do as well.
    """
    # pandas cannot read its own notes of some types of Arrow.
    frame: pd.DataFrame = table.to_pandas(integer_object_nulls=True, ignore_metadata=True)
    notes = table.schema.pandas_metadata or {}
    ordered = {one.name: one.type.ordered for one in noted if hasattr(one.type, "ordered")}
    for one in notes.get("columns", ()):
        if one.get("pandas_type") == "categorical":
            ordered[one.get("field_name")] = (one.get("metadata") or {}).get("ordered")
    for name, in_order in ordered.items():
        if frame[name].dtype != "category":  # Parquet has categories of text alone
            frame[name] = frame[name].astype(pd.CategoricalDtype(ordered=in_order))
    if index := [one for one in notes.get("index_columns", ()) if one in table.column_names]:
        frame = frame.set_index(index)
        frame = frame.reset_index([name for name in index if not _UNNAMED.fullmatch(name)])
        frame.index.names = [None] * frame.index.nlevels
    return frame
