"""Parameters with requires_grad=False, and normalisation with fixed statistics, are constants."""

import copy
import math
from collections.abc import Callable

import pytest
import reference
import torch
from cases import Case
from dense_blocks import matrices
from messages import refused
from torch import Tensor, nn
from torch.testing import assert_close

import nas_evidence
from nas_evidence.curvature import KINDS, curvature_pass
from nas_evidence.curvature.coverage import coverage, coverage_of_layers
from nas_evidence.evidence.last_layer import last_layer_of
from nas_evidence.evidence.network_density import (
    flat_parameters,
    network_density,
    spread_precision,
)
from nas_evidence.evidence.posterior import fit_posterior
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.spec.registry import CURVATURES

KRONECKER = ("kfac_ggn", "kfac_ggn_mc", "kfac_ef", "ekfac_ggn")


def data(labels: bool, n: int = 9) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    x = torch.randn(n, 4, generator=random).double()
    y = torch.randn(n, 3, generator=random).double()
    return x, y.argmax(1) if labels else y


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make().double()


def trunk_and_head(bias: bool = True, n_outputs: int = 3) -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, n_outputs, bias=bias)
    )


def frozen(model: nn.Module, *names: str) -> nn.Module:
    """The model with the parameters frozen whose names begin so."""
    for name, parameter in model.named_parameters():
        if name.startswith(names):
            parameter.requires_grad_(False)
    return model


@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_frozen_trunk_is_as_if_its_features_were_the_data(kind: str, labels: bool) -> None:
    x, y = data(labels)
    model = frozen(seeded(trunk_and_head), "0", "2")
    given = {
        "likelihood": "categorical" if labels else "gaussian", "curvature": kind,
        "prior_precision": [0.7, 1.9], "noise_std": None if labels else 0.6, "n_draws": 2,
    }  # fmt: skip
    found = nas_evidence.estimate_evidence(model, x, y, **given)
    with torch.no_grad():
        features = model[:3](x)
    expected = nas_evidence.estimate_evidence(model[3], features, y, **given)
    assert found.value == pytest.approx(expected.value, rel=1e-12)
    terms = [
        {(t.term, t.group.removeprefix("3.")): t.value for t in one.terms}
        for one in (found, expected)
    ]
    assert terms[0] == pytest.approx(terms[1], rel=1e-9)
    groups = {t.group for t in found.terms if t.term == "scatter"}
    assert groups == {"3.weight", "3.bias"}


@pytest.mark.parametrize("kind", ["kfac_ggn", "ekfac_ggn", "block_ggn", "full_ggn"])
def test_with_the_last_layer_free_the_evidence_is_that_of_bayesian_regression(kind: str) -> None:
    x, y = data(labels=False)
    model, std, delta = frozen(seeded(lambda: trunk_and_head(False, 1)), "0", "2"), 0.6, 1.7
    found = nas_evidence.estimate_evidence(
        model, x, y[:, :1], likelihood="gaussian", curvature=kind, prior_precision=delta,
        noise_std=std, at_mode_correction=True,
    )  # fmt: skip
    with torch.no_grad():
        features = model[:3](x)
    covariance = features @ features.T / delta + std**2 * torch.eye(len(x)).double()
    normal = torch.distributions.MultivariateNormal(torch.zeros(len(x)).double(), covariance)
    assert found.value == pytest.approx(float(normal.log_prob(y[:, 0])), rel=1e-12)


def test_a_network_of_classes_with_some_free_tensors_is_that_of_brute_force() -> None:
    x, y = data(labels=True)
    model = seeded(trunk_and_head)
    names = [name for name, _ in model.named_parameters()]
    sizes = [p.numel() for p in model.parameters()]
    whole = reference.full_ggn(model, x, None)
    for kept in (["3.weight"], ["0.bias", "2.weight", "3.bias"], ["0.weight", "3.weight"]):
        own = frozen(copy.deepcopy(model), *(n for n in names if n not in kept))
        free = torch.cat(
            [torch.full((size,), n in kept) for n, size in zip(names, sizes, strict=True)]
        )
        delta = dict(zip(kept, (0.4, 1.1, 2.5), strict=False))
        h = whole[free][:, free]
        spread = torch.cat([torch.full((p.numel(),), delta[n], dtype=torch.float64)
                            for n, p in model.named_parameters() if n in kept])  # fmt: skip
        theta = torch.cat([p.detach().flatten() for p in model.parameters()])[free]
        expected = (
            reference.log_likelihood(model(x), y, None)
            - 0.5 * float((spread * theta.square()).sum())
            - 0.5 * float(torch.logdet(h + spread.diag()) - spread.log().sum())
        )
        found = nas_evidence.estimate_evidence(
            own, x, y, likelihood="categorical", curvature="full_ggn", prior_precision=delta
        )
        assert found.value == pytest.approx(expected, rel=1e-11)


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.conv, self.words = nn.Conv1d(3, 2, 2), nn.Embedding(3, 4)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = x[:, None] * self.words(torch.arange(3).expand(len(x), 3))
        return self.head(self.conv(self.attention(h, h, h)[0]).flatten(1))


MIXED = {
    "bias of attention": (Attentive, ("attention.in_proj_bias",)),
    "attention": (Attentive, ("attention",)),
    "bias of convolution": (Attentive, ("conv.bias", "head.weight")),
    "weight of convolution": (Attentive, ("conv.weight", "words")),
    "scale of norm": (trunk_and_head, ("2.weight",)),
    "shift of norm": (trunk_and_head, ("2.bias", "0.weight")),
}


@pytest.mark.parametrize("name", MIXED)
def test_the_blocks_of_free_tensors_are_those_of_the_network_that_is_all_free(name: str) -> None:
    make, names = MIXED[name]
    whole = seeded(make)
    part = frozen(copy.deepcopy(whole), *names)
    x, y = data(labels=True)
    every = [n for n, _ in whole.named_parameters()]
    free = [not n.startswith(names) for n in every]
    for kind in KINDS:
        if CURVATURES[kind].structure == "full":
            continue
        passes = [
            curvature_pass(kind, model, x, y, Categorical(), batch_size=4,
                           generator=torch.Generator().manual_seed(0))
            for model in (whole, part)
        ]  # fmt: skip
        expected = [m for m, is_free in zip(matrices(passes[0]), free, strict=True) if is_free]
        assert passes[1].curvature.names == tuple(
            n for n, is_free in zip(every, free, strict=True) if is_free
        )
        for one, other in zip(matrices(passes[1]), expected, strict=True):
            if "weight of" in name and kind in KRONECKER:  # its bias has the exact block
                assert one.shape == other.shape
                continue
            assert_close(one, other, rtol=1e-9, atol=1e-12)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.memory, self.head = nn.LSTM(1, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.memory(x[..., None])[0][:, -1])


def test_a_frozen_recurrent_network_has_every_kind_of_its_head() -> None:
    x, y = data(labels=True)
    model = frozen(seeded(Recurrent), "memory")
    with torch.no_grad():
        features = model.memory(x[..., None])[0][:, -1]
    for kind in KINDS:
        values = [
            nas_evidence.estimate_evidence(
                m, inputs, y, likelihood="categorical", curvature=kind, prior_precision=1.3
            ).value
            for m, inputs in ((model, x), (model.head, features))
        ]
        assert values[0] == pytest.approx(values[1], rel=1e-11)


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 4:
            raise ArithmeticError
        return self.head(self.first(x).tanh())


def test_a_partly_frozen_model_is_left_as_it_was() -> None:
    x, y = data(labels=True)
    for make in (trunk_and_head, Failing):
        model = frozen(seeded(make), "0.bias", "2.weight", "first.weight")
        before = [(n, id(p), p.requires_grad) for n, p in model.named_parameters()]
        state = [*model.state_dict()]
        try:
            curvature_pass("diag_ggn", model, x, y, Categorical(), batch_size=3)
        except ArithmeticError:
            assert make is Failing
        assert [(n, id(p), p.requires_grad) for n, p in model.named_parameters()] == before
        assert [*model.state_dict()] == state
        assert dict(model.named_buffers()) == {}


def test_a_model_without_a_free_parameter_is_one_sentence() -> None:
    x, y = data(labels=True)
    model = seeded(trunk_and_head).requires_grad_(False)
    with refused("model-without-parameters", "requires_grad=False"):
        nas_evidence.estimate_evidence(
            model, x, y, likelihood="categorical", curvature="diag_ggn", prior_precision=1.0
        )
    with refused("model-without-parameters"):
        nas_evidence.online_laplace(
            model, torch.optim.SGD(model.parameters(), lr=0.1), (x, y), likelihood="categorical"
        )


def test_a_prior_of_a_constant_is_refused_by_its_name() -> None:
    x, y = data(labels=True)
    model = frozen(seeded(trunk_and_head), "0", "2")
    with refused("prior-precision-names", "0.weight"):
        nas_evidence.estimate_evidence(
            model, x, y, likelihood="categorical", curvature="diag_ggn",
            prior_precision={"0.weight": 1.0, "3.weight": 1.0, "3.bias": 1.0},
        )  # fmt: skip


def test_what_is_beside_the_curvature_is_of_the_free_parameters_too() -> None:
    x, y = data(labels=False)
    model = frozen(seeded(trunk_and_head), "0", "2")
    with torch.no_grad():
        features = model[:3](x)
    head, likelihood = model[3], Gaussian(0.6)
    assert_close(flat_parameters(model), flat_parameters(head))
    delta = torch.tensor([0.5, 2.0]).double()
    assert_close(spread_precision(model, delta), spread_precision(head, delta))
    at = torch.stack([flat_parameters(head), flat_parameters(head) * 0.5])
    found = network_density(model, x, y, likelihood)(at)
    assert_close(found, network_density(head, features, y, likelihood)(at))
    one, other = last_layer_of(model, x, delta), last_layer_of(head, features, delta)
    assert_close((one.features, one.precision), (other.features, other.precision))
    with refused("last-layer-frozen", "bias"):
        last_layer_of(frozen(copy.deepcopy(model), "3.bias"), x, delta[:1])
    by_name = {"3.weight": delta[:1], "3.bias": delta[1:]}
    of_head = {"weight": delta[:1], "bias": delta[1:]}
    for limits in ({}, {"most_full": 0}):
        spread = fit_posterior(model, x, y, likelihood, by_name, **limits)
        expected = fit_posterior(head, features, y, likelihood, of_head, **limits)
        found = spread.output_covariance(model, x[:4])
        assert_close(found, expected.output_covariance(head, features[:4]))
        model.requires_grad_(False)  # as for predictions
        assert_close(spread.output_covariance(model, x[:4]), found)
        frozen(model.requires_grad_(True), "0", "2")


class Affine(nn.Module):
    """Batch normalisation in evaluation mode, written out."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.weight, self.bias = norm.weight, norm.bias
        self.mean, self.std = norm.running_mean, (norm.running_var + norm.eps).sqrt()

    def forward(self, x: Tensor) -> Tensor:
        shape = (1, -1, *(1 for _ in x.shape[2:]))
        parts = (self.mean, self.std, self.weight, self.bias)
        mean, std, weight, bias = (part.view(shape) for part in parts)
        return (x - mean) / std * weight + bias


class Pictures(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 1)
        self.norm = kind(3)
        self.head = nn.Linear(12, 3)
        nn.init.normal_(self.norm.weight)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(x.view(len(x), 1, 2, 2))
        h = h.flatten(2) if isinstance(self.norm, nn.BatchNorm1d) else h
        h = h[:, :, None] if isinstance(self.norm, nn.BatchNorm3d) else h
        return self.head(self.norm(h).flatten(1).tanh())


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d])
@pytest.mark.parametrize("fixed", ["nothing", "norm.weight", "norm"])
def test_normalisation_with_fixed_statistics_has_every_kind(
    kind: type[nn.Module], fixed: str
) -> None:
    x, y = data(labels=True)
    model = frozen(seeded(lambda: Pictures(kind)), fixed).eval()
    written_out = copy.deepcopy(model)
    written_out.norm = Affine(written_out.norm)
    for one in KINDS:
        values = [
            nas_evidence.estimate_evidence(
                m, x, y, likelihood="categorical", curvature=one, prior_precision=1.3
            ).value
            for m in (model, written_out)
        ]
        assert values[0] == pytest.approx(values[1], rel=1e-10)
        assert math.isfinite(values[0])
    for path in ("norm.running_mean", "norm.running_var"):
        assert_close(model.state_dict()[path], seeded(lambda: Pictures(kind)).state_dict()[path])


@pytest.mark.parametrize("kind", ["diag_ggn", "kfac_ggn", "full_ggn"])
def test_normalisation_in_training_mode_is_refused_with_its_reason(kind: str) -> None:
    x, y = data(labels=True)
    model = seeded(lambda: Pictures(nn.BatchNorm2d))
    with refused("batch-statistics", "norm", "BatchNorm2d", "training"):
        nas_evidence.estimate_evidence(
            model, x, y, likelihood="categorical", curvature=kind, prior_precision=1.3
        )


def test_coverage_tells_fixed_from_moving_statistics() -> None:
    model = seeded(lambda: Pictures(nn.BatchNorm2d)).float()
    assert not any(one.covered for one in coverage(model, (4,), 3))
    ways = {one.path: one.kronecker for one in coverage_of_layers(model, (4,), 3)}
    assert ways["norm"] == "no"
    model.norm.eval()
    assert all(one.covered for one in coverage(model, (4,), 3))
    ways = {one.path: one.kronecker for one in coverage_of_layers(model, (4,), 3)}
    assert ways == {"conv": "factors", "norm": "own block", "head": "factors"}
    frozen(model, "norm", "conv")
    assert {one.path for one in coverage_of_layers(model, (4,), 3)} == {"head"}


def test_a_case_is_not_vacuous() -> None:
    x, y = data(labels=True)
    model = seeded(trunk_and_head)
    values = [
        Case(m, x, y, prior_precision=torch.ones(n).double()).estimate("full_ggn").value
        for m, n in ((model, 6), (frozen(copy.deepcopy(model), "0"), 4))
    ]
    assert abs(values[0] - values[1]) > 0.1
