"""Data in memory as the source of a study: DataFrames, arrays, tensors and torch Datasets."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nas_evidence.data.foreign_tables import plain
from nas_evidence.data.mapped import Array
from nas_evidence.data.source import KEPT, Source, array_source, table_source
from nas_evidence.data.table_file import read_frame
from nas_evidence.data.targets import check_unordered
from nas_evidence.data.written_numbers import TEXT, how_read, with_numbers_read
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.dataset import DatasetSpec

#: The study of data in memory is named so, as they have no name.
NAME = "memory"
#: The argument that they were given as.
GIVEN = "data"
_TARGET = "target"
#: Options that may be arrays with a value for each row, and how they are then stored.
_OF_ROWS = {"groups": "groups", "time_column": "times", "weights": "weights"}


def source_in_memory(data: Any, y: Any, keys: Mapping[str, Any]) -> Source:
    """Return data in memory as the source of a study.

    Args:
        data: a DataFrame or what converts to one, array, tensor, or torch Dataset of pairs.
        y: labels or targets, unless `data` hold them.
        keys: options of [dataset] that are given; groups, times and weights may be
            arrays [n].

    Raises:
        ValueError: if data and targets do not fit together.
    """
    given = {
        key: _array(plain(keys[key])) for key in _OF_ROWS if not isinstance(keys.get(key, ""), str)
    }
    keys = {**keys, **{key: _OF_ROWS[key] for key in given}}
    data, y = plain(data), plain(y)
    check_unordered(y, keys.get("task"), "y")
    if y is None and not isinstance(data, pd.DataFrame):
        data, y = _pairs(data)
    if isinstance(data, pd.DataFrame):
        return _of_table(data, y, keys, given)
    x = _array(data)
    if x.dtype == object or x.dtype.kind in "US":
        frame = pd.DataFrame(x).infer_objects()
        frame.columns = [f"x{i}" for i in range(frame.shape[1])]
        return _of_table(frame, y, keys, given)
    if "target" in keys:
        raise UserError("target names a column of a DataFrame; give arrays with y").with_code(
            "target-names-no-column"
        )
    labels = _array(y)
    if len(x) != len(labels):
        raise UserError(
            f"X and y must have equal lengths, but have {len(x)} and {len(labels)}"
        ).with_code("x-y-lengths")
    spec = DatasetSpec.model_validate({"name": "npz", "path": KEPT, **keys})
    of_rows = {_OF_ROWS[key]: values for key, values in given.items()}
    return array_source({"x_train": x, "y_train": labels, **of_rows}, spec, given=GIVEN)


def _of_table(
    frame: pd.DataFrame, y: Any, keys: dict[str, Any], of_rows: Mapping[str, Array]
) -> Source:
    frame = frame.copy(deep=False)  # its columns are renamed
    for option, values in of_rows.items():
        if values.shape != (len(frame),):
            raise UserError(
                f"{option} must hold one value for each of the {len(frame)} rows, but has the "
                f"shape {list(values.shape)}; or name a column"
            ).with_code("option-one-value-per-row")
        if keys[option] in map(str, frame.columns):
            keys[option] = f"{keys[option]} (given)"
        frame[keys[option]] = values
    if y is not None:
        if "target" in keys:
            raise UserError("give y or the name of the target column, not both").with_code(
                "y-and-target"
            )
        name = str(getattr(y, "name", None) or _TARGET)
        values = _array(y)
        if values.ndim == 2 and values.shape[1] == 1:
            values = values[:, 0]
        if values.ndim != 1 or len(values) != len(frame):
            raise UserError(
                f"y must hold one value for each of the {len(frame)} rows, but has the shape "
                f"{list(values.shape)}"
            ).with_code("y-one-value-per-row")
        if name in map(str, frame.columns):
            name = f"{name} (y)"
        frame = frame.reset_index(drop=True).assign(**{name: values})
        keys["target"] = name
    if "target" not in keys:
        raise UserError("name the column to predict with target=..., or give y").with_code(
            "target-or-y-missing"
        )
    frame.columns = frame.columns.map(str)
    labels = y is not None and keys.get("task") == "classification"  # as they are
    frame = with_numbers_read(frame, written={keys["target"]: TEXT} if labels else None)
    test = None
    if "test_path" in keys:
        test = read_frame(Path(keys["test_path"]), how_read(frame)[1])
    spec = DatasetSpec.model_validate({"name": "table", "path": f"{KEPT}/train.parquet", **keys})
    return table_source(frame, test, spec, given=GIVEN)


def _array(values: Any) -> Array:
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    if isinstance(values, pd.Series | pd.DataFrame | pd.Index):
        plain = values.to_numpy()
        return np.asarray(plain)
    return np.asarray(values)


def _pairs(dataset: Any) -> tuple[Array, Array]:
    indexed = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if isinstance(dataset, Mapping) or not indexed or not len(dataset):
        raise UserError(
            "data must be a DataFrame, an array or tensor with y, or a Dataset of pairs (x, y), "
            f"but got {type(dataset).__name__}"
        ).with_code("data-type")
    first = dataset[0]
    if not isinstance(first, tuple | list) or len(first) != 2:
        raise UserError("give y, or data whose items are pairs (x, y)").with_code("no-pairs")
    pairs = [dataset[i] for i in range(len(dataset))]
    return np.stack([_array(x) for x, _ in pairs]), np.stack([_array(y) for _, y in pairs])
