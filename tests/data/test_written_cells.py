"""Tables as people write them: numbers, dates and words become what is meant, and this is said."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from messages import refused

from nas_evidence.data import load
from nas_evidence.data.cells import READ, how_read, with_numbers_read
from nas_evidence.data.given import features_of
from nas_evidence.data.preparation import inputs_of, prepare
from nas_evidence.data.reading import read_frame
from nas_evidence.data.source import source_in_memory, source_of
from nas_evidence.data.table_columns import OTHER, Preparation
from nas_evidence.data.targets import targets_of
from nas_evidence.spec.study import DatasetSpec


def test_columns_with_integers_for_names_are_found_again() -> None:
    x = np.random.default_rng(0).normal(size=(20, 3))
    frame = pd.DataFrame(x)
    source = source_in_memory(frame.assign(y=x[:, 0]), None, {"target": "y"})
    preparation = source.arrays(seed=0).meaning.preparation
    found = features_of(frame, preparation).inputs
    np.testing.assert_allclose(found, x, rtol=1e-6)
    assert list(frame.columns) == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a;b\n1,5;1.234\n-0,25;12.345\n", {"a": [1.5, -0.25], "b": [1234, 12345]}),
        ("a;b\n1,5;1.5\n2,5;2.125\n", {"a": [1.5, 2.5], "b": [1.5, 2.125]}),
        ("a;b\n1.5;2.125\n2;3\n", {"a": [1.5, 2], "b": [2.125, 3]}),
        ("a;b\n1,234;2\n5,678;3\n", {"a": [1.234, 5.678], "b": [2, 3]}),
        ('a,b\n"1,234",2\n"5,678",3\n', {"a": [1234, 5678], "b": [2, 3]}),
        ('a,b\n"1,5",2.5\n"5,25",3\n', {"a": [1.5, 5.25], "b": [2.5, 3]}),
        ("a\tb\n1,234.5\t12 %\n56\t3%\n", {"a": [1234.5, 56], "b": [12, 3]}),
        ("a;b\n1.234,50 €;x\n12,00 €;y\n", {"a": [1234.5, 12], "b": ["x", "y"]}),
        ("a;b\n1 234,5;'x\n-12,5;y\n", {"a": [1234.5, -12.5], "b": ["'x", "y"]}),
        ("a,b\n$1,x\n($2.50),y\n", {"a": [1, -2.5], "b": ["x", "y"]}),
        ("a,b\n12-34,x\n56-78,y\n", {"a": ["12-34", "56-78"], "b": ["x", "y"]}),
    ],
)
def test_numbers_are_read_as_they_are_written(
    text: str, expected: dict[str, list[Any]], tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    assert read_frame(tmp_path / "t.csv").to_dict("list") == expected


@pytest.mark.parametrize("blank", [" ", "\t", "\u00a0", "\u2009", "\u3000"])
def test_blanks_of_any_script_around_numbers_are_none_of_them(blank: str) -> None:
    cells = pd.Series([f"{blank}{k}.5{blank}" for k in range(20)])
    found = with_numbers_read(pd.DataFrame({"c": cells, "y": cells}))
    preparation, _ = prepare(
        found, drop=(), categorical=(), numeric=(), where="t", written=how_read(found)[1]
    )
    numbers = inputs_of(preparation, found, "t")[:, 0] * preparation.columns[0].unit
    assert numbers.tolist() == [k + 0.5 for k in range(20)]
    new = pd.DataFrame({"c": ["3.5", f"{blank}7.5"], "y": ["1", "2"]})
    assert features_of(new, preparation).inputs[:, 0].tolist() == [3.5, 7.5]


def test_a_table_without_written_numbers_is_left_as_it_is() -> None:
    frame = pd.DataFrame({"b": ["x", "y"], "c": [1, 2], "d": [True, False]})
    found = with_numbers_read(frame)
    pd.testing.assert_frame_equal(found, frame)
    assert READ not in found.attrs


def test_a_word_among_written_numbers_stays_a_word() -> None:
    cells = [f"{i + 1},{i:03}" for i in range(19)]
    found = with_numbers_read(pd.DataFrame({"a": [*cells, "unknown"]}))
    assert found["a"].tolist() == [*(str(1000 * (i + 1) + i) for i in range(19)), "unknown"]


def features(column: Any, new: Any) -> dict[str, list[float]]:
    """Return the features of new cells by name, in the unit of the cells."""
    table = pd.DataFrame({"c": column})
    preparation, _ = prepare(table, drop=(), categorical=(), numeric=(), where="t")
    again = Preparation.from_json(preparation.to_json())
    found = inputs_of(again, pd.DataFrame({"c": new}), "new").astype(np.float64)
    for at, column in enumerate(c for c in again.columns if c.kind == "number"):
        found[:, at] = found[:, at] * column.unit + column.shift
    return dict(zip(again.feature_names, found.T.tolist(), strict=True))


def test_a_date_is_its_days_year_month_weekday_and_hour() -> None:
    dates = pd.date_range("2023-11-05", periods=60, freq="29h")
    found = features(dates, ["2024-02-29 12:00"])  # a Thursday
    days = (pd.Timestamp("2024-02-29 12:00") - pd.Timestamp(0)) / pd.Timedelta(days=1)
    parts = {"days": days, "year": 2024, "month": 2, "weekday": 3, "hour": 12}
    assert found == {f"{part} of c": [pytest.approx(value)] for part, value in parts.items()}


@pytest.mark.parametrize(
    ("column", "new"),
    [
        (["2024-01-31", "2025-03-01"], "2024-02-05"),
        (["31.01.2024", "1.3.2025"], "5.2.2024"),
        (["1/31/2024", "3/1/2025"], "2/5/2024"),
        (["31/01/24", "01/03/25"], "05/02/24"),
        (["01.02.2024", "01.03.2025"], "05.02.2024"),
        (["02/01/2024", "03/01/2025"], "02/05/2024"),
    ],
)
def test_dates_are_read_in_the_order_that_the_training_rows_have(
    column: list[str], new: str
) -> None:
    found = features(column * 10, [new, None, "soon"])
    day = (pd.Timestamp("2024-02-05") - pd.Timestamp(0)).days
    assert found["days of c"][0] == day
    assert found["days of c"][1] == found["days of c"][2]


def test_a_date_that_is_missing_has_an_indicator() -> None:
    found = features([*pd.date_range("2024-01-01", periods=20), None], ["2024-01-02", None])
    assert found["days of c is missing"] == [0, 1]


def test_categories_are_one_up_to_blanks_around_them_and_differ_in_case() -> None:
    found = features(["CO", "CO ", "Co"] * 5, ["CO", " Co", "co"])
    assert found == {"c = CO": [1, 0, 0], "c = Co": [0, 1, 0], f"c = {OTHER}": [0, 0, 1]}


def test_labels_are_never_merged() -> None:
    found = targets_of(["AB", "Ab", "cd", "Ab "] * 4, ["Ab"], task=None, where="y")
    assert found.classes == ("AB", "Ab", "Ab ", "cd")
    assert found.train[:4].tolist() == [0, 1, 3, 2]
    assert found.test.tolist() == [1]
    assert found.said == "classification, 4 classes: AB, Ab, 'Ab ', cd"


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["10", "9", "-1"], ("-1", "9", "10")),
        (["type 10", "type 9"], ("type 9", "type 10")),
        (["b", "a", "B"], ("B", "a", "b")),
        ([10, 9, -1], (-1, 9, 10)),
    ],
)
def test_classes_are_in_the_order_that_people_give_them(
    labels: list[Any], expected: tuple[Any, ...]
) -> None:
    assert targets_of(labels * 4, None, task="classification", where="y").classes == expected


def test_counts_are_real_targets_and_ranks_are_classes() -> None:
    generator = np.random.default_rng(0)

    def task(y: Any) -> bool:
        return bool(targets_of(y, None, task=None, where="y").classes)

    counts = generator.negative_binomial(2, 0.25, 120)
    assert 15 <= len(np.unique(counts)) <= 20
    assert not task(counts)
    assert task(generator.integers(0, 12, 400))
    assert task(generator.integers(3, 9, 60))
    assert task(generator.choice([10, 20, 50, 100], 60))


def learned(text: str, folder: Path, target: str = "y") -> Preparation:
    (folder / "t.csv").write_text(text, encoding="utf-8")
    spec = DatasetSpec(name="table", path="t.csv", target=target)
    source = source_of(spec, base=folder)
    source.write(folder)
    found = source.arrays(seed=0).meaning.preparation
    stored = load(source.spec, seed=0, base=folder).meaning.preparation
    assert found == stored
    return Preparation.from_json(found.to_json())


def rows(cells: list[str], separator: str = ",") -> str:
    lines = [f"{cell}{separator}{i * 37 % 41}.5" for i, cell in enumerate(cells * 10)]
    return "\n".join([f"c{separator}y", *lines])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cells", "new", "expected"),
    [
        (['"1,5"', '"1,234"'], '"1,234"', 1.234),
        (['"1,500"', '"1,234.5"'], '"1,234"', 1234),
        (['"1,5"', '"2.345,6"'], "1.234", 1234),
        (["1.5", "2.25"], '"1,234"', 1234),
        (['"1,5 ct"', '"1,234 ct"'], '"1,234 ct"', 1.234),
        (["1.1 ct", "12.5ct"], "1.5", 1.5),
    ],
)
def test_a_number_is_read_in_new_data_as_in_training(
    cells: list[str], new: str, expected: float, tmp_path: Path
) -> None:
    preparation = learned(rows(cells), tmp_path)
    (tmp_path / "new.csv").write_text(f"c\n{new}\n")
    found = features_of(tmp_path / "new.csv", preparation)
    assert found.inputs + preparation.columns[0].shift == pytest.approx(expected)
    text = pd.DataFrame({"c": [new.strip('"')]})
    assert features_of(text, preparation).inputs.tolist() == found.inputs.tolist()


def test_test_rows_and_true_targets_are_read_as_in_training(tmp_path: Path) -> None:
    amounts = [f'"{i % 7},{i % 10}"' for i in range(30)]
    (tmp_path / "t.csv").write_text("\n".join(["x,y", *(f"{a},{a}" for a in amounts)]))
    (tmp_path / "test.csv").write_text('x,y\n"1,234","5,678"\n')
    spec = DatasetSpec(name="table", path="t.csv", test_path="test.csv", target="y")
    source = source_of(spec, base=tmp_path)
    arrays = source.arrays(seed=0)
    assert arrays.x_test.tolist() == [[np.float32(1.234)]]
    assert arrays.y_test.tolist() == [[5.678]]
    found = features_of(tmp_path / "test.csv", arrays.meaning.preparation, target="y")
    assert found.truth.tolist() == [5.678]


def test_words_for_missing_are_those_of_the_training(tmp_path: Path) -> None:
    preparation = learned(rows(["?", *(f"{i}.5" for i in range(19))]), tmp_path)
    found = features_of(pd.DataFrame({"c": ["?", "? "]}), preparation)
    assert found.inputs.tolist() == [[9.5, 1], [9.5, 1]]
    assert found.doubts == ("column 'c' is empty; the default from training is used",)
    mixed = pd.DataFrame({"c": ["?", "1.5", "unknown"]})
    assert features_of(mixed, preparation).doubts == (
        "column 'c': 1 cell with text ('unknown'), treated as missing",
    )


def test_a_cell_by_another_rule_than_that_of_the_training_is_named(tmp_path: Path) -> None:
    preparation = learned(rows(["1.5", "2.25"]), tmp_path)
    doubts = features_of(pd.DataFrame({"c": ["1,5", "2.0"]}), preparation).doubts
    assert doubts == ("column 'c': 1 cell with text ('1,5'), treated as missing",)


def test_dates_that_cannot_be_read_are_named_once(tmp_path: Path) -> None:
    preparation = learned(rows(["2024-01-31", "2025-03-02T05:00"]), tmp_path)
    doubts = features_of(pd.DataFrame({"c": ["5.2.2024", "2024-02-05"]}), preparation).doubts
    assert doubts == ("column 'c': 1 cell without a date ('5.2.2024'), treated as missing",)


def test_labels_given_for_a_classification_stay_as_they_are() -> None:
    frame, y = pd.DataFrame({"c": ["1,5", "2,25"] * 10}), ["10 %", "5 %"] * 10
    meaning = source_in_memory(frame, y, {"task": "classification"}).arrays(seed=0).meaning
    assert meaning.classes == ("5 %", "10 %")
    found = features_of(frame.assign(target=y), meaning.preparation, target="target")
    assert found.truth.tolist() == y


def test_several_units_of_a_column_are_said_and_one_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1.1 ct,1.1 ct\n2 ct,300 g\n0.5 ct,2 g\n")
    found = read_frame(tmp_path / "t.csv")
    assert found["a"].tolist() == [1.1, 2, 0.5]
    assert found["b"].tolist() == ["1.1 ct", "300 g", "2 g"]
    assert [*map(str, found.attrs[READ])] == [
        "column 'a' is read as numbers: '1.1 ct' is 1.1",
        "column 'b' is not read as numbers, as they have several units: ct, g",
    ]


def test_a_column_under_a_name_of_other_case_is_suggested(tmp_path: Path) -> None:
    preparation = learned(rows(["1.5", "2.5"]), tmp_path)
    with refused("columns-missing", "'c'", "did you mean 'C '"):
        features_of(pd.DataFrame({"C ": [1.0]}), preparation)
