"""What version 0.1.0 stored of a table is read with the same inputs, or refused in a sentence.

`protected/copies.zip` was written by commit 52e6435a, the last one of preparations without a
version. Its `tables.json` has of each table below its preparation, and the SHA-256 of the inputs
of its training rows and of five rows given to `predict`, 16 digits each. Keys of columns with a
default are left out. The rest are the studies' own copies, and their [dataset].
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pandas as pd
import pytest

from nas_evidence.data.given import features_of
from nas_evidence.data.source import source_in_memory, source_of, stored_source
from nas_evidence.data.table_columns import Preparation
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.study import DatasetSpec

N = 24
FOLDER = Path(__file__).parent / "protected"
K = np.arange(N)
X = (K * 7 % 13) / 8 + 0.1
DAYS = pd.Series(pd.date_range("2024-02-01 08:30", periods=N, freq="31h"))


def every(*cells: Any) -> list[Any]:
    """Return the cells again and again, a cell for each row."""
    return [cells[k % len(cells)] for k in K]


def dates(form: str) -> list[str]:
    return [*DAYS.dt.strftime(form)]


def _frame(column: Any, **more: Any) -> pd.DataFrame:
    return pd.DataFrame({"x": X, "c": column, **more, "y": X + K % 5})


def _text(frame: pd.DataFrame, path: Path, **how: Any) -> None:
    frame.to_csv(path, index=False, **how)


#: A table, its options, and the name of its file; "" in memory.
TABLES: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "numbers with gaps": (lambda: _frame(every(1.25, None, 3, 0.1)), {}, "t.csv"),
    "leading zeros": (lambda: _frame(every("007", "012", "003")), {}, "t.csv"),
    "codes": (lambda: _frame(every("007", "7", "1.10", "1.1")), {"categorical": ["c"]}, "t.csv"),
    "codes and words": (lambda: _frame(every("01", "02", "x3")), {}, "t.tsv"),
    "ids beside gaps": (
        lambda: _frame(pd.array(every(2**53, 2**53 + 1, None), "Int64")),
        {"categorical": ["c"]},
        "t.csv",
    ),
    "classes with zeros": (
        lambda: _frame(X).assign(y=every("007", "7", "012")), {"task": "classification"}, "t.csv",
    ),
    "decimal comma": (lambda: _frame(every("1,5", "2,25", "1.234,5")), {}, "semicolons.csv"),
    "thousands": (lambda: _frame(every("$1,234.50", "$12", "$7,000", None)), {}, "t.csv"),
    "per cent": (lambda: _frame(every("12 %", "7 %", "1.5 %")), {}, "t.csv"),
    "a unit": (lambda: _frame(every("1.1 ct", "0.9 ct", "2 ct")), {}, "t.csv"),
    "brackets": (lambda: _frame(every("(3)", "4", "(5.5)")), {}, "t.csv"),
    "two currencies": (lambda: _frame(every("$3", "€4", "$5.5")), {}, "t.csv"),
    "ISO dates": (lambda: _frame([*dates("%Y-%m-%d")[:-1], None]), {}, "t.csv"),
    "day first": (lambda: _frame(dates("%d.%m.%Y")), {}, "t.csv"),
    "short years": (lambda: _frame(dates("%m/%d/%y %H:%M")), {}, "t.csv"),
    "twelve hours": (lambda: _frame(dates("%Y-%m-%d %I:%M %p")), {}, "t.csv"),
    "far dates": (lambda: _frame([*dates("%Y-%m-%d")[:-1], "9999-12-31"]), {}, "t.csv"),
    "UTC text": (lambda: _frame(dates("%Y-%m-%dT%H:%MZ")), {}, "t.csv"),
    "offset text": (lambda: _frame(dates("%Y-%m-%d %H:%M+02:00")), {}, "t.csv"),
    "flags": (lambda: _frame(every("True", "False", "TRUE")), {}, "t.csv"),
    "flags and a word": (lambda: _frame(["?", *every("True", "false")[1:]]), {}, "t.csv"),
    "words": (lambda: _frame(["not known", *K[1:]]), {}, "t.csv"),
    "quotes": (lambda: _frame(every('a "b"', "c, d", "e\nf")), {}, "t.csv"),
    "Windows-1252": (lambda: _frame(every("O’Neil", "Köln", "€")), {}, "windows.csv"),
    "UTF-16": (lambda: _frame(every("Köln", "Ulm")), {}, "marked.csv"),
    "packed": (lambda: _frame(every("u", "v", None)), {}, "t.csv.gz"),
    "an index": (lambda: pd.concat([pd.Series(K * 5 % N, name="Unnamed: 0"), _frame(X)], axis=1),
                 {}, "t.csv"),
    "Parquet categories": (lambda: _frame(pd.Categorical(every(1, 2, 5))), {}, "t.parquet"),
    "Feather": (lambda: _frame(pd.array(every(1, None, 3), "Int64")), {}, "t.feather"),
    "JSON lines": (lambda: _frame(every(["a"], ["b"], [])), {}, "t.jsonl"),
    "JSON records": (lambda: _frame(every(True, False, None)), {}, "t.json"),
    "ordered categories": (
        lambda: _frame(pd.Categorical(every("low", "high"), ["low", "high"], ordered=True)),
        {},
        "",
    ),
    "local time": (lambda: _frame(DAYS.dt.tz_localize("Europe/Berlin")), {}, ""),
    "UTC": (lambda: _frame(DAYS.dt.tz_localize("UTC")), {}, ""),
    "plain dates": (lambda: _frame(DAYS), {}, ""),
    "durations": (lambda: _frame(pd.to_timedelta(every(90, None, 3600), unit="s")), {}, ""),
    "nullable": (lambda: _frame(pd.array(every(True, None, False), "boolean")), {}, ""),
    "whole numbers of 60 bits": (lambda: _frame(2**60 + K * 5 % N), {}, ""),
    "tiny numbers": (lambda: _frame(X * 1e-46), {}, ""),
    "a Julian date": (lambda: _frame(2459000.5 + X), {}, ""),
    "an array": (lambda: np.stack([X, K % 3, np.where(K == 3, np.nan, K)], axis=1), {}, ""),
    "an array of text": (lambda: np.array([every("u", "v"), every("1", "2.5", "7")]).T, {}, ""),
}  # fmt: skip
_WRITERS: dict[str, Callable[[pd.DataFrame, Path], None]] = {
    "t.tsv": lambda frame, path: _text(frame, path, sep="\t"),
    "semicolons.csv": lambda frame, path: _text(frame, path, sep=";", decimal=","),
    "windows.csv": lambda frame, path: _text(frame, path, encoding="cp1252"),
    "marked.csv": lambda frame, path: _text(frame, path, encoding="utf-16"),
    "t.parquet": lambda frame, path: frame.to_parquet(path),
    "t.feather": lambda frame, path: frame.to_feather(path),
    "t.jsonl": lambda frame, path: frame.to_json(path, orient="records", lines=True),
    "t.json": lambda frame, path: frame.to_json(path, orient="records"),
}


def _placed(data: Any, name: str, folder: Path) -> Any:
    """Return data in memory, or the path of a file with them."""
    if not name:
        return data
    folder.mkdir(exist_ok=True)
    _WRITERS.get(name, _text)(data, folder / name)
    return folder / name


def source(name: str, folder: Path) -> Any:
    """Return a table of `TABLES` as the source of a study."""
    make, options, file = TABLES[name]
    data = _placed(make(), file, folder / "all")
    if file:
        given = {"name": "table", "path": str(data), "target": "y", **options}
        return source_of(DatasetSpec.model_validate(given))
    if isinstance(data, np.ndarray):
        return source_in_memory(data, X, options)
    return source_in_memory(data, None, {"target": "y", **options})


def few(name: str, folder: Path) -> Any:
    """Return five of its rows without the target, in the form of the table."""
    make, _, file = TABLES[name]
    data = make()
    rows = data[3:8] if isinstance(data, np.ndarray) else data.drop(columns="y")[3:8]
    if file:
        rows = rows.reset_index(drop=True)
    return _placed(rows, file, folder / "few")


def digest(inputs: Any) -> str:
    """Return the SHA-256 of inputs, float32 [n, d]."""
    found = np.ascontiguousarray(inputs, np.float32)
    return hashlib.sha256(repr(found.shape).encode() + found.tobytes()).hexdigest()[:16]


with ZipFile(FOLDER / "copies.zip") as stored:
    STORED: dict[str, dict[str, Any]] = json.loads(stored.read("tables.json"))
#: What the present version reads otherwise.
REFUSED = {
    "offset text": {"read-otherwise"},
    "local time": {"read-otherwise"},
    "whole numbers of 60 bits": {"read-otherwise", "whole-numbers-that-merge"},
}


def _loaded(name: str, folder: Path) -> Any:
    """Return the training inputs of a study's own copy of its data."""
    with ZipFile(FOLDER / "copies.zip") as archive:
        archive.extractall(folder, [n for n in archive.namelist() if n.startswith(f"{name}/")])
    spec = DatasetSpec.model_validate_json((folder / name / "spec.json").read_text())
    return stored_source(spec, base=folder / name).arrays(seed=0).x_train


#: What a column was stored with where the file has no key.
DEFAULTS = {
    "fill": 0.0, "indicator": False, "categories": [], "part": "", "order": "year", "zone": None,
    "shift": 0.0, "unit": 1.0, "low": None, "high": None, "words": [], "base": 0,
}  # fmt: skip


@pytest.mark.parametrize("door", ["predict", "resume"])
@pytest.mark.parametrize("name", TABLES)
def test_what_was_stored_of_a_table_gives_the_same_inputs(
    name: str, door: str, tmp_path: Path
) -> None:
    stored = STORED[name]

    def inputs() -> Any:
        if door == "resume":
            return _loaded(name, tmp_path)
        text = json.dumps(stored | {"columns": [DEFAULTS | one for one in stored["columns"]]})
        preparation = Preparation.from_json(text)
        return features_of(few(name, tmp_path), preparation).inputs

    if codes := REFUSED.get(name):
        with pytest.raises(UserError, match=r"0\.1\.0") as caught:
            inputs()
        assert caught.value.code in codes
        return
    assert digest(inputs()) == stored["few" if door == "predict" else "train"]
