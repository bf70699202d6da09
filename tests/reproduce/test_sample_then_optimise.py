"""Draws by descent against the posterior in closed form, and their bounds."""

import pytest
import reproduced  # noqa: F401, before the scripts
import torch
from torch import Tensor

from nas_evidence_reproduce._incremental import bounds_of_draws, predictions, sampled_bounds
from nas_evidence_reproduce._sample_then_optimise import bounds_over_orders, outputs_before_each

PRECISION = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)
NOISE = 0.6


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    phi = torch.randn(14, 3, dtype=torch.float64, generator=generator)
    return phi, torch.randn(14, dtype=torch.float64, generator=generator)


def draws(n_draws: int, n_steps: int | None = None) -> Tensor:
    phi, y = data()
    return outputs_before_each(
        phi, y, prior_precision=PRECISION, noise_std=NOISE, n_draws=n_draws, n_steps=n_steps,
        generator=torch.Generator().manual_seed(1),
    )  # fmt: skip


def test_optimised_samples_have_the_mean_and_variance_of_the_posterior_predictive() -> None:
    phi, y = data()
    exact = predictions(phi, y, prior_precision=PRECISION, noise_std=NOISE)
    n = 20_000
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
    known = {"prior_precision": PRECISION, "noise_std": NOISE, "n_draws": 3}
    first, other = (
        outputs_before_each(phi, t, generator=torch.Generator().manual_seed(0), **known)
        for t in (y, changed)
    )
    assert torch.equal(first[:, :8], other[:, :8])
    assert not torch.equal(first[:, 8:], other[:, 8:])


@pytest.mark.slow
def test_bounds_of_descents_agree_with_those_of_exact_draws() -> None:
    """Means over 400 runs in one order, within 5 standard errors; orders differ."""
    phi, y = data()
    exact = predictions(phi, y, prior_precision=PRECISION, noise_std=NOISE)
    generator = torch.Generator().manual_seed(0)
    drawn = [sampled_bounds(exact, n_draws=4, generator=generator).log_mean for _ in range(400)]
    descended = []
    for _ in range(400):
        outputs = outputs_before_each(
            phi, y, prior_precision=PRECISION, noise_std=NOISE, n_draws=4, generator=generator
        )
        found = bounds_of_draws(outputs, y, noise_std=NOISE, generator=generator)
        descended.append(found.log_mean)
    a, b = torch.tensor(drawn), torch.tensor(descended)
    error = float((a.var() / 400 + b.var() / 400).sqrt())
    assert abs(float(a.mean() - b.mean())) < 5 * error
    over = bounds_over_orders(
        phi, y, prior_precision=PRECISION, noise_std=NOISE, n_draws=4, n_orders=3,
        generator=generator,
    )  # fmt: skip
    assert len({one.log_mean for one in over}) == 3


def test_one_draw_has_no_moments() -> None:
    phi, y = data()
    with pytest.raises(ValueError, match="n_draws >= 2"):
        bounds_over_orders(
            phi, y, prior_precision=PRECISION, noise_std=NOISE, n_draws=1, n_orders=1,
            generator=torch.Generator(),
        )  # fmt: skip
