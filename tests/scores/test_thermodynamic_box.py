"""The uniform prior of Baldock and Marzari: its volumes, and the evidence within it."""

import math

import pytest
import torch
from torch import nn

from nas_evidence.audit.known_problems import NOISE_STD, linear_problem
from nas_evidence.scores.sampling_plan import SweepPlan
from nas_evidence.scores.thermodynamic_box import (
    half_widths,
    log_prior_volume,
    thermodynamic_box_evidence,
)


def published(n_hidden: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(256, 40), nn.Sigmoid()]
    for _ in range(n_hidden - 1):
        layers += [nn.Linear(40, 40), nn.Sigmoid()]
    return nn.Sequential(*layers, nn.Linear(40, 10))


@pytest.mark.parametrize(("n_hidden", "volume"), [(3, 28960.4), (1, 19945.7)])
def test_the_prior_volumes_of_the_paper_come_out(n_hidden: int, volume: float) -> None:
    model = published(n_hidden)
    assert log_prior_volume(model) == pytest.approx(volume, abs=0.05)
    by_hand = sum(
        module.out_features * (module.in_features + 1)
        * math.log(100 / math.sqrt(module.in_features + 1))
        for module in model if isinstance(module, nn.Linear)
    )  # fmt: skip
    assert log_prior_volume(model) == pytest.approx(by_hand, rel=1e-12)


def test_a_convolution_counts_its_window_and_other_parameters_have_width_c() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(3, 2, 5, bias=False)
            self.scale = nn.Parameter(torch.ones(1))

    widths = half_widths(Scaled(), 10.0)
    sizes = {p.numel() for p in Scaled().parameters()}
    assert sizes == {150, 1}
    assert sorted(set(widths.tolist())) == pytest.approx([10 / math.sqrt(75), 10.0])
    with pytest.raises(ValueError, match="`width > 0` must hold, but got 0"):
        half_widths(nn.Linear(2, 1), 0.0)


@pytest.mark.slow
def test_in_a_wide_box_linear_regression_has_its_closed_form() -> None:
    """∫ p(D|w) dw over all w, divided by the volume; the walls are 100 posterior spreads away."""
    problem = linear_problem("box", 0, n_data=12, n_features=2, n_outputs=1)
    phi = torch.cat([problem.x, torch.ones(12, 1).double()], 1)
    hessian = phi.T @ phi / NOISE_STD**2
    mode = torch.linalg.solve(hessian, phi.T @ problem.y / NOISE_STD**2)
    with torch.no_grad():
        problem.model.weight.copy_(mode[:2].T)
        problem.model.bias.copy_(mode[2])
        best = float(problem.likelihood.log_likelihood(problem.model(problem.x), problem.y))
    log_det = float(torch.linalg.slogdet(hessian / (2 * math.pi))[1])
    truth = best - 0.5 * log_det - log_prior_volume(problem.model)
    found = thermodynamic_box_evidence(
        problem.model, problem.x, problem.y, likelihood=problem.likelihood,
        generator=torch.Generator().manual_seed(0),
        plan=SweepPlan(n_chains=12, n_nodes=6, n_burn_in=80, n_samples=15),
    )  # fmt: skip
    assert found.valid, found.note
    assert found.estimator == "thermodynamic_box"
    assert found.standard_error is not None
    assert abs(found.value - truth) < 5 * found.standard_error + 0.02
    outside = thermodynamic_box_evidence(
        problem.model, problem.x, problem.y, likelihood=problem.likelihood, width=1e-3,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert not outside.valid
    assert "3 of 3 parameters are outside" in outside.note
