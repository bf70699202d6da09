"""Whole trials on an invented GPU find what they find on the CPU: every kind of trial there is."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from both_devices import TOLERANCE, Where, assignment, both, differences
from matrix import REST
from pydantic import BaseModel
from torch import nn

from nas_evidence.data import load
from nas_evidence.data.arrays import ArrayData
from nas_evidence.models import FAMILIES
from nas_evidence.scores.sample_then_optimise import sample_then_optimise_evidence
from nas_evidence.scores.sampling_plan import EnsemblePlan, EntropyPlan, LadderPlan, SweepPlan
from nas_evidence.scores.sgd_entropy import sgd_entropy_bound
from nas_evidence.scores.temperature_ladder import temperature_ladder_evidence
from nas_evidence.scores.thermodynamic import thermodynamic_evidence
from nas_evidence.spec.dataset import TargetScaleName
from nas_evidence.spec.registry import CURVATURES, SCORES, import_outside
from nas_evidence.spec.study import DatasetSpec, OnlinePlan, TrainingPlan

#: What the method cannot judge, by key of the plan.
EXEMPT = {
    "precision": "autocast looks at the device that C++ sees, which is the CPU",
    "compile": "torch.compile traces such tensors as tensors of the CPU",
}
DEFAULT = ("conditional_evidence", "elpd")
ONE_MODEL = tuple(kind for kind in CURVATURES if not kind.startswith("full"))
SMALL_MLP = {"depth": 1, "width": 4}
#: Of the sampling scores, as small as they run.
PLANS = {
    thermodynamic_evidence: SweepPlan(
        n_chains=2, n_nodes=3, n_burn_in=3, n_settle=1, n_samples=3, n_leapfrog=2
    ),
    temperature_ladder_evidence: LadderPlan(
        n_ladders=2, n_nodes=4, n_burn_in=3, n_samples=3, n_leapfrog=2
    ),
    sgd_entropy_bound: EntropyPlan(n_steps=4, n_seeds=4, n_checks=2, learning_rate=0.005),
    sample_then_optimise_evidence: EnsemblePlan(n_runs=2, n_draws=2, n_chunks=3, n_iterations=5),
}


class Own:
    """An own family, found by the name of this module."""

    domains = {"width": [4, 6]}  # noqa: RUF012

    def build(self, values: Any, input_shape: tuple[int, ...], n_outputs: int) -> nn.Module:
        n_inputs, width = int(np.prod(input_shape)), values["width"]
        first = nn.Sequential(nn.Flatten(), nn.Linear(n_inputs, width), nn.LayerNorm(width))
        return nn.Sequential(first, nn.Tanh(), nn.Linear(width, n_outputs))


OWN = f"{__name__}:Own"


@dataclass(frozen=True)
class Case:
    """A kind of trial.

    family, estimators, plan   as a study has them
    data                       a key of `DATA`
    parked                     where it is parked, to be resumed
    """

    family: str
    data: str
    estimators: tuple[str, ...] = DEFAULT
    plan: Mapping[str, object] = field(default_factory=dict)
    parked: Where | None = None
    replicate: int = 0
    values: dict[str, object] | None = None
    exact: bool = False


def real(data: str = "prices", *estimators: str, family: str = "mlp", **more: Any) -> Case:
    """Return a trial of real targets."""
    plan = {"likelihood": "gaussian", **more.pop("plan", {})}
    return Case(family, data, estimators or DEFAULT, plan, **more)


def classes(
    family: str, *estimators: str, data: str = "digits", parked: Where | None = None,
    **plan: object,
) -> Case:  # fmt: skip
    """Return a trial of labels."""
    return Case(family, data, estimators or DEFAULT, plan, parked)


HETEROSCEDASTIC = {"likelihood": "heteroscedastic"}
SAMPLED = ("sgd_entropy", "thermodynamic", "temperature_ladder", "sto_lk")
CROP = ["RandomCrop", "RandomHorizontalFlip"]
#: Those that `make check` runs.
QUICK = {
    "classes": classes("mlp", "conditional_evidence", data="few rare", epochs=1),
    "real targets": real("few prices", "conditional_evidence", plan={"epochs": 1}),
    "images": classes("cnn", "diag_ef", data="few digits", epochs=1),
    "online laplace": real("few prices", "kfac_ggn_mc", values=SMALL_MLP),
}
TRIALS = {
    # families
    "mlp": classes("mlp", *DEFAULT, "kfac_ggn_mc", "two_fold_accuracy", "full_ef"),
    "cnn": classes("cnn", *DEFAULT, "kfac_ggn_mc", "heldout_10"),
    "resnet": classes("resnet", *DEFAULT, "kfac_ggn_mc"),
    "linear": classes("linear", *DEFAULT, "full_ggn", data="rare"),
    "own": Case(OWN, "digits", (*DEFAULT, "kfac_ggn"), {"folds": 5}, values={"width": 4}),
    "linear, real": real("prices", *DEFAULT, "full_ggn", "diag_ggn", family="linear"),
    "own, real": real(family=OWN, values={"width": 4}, plan={"settle": 0.3}),
    # likelihoods and targets
    "own noise": Case("mlp", "prices", DEFAULT, HETEROSCEDASTIC),
    "own noise, two targets": Case("mlp", "two", DEFAULT, HETEROSCEDASTIC),
    "own noise, log": Case("mlp", "log", DEFAULT, HETEROSCEDASTIC),
    "two targets": real("two", *DEFAULT, "full_ggn"),
    "power and noise": real(
        "prices", "kfac_ggn", plan={"likelihood_power": 0.5, "noise_std": 0.7}
    ),
    "temperature": classes("mlp", "diag_ggn", temperature=1.5, prior_precision=0.5),
    **{scale: real(scale) for scale in get_args(TargetScaleName)},
    # folds and rows
    **{f"{n} folds": classes("mlp", data="rare", folds=n) for n in (1, 5)},
    "10 folds, real": real(plan={"folds": 10}),
    "given folds": classes("mlp", "five_fold", "ten_fold", "five_fold_accuracy",
                           "ten_fold_accuracy", "heldout_10_accuracy", data="rare"),
    "class weights and row weights": classes("mlp", data="rare and weighted"),
    "row weights, real": real("weighted"),
    "groups": real("groups", plan={"folds": 5}),
    "times": real("times", plan={"folds": 5}),
    "rows of a file": classes("cnn", *DEFAULT, "kfac_ggn_mc", data="files"),
    # training
    "augmentation": classes("cnn", "diag_ef", "two_fold", "elpd", augment=CROP),
    "augmentation, rows of a file": classes("cnn", "two_fold", data="files", augment=CROP),
    "adam": classes("cnn", *DEFAULT, optimiser="adam", learning_rate=0.002),
    "rates": classes("mlp", "diag_ef", schedule="steps", milestones=[1], momentum=0.8,
                     batch_size=20),
    "constant rate": classes("mlp", "diag_ef", schedule="constant"),
    # updates
    "adam updates": classes("cnn", "diag_ef", online={
        "every": 1, "hyper_step": "adam", "hyper_steps": 5, "hyper_learning_rate": 0.5}),
    "one precision from few rows": classes("cnn", "diag_ef", online={
        "every": 1, "prior_groups": "scalar", "rows": 40}),
    "rare evaluations": classes("mlp", "diag_ef", evaluate_every=2, online={"every": 1}),
    "no noise to learn": real("prices", "diag_ef", plan={"online": {
        "every": 2, "burn_in": 1, "learn_noise": False}}),
    **{f"online {kind}": real("prices", kind, values=SMALL_MLP, plan={"online": {
        "every": 1, "curvature": kind}}) for kind in CURVATURES},
    "every kind": classes("mlp", *CURVATURES, data="rare"),
    "every kind, images": classes("cnn", *ONE_MODEL, data="few digits"),
    # settling
    "settled": real(plan={"settle": 0.5}),
    "settled, own noise": Case("mlp", "prices", DEFAULT, {**HETEROSCEDASTIC, "settle": 0.5}),
    "settled, classes": classes("mlp", data="rare", settle=0.5),
    "settled, images": classes("cnn", data="few digits", settle=0.2),
    # attempts
    "parked in the folds": classes("cnn", *DEFAULT, "two_fold", parked="folds"),
    "parked in training": classes("cnn", "diag_ef", "two_fold", parked="training"),
    "parked, adam": classes("mlp", "diag_ef", parked="training", optimiser="adam"),
    "parked while it settles": real("few prices", parked="settling", plan={
        "settle": 20, "epochs": 6, "learning_rate": 0.05}),
    "parked while it settles, classes": classes(
        "mlp", data="few rare", settle=20, parked="settling"),
    "another replicate": Case("mlp", "rare", DEFAULT, replicate=2),
    # sampling
    **{score: real("few prices", score, values=SMALL_MLP) for score in SAMPLED},
    **{f"{score}, classes": Case("mlp", "few rare", (score,), values=SMALL_MLP)
       for score in SAMPLED[1:]},
    "sampled, own noise": Case("mlp", "few prices", SAMPLED[1:3], HETEROSCEDASTIC,
                               values=SMALL_MLP),
    "exact sgd_entropy": real("few prices", "sgd_entropy", values=SMALL_MLP, exact=True),
}  # fmt: skip

#: Five seconds or more: the first traces its programs, the others settle for many rounds.
LONG = {"sgd_entropy", "settled, images", "parked while it settles"}
#: Those that `make matrices` runs: another of `TRIALS` takes each of their steps.
LEFT_OUT = {
    "power and noise", *(scale for scale in get_args(TargetScaleName) if scale != "yeo_johnson"),
    "1 folds", "10 folds, real", "rows of a file", "augmentation", "adam", "constant rate",
    *(f"online {kind}" for kind in CURVATURES if kind not in ("full_ggn", "ekfac_ggn")),
    "settled, classes", "parked in training", *(f"{score}, classes" for score in SAMPLED),
}  # fmt: skip


def marks_of(name: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.long] * (name in LONG) + [REST] * (name in LEFT_OUT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table, arrays of two targets, and images in a file each for inputs and labels."""
    home = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(0)
    x, noise = random.normal(size=(80, 3)), random.normal(size=80)
    price = np.exp(x @ [0.8, -0.5, 0.3] + 0.3 * noise)
    table = {
        "price": price,
        "kind": np.where(price > 1.5, "rare", "usual"),
        "time": np.arange(80),
        "patient": np.arange(80) // 3,
        "count": random.integers(0, 3, 80),
    }
    columns = {f"x{k}": x[:, k] for k in range(3)}
    pd.DataFrame(columns | table).to_csv(home / "table.csv", index=False)
    both_targets = np.stack([price, price**2], 1)
    x = x.astype(np.float32)
    np.savez(
        home / "two.npz",
        x_train=x[:60], y_train=both_targets[:60], x_test=x[60:], y_test=both_targets[60:],
    )  # fmt: skip
    (home / "files").mkdir()
    images = random.integers(0, 255, (70, 8, 8, 1)).astype(np.uint8)
    labels = random.integers(0, 3, 70)
    parts = {"x_train": images[:50], "y_train": labels[:50]}
    parts |= {"x_test": images[50:], "y_test": labels[50:]}
    for name, part in parts.items():
        np.save(home / "files" / f"{name}.npy", part)
    return home


def table_of(target: str, **asked: Any) -> DatasetSpec:
    """Return the table with one of its columns as the target; other targets are no features."""
    used = {target, *(value for value in asked.values() if isinstance(value, str))}
    drop = tuple({"price", "kind", "time", "patient", "count"} - used)
    given = {"test_fraction": 0.2, "drop": drop, **asked}
    return DatasetSpec(name="table", path="table.csv", target=target, **given)


DATA = {
    "digits": DatasetSpec(name="digits", max_train=90, max_test=20),
    "few digits": DatasetSpec(name="digits", max_train=40, max_test=20),
    "prices": table_of("price"),
    "few prices": table_of("price", max_train=30),
    "rare": table_of("kind"),
    "few rare": table_of("kind", max_train=30),
    "rare and weighted": table_of("kind", class_weight="balanced", weights="count"),
    "weighted": table_of("price", weights="count"),
    "groups": table_of("price", groups="patient"),
    "times": table_of("price", time_column="time"),
    **{name: table_of("price", target_scale=name) for name in get_args(TargetScaleName)},
    "two": DatasetSpec(name="npz", path="two.npz"),
    "files": DatasetSpec(name="npz", path="files"),
}


def arrays_of(case: Case, folder: Path) -> ArrayData:
    return load(DATA[case.data], seed=0, base=folder)


def assert_same(case: Case, folder: Path, tmp_path: Path) -> None:
    import_outside([case.family])
    given = assignment(
        case.family, *case.estimators, data=DATA[case.data], replicate=case.replicate,
        values=case.values, **case.plan,
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        for estimator, plan in PLANS.items():
            if isinstance(plan, EntropyPlan):
                plan = plan.model_copy(update={"exact": case.exact})
            stack.enter_context(mock.patch.dict(estimator.__kwdefaults__, plan=plan))
        cpu, gpu, fake = both(given, arrays_of(case, folder), tmp_path, parked=case.parked)
    assert fake.launches.total() > 500  # it did run there
    assert {*case.estimators} <= {e.estimate.estimator for e in cpu.record.evaluations}
    found = differences(cpu, gpu)
    assert max(found.values()) < TOLERANCE, max(found.items(), key=lambda one: one[1])


@pytest.mark.parametrize("name", QUICK)
def test_a_small_trial_finds_on_a_gpu_what_it_finds_on_the_cpu(
    name: str, folder: Path, tmp_path: Path
) -> None:
    assert_same(QUICK[name], folder, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(n, marks=marks_of(n)) for n in TRIALS])
def test_every_kind_of_trial_finds_on_a_gpu_what_it_finds_on_the_cpu(
    name: str, folder: Path, tmp_path: Path
) -> None:
    assert_same(TRIALS[name], folder, tmp_path)


def options(plan: type[BaseModel], key: str) -> set[str]:
    """Return the options of a key that has a list of them, none for other keys."""
    found = get_args(plan.model_fields[key].annotation)
    return {str(one) for one in found if isinstance(one, str | int)} - {"auto", "never"}


def test_the_trials_have_every_family_score_and_option_of_a_plan() -> None:
    cases = TRIALS.values()
    assert {case.family for case in cases} == {*FAMILIES, OWN}
    asked = {name for name, score in SCORES.items() if score.on_request}
    assert {score for case in cases for score in case.estimators} == asked
    plans = [assignment(case.family, values=case.values, **case.plan).plan for case in cases]
    updates = [plan.online for plan in plans]
    for model, found in ((TrainingPlan, plans), (OnlinePlan, updates)):
        for key in model.model_fields.keys() - EXEMPT.keys():
            values = {str(getattr(one, key)) for one in found}
            assert len(values) > 1, f"no trial changes {key}"
            assert options(model, key) <= values, f"no trial has each option of {key}"
