"""A study whose trials train their folds alone delivers what one of whole networks does."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import nas_evidence
from nas_evidence.plumbing.tensor_seals import read_tensors
from nas_evidence.spec.record import WHOLE_IDS
from nas_evidence.storage.tables import read_study_tables, read_table

pytestmark = pytest.mark.slow

QUICK: dict[str, Any] = {
    "plan.epochs": 4,
    "plan.settle": 0,
    "plan.folds": 2,
    "estimators": ["diag_ef", "elpd", "conditional_evidence"],
    "objective": "conditional_evidence",
    "plan.online.curvature": "diag_ef",
    "family": {"mlp": {"depth": 1, "width": [4, 6, 8]}},
    "finalists": 0,
}


def table(n: int = 60, seed: int = 0) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    a, b = generator.normal(size=(2, n))
    kind = np.where(a + 0.3 * generator.normal(size=n) > 0, "yes", "no")
    return pd.DataFrame({"a": a, "b": b, "kind": kind})


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """The folders of two searches of the same, with a network of all rows in each trial or not."""
    home = tmp_path_factory.mktemp("studies")
    for whole in (False, True):
        nas_evidence.search(
            table(), target="kind", n_trials=3, settings={**QUICK, "plan.whole": whole},
            out=home / str(whole), progress=False, test_fraction=0.2,
        )  # fmt: skip
    return {whole: home / str(whole) for whole in (False, True)}


def test_the_finalists_have_the_weights_and_the_evidence_of_whole_networks_to_the_bit(
    studies: dict[bool, Path],
) -> None:
    tables = {whole: read_study_tables(folder) for whole, folder in studies.items()}
    alone = tables[False].whole
    assert sorted(alone["trials"]["trial_id"]) == [WHOLE_IDS + i for i in range(3)]
    same = ["epochs", "seed", "test_nll_per_datum", "test_accuracy", "spread_factor", "n_data"]
    both = alone["trials"][same], tables[True].trials[same]
    pd.testing.assert_frame_equal(*both)
    by_name = {
        whole: one[one["estimator"].isin(["diag_ef", "sotl"]) & (one["epoch"] == 4)]["value"]
        for whole, one in ((False, alone["evidence"]), (True, tables[True].evidence))
    }
    assert list(by_name[False]) == list(by_name[True])
    for i in range(3):
        weights = [
            read_tensors(studies[whole] / f"models/{n}.safetensors")[0]
            for whole, n in ((False, WHOLE_IDS + i), (True, i))
        ]
        assert all((one == weights[1][name]).all() for name, one in weights[0].items())
    assert {*read_table(studies[False], "evidence")["of"]} == {"folds", "whole"}
    assert {*tables[False].evidence["of"]} == {"folds"}


def _lost(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "models" / name).unlink()


def _damaged(folder: Path) -> None:
    (folder / f"models/{WHOLE_IDS + 2}.safetensors").write_bytes(b"torn")


@pytest.mark.parametrize(
    "harm",
    [
        lambda folder: None,
        _lost(f"{WHOLE_IDS + 2}.safetensors"),
        _lost("2.safetensors"),
        _damaged,
    ],
)
def test_predictions_and_the_export_are_those_of_the_whole_network_also_trained_again(
    studies: dict[bool, Path], harm: Callable[[Path], None], tmp_path: Path
) -> None:
    found = []
    for whole, folder in studies.items():
        copy = tmp_path / str(whole)
        shutil.copytree(folder, copy)
        if not whole:
            harm(copy)
        study = nas_evidence.load(copy)
        assert study.best.trial_id == 2
        found.append(study.predict(table(8, 1)).to_frame())
        study.export(tmp_path / f"export {whole}")
    pd.testing.assert_frame_equal(*found)
    one, other = (read_tensors(tmp_path / f"export {w}/model.safetensors")[0] for w in studies)
    assert all((one[name] == other[name]).all() for name in one)
