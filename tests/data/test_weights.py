"""Weights are frequencies: weight 2 is the row twice in the same fold, everywhere."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from lone_trials import mlp_assignment, run, trained_part
from messages import refused

from nas_evidence.api.request import of_source
from nas_evidence.data import ArrayData, load
from nas_evidence.data.digest import data_digest
from nas_evidence.data.source import source_in_memory
from nas_evidence.data.tensors import to_tensors
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.scores.folds import all_folds, log_predictive
from nas_evidence.spec.study import DatasetSpec
from nas_evidence.training.parts import order_of_data, part_of

N = 40
WEIGHTS = np.random.default_rng(1).integers(0, 4, N)


def cells() -> pd.DataFrame:
    generator = np.random.default_rng(0)
    x = generator.normal(0, 1, N)
    name = generator.permutation(N)
    y = np.where(x + generator.normal(0, 0.5, N) > 0, "b", "a")
    return pd.DataFrame(
        {"x": x, "z": generator.normal(0, 1, N), "y": y, "name": name, "n": WEIGHTS}
    )


def loaded(folder: Path, table: pd.DataFrame, **keys: Any) -> ArrayData:
    table.to_csv(folder / "t.csv", index=False)
    keys = {"target": "y", "drop": ["name"]} | keys
    return load(DatasetSpec(name="table", path=str(folder / "t.csv"), **keys), seed=1)


def twice(table: pd.DataFrame) -> pd.DataFrame:
    return table.loc[table.index.repeat(table["n"])].drop(columns="n")


def test_weights_are_the_rows_that_often_in_the_same_fold(tmp_path: Path) -> None:
    """Against a table that has the copies, kept together by the name of the row."""
    weighted = loaded(tmp_path, cells(), weights="n")
    copied = loaded(tmp_path, twice(cells()), groups="name", drop=[])
    np.testing.assert_array_equal(weighted.x_train, copied.x_train)
    np.testing.assert_array_equal(weighted.y_train, copied.y_train)
    np.testing.assert_array_equal(weighted.mean, copied.mean)
    np.testing.assert_array_equal(weighted.units.of, copied.units.of)
    assert data_digest(weighted) == data_digest(copied)


@pytest.mark.slow
def test_loss_and_every_score_are_those_of_the_copies(tmp_path: Path) -> None:
    names = ("kfac_ggn", "full_ggn", "diag_ef", "five_fold", "conditional_evidence")
    given = mlp_assignment(*names, epochs=3, folds=5)
    records = [
        run(given, to_tensors(loaded(tmp_path, table, **keys), "cpu"), tmp_path / str(k))
        for k, (table, keys) in enumerate(
            [
                (cells(), {"weights": "n"}),
                (twice(cells()), {"groups": "name", "drop": []}),
                (cells().drop(columns="n"), {}),
            ]
        )
    ]
    for name in (*names, "five_fold_accuracy", "train_nll_per_datum"):
        weighted, copied, plain = (record.final_estimate(name) for record in records)
        assert weighted.value == copied.value, name
        assert weighted.value != plain.value, name


def test_the_density_of_a_fold_counts_each_row_as_often_as_its_weight(tmp_path: Path) -> None:
    """By hand: distinct rows predicted once, their log likelihoods times their weights."""
    data = to_tensors(loaded(tmp_path, cells(), weights="n"), "cpu")
    given = mlp_assignment(epochs=1)
    order = order_of_data(len(data.x_train), given, data.units)
    task = all_folds("two_fold", order, data.units)[0]
    part = part_of(task.trained, data, given, task.purpose)
    alone = trained_part(part)
    x, y = data.x_train[task.predicted], data.y_train[task.predicted]
    model = alone.model.eval()
    found = log_predictive(model(x).detach(), y, Categorical()).as_trained
    distinct, first, counts = np.unique(x.numpy(), axis=0, return_index=True, return_counts=True)
    logs = model(torch.from_numpy(distinct)).detach().log_softmax(1)
    by_hand = sum(
        count * float(logs[k, y[at]])
        for k, (at, count) in enumerate(zip(first, counts, strict=True))
    )
    assert found == pytest.approx(by_hand, rel=1e-5)
    whole = dict(zip(cells()["x"].astype(np.float32), WEIGHTS, strict=True))
    raw = loaded(tmp_path, cells(), weights="n").x_train[task.predicted.numpy()]
    values, n = np.unique(raw[:, 0], return_counts=True)
    assert all(whole[value] == count for value, count in zip(values, n, strict=True))


def test_weights_of_one_change_nothing(tmp_path: Path) -> None:
    plain = loaded(tmp_path, cells().drop(columns="n"))
    ones = loaded(tmp_path, cells().assign(n=1), weights="n")
    assert data_digest(plain) == data_digest(ones)
    assert ones.units is None


def test_test_rows_are_weighed_too(tmp_path: Path) -> None:
    data = loaded(tmp_path, cells(), weights="n", test_fraction=0.25)
    assert len(data.x_train) + len(data.x_test) == WEIGHTS.sum()
    assert not {*data.x_train[:, 0]} & {*data.x_test[:, 0]}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (-1, r"whole numbers from 0 on, but 'n' of t\.csv is -1(\.0)? in row 3"),
        (None, r"whole numbers from 0 on, but 'n' of t\.csv is nan in row 3"),
        (0.5, r"whole numbers from 0 on, but 'n' of t\.csv is 0\.5 in row 3; .*round"),
        ("many", r"is many in row 3"),
        (10_000_000, r"add up to 1 to 1,000,000 rows, but add up to 10,0"),
    ],
)
def test_weights_that_are_no_frequencies_are_refused_with_the_row(
    value: object, says: str, tmp_path: Path
) -> None:
    table = cells().astype({"n": object})
    table.loc[3, "n"] = value
    with pytest.raises(ValueError, match=says):
        loaded(tmp_path, table, weights="n")


def test_weights_that_are_all_0_are_refused(tmp_path: Path) -> None:
    with refused("weights-sum", "row 0 and all others"):
        loaded(tmp_path, cells().assign(n=0), weights="n")


@pytest.mark.parametrize("kind", ["frame", "arrays"])
def test_weights_of_data_in_memory_may_be_an_array(kind: str) -> None:
    table = cells().rename(columns={"z": "weights"})
    x = table[["x", "weights"]] if kind == "frame" else table[["x", "weights"]].to_numpy()
    asked = of_source(source_in_memory(x, table["y"], {"weights": WEIGHTS}))
    assert asked.arrays.n_train == WEIGHTS.sum()
    assert asked.arrays.input_shape == (2,)
