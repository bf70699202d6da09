"""The runner of benchmarks, and the comparison on tables: list, splits, cells, rule."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import run
import tables as script
from fresh_tables import ASIDE, FRESH

FRAME = pd.DataFrame({"x0": np.arange(500.0), "target": np.arange(500.0) / 3})
OURS = [*script.OURS]


@pytest.fixture(autouse=True)
def _one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "read", lambda name: FRAME)


def at(model: str, data: str = "ais") -> run.Row:
    return {"data": data, "rows": "300", "split": 0, "model": model}


def measured(models: Sequence[str], to: Path) -> list[str]:
    return run.measure(script.CASE, [at(model) for model in models], run.Given(to=to))


def normal(cell: run.Row, train: pd.DataFrame, test: pd.DataFrame, given: run.Given) -> Any:
    """Stand for a rival whose losses are 1 and 3 nats in turn."""
    losses = np.where(np.arange(len(test)) % 2, 3.0, 1.0)
    return ({"rmse": 1.0, "cpu_seconds": 2.0}, losses), {"depth": 3}


def searched(train: pd.DataFrame, test: pd.DataFrame, seed: int, n_trials: int) -> Any:
    """Stand for a search whose networks are all the same."""
    losses = np.full(len(test), 1.5)
    return {name: ({"rmse": 1.0, "cpu_seconds": 9.0}, losses) for name in OURS}


def test_rows_with_new_measures_widen_the_file_and_nested_ones_are_json(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    run.append(file, [{"cell": "a", "seconds": 1 / 3}])
    run.append(file, [{"cell": "b", "parts": {"x": 1.5}}])
    values = [[*row.values()] for row in run.stored(file)]
    assert values == [["a", "0.333333", ""], ["b", "", '{"x": 1.5}']]


def test_a_run_measures_so_many_cells_and_no_key_that_a_case_lacks(tmp_path: Path) -> None:
    keys = ("data", "seed")
    case = run.Case(
        keys, run.cells_of(keys, "ab", (0, 1)),
        lambda cell, given: {"loss": 1.0}, lambda cell: f"{cell['data']}.csv", packages=(),
    )  # fmt: skip
    assert run.measure(case, case.cells(), run.Given(to=tmp_path), limit=3) == []
    assert [len(run.stored(tmp_path / f"{name}.csv")) for name in "ab"] == [2, 1]
    assert [cell["data"] for cell in run._chosen(case, ["seed=1"])] == ["a", "b"]
    with pytest.raises(SystemExit, match="not set"):
        run._chosen(case, ["set=a"])


@pytest.mark.slow
@pytest.mark.parametrize("name", run.MODULES)
def test_each_cell_of_a_case_stands_once(name: str) -> None:
    case = run.case_of(name)
    cells = [case.key(cell) for cell in case.cells()]
    assert len(cells) == len(set(cells)) > 0


def test_a_split_has_no_row_twice_and_keeps_the_shares_of_the_classes() -> None:
    frame = pd.DataFrame({"x0": np.arange(4000.0), "target": ["a"] * 1000 + ["b"] * 3000})
    train, test = script.split(frame, 0, 1000)
    assert (len(train), len(test)) == (1000, script.MOST_TEST)
    assert not set(train["x0"]) & set(test["x0"])
    assert (train["target"] == "a").mean() == pytest.approx(0.25)


def test_the_fresh_tables_are_twenty_and_in_no_other_list() -> None:
    assert len(FRESH) == 20
    assert sum(own.labels for own in FRESH.values()) == 10
    assert all(150 <= own.rows <= 5000 for own in FRESH.values())
    others = {of[:2] for of in script.UNSEEN.values()}
    assert not others & {(own.package, own.item) for own in FRESH.values()}
    names = {item.lower() for _, item in others} | {name.lower() for name in ASIDE}
    assert not names & {text.lower() for name, own in FRESH.items() for text in (name, own.item)}


def test_a_run_goes_on_where_it_stopped_and_one_search_gives_both_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "of_rival", normal)
    monkeypatch.setattr(script, "searched", searched)
    measured(["LightGBM", OURS[0]], tmp_path)
    file = tmp_path / script.FILE
    before = file.read_bytes()
    measured(["LightGBM", *OURS], tmp_path)
    assert file.read_bytes() == before
    rows = run.stored(file)
    assert {row["model"] for row in rows} == {"LightGBM", *OURS}
    assert [float(row["log_loss"]) for row in rows] == [2.0, 1.5, 1.5]
    assert json.loads(rows[0]["tuned"]) == {"depth": 3}
    kept = script.losses_of(tmp_path / script.LOSSES, "300", "LightGBM")
    assert kept["ais", 0].tolist() == [1.0, 3.0] * 100


def test_a_rival_that_fails_leaves_its_cell_empty_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(name: str, *given: Any) -> Any:
        if name == "CatBoost":
            raise ValueError("no memory")
        return np.zeros(200), 1.0, {}

    monkeypatch.setattr(script, "by_columns", fit)
    failed = measured(["CatBoost", "stacked", "linear"], tmp_path)
    assert [row["model"] for row in run.stored(tmp_path / script.FILE)] == ["linear"]
    assert "ValueError: no memory" in failed[0]
    assert "stacked: LookupError: waits for" in failed[1]


def test_networks_see_no_missing_cell_and_no_new_category() -> None:
    train = pd.DataFrame(
        {"a": [1.0, np.nan, 3.0, 8.0], "b": ["u", "v", None, "u"], "c": [1, 2, 3, 4]}
    )
    test = pd.DataFrame({"a": [np.nan], "b": ["w"], "c": [np.nan]})
    x, new = script.mixed(train, test)
    assert list(x) == list(new) == ["a", "a is missing", "b", "c"]
    assert x["a"].tolist() == [1.0, 3.0, 3.0, 8.0]
    assert x["a is missing"].tolist() == [0.0, 1.0, 0.0, 0.0]
    assert x["b"].tolist() == ["u", "v", "missing", "u"]
    assert new.iloc[0].tolist() == [3.0, 1.0, "missing", 2.5]
    assert x["b"].dtype == new["b"].dtype == pd.CategoricalDtype(["u", "v", "missing"])


@pytest.mark.parametrize("labels", [True, False])
def test_the_folds_of_the_networks_are_of_one_size_and_share_no_row(labels: bool) -> None:
    folds = script.folds_of(np.arange(214) % 3, labels=labels)
    assert folds.shape == (5, 42)
    assert len(np.unique(folds)) == folds.size


def test_the_spread_of_networks_is_that_of_rows_on_which_each_was_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Off:
        """Five networks, the k-th of which is k standard deviations too high."""

        def fit(self, x: Any, y: np.ndarray, val_idxs: np.ndarray) -> None:
            assert abs(y.mean()) < 1e-6
            self.y = np.asarray(y)

        def predict_ensemble(self, x: Any) -> np.ndarray:
            return self.y + np.arange(5.0)[:, None]

        def predict(self, x: Any) -> np.ndarray:
            return np.zeros(len(x))

    monkeypatch.setattr(script, "estimator", lambda *given, **more: Off())
    at, width, _ = script.by_networks("TabM-D", FRAME, FRAME, 0)
    y = FRAME["target"].to_numpy()
    assert at == pytest.approx(y.mean())
    assert width == pytest.approx(y.std() * (np.arange(5) ** 2).mean() ** 0.5, rel=1e-5)


def _kept(folder: Path, model: str, losses: np.ndarray, data: str = "ais") -> None:
    script.keep(folder, at(model, data), losses)


def test_a_table_counts_where_no_rival_is_lower_beyond_its_error(tmp_path: Path) -> None:
    own, noise = np.full(400, 1.0), np.where(np.arange(400) % 2, 1.0, -1.0)
    _kept(tmp_path, OURS[0], own)
    for rival in script.RIVALS[1:]:
        _kept(tmp_path, rival, own + 0.1)

    def level() -> dict[str, bool]:
        return script.first_or_level(["ais", "bdims"], "300", OURS[0], folder=tmp_path)

    assert level() == {}
    _kept(tmp_path, script.RIVALS[0], own - 0.09 + noise)  # an error of 0.05
    assert level() == {"ais": True}
    _kept(tmp_path, script.RIVALS[0], own - 0.11 + noise)
    assert level() == {"ais": False}


def test_the_mean_of_two_splits_has_the_error_of_both() -> None:
    one, other = np.array([1.0, 3.0, 1.0, 3.0]), np.array([2.0, 2.0, 4.0, 4.0])
    zero = np.zeros(4)
    own = {("a", 0): zero, ("a", 1): zero, ("b", 0): zero}
    found = script.difference({("a", 0): one, ("a", 1): other}, own, "a")
    errors = [part.std(ddof=1) / 2 for part in (one, other)]
    assert found == pytest.approx((2.5, (errors[0] ** 2 + errors[1] ** 2) ** 0.5 / 2))
    assert script.difference({("a", 0): one}, own, "b") is None


def test_each_committed_cell_is_planned_stands_once_and_has_the_losses_of_its_rows() -> None:
    key = script.CASE.key
    cells = [key(row) for row in run.stored(run.RESULTS / script.FILE)]
    assert len(cells) == len(set(cells)) > 0
    assert set(cells) <= {key(cell) for cell in script.cells()}
    folder = run.RESULTS / script.LOSSES
    for data, rows, split, model in cells:
        assert (data, int(split)) in script.losses_of(folder, rows, model)
