"""The posterior predictive: closed form where there is one, and the same after a round trip."""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

import nas_evidence
from nas_evidence.evidence import posterior as room
from nas_evidence.evidence.posterior import Posterior, RowsPart, fit_posterior, jacobians
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.plumbing.user_error import UserError


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


# --- the spread of predictions is √(J Σ Jᵀ) with autograd's J, whatever uses the weights


class Unit(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        norm = self.weight.norm(dim=1, keepdim=True)
        return functional.linear(input, self.weight / norm, self.bias)


class Body(nn.Module):
    """Two layers of equal width and a head; `use` says how they are used."""

    def __init__(self, use: Callable[["Body", Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.use(self, x).tanh())


def tied() -> nn.Module:
    model = Body(lambda m, x: m.second(m.first(x).tanh()))
    model.second.weight = model.first.weight
    return model


def hooked(kind: str) -> nn.Module:
    model = Body(lambda m, x: m.second(m.first(x).tanh()))
    if kind == "after":
        model.first.register_forward_hook(lambda m, a, z: 3 * z)
    elif kind == "by its weight":
        model.first.register_forward_hook(lambda m, a, z: z / m.weight.norm())
    else:
        model.first.register_forward_pre_hook(lambda m, a: (3 * a[0],))
    return model


def normed(frozen: bool = False) -> nn.Module:
    model = Body(lambda m, x: m.second(m.first(x).tanh()))
    parametrizations.weight_norm(model.first)
    if frozen:
        model.first.parametrizations.requires_grad_(False)
    return model


class LowRank(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 3)
        self.weight.requires_grad_(False)
        self.down, self.up = nn.Linear(3, 1, bias=False), nn.Linear(1, 3, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + self.up(self.down(input))


def read_elsewhere(m: Body, x: Tensor) -> Tensor:
    return m.second(m.first(x).tanh()) + 0.05 * functional.linear(x, m.first.weight)


def by_values(m: Body, x: Tensor) -> Tensor:  # vmap cannot
    return torch.cat([m.second(m.first(r) if float(r.sum()) > 0 else r) for r in x[:, None]])


MODELS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: Body(lambda m, x: m.second(m.first(x).tanh())),
    "keyword": lambda: Body(lambda m, x: m.second(input=m.first(input=x).tanh())),
    "called twice": lambda: Body(lambda m, x: m.second(m.first(m.first(x).tanh()))),
    "tied": tied,
    "one object twice": lambda: nn.Sequential(
        nn.Linear(3, 2), nn.Tanh(), *[nn.Linear(2, 2), nn.Tanh()] * 2
    ),
    "weight read elsewhere": lambda: Body(read_elsewhere),
    "own forward": lambda: nn.Sequential(Unit(3, 4), nn.Tanh(), nn.Linear(4, 2)),
    "hook": lambda: hooked("after"),
    "hook with the weight": lambda: hooked("by its weight"),
    "hook before": lambda: hooked("before"),
    "weight norm": normed,
    "weight norm, frozen": lambda: normed(frozen=True),
    "low rank": lambda: nn.Sequential(LowRank(), nn.Tanh(), nn.Linear(3, 2)),
    "output unused": lambda: Body(lambda m, x: m.second(x) + 0 * m.first(x)),
    "by values": lambda: Body(by_values),
}


@pytest.mark.parametrize("structure", ["full", "kronecker", "last_layer"])
@pytest.mark.parametrize("name", MODELS)
def test_the_spread_is_that_of_autograd(name: str, structure: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MODELS[name]().double()
        x = torch.randn(20, 3).double()
        y = torch.randn(20, 2).double()
    given = {"likelihood": "gaussian", "noise_std": 0.4, "prior_precision": 1.0}
    try:
        found = nas_evidence.posterior(model, (x, y), structure=structure, **given)
    except UserError as error:
        if structure == "full" or error.code != "posterior-without-factors":
            raise
        return
    kept = found.posterior
    parameters = dict(model.named_parameters())
    wanted = [parameters[n] for n in kept.names]
    if structure == "full":
        sigma = kept.tensors["covariance"]
    else:
        eyes = [torch.eye(p.numel(), dtype=torch.float64)[None] for p in wanted]
        blocks = [
            kept._of_tensor(n, RowsPart(e))[0] for n, e in zip(kept.names, eyes, strict=True)
        ]
        sigma = torch.block_diag(*blocks)
    expected = np.empty((5, 2))
    for i in range(5):
        for c, f in enumerate(model(x[i : i + 1])[0]):
            parts = torch.autograd.grad(f, wanted, retain_graph=True, materialize_grads=True)
            j = torch.cat([part.flatten() for part in parts])
            expected[i, c] = (j @ sigma @ j).sqrt()
    np.testing.assert_allclose(found.predict(x[:5]).std_model, expected, rtol=1e-9)
