"""Text with half of a surrogate pair, and JSON with a key twice, are refused by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from messages import refused

from nas_evidence.data.reading import read_frame
from nas_evidence.data.source import source_in_memory
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.toml import parse_study

HALF = "\ud83d!"
TEXTS = pd.Series([HALF, "b"] * 30, dtype=object)
FRAME = pd.DataFrame({"a": np.arange(60.0), "y": [0, 1] * 30})


@pytest.mark.parametrize(
    ("where", "data", "y"),
    [
        ("column 'c'", FRAME.assign(c=TEXTS), None),
        ("column 'y'", FRAME.assign(y=TEXTS), None),
        (
            "a column name of data",
            FRAME.set_axis(pd.Index([HALF, "y"], dtype=object), axis=1),
            None,
        ),
        ("column 'c'", {"c": [*TEXTS], "y": [0, 1] * 30}, None),
        ("column 'c'", [{"c": HALF, "y": 0}] * 30, None),
        ("y_train of data", FRAME[["a"]].to_numpy(), TEXTS.to_numpy()),
    ],
    ids=["cells", "classes", "names", "columns", "rows", "y"],
)
def test_half_of_a_character_is_refused_with_its_place(where: str, data: Any, y: Any) -> None:
    with refused("half-of-a-character") as caught:
        source_in_memory(data, y, {"target": "y"} if y is None else {})
    assert str(caught.value).startswith(rf"{where} has the text '\ud83d!'")


@pytest.mark.parametrize("ending", [".json", ".jsonl"])
def test_json_that_no_table_can_hold_is_refused(ending: str, tmp_path: Path) -> None:
    file, line = tmp_path / f"t{ending}", "line 2: " * (ending == ".jsonl")
    for row, says in (
        (r'{"x": "\ud83d!", "y": 2}', "is half of a character"),
        ('{"x": 1, "x": 3, "y": 2}', f"{line}an object has the key 'x' twice; rename or remove"),
    ):
        rows = ['{"x": 1, "y": 2}', row]
        file.write_text("\n".join(rows) if line else f"[{','.join(rows)}]")
        with pytest.raises(UserError, match=says):
            read_frame(file)


def test_a_name_that_is_not_utf8_is_called_so() -> None:
    with pytest.raises(UserError, match="is not UTF-8, which a study file cannot hold; rename it"):
        parse_study(
            '[dataset]\nname = "table"\npath = "b.csv"\n', "b.csv", ["dataset.path=b\udcff"]
        )
