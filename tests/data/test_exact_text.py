"""Numbers of text, read to the last bit under every pandas."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import nas_evidence
from nas_evidence.data import exact_text
from nas_evidence.data.cells import with_numbers_read
from nas_evidence.data.exact_text import read_csv, to_numeric

X = np.random.default_rng(0).normal(size=1000)
TEXTS = pd.Series([repr(float(x)) for x in X], range(5, 1005), name="x")
PACKAGE = Path(nas_evidence.__file__).parent


def test_numbers_of_a_file_and_of_cells_are_those_of_float(tmp_path: Path) -> None:
    TEXTS.to_csv(tmp_path / "t.csv", index=False)
    np.testing.assert_array_equal(read_csv(tmp_path / "t.csv")["x"], X)
    np.testing.assert_array_equal(to_numeric(TEXTS), X)
    commas = pd.DataFrame({"x": TEXTS.str.replace(".", ",")})
    np.testing.assert_array_equal(with_numbers_read(commas)["x"], X)


@pytest.mark.parametrize("dtype", [object, "string"])
def test_cells_are_exact_where_those_of_pandas_are_a_bit_off(
    dtype: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def a_bit_off(values: pd.Series, errors: str) -> pd.Series:
        found = right(values, errors=errors)
        return found if found.dtype.kind == "i" else found + 2**-52 * found.abs()

    right = pd.to_numeric
    monkeypatch.setattr(pd, "to_numeric", a_bit_off)
    monkeypatch.setattr(exact_text, "_IS_EXACT", False)
    pd.testing.assert_series_equal(
        to_numeric(TEXTS.astype(dtype)).astype(float), TEXTS.astype(float)
    )
    cells = pd.Series(["0.1", None, "none", " 1e-3", "inf"], dtype=dtype)
    found = to_numeric(cells, errors="coerce").to_numpy(float, na_value=np.nan)
    np.testing.assert_array_equal(found, [0.1, np.nan, np.nan, 1e-3, np.inf])
    assert to_numeric(pd.Series(["1", "2"], dtype=dtype)).dtype.kind == "i"
    with pytest.raises(ValueError, match="none"):
        to_numeric(cells)


def test_no_other_file_has_pandas_read_numbers_of_text() -> None:
    found = {
        file.name
        for file in PACKAGE.rglob("*.py")
        if re.search(r"\bpd\.(read_csv|read_table|read_json|to_numeric)\(", file.read_text())
    }
    assert found == {"exact_text.py"}
