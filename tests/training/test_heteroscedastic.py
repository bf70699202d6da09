"""Training where the noise of each row is an output of the network."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from lone_trials import ended
from torch.distributions import Normal
from torch.testing import assert_close

from nas_evidence.curvature import curvature_pass
from nas_evidence.data.tensors import TensorData
from nas_evidence.evidence.laplace import laplace_estimate, squared_norms
from nas_evidence.likelihoods.heteroscedastic import Heteroscedastic
from nas_evidence.spec.study import ArchitectureSpec, Assignment, DatasetSpec, TrainingPlan
from nas_evidence.training.loop import train_epoch
from nas_evidence.training.online import (
    passes_of,
    update_hyperparameters,
)
from nas_evidence.training.parts import new_network, part_of
from nas_evidence.training.predict_rows import predict_rows
from nas_evidence.workers.trial import Trial


def growing(n: int, n_test: int = 0, *, seed: int = 0, noise: float | None = None) -> TensorData:
    """y = sin 2x plus noise that grows from 0.1 to 1.1 with x, or one noise; standardised."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, (n + n_test, 1))
    std = 0.1 + 0.25 * (x + 2) if noise is None else noise
    y = np.sin(2 * x) + std * rng.normal(size=x.shape)
    mean, unit = y[:n].mean(), y[:n].std()
    x, y = (torch.from_numpy(part).float() for part in (x, (y - mean) / unit))
    moments = torch.tensor([mean]), torch.tensor([unit])
    return TensorData(x[:n], y[:n], x[n:], y[n:], "real", 1, (1,), *moments)


def asked(*estimators: str, width: int = 20, likelihood: str = "heteroscedastic", **plan: object
) -> Assignment:  # fmt: skip
    return Assignment(
        trial_id=0, attempt=1, replicate=0, seed=0, estimators=estimators,
        architecture=ArchitectureSpec(family="mlp", values={"depth": 1, "width": width}),
        dataset=DatasetSpec(name="diabetes"),
        plan={
            "likelihood": likelihood, "epochs": 30, "batch_size": 32, "optimiser": "adam",
            "learning_rate": 0.02, **plan,
        },
    )  # fmt: skip


def test_the_head_has_two_outputs_for_each_target() -> None:
    data = growing(40)
    model = new_network(*part_of(None, data, asked(), "any")).model
    assert model(data.x_train).shape == (40, 2)
    assert TrainingPlan(likelihood="heteroscedastic").head_width(3) == 6
    assert [TrainingPlan(likelihood=name).head_width(3) for name in ("gaussian", "categorical")] \
        == [3, 3]  # fmt: skip


def test_an_update_raises_the_evidence_and_leaves_noise_and_temperature() -> None:
    data, given = growing(60), asked()
    state = new_network(*part_of(None, data, given, "any"))
    train_epoch(state, n_epochs=5)
    kind = given.plan.online.curvature

    def evidence() -> float:
        pass_ = passes_of(state).of(kind)[0]
        return laplace_estimate(kind, pass_, state.model, state.prior_precision).value

    before = evidence()
    update_hyperparameters([passes_of(state)])
    assert evidence() > before + 0.1
    assert state.noise_std == 1.0
    assert state.curve[-1].noise_std is None
    assert state.curve[-1].temperature is None


def test_the_gain_is_over_the_best_constant_mean_and_noise() -> None:
    data, given = growing(50), asked()
    state = new_network(*part_of(None, data, given, "any"))
    pass_ = curvature_pass(
        "diag_ggn", state.model, data.x_train, data.y_train, Heteroscedastic(), batch_size=50
    )
    y = data.y_train.double()
    best = Normal(y.mean(), y.std(correction=0)).log_prob(y).sum()
    found = Heteroscedastic().gain(pass_, data.y_train, learned=True)
    assert found == pytest.approx(pass_.log_likelihood - float(best))
    constant = torch.ones_like(data.y_train)
    assert Heteroscedastic().gain(pass_, constant, learned=True) == -math.inf


def test_only_absurd_losses_are_divergence() -> None:
    y = torch.zeros(4, 2).double()

    tau = 0.01**-2  # far from 0 softplus is the identity
    for error, absurd in ((90.0, False), (110.0, True)):
        outputs = torch.tensor([[tau * error] * 2 + [tau] * 2]).double().expand(4, 4)
        loss = float(Heteroscedastic().nll_mean(outputs, y))
        assert (loss > Heteroscedastic().loss_limit(2)) == absurd


def test_the_spread_is_that_of_the_row_and_of_the_mean_by_dense_algebra() -> None:
    data, given = growing(40), asked(width=4)
    state = new_network(*part_of(None, data, given, "any"))
    train_epoch(state, n_epochs=20)
    model = state.model.double().eval()
    x, names = data.x_train.double(), [name for name, _ in model.named_parameters()]
    jacobians = torch.func.vmap(
        torch.func.jacrev(lambda p, one: torch.func.functional_call(model, p, (one[None],))[0]),
        in_dims=(None, 0),
    )({n: p.detach() for n, p in model.named_parameters()}, x)
    j = torch.cat([jacobians[name].flatten(2) for name in names], 2)  # [n, 2, P]
    outputs = model(x).detach()
    roots = Heteroscedastic().hessian_roots(outputs)
    slopes = torch.func.vmap(torch.func.jacrev(Heteroscedastic().mean))(outputs)[:, 0]  # [n, 2]
    sizes = torch.tensor([p.numel() for p in model.parameters()])
    prior = state.prior_precision.repeat_interleave(sizes)
    columns = torch.einsum("knc,ncp->knp", roots, j).flatten(0, 1)
    precision = columns.mT @ columns + prior.diag()
    of_mean = torch.einsum("nc,ncp->np", slopes, j)
    of_mean = torch.einsum("np,pq,nq->n", of_mean, torch.linalg.inv(precision), of_mean)
    predict = predict_rows(state, x, data.y_train.double())
    assert_close(
        predict(x).spread[:, 0],
        (Heteroscedastic().variance(outputs)[:, 0] + of_mean).sqrt(),
        rtol=1e-6,
        atol=0,
    )


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trial]:
    """Trials of both likelihoods on growing noise, and on one noise, finished."""
    found = {}
    for noise in (None, 0.3):
        data = growing(400, 4000, noise=noise)
        for likelihood in ("gaussian", "heteroscedastic"):
            given = asked("conditional_evidence", "kfac_ggn", likelihood=likelihood, epochs=60)
            trial = Trial.start(given, data, tmp_path_factory.mktemp("trial"))
            trial.record = ended(trial)  # type: ignore[attr-defined]
            found[f"{likelihood} {noise}"] = trial
    return found


def _per_datum(trial: Trial, name: str) -> float:
    estimate = trial.record.final_estimate(name)  # type: ignore[attr-defined]
    assert estimate.valid
    return float(estimate.per_datum)


@pytest.mark.long
@pytest.mark.slow
def test_conditional_evidence_tells_growing_noise_from_one_noise(pairs: dict[str, Trial]) -> None:
    name = "conditional_evidence"
    gain = [
        _per_datum(pairs[f"heteroscedastic {noise}"], name)
        - _per_datum(pairs[f"gaussian {noise}"], name)
        for noise in (None, 0.3)
    ]
    assert gain[0] > 0.1
    assert -0.05 < gain[1] < 0.05


@pytest.mark.long
@pytest.mark.slow
def test_intervals_cover_as_often_where_noise_is_small_as_where_it_is_large(
    pairs: dict[str, Trial],
) -> None:
    def coverage(likelihood: str) -> list[float]:
        trial = pairs[f"{likelihood} None"]
        data, state = trial.data, trial.network
        assert state is not None
        predict = predict_rows(state, data.x_train, data.y_train)
        found = predict(data.x_test).at(trial.record.spread_factor)  # type: ignore[attr-defined]
        mean, wide = found.outputs[:, 0].double(), found.spread[:, 0]
        covered = ((data.y_test[:, 0].double() - mean) / wide).abs() < 1.6449
        # Quarters by the predicted spread; of one noise by x, with which the true noise grows.
        by = wide if likelihood == "heteroscedastic" else data.x_test[:, 0]
        return [float(covered[rows].double().mean()) for rows in by.argsort().chunk(4)]

    assert all(0.83 < share < 0.97 for share in coverage("heteroscedastic"))
    first, *_, last = coverage("gaussian")
    assert first > 0.97
    assert last < 0.84


@pytest.mark.slow
def test_scores_and_metrics_of_several_targets_are_those_of_their_definition(
    tmp_path: Path,
) -> None:
    one = growing(50, 30)
    two = (torch.cat([part, -2 * part + 0.1], 1) for part in (one.y_train, one.y_test))
    y_train, y_test = two
    moments = torch.zeros(2).double(), torch.tensor([3.0, 0.5]).double()
    data = TensorData(one.x_train, y_train, one.x_test, y_test, "real", 2, (1,), *moments)
    names = ("diag_ggn", "sotl", "two_fold", "conditional_evidence")
    given = asked(*names, epochs=8, settle=0.0, online={"every": 4}, folds=2)
    trial = Trial.start(given, data, tmp_path)
    record = ended(trial)
    state = trial.network
    assert state is not None
    with torch.no_grad():
        outputs = state.model.eval()(data.x_test).double()
    assert outputs.shape == (30, 4)
    means = Heteroscedastic().mean(outputs)
    error = (means - data.y_test) * data.y_std
    assert record.test_rmse == pytest.approx(float(error.square().mean(0).sqrt().mean()), rel=1e-5)
    predict = predict_rows(state, data.x_train, data.y_train)
    spread = record.spread_factor * predict(data.x_test).spread
    nll = -Normal(means, spread).log_prob(data.y_test.double()).sum(1).mean()
    assert record.test_nll_per_datum == pytest.approx(float(nll), rel=1e-5)
    assert (record.noise_std, record.temperature) == (None, None)
    theta = squared_norms(state.model)
    assert theta.shape == state.prior_precision.shape
    for name in names:
        found = record.final_estimate(name)
        assert found is not None
        assert found.valid, (name, found.note)
    losses = [point.train_nll_per_datum for point in record.curve]
    found = record.final_estimate("sotl")
    assert found is not None
    assert found.value == pytest.approx(-sum(losses))
