"""Weights of a combination of models: closed form, brute force, and Proposition 3.5."""

import pytest
import reproduced  # noqa: F401, before the scripts
import torch
from torch import Tensor

from nas_evidence_reproduce.lyle_fig5 import combination_weights


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
