"""Traces by products: the right number, with an honest standard error."""

import pytest
import torch
from torch import Tensor

from nas_evidence.maths.lanczos import stochastic_lanczos


def matrix(values: Tensor) -> Tensor:
    torch.manual_seed(0)
    basis = torch.linalg.qr(torch.randn(len(values), len(values)).double())[0]
    return (basis * values) @ basis.mT


SPECTRA = {
    "falling": 1 + torch.logspace(4, -8, 150).double(),
    "few_large": torch.cat([torch.logspace(3, 5, 5), torch.full((95,), 1.1)]).double(),
    "identity": torch.ones(40).double(),
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
    assert found.log_det_error < 0.05 * log_det + 1e-6
    assert found.n_products <= 9 * 50


def test_with_as_many_steps_as_eigenvalues_it_is_exact() -> None:
    values = torch.linspace(1, 9, 12).double()
    a = matrix(values)
    found = stochastic_lanczos(
        lambda v: a @ v, 12, n_probes=2, n_steps=12, generator=torch.Generator().manual_seed(0)
    )
    assert found.log_det == pytest.approx(float(values.log().sum()), rel=1e-9)
    assert found.log_det_error == pytest.approx(0, abs=1e-9)


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
