"""Attention, embeddings, one-dimensional convolutions, norms, and modules without a rule.

Brute force: one datum at a time through autograd. Closed form: the same function written with
linear layers or images. Property: order and batches do not matter.
"""

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import reference
import torch
from cases import Case, case
from dense_blocks import matrices, run
from largest_tensor import LargestTensor
from messages import refused
from torch import Tensor, nn
from torch.func import grad, jacrev
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import nas_evidence
from nas_evidence.curvature import KINDS, capture, curvature_pass, trace_ratios, vmapped
from nas_evidence.curvature.capture import layers_of, undisturbed
from nas_evidence.curvature.gradient import log_likelihood_gradient
from nas_evidence.curvature.layers import AutogradLayer, WholeModel
from nas_evidence.curvature.products import LogJoint
from nas_evidence.curvature.sweep import Sweep
from nas_evidence.evidence.network_density import flat_log_likelihood, network_density
from nas_evidence.likelihoods import Likelihood
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.likelihoods.heteroscedastic import Heteroscedastic
from nas_evidence.spec.registry import CURVATURES

EXACT = ("diag_ef", "diag_ggn", "kfac_ggn", "kfac_ef", "ekfac_ggn")


class Patches(nn.Module):
    """A vision transformer: patches, a bare class token and positions, attention, norms."""

    def __init__(self, *, batch_first: bool = True) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.embed = nn.Conv2d(1, 4, 2, stride=2)
        self.positions = nn.Parameter(torch.randn(1, 5, 4))
        self.norm = nn.LayerNorm(4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=batch_first)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x).flatten(2).mT
        h = torch.cat([self.token.expand(len(x), -1, -1), h], 1) + self.positions
        a = self.norm(h)
        a = a if self.attention.batch_first else a.transpose(0, 1)
        a = self.attention(a, a, a, need_weights=False)[0]
        a = a if self.attention.batch_first else a.transpose(0, 1)
        return self.head((h + a)[:, 0])


class Words(nn.Module):
    """Embeddings of words, with padding, and of positions."""

    def __init__(self, options: int = 6) -> None:
        super().__init__()
        self.words = nn.Embedding(options, 3, padding_idx=0)
        self.places = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1]).expand(len(x), -1)
        return self.head(torch.tanh(self.words(x.long()) + self.places(places)).sum(1))


class Column(nn.Module):
    """One word for each datum: a column of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(6, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.words(x[:, 0].long())))


class Shifts(nn.Module):
    """A transposed convolution and a gate: no rule for either; their datum is never mixed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.randn(2, 1, 1))
        self.up = nn.ConvTranspose2d(2, 2, 2)
        self.activation = nn.PReLU(2)
        self.head = nn.Linear(2 * 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.activation(self.up(self.gate * x)).flatten(1))


class Branching(nn.Module):
    """A module whose control flow depends on the values, which vmap cannot batch."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([0.5, 2.0]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([row * self.scale[int(row[0] > 0)] for row in x])


def _signal(n: int = 7) -> Tensor:
    return torch.randn(n, 2, 9)


def _conv1d(**options: object) -> nn.Module:
    conv = nn.Conv1d(2, 4, **options)
    features = conv(_signal(1)).numel()
    return nn.Sequential(conv, nn.Tanh(), nn.Flatten(), nn.Linear(features, 3))


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True, norm_first=True)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(12, 3))


def _norms() -> nn.Module:
    norms = [nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True), nn.LayerNorm([4, 2, 2])]
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), *norms, nn.AdaptiveMaxPool2d((2, 1)), nn.Flatten(), nn.RMSNorm(8),
        nn.Linear(8, 3),
    )  # fmt: skip
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return model


_MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "attention": (Patches, lambda: torch.randn(6, 1, 4, 4)),
    "attention by position": (lambda: Patches(batch_first=False), lambda: torch.randn(6, 1, 4, 4)),
    "encoder": (_encoder, lambda: torch.randn(6, 3, 4)),
    "words": (Words, lambda: torch.randint(0, 6, (7, 5))),
    "column": (Column, lambda: torch.randint(0, 6, (9, 1))),
    "no rule": (Shifts, lambda: torch.randn(6, 2, 3, 3)),
    "branching": (
        lambda: nn.Sequential(nn.Linear(3, 4), Branching(), nn.Linear(4, 3)),
        lambda: torch.randn(8, 3),
    ),
    "norms": (_norms, lambda: torch.randn(6, 2, 4, 4)),
    "conv1d": (lambda: _conv1d(kernel_size=3, stride=2, padding=1), _signal),
    "conv1d dilated": (lambda: _conv1d(kernel_size=2, dilation=3, bias=False), _signal),
    "conv1d circular": (
        lambda: _conv1d(kernel_size=3, padding=2, padding_mode="circular"), _signal),
    "depthwise": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 6, 3, groups=3, padding=1, padding_mode="reflect"), nn.Tanh(),
            nn.Conv2d(6, 2, 1), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(8, 3),
        ),
        lambda: torch.randn(6, 3, 4, 4),
    ),
}  # fmt: skip


def model_case(name: str) -> Case:
    make, inputs = _MODELS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        previous = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            model, x = make(), inputs()
        finally:
            torch.set_default_dtype(previous)
        y = torch.randint(0, model(x).shape[1], (len(x),))
    return Case(model.eval(), x, y)


def layers_are_followed(c: Case) -> bool:
    sweep = Sweep(c.model, c.x, c.y, c.likelihood, "residual", 4, None)
    with undisturbed(c.model):
        sweep.prepare(any_layer=True)
    return not isinstance(sweep.layers[0], WholeModel)


@pytest.mark.slow
@pytest.mark.parametrize("name", _MODELS)
def test_diagonals_and_blocks_are_those_of_gradients_taken_one_by_one(name: str) -> None:
    c = model_case(name)
    assert layers_are_followed(c)
    full = {"ef": reference.full_ef(c.model, c.x, c.y, None)}
    full["ggn"] = reference.full_ggn(c.model, c.x, None)
    for kind, columns in (("diag_ef", "ef"), ("diag_ggn", "ggn")):
        expected = reference.tensor_blocks(full[columns], c.model)
        for found, block in zip(matrices(run(kind, c)), expected, strict=True):
            assert_close(found.diagonal(), block.diagonal(), rtol=1e-9, atol=1e-11)
    found = run("block_ggn", c).curvature
    for one, block in zip(matrices(run("block_ggn", c)), expected, strict=True):
        assert_close(one, block, rtol=1e-9, atol=1e-11)
    assert_close(found.trace().sum(), full["ggn"].trace(), rtol=1e-9, atol=0)
    for kind, columns in (("full_ef", "ef"), ("full_ggn", "ggn")):
        ratio = float(run(kind, c).curvature.log_det_ratio(c.prior_precision))
        sizes = torch.tensor([p.numel() for p in c.model.parameters()])
        delta = c.prior_precision.repeat_interleave(sizes)
        assert_close(ratio, reference.log_det_ratio(full[columns], delta), rtol=1e-8, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["no rule", "attention", "norms", "branching"])
def test_a_parameter_without_kronecker_factors_has_its_exact_block(name: str) -> None:
    c = model_case(name)
    exact = dict(zip([n for n, _ in c.model.named_parameters()], matrices(run("block_ggn", c)),
                     strict=True))  # fmt: skip
    kfac = run("kfac_ggn", c).curvature
    blocks = dict(zip(kfac.names, matrices(run("kfac_ggn", c)), strict=True))
    own = {n for x in layers_of(c.model) if isinstance(x, AutogradLayer) for n in x.names}
    own |= {n for n in exact if "norm" in n}
    assert own or name == "norms"
    for tensor in own:
        assert_close(blocks[tensor], exact[tensor], rtol=1e-9, atol=1e-11)


class ByHand(nn.Module):
    """`Patches` with attention made of linear layers."""

    def __init__(self, other: Patches) -> None:
        super().__init__()
        self.token, self.positions = other.token, other.positions
        self.embed, self.norm, self.head = other.embed, other.norm, other.head
        self.mixing, self.out = nn.Linear(4, 12).double(), nn.Linear(4, 4).double()
        self.mixing.weight.data = other.attention.in_proj_weight.data
        self.mixing.bias.data = other.attention.in_proj_bias.data
        self.out.load_state_dict(other.attention.out_proj.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x).flatten(2).mT
        h = torch.cat([self.token.expand(len(x), -1, -1), h], 1) + self.positions
        q, k, v = self.mixing(self.norm(h)).unflatten(2, (3, 2, 2)).permute(2, 0, 3, 1, 4)
        a = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.head((h + self.out(a))[:, 0])


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("name", ["attention", "attention by position"])
@pytest.mark.parametrize("kind", [*EXACT, "full_ggn"])
def test_attention_has_the_curvature_of_its_linear_layers(kind: str, name: str) -> None:
    c = model_case(name)
    names = [n for n, _ in c.model.named_parameters()]
    by_hand = ByHand(c.model)
    other = [n for n, _ in by_hand.named_parameters()]
    place = {
        "attention.in_proj_weight": "mixing.weight",
        "attention.in_proj_bias": "mixing.bias",
        "attention.out_proj.weight": "out.weight",
        "attention.out_proj.bias": "out.bias",
    }
    one, two = run(kind, c), run(kind, Case(by_hand, c.x, c.y))
    if kind == "full_ggn":
        found = [float(p.curvature.log_det_ratio(torch.full((len(names),), 0.7).double()))
                 for p in (one, two)]  # fmt: skip
        assert_close(found[0], found[1], rtol=1e-9, atol=0)
        return
    blocks = dict(zip(other, matrices(two), strict=True))
    for tensor, block in zip(names, matrices(one), strict=True):
        assert_close(block, blocks[place.get(tensor, tensor)], rtol=1e-9, atol=1e-11)


class Masked(nn.Module):
    def __init__(self, mask: Tensor | None, padding: Tensor | None) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True, bias=False)
        self.head, self.mask, self.padding = nn.Linear(4, 3), mask, padding

    def forward(self, x: Tensor) -> Tensor:
        padding = None if self.padding is None else self.padding.expand(len(x), -1)
        h, weights = self.attention(
            x, x, x, attn_mask=self.mask, key_padding_mask=padding, average_attn_weights=False
        )
        return self.head(h.sum(1)) * weights.sum((1, 2, 3))[:, None]


@pytest.mark.parametrize(
    ("mask", "padding"),
    [
        (torch.ones(3, 3).triu(1).bool(), None),
        (torch.randn(3, 3, generator=torch.Generator().manual_seed(0)).double(), None),
        (None, torch.tensor([[False, False, True]])),
    ],
)
def test_masks_of_attention_are_respected(mask: Tensor | None, padding: Tensor | None) -> None:
    model = Masked(mask, padding).double().eval()
    c = Case(model, torch.randn(5, 3, 4).double(), torch.randint(0, 3, (5,)))
    expected = reference.tensor_blocks(reference.full_ggn(c.model, c.x, None), c.model)
    for found, block in zip(matrices(run("diag_ggn", c)), expected, strict=True):
        assert_close(found.diagonal(), block.diagonal(), rtol=1e-9, atol=1e-11)
    assert "forward" not in vars(model.attention)


class OneHot(nn.Module):
    def __init__(self, other: nn.Module) -> None:
        super().__init__()
        self.words, self.head = nn.Linear(6, 3, bias=False).double(), other.head
        self.words.weight.data = other.words.weight.data.T.clone()
        self.places = getattr(other, "places", None)
        self.blank = other.words.padding_idx

    def forward(self, x: Tensor) -> Tensor:
        if self.places is None:
            return self.head(torch.tanh(self.words(functional.one_hot(x[:, 0], 6).double())))
        units = functional.one_hot(x, 6).double()
        units[:, :, self.blank] = 0
        places = torch.arange(x.shape[1]).expand(len(x), -1)
        return self.head(torch.tanh(self.words(units) + self.places(places)).sum(1))


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("name", ["words", "column"])
@pytest.mark.parametrize("kind", EXACT)
def test_an_embedding_has_the_curvature_of_a_linear_layer_on_unit_vectors(
    kind: str, name: str
) -> None:
    c = model_case(name)
    one, two = run(kind, c).curvature, run(kind, Case(OneHot(c.model), c.x, c.y)).curvature
    found, expected = (p.spectra()[p.names.index("words.weight")] for p in (one, two))
    assert_close(found.sort()[0], expected.sort()[0], rtol=1e-8, atol=1e-11)
    delta = torch.tensor(0.3).double()
    theta = c.model.words.weight.detach()
    blocks = [p.blocks[p.names.index("words.weight")] for p in (one, two)]
    assert_close(
        blocks[0].inverse_quadratic(theta.flatten(), delta),
        blocks[1].inverse_quadratic(theta.T.flatten(), delta),
        rtol=1e-8, atol=0,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("name", ["conv1d", "conv1d dilated", "conv1d circular"])
@pytest.mark.parametrize("kind", EXACT)
def test_a_convolution_along_one_axis_is_one_over_images_of_height_one(
    kind: str, name: str
) -> None:
    c = model_case(name)
    line = c.model[0]
    image = nn.Conv2d(
        2, 4, (1, *line.kernel_size), (1, *line.stride), 0, (1, *line.dilation),
        bias=line.bias is not None,
    ).double()  # fmt: skip
    image.load_state_dict(
        {k: v[:, :, None] if k == "weight" else v for k, v in line.state_dict().items()}
    )
    side = line.padding[0]
    mode = "constant" if line.padding_mode == "zeros" else line.padding_mode
    padded = functional.pad(c.x, (side, side), mode=mode)[:, :, None]
    other = Case(nn.Sequential(image, *c.model[1:]), padded, c.y)
    for found, block in zip(matrices(run(kind, c)), matrices(run(kind, other)), strict=True):
        assert_close(found, block, rtol=1e-9, atol=1e-11)


def test_a_linear_layer_on_sequences_expands_unless_told_to_reduce() -> None:
    """Expand: A = Σ_nt a aᵀ / T. Reduce: A = Σ_n ā āᵀ, exact where positions are averaged."""
    torch.manual_seed(0)

    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.line(x).mean(1)

    c = Case(Mean().double(), torch.randn(9, 5, 4).double(), torch.randn(9, 3).double(), 0.7)
    exact = matrices(run("block_ggn", c))[0]
    passes = [
        curvature_pass("kfac_ggn", c.model, c.x, c.y, c.likelihood, batch_size=4, kfac_reduce=r)
        for r in ((), ("line",))
    ]
    expand, reduce = (matrices(p)[0] for p in passes)
    rows = c.x.flatten(0, 1)
    curved = torch.eye(3).double() / 0.7**2
    # Gradients at a position are those at the output over T = 5.
    assert_close(expand, torch.kron(curved / 5**2, rows.T @ rows), rtol=1e-9, atol=1e-12)
    assert_close(reduce, exact, rtol=1e-9, atol=1e-12)
    assert trace_ratios(passes[1], run("diag_ggn", c))["line.weight"] == pytest.approx(1)


@pytest.mark.parametrize("name", ["cross", "no rule", "branching"])
def test_a_few_data_at_a_time_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    c = cross() if name == "cross" else model_case(name)
    whole = run("diag_ef", c).curvature.trace()
    monkeypatch.setattr(vmapped, "_ELEMENTS", 2 * sum(p.numel() for p in c.model.parameters()))
    assert_close(run("diag_ef", c).curvature.trace(), whole)


def test_products_go_through_attention_twice() -> None:
    c = model_case("attention")
    theta = torch.cat([p.detach().flatten() for p in c.model.parameters()])
    joint = LogJoint(c.model, c.x, c.y, c.likelihood, torch.zeros_like(theta), 1.0, 4)
    vector = torch.randn_like(theta)
    expected = reference.full_ggn(c.model, c.x, None) @ vector
    assert_close(joint.gauss_newton(theta)(vector), expected, rtol=1e-8, atol=1e-9)


@pytest.mark.slow
def test_densities_of_networks_with_attention_have_gradients_and_hessians() -> None:
    c = model_case("attention")
    theta = torch.cat([p.detach().flatten() for p in c.model.parameters()])
    values, gradients = network_density(c.model, c.x, c.y, c.likelihood)(theta.expand(2, -1))
    assert_close(values, torch.full((2,), run("diag_ef", c).log_likelihood).double())
    score = log_likelihood_gradient(c.model, c.x, c.y, c.likelihood, batch_size=3)
    assert_close(gradients, score.expand(2, -1), rtol=1e-9, atol=1e-11)
    log_likelihood, x, y = flat_log_likelihood(c.model, c.x[:1], c.y[:1], c.likelihood)
    hessian = jacrev(grad(log_likelihood))(theta, x, y)
    assert_close(hessian, hessian.mT)
    assert float(hessian.abs().max()) > 0


def test_what_forward_leaves_behind_is_gone_after_a_pass() -> None:
    class Noting(Shifts):
        def forward(self, x: Tensor) -> Tensor:
            self.seen = x
            return super().forward(x)

    model = Noting().double()
    run("diag_ef", Case(model, torch.randn(4, 2, 3, 3).double(), torch.tensor([0, 1, 2, 0])))
    assert not hasattr(model, "seen")


class Cross(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.keys = nn.Linear(4, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        k = self.keys(x)
        return self.head(self.attention(x, k, k)[0].sum(1))


def cross() -> Case:
    torch.manual_seed(0)
    return Case(Cross().double().eval(), torch.randn(5, 3, 4).double(), torch.randint(0, 3, (5,)))


def test_cross_attention_has_no_kronecker_factors_but_all_else() -> None:
    c = cross()
    with refused("kind-does-not-support-model", "`attention` of", "attention(h, h, h)", "diag_ef"):
        run("kfac_ggn", c)
    full = reference.full_ef(c.model, c.x, c.y, None)
    expected = reference.tensor_blocks(full, c.model)
    for found, block in zip(matrices(run("diag_ef", c)), expected, strict=True):
        assert_close(found.diagonal(), block.diagonal(), rtol=1e-9, atol=1e-11)
    value = c.estimate("full_ef", prior_precision=1.0).value
    n_tensors = len(list(c.model.parameters()))
    assert_close(
        value,
        reference.log_evidence(c.model, c.x, c.y, None, [1.0] * n_tensors, [full]),
        rtol=1e-9, atol=0,
    )  # fmt: skip


@pytest.mark.parametrize("option", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_an_embedding_that_changes_its_gradients_is_refused(option: dict[str, object]) -> None:
    model = nn.Sequential(nn.Embedding(4, 3, **option), nn.Flatten(), nn.Linear(6, 3))
    c = Case(model, torch.randint(0, 4, (5, 2)), torch.randint(0, 3, (5,)))
    with pytest.raises(ValueError, match=next(iter(option))):
        run("kfac_ggn", c)


# --- dense kinds on layers without rules of their own: one datum at a time, the same numbers


DENSE = tuple(name for name, kind in CURVATURES.items() if kind.is_dense)


class Tied(nn.Module):
    """One weight, used in two places and transposed in a third, and a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        self.factor = nn.Parameter(torch.tensor(1.3))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.layer(torch.tanh(self.layer(x))))
        return self.head(self.factor * functional.linear(h, self.layer.weight.T))


class RecurrentWords(nn.Module):
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
            return Case(RecurrentWords().double(), torch.randint(0, 6, (7, 5)), y)
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


# --- many classes in bounded memory; autocast and checkpoints in forward; outputs of other shapes


@pytest.mark.parametrize("likelihood", [Categorical(1.3), Gaussian(0.7), Heteroscedastic()])
@pytest.mark.parametrize("step", [1, 2, 4, 100])
def test_columns_in_chunks_are_the_columns(likelihood: Likelihood, step: int) -> None:
    outputs = 3 * torch.randn(5, 6, generator=torch.Generator().manual_seed(0)).double()
    whole = likelihood.hessian_roots(outputs)
    parts = [likelihood.hessian_roots(outputs, k, k + step) for k in range(0, len(whole), step)]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=0)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.endswith("_mc")])
def test_a_pass_in_chunks_is_the_pass(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(11, 3).double(), torch.arange(11) % 7
    tied = _Tied() if kind.startswith(("diag", "block", "full")) else nn.Linear(3, 7)
    values = []
    for most in (1 << 23, 1):
        monkeypatch.setattr(capture, "_COLUMN_ELEMENTS", most)
        values.append(
            nas_evidence.estimate_evidence(
                tied.double(), x, y, likelihood="categorical", curvature=kind,
                prior_precision=1.3, batch_size=4,
            ).value
        )  # fmt: skip
    assert values[0] == pytest.approx(values[1], rel=1e-12)


class _Tied(nn.Module):
    """Hooks cannot follow it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(3, 3), nn.Linear(3, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.layer(x).tanh()))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["diag_ggn", "kfac_ggn"])
def test_a_thousand_classes_take_64_mib_of_columns(kind: str) -> None:
    torch.manual_seed(0)
    x, y, model = torch.randn(64, 4), torch.arange(64), nn.Linear(4, 1000)
    with LargestTensor() as seen:
        curvature_pass(kind, model, x, y, Categorical(), batch_size=64)
    assert seen.largest <= 1 << 23  # all columns of this batch are 64 million


class Casting(nn.Module):
    """bfloat16 inside of forward, whatever the caller does."""

    def __init__(self, convolution: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 2) if convolution else nn.Linear(4, 4)
        self.norm, self.scale = nn.LayerNorm(4), nn.Parameter(torch.ones(4))
        self.head, self.casts = nn.Linear(4, 3), True

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.casts):
            h = self.first(x)
            h = h.flatten(1) if h.ndim > 2 else h
            return self.head(self.norm(h.tanh()))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.endswith("_mc")])
@pytest.mark.parametrize("convolution", [False, True])
def test_autocast_in_forward_works_up_to_the_rounding_of_bfloat16(
    kind: str, convolution: bool
) -> None:
    torch.manual_seed(0)
    model = Casting(convolution)
    del model.scale
    x = torch.randn(40, 1, 2, 2) if convolution else torch.randn(40, 4)
    y = torch.arange(40) % 3
    found = {}
    for model.casts in (True, False):
        found[model.casts] = nas_evidence.estimate_evidence(
            model, x, y, likelihood="categorical", curvature=kind, prior_precision=1.3
        ).value
    assert found[True] == pytest.approx(found[False], abs=0.5)
    assert found[True] != found[False]


class Kept(nn.Module):
    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.first, self.head, self.reentrant = nn.Linear(4, 4), nn.Linear(4, 3), reentrant

    def forward(self, x: Tensor) -> Tensor:
        def body(h: Tensor) -> Tensor:
            return torch.tanh(self.first(h))

        if self.reentrant is None:
            return self.head(body(x))
        return self.head(checkpoint(body, x, use_reentrant=self.reentrant))


@pytest.mark.parametrize("kind", ["diag_ef", "diag_ggn", "kfac_ggn", "ekfac_ggn", "full_ggn"])
def test_checkpoints_in_forward_change_nothing_and_stay(kind: str) -> None:
    x, y, found = torch.randn(20, 4).double(), torch.arange(20) % 3, []
    before = vars(torch.utils.checkpoint).copy()
    for reentrant in (None, True, False):
        torch.manual_seed(0)
        model = Kept(reentrant).double()
        found.append(
            nas_evidence.estimate_evidence(
                model, x, y, likelihood="categorical", curvature=kind, prior_precision=1.3
            ).value
        )
    assert found[1:] == pytest.approx([found[0]] * 2, rel=1e-12)
    assert vars(torch.utils.checkpoint) == before
    if kind == "full_ggn":
        full = reference.full_ggn(Kept(None).double(), x, None)
        assert full.shape == (35, 35)
        torch.manual_seed(0)
        model = Kept(None).double()
        expected = reference.log_evidence(
            model, x, y, None, [1.3] * 4, [reference.full_ggn(model, x, None)]
        )
        assert found[0] == pytest.approx(expected, rel=1e-10)


def _estimate(model: nn.Module, y: Tensor, **more: Any) -> None:
    nas_evidence.estimate_evidence(
        model, torch.randn(6, 5, 4), y, prior_precision=1.3,
        **({"likelihood": "categorical", "curvature": "diag_ggn"} | more),
    )  # fmt: skip


class Of(nn.Module):
    def __init__(self, n_outputs: int, does: Any) -> None:
        super().__init__()
        self.head, self.does = nn.Linear(4, n_outputs), does

    def forward(self, x: Tensor) -> Any:
        return self.does(self.head(x))


LABELS = torch.tensor([0, 1, 0, 1, 1, 0])


def test_one_logit_is_refused_with_the_network_that_is_the_same() -> None:
    with refused("one-logit", "one output", "torch.cat([torch.zeros_like(f), f], 1"):
        _estimate(Of(1, lambda f: f.mean(1)), LABELS)
    twice = Of(1, lambda f: functional.pad(f.mean(1), (1, 0)))
    _estimate(twice, LABELS)  # the remedy


def test_outputs_of_tokens_are_refused_with_the_remedy() -> None:
    for model in (Of(2, lambda f: f), Of(2, lambda f: f.movedim(1, 2))):
        with refused("model-output-shape", "pool the positions", "outputs.flatten(1"):
            _estimate(model, LABELS)
    _estimate(Of(2, lambda f: f.mean(1)), LABELS)
    _estimate(
        Of(2, lambda f: f.flatten(1)), torch.randn(6, 10), likelihood="gaussian", noise_std=1.0
    )
    with refused("model-output-shape", "squeeze"):
        _estimate(Of(2, lambda f: f[:, 0, 0]), LABELS)
    with refused("model-output-shape", "a tuple", "logits"):
        _estimate(Of(2, lambda f: (f.mean(1), f)), LABELS)


@pytest.mark.parametrize("label", [-100, -1])
def test_labels_that_a_loss_ignores_are_refused_with_the_remedy(label: int) -> None:
    y = LABELS.clone()
    y[2] = label
    with refused("labels-out-of-range", label, "ignore_index", "leave its rows out"):
        _estimate(Of(2, lambda f: f.mean(1)), y)


@pytest.mark.parametrize("kind", ["diag_ggn", "kfac_ggn"])
def test_a_forward_that_frees_a_frozen_parameter_is_refused(kind: str) -> None:
    class Frees(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(4, 3), nn.Linear(3, 2)
            self.first.weight.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            self.first.weight.requires_grad_(True)
            return self.head(self.first(x[:, 0]).tanh())

    model = Frees()
    with refused("forward-frees-parameters", "first.weight"):
        _estimate(model, LABELS, curvature=kind)
    assert not any(module._forward_hooks for module in model.modules())
