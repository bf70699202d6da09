"""Prior precisions: stationarity, agreement of methods, dead tensors, ties."""

import math
import time

import numpy as np
import pytest
import torch
from cases import SPECTRAL_NORMS, case, spectral_problem
from torch import Tensor
from torch.testing import assert_close

from nas_evidence.curvature import curvature_pass
from nas_evidence.evidence.laplace import log_evidence, squared_norms
from nas_evidence.maths.blocks import Diagonal
from nas_evidence.maths.structured import BlockDiagonal
from nas_evidence.training import hyperparameters
from nas_evidence.training.hyperparameters import LOG_PRECISION_RANGE, update_prior_precision

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
    return update_prior_precision(
        curvature.spectra(),
        norms,
        curvature.sizes,
        torch.full((len(norms),), start, dtype=torch.float64),
        method=method,
        steps=steps,
        learning_rate=learning_rate,
        groups=groups,
        names=curvature.names,
    )


def _evidence(curvature: BlockDiagonal, norms: Tensor, precision: Tensor) -> Tensor:
    return log_evidence(0.0, curvature, squared_norms=norms, prior_precision=precision)


@pytest.mark.parametrize("start", [1e-5, 1.0, 1e7])
def test_newton_ends_where_the_gradient_is_zero_from_any_start(start: float) -> None:
    curvature = spectral_problem()
    log_delta = _update(curvature, start=start).log().requires_grad_()
    value = _evidence(curvature, NORMS, log_delta.exp())
    (gradient,) = torch.autograd.grad(value, log_delta)
    assert_close(gradient, torch.zeros(4).double(), rtol=0, atol=1e-9)


def test_newton_is_a_fixed_point_of_mackay() -> None:
    curvature = spectral_problem()
    delta = _update(curvature)
    assert_close(curvature.effective_parameters(delta) / NORMS, delta, rtol=1e-9, atol=0)


@pytest.mark.parametrize("groups", ["tensor", "module", "scalar"])
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


def test_ties_follow_the_names() -> None:
    curvature = spectral_problem()
    by_module, one = (_update(curvature, groups=g) for g in ("module", "scalar"))
    assert by_module[0] == by_module[1] != by_module[2] == by_module[3]
    assert bool((one == one[0]).all())
    gamma = curvature.effective_parameters(by_module)
    assert_close(gamma[:2].sum(), (by_module * NORMS)[:2].sum(), rtol=1e-9, atol=0)
    assert_close(curvature.effective_parameters(one).sum(), (one * NORMS).sum())


def test_members_of_a_module_need_not_be_neighbours() -> None:
    curvature = spectral_problem()
    order = (0, 2, 1, 3)
    mixed = BlockDiagonal(
        tuple(curvature.names[i] for i in order), tuple(curvature.blocks[i] for i in order)
    )
    found = _update(mixed, NORMS[list(order)], groups="module")
    assert_close(found, _update(curvature, groups="module")[list(order)])


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
    assert c.noise_std is not None
    passed = curvature_pass("kfac_ggn", c.model, c.x[:2], c.y[:2], c.likelihood, batch_size=2)
    assert isinstance(passed.curvature, BlockDiagonal)
    norms = squared_norms(c.model)
    delta = _update(passed.curvature, norms)
    gradient = passed.curvature.effective_parameters(delta) - delta * norms
    inside = delta.log() < LOG_PRECISION_RANGE[1] - 1e-9
    assert_close(gradient[inside], torch.zeros_like(gradient[inside]), rtol=0, atol=1e-9)


def test_a_spectrum_of_the_wrong_size_is_refused() -> None:
    curvature = spectral_problem()
    with pytest.raises(ValueError, match="must have the sizes"):
        update_prior_precision(
            curvature.spectra(),
            NORMS,
            (1, 2, 3, 4),
            torch.ones(4),
            method="newton",
            steps=1,
            learning_rate=1.0,
            groups="tensor",
            names=curvature.names,
        )


def test_a_million_and_a_half_eigenvalues_take_milliseconds() -> None:
    curvature = spectral_problem(sizes=(1_490_000, 1024, 10_000, 10))
    curvature.spectra()
    _update(curvature, 1e3 * NORMS)
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        _update(curvature, 1e3 * NORMS)
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.2  # about 0.02 on one quiet core


def test_sums_and_bins_on_a_device_are_those_on_the_host() -> None:
    random = torch.Generator().manual_seed(0)
    large = torch.randn(9000, generator=random).double().exp()
    large[:500] = 0.0  # without curvature
    few = torch.rand(7, generator=random).double()
    means, counts = hyperparameters._binned(large)
    other_means, other_counts = hyperparameters._binned_on_device(large)
    assert other_counts.tolist() == counts.tolist()
    assert other_means == pytest.approx(means, rel=1e-13)
    full, member, delta = [few, large, few], np.array([1, 0, 1]), np.array([0.3, 2.0])
    host = hyperparameters._sums_on_host(full, member, delta)
    device = hyperparameters._sums_on_device(full, member, delta)
    for one, other in zip(host, device, strict=True):
        assert other == pytest.approx(one, rel=1e-12)
