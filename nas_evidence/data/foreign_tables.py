"""Tables of other libraries as DataFrames, sparse matrices as arrays; the libraries stay unloaded.

A table that converts itself (`to_pandas`: polars, pyarrow, Hugging Face, cuDF) is asked to. Of
others that speak Arrow (`__arrow_c_stream__`: DuckDB) pyarrow makes a table. What is not computed
yet is refused with the remedy.
"""

from typing import Any

import numpy as np
import pandas as pd

from nas_evidence.plumbing.user_error import UserError

#: Most cells of a sparse matrix, which is trained on as an array: 400 MB as float64.
MOST_CELLS = 50_000_000


def plain(data: Any) -> Any:
    """Return a DataFrame, Series or array for data of other libraries; other data as they are.

    Raises:
        ValueError: if they cannot be converted; one sentence with the remedy.
    """
    if isinstance(data, pd.DataFrame):
        return _dense(data)
    if hasattr(data, "toarray") and hasattr(data, "nnz"):
        cells = int(np.prod(data.shape))
        if cells > MOST_CELLS:
            raise UserError(
                f"a sparse matrix {list(data.shape)} has {cells:,} cells, and at most "
                f"{MOST_CELLS:,} are trained on; reduce its columns, as with "
                "sklearn.decomposition.TruncatedSVD"
            ).with_code("sparse-matrix-too-large")
        return data.toarray()
    if isinstance(data, pd.Series | pd.Index | np.ndarray):
        return data
    kind = f"{type(data).__module__.partition('.')[0]}.{type(data).__name__}"
    try:
        if hasattr(data, "to_pandas"):
            return plain(data.to_pandas())
        if hasattr(data, "__arrow_c_stream__"):
            import pyarrow  # late: predictions of arrays do without

            return pyarrow.table(data).to_pandas()
    except ImportError as error:
        raise UserError(
            f"a {kind} is converted to pandas, which fails here ({error}); "
            "`pip install pyarrow`, or give a pandas DataFrame"
        ).with_code("table-not-converted") from None
    if hasattr(data, "collect_schema"):
        raise UserError(
            f"a {kind} cannot be read as it is; compute it and give a pandas DataFrame, a "
            "pyarrow.Table or a polars.DataFrame"
        ).with_code("lazy-table")
    return data


def _dense(frame: pd.DataFrame) -> pd.DataFrame:
    sparse = [isinstance(kind, pd.SparseDtype) for kind in frame.dtypes]
    if not any(sparse):
        return frame
    columns = [
        frame.iloc[:, i].sparse.to_dense() if sparse[i] else frame.iloc[:, i]
        for i in range(frame.shape[1])
    ]
    return pd.concat(columns, axis=1)
