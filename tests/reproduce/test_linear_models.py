"""Linear models of Lyle et al. 2020: sums of predictions, draws by descent, combinations."""

import math

import pytest
import reproduced  # noqa: F401, before the scripts
import torch
from torch import Tensor

from nas_evidence.evidence.exact_linear import log_evidence_of_linear, mode_of_linear
from nas_evidence_reproduce._incremental import (
    Predictions,
    bounds_of_draws,
    predictions,
    sampled_bounds,
)
from nas_evidence_reproduce._sample_then_optimise import bounds_over_orders, outputs_before_each
from nas_evidence_reproduce.lyle_fig5 import combination_weights

PRECISION = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)
NOISE = 0.6
GIVEN = {"prior_precision": PRECISION, "noise_std": NOISE}


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    phi = torch.randn(14, 3, dtype=torch.float64, generator=generator)
    return phi, torch.randn(14, dtype=torch.float64, generator=generator)


def known(order: Tensor | None = None) -> Predictions:
    phi, y = data()
    rows = torch.arange(14) if order is None else order
    return predictions(phi[rows], y[rows], **GIVEN)


def test_the_predictions_multiply_to_the_evidence_in_every_order() -> None:
    phi, y = data()
    exact = log_evidence_of_linear(phi, y[:, None], **GIVEN)
    assert known().log_evidence() == pytest.approx(exact, abs=1e-10)
    shuffled = known(torch.randperm(14, generator=torch.Generator().manual_seed(0)))
    assert shuffled.log_evidence() == pytest.approx(exact, abs=1e-10)
    assert shuffled.expected_bound() != pytest.approx(known().expected_bound(), abs=1e-3)


def test_the_closed_form_evidence_is_that_of_the_dense_normal() -> None:
    phi, y = data()
    covariance = phi @ torch.diag(1 / PRECISION) @ phi.T + NOISE**2 * torch.eye(14).double()
    normal = torch.distributions.MultivariateNormal(torch.zeros(14).double(), covariance)
    both = torch.stack([y, 2 * y], 1)
    found = log_evidence_of_linear(phi, both, **GIVEN)
    assert found == pytest.approx(float(normal.log_prob(both.T).sum()), abs=1e-10)
    mode = mode_of_linear(phi, both, **GIVEN)
    gradient = phi.T @ (both - phi @ mode) / NOISE**2 - PRECISION[:, None] * mode
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-10)


def test_the_first_bound_is_short_by_the_divergence_of_successive_posteriors() -> None:
    phi, y = data()

    def posterior(n: int) -> torch.distributions.MultivariateNormal:
        precision = phi[:n].T @ phi[:n] / NOISE**2 + torch.diag(PRECISION)
        mean = torch.linalg.solve(precision, phi[:n].T @ y[:n] / NOISE**2)
        return torch.distributions.MultivariateNormal(mean, precision_matrix=precision)

    divergence = sum(
        float(torch.distributions.kl_divergence(posterior(i), posterior(i + 1))) for i in range(14)
    )
    found = known()
    assert found.log_evidence() - found.expected_bound() == pytest.approx(divergence, abs=1e-9)


def test_sampled_bounds_have_the_means_in_closed_form() -> None:
    """L within 5 standard errors of E L, L_S of log p(D) plus its bias; L_k in between."""
    generator, found = torch.Generator().manual_seed(0), known()
    runs = [sampled_bounds(found, n_draws=10, generator=generator) for _ in range(600)]
    mean_log = torch.tensor([run.mean_log for run in runs], dtype=torch.float64)
    moments = torch.tensor([run.moments for run in runs], dtype=torch.float64)
    log_mean = torch.tensor([run.log_mean for run in runs], dtype=torch.float64)
    exact = found.log_evidence()
    for values, expected in (
        (mean_log, found.expected_bound()),
        (moments, exact + found.expected_moment_bias(10)),
    ):
        assert abs(float(values.mean()) - expected) < 5 * float(values.std()) / 600**0.5
    assert found.expected_bound() < float(log_mean.mean()) < exact
    assert found.expected_moment_bias(10) < 0


def test_more_draws_bring_the_second_bound_nearer() -> None:
    generator, found = torch.Generator().manual_seed(0), known()
    gaps = []
    for k in (2, 8, 64):
        runs = [sampled_bounds(found, n_draws=k, generator=generator) for _ in range(200)]
        gaps.append(found.log_evidence() - sum(run.log_mean for run in runs) / 200)
    assert gaps[0] > gaps[1] > gaps[2] > 0


def test_too_few_draws_are_refused_or_have_no_mean() -> None:
    few = {"n_draws": 1, "generator": torch.Generator()}
    with pytest.raises(ValueError, match="n_draws >= 2"):
        sampled_bounds(known(), **few)
    with pytest.raises(ValueError, match="n_draws >= 2"):
        bounds_over_orders(*data(), **GIVEN, n_orders=1, **few)
    assert known().expected_moment_bias(3) == -math.inf


def test_the_bias_of_the_moments_at_one_standard_deviation() -> None:
    one = torch.ones(1, dtype=torch.float64)
    found = Predictions(one, 0 * one, 0.75 * one, 0.5)
    assert found.expected_moment_bias(10) == pytest.approx(-0.1495, abs=1e-4)


# --- draws by descent


def draws(n_draws: int, n_steps: int | None = None) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return outputs_before_each(
        *data(), **GIVEN, n_draws=n_draws, n_steps=n_steps, generator=generator
    )


def test_optimised_samples_have_the_mean_and_variance_of_the_posterior_predictive() -> None:
    exact, n = known(), 20_000
    found = draws(n)
    error = (exact.variance / n).sqrt()
    assert bool(((found.mean(0) - exact.mean).abs() < 5 * error).all())
    ratio = found.var(0) / exact.variance
    assert bool(((ratio - 1).abs() < 5 * (2 / n) ** 0.5).all())


@pytest.mark.slow
def test_long_descents_end_at_the_optimum_and_short_ones_do_not() -> None:
    closed = draws(4)
    torch.testing.assert_close(draws(4, 3000), closed, rtol=0, atol=1e-8)
    assert float((draws(4, 2) - closed).abs().max()) > 1e-2


def test_a_prediction_does_not_depend_on_its_own_target() -> None:
    phi, y = data()
    changed = y.clone()
    changed[7] += 100
    first, other = (
        outputs_before_each(phi, t, **GIVEN, n_draws=3, generator=torch.Generator().manual_seed(0))
        for t in (y, changed)
    )
    assert torch.equal(first[:, :8], other[:, :8])
    assert not torch.equal(first[:, 8:], other[:, 8:])


@pytest.mark.slow
def test_bounds_of_descents_agree_with_those_of_exact_draws() -> None:
    """Means over 400 runs in one order, within 5 standard errors; orders differ."""
    phi, y = data()
    exact = known()
    generator = torch.Generator().manual_seed(0)
    drawn = [sampled_bounds(exact, n_draws=4, generator=generator).log_mean for _ in range(400)]
    descended = []
    for _ in range(400):
        outputs = outputs_before_each(phi, y, **GIVEN, n_draws=4, generator=generator)
        found = bounds_of_draws(outputs, y, noise_std=NOISE, generator=generator)
        descended.append(found.log_mean)
    a, b = torch.tensor(drawn), torch.tensor(descended)
    error = float((a.var() / 400 + b.var() / 400).sqrt())
    assert abs(float(a.mean() - b.mean())) < 5 * error
    over = bounds_over_orders(phi, y, **GIVEN, n_draws=4, n_orders=3, generator=generator)
    assert len({one.log_mean for one in over}) == 3


# --- combinations of models


def orthogonal_models(alpha: float) -> tuple[Tensor, Tensor, Tensor]:
    """Five models of share alpha with errors orthogonal to the targets and each other."""
    generator = torch.Generator().manual_seed(3)
    basis = torch.linalg.qr(torch.randn(12, 6, dtype=torch.float64, generator=generator))[0]
    y, spread = 2.5 * basis[:, 0], torch.tensor([0.4, 0.7, 1.0, 1.5, 3.0]).double()
    return alpha * y[:, None] + spread * basis[:, 1:], y, spread.square()


@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_with_orthogonal_errors_weights_are_inverse_to_the_errors(alpha: float) -> None:
    means, y, errors = orthogonal_models(alpha)
    variances = torch.tensor([0.5, 0.0, 0.1, 0.0, 2.0]).double()
    found = combination_weights(means, y, variances)
    squared, both = y.square().sum(), errors + variances
    closed = alpha * squared / (1 + alpha**2 * squared * (1 / both).sum()) / both
    torch.testing.assert_close(found, closed, rtol=0, atol=1e-12)
    assert int(found.argmax()) == int(both.argmin())


def test_the_weights_minimise_the_expected_loss() -> None:
    """Against the gradient of the loss written out, and by draws of the noise."""
    means, y, _ = orthogonal_models(0.8)
    variances = torch.tensor([0.5, 0.2, 0.1, 0.3, 2.0]).double()
    w = combination_weights(means, y, variances).requires_grad_()
    loss = (means @ w - y).square().sum() + (variances * w.square()).sum()
    loss.backward()
    assert float(w.grad.abs().max()) < 1e-12
    noise = torch.randn(20_000, 12, 5, dtype=torch.float64, generator=torch.Generator())
    phi = means + noise * (variances / 12).sqrt()
    drawn = (phi @ w.detach() - y).square().sum(1)
    error = float(drawn.std()) / 20_000**0.5
    assert float(drawn.mean()) == pytest.approx(loss.item(), abs=5 * error)


def test_correlated_errors_can_give_the_largest_weight_to_a_worse_model() -> None:
    """The assumption of the proposition matters: two good models share one error."""
    means, y, _ = orthogonal_models(1.0)
    shared = torch.stack([means[:, 1], means[:, 1] + 1e-3 * means[:, 3], means[:, 2]], 1)
    weights = combination_weights(shared, y, torch.full((3,), 1e-2).double())
    errors = (shared - y[:, None]).square().sum(0)
    assert int(errors.argmin()) != int(weights.argmax())
