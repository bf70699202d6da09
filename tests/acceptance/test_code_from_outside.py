"""Code from outside: a family, a score, a sampler, callbacks; and numbers written to trackers."""

from collections import Counter
from pathlib import Path
from typing import ClassVar

import numpy as np
import optuna
import pandas as pd
import pytest
from acceptance.uses import SMALL, check_study, command, files, last_values, searched
from sklearn.metrics import r2_score

import nas_evidence

pytestmark = pytest.mark.slow

NETS = '''
import math
import torch
from torch import nn


class Quadratic(nn.Module):
    def __init__(self, n_inputs, n_outputs, terms):
        super().__init__()
        self.terms = terms
        self.head = nn.Linear(n_inputs * terms, n_outputs)

    def forward(self, x):
        return self.head(torch.cat([x ** (k + 1) for k in range(self.terms)], 1))


class Powers:
    """Linear in the first powers of its inputs."""

    domains = {"terms": [1, 2, 3]}

    def build(self, values, input_shape, n_outputs):
        return Quadratic(math.prod(input_shape), n_outputs, values["terms"])
'''
SCORES = '''
from nas_evidence import Score


def fewest(context):
    """Return minus the number of parameters."""
    return -float(sum(p.numel() for p in context.model.parameters()))


FEWEST = Score(
    name="fewest",
    summary="minus the number of parameters",
    implementation=fewest,
    taken="end",
    unit="none",
)
'''
SAMPLERS = '''
import optuna


class Narrow(optuna.samplers.BaseSampler):
    """Proposes from the lowest share of each domain."""

    def __init__(self, seed, share):
        self.random, self.share = optuna.samplers.RandomSampler(seed), share

    def infer_relative_search_space(self, study, trial):
        return {}

    def sample_relative(self, study, trial, space):
        return {}

    def sample_independent(self, study, trial, name, distribution):
        drawn = self.random.sample_independent(study, trial, name, distribution)
        return drawn * self.share if isinstance(drawn, float) else drawn
'''
STUDY = """
name = "own"
n_trials = {n_trials}
{head}
[dataset]
name = "npz"
path = "data.npz"
{families}
[plan]
epochs = 5
folds = 2
likelihood = "gaussian"
"""
WIDE = "[family.mlp]\ndepth = 1\nwidth = {low = 4, high = 403}\n"


def home(folder: Path, *, head: str = "", families: str = WIDE, n_trials: int = 3) -> Path:
    """Write a study file, the modules that it may name, and data that are quadratic."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(160, 2))
    y = x[:, 0] ** 2 - x[:, 1] + 0.1 * rng.normal(size=160)
    np.savez(
        folder / "data.npz", x_train=x[:80], y_train=y[:80], x_test=x[80:120], y_test=y[80:120]
    )
    np.savez(folder / "new.npz", x=x[120:], y=y[120:])
    for name, text in (("my_nets", NETS), ("my_scores", SCORES), ("my_samplers", SAMPLERS)):
        (folder / f"{name}.py").write_text(text)
    text = STUDY.format(n_trials=n_trials, head=head, families=families)
    (folder / "own.toml").write_text(text)
    return folder


def refused(folder: Path, *argv: object) -> None:
    """See that a command ends with exit code 2 and writes nothing."""
    before = files(folder)
    command(*argv, folder=folder, code=2)
    assert files(folder) == before


def test_a_family_of_ones_own_is_searched_ranked_and_exported(tmp_path: Path) -> None:
    own = '[family.linear]\n[family.mine]\nmodule = "my_nets:Powers"\n'
    folder = home(tmp_path, families=own, n_trials=4)
    refused(folder, "search", "own.toml", *SMALL, "--out", "study")
    command("check-family", "my_nets:Powers", "--input", 2, "--allow-code", folder=folder)
    longer = ("--set", "plan.epochs=40", "--set", "plan.learning_rate=0.05", "--allow-code")
    command("search", "own.toml", *SMALL, *longer, "--out", "study", folder=folder)
    check_study(folder / "study", n_trials=4)
    trials = searched(folder / "study")
    mine = trials[trials["family"] != "linear"]
    assert {*mine["arch_terms"]} == {1, 2, 3}
    assert (mine["n_parameters"] == 2 * mine["arch_terms"] + 1).all()
    # What has squares explains the data; a network without them does not.
    scores = last_values(folder / "study")["conditional_evidence"]
    squares = trials["arch_terms"].fillna(1) >= 2
    assert scores[squares].min() > scores[~squares].max()
    study = nas_evidence.load(folder / "study", allow_code=True)
    assert squares[study.best.trial_id]
    new = np.load(folder / "new.npz")
    mean = study.predict(new["x"]).mean[:, 0]
    assert r2_score(new["y"], mean) > 0.9
    # Its predictions are exactly linear in powers of the inputs.
    design = np.column_stack([new["x"] ** k for k in range(4)])
    fitted = design @ np.linalg.lstsq(design, mean, rcond=None)[0]
    np.testing.assert_allclose(mean, fitted, atol=1e-4)
    command("export", "study", "--to", "e", "--allow-code", folder=folder)
    refused(folder, "predict", "e", "new.npz", "--to", "p.csv")
    command("predict", "e", "new.npz", "--to", "p.csv", "--allow-code", folder=folder)
    np.testing.assert_allclose(pd.read_csv(folder / "p.csv")["prediction"], mean, rtol=1e-5)


def test_a_score_of_ones_own_ranks(tmp_path: Path) -> None:
    name = "my_scores:FEWEST"
    folder = home(tmp_path, head=f'estimators = ["{name}"]\nobjective = "{name}"')
    refused(folder, "search", "own.toml", *SMALL, "--out", "study")
    command("search", "own.toml", *SMALL, "--out", "study", "--allow-code", folder=folder)
    check_study(folder / "study", n_trials=3, scores=[name])
    trials = searched(folder / "study")
    assert trials["n_parameters"].nunique() == 3
    assert (last_values(folder / "study")[name] == -trials["n_parameters"]).all()
    study = nas_evidence.load(folder / "study")
    assert study.best.trial_id == trials["n_parameters"].idxmin()
    assert study.leaderboard()["n_parameters"].is_monotonic_increasing


def test_a_sampler_of_ones_own_proposes(tmp_path: Path) -> None:
    """It takes the lowest quarter of each domain; a study begins with points of its own."""
    folder = home(tmp_path, n_trials=12)
    with (folder / "own.toml").open("a") as file:
        file.write('[sampler]\nname = "my_samplers:Narrow"\narguments = {share = 0.25}\n')
    small = (*SMALL, "--set", 'estimators=["diag_ef"]', "--set", "plan.epochs=1", "--out", "study")
    refused(folder, "search", "own.toml", *small)
    command("search", "own.toml", *small, "--allow-code", folder=folder)
    check_study(folder / "study", n_trials=12)
    widths = searched(folder / "study")["arch_width"].astype(int)
    assert widths.nunique() == 12
    assert (widths.iloc[8:] <= 104).all(), widths


class Energy(nas_evidence.Watcher):
    """Counts what it is told, and adds two columns."""

    columns: ClassVar = {"twice": int, "about": str}

    def __init__(self) -> None:
        self.told: Counter[str] = Counter()
        self.launches: list[int] = []
        self.ends: list[int] = []
        self.trained: set[int] = set()

    def study_started(self, study: object, folder: Path) -> None:
        self.told["started"] += 1
        assert Path(folder).is_dir()

    def launched(self, assignment: object) -> None:
        assert self.told == {"started": 1}
        self.launches.append(assignment.trial_id)

    def progressed(self, report: object) -> None:
        self.trained.add(report.trial_id)

    def values(self, record: object) -> dict[str, object]:
        return {"twice": 2 * record.n_parameters, "about": f"is {record.architecture.family}"}

    def ended(self, record: object) -> None:
        self.ends.append(record.trial_id)

    def study_ended(self, status: object) -> None:
        self.told["ended"] += 1


def test_a_callback_is_told_of_every_trial_and_adds_columns(tmp_path: Path) -> None:
    folder = home(tmp_path)
    watcher = Energy()
    study = nas_evidence.search(
        folder / "own.toml", callbacks=[watcher], out=folder / "study", progress=False
    )
    check_study(folder / "study", n_trials=3)
    assert watcher.told == {"started": 1, "ended": 1}
    for seen in (watcher.launches, watcher.ends, watcher.trained):
        assert {0, 1, 2} <= {*seen} <= {*study.trials["trial_id"]}
    trials = searched(folder / "study")
    assert (trials["twice"] == 2 * trials["n_parameters"]).all()
    assert (trials["about"] == "is " + trials["family"]).all()
    board = study.leaderboard().set_index("trial_id")
    assert (board["twice"] == trials["twice"].loc[board.index]).all()


class Broken(nas_evidence.Watcher):
    """Raises as soon as a trial has ended."""

    def ended(self, record: object) -> None:
        raise KeyError("mine")


def test_a_callback_that_raises_loses_no_trial(tmp_path: Path) -> None:
    folder = home(tmp_path)
    with pytest.warns(RuntimeWarning, match="Broken"):
        nas_evidence.search(
            folder / "own.toml", callbacks=[Broken()], out=folder / "study", progress=False
        )
    check_study(folder / "study", n_trials=3)


def test_trackers_have_the_scores_of_every_trial(tmp_path: Path) -> None:
    """TensorBoard and Optuna's storage, whatever the series are called there."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = home(tmp_path)
    command(
        "search", "own.toml", *SMALL, "--out", "study", "--track", "tensorboard",
        "--track", "optuna", folder=folder,
    )  # fmt: skip
    check_study(folder / "study", n_trials=3)
    evidence = nas_evidence.read_table(folder / "study", "evidence")
    scored = evidence[evidence["estimator"] == "conditional_evidence"].sort_values("epoch")
    scored = scored[scored["trial_id"] < 3].groupby("trial_id").tail(1)
    assert sorted(scored["trial_id"]) == [0, 1, 2]
    database = f"sqlite:///{folder / 'study' / 'study.db'}"
    (stored,) = optuna.get_all_study_summaries(database)
    copy = optuna.load_study(study_name=stored.study_name, storage=database)
    values = np.array([trial.value for trial in copy.trials if trial.value is not None])
    assert any(
        np.isclose(scored[unit].to_numpy()[:, None], values).any(1).all()
        for unit in ("value", "per_datum")
    )
    found = []
    for place in {path.parent for path in folder.rglob("*tfevents*")}:
        events = reader.EventAccumulator(str(place))
        events.Reload()
        found.append([events.Scalars(name)[-1].value for name in events.Tags()["scalars"]])
    assert len(found) >= 3
    for _, rows in scored.groupby("trial_id"):
        wanted = rows[["value", "per_datum"]].to_numpy().ravel()
        assert any(np.isclose(wanted[:, None], one, rtol=1e-5).any() for one in found)
