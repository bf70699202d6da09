"""Many classes in bounded memory; autocast and checkpoints in forward; outputs of other shapes."""

from typing import Any

import pytest
import reference
import torch
from largest_tensor import LargestTensor
from messages import refused
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import nas_evidence
from nas_evidence.curvature import KINDS, capture, curvature_pass
from nas_evidence.likelihoods import Likelihood
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.likelihoods.heteroscedastic import Heteroscedastic


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
