"""The comparison on tables: how they are split, and a run that goes on where it stopped."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tables as script


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
    with pytest.raises(SystemExit, match="n_trials"):
        script.measure(tmp_path, ["kin8nm"], 3, 8, to)
