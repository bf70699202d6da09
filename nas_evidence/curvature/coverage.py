"""Which curvature kinds cover a network, and how each of its layers, found by trying.

A layer has Kronecker "factors" or, from the gradients of each datum, an exact "own block" for each
of its tensors; "per datum" are the gradients of the whole network, where hooks cannot follow it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nas_evidence.curvature import curvature_pass
from nas_evidence.curvature.attention import is_plain
from nas_evidence.curvature.capture import check_gradients, undisturbed
from nas_evidence.curvature.embedding import EmbeddingLayer
from nas_evidence.curvature.layers import AutogradLayer, Layer, WeightLayer, layer_of
from nas_evidence.curvature.refusals import (
    UnsupportedLayerError,
    over_the_batch,
)
from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.maths.constants import constants_aside
from nas_evidence.spec.registry import CURVATURES

#: Rows that a check passes through a network.
_ROWS = 4


@dataclass(frozen=True)
class Coverage:
    """Whether a kind covers a network; `reason` names what is not covered, and the remedy."""

    kind: str
    covered: bool
    reason: str


@dataclass(frozen=True)
class LayerCoverage:
    """How the kinds cover one module with parameters of its own; "no" with the remedy."""

    path: str
    type: str
    n_parameters: int
    diagonal: str
    kronecker: str
    dense: str
    remedy: str = ""


def coverage(model: nn.Module, input_shape: tuple[int, ...], n_outputs: int) -> list[Coverage]:
    """Try every kind of curvature on four random data, and return what each said.

    The network is in the mode in which it will be trained.
    """
    x, y = _data(input_shape, n_outputs)
    found = []
    for kind in CURVATURES:
        try:
            curvature_pass(
                kind, model, x, y, Gaussian(1.0), batch_size=_ROWS,
                generator=torch.Generator().manual_seed(0),
            )  # fmt: skip
        except (ValueError, RuntimeError) as error:
            found.append(Coverage(kind, False, str(error).splitlines()[0]))
        else:
            found.append(Coverage(kind, True, ""))
    return found


def coverage_of_layers(
    model: nn.Module, input_shape: tuple[int, ...], n_outputs: int
) -> list[LayerCoverage]:
    """Try each module with parameters by itself, and return how the kinds cover it."""
    x, _ = _data(input_shape, n_outputs)
    found = []
    why = {path: over_the_batch(path, module) for path, module in model.named_modules()}
    with constants_aside(model), undisturbed(model):
        for path, module in model.named_modules():
            own = [name for name, _ in module.named_parameters(path, recurse=False)]
            if own:
                found.append(_tried(model, path or "(model)", module, own, x, why[path]))
    return found


def _tried(
    model: nn.Module, path: str, module: nn.Module, names: Sequence[str], x: Tensor, why_not: str
) -> LayerCoverage:
    size = sum(p.numel() for p in module.parameters(recurse=False))
    what = (path, type(module).__name__, size)
    if why_not:
        return LayerCoverage(*what, "no", "no", "no", why_not)
    try:
        layer = layer_of(path, module, tuple(names))
        check_gradients(model, (*_around(model, path), layer), x[:2])
    except UnsupportedLayerError as error:
        model.requires_grad_(False)  # the check may have stopped halfway
        return LayerCoverage(*what, "per datum", "no", "per datum", str(error))
    except (ValueError, RuntimeError) as error:
        model.requires_grad_(False)
        return LayerCoverage(*what, "no", "no", "no", str(error).splitlines()[0])
    if isinstance(layer, WeightLayer | EmbeddingLayer):
        return LayerCoverage(*what, "yes", "factors", "yes")
    note = ""
    if isinstance(layer, AutogradLayer) and any(True for _ in module.children()):
        note = "put its own parameters into a small module; now all of it runs again for them"
    return LayerCoverage(*what, "yes", "own block", "yes", note)


def _around(model: nn.Module, path: str) -> tuple[Layer, ...]:
    """Return the attention that an output projection belongs to, which must be taken apart."""
    parent, _, name = path.rpartition(".")
    module = model.get_submodule(parent) if name == "out_proj" else None
    if not isinstance(module, nn.MultiheadAttention) or not is_plain(module):
        return ()
    names = tuple(n for n, _ in module.named_parameters(parent, recurse=False))
    return (layer_of(parent, module, names),)


def _data(input_shape: tuple[int, ...], n_outputs: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(_ROWS, *input_shape, generator=generator)
    return x, torch.randn(_ROWS, n_outputs, generator=generator)
