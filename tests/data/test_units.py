"""Groups and times: what no division of the data separates, and what is refused."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lone_trials import mlp_assignment
from messages import refused

from nas_evidence.api.request import asked_for, of_source
from nas_evidence.api.shared_options import DataOptions
from nas_evidence.data import ArrayData, load
from nas_evidence.data.digest import data_digest
from nas_evidence.data.source import source_in_memory
from nas_evidence.data.units import Units, units_of
from nas_evidence.scores.folds import all_folds
from nas_evidence.spec.study import DatasetSpec, StudySpec
from nas_evidence.training.parts import order_of_data

N_PARTS = {"two_fold": 2, "heldout_10": 2, "five_fold": 5, "ten_fold": 10}


def visits(n: int = 120) -> pd.DataFrame:
    """Twelve patients, each of whom comes ten times, at days of their own."""
    generator = np.random.default_rng(0)
    size = generator.normal(0, 1, n)
    return pd.DataFrame(
        {
            "size": size,
            "patient": generator.permutation(np.repeat(np.arange(n // 10), 10)),
            "day": pd.Timestamp("2024-01-31") + pd.to_timedelta(generator.permutation(n), "D"),
            "price": size**2 + generator.normal(0, 0.1, n),
        }
    )


def loaded(folder: Path, table: pd.DataFrame | None = None, **keys: Any) -> ArrayData:
    table = visits() if table is None else table
    table.to_csv(folder / "t.csv", index=False)
    path = str(folder / "t.csv")
    return load(DatasetSpec(name="table", path=path, target="price", **keys), seed=1)


def only(score: str) -> list[str]:
    return [f'estimators=["{score}"]', f'objective="{score}"']


@pytest.mark.slow
@given(st.lists(st.integers(0, 30), min_size=1, max_size=200), st.integers(2, 10), st.booleans())
def test_a_division_has_whole_units_and_no_empty_part(
    codes: list[int], n_parts: int, in_time: bool
) -> None:
    units = Units(np.unique(codes, return_inverse=True)[1], in_time)
    n, generator = len(codes), np.random.default_rng(0)
    order = units.ordered(generator.permutation(n), generator.permutation(units.count))
    assert sorted(order) == list(range(n))
    wanted = [n * k // n_parts for k in range(1, n_parts)]
    if units.count < n_parts:
        with refused("too-few-units", units.count, n_parts):
            units.cuts(order, wanted)
        return
    parts = np.split(units.of[order], units.cuts(order, wanted))
    assert all(len(part) for part in parts)
    assert sum(len(set(part)) for part in parts) == units.count
    if in_time:
        assert all(a.max() < b.min() for a, b in pairwise(parts))


def test_units_of_one_row_each_are_cut_where_it_is_wanted() -> None:
    units = Units(np.arange(20))
    assert units.cuts(np.arange(20), [4, 8, 12, 16]) == [4, 8, 12, 16]


@pytest.mark.parametrize("score", N_PARTS)
def test_every_fold_keeps_groups_together(score: str) -> None:
    units = Units(np.repeat(np.arange(12), np.arange(1, 13)))
    order = order_of_data(78, mlp_assignment(), units)
    tasks = all_folds(score, order, units)
    for task in tasks:
        assert not {*units.of[task.trained]} & {*units.of[task.predicted]}
        assert len(task.trained) + len(task.predicted) == 78
    predicted = torch.cat([task.predicted for task in tasks])
    assert len(predicted.unique()) == len(predicted)
    assert score == "heldout_10" or len(predicted) == 78


@pytest.mark.parametrize("score", N_PARTS)
def test_every_block_is_predicted_from_earlier_ones_alone_and_the_first_from_nothing(
    score: str,
) -> None:
    days = np.random.default_rng(0).permutation(np.repeat(np.arange(30), 3))
    units = Units(days, in_time=True)
    tasks = all_folds(score, order_of_data(90, mlp_assignment(), units), units)
    assert len(tasks) == N_PARTS[score] - 1
    for task in tasks:
        assert days[task.trained].max() < days[task.predicted].min()
    first = set(tasks[0].trained.tolist())
    predicted = torch.cat([task.predicted for task in tasks]).tolist()
    assert first | set(predicted) == set(range(90))
    assert not first & set(predicted)


def test_groups_change_the_hash_of_the_data_and_not_their_features(tmp_path: Path) -> None:
    plain, grouped = loaded(tmp_path, drop=["patient"]), loaded(tmp_path, groups="patient")
    np.testing.assert_array_equal(plain.x_train, grouped.x_train)
    assert data_digest(plain) != data_digest(grouped)


def test_the_test_rows_are_whole_groups_and_the_column_is_no_feature(tmp_path: Path) -> None:
    data = loaded(tmp_path, groups="patient", test_fraction=0.25)
    assert (data.n_train, len(data.x_test)) == (90, 30)
    assert "patient" not in {c.name for c in data.meaning.preparation.columns}
    assert data.units.count == 9
    sizes = visits().set_index(visits()["size"].astype(np.float32))["patient"]
    trained, tested = ({*sizes[x[:, 0]]} for x in (data.x_train, data.x_test))
    assert len(trained) == 9
    assert not trained & tested
    assert "groups: 9 in column 'patient', no feature; none is divided" in data.meaning.said


def test_the_test_rows_are_the_latest(tmp_path: Path) -> None:
    data = loaded(tmp_path, time_column="day", test_fraction=0.25, drop=["patient"])
    assert data.meaning.preparation.feature_names == ("size",)
    latest = visits().nlargest(30, "day")["size"].astype(np.float32)
    assert {*data.x_test[:, 0]} == {*latest}


def test_a_subset_of_the_rows_keeps_their_groups(tmp_path: Path) -> None:
    data = loaded(tmp_path, groups="patient", max_train=40)
    sizes = visits().set_index(visits()["size"].astype(np.float32))["patient"]
    patients = np.unique(sizes[data.x_train[:, 0]], return_inverse=True)[1]
    np.testing.assert_array_equal(pd.factorize(data.units.of)[0], pd.factorize(patients)[0])


@pytest.mark.parametrize(
    ("values", "in_order"),
    [
        (["2024-02-01", "2024-01-31", "2024-01-31"], [1, 0, 0]),
        (["1.2.2024", "31.1.2024", "30.1.2024"], [2, 1, 0]),
        ([10.5, 9.0, 100.0], [1, 0, 2]),
        (["10", "9", "100"], [1, 0, 2]),
    ],
)
def test_times_are_dates_or_numbers_in_their_order(values: list[Any], in_order: list[int]) -> None:
    spec = DatasetSpec(name="table", path="t.csv", target="y", time_column="t")
    found = units_of(spec, pd.Series(values), "t.csv")
    assert found.of.tolist() == in_order


@pytest.mark.parametrize(
    ("change", "keys", "says"),
    [
        ({"day": "soon"}, {"time_column": "day"}, "time 'day' of t.csv is 'soon' in row 3; cor"),
        ({"day": None}, {"time_column": "day"}, "time 'day' of t.csv is missing in row 3; correc"),
        ({"patient": None}, {"groups": "patient"}, "group 'patient' of t.csv is missing in row 3"),
        ({}, {"groups": "patients"}, "no column 'patients'; did you mean 'patient'"),
        ({}, {"groups": "patient", "time_column": "day"}, "only one is possible; leave one out"),
        ({}, {"groups": "price"}, r"must differ, but are \['price', 'price'\]"),
    ],
)
def test_groups_and_times_that_cannot_be_used_are_one_sentence(
    change: dict[str, Any], keys: dict[str, Any], says: str, tmp_path: Path
) -> None:
    table = visits().astype({"day": str})
    for column, value in change.items():
        table.loc[3, column] = value
    with pytest.raises(ValueError, match=says):
        loaded(tmp_path, table, **keys)


def test_a_way_of_writing_times_that_is_not_read_is_told_with_those_that_are(
    tmp_path: Path,
) -> None:
    table = visits().assign(day="Jan 27 2024")
    says = "'Jan 27 2024' in row 0; write times as numbers, or as 2024-01-31, 31.1.2024 or 1/31/"
    with pytest.raises(ValueError, match=says):
        loaded(tmp_path, table, time_column="day")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("groups", "overrides", "says"),
    [
        (3, [], r"need at least 5 groups, but the data have 3; .*plan\.folds=2"),
        (3, ["plan.folds=2"], None),
        (
            8,
            ['estimators=["ten_fold"]', 'objective="ten_fold"'],
            "need at least 10 groups, but the data have 8",
        ),
        (12, only("sto_lk"), "sto_lk.*remove them"),
    ],
)
def test_a_study_that_would_divide_a_group_is_refused_before_it_begins(
    groups: int, overrides: list[str], says: str | None, tmp_path: Path
) -> None:
    table = visits().assign(patient=np.arange(120) % groups)
    table.to_csv(tmp_path / "t.csv", index=False)
    options = DataOptions(target="price", groups="patient")
    if says is None:
        assert asked_for(str(tmp_path / "t.csv"), overrides, options).spec.dataset.groups
        return
    with pytest.raises(ValueError, match=says):
        asked_for(str(tmp_path / "t.csv"), overrides, options)


@pytest.mark.parametrize("kind", ["frame", "arrays"])
def test_groups_of_data_in_memory_may_be_an_array(kind: str) -> None:
    table = visits()
    x = table[["size"]] if kind == "frame" else table[["size"]].to_numpy()
    groups = table["patient"]
    source = source_in_memory(x, table["price"].to_numpy(), {"groups": groups})
    asked = of_source(source)
    assert asked.spec.dataset.groups == "groups"
    np.testing.assert_array_equal(pd.factorize(asked.arrays.units.of)[0], pd.factorize(groups)[0])
    with pytest.raises(ValueError, match=r"one value for each of the 120 rows"):
        of_source(source_in_memory(x, table["price"].to_numpy(), {"groups": groups[1:]}))


def test_arrays_of_a_file_name_their_groups(tmp_path: Path) -> None:
    table = visits()
    x, y = table[["size"]].to_numpy(), table["price"].to_numpy()
    np.savez(tmp_path / "a.npz", x=x, y=y, patient=table["patient"].to_numpy())
    spec = DatasetSpec(name="npz", path=str(tmp_path / "a.npz"), groups="patient")
    units = load(spec, seed=0).units
    assert units.count == 12
    with refused("npz-array-per-row", "'ward'", "no such array"):
        load(spec.model_copy(update={"groups": "ward"}), seed=0)


def test_an_array_of_groups_does_not_go_with_a_file(tmp_path: Path) -> None:
    visits().to_csv(tmp_path / "t.csv", index=False)
    options = DataOptions(target="price", groups=visits()["patient"])
    with pytest.raises(ValueError, match="groups"):
        asked_for(str(tmp_path / "t.csv"), (), options)
    with refused("column-given-as-array", "groups"):
        asked_for("digits", (), options)


def test_a_study_of_before_reads_as_it_was_written() -> None:
    spec = DatasetSpec(name="table", path="t.csv", target="y")
    assert not {"groups", "time_column"} & spec.model_dump(exclude_defaults=True).keys()
    assert StudySpec(name="s", dataset=spec, family={"linear": {}}).dataset == spec
