"""Data in memory have no name: what they are is said in its place."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import TensorDataset

import nas_evidence
from nas_evidence.api.request import of_memory
from nas_evidence.data.as_before import ReadBefore, other_rows, read_as_before
from nas_evidence.spec.how_read import HowRead

X, Y = np.random.default_rng(0).normal(size=(40, 2)), np.arange(40) % 2
FRAME = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": Y})


@pytest.mark.parametrize(
    ("data", "y", "options", "called"),
    [
        (FRAME, None, {"target": "y"}, "a DataFrame"),
        (X, Y, {}, "an array"),
        (torch.tensor(X), Y, {}, "a tensor"),
        (X.tolist(), Y, {}, "a list"),
        (TensorDataset(torch.tensor(X), torch.tensor(Y)), None, {}, "a TensorDataset"),
    ],
)
def test_a_study_of_data_in_memory_is_called_what_they_are(
    data: Any, y: Any, options: Any, called: str
) -> None:
    asked = of_memory(data, y, options, [])
    assert asked.given == called
    assert asked.spec.name == called.split()[1].lower()
    assert HowRead((), n_train=40, given=asked.given).size == f"{called} of 40 rows"


def test_other_rows_in_memory_are_called_what_they_are() -> None:
    asked = of_memory(FRAME, None, {"target": "y"}, [])
    assert asked.arrays is not None
    before = ReadBefore.of(asked.arrays, asked.spec.dataset, "runs/a")
    assert read_as_before(before, other_rows(before, FRAME), seed=0).name == "a DataFrame"


@pytest.mark.slow
def test_no_line_of_a_search_calls_data_in_memory_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    study = nas_evidence.search(
        FRAME, target="y", families="linear", n_trials=1, progress=True,
        settings={"plan.epochs": 2, "estimators": ["diag_ef"], "objective": "diag_ef"},
    )  # fmt: skip
    said = capsys.readouterr().out
    assert "dataframe: 1 trial, 1 worker -> runs/dataframe-" in said
    shown = said + repr(study) + study.report().read_text() + str(study.summary())
    assert "memory" not in shown.lower().replace("memory_bytes", "")
