"""Ensembles that are drawn, then optimised: against exact draws, and by what they may not see."""

import json
import math
from pathlib import Path

import lone_trials
import numpy as np
import pytest
import torch
from records import asked
from safetensors import safe_open
from torch import nn
from torch.distributions import MultivariateNormal

from nas_evidence.audit.known_problems import exact_ensembles, linear_problem
from nas_evidence.data import load
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.evidence.network_density import flat_log_likelihood, spread_precision
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.scores.sample_then_optimise import (
    _Ensemble,
    _one_member,
    _one_run,
    chunk_ends,
    sample_then_optimise_evidence,
)
from nas_evidence.scores.sampling_plan import EnsemblePlan
from nas_evidence.spec.record import TrialRecord
from nas_evidence.spec.study import DatasetSpec, StudySpec


@pytest.mark.parametrize("n_data", [1, 2, 3, 17, 100, 1000])
def test_chunks_cover_all_data_and_begin_with_one(n_data: int) -> None:
    ends = chunk_ends(n_data, 16)
    assert ends[0] == 1
    assert ends[-1] == n_data
    assert ends == sorted(set(ends))
    assert len(ends) <= 16 + n_data.bit_length()


@pytest.mark.slow
def test_ensembles_of_a_linear_model_have_the_mean_of_exact_draws_and_bound_the_evidence() -> None:
    problem = linear_problem("sto", 0, n_data=12, n_features=2, n_outputs=1)
    plan = EnsemblePlan(n_runs=16, n_draws=2, n_chunks=4)
    generator = torch.Generator().manual_seed(0)
    found = sample_then_optimise_evidence(
        problem.model, problem.x, problem.y, likelihood=problem.likelihood,
        prior_precision=problem.precision, generator=generator, plan=plan,
    )  # fmt: skip
    mean, error = exact_ensembles(problem, plan, generator, n_runs=400)
    slack = 4.5 * ((found.standard_error or 0) ** 2 + error**2) ** 0.5
    assert found.value == pytest.approx(mean, abs=slack)
    assert mean < problem.truth
    terms = {term.term: term.value for term in found.terms}
    assert terms["L"] < found.value
    assert terms["largest_slope"] < 1e-3


@pytest.mark.slow
def test_a_label_does_not_change_what_is_predicted_before_it() -> None:
    """Both labels of the last datum in the order share the probability of those before it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
    x, y = torch.randn(6, 2), torch.tensor([0, 1, 0, 1, 1, 0])
    order = torch.randperm(6, generator=torch.Generator().manual_seed(5))
    flipped = y.clone()
    flipped[order[-1]] = 1 - flipped[order[-1]]
    plan = EnsemblePlan(n_runs=2, n_draws=1, n_chunks=6, n_iterations=20)

    def first_run(labels: torch.Tensor) -> float:
        density, inputs, targets = flat_log_likelihood(model, x, labels, Categorical())
        ensemble = _Ensemble(density, Categorical(), spread_precision(model, 1.0), plan)
        return _one_run(ensemble, inputs, targets, torch.Generator().manual_seed(5))[0]

    # p(last label) + p(the other one) = 1, and the rest of the code is the same in both.
    together = torch.tensor([first_run(y), first_run(flipped)]).double()
    before = float(together.logsumexp(0))
    assert before > float(together.max())
    assert before < 0


@pytest.mark.slow
def test_members_that_have_learned_the_first_half_are_draws_of_its_posterior() -> None:
    """The mean log likelihood of the second half, against the posterior in closed form."""
    problem, n_members = linear_problem("members", 0, n_data=12, n_features=1, n_outputs=1), 150
    assert isinstance(problem.likelihood, Gaussian)
    log_likelihood, x, y = flat_log_likelihood(
        problem.model, problem.x, problem.y, problem.likelihood
    )
    ensemble = _Ensemble(log_likelihood, problem.likelihood, problem.precision, EnsemblePlan())
    generator = torch.Generator().manual_seed(0)
    values = torch.stack(
        [_one_member(ensemble, x, y, [6, 12], generator)[0][1] for _ in range(n_members)]
    )
    phi = torch.cat([problem.x, torch.ones_like(problem.x[:, :1])], 1)
    early, late, variance = phi[:6], phi[6:], problem.likelihood.noise_std**2
    hessian = early.mT @ early / variance + torch.diag(problem.precision)
    mean = torch.linalg.solve(hessian, early.mT @ y[:6] / variance)
    spread = (late @ torch.linalg.inv(hessian) * late).sum()
    exact = problem.likelihood.log_likelihood(late @ mean, y[6:]) - 0.5 * spread / variance
    assert float(values.mean()) == pytest.approx(
        float(exact), abs=4 * float(values.std()) / n_members**0.5
    )


# --- evidences by sampling as scores of a study, for architectures small enough


SAMPLED_KINDS = ("sgd_entropy", "thermodynamic", "temperature_ladder", "sto_lk")


def data_of(tmp_path: Path, n: int) -> TensorData:
    random = np.random.default_rng(0)
    x = random.normal(size=(n + 10, 2)).astype(np.float32)
    y = x @ np.array([1.0, -0.5]) + 0.3 * random.normal(size=n + 10)
    path = tmp_path / "d.npz"
    np.savez(path, x_train=x[:n], y_train=y[:n], x_test=x[n:], y_test=y[n:])
    return to_tensors(load(DatasetSpec(name="npz", path=str(path)), seed=0), "cpu")


def run(data: TensorData, folder: Path, **plan: object) -> TrialRecord:
    given = {"likelihood": "gaussian", "epochs": 30, "learning_rate": 0.05, "batch_size": 64}
    given |= {"online": {"every": 10, "curvature": "kfac_ggn"}} | plan
    assignment = asked(None, SAMPLED_KINDS, **given)
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
