"""What is said of the data: like decisions in one line, and options that do what they say."""

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

from nas_evidence.data.arrays import ArrayData
from nas_evidence.data.decided import grouped, how_read_of
from nas_evidence.data.said import Said
from nas_evidence.data.source import source_in_memory
from nas_evidence.plumbing.seals import seal_object
from nas_evidence.spec.how_read import HowRead
from nas_evidence.storage.kept_how_read import FILE, keep_how_read, read_how_read

N = 120
RNG = np.random.default_rng(0)
TEXTS = [f"text {i}" for i in range(N)]
COLUMNS: dict[str, Any] = {
    "constant": [1.0] * N,
    "constant text": ["one"] * N,
    "row number": list(range(N)),
    "free text": TEXTS,
    "dates": pd.date_range("2024-01-01", periods=N).strftime("%Y-%m-%d"),
    "prices": [f"${1000 + 7 * i % 31:,}" for i in range(N)],
    "words": ["unknown" if i % 20 == 0 else str(i % 13) for i in range(N)],
    "many": [f"town {i % 57}" for i in range(N)],
    "case": [("Good", "good", "bad")[i % 3] for i in range(N)],
    "leak": [("one", "two")[i % 2] for i in range(N)],
}


def read(frame: pd.DataFrame, **options: Any) -> ArrayData:
    return source_in_memory(frame, None, {"target": "y", **options}).arrays(seed=0)


def table(*names: str) -> pd.DataFrame:
    own = {name: COLUMNS[name] for name in names}
    return pd.DataFrame({"x": RNG.normal(size=N), **own, "y": ["a", "b"] * (N // 2)})


@pytest.mark.parametrize("name", COLUMNS)
def test_the_option_of_each_decision_changes_what_it_says(name: str) -> None:
    before = read(table(name))
    offered = [
        (sentence, found)
        for sentence in before.meaning.said
        for found in re.finditer(r"(drop|categorical|numeric)=('[^']*'|\S+)", sentence)
    ]
    assert offered, before.meaning.said
    for sentence, found in offered:
        option, column = found[1], found[2].strip("'")
        after = read(table(name), **{option: [column]})
        assert sentence not in after.meaning.said
        changed = (before.meaning.preparation, after.meaning.preparation)
        assert changed[0] is not None
        assert changed[1] is not None
        assert changed[0].feature_names != changed[1].feature_names


@pytest.mark.parametrize(
    ("y", "task"), [([0, 1] * (N // 2), "regression"), (list(range(N)), "classification")]
)
def test_the_option_of_the_task_changes_it_or_the_data_say_why_not(
    y: list[int], task: str
) -> None:
    frame = table().assign(y=y)
    said = read(frame).meaning.said[0]
    assert said.endswith(f"; task={task} to change")
    try:
        assert read(frame, task=task).meaning.said[0].startswith(task)
    except ValueError as error:
        assert "different values in 120 rows are not classes" in str(error)  # noqa: PT017


def test_like_decisions_are_one_line_with_the_names_of_the_columns() -> None:
    x = pd.DataFrame(RNG.normal(size=(N, 20))).add_prefix("x")
    x[[f"x{i}" for i in range(0, 18, 2)]] = 0.0
    said = read(x.assign(y=["a", "b"] * (N // 2))).meaning.said
    assert [one for one in said if "constant" in one] == [
        "9 constant columns are left out: x0, x2, x4, x6, x8, x10, x12, x14, ...; "
        "categorical=COL to keep one"
    ]
    assert not [one for one in said if "one value" in one]


def test_different_decisions_and_few_of_a_kind_stay_apart() -> None:
    text = Said("is left out: it has 9 different texts in 9 rows", "it's", "free text", "...")
    said = [
        Said("is left out: it is empty", "a", "empty"),
        text,
        Said("is read as dates: days", "b", "dates", "drop=b to leave it out"),
        Said("rows: 8, all for training"),
    ]
    names = {"a", "b", "it's"}
    assert grouped(said, names) == [*map(str, said)]
    assert grouped([text] * 4, names)[0].startswith("4 columns of free text are left out: it's, ")


def test_classes_and_categories_that_differ_in_case_alone_are_said() -> None:
    frame = table("case").assign(y=["Cat", "cat"] * (N // 2))
    said = read(frame).meaning.said
    assert any("column 'case' has categories that differ" in one for one in said)
    assert any(
        "classes that differ in case or accents alone: 'Cat' and 'cat'" in one for one in said
    )


def test_what_is_kept_of_a_reading_is_what_is_shown(tmp_path: Any) -> None:
    data = read(table("constant", "dates", "words", "case"))
    found = how_read_of(data)
    assert found.decided == data.meaning.said
    assert found.listed == {
        "numbers": (2, "x, words"),
        "categories": (1, "case"),
        "dates": (1, "dates"),
        "left out": (1, "constant"),
    }
    keep_how_read(tmp_path, found)
    assert read_how_read(tmp_path) == found
    keep_how_read(tmp_path, HowRead(("other",)))  # of a study that goes on
    assert read_how_read(tmp_path) == found
    path = tmp_path / FILE
    path.write_text(path.read_text().replace("dates", "rates"))
    assert read_how_read(tmp_path) is None
    path.write_text(seal_object('{"decided": 3}'))
    assert read_how_read(tmp_path) is None


def test_the_sentence_of_a_target_offers_no_option_of_features() -> None:
    frame = table().assign(y=[f"${1000 + i:,}" for i in range(N)])
    said = read(frame).meaning.said
    assert "column 'y' is read as numbers: '$1,000' is 1000" in said


def test_copies_of_rows_are_counted_but_not_rows_that_are_alike_by_chance() -> None:
    frame = pd.DataFrame({"x": RNG.normal(size=N), "c": ["a", "b"] * (N // 2)})
    frame["y"] = frame["x"] + RNG.normal(size=N)
    doubled = pd.concat([frame, frame[:9]], ignore_index=True)
    (said,) = [one for one in read(doubled).meaning.said if "copies" in one]
    assert said.startswith("9 of 129 training rows are copies of an earlier row")
    split = [one for one in read(doubled, test_fraction=0.3).meaning.said if "copies" in one]
    assert re.match(r"\d of 90 training rows are copies of an earlier row", split[0])
    assert re.match(r"\d of 39 test rows are copies of a training row", split[1])
    other = frame.assign(y=frame["y"] + 1)  # other targets of the same features
    alike = pd.DataFrame({"x": [1, 2] * 60, "c": ["a", "b"] * 60, "y": ["p", "q"] * 60})
    for sound in (frame, pd.concat([frame, other]), alike):
        assert not [one for one in read(sound).meaning.said if "copies" in one]
    grouped_rows = read(doubled.assign(g=[*range(N), *range(9)]), groups="g").meaning.said
    assert not [one for one in grouped_rows if "copies" in one]
