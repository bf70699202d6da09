"""Traces by products: the right number, with an honest standard error."""

import pytest
import torch
from torch import Tensor

from nas_evidence.maths.lanczos import _iterate, exact_traces, stochastic_lanczos


def matrix(values: Tensor) -> Tensor:
    torch.manual_seed(0)
    basis = torch.linalg.qr(torch.randn(len(values), len(values)).double())[0]
    return (basis * values) @ basis.mT


SPECTRA = {
    "falling": 1 + torch.logspace(4, -8, 150).double(),
    "few_large": torch.cat([torch.logspace(3, 5, 5), torch.full((95,), 1.1)]).double(),
    "identity": torch.ones(40).double(),
    "ill_conditioned": torch.cat([torch.logspace(10, 0.1, 130), torch.ones(40)]).double(),
}


@pytest.mark.parametrize("name", SPECTRA)
def test_traces_are_within_four_standard_errors(name: str) -> None:
    values = SPECTRA[name]
    a = matrix(values)
    found = stochastic_lanczos(
        lambda v: a @ v, len(values), n_probes=8, n_steps=50,
        generator=torch.Generator().manual_seed(1),
    )  # fmt: skip
    log_det, effective = float(values.log().sum()), float((1 - 1 / values).sum())
    assert found.log_det == pytest.approx(log_det, abs=4 * found.log_det_error + 1e-3 * log_det)
    assert found.effective == pytest.approx(
        effective, abs=4 * found.effective_error + 1e-3 * effective
    )
    assert found.log_det_spread < 0.05 * log_det + 1e-6
    assert found.n_products <= 9 * 50


def test_with_as_many_steps_as_eigenvalues_it_is_exact() -> None:
    values = torch.linspace(1, 9, 12).double()
    a = matrix(values)
    found = stochastic_lanczos(
        lambda v: a @ v, 12, n_probes=2, n_steps=12, generator=torch.Generator().manual_seed(0)
    )
    assert found.log_det == pytest.approx(float(values.log().sum()), rel=1e-9)
    assert found.log_det_error == pytest.approx(0, abs=1e-9)


@pytest.mark.slow
def test_the_standard_error_is_the_spread_of_repeated_estimates() -> None:
    values = SPECTRA["falling"]
    a = matrix(values)
    runs = [
        stochastic_lanczos(
            lambda v: a @ v, len(values), n_probes=6, n_steps=30,
            generator=torch.Generator().manual_seed(seed),
        )
        for seed in range(20)
    ]  # fmt: skip
    spread = float(torch.tensor([run.log_det for run in runs]).std())
    claimed = float(torch.tensor([run.log_det_error for run in runs]).square().mean().sqrt())
    assert 0.5 < spread / claimed < 2


def test_one_probe_has_no_standard_error_and_is_refused() -> None:
    with pytest.raises(ValueError, match=r"n_probes >= 2.*got 1"):
        stochastic_lanczos(
            lambda v: v, 3, n_probes=1, n_steps=3, generator=torch.Generator().manual_seed(0)
        )


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("n_steps", [1, 2, 5, 10, 40, 100, 169])
def test_the_quadratic_forms_of_a_probe_lie_between_the_two_rules(name: str, n_steps: int) -> None:
    """Brute force: zᵀ f(A) z from the eigenvalues of A."""
    values = SPECTRA[name]
    a = matrix(values)
    z = 2 * torch.randint(0, 2, (len(values),), generator=torch.Generator().manual_seed(2)) - 1
    above, below = _iterate(lambda v: a @ v, z.double(), n_steps, tolerance=0.0).ends
    values, vectors = torch.linalg.eigh(a)
    values, weights = values.clamp(min=1), (vectors.mT @ z.double()).square()
    truth = torch.stack([weights @ values.log(), weights @ (1 - 1 / values)])
    assert bool((below <= truth + 1e-6 * truth + 1e-9).all())
    assert bool((truth <= above + 1e-6 * truth + 1e-9).all())


def test_the_two_rules_meet_with_as_many_steps_as_eigenvalues_and_not_before() -> None:
    values = SPECTRA["falling"]
    a = matrix(values)
    probe = torch.ones(len(values), dtype=torch.float64)
    gaps = []
    for n_steps in (3, 10, 30, len(values)):
        above, below = _iterate(lambda v: a @ v, probe, n_steps, tolerance=0.0).ends
        gaps.append(float((above - below)[0]))
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[0] > 10
    assert gaps[-1] < 1e-6


@pytest.mark.slow
def test_too_few_steps_are_seen_in_the_error_also_where_each_changes_little() -> None:
    """A hundred eigenvalues from 1 to 10¹⁰, ten steps: both rules are far from the truth."""
    values = SPECTRA["ill_conditioned"]
    a = matrix(values)
    log_det, errors = float(values.log().sum()), []
    for seed in range(10):
        found = stochastic_lanczos(
            lambda v: a @ v, len(values), n_probes=8, n_steps=10,
            generator=torch.Generator().manual_seed(seed),
        )  # fmt: skip
        assert found.log_det_quadrature > 5 * found.log_det_spread
        errors.append((found.log_det - log_det) / found.log_det_error)
    assert max(abs(error) for error in errors) < 2


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("rank", [0, 20, 60, 100])
def test_exact_traces_are_exact_at_any_rank_condition_and_multiplicity(
    rank: int, copies: int
) -> None:
    large = torch.logspace(10, -3, rank // copies).double().repeat_interleave(copies)
    values = 1 + torch.cat([large, torch.zeros(100 - len(large)).double()])
    a = matrix(values)
    found = exact_traces(lambda v: a @ v, 100, rank=rank)
    assert found.log_det == pytest.approx(float(values.log().sum()), rel=1e-6, abs=1e-9)
    assert found.effective == pytest.approx(float((1 - 1 / values).sum()), rel=1e-4, abs=1e-9)
    assert found.log_det_error == 0
    assert found.n_products == min(100, 2 * (rank + 5))
