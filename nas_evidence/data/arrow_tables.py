"""Tables of Arrow, Parquet and Feather with every integer and category that they hold.

pandas makes float64 of a column of integers with gaps, which merges those above 2^53, takes
categories of numbers in Parquet for numbers, and cannot read some types that it wrote itself.
"""

import base64
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from nas_evidence.data.exact_text import beyond_floats

_INTEGERS = {"int64": pd.Int64Dtype(), "uint64": pd.UInt64Dtype()}
#: Words of the errors about types of columns that pandas writes, but does not read.
_UNREAD = ("not understood", "not recognized", "unhashable type")
#: What pandas calls a level of the index without a name.
_UNNAMED = re.compile(r"__index_level_\d+__")


def read_parquet(path: Path) -> pd.DataFrame:
    """Return the table in a file of Parquet."""
    import pyarrow.parquet  # late, as everywhere: tables of text do without

    def read(file: Any) -> pd.DataFrame:
        opened = pyarrow.parquet.ParquetFile(file)
        stored = (opened.metadata.metadata or {}).get(b"ARROW:schema")
        schema = stored and pyarrow.ipc.read_schema(pyarrow.py_buffer(base64.b64decode(stored)))
        return _as_noted(lambda: pd.read_parquet(file), opened.read, opened.schema_arrow, schema)

    return _opened(path, read)


def read_feather(path: Path) -> pd.DataFrame:
    """Return the table in a file of Feather."""
    import pyarrow.feather

    return _opened(path, lambda file: frame_of(pyarrow.feather.read_table(file)))


def _opened(path: Path, read: Callable[[Any], pd.DataFrame]) -> pd.DataFrame:
    with path.open("rb") as file:  # not by its name, which Arrow needs as UTF-8
        return read(file)


def table_of_arrow(data: Any) -> Any:
    """Return what speaks Arrow (`__arrow_c_stream__`), or a Hugging Face set, as a Table."""
    import pyarrow

    of_set = hasattr(data, "with_format") and not hasattr(data, "__arrow_c_stream__")
    return data.with_format("arrow")[:] if of_set else pyarrow.table(data)


def frame_of(table: Any) -> pd.DataFrame:
    """Return a `pyarrow.Table` as a DataFrame, named levels of its index as columns."""
    return _as_noted(table.to_pandas, lambda: table, table.schema)


def _as_noted(
    read: Callable[[], pd.DataFrame], table: Callable[[], Any], schema: Any, fields: Any = None
) -> pd.DataFrame:
    """Return a table with the categories and integers that its schema has.

    Args:
        read: returns the table as pandas has it.
        table: returns it as Arrow has it.
        schema: of it, with the notes of pandas.
        fields: of the table that was written, which may have had categories.
    """
    try:
        frame = read()
    except (TypeError, ValueError) as error:
        if not any(words in str(error) for words in _UNREAD):
            raise
        frame = _without_notes(table())
    frame = frame.reset_index([name for name in frame.index.names if name is not None])
    ordered = {one.name: one.type.ordered for one in fields or () if hasattr(one.type, "ordered")}
    for one in (schema.pandas_metadata or {}).get("columns", ()):
        if one["pandas_type"] == "categorical":
            ordered[str(one["field_name"])] = bool((one["metadata"] or {}).get("ordered"))
    for at, name in enumerate(frame.columns):
        place = schema.get_field_index(str(name))  # -1: none, or several
        if str(name) in ordered and place >= 0:
            kind = schema.field(place).type
            if kind.num_fields == 0 and not hasattr(kind, "ordered"):  # plain values
                of = pd.CategoricalDtype(ordered=ordered[str(name)])
                frame = frame.assign(**{name: frame.iloc[:, at].astype(of)})
    return with_exact_integers(frame, table)


def _without_notes(table: Any) -> pd.DataFrame:
    columns = zip(table.column_names, table.columns, strict=True)
    cells = [_cells(one).rename(name) for name, one in columns if not _UNNAMED.fullmatch(name)]
    return pd.concat(cells, axis=1)


def _cells(column: Any) -> pd.Series:
    """Return a column, of categories of lists, records or intervals each cell of its own."""
    kind = str(column.type)
    if not re.match("dictionary<values=(extension|list|large_list|struct|map)<", kind):
        return column.to_pandas()
    chunks = [
        pd.Series(one.dictionary.to_pandas(), dtype=object).reindex(
            one.indices.to_pandas().fillna(-1).astype(int)
        )
        for one in column.chunks
    ]
    return pd.concat(chunks, ignore_index=True)


def with_exact_integers(frame: pd.DataFrame, table: Callable[[], Any]) -> pd.DataFrame:
    """Return a DataFrame whose integers beyond 2^53 beside gaps are those of a `pyarrow.Table`.

    Args:
        frame: the table as pandas has it.
        table: returns it as Arrow has it, with as many rows.
    """
    wide = [at for at in range(frame.shape[1]) if beyond_floats(frame.iloc[:, at])]
    changed = {}
    for at, found in ((at, table()) for at in wide):
        place = found.schema.get_field_index(str(frame.columns[at]))  # -1: none, or several
        kind = _INTEGERS.get(str(found.schema.field(place).type)) if place >= 0 else None
        if kind is not None:
            exact = found.column(place).to_pandas(types_mapper=lambda _, kind=kind: kind)
            changed[frame.columns[at]] = exact.set_axis(frame.index)
    return frame.assign(**changed) if changed else frame
