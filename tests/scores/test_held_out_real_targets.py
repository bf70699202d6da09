"""Real targets of a fold on a scale: units, and what the network without the fold may know."""

import math

import numpy as np
import pytest
import torch

from nas_evidence.data.arrays import ArrayData
from nas_evidence.data.tensors import to_tensors
from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.likelihoods.heteroscedastic import Heteroscedastic
from nas_evidence.maths.target_scale import fit
from nas_evidence.scores import scale_choice
from nas_evidence.scores.folds import Folds, all_folds, log_predictive
from nas_evidence.scores.protocol import Context
from nas_evidence.spec.study import ArchitectureSpec, Assignment, DatasetSpec, StudySpec
from nas_evidence.training.parts import new_network, order_of_data, part_of


def arrays_of(y: np.ndarray, *, log: bool) -> ArrayData:
    """Return targets [n, 1] of random inputs, without test rows."""
    x = np.random.default_rng(0).normal(size=(len(y), 2)).astype(np.float32)
    return ArrayData(
        "npz", x, y, x[:0], y[:0], task="real", n_outputs=1, input_shape=(2,),
        mean=np.zeros(2, np.float32), std=np.ones(2, np.float32), y_mean=y.mean(0),
        y_std=y.std(0), fitted_scale=fit("log", y) if log else None,
    )  # fmt: skip


@pytest.mark.parametrize("likelihood", [Gaussian(0.7), Heteroscedastic()])
def test_both_densities_of_a_fold_have_the_log_jacobian(
    likelihood: Gaussian | Heteroscedastic,
) -> None:
    random = torch.Generator().manual_seed(0)
    width = 2 if isinstance(likelihood, Heteroscedastic) else 1
    outputs, targets = (torch.randn(5, k, generator=random) for k in (width, 1))
    plain = log_predictive(outputs, targets, likelihood)
    scaled = log_predictive(outputs, targets, likelihood, -12.5)
    assert plain.as_trained == pytest.approx(float(likelihood.log_likelihood(outputs, targets)))
    assert scaled.as_trained == pytest.approx(plain.as_trained - 12.5)
    assert scaled.log_predictive == pytest.approx(plain.log_predictive - 12.5)


def test_means_of_a_fold_are_held_to_the_range_of_the_other_rows_alone() -> None:
    """A mean far above all targets ends at the bound of the scale that the other rows have."""
    given = Assignment(
        trial_id=0, attempt=1, replicate=0, seed=3, estimators=("two_fold",),
        architecture=ArchitectureSpec(family="linear", values={}),
        dataset=DatasetSpec(name="npz", path="data"),
        plan={"likelihood": "gaussian", "epochs": 2, "folds": 2, "settle": 0,
              "online": {"every": 2}},
    )  # fmt: skip
    n = 24
    task = all_folds("two_fold", order_of_data(n, given))[0]
    y = np.exp(np.random.default_rng(1).normal(size=(n, 1)))
    y[int(task.predicted[0])] = 1e4  # seen by no network without the fold
    data = to_tensors(arrays_of(y, log=True), "cpu")
    run = new_network(*part_of(task.trained, data, given, task.purpose))
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.fill_(1e3 * float(parameter.ndim == 1))  # a bias
    folds = Folds(["two_fold"], Context(new_network(data, given), given))
    folds._predict(run, data, task)
    known = fit("log", y[task.trained.numpy()])
    highest = (known.highest - known.centre) / known.spread
    assert folds.unseen is not None
    np.testing.assert_allclose(folds.unseen[task.predicted, 0], highest.item(), rtol=1e-5)


def test_the_lead_of_a_scale_is_per_datum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standardised noise has -½ log 2πe = -1.42 nats a datum, whatever the number of rows."""
    monkeypatch.setattr(scale_choice, "CURVES", ("identity",))
    y = np.random.default_rng(2).normal(size=(40, 1))
    spec = StudySpec.model_validate(
        {
            "name": "noise", "objective": "conditional_evidence", "n_trials": 1,
            "dataset": {"name": "npz", "path": "data"}, "family": {"linear": {}},
            "plan": {"likelihood": "gaussian", "epochs": 2, "settle": 0, "learning_rate": 1e-4},
        }
    )  # fmt: skip
    found = scale_choice.chosen_scale(spec, arrays_of(y, log=False)).values["identity"]
    assert found == pytest.approx(-0.5 * math.log(2 * math.pi * math.e), abs=0.4)
