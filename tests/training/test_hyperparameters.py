"""Prior precisions: stationarity, agreement of methods, dead tensors, ties."""

import math

import pytest
import torch
from cases import SPECTRAL_NORMS, case, laplace_value, spectral_problem
from torch import Tensor
from torch.testing import assert_close

from nas_evidence.curvature import curvature_pass
from nas_evidence.evidence.joint import (
    LOG_PRECISION_RANGE,
    Noise,
    Objective,
    fit_prior,
    fit_prior_and_noise,
    fit_priors_and_noises,
    members_of,
)
from nas_evidence.evidence.laplace import squared_norms
from nas_evidence.maths.blocks import Diagonal
from nas_evidence.maths.structured import BlockDiagonal, FullKernel, _binned_at_once, _bins

NORMS = SPECTRAL_NORMS


def _update(
    curvature: BlockDiagonal,
    norms: Tensor = NORMS,
    *,
    start: float = 1.0,
    method: str = "newton",
    groups: str = "tensor",
    steps: int = 2000,
    learning_rate: float = 0.05,
) -> Tensor:
    return fit_prior(
        curvature,
        norms,
        torch.full((len(norms),), start, dtype=torch.float64),
        members=members_of(groups, len(norms)),
        method=method,
        steps=steps,
        learning_rate=learning_rate,
    )


def _evidence(curvature: BlockDiagonal, norms: Tensor, precision: Tensor) -> Tensor:
    return laplace_value(0.0, curvature, norms, precision)


@pytest.mark.parametrize("start", [1e-5, 1.0, 1e7])
def test_newton_ends_where_the_gradient_is_zero_from_any_start(start: float) -> None:
    curvature = spectral_problem()
    log_delta = _update(curvature, start=start).log().requires_grad_()
    value = _evidence(curvature, NORMS, log_delta.exp())
    (gradient,) = torch.autograd.grad(value, log_delta)
    assert_close(gradient, torch.zeros(4).double(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("structure", ["blocks", "kernel"])
def test_networks_side_by_side_end_where_each_ends_alone(structure: str) -> None:
    """From different starts, with bounds that hold for one, and one at its maximum."""
    draw = torch.Generator().manual_seed(3)
    blocks = [spectral_problem() for _ in range(3)]
    rows = tuple(torch.randn(6, n, generator=draw).double() for n in blocks[0].sizes)
    kernel = FullKernel(blocks[0].names, rows)
    curvatures = blocks if structure == "blocks" else [kernel] * 3
    norms = [NORMS, 7 * NORMS, torch.where(torch.arange(4) == 2, 0.0, NORMS)]
    starts = [torch.full((4,), x, dtype=torch.float64) for x in (1e-5, 1.0, 1e4)]
    bounds = [None, torch.full((4,), 0.01, dtype=torch.float64), None]
    noise = Noise(squared_error=9.0, n_targets=20, exponent=1, pass_std=0.7)
    members = members_of("tensor", 4)
    problems = [
        Objective(one, norm, members, noise, power)
        for one, norm, power in zip(curvatures, norms, (1.0, 3.0, 1.0), strict=True)
    ]
    found = fit_priors_and_noises(
        problems, starts, highest=bounds, least_std=[0.0, 0.0, 2.0],
        highest_std=[math.inf, 0.5, math.inf],
    )  # fmt: skip
    for k, (delta, std) in enumerate(found):
        alone, alone_std = fit_prior_and_noise(
            curvatures[k], norms[k], starts[k], members=members, noise=noise,
            likelihood_power=(1.0, 3.0, 1.0)[k], highest=bounds[k],
            least_std=(0.0, 0.0, 2.0)[k], highest_std=(math.inf, 0.5, math.inf)[k],
        )  # fmt: skip
        assert_close(delta, alone, rtol=1e-12, atol=0)
        assert math.isclose(std, alone_std, rel_tol=1e-12)


def test_newton_is_a_fixed_point_of_mackay() -> None:
    curvature = spectral_problem()
    delta = _update(curvature)
    assert_close(curvature.effective_parameters(delta) / NORMS, delta, rtol=1e-9, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("groups", ["tensor", "scalar"])
def test_newton_and_adam_agree_to_a_thousandth_of_a_nat(groups: str) -> None:
    curvature = spectral_problem()
    newton = _evidence(curvature, NORMS, _update(curvature, groups=groups))
    adam = _evidence(curvature, NORMS, _update(curvature, method="adam", groups=groups))
    assert_close(adam, newton, rtol=0, atol=1e-3)
    assert newton >= adam - 1e-9


def test_adam_is_torchs() -> None:
    curvature = spectral_problem()
    log_delta = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([log_delta], lr=0.3)
    for _ in range(17):
        optimiser.zero_grad()
        (-_evidence(curvature, NORMS, log_delta.exp())).backward()
        optimiser.step()
    found = _update(curvature, method="adam", steps=17, learning_rate=0.3)
    assert_close(found, log_delta.detach().exp(), rtol=1e-10, atol=0)


def test_no_nearby_precision_has_more_evidence() -> None:
    curvature = spectral_problem()
    delta = _update(curvature)
    best = _evidence(curvature, NORMS, delta)
    for i in range(4):
        for factor in (0.9, 1.1):
            moved = delta.clone()
            moved[i] *= factor
            assert _evidence(curvature, NORMS, moved) < best


@pytest.mark.slow
def test_dead_tensors_stop_at_the_bounds_or_stay() -> None:
    zero, some = torch.zeros(3).double(), torch.ones(3).double()
    names = ("unused", "flat", "neither")
    curvature = BlockDiagonal(names, (Diagonal(some), Diagonal(zero), Diagonal(zero)))
    norms = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    low, high = (math.exp(bound) for bound in LOG_PRECISION_RANGE)
    expected = torch.tensor([high, low, 3.0], dtype=torch.float64)
    assert_close(_update(curvature, norms, start=3.0), expected, rtol=1e-9, atol=0)
    found = _update(curvature, norms, start=3.0, method="adam", learning_rate=1.0)
    assert bool(((found >= low * (1 - 1e-12)) & (found <= high * (1 + 1e-12))).all())


def test_one_precision_for_all_is_stationary() -> None:
    curvature = spectral_problem()
    one = _update(curvature, groups="scalar")
    assert bool((one == one[0]).all())
    assert_close(curvature.effective_parameters(one).sum(), (one * NORMS).sum())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["newton", "adam"])
def test_binning_a_large_spectrum_costs_no_accuracy(method: str) -> None:
    curvature = spectral_problem(sizes=(300_000, 9_000, 5_000, 3))
    norms = 1e3 * NORMS
    delta = _update(curvature, norms, method=method, steps=800)
    expected = curvature.effective_parameters(delta) / norms
    # Newton takes its last step on the full spectrum; Adam's is the stated 3e-6.
    assert_close(delta, expected, rtol=1e-9 if method == "newton" else 3e-5, atol=0)


def test_more_parameters_than_data_and_outputs_is_no_trouble() -> None:
    c = case("regression")
    passed = curvature_pass("kfac_ggn", c.model, c.x[:2], c.y[:2], c.likelihood, batch_size=2)
    assert isinstance(passed.curvature, BlockDiagonal)
    norms = squared_norms(c.model)
    delta = _update(passed.curvature, norms)
    gradient = passed.curvature.effective_parameters(delta) - delta * norms
    inside = delta.log() < LOG_PRECISION_RANGE[1] - 1e-9
    assert_close(gradient[inside], torch.zeros_like(gradient[inside]), rtol=0, atol=1e-9)


def test_sums_of_bins_are_those_of_the_spectra() -> None:
    curvature, delta = spectral_problem(sizes=(30_000, 9_000, 50, 3)), torch.ones(4).double()
    assert len(curvature.binned.values) < 9_000
    whole, binned = curvature.slopes(delta), curvature.binned.slopes(delta)
    for one, other in zip(whole, binned, strict=True):
        assert_close(other, one, rtol=1.5e-5, atol=1e-9)
    assert_close(curvature.binned.trace(), curvature.trace(), rtol=1e-12, atol=0)


def test_bins_of_all_spectra_at_once_are_those_of_each() -> None:
    random = torch.Generator().manual_seed(0)
    spectra = [torch.randn(n, generator=random).double().exp() for n in (9000, 7, 5000, 4096)]
    spectra[0][:500] = 0.0  # without curvature
    for found, spectrum in zip(_binned_at_once(spectra), spectra, strict=True):
        for one, other in zip(found, _bins(spectrum), strict=True):
            assert_close(one, other, rtol=1e-13, atol=0)
