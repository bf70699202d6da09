"""Studies with code of their own: which runs, what is recorded, and where it is refused."""

import pickle
import shutil
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import environment, run
from messages import refused

import nas_evidence
from nas_evidence.plumbing.sums import write_sums
from nas_evidence.storage.tables import read_table

GOLDEN = Path(__file__).parents[1] / "golden" / "own-code"
STUDY = """\
name = "own"
n_trials = {n}
finalists = 0
objective = "diag_ef"
estimators = ["diag_ef"]
[dataset]
name = "table"
path = "t.csv"
target = "label"
[family.mine]
module = "{module}:Fam"
[plan]
epochs = 2
settle = 0
[plan.online]
every = 1
curvature = "diag_ef"
[sampler]
name = "random"
[resources]
gpus = 0
"""
FAMILY = """\
from torch import nn
{imports}

class Net(nn.Module):
    def __init__(self, first, width, last):
        super().__init__()
        self.body, self.act, self.head = nn.Linear(first, width), {act}, nn.Linear(width, last)

    def forward(self, x):
        return self.head(self.act(self.body(x)))


class Fam:
    domains = {{"width": {{"low": 2, "high": 6}}}}

    def build(self, values, input_shape, n_outputs):
        return Net(input_shape[0], values["width"], n_outputs)
"""
A, B = "nn.ReLU()", "nn.Softplus(beta=0.3)"
SCORES = """\
from nas_evidence import Score

NPY = Score("npy", "one", lambda context: {value})
"""


def table(rows: int = 60) -> pd.DataFrame:
    x = np.random.default_rng(0).normal(size=(rows, 2))
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "label": np.where(x.sum(1) > 0, "y", "n")})


def study_in(home: Path, act: str, *, n: int = 1, module: str = "nets", imports: str = "") -> Path:
    """Write a study with a family of its own; return its file."""
    file = home / (module.replace(".", "/") + ".py")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(FAMILY.format(act=act, imports=imports))
    table().to_csv(home / "t.csv", index=False)
    (home / "st.toml").write_text(STUDY.format(n=n, module=module))
    return home / "st.toml"


def searched(file: Path, out: Path, **options: object) -> nas_evidence.Study:
    return nas_evidence.search(file, out=out, allow_code=True, progress=False, **options)  # type: ignore[arg-type]


def scores(folder: Path) -> list[float]:
    evidence = read_table(folder, "evidence")
    return [float(v) for v in evidence[evidence["estimator"] == "diag_ef"]["value"]]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[float]]]:
    """What each of two studies gives in a process of its own: its file, scores, predictions."""
    found = {}
    for name, act in (("a", A), ("b", B)):
        home = tmp_path_factory.mktemp(name)
        study_in(home, act, n=2)
        run("search", "st.toml", "--allow-code", "--executor", "inline", "--out", "out", folder=home)
        run("predict", "out", "t.csv", "--allow-code", "--to", "p.csv", folder=home)
        found[name] = (home, pd.read_csv(home / "p.csv").iloc[:, -1].tolist())
    return found


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("order", ["ab", "ba"])
def test_two_studies_with_a_module_of_one_name_each_run_their_own(
    order: str, alone: dict[str, tuple[Path, list[float]]], tmp_path: Path
) -> None:
    studies = {}
    for name in order:
        home, _ = alone[name]
        studies[name] = searched(home / "st.toml", tmp_path / name, n_trials=1)
        assert (tmp_path / name / "code" / "nets.py").read_bytes() == (home / "nets.py").read_bytes()
    loaded = {name: nas_evidence.load(alone[name][0] / "out", allow_code=True) for name in order}
    for name in order[::-1]:
        home, predictions = alone[name]
        nas_evidence.resume(tmp_path / name, n_trials=2, allow_code=True, progress=False)
        assert scores(tmp_path / name) == scores(home / "out")
        again = loaded[name].predict_proba(table())
        np.testing.assert_allclose(again.max(1), np.maximum(predictions, 1 - np.array(predictions)),
                                   atol=1e-5)  # fmt: skip
        np.testing.assert_array_equal(again, studies[name].predict_proba(table(), trial_id=int(
            loaded[name].best.trial_id)))  # fmt: skip
    exports = {name: loaded[name].export(tmp_path / f"export-{name}") for name in order}
    models = {name: nas_evidence.Predictor.load(exports[name]) for name in order}
    for name in order:
        np.testing.assert_array_equal(
            models[name].predict_proba(table()), loaded[name].predict_proba(table())
        )
    with get_context("spawn").Pool(1) as pool:  # a process that has imported nothing
        for name in order:
            given = (models[name].exported, table()[["a", "b"]].to_numpy("float32"))
            here = models[name].exported(_tensor(given[1])).tolist()
            assert pool.apply(_outputs, given) == here
