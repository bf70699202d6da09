"""What somebody else wrote into a table never becomes a key, a command or a second line."""

import io
import tomllib

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from messages import refused
from sklearn import datasets
from table_sources import said, study

from nas_evidence.cli.terminal import err
from nas_evidence.data.given import features_of
from nas_evidence.data.leaks import leaks, of_labels, of_real_targets
from nas_evidence.data.proposed import proposed_text
from nas_evidence.data.source import table_source
from nas_evidence.plumbing.foreign_text import csv_cell, on_one_line
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.dataset import DatasetSpec
from nas_evidence.spec.toml import StudyError, parse_study

#: Any characters that a file can hold.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
ATTACK = 'x\nreplicates = 9\n[plan]\nepochs = 1 # "'


def name_of(column: str) -> str:
    """A study's name: the text where a name may have its characters."""
    return column if column.isprintable() and column.strip() else "t"


def keys_of(column: str, target: str, label: str) -> dict[str, object]:
    """The keys of the study that is proposed for a table with these names and label."""
    n = 24
    frame = pd.DataFrame({column: np.linspace(0, 1, n) ** 2, target: [label, "other"] * (n // 2)})
    spec = DatasetSpec(name="table", path="x.csv", target=target, drop=None)
    source = table_source(frame, None, spec, given="x.csv")
    text = proposed_text(source.spec, source.arrays(seed=0), name=name_of(column))
    assert parse_study(text, "x").dataset.target == target
    return tomllib.loads(text)


@pytest.mark.slow
@given(column=TEXT, target=TEXT, label=TEXT)
def test_no_name_and_no_label_changes_what_a_proposed_study_parses_to(
    column: str, target: str, label: str
) -> None:
    if column == target or label in ("other", ""):
        return
    plain = keys_of("column", "target", "label")
    found = keys_of(column, target, label)
    assert found.pop("name") == name_of(column)
    assert found["dataset"].pop("target") == target  # type: ignore[attr-defined]
    for both in (plain, found):
        both.pop("name", None)
        for key in ("target", "content"):
            both["dataset"].pop(key, None)  # type: ignore[attr-defined]
    assert found == plain


def test_a_label_with_a_line_end_sets_no_key() -> None:
    found = keys_of("a", "y", ATTACK)
    assert "replicates" not in found
    assert found["plan"]["epochs"] == "auto"  # type: ignore[index]


@pytest.mark.slow
@given(text=st.text())
def test_text_on_one_line_has_one_line_and_no_control_character(text: str) -> None:
    found = on_one_line(text)
    assert found.isprintable()
    assert len(found.splitlines()) <= 1
    assert text != found or text.isprintable()


def test_the_terminal_gets_no_control_character_of_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    err.print("column '\x1b]0;owned\x07\x1b[2J' is left out")
    assert "\x1b" not in (shown := capsys.readouterr().err)
    assert "\\x1b]0;owned\\x07" in shown


@pytest.mark.parametrize("text", ["=1+1", "+A1", "-A1", "@SUM(A1)", "\t=1", " =cmd|' /C calc'!A0"])
def test_a_spreadsheet_finds_no_formula(text: str) -> None:
    frame = pd.DataFrame({text: [text, "plain"]}).rename(columns=csv_cell).map(csv_cell)
    cells = pd.read_csv(io.StringIO(frame.to_csv(index=False)), keep_default_na=False)
    assert [cells.columns[0], *cells.iloc[:, 0]] == [f"'{text}", f"'{text}", "plain"]


def test_numbers_stay_numbers_in_csv() -> None:
    for value in (-1.5, -3, "-1.5", "+2", None):
        assert csv_cell(value) == value


def test_features_that_tell_the_target_are_found_and_others_are_not() -> None:
    chance = np.random.default_rng(0)
    y = chance.integers(0, 3, 60)
    frame = pd.DataFrame(
        {
            "copy": y,
            "words": np.array(["low", "mid", "high"])[y],
            "finer": y * 2 + (np.arange(60) % 2),
            "noise": chance.normal(size=60),
            "group": chance.integers(0, 4, 60),
            "row": np.arange(60),
            "one": 1,
        }
    )
    found = list(leaks(frame, y.astype(np.int64), of_labels))
    assert found == [(name, "determines the target") for name in ("copy", "words", "finer")]
    real = chance.normal(size=(60, 1))
    frame = pd.DataFrame(
        {"euros": 3 * real[:, 0] - 7, "near": real[:, 0] + chance.normal(size=60)}
    )
    assert list(leaks(frame, real, of_real_targets)) == [("euros", "determines the target")]


def test_a_feature_that_orders_the_target_almost_alone_is_found() -> None:
    chance = np.random.default_rng(0)
    y = (chance.random(5000) < 0.06).astype(np.int64)
    result = np.where(y == 1, chance.uniform(12, 40, 5000).round(2), 45.0)
    result[np.flatnonzero(y)[0]] = 45
    frame = pd.DataFrame(
        {
            "result": result,
            "words": np.where(result < 45, "seen", "not seen"),
            "half": np.where(chance.random(5000) < 0.5, result, 45),
            "noise": chance.normal(size=5000),
        }
    )
    assert [name for name, _ in leaks(frame, y, of_labels)] == ["result", "words"]
    real = chance.normal(size=(200, 1))
    frame = pd.DataFrame(
        {"steep": np.exp(real[:, 0]) + 0.01, "near": real[:, 0] + chance.normal(size=200)}
    )
    assert list(leaks(frame, real, of_real_targets)) == [
        ("steep", "orders the target almost alone (rank correlation 1.0000)")
    ]


def test_each_of_several_real_targets_is_looked_at_alone() -> None:
    chance = np.random.default_rng(1)
    y = chance.normal(size=(80, 2))
    frame = pd.DataFrame(
        {"copy": y[:, 1], "steep": np.exp(y[:, 0]), "sum": y.sum(1), "x": chance.normal(size=80)}
    )
    assert list(leaks(frame, y, of_real_targets)) == [
        ("copy", "determines target 2 of 2"),
        ("steep", "orders target 1 of 2 almost alone (rank correlation 1.0000)"),
    ]
    frame = pd.DataFrame({"x": chance.normal(size=80)})
    constant = np.c_[y[:, 0], np.ones(80)]
    assert list(leaks(frame, constant, of_real_targets)) == []


def test_a_code_that_tells_one_of_several_classes_is_found() -> None:
    chance = np.random.default_rng(2)
    y = chance.integers(0, 3, 300)
    flag = (y == 2).astype(int)
    frame = pd.DataFrame({"flag": flag, "text": np.where(flag, "paid", "due"),
                          "long": flag + chance.random(300)})  # fmt: skip
    what = "tells one class from the others almost alone (AUROC 1.0000)"
    assert list(leaks(frame, y, of_labels)) == [("flag", what), ("text", what)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["iris", "wine", "breast_cancer", "digits", "diabetes"])
def test_no_honest_data_set_is_accused(name: str) -> None:
    data = getattr(datasets, f"load_{name}")()
    classes = data.target.dtype.kind == "i"
    y = data.target if classes else data.target[:, None]
    leak = of_labels if classes else of_real_targets
    assert list(leaks(pd.DataFrame(data.data), y.astype(y.dtype.str[1] + "8"), leak)) == []


def test_a_feature_that_tells_the_target_is_said_but_not_the_number_of_a_sorted_row() -> None:
    frame = pd.DataFrame({"id": np.arange(80), "a": np.arange(80) % 7, "y": np.arange(80) // 40})
    assert "is it known" not in said(frame)
    frame = pd.DataFrame({"a": np.arange(30) ** 2, "b": ["x", "z"] * 15, "y": ["p", "q"] * 15})
    [told] = [
        one for one in study(frame).meaning.said if "column 'b' determines the target" in one
    ]
    assert "drop=b" in told
    assert "determines the target" not in said(frame, drop=["b"])


@pytest.mark.parametrize(
    "text", ["x = " + "[" * 400 + "]" * 400, "x = " + "{a = " * 400 + "1" + "}" * 400]
)
def test_a_deeply_nested_study_file_gets_one_sentence(text: str) -> None:
    with pytest.raises(StudyError) as caught:
        parse_study(text, "s.toml")
    assert all("\n" not in message for message in caught.value.messages)
    assert all(len(message) < 300 for message in caught.value.messages)


def test_of_a_long_label_or_value_the_start_is_shown() -> None:
    frame = pd.DataFrame({"a": np.sin(np.arange(20)), "y": ["x" * 100_000, "short"] * 10})
    assert "x" * 57 + "..." in said(frame)
    assert len(said(frame)) < 1000
    with pytest.raises(StudyError) as caught:
        parse_study(f'name = "s"\n[family.linear]\n[plan]\nepochs = "{"9" * 10_000}"\n', "s")
    assert "999..." in str(caught.value)
    assert len(str(caught.value)) < 500


def test_new_data_of_another_kind_name_their_column() -> None:
    with refused("new-column-not-numbers", "'city'"):
        features_of(pd.DataFrame({"a": [1.0], "city": ["Rome"]}), None)


def test_a_name_that_is_not_utf8_is_called_so() -> None:
    text = '[dataset]\nname = "table"\npath = "b.csv"\n'
    with pytest.raises(UserError, match="is not UTF-8, which a study file cannot hold; rename it"):
        parse_study(text, "b.csv", ["dataset.path=b\udcff"])
