"""Kronecker factors of wide layers, kept as rows: the same numbers from a smaller matrix."""

import pytest
import torch
from torch import nn

from nas_evidence.curvature import CurvaturePass, curvature_pass, wide
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.maths.block_inverse import BlockInverse
from nas_evidence.maths.blocks import FewInputs, Rotated
from nas_evidence.spec.study import ArchitectureSpec, TrainingPlan
from nas_evidence.training.cost import cost_of, too_costly

MLP = ArchitectureSpec(family="mlp", values={"width": 8, "depth": 1})
DIAGONAL = TrainingPlan.model_validate({"online": {"curvature": "diag_ef"}})


def run(kind: str, rows: slice = slice(None), inputs: int = 9) -> CurvaturePass:
    """Return a pass over up to 6 data; the first layer is 9 wide."""
    random = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(inputs, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random, dtype=torch.float64))
    x = torch.randn(6, inputs, generator=random, dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    likelihood = Categorical()
    return curvature_pass(kind, model, x[rows], y[rows], likelihood, batch_size=4)


@pytest.mark.parametrize("kind", ["kfac_ggn", "kfac_ef", "ekfac_ggn"])
def test_rows_give_the_spectra_and_inverses_of_the_matrix(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = run(kind).curvature
    monkeypatch.setattr(wide, "WIDE", 5)
    few = run(kind).curvature
    assert isinstance(few.blocks[0], FewInputs | Rotated)
    assert not isinstance(few.blocks[2], FewInputs)  # four wide: not wide enough
    for one, other in zip(few.spectra(), matrix.spectra(), strict=True):
        one, other = one.sort().values, other.sort().values
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9 * float(other.max()))
    torch.testing.assert_close(few.trace(), matrix.trace(), rtol=1e-10, atol=0)
    delta = torch.full((4,), 0.3, dtype=torch.float64)
    vector = torch.arange(matrix.n_parameters, dtype=torch.float64).cos()
    solved = BlockInverse(few, delta, 2.0)(vector)
    expected = BlockInverse(matrix, delta, 2.0)(vector)
    torch.testing.assert_close(solved, expected, rtol=1e-9, atol=1e-9)
    quadratics = few.inverse_quadratic(vector, delta), matrix.inverse_quadratic(vector, delta)
    torch.testing.assert_close(*quadratics, rtol=1e-9, atol=0)


def test_a_factor_too_wide_for_its_eigenvalues_is_refused_by_name() -> None:
    shape, many, few = (3, 64, 64), 20_000, 1_000
    why = too_costly(MLP, shape, 10, TrainingPlan(), ("kfac_ggn",), n_data=many)
    assert "factor of side 12,288, of 1.1 GiB" in why
    assert "use diag_ef or diag_ggn instead of kfac_ggn, kfac_ggn_mc" in why
    assert "plan.online.curvature" in why
    assert too_costly(MLP, shape, 10, TrainingPlan(), ("kfac_ggn",), n_data=few) == ""
    assert too_costly(MLP, shape, 10, DIAGONAL, ("diag_ggn", "sotl"), n_data=many) == ""
    assert too_costly(MLP, (3, 32, 32), 10, TrainingPlan(), ("kfac_ggn",), n_data=many) == ""


def test_the_forecast_of_memory_knows_how_a_wide_factor_is_kept() -> None:
    few, many = (
        cost_of(MLP, (3, 64, 64), 10, TrainingPlan(), ("kfac_ggn",), n_data).memory_bytes
        for n_data in (1_000, 20_000)
    )
    side = 12_288
    assert many - few > 3 * 8 * side**2
    assert few < 8 * side**2
