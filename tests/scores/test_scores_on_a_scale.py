"""Scores of real targets that networks see on a scale: densities of the targets themselves."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from lone_trials import assert_parking_changes_nothing, run, trained_part
from records import asked
from scipy.stats import multivariate_normal

from nas_evidence.data.arrays import ArrayData
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.evidence.laplace import laplace_estimate
from nas_evidence.evidence.last_layer import last_layer_of, late_given_early
from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.likelihoods.heteroscedastic import Heteroscedastic
from nas_evidence.maths.target_scale import fit
from nas_evidence.scores.folds import (
    OUTSIDE_SUPPORT,
    Folds,
    all_folds,
    cross_fitted,
    density_of,
    log_predictive,
    targets_of_folds,
)
from nas_evidence.scores.protocol import Context
from nas_evidence.scores.sampling import sampled_score
from nas_evidence.spec.dataset import TargetScaleName
from nas_evidence.spec.record import EvidenceEstimate, TrialRecord, TrialStatus
from nas_evidence.spec.study import ArchitectureSpec, Assignment
from nas_evidence.training.online import passes_of, sample_of
from nas_evidence.training.parts import new_network, order_of_data, part_of
from nas_evidence.training.predict_rows import outputs_of, predict_rows
from nas_evidence.workers.trial import Trial

pytestmark = pytest.mark.slow

NAME = "conditional_evidence"


def arrays_of(
    y: np.ndarray, scale: TargetScaleName, *, n_test: int = 20, seed: int = 0
) -> ArrayData:
    """Return targets [n, C] of random inputs, the last rows for the test."""
    x = np.random.default_rng(seed).normal(size=(len(y), 3)).astype(np.float32)
    train, test = y[:-n_test], y[-n_test:]
    return ArrayData(
        "npz", x[:-n_test], train, x[-n_test:], test, task="real", n_outputs=y.shape[1],
        input_shape=(3,), mean=np.zeros(3, np.float32), std=np.ones(3, np.float32),
        y_mean=train.mean(0), y_std=train.std(0),
        fitted_scale=None if scale == "identity" else fit(scale, train),
    )  # fmt: skip


def log_normal(n: int, scale: TargetScaleName = "log", unit: float = 1.0) -> TensorData:
    """Return targets whose logarithm is linear in the inputs, with normal noise."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 3)).astype(np.float32)  # those of `arrays_of`
    y = unit * np.exp(3 + x @ [0.8, -0.5, 0.3] + 0.3 * np.random.default_rng(1).normal(size=n))
    return to_tensors(arrays_of(y[:, None], scale), "cpu")


def assignment_of(*estimators: str, family: str = "linear", **plan: object) -> Assignment:
    values = {} if family == "linear" else {"depth": 1, "width": 5}
    given = {"likelihood": "gaussian", "batch_size": 16, "epochs": 6, "folds": 2, "settle": 0}
    architecture = ArchitectureSpec(family=family, values=values)
    return asked(architecture, estimators, seed=3, **(given | {"online": {"every": 2}} | plan))


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_the_conditional_evidence_of_a_log_normal_linear_model_is_exact(power: float) -> None:
    """N(z_late | z_early) by dense covariances, and κ Σ log |dz/du| of the held-out rows."""
    data, given = log_normal(60), assignment_of(NAME, likelihood_power=power)
    task = all_folds("two_fold", order_of_data(40, given))[0]
    training = new_network(*part_of(task.trained, data, given, "any"))
    training.hyper = replace(training.hyper, scale=0.4)
    found = density_of(task, training, new_network(data, given))["log_density"]

    early, late = task.trained.numpy(), task.predicted.numpy()
    y = data.own.train
    logs = np.log(y[early])
    z = (np.log(y) - logs.mean()) / logs.std()
    phi = np.concatenate([data.x_train.double().numpy(), np.ones((40, 1))], 1)
    deltas = dict(zip(
        [name for name, _ in training.model.named_parameters()],
        training.prior_precision.tolist(), strict=True,
    ))  # fmt: skip
    weight = next(v for name, v in deltas.items() if name.endswith("weight"))
    bias = next(v for name, v in deltas.items() if name.endswith("bias"))
    covariance = phi @ np.diag([1 / weight] * 3 + [1 / bias]) @ phi.T
    noise = 0.4**2 / power

    def log_density(rows: np.ndarray) -> float:
        """Return log q: power κ is a noise s²/κ, less what its normalisation adds."""
        own = covariance[np.ix_(rows, rows)] + noise * np.eye(len(rows))
        extra = (
            0.5
            * len(rows)
            * (math.log(2 * math.pi * noise) - power * math.log(2 * math.pi * 0.4**2))
        )
        return float(multivariate_normal(cov=own).logpdf(z[rows, 0])) + extra

    jacobian = (-np.log(y[late]) - math.log(logs.std()) + math.log(y.std())).sum()
    exact = log_density(np.concatenate([early, late])) - log_density(early) + power * jacobian
    assert found == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_a_conditional_evidence_with_a_noise_of_each_row_has_the_jacobian(power: float) -> None:
    """The density of z of the fold's own scale, and κ Σ log |dz/du| of the held-out rows."""
    data = log_normal(60)
    given = assignment_of(NAME, likelihood="heteroscedastic", likelihood_power=power)
    task = all_folds("two_fold", order_of_data(40, given))[0]
    training = new_network(*part_of(task.trained, data, given, "any"))
    found = density_of(task, training, new_network(data, given))["log_density"]
    rows = torch.cat([task.trained, task.predicted])
    logs = np.log(data.own.train)
    seen = logs[task.trained.numpy()]
    z = torch.from_numpy((logs - seen.mean()) / seen.std())[rows]
    layer = last_layer_of(training.model, data.x_train[rows], training.prior_precision)
    of_z = late_given_early(layer, z, len(task.trained), Heteroscedastic(), power=power).value
    jacobian = -logs[task.predicted.numpy()] - math.log(seen.std()) + math.log(
        data.own.train.std()
    )  # fmt: skip
    assert found == pytest.approx(of_z + power * jacobian.sum(), rel=1e-5)


@pytest.mark.parametrize("family", ["linear", "mlp"])
def test_a_fold_is_that_of_the_logarithms_of_its_training_rows(family: str) -> None:
    """By hand: a training on log y, standardised by the fold's training rows alone."""
    data, given = log_normal(80), assignment_of("two_fold", family=family)
    task = all_folds("two_fold", order_of_data(60, given))[0]
    logs = np.log(data.own.train)
    seen = logs[task.trained.numpy()]
    z = (logs - seen.mean()) / seen.std()
    plain = replace(data, own=None, y_train=torch.from_numpy(z).float())
    part = part_of(task.trained, plain, given, task.purpose)
    alone = trained_part(part)
    rows = task.predicted
    jacobian = -logs[rows] - math.log(seen.std()) + math.log(data.own.train.std())
    outputs = outputs_of(alone.model, data.x_train[rows])
    by_hand = log_predictive(
        outputs.clamp(z[task.trained].min() - 0.5, z[task.trained].max() + 0.5),
        plain.y_train[rows], Gaussian(alone.noise_std),
    ).log_predictive + jacobian.sum()  # fmt: skip
    folds = Folds(["two_fold"], Context(new_network(data, given), given))
    while folds.due():
        folds.advance()
    found = next(fold for fold in folds.done["two_fold"] if fold.number == 1)
    assert found.log_predictive == pytest.approx(by_hand, rel=1e-6)


def scores_of(record: TrialRecord) -> dict[str, float]:
    return {one.estimate.estimator: one.estimate.value for one in record.evaluations}


_ALL = (NAME, "two_fold", "heldout_10", "kfac_ggn", "full_ggn")


@pytest.mark.parametrize(
    ("scale", "likelihood"),
    [
        ("log", "gaussian"),
        ("yeo_johnson", "gaussian"),
        ("sinh_arcsinh", "gaussian"),
        ("log", "heteroscedastic"),
        ("yeo_johnson", "heteroscedastic"),
    ],
)
def test_no_score_depends_on_the_unit_of_the_targets(
    scale: TargetScaleName, likelihood: str, tmp_path: Path
) -> None:
    """Prices in cents; the fits of scales with parameters end at 1e-6 of them."""
    given = assignment_of(*_ALL, family="mlp", likelihood=likelihood)
    one, other = (
        run(given, log_normal(60, scale, unit), tmp_path / str(unit)) for unit in (1.0, 100.0)
    )
    found, again = scores_of(one), scores_of(other)
    assert {*_ALL, "sotl", "train_nll_per_datum", "prequential_epoch1"} <= found.keys()
    for name, value in found.items():
        assert again[name] == pytest.approx(value, rel=1e-3, abs=0.02), name
    assert other.test_nll_per_datum == pytest.approx(one.test_nll_per_datum, abs=1e-3)
    assert other.test_rmse == pytest.approx(100 * one.test_rmse, rel=1e-3)


@pytest.mark.parametrize("likelihood", ["gaussian", "heteroscedastic"])
def test_every_score_of_all_rows_has_the_jacobian_of_all_rows(
    likelihood: str, tmp_path: Path
) -> None:
    """A trial on log y as it is, without a scale, differs by Σ log |dz/du| and nothing else."""
    data = log_normal(60)
    names = ("kfac_ggn", "diag_ef", "full_ggn")
    given = assignment_of(*names, family="mlp", likelihood=likelihood)
    plain = run(given, replace(data, own=None), tmp_path / "plain")
    scaled = run(given, data, tmp_path / "scaled")
    jacobian = data.own.scale.log_jacobian(data.own.train, data.own.unit).sum()
    for name in names:
        gap = scaled.final_estimate(name).value - plain.final_estimate(name).value
        assert gap == pytest.approx(jacobian, rel=1e-9)
        terms = {term.term: term.value for term in scaled.final_estimate(name).terms}
        assert terms["log_jacobian"] == pytest.approx(jacobian, rel=1e-12)
        assert "log_jacobian" not in {t.term for t in plain.final_estimate(name).terms}
    assert scaled.best_evidence - plain.best_evidence == pytest.approx(jacobian, rel=1e-9)
    for one, other in zip(scaled.curve, plain.curve, strict=True):
        gap = other.train_nll_per_datum - one.train_nll_per_datum
        assert gap == pytest.approx(jacobian / 40, rel=1e-9)
        assert other.sotl - one.sotl == pytest.approx(one.epoch * jacobian / 40, rel=1e-9)


def test_the_jacobian_of_a_laplace_value_has_the_likelihood_power() -> None:
    data, given = log_normal(60), assignment_of("full_ggn", likelihood_power=0.3)
    training = new_network(*part_of(None, data, given, "any"))
    passes = passes_of(training)
    (one,) = passes.of("full_ggn")
    plain = laplace_estimate(
        "full_ggn", one, training.model, training.prior_precision, likelihood_power=0.3
    )
    gap = passes.estimate("full_ggn", one).value - plain.value
    assert gap == pytest.approx(0.3 * data.log_jacobian, rel=1e-9)


def test_a_held_out_target_outside_the_support_makes_the_fold_invalid(tmp_path: Path) -> None:
    """The least target, far below the others, is in one fold: log(y + c) of the others ends."""
    y = 1 + np.random.default_rng(2).exponential(1.0, (60, 1))
    y[5] = -200.0
    data = to_tensors(arrays_of(y, "shifted_log"), "cpu")
    record = run(assignment_of(NAME, "two_fold", "kfac_ggn"), data, tmp_path)
    assert record.status is TrialStatus.COMPLETE
    for name in (NAME, "two_fold"):
        found = record.final_estimate(name)
        assert not found.valid
        assert found.note == OUTSIDE_SUPPORT
    assert record.final_estimate("kfac_ggn").valid


def test_targets_of_folds_are_on_the_scale_of_the_fold_that_predicts_them() -> None:
    data, given = log_normal(80, "sinh_arcsinh"), assignment_of(NAME, folds=5)
    found = targets_of_folds(data, given)
    for task in all_folds("five_fold", order_of_data(60, given)):
        z, jacobian = data.seen_from(task.trained, task.predicted)
        assert torch.equal(found.seen[task.predicted], z)
        np.testing.assert_array_equal(found.log_jacobian[task.predicted], jacobian)
        alone = fit("sinh_arcsinh", data.own.train[task.trained.numpy()])
        at = found.scale.at(task.predicted.numpy())
        np.testing.assert_array_equal(at.parameters[:, 0], alone.parameters)


def test_the_factor_on_the_spread_is_fitted_on_the_scales_of_the_folds(tmp_path: Path) -> None:
    data, given = log_normal(80), assignment_of(NAME, epochs=4)
    trial = Trial.start(given, data, tmp_path)
    while trial.status is TrialStatus.RUNNING:
        trial.advance(4)
    factor, (folds,) = (
        trial.finish().spread_factor,
        [scorer for scorer in trial.scorers.values() if isinstance(scorer, Folds)],
    )
    z = targets_of_folds(data, given).seen
    residuals = ((z - folds.unseen[:, :1]) / folds.unseen[:, 1:]).double()
    assert factor == pytest.approx(
        math.sqrt((float(residuals.square().sum()) + 10) / (60 + 10)), rel=1e-6
    )
    assert (cross_fitted(folds.unseen, data, given)[:, 1:] != folds.unseen[:, 1:]).any()


@pytest.mark.slow
def test_a_parked_trial_ends_bit_identical(tmp_path: Path) -> None:
    assert_parking_changes_nothing(
        [NAME, "kfac_ggn"], assignment_of(NAME, "kfac_ggn"), log_normal(60, "yeo_johnson"),
        tmp_path, slices=2,
    )  # fmt: skip


@pytest.mark.parametrize("likelihood", ["gaussian", "heteroscedastic"])
def test_metrics_of_the_test_are_of_what_is_delivered(likelihood: str, tmp_path: Path) -> None:
    """RMSE of the means of log-normal densities, log loss in the fixed unit."""
    data, given = log_normal(60), assignment_of("kfac_ggn", epochs=20, likelihood=likelihood)
    trial = Trial.start(given, data, tmp_path)
    while trial.status is TrialStatus.RUNNING:
        trial.advance(20)
    record, own = trial.finish(), data.own
    predict = predict_rows(trial.network, data.x_train, data.y_train, own)
    outputs = outputs_of(trial.network.model, data.x_test).double()
    means = trial.network.likelihood.mean(outputs)
    m = own.held(means).numpy() * own.scale.spread
    m, s = m + own.scale.centre, predict(data.x_test).spread.numpy() * own.scale.spread
    mean = np.exp(m + s**2 / 2)
    rmse = np.sqrt(np.mean((mean - own.test) ** 2, axis=0)).mean()
    assert record.test_rmse == pytest.approx(rmse, rel=1e-6)
    logs = -0.5 * ((np.log(own.test) - m) / s) ** 2 - np.log(s) - 0.5 * math.log(2 * math.pi)
    loss = -(logs - np.log(own.test)).mean() - math.log(own.unit[0])
    assert record.test_nll_per_datum == pytest.approx(loss, rel=1e-5)


def test_several_targets_have_a_scale_each() -> None:
    rng = np.random.default_rng(4)
    y = np.stack([np.exp(rng.normal(size=80)), 500 + 20 * rng.normal(size=80)], 1)
    data = to_tensors(arrays_of(y, "yeo_johnson"), "cpu")
    for column in range(2):
        alone = fit("yeo_johnson", data.own.train[:, [column]])
        np.testing.assert_array_equal(data.own.scale.parameters[:, column], alone.parameters[:, 0])
    both = data.own.scale.log_jacobian(data.own.train, data.own.unit)
    each = [fit("yeo_johnson", data.own.train[:, [c]]).log_jacobian(
        data.own.train[:, [c]], data.own.unit[[c]]) for c in range(2)]  # fmt: skip
    np.testing.assert_allclose(both, sum(each), rtol=1e-12)


def test_the_noise_is_not_learned_below_the_resolution_of_the_targets(tmp_path: Path) -> None:
    """Two values that a linear network tells apart without error, one unit of log y apart."""
    x = np.repeat([[0.0, 0, 0], [1.0, 0, 0]], 30, 0).astype(np.float32)
    y = np.exp(x[:, :1].astype(float))
    arrays = replace(arrays_of(y, "log", n_test=1), x_train=x[:-1], x_test=x[-1:])
    data, given = to_tensors(arrays, "cpu"), assignment_of("kfac_ggn", epochs=60)
    gap = 1 / np.log(y[:-1]).std()
    assert data.least_noise == pytest.approx(gap / math.sqrt(2 * math.pi), rel=1e-9)
    found = run(given, data, tmp_path / "scaled")
    assert found.noise_std == pytest.approx(data.least_noise, rel=1e-9)
    assert run(given, replace(data, own=None), tmp_path / "plain").noise_std < data.least_noise


def test_a_settled_evidence_has_the_jacobian(tmp_path: Path) -> None:
    """What is kept is decided by comparing both evidences, so both must have it."""
    data, given = log_normal(60), assignment_of("full_ggn", epochs=20, settle=1.0)
    plain = run(given, replace(data, own=None), tmp_path / "plain")
    scaled = run(given, data, tmp_path / "scaled")
    assert (scaled.kept, plain.kept) == ("settled", "settled")
    assert scaled.best_evidence - plain.best_evidence == pytest.approx(data.log_jacobian, rel=1e-9)


def test_the_sample_of_an_update_has_the_targets_of_its_own_rows() -> None:
    data = log_normal(60)
    given = assignment_of(online={"every": 2, "rows": 16})
    sample = sample_of(data, given.plan.online.rows)
    np.testing.assert_allclose(
        data.own.scale.standardised(sample.own.train), sample.y_train, rtol=1e-5, atol=1e-6
    )
    each = data.own.scale.log_jacobian(sample.own.train, data.own.unit)
    assert sample.log_jacobian == pytest.approx(each.sum(), rel=1e-12)


def test_a_sampled_evidence_has_the_jacobian() -> None:
    data, given = log_normal(60), assignment_of("sgd_entropy")
    context = Context(new_network(data, given), given)

    def sampled(*given: object, **known: object) -> EvidenceEstimate:
        return EvidenceEstimate(estimator="sgd_entropy", value=-80.0, per_datum=-2.0)

    found = sampled_score("sgd_entropy", sampled, context)
    assert found.value == pytest.approx(-80 + data.log_jacobian)
    assert found.per_datum == pytest.approx(-2 + data.log_jacobian / 40)
