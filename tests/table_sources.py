"""Tables for tests of data, the files that hold them, and what a study reads of them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from hypothesis import HealthCheck, settings

from nas_evidence.data.arrays import ArrayData
from nas_evidence.data.given import Given, features_of
from nas_evidence.data.source import Source, source_in_memory, source_of
from nas_evidence.data.table_columns import Preparation
from nas_evidence.spec.study import DatasetSpec

_R = np.random.default_rng(0)
U, Z = _R.uniform(size=200), _R.normal(size=200)
Y = np.sin(6 * U) + Z
few = settings(max_examples=6, database=None, suppress_health_check=list(HealthCheck))


def beside(column: Any, n: int = 40, **more: Any) -> pd.DataFrame:
    """Return a table of a column `c` beside a feature `x` and a real target `y`."""
    n = len(column) if hasattr(column, "__len__") else n
    return pd.DataFrame({"x": Z[:n]}).assign(c=column, y=Y[:n]).assign(**more)


def source(data: Any, y: Any = None, **keys: Any) -> Source:
    """Return data in memory, or the table of a file, as a study gets them."""
    keys = {"target": "y", **keys} if y is None else keys
    if not isinstance(data, Path):
        return source_in_memory(data, y, keys)
    found = source_of(DatasetSpec.model_validate({"name": "table", "path": str(data), **keys}))
    assert found is not None
    return found


def study(data: Any, y: Any = None, **keys: Any) -> ArrayData:
    """Return what a study reads of data in memory, or of the table in a file."""
    return source(data, y, **keys).arrays(seed=0)


def said(data: Any, y: Any = None, **keys: Any) -> str:
    """Return what is said of data."""
    return " | ".join(study(data, y, **keys).meaning.said)


def prepared(arrays: ArrayData) -> Preparation:
    """Return how features are made, after it has travelled as JSON."""
    assert arrays.meaning.preparation is not None
    again = Preparation.from_json(arrays.meaning.preparation.to_json())
    assert again == arrays.meaning.preparation
    return again


def new(data: Any, trained: ArrayData, target: str | None = None) -> Given:
    """Return new data as the networks of a study get them."""
    return features_of(data, prepared(trained), target=target)


_WRITERS: dict[str, Callable[..., Any]] = {
    ".parquet": pd.DataFrame.to_parquet,
    ".feather": pd.DataFrame.to_feather,
    ".jsonl": lambda frame, path: frame.to_json(path, orient="records", lines=True),
    ".json": lambda frame, path: frame.to_json(path, orient="records"),
}


def written(frame: pd.DataFrame, path: Path, **how: Any) -> Path:
    """Write a table in the format that its name ends in."""
    path.parent.mkdir(exist_ok=True, parents=True)
    of_text = {} if path.suffix in _WRITERS else {"index": False}
    _WRITERS.get(path.suffix, pd.DataFrame.to_csv)(frame, path, **of_text, **how)
    return path


def same(found: ArrayData, expected: ArrayData, *names: str) -> None:
    """Assert that arrays are equal bit by bit."""
    for name in names or ("x_train", "y_train", "x_test", "y_test", "mean", "std"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), name)


def every(cells: Sequence[Any], n: int) -> list[Any]:
    """Return cells again and again, n of them."""
    return [cells[k % len(cells)] for k in range(n)]
