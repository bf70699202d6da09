"""The comparison with RealMLP, TabM, boosting and a stack: list, cells, rule."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import leading_networks as script
import numpy as np
import pandas as pd
import positive_targets
import pytest
import tables
from fresh_tables import ASIDE, FRESH

FRAME = pd.DataFrame({"x0": np.arange(500.0), "target": np.arange(500.0) / 3})


@pytest.fixture(autouse=True)
def _one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "read", lambda name: FRAME)


def normal(cell: script.Cell, train: pd.DataFrame, test: pd.DataFrame, tuned: Any) -> Any:
    """Stand for a rival whose losses are 1 and 3 nats in turn."""
    losses = np.where(np.arange(len(test)) % 2, 3.0, 1.0)
    return ({"rmse": 1.0, "coverage": 0.9, "cpu_seconds": 2.0}, losses), {"depth": 3}


def searched(
    train: pd.DataFrame, test: pd.DataFrame, seed: int, n_trials: int, tops: Mapping[str, Any]
) -> dict[str, tables.Found]:
    """Stand for a search whose networks are all the same."""
    losses = np.full(len(test), 1.5)
    return {name: ({"rmse": 1.0, "cpu_seconds": 9.0}, losses) for name in tops}


def test_the_fresh_tables_are_twenty_and_in_no_other_list() -> None:
    assert len(FRESH) == 20
    assert sum(own.labels for own in FRESH.values()) == 10
    assert all(150 <= own.rows <= 5000 for own in FRESH.values())
    others = {of[:2] for of in (*tables.UNSEEN.values(), *positive_targets.FRESH.values())}
    assert not others & {(own.package, own.item) for own in FRESH.values()}
    names = {item.lower() for _, item in others} | {name.lower() for name in ASIDE}
    assert not names & {text.lower() for name, own in FRESH.items() for text in (name, own.item)}


def test_a_run_goes_on_where_it_stopped_and_one_search_gives_both_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "of_rival", normal)
    to = tmp_path / "cells.csv"
    wanted = [
        script.Cell("ais", "300", 0, "LightGBM"),
        script.Cell("ais", "300", 0, script.OURS[0]),
    ]
    script.run(wanted, to, tmp_path / "losses", searched)
    before = to.read_bytes()
    monkeypatch.setattr(script, "of_rival", None)
    script.run(wanted, to, tmp_path / "losses", None)  # type: ignore[arg-type]
    assert to.read_bytes() == before
    rows = script.stored(to)
    assert {row["model"] for row in rows} == {"LightGBM", *script.OURS}
    assert rows[-1]["model"] == script.OURS[0], "a stop before the last row would lose the other"
    assert [float(row["log_loss"]) for row in rows] == [2.0, 1.5, 1.5]
    assert json.loads(rows[0]["tuned"]) == {"depth": 3}
    kept = script.losses_of(tmp_path / "losses", "300", "LightGBM")
    assert kept["ais", 0].tolist() == [1.0, 3.0] * 100


def test_a_rival_that_fails_leaves_its_cell_empty_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def some(cell: script.Cell, *given: Any) -> Any:
        if cell.model == "CatBoost":
            raise ValueError("no memory")
        return normal(cell, *given)

    monkeypatch.setattr(script, "of_rival", some)
    wanted = [script.Cell("ais", "300", 0, name) for name in ("CatBoost", "stacked", "linear")]
    script.run(wanted, tmp_path / "cells.csv", tmp_path, searched)
    assert [row["model"] for row in script.stored(tmp_path / "cells.csv")] == ["linear"]
    said = capsys.readouterr().out
    assert "ValueError: no memory" in said
    assert "waits for HistGradientBoosting, LightGBM, CatBoost" in said


def test_splits_come_before_rows_and_cheap_models_before_dear_ones() -> None:
    found = list(script.cells(["ais"], ("linear", "TabM-D"), ("300", "1000"), 2))
    places = [(cell.split, cell.rows, cell.model) for cell in found]
    assert places[:4] == [
        (0, "300", "linear"), (0, "300", "TabM-D"), (0, "1000", "linear"), (0, "1000", "TabM-D"),
    ]  # fmt: skip
    assert {split for split, *_ in places[4:]} == {1}


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
    script.keep(folder, script.Cell(data, "300", 0, model), losses)


def test_a_table_counts_where_no_rival_is_lower_beyond_its_error(tmp_path: Path) -> None:
    own, noise = np.full(400, 1.0), np.where(np.arange(400) % 2, 1.0, -1.0)
    _kept(tmp_path, script.OURS[0], own)
    for rival in script.RIVALS[1:]:
        _kept(tmp_path, rival, own + 0.1)
    names = ["ais", "bdims"]
    assert script.first_or_level(tmp_path, names, "300", script.OURS[0]) == {}, "one is missing"
    _kept(tmp_path, script.RIVALS[0], own - 0.09 + noise)  # an error of 0.05
    assert script.first_or_level(tmp_path, names, "300", script.OURS[0]) == {"ais": True}
    _kept(tmp_path, script.RIVALS[0], own - 0.11 + noise)
    assert script.first_or_level(tmp_path, names, "300", script.OURS[0]) == {"ais": False}


def test_the_mean_of_two_splits_has_the_error_of_both() -> None:
    one, other = np.array([1.0, 3.0, 1.0, 3.0]), np.array([2.0, 2.0, 4.0, 4.0])
    zero = np.zeros(4)
    own = {("a", 0): zero, ("a", 1): zero, ("b", 0): zero}
    found = script.difference({("a", 0): one, ("a", 1): other}, own, "a")
    errors = [part.std(ddof=1) / 2 for part in (one, other)]
    assert found == pytest.approx((2.5, (errors[0] ** 2 + errors[1] ** 2) ** 0.5 / 2))
    assert script.difference({("a", 0): one}, own, "b") is None


def test_each_committed_cell_is_planned_stands_once_and_has_the_losses_of_its_rows() -> None:
    cells = [script.key(row) for row in script.stored(script.RESULTS)]
    assert len(cells) == len(set(cells)) > 0
    planned = set(script.planned())
    assert set(cells) <= planned
    for cell in cells:
        assert (cell.data, cell.split) in script.losses_of(script.LOSSES, cell.rows, cell.model)
