"""Data are read once and tables are read once: one value goes from the first step to the last."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from messages import refused

import nas_evidence
from nas_evidence.cli.report import export, report
from nas_evidence.cli.search import search
from nas_evidence.data import assembly, digest, reading, source
from nas_evidence.spec import toml as codec
from nas_evidence.storage import tables as store
from nas_evidence.storage.tables import TABLES

#: From the file to the arrays: what is done to a table of the user's own.
STEPS = {
    "read_frame": reading.read_frame,
    "content_of": source.content_of,
    "targets_of": assembly.targets_of,
    "test_rows": assembly.test_rows,
    "prepare": assembly.prepare,
    "assembled": assembly.assembled,
    "data_digest": digest.data_digest,
    "parse_study": codec.parse_study,
}
QUICK = ["plan.epochs=2", 'estimators=["diag_ef"]', "objective=diag_ef"]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each step was taken, wherever it was imported to."""
    counted: Counter[str] = Counter()

    def counting(name: str, step: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            counted[name] += 1
            return step(*given, **options)

        return call

    for name, step in STEPS.items():
        replaced = counting(name, step)
        for module in [m for n, m in sys.modules.items() if n.startswith("nas_evidence")]:
            if vars(module).get(name) is step:
                monkeypatch.setattr(module, name, replaced)
    load = store._load
    monkeypatch.setattr(
        store, "_load", lambda path: counted.update([path.parent.name]) or load(path)
    )
    return counted


@pytest.fixture
def wave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(60, 2))
    table = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": np.sin(x[:, 0])})
    table.to_csv(tmp_path / "wave.csv", index=False)
    monkeypatch.chdir(tmp_path)
    return "wave.csv"


@pytest.mark.slow
def test_a_search_takes_each_step_from_the_file_to_the_arrays_once(
    wave: str, calls: Counter[str]
) -> None:
    search(wave, target="y", test_fraction=0.2, n_trials=1, executor="inline", settings=QUICK)
    assert {name: calls[name] for name in STEPS} == dict.fromkeys(STEPS, 1)
    assert {name: calls[name] for name in TABLES} == dict.fromkeys(TABLES, 1)
    assert Path("runs/wave/export/README.md").is_file()


@pytest.mark.long
@pytest.mark.slow
def test_report_and_export_read_each_table_and_the_data_once(
    wave: str, calls: Counter[str]
) -> None:
    search(wave, target="y", test_fraction=0.2, n_trials=2, executor="inline", settings=QUICK)
    Path("runs/wave/report/comparison.json").unlink()
    calls.clear()
    report("runs/wave")
    assert calls["read_frame"] == calls["prepare"] == 1
    assert {name: calls[name] for name in TABLES} == dict.fromkeys(TABLES, 2)  # a file per trial
    calls.clear()
    export("runs/wave", to=Path("e"))
    assert calls["read_frame"] == calls["prepare"] == 1
    assert {name: calls[name] for name in TABLES} == dict.fromkeys(TABLES, 2)


@pytest.mark.slow
def test_a_study_in_python_sees_trials_that_come_later(wave: str) -> None:
    settings = {"plan.epochs": 2, "estimators": ["diag_ef"], "objective": "diag_ef"}
    study = nas_evidence.search(wave, target="y", n_trials=1, settings=settings, progress=False)
    assert len(study.trials) == 1
    nas_evidence.resume(study.folder, n_trials=2, progress=False)
    assert len(study.trials) == len(study.ranking) == 2


@pytest.mark.slow
def test_data_of_a_study_that_goes_on_are_those_of_its_folder_and_checked(wave: str) -> None:
    options = {"target": "y", "executor": "inline", "settings": QUICK}
    search(wave, n_trials=1, **options)
    kept = Path("runs/wave/data/train.parquet")
    pd.read_parquet(kept).assign(a=0.0).to_parquet(kept)
    with refused("kept-data-lost"):
        nas_evidence.resume("runs/wave", n_trials=2, progress=False)
    search(wave, n_trials=2, **options)  # has the right ones
    assert [path.name for path in Path("runs/wave/damaged").iterdir()] == ["data-train.parquet"]


@pytest.mark.slow
def test_arrays_that_the_caller_changes_later_do_not_change_the_study(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    held = x.copy()
    study = nas_evidence.search(
        x, (x[:, 0] > 0).astype(int), n_trials=1, out=tmp_path / "s", progress=False,
        settings={"plan.epochs": 2, "estimators": ["diag_ef"], "objective": "diag_ef"},
    )  # fmt: skip
    x *= 2
    np.testing.assert_array_equal(study.arrays().x_train, held)
