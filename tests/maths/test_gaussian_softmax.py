"""Mean probabilities of Gaussian logits: MacKay's formula, draws, what a softmax cannot see."""

import math

import pytest
import torch
from scipy.integrate import quad
from torch import Tensor

from nas_evidence.maths.gaussian_softmax import log_sampled_mean, pairwise_mean

#: Draws of the brute force.
N = 200_000


def logits(n_classes: int, spread: float, seed: int = 0, n: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(n, n_classes, generator=generator, dtype=torch.float64) * 1.5
    root = torch.randn(n, n_classes, n_classes, generator=generator, dtype=torch.float64)
    return means, spread * root @ root.mT / n_classes


def drawn(means: Tensor, covariances: Tensor, temperature: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return log_sampled_mean(means, covariances, temperature, n_draws=N, generator=generator).exp()


def test_two_classes_are_mackays_formula() -> None:
    means, covariances = logits(2, 3.0)
    gap = means[:, 0] - means[:, 1]
    variance = covariances[:, 0, 0] + covariances[:, 1, 1] - 2 * covariances[:, 0, 1]
    expected = (gap / (0.7**2 + math.pi / 8 * variance).sqrt()).sigmoid()
    torch.testing.assert_close(pairwise_mean(means, covariances, 0.7)[:, 0], expected)


@pytest.mark.parametrize("n_classes", [2, 3, 7])
def test_without_variance_the_mean_is_the_softmax(n_classes: int) -> None:
    means, covariances = logits(n_classes, 0.0)
    torch.testing.assert_close(pairwise_mean(means, covariances, 1.3), (means / 1.3).softmax(1))


@pytest.mark.parametrize("shared", [1.0, 1e6])
def test_a_shift_that_all_logits_share_changes_nothing(shared: float) -> None:
    """Neither in the means nor, however uncertain it is, in the covariances."""
    means, covariances = logits(5, 2.0)
    expected = pairwise_mean(means, covariances)
    found = pairwise_mean(means + shared, covariances + shared)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


def test_classes_can_be_named_in_any_order() -> None:
    means, covariances = logits(4, 2.0)
    order = torch.tensor([2, 0, 3, 1])
    found = pairwise_mean(means[:, order], covariances[:, order][:, :, order])
    torch.testing.assert_close(found, pairwise_mean(means, covariances)[:, order])


@pytest.mark.parametrize("spread", [0.1, 1.0, 10.0])
def test_two_classes_are_near_the_integral(spread: float) -> None:
    """MacKay's approximation of the mean of a sigmoid is within 0.02 at any variance."""
    means, covariances = logits(2, spread)
    found = pairwise_mean(means, covariances)[:, 0]
    for mean, covariance, p in zip(means, covariances, found, strict=True):
        gap = float(mean[0] - mean[1])
        deviation = math.sqrt(float(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]))
        exact, _ = quad(
            lambda z, g=gap, s=deviation: math.exp(-z * z / 2) / (1 + math.exp(-g - s * z)), -9, 9
        )
        assert abs(float(p) - exact / math.sqrt(2 * math.pi)) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize(("spread", "most"), [(0.1, 0.03), (1.0, 0.1)])
def test_more_classes_are_near_the_mean_of_draws(spread: float, most: float) -> None:
    """An approximation: the bounds are on its bias, the draws are within 0.001 (one sigma)."""
    means, covariances = logits(4, spread)
    gap = (pairwise_mean(means, covariances) - drawn(means, covariances)).abs().max()
    assert float(gap) < most


def test_draws_of_two_classes_have_the_mean_of_the_integral() -> None:
    means, covariances = torch.tensor([[0.8, 0.0]]).double(), torch.eye(2)[None].double()
    exact, _ = quad(
        lambda z: math.exp(-z * z / 2) / (1 + math.exp(-0.8 - math.sqrt(2) * z)), -9, 9
    )
    # One draw spreads by less than 0.5, so that five standard errors are 0.0056.
    assert abs(float(drawn(means, covariances)[0, 0]) - exact / math.sqrt(2 * math.pi)) < 0.0056


def test_probabilities_sum_to_one_also_for_logits_far_apart() -> None:
    means, covariances = logits(5, 50.0)
    found = pairwise_mean(means * 1e3, covariances)
    assert bool(found.isfinite().all())
    torch.testing.assert_close(found.sum(1), torch.ones(len(found), dtype=torch.float64))
