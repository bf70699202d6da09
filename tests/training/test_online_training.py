"""Training with learned hyperparameters: closed forms, brute force, resumption."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from lone_trials import evaluated, run
from records import asked
from safetensors import safe_open
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, Normal
from torch.testing import assert_close

from nas_evidence import estimate_evidence
from nas_evidence.curvature.batch_rows import rows_at_once
from nas_evidence.data.tensors import TensorData
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.spec.record import TrialStatus
from nas_evidence.spec.schedule import stops
from nas_evidence.spec.study import ArchitectureSpec, Assignment
from nas_evidence.testing.executor_contract import without_times
from nas_evidence.training.loop import train_epoch
from nas_evidence.training.network import Network, begin
from nas_evidence.training.predict_rows import predict_rows
from nas_evidence.workers.trial import Trial

GAUSSIAN = {"likelihood": "gaussian"}


def tensor_data(x: Tensor, y: Tensor, n_train: int) -> TensorData:
    real = y.is_floating_point()
    width = y.shape[1] if real else int(y.max()) + 1
    mean = y[:n_train].double().mean(0) if real else torch.zeros(width).double()
    std = y[:n_train].double().std(0) if real else torch.ones(width).double()
    scaled = ((y - mean) / std).to(x.dtype) if real else y
    return TensorData(
        x_train=x[:n_train],
        y_train=scaled[:n_train],
        x_test=x[n_train:],
        y_test=scaled[n_train:],
        task="real" if real else "labels",
        n_outputs=width,
        input_shape=tuple(x.shape[1:]),
        y_mean=mean,
        y_std=std,
    )


def real_data(n_outputs: int = 2) -> TensorData:
    random = torch.Generator().manual_seed(n_outputs)
    x = torch.randn(90, 3, generator=random)
    truth = torch.randn(3, n_outputs, generator=random)
    noise = 0.3 * torch.randn(90, n_outputs, generator=random)
    return tensor_data(x, 50 + 7 * (torch.sin(x) @ truth + noise), 60)


def label_data() -> TensorData:
    random = torch.Generator().manual_seed(5)
    x = torch.randn(150, 3, generator=random)
    logits = x @ torch.randn(3, 3, generator=random) + torch.randn(150, 3, generator=random)
    return tensor_data(x, logits.argmax(1), 110)


def assignment(plan: dict[str, object], *, family: str = "mlp", estimators: tuple[str, ...] = ()):
    values = {"depth": 1, "width": 6} if family == "mlp" else {}
    return asked(
        ArchitectureSpec(family=family, values=values),
        estimators,
        followed=estimators,
        seed=3,
        **({"settle": 0} | plan),
    )


def trained(model: nn.Module, data: TensorData, given: Assignment) -> Network:
    state = begin(model, data, given.plan, given.seed)
    for stop in stops(given.plan):
        train_epoch(state, n_epochs=stop.epoch - state.epoch)
        evaluated(state, given)
    return state


def _in_double(data: TensorData) -> TensorData:
    return dataclasses.replace(data, x_train=data.x_train.double(), y_train=data.y_train.double())


def full_batch(**plan: object) -> dict[str, object]:
    return {"batch_size": 1000, "learning_rate": 0.1, "schedule": "constant", **plan}


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("kappa", [1.0, 4.0])
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_the_mode_of_a_linear_model_is_ridge_regression(n_outputs: int, kappa: float) -> None:
    # A reference code averages the squares over outputs too: its prior is n_outputs times ours.
    data = _in_double(real_data(n_outputs))
    noise_std, delta = 0.2, 30.0
    plan = full_batch(
        epochs=400, noise_std=noise_std, prior_precision=delta, likelihood_power=kappa, **GAUSSIAN
    )
    given = assignment({**plan, "online": {"burn_in": 1000}})
    model = nn.Linear(3, n_outputs).double()
    trained(model, data, given)
    features = torch.cat([data.x_train, torch.ones(60, 1).double()], 1)
    ridge = features.T @ features + delta * noise_std**2 / kappa * torch.eye(4).double()
    mode = torch.linalg.solve(ridge, features.T @ data.y_train)
    assert_close(model.weight.detach(), mode[:3].T, rtol=1e-7, atol=1e-9)
    assert_close(model.bias.detach(), mode[3], rtol=1e-7, atol=1e-9)


@pytest.mark.slow
def test_steps_stay_stable_when_the_noise_is_small() -> None:
    plan = full_batch(epochs=200, noise_std=1e-3, **GAUSSIAN, online={"burn_in": 1000})
    data = _in_double(real_data(1))
    torch.manual_seed(0)
    state = trained(nn.Linear(3, 1).double(), data, assignment(plan))
    losses = [point.train_nll_per_datum for point in state.curve]
    assert losses[-1] < 2e5 < losses[0]  # 0.5 / 1e-6 nats is a residual of one


def _exact_log_evidence(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Bayesian linear regression, z = (log δ of the weight, log δ of the bias, log s²)."""
    weight, bias, variance = z.exp()
    covariance = x @ x.T / weight + 1 / bias + variance * torch.eye(len(x)).double()
    return MultivariateNormal(torch.zeros(len(x)).double(), covariance).log_prob(y.T).sum()


def _type_two_maximum(x: Tensor, y: Tensor) -> tuple[Tensor, float]:
    def loss(z: np.ndarray) -> tuple[float, np.ndarray]:
        at = torch.tensor(z, requires_grad=True)
        value = -_exact_log_evidence(x, y, at)
        (gradient,) = torch.autograd.grad(value, at)
        return value.item(), gradient.numpy()

    found = minimize(loss, np.zeros(3), jac=True, method="BFGS", options={"gtol": 1e-7})
    return torch.from_numpy(found.x), -float(found.fun)


@pytest.mark.slow
def test_prior_noise_and_evidence_end_at_the_maximum_of_the_exact_evidence() -> None:
    data = _in_double(real_data(1))
    # Centred inputs: weight and bias are then independent, and blocks are the full curvature.
    x = data.x_train - data.x_train.mean(0)
    data = dataclasses.replace(data, x_train=x, y_train=data.y_train + 0.8)
    plan = full_batch(epochs=500, **GAUSSIAN, online={"every": 25, "curvature": "block_ggn"})
    given = assignment(plan, estimators=("full_ggn", "block_ggn"))
    state = trained(nn.Linear(3, 1).double(), data, given)
    z, best = _type_two_maximum(x, data.y_train)
    learned = torch.cat(
        [state.prior_precision.log(), torch.tensor([2 * math.log(state.noise_std)])]
    )
    assert_close(learned, z, rtol=0, atol=1e-5)
    last = {e.estimate.estimator: e.estimate for e in state.evaluations if e.epoch == 500}
    assert_close(last["full_ggn"].value, best, rtol=0, atol=1e-7)
    assert_close(last["block_ggn"].value, best, rtol=0, atol=1e-7)
    assert_close(state.best_evidence, best, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("kind", ["diag_ef", "kfac_ggn"])
@pytest.mark.parametrize("likelihood", ["gaussian", "categorical"])
def test_a_likelihood_power_of_two_is_every_datum_twice(likelihood: str, kind: str) -> None:
    data = real_data() if likelihood == "gaussian" else label_data()
    x, y = data.x_train.double(), data.y_train
    y = y.double() if likelihood == "gaussian" else y
    once = dataclasses.replace(data, x_train=x, y_train=y)
    twice = dataclasses.replace(data, x_train=torch.cat([x, x]), y_train=torch.cat([y, y]))
    plan = full_batch(epochs=12, likelihood=likelihood, online={"every": 4, "curvature": kind})
    states = []
    for given, power in ((once, 2.0), (twice, 1.0)):
        model = nn.Linear(3, given.n_outputs).double()
        nn.init.constant_(model.weight, 0.1), nn.init.zeros_(model.bias)
        wanted = assignment({**plan, "likelihood_power": power}, estimators=(kind, "full_ggn"))
        states.append(trained(model, given, wanted))
    assert_close(states[0].prior_precision, states[1].prior_precision, rtol=1e-7, atol=0)
    assert_close(states[0].noise_std, states[1].noise_std, rtol=1e-8, atol=0)
    last = [
        [e.estimate for e in s.evaluations if e.epoch == 12 and e.estimate.terms] for s in states
    ]
    for tempered, doubled in zip(*last, strict=True):
        assert_close(tempered.value, doubled.value, rtol=1e-8, atol=0)
        assert "likelihood power 2" in tempered.note
    point, other = (s.curve[-1].train_nll_per_datum for s in states)
    assert_close(point, other, rtol=1e-8, atol=0)  # not tempered


def test_the_last_evaluation_is_what_the_public_call_says(tmp_path: Path) -> None:
    kinds = ("kfac_ggn_mc", "diag_ggn", "full_ggn")
    plan = {"epochs": 6, "online": {"every": 2}, "temperature": 1.7}
    given = assignment(plan, estimators=kinds)
    data = label_data()
    trial = Trial.start(given, data, tmp_path)
    trial.advance(6)
    state = trial.network
    record = trial.finish()
    for kind in kinds:
        found = record.final_estimate(kind)
        seed = given.derived_seed(f"curvature:{kind}", 6)
        expected = estimate_evidence(
            state.model,
            data.x_train,
            data.y_train,
            likelihood="categorical",
            curvature=kind,
            prior_precision=state.prior_precision,
            temperature=1.7,
            batch_size=rows_at_once(state.model, data.x_train),
            generator=torch.Generator().manual_seed(seed),
            n_draws=4,
        )
        assert_close(found.value, expected.value, rtol=1e-12, atol=0)
        assert found.standard_error == pytest.approx(expected.standard_error)
        assert (found.standard_error is not None) == kind.endswith("_mc")
        norm = {t.term: t.value for t in found.terms}["gradient_norm_squared"]
        assert ("not at a mode" in found.note) == (norm > 1)
    for evaluation in record.evaluations:
        if evaluation.epoch < 6:
            assert evaluation.estimate.standard_error is None
            assert "gradient_norm_squared" not in {t.term for t in evaluation.estimate.terms}


def test_weights_keep_one_precision_a_tensor_in_the_header(tmp_path: Path) -> None:
    given = assignment({"epochs": 2, **GAUSSIAN, "online": {"every": 2}})
    trial = Trial.start(given, real_data(), tmp_path)
    trial.advance(2)
    record = trial.finish()
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        header, names = file.metadata(), set(file.keys())
    assert set(json.loads(header["prior_precision"])) == names
    noises = json.loads(header["noise_std"])  # of each target; the column has their mean
    assert math.prod(noises) ** (1 / len(noises)) == pytest.approx(record.noise_std)
    assert float(header["temperature"]) == 1.0


PLANS: dict[str, dict[str, object]] = {
    "noise": {**GAUSSIAN, "online": {"every": 2, "curvature": "kfac_ggn_mc"}},
    "noise_adam": {**GAUSSIAN, "online": {"every": 2, "hyper_step": "adam"}},
    "power": {"likelihood_power": 3.0, "online": {"every": 2, "curvature": "kfac_ggn"}},
    "noise_of_each_row": {"likelihood": "heteroscedastic", "online": {"every": 2}},
    "scalar": {"online": {"every": 2, "curvature": "diag_ggn", "prior_groups": "scalar"}},
}


def _weights(folder: Path) -> tuple[dict[str, str], dict[str, bytes]]:
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        tensors = {name: file.get_tensor(name).numpy().tobytes() for name in file.keys()}  # noqa: SIM118
        return file.metadata(), tensors


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_a_resumed_trial_is_bit_identical_with_every_feature(name: str, tmp_path: Path) -> None:
    plan = {"epochs": 9, "batch_size": 16, **PLANS[name]}
    data = real_data() if plan.get("likelihood") else label_data()
    given = assignment(plan, estimators=("diag_ef", "diag_ggn_mc"))
    whole = run(given, data, tmp_path / "whole")
    assert whole.status is TrialStatus.COMPLETE, whole.error
    assert (whole.noise_std is None) == (plan.get("likelihood") != "gaussian")
    for cut in (2, 5, whole.epochs):
        folder = tmp_path / f"cut{cut}"
        Trial.start(given, data, folder).advance(cut)
        torch.manual_seed(cut)
        trial = Trial.start(given, data, folder / "2", resume_from=folder)
        trial.advance(9)
        assert without_times(trial.finish()) == without_times(whole)
        old, new = (_weights(f) for f in (tmp_path / "whole", folder / "2"))
        assert old == new


@pytest.mark.slow
def test_noise_is_learned_only_when_asked(tmp_path: Path) -> None:
    records = {}
    for learn in (True, False):
        plan = {"epochs": 10, **GAUSSIAN, "noise_std": 1.5}
        given = assignment({**plan, "online": {"every": 2, "learn_noise": learn}})
        records[learn] = run(given, real_data(), tmp_path / str(learn))
    assert records[False].noise_std == 1.5
    assert records[True].noise_std != 1.5
    assert {p.noise_std for p in records[False].curve} == {1.5}
    assert {p.temperature for p in records[False].curve} == {None}
    assert len({p.noise_std for p in records[True].curve}) == 5  # as it stood in each epoch


@pytest.mark.slow
def test_real_targets_are_tested_in_their_own_unit(tmp_path: Path) -> None:
    data = real_data()
    trial = Trial.start(assignment({"epochs": 3, **GAUSSIAN}), data, tmp_path)
    trial.advance(3)
    record = trial.finish()
    with torch.no_grad():
        outputs = trial.network.model.eval()(data.x_test)
    own = outputs.double() * data.y_std + data.y_mean
    truth = data.y_test.double() * data.y_std + data.y_mean
    rmse = (own - truth).square().mean(0).sqrt().mean()
    assert_close(record.test_rmse, rmse.item(), rtol=1e-5, atol=0)
    assert record.noise_std is not None
    predict = predict_rows(trial.network, data.x_train, data.y_train)
    wide = Normal(outputs.double(), predict(data.x_test).spread)
    nll = -wide.log_prob(data.y_test.double()).sum(1).mean().item()
    assert_close(record.test_nll_per_datum, nll, rtol=1e-6, atol=0)
    assert (record.test_accuracy, record.temperature) == (None, None)
    assert 1 < record.test_rmse < 20  # the targets vary by about 7


@pytest.mark.parametrize("noise_std", [1.0, 0.1])
def test_absurd_losses_are_divergence_at_any_noise(noise_std: float) -> None:
    limit = Gaussian(noise_std).loss_limit(2)
    y = torch.ones(5, 2).double()  # a constant prediction of 0 has a squared error of 1
    for factor, absurd in ((90.0, False), (110.0, True)):
        loss = Gaussian(noise_std).nll_mean(y * (1 + factor), y).item()
        assert (loss > limit) == absurd
    assert Categorical().loss_limit(10) == pytest.approx(1e4 * math.log(10))


def test_a_finite_but_absurd_run_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nas_evidence.training.together.GRADIENT_CLIP", 0.0)
    # Steps that grow without reaching infinity within the epoch.
    plan = full_batch(epochs=30, **GAUSSIAN) | {"learning_rate": 5.0}
    record = run(assignment(plan, family="linear"), real_data(), tmp_path)
    assert record.status is TrialStatus.DIVERGED
    assert "is allowed" in record.cause
    loss = float(record.cause.split("training loss is ")[1].split()[0])
    assert math.isfinite(loss)
