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
from nas_evidence.data.reading import read_frame

X = np.random.default_rng(0).normal(size=1000)
TEXTS = pd.Series([repr(float(x)) for x in X], range(5, 1005), name="x")


def test_numbers_of_a_file_and_of_cells_are_those_of_float(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    TEXTS.to_csv(tmp_path / "t.csv", index=False)
    np.testing.assert_array_equal(read_csv(tmp_path / "t.csv")["x"], X)
    right = pd.to_numeric
    for name in ("read_csv", "to_numeric"):  # those of pandas 2 are a bit off
        monkeypatch.setattr(pd, name, lambda one, errors: right(one, errors=errors) * (1 + 2**-52))
    monkeypatch.setattr(exact_text, "_IS_EXACT", False)
    np.testing.assert_array_equal(read_frame(tmp_path / "t.csv")["x"], X)
    commas = pd.DataFrame({"x": TEXTS.str.replace(".", ",")})
    np.testing.assert_array_equal(with_numbers_read(commas)["x"], X)
    for kind in (object, "string"):
        np.testing.assert_array_equal(to_numeric(TEXTS.astype(kind)), X)
        cells = pd.Series(["0.1", None, "none", " 1e-3", "inf"], dtype=kind)
        found = to_numeric(cells, errors="coerce").to_numpy(float, na_value=np.nan)
        np.testing.assert_array_equal(found, [0.1, np.nan, np.nan, 1e-3, np.inf])
    with pytest.raises(ValueError, match="none"):
        to_numeric(cells)


def test_no_other_file_has_pandas_read_numbers_of_text() -> None:
    called = re.compile(r"\bpd\.(read_csv|read_table|read_json|to_numeric)\(")
    package = Path(nas_evidence.__file__).parent
    found = {file.name for file in package.rglob("*.py") if called.search(file.read_text())}
    assert found == {"exact_text.py"}
