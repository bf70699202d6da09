"""Evidences by sampling as scores of a study, for architectures small enough."""

import json
import math
from pathlib import Path

import lone_trials
import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch.distributions import MultivariateNormal

from nas_evidence.data import load
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.spec.record import TrialRecord
from nas_evidence.spec.study import ArchitectureSpec, Assignment, DatasetSpec, StudySpec

SAMPLED_KINDS = ("sgd_entropy", "thermodynamic", "temperature_ladder", "sto_lk")


def data_of(tmp_path: Path, n: int) -> TensorData:
    random = np.random.default_rng(0)
    x = random.normal(size=(n + 10, 2)).astype(np.float32)
    y = x @ np.array([1.0, -0.5]) + 0.3 * random.normal(size=n + 10)
    path = tmp_path / "d.npz"
    np.savez(path, x_train=x[:n], y_train=y[:n], x_test=x[n:], y_test=y[n:])
    return to_tensors(load(DatasetSpec(name="npz", path=str(path)), seed=0), "cpu")


def run(data: TensorData, folder: Path, **plan: object) -> TrialRecord:
    assignment = Assignment(
        trial_id=0, attempt=1, replicate=0, seed=0, estimators=SAMPLED_KINDS,
        architecture=ArchitectureSpec(family="linear"),
        dataset=DatasetSpec(name="npz", path="d.npz"),
        plan={
            "likelihood": "gaussian", "epochs": 30, "learning_rate": 0.05, "batch_size": 64,
            "online": {"every": 10, "curvature": "kfac_ggn"}, **plan,
        },
    )  # fmt: skip
    return lone_trials.run(assignment, data, folder)


@pytest.mark.long
@pytest.mark.slow
def test_a_linear_trial_has_the_evidence_in_closed_form(tmp_path: Path) -> None:
    data = data_of(tmp_path, 40)
    record = run(data, tmp_path / "trial")
    assert not record.error
    with safe_open(tmp_path / "trial" / "model.safetensors", framework="pt") as file:
        precision = list(json.loads(file.metadata()["prior_precision"]).values())
    x = torch.cat([data.x_train, torch.ones(40, 1)], 1).double()
    prior = torch.tensor([precision[0], precision[0], precision[1]], dtype=torch.float64)
    covariance = x @ torch.diag(1 / prior) @ x.T + record.noise_std**2 * torch.eye(40).double()
    y = data.y_train[:, 0].double()
    truth = MultivariateNormal(torch.zeros(40).double(), covariance).log_prob(y).item()
    for kind in ("thermodynamic", "temperature_ladder"):
        estimate = record.final_estimate(kind)
        assert estimate.value == pytest.approx(truth, abs=4 * estimate.standard_error + 0.3)
    for kind in ("sgd_entropy", "sto_lk"):
        bound = record.final_estimate(kind)
        assert bound.value < truth + 4 * (bound.standard_error or 0.0)


@pytest.mark.slow
def test_what_is_too_dear_is_no_estimate_and_says_why(tmp_path: Path) -> None:
    record = run(data_of(tmp_path, 70_000), tmp_path / "trial", epochs=1)
    for kind in SAMPLED_KINDS:
        estimate = record.final_estimate(kind)
        assert not estimate.valid
        assert estimate.note == "parameters times data are 210000, and at most 200000 are sampled"
        assert math.isinf(estimate.value)


def test_a_sampled_score_prunes_nothing() -> None:
    given = {
        "name": "s", "dataset": {"name": "digits"}, "family": {"linear": {}},
        "objective": "thermodynamic", "estimators": ["thermodynamic"],
    }  # fmt: skip
    assert StudySpec.model_validate(given).objective == "thermodynamic"
    with pytest.raises(ValueError, match="must be known before the end of training"):
        StudySpec.model_validate({**given, "pruning": {"rule": "median"}})
