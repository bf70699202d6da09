"""Sums of predictions against the exact evidence and the biases in closed form."""

import math

import pytest
import reproduced  # noqa: F401, before the scripts
import torch
from torch import Tensor

from nas_evidence.evidence.exact_linear import log_evidence_of_linear, mode_of_linear
from nas_evidence_reproduce._incremental import Predictions, predictions, sampled_bounds

PRECISION = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)
NOISE = 0.6


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    phi = torch.randn(14, 3, dtype=torch.float64, generator=generator)
    return phi, torch.randn(14, dtype=torch.float64, generator=generator)


def known(order: Tensor | None = None) -> Predictions:
    phi, y = data()
    rows = torch.arange(14) if order is None else order
    return predictions(phi[rows], y[rows], prior_precision=PRECISION, noise_std=NOISE)


def test_the_predictions_multiply_to_the_evidence_in_every_order() -> None:
    phi, y = data()
    exact = log_evidence_of_linear(phi, y[:, None], prior_precision=PRECISION, noise_std=NOISE)
    assert known().log_evidence() == pytest.approx(exact, abs=1e-10)
    shuffled = known(torch.randperm(14, generator=torch.Generator().manual_seed(0)))
    assert shuffled.log_evidence() == pytest.approx(exact, abs=1e-10)
    assert shuffled.expected_bound() != pytest.approx(known().expected_bound(), abs=1e-3)


def test_the_closed_form_evidence_is_that_of_the_dense_normal() -> None:
    phi, y = data()
    covariance = phi @ torch.diag(1 / PRECISION) @ phi.T + NOISE**2 * torch.eye(14).double()
    normal = torch.distributions.MultivariateNormal(torch.zeros(14).double(), covariance)
    both = torch.stack([y, 2 * y], 1)
    found = log_evidence_of_linear(phi, both, prior_precision=PRECISION, noise_std=NOISE)
    assert found == pytest.approx(float(normal.log_prob(both.T).sum()), abs=1e-10)
    mode = mode_of_linear(phi, both, prior_precision=PRECISION, noise_std=NOISE)
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
    with pytest.raises(ValueError, match="n_draws >= 2"):
        sampled_bounds(known(), n_draws=1, generator=torch.Generator())
    assert known().expected_moment_bias(3) == -math.inf


def test_the_bias_of_the_moments_at_one_standard_deviation() -> None:
    one = torch.ones(1, dtype=torch.float64)
    found = Predictions(one, 0 * one, 0.75 * one, 0.5)
    assert found.expected_moment_bias(10) == pytest.approx(-0.1495, abs=1e-4)
