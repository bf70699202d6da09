"""The posterior predictive: closed form where there is one, and the same after a round trip."""

from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nas_evidence.evidence import posterior as room
from nas_evidence.evidence.posterior import Posterior, fit_posterior, jacobians
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.likelihoods.gaussian import Gaussian


def network(n_in: int = 3, width: int = 5, n_out: int = 2) -> nn.Module:
    torch.manual_seed(0)
    hidden, head = nn.Linear(n_in, width), nn.Linear(width, n_out)
    return nn.Sequential(OrderedDict(hidden=hidden, act=nn.Tanh(), head=head)).double()


def precisions(model: nn.Module) -> dict[str, Tensor]:
    numbers = torch.linspace(0.5, 2.0, len(list(model.parameters())), dtype=torch.float64)
    return {name: d[None] for (name, _), d in zip(model.named_parameters(), numbers, strict=True)}


def data(n: int = 40) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(n, d, generator=generator, dtype=torch.float64) for d in (3, 2))  # type: ignore[return-value]


def whole_jacobian(model: nn.Module, x: Tensor) -> Tensor:
    found = jacobians(model, x, tuple(n for n, _ in model.named_parameters()))
    return torch.cat([part.flatten(2) for part in found.values()], dim=2)


def test_a_linear_model_has_the_predictive_of_bayesian_linear_regression() -> None:
    x, y = data()
    torch.manual_seed(0)
    model = nn.Sequential(OrderedDict(head=nn.Linear(3, 1))).double()
    found = fit_posterior(model, x, y[:, :1], Gaussian(0.5), precisions(model))
    assert found.structure == "full"
    design = torch.cat([x, torch.ones(len(x), 1)], dim=1)
    delta = torch.tensor([0.5, 0.5, 0.5, 2.0], dtype=torch.float64)
    covariance = torch.linalg.inv(design.mT @ design / 0.25 + delta.diag())
    new, _ = data(7)
    at = torch.cat([new, torch.ones(7, 1)], dim=1)
    expected = (at @ covariance @ at.mT).diagonal()
    torch.testing.assert_close(found.output_covariance(model, new)[:, 0, 0], expected)


def test_jacobians_are_derivatives_of_the_outputs() -> None:
    model, (x, _) = network(), data(3)
    found = jacobians(model, x, ("hidden.weight", "head.bias"))
    for n in range(3):
        for c in range(2):
            model.zero_grad()
            model(x[n : n + 1])[0, c].backward()
            weight, bias = model.hidden.weight.grad, model.head.bias.grad
            torch.testing.assert_close(found["hidden.weight"][n, c], weight)
            torch.testing.assert_close(found["head.bias"][n, c], bias)


@pytest.mark.parametrize("power", [1.0, 0.3])
def test_kronecker_factors_give_the_quadratic_form_of_the_inverted_blocks(
    power: float,
) -> None:
    model, (x, _) = network(), data()
    labels = torch.arange(len(x)) % 2
    delta = precisions(model)
    found = fit_posterior(
        model, x, labels, Categorical(), delta, likelihood_power=power, most_full=0
    )
    assert found.structure == "kronecker"
    curvature = room.curvature_pass(
        "kfac_ggn", model, x, labels, Categorical(), batch_size=len(x)
    ).curvature
    new, _ = data(4)
    expected = torch.zeros(4, 2, 2, dtype=torch.float64)
    for name, block in zip(delta, curvature.blocks, strict=True):
        if hasattr(block, "inputs"):
            matrix = block.scale * torch.kron(block.gradients[0], block.inputs[0])
        else:
            rows = getattr(block, "rows", torch.empty(0)).double()
            matrix = block.matrix if hasattr(block, "matrix") else rows.mT @ rows
        inverse = torch.linalg.inv(power * matrix + delta[name] * torch.eye(len(matrix)))
        part = jacobians(model, new, (name,))[name].flatten(2)
        expected += part @ inverse @ part.mT
    torch.testing.assert_close(found.output_covariance(model, new), expected)


def test_a_large_network_keeps_its_last_layer() -> None:
    model, (x, y) = network(), data()
    few = {"most_full": 0, "most_stored": 10}
    last = fit_posterior(model, x, y, Gaussian(1.0), precisions(model), **few)
    assert (last.structure, last.names) == ("last_layer", ("head.weight", "head.bias"))


def test_a_stored_posterior_is_the_same_but_for_float32(tmp_path: Path) -> None:
    model, (x, y) = network(), data()
    found = fit_posterior(model, x, y, Gaussian(1.0), precisions(model))
    found.save(tmp_path / "p.safetensors")
    again = Posterior.load(tmp_path / "p.safetensors")
    assert (again.structure, again.names) == (found.structure, found.names)
    one, other = (p.output_covariance(model, x) for p in (found, again))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_a_layer_wider_than_the_data_has_the_prior_variance_outside_their_span(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, (x, _) = network(), data(2)
    labels, delta = torch.arange(len(x)) % 2, precisions(model)
    expected = fit_posterior(model, x, labels, Categorical(), delta, most_full=0)
    monkeypatch.setattr("nas_evidence.curvature.wide.WIDE", 1)
    found = fit_posterior(model, x, labels, Categorical(), delta, most_full=0)
    assert any(name.endswith("/outside") for name in found.tensors)
    assert not any(name.endswith("/outside") for name in expected.tensors)
    new, _ = data(4)
    torch.testing.assert_close(
        found.output_covariance(model, new), expected.output_covariance(model, new)
    )


@pytest.mark.parametrize("structure", ["full", "kronecker", "wide"])
def test_outer_products_of_linear_layers_give_the_covariance_of_their_jacobians(
    structure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, (x, y) = network(), data(2 if structure == "wide" else 40)
    delta = precisions(model)
    most_full = {} if structure == "full" else {"most_full": 0}
    if structure == "wide":
        monkeypatch.setattr("nas_evidence.curvature.wide.WIDE", 1)
    found = fit_posterior(model, x, y, Gaussian(0.7), delta, **most_full)
    new, _ = data(6)
    by_outer_products = found.output_covariance(model, new)
    monkeypatch.setattr(room, "_outer_parts", lambda *_: None)
    torch.testing.assert_close(by_outer_products, found.output_covariance(model, new))


def test_a_linear_layer_that_is_called_twice_has_its_whole_jacobian() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.layer(x).tanh())

    torch.manual_seed(0)
    model, (x, _) = Twice().double(), data(12)
    found = fit_posterior(model, x, x, Gaussian(0.7), precisions(model))
    whole = whole_jacobian(model, x)
    expected = whole @ found.tensors["covariance"] @ whole.mT
    torch.testing.assert_close(found.output_covariance(model, x), expected)
