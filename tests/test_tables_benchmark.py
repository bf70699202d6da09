"""The committed results on tables: every set and method, and what the page says of them."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tables as script


def test_the_page_says_of_tuned_boosting_what_its_results_give() -> None:
    text = " ".join(script.PAGE.read_text(encoding="utf-8").split())
    runs = json.loads(script.ON_UNSEEN.read_text(encoding="utf-8"))["runs"]
    assert {run["data"] for run in runs} == {*script.UNSEEN}
    k, n = len(script.verdict(runs)), len(script.UNSEEN)
    low, high = (f"{100 * end:.0f}" for end in script.share_interval(k, n))
    assert (
        f"First or level on **{k} of {n}** (90 % interval of the share {low} to {high} %)" in text
    )
    seen = json.loads(script.RIVALS.read_text(encoding="utf-8"))["runs"]
    names = {run["data"] for run in seen}
    said = f"On {len(script.near_first(seen))} of the {len(names)} tables the ensemble of three is"
    assert said in text


def test_every_set_was_measured_with_every_method_on_the_same_splits() -> None:
    runs = json.loads(script.RESULTS.read_text(encoding="utf-8"))["runs"]
    for name in script.CLASSES + script.REAL:
        by_method: dict[str, set[tuple[int, int, int]]] = {}
        for run in runs:
            if run["data"] == name:
                place = (run["split"], run["n_train"], run["n_test"])
                by_method.setdefault(run["method"], set()).add(place)
        linear = "LogisticRegression" if name in script.CLASSES else "Ridge"
        assert set(by_method) == {"nas-evidence", "HistGradientBoosting", linear}, name
        assert len({frozenset(places) for places in by_method.values()}) == 1, name
        assert len(by_method["nas-evidence"]) >= 3, name


def test_a_split_has_no_row_twice_and_keeps_the_shares_of_the_classes() -> None:
    frame = pd.DataFrame({"x0": np.arange(4000.0), "target": ["a"] * 1000 + ["b"] * 3000})
    train, test = script.split(frame, seed=0)
    assert (len(train), len(test)) == (script.MOST_TRAIN, script.MOST_TEST)
    assert not set(train["x0"]) & set(test["x0"])
    assert (train["target"] == "a").mean() == pytest.approx(0.25)


def test_a_measurement_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def measured(
        train: pd.DataFrame, test: pd.DataFrame, seed: int, n_trials: int
    ) -> dict[str, float]:
        calls.append(seed)
        return {"rmse": 1.0, "nll": 2.0, "coverage": 0.9}

    frame = pd.DataFrame({"x0": np.arange(50.0), "target": np.arange(50.0) / 3})
    monkeypatch.setattr(script, "read", lambda folder, name: frame)
    monkeypatch.setattr(script, "methods", lambda *, labels: {"Ridge": measured})
    to = tmp_path / "tables.json"
    script.measure(tmp_path, ["kin8nm"], 2, 4, to)
    script.measure(tmp_path, ["kin8nm"], 3, 4, to)
    assert calls == [0, 1, 2]
    runs = json.loads(to.read_text(encoding="utf-8"))["runs"]
    assert "| kin8nm | 40 / 10 | 3 |  |  | 1.000 ± 0.000 |" in script.of_defaults(runs)
    others = ({**one, "method": name, "rmse": rmse} for one in runs for name, rmse in
              (("nas-evidence", 0.5), ("HistGradientBoosting", 0.8)))  # fmt: skip
    line = "| kin8nm | 40 / 10 | 3 | 0.500 ± 0.000 | 0.800 ± 0.000 | 1.000 ± 0.000 |"
    assert line in script.of_defaults([*runs, *others])
    with pytest.raises(SystemExit, match="n_trials"):
        script.measure(tmp_path, ["kin8nm"], 3, 8, to)


def test_no_cell_of_the_committed_table_beside_defaults_is_empty() -> None:
    runs = json.loads(script.RESULTS.read_text(encoding="utf-8"))["runs"]
    lines = script.of_defaults(runs).splitlines()[2:]
    assert len(lines) == 10
    assert all(cell.strip() for line in lines for cell in line.strip("|").split("|"))
