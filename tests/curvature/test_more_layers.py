"""Attention, embeddings, one-dimensional convolutions, norms, and modules without a rule.

Brute force: one datum at a time through autograd. Closed form: the same function written with
linear layers or images. Property: order and batches do not matter.
"""

from collections.abc import Callable

import pytest
import reference
import torch
from cases import Case
from dense_blocks import matrices, run
from messages import refused
from torch import Tensor, nn
from torch.func import grad, jacrev
from torch.nn import functional
from torch.testing import assert_close

from nas_evidence.curvature import curvature_pass, trace_ratios, vmapped
from nas_evidence.curvature.capture import layers_of, undisturbed
from nas_evidence.curvature.gradient import log_likelihood_gradient
from nas_evidence.curvature.layers import AutogradLayer, WholeModel
from nas_evidence.curvature.products import LogJoint
from nas_evidence.curvature.sweep import Sweep
from nas_evidence.evidence.network_density import flat_log_likelihood, network_density

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
