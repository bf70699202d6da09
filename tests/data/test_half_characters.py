"""Text with half of a surrogate pair, and JSON with a key twice, are refused by name."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from nas_evidence.data.reading import read_frame
from nas_evidence.data.source import source_in_memory
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.toml import parse_study

HALF = "\ud83d!"
TEXTS = [HALF, "b"] * 30
X = np.arange(60.0)
LABELS = [0, 1] * 30


def objects(texts: list[str]) -> pd.Series:
    return pd.Series(texts, dtype=object)


def with_name(name: str) -> pd.DataFrame:
    frame = pd.DataFrame({"a": X, "y": LABELS})
    frame.columns = pd.Index([name, "y"], dtype=object)
    return frame


@pytest.mark.parametrize(
    ("where", "given"),
    [
        (
            "column 'c'",
            lambda: (pd.DataFrame({"c": objects(TEXTS), "y": LABELS}), None, {"target": "y"}),
        ),
        (
            "column 'y'",
            lambda: (pd.DataFrame({"a": X, "y": objects(TEXTS)}), None, {"target": "y"}),
        ),
        ("a column name of data", lambda: (with_name(HALF), None, {"target": "y"})),
        ("the table|column 'c'", lambda: ({"c": TEXTS, "y": LABELS}, None, {"target": "y"})),
        ("the table|column 'c'", lambda: ([{"c": HALF, "y": 0}] * 30, None, {"target": "y"})),
        ("y_train of data", lambda: (X[:, None], np.array(TEXTS, dtype=object), {})),
    ],
    ids=["cells", "classes", "names", "columns", "rows", "y"],
)
def test_half_of_a_character_is_refused_with_its_place(
    where: str, given: Callable[[], tuple[Any, Any, dict[str, Any]]]
) -> None:
    data, y, keys = given()
    with pytest.raises(UserError, match="is half of a character") as caught:
        source_in_memory(data, y, keys)
    assert re.match(
        rf"({where}) has the text '\\ud83d!'", str(caught.value)
    )  # pandas 3 | pandas 2
    assert caught.value.code == "half-of-a-character"


@pytest.mark.parametrize("ending", [".json", ".jsonl"])
def test_half_of_a_character_in_json_is_refused(ending: str, tmp_path: Path) -> None:
    file = tmp_path / f"t{ending}"
    rows = [json.dumps({"c": text}) for text in TEXTS]
    file.write_text("\n".join(rows) if ending == ".jsonl" else f"[{','.join(rows)}]")
    with pytest.raises(UserError, match="is half of a character"):
        read_frame(file)


@pytest.mark.parametrize(
    ("ending", "place"), [(".json", "an object has"), (".jsonl", "line 2: an object has")]
)
def test_a_key_twice_in_json_is_refused(ending: str, place: str, tmp_path: Path) -> None:
    rows = ['{"x": 1, "y": 2}', '{"x": 1, "x": 3, "y": 2}']
    file = tmp_path / f"t{ending}"
    file.write_text("\n".join(rows) if ending == ".jsonl" else f"[{','.join(rows)}]")
    with pytest.raises(UserError, match=f"{place} the key 'x' twice; rename or remove one"):
        read_frame(file)


def test_a_name_that_is_not_utf8_is_called_so() -> None:
    with pytest.raises(UserError, match="is not UTF-8, which a study file cannot hold; rename it"):
        parse_study(
            '[dataset]\nname = "table"\npath = "b.csv"\n', "b.csv", ["dataset.path=b\udcff"]
        )
