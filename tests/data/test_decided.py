"""What is said of the data: like decisions in one line, and options that do what they say."""

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from table_sources import said, study

from nas_evidence.data.decided import grouped, how_read_of
from nas_evidence.data.said import Said
from nas_evidence.plumbing.seals import seal_object
from nas_evidence.spec.how_read import HowRead
from nas_evidence.storage.kept_how_read import FILE, keep_how_read, read_how_read

N = 120
RNG = np.random.default_rng(0)
X = RNG.normal(size=N)
LABELS = ["a", "b"] * (N // 2)


@pytest.mark.parametrize(
    ("y", "task"), [([0, 1] * (N // 2), "regression"), (list(range(N)), "classification")]
)
def test_the_option_of_the_task_changes_it_or_the_data_say_why_not(
    y: list[int], task: str
) -> None:
    frame = pd.DataFrame({"x": X, "y": y})
    assert study(frame).meaning.said[0].endswith(f"; task={task} to change")
    try:
        assert study(frame, task=task).meaning.said[0].startswith(task)
    except ValueError as error:
        assert "different values in 120 rows are not classes" in str(error)  # noqa: PT017


def test_like_decisions_are_one_line_with_the_names_of_the_columns() -> None:
    x = pd.DataFrame(RNG.normal(size=(N, 20))).add_prefix("x")
    x[[f"x{i}" for i in range(0, 18, 2)]] = 0.0
    told = study(x.assign(y=LABELS)).meaning.said
    assert [one for one in told if "constant" in one] == [
        "9 constant columns are left out: x0, x2, x4, x6, x8, x10, x12, x14, ...; "
        "categorical=COL to keep one"
    ]
    assert not [one for one in told if "one value" in one]


def test_different_decisions_and_few_of_a_kind_stay_apart() -> None:
    text = Said("is left out: it has 9 different texts in 9 rows", "it's", "free text", "...")
    sentences = [
        Said("is left out: it is empty", "a", "empty"),
        text,
        Said("is read as dates: days", "b", "dates", "drop=b to leave it out"),
        Said("rows: 8, all for training"),
    ]
    names = {"a", "b", "it's"}
    assert grouped(sentences, names) == [*map(str, sentences)]
    assert grouped([text] * 4, names)[0].startswith("4 columns of free text are left out: it's, ")


def test_classes_that_differ_in_case_alone_are_said() -> None:
    told = "classes that differ in case or accents alone: 'Cat' and 'cat'"
    assert told in said(pd.DataFrame({"x": X, "y": ["Cat", "cat"] * (N // 2)}))


def test_what_is_kept_of_a_reading_is_what_is_shown(tmp_path: Any) -> None:
    frame = pd.DataFrame({"x": X, "constant": 1.0}).assign(
        dates=pd.date_range("2024-01-01", periods=N).strftime("%Y-%m-%d"),
        words=["unknown" if i % 20 == 0 else str(i % 13) for i in range(N)],
        case=[("Good", "good", "bad")[i % 3] for i in range(N)],
        y=LABELS,
    )
    data = study(frame)
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
    frame = pd.DataFrame({"x": X, "y": [f"${1000 + i:,}" for i in range(N)]})
    assert "column 'y' is read as numbers: '$1,000' is 1000" in study(frame).meaning.said


def test_copies_of_rows_are_counted_but_not_rows_that_are_alike_by_chance() -> None:
    def of(table: pd.DataFrame, **keys: Any) -> list[str]:
        return [one for one in study(table, **keys).meaning.said if "copies" in one]

    frame = pd.DataFrame({"x": X, "c": LABELS})
    frame["y"] = frame["x"] + RNG.normal(size=N)
    doubled = pd.concat([frame, frame[:9]], ignore_index=True)
    [told] = of(doubled)
    assert told.startswith("9 of 129 training rows are copies of an earlier row")
    split = of(doubled, test_fraction=0.3)
    assert re.match(r"\d of 90 training rows are copies of an earlier row", split[0])
    assert re.match(r"\d of 39 test rows are copies of a training row", split[1])
    other = frame.assign(y=frame["y"] + 1)  # other targets of the same features
    alike = pd.DataFrame({"x": [1, 2] * 60, "c": LABELS, "y": ["p", "q"] * 60})
    for sound in (frame, pd.concat([frame, other]), alike):
        assert not of(sound)
    assert not of(doubled.assign(g=[*range(N), *range(9)]), groups="g")
