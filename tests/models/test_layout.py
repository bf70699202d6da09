"""Channels last in memory: another order of the same numbers."""

import copy
import io
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from nas_evidence.curvature import curvature_pass
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.models import build
from nas_evidence.models.layout import laid_out
from nas_evidence.spec.study import ArchitectureSpec

SHAPE = (2, 9, 8)
NETWORKS = {
    "cnn": ArchitectureSpec(family="cnn", values={"depth": 2, "width": 3}),
    "resnet": ArchitectureSpec(family="resnet", values={"depth": 8, "width": 8}),
}


def network(name: str) -> nn.Module:
    model = build(NETWORKS[name], SHAPE, 3, torch.Generator().manual_seed(0))
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():  # no weight stays at Fixup's zeros
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=random)
    return model


def is_last(model: nn.Module) -> bool:
    weights = [m.weight for m in model.modules() if isinstance(m, nn.Conv2d)]
    return all(w.is_contiguous(memory_format=torch.channels_last) for w in weights)


def examples() -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(2)
    return torch.randn(7, *SHAPE, generator=random), torch.arange(7) % 3


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_with_channels_last_computes_the_same(name: str) -> None:
    last = network(name)
    first = laid_out(copy.deepcopy(last), channels_last=False)
    assert is_last(last)
    assert all(p.is_contiguous() for p in first.parameters())
    x, y = examples()
    torch.testing.assert_close(last(x), first(x), rtol=1e-5, atol=1e-6)
    for model in (last, first):
        nn.functional.cross_entropy(model(x), y).backward()
    for one, other in zip(last.parameters(), first.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("kind", ["diag_ef", "kfac_ggn", "ekfac_ggn"])
@pytest.mark.parametrize("name", NETWORKS)
def test_curvature_does_not_depend_on_the_order_of_channels(name: str, kind: str) -> None:
    last = network(name).double()
    first = laid_out(copy.deepcopy(last), channels_last=False)
    x, y = examples()
    found, expected = (
        curvature_pass(kind, model, x.double(), y, Categorical(), batch_size=4).curvature.trace()
        for model in (last, first)
    )
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)


def test_the_order_survives_steps_and_checkpoints() -> None:
    model = network("cnn")
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = examples()
    for _ in range(2):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    content = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimiser": optimiser.state_dict()}, content)
    content.seek(0)
    state = torch.load(content, weights_only=True)
    again = build(NETWORKS["cnn"], SHAPE, 3, torch.Generator().manual_seed(5))
    again.load_state_dict(state["model"])
    resumed = torch.optim.SGD(again.parameters(), lr=0.1, momentum=0.9)
    resumed.load_state_dict(state["optimiser"])
    for one, other in ((model, optimiser), (again, resumed)):
        other.zero_grad()
        nn.functional.cross_entropy(one(x), y).backward()
        other.step()
    assert is_last(again)
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert one.stride() == other.stride()
        assert torch.equal(one, other)


def test_stored_weights_have_the_usual_order(tmp_path: Path) -> None:
    model = network("resnet")
    stored = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(stored, tmp_path / "model.safetensors")
    again = build(NETWORKS["resnet"], SHAPE, 3, torch.Generator().manual_seed(5))
    again.load_state_dict(load_file(tmp_path / "model.safetensors"))
    x, _ = examples()
    assert torch.equal(again(x), model(x))


def test_narrow_residual_networks_keep_channels_first() -> None:
    narrow = ArchitectureSpec(family="resnet", values={"depth": 8, "width": 4})
    model = build(narrow, SHAPE, 3, torch.Generator().manual_seed(0))
    assert all(p.is_contiguous() for p in model.parameters())
