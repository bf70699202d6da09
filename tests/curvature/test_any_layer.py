"""Dense kinds on layers without rules of their own: one datum at a time, the same numbers."""

import contextlib
import copy

import pytest
import reference
import torch
from cases import Case, case
from messages import refused
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm
from torch.testing import assert_close

from nas_evidence.curvature import curvature_pass
from nas_evidence.spec.registry import CURVATURES

DENSE = tuple(name for name, kind in CURVATURES.items() if kind.is_dense)

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")


class Tied(nn.Module):
    """One weight, used in two places and transposed in a third, and a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        self.factor = nn.Parameter(torch.tensor(1.3))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.layer(torch.tanh(self.layer(x))))
        return self.head(self.factor * functional.linear(h, self.layer.weight.T))


class Words(nn.Module):
    """Embedding, a recurrent layer, and attention, on integers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 4)
        self.memory = nn.GRU(4, 4, batch_first=True)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.memory(self.table(x))[0]
        return self.head(self.attention(h, h, h, need_weights=False)[0].mean(1))


class Batch(nn.Module):
    """Batch normalisation with statistics of its own, between convolutions of other kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular")
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.ConvTranspose2d(4, 3, 2)
        self.line = nn.Conv1d(3, 3, 2)
        self.norm.running_mean.normal_()

    def forward(self, x: Tensor) -> Tensor:
        h = self.second(torch.relu(self.norm(self.first(x))))
        return self.line(h.flatten(2)).mean(2)


class Routed(nn.Module):
    """Each datum goes to one of two experts; the first two to the first."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([weight_norm(nn.Linear(4, 3)) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.experts[int(row[0] > 0)](row[None]) for row in x])


def _case(name: str) -> Case:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        y = torch.randint(0, 2, (7,))
        if name == "tied":
            return Case(
                Tied().double(), torch.randn(7, 4).double(), torch.randn(7, 3).double(), 0.6
            )
        if name == "words":
            return Case(Words().double(), torch.randint(0, 6, (7, 5)), y)
        if name == "batch":
            return Case(Batch().double().eval(), torch.randn(7, 2, 3, 3).double(), y)
        x = torch.randn(7, 4).double()
        x[:, 0] = torch.tensor([-1.0, -1, 1, 1, -1, 1, 1])
        return Case(Routed().double(), x, y)


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("kind", DENSE)
@pytest.mark.parametrize("name", ["tied", "words", "batch", "routed"])
def test_dense_kinds_take_any_layer(kind: str, name: str) -> None:
    c = _case(name)
    c.model.train()
    if name == "batch":
        c.model.norm.eval()
    modes = [m.training for m in c.model.modules()]
    before = {key: value.clone() for key, value in c.model.state_dict().items()}
    found = c.estimate(kind, batch_size=3)
    assert_close(c.model.state_dict(), before, rtol=0, atol=0)
    assert [m.training for m in c.model.modules()] == modes
    assert all(p.requires_grad and p.grad is None for p in c.model.parameters())
    c.model.eval()
    for parameter in c.model.parameters():  # the reference asks for every gradient
        c.model.register_forward_hook(
            lambda _m, _a, out, p=parameter: out + 0 * p.sum() if out.ndim == 2 else out
        )
    full = reference.full_ggn(c.model, c.x, c.noise_std)
    if kind == "full_ef":
        full = reference.full_ef(c.model, c.x, c.y, c.noise_std)
    blocks = [full] if kind.startswith("full") else reference.tensor_blocks(full, c.model)
    expected = reference.log_evidence(
        c.model, c.x, c.y, c.noise_std, c.prior_precision.tolist(), blocks
    )
    assert_close(found.value, expected, rtol=1e-10, atol=0)


class Shared(nn.Module):
    """A layer under two names, and a weight in two layers; the forward may fail."""

    def __init__(self, fails_at: int) -> None:
        super().__init__()
        self.one = nn.Linear(4, 4)
        self.again, self.other, self.head = self.one, nn.Linear(4, 4), nn.Linear(4, 3)
        self.other.weight = self.one.weight
        self.left = fails_at

    def forward(self, x: Tensor) -> Tensor:
        self.left -= 1
        if not self.left:
            raise ArithmeticError
        return self.head(torch.tanh(self.other(torch.tanh(self.again(torch.tanh(self.one(x)))))))


@pytest.mark.parametrize("fails_at", [0, 2, 4, 5])
@pytest.mark.parametrize("kind", ["diag_ggn", "full_ef"])
def test_a_model_with_shared_layers_is_left_as_it_was(kind: str, fails_at: int) -> None:
    model, x, y = Shared(fails_at), torch.randn(6, 4), torch.randint(0, 3, (6,))
    before = [(name, id(p)) for name, p in model.named_parameters(remove_duplicate=False)]
    values = copy.deepcopy(model.state_dict())
    with pytest.raises(ArithmeticError) if fails_at else contextlib.nullcontext():
        curvature_pass(kind, model, x, y, case("mlp").likelihood, batch_size=3)
    after = model.named_parameters(remove_duplicate=False)
    assert [(name, id(p)) for name, p in after] == before
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert_close(copy.deepcopy(model).state_dict(), values, rtol=0, atol=0)


class Standardised(nn.Module):
    """Statistics of the batch in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4, track_running_stats=False)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x))


class OverData(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.ones(4)), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.scale * x / x.norm())


def test_data_that_see_each_other_are_refused() -> None:
    x, y = torch.randn(6, 4), torch.randint(0, 3, (6,))
    codes = {"data-of-batch-depend": OverData(), "batch-statistics": Standardised()}
    for code, model in codes.items():
        with refused(code):
            curvature_pass("full_ggn", model, x, y, case("mlp").likelihood, batch_size=3)


class Counting(nn.Module):
    """Buffers written in place and replaced, in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("last", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        out = self.head(x)
        self.calls += 1
        self.last = out[0].detach()
        return out


@pytest.mark.parametrize("kind", ["diag_ef", "full_ggn"])
def test_buffers_come_back(kind: str) -> None:
    model, x, y = Counting(), torch.randn(6, 4), torch.randint(0, 3, (6,))
    kept = model.last
    curvature_pass(kind, model, x, y, case("mlp").likelihood, batch_size=3, diagnose=True)
    assert model.calls == 0
    assert model.last is kept
    assert_close(kept, torch.zeros(3))
