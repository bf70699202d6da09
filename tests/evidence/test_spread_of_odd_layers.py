"""The spread of predictions is √(J Σ Jᵀ) with autograd's J, whatever uses the weights."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

import nas_evidence
from nas_evidence.evidence.posterior import RowsPart
from nas_evidence.plumbing.user_error import UserError


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
