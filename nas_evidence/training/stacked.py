"""K networks of one architecture as one program: batched products and grouped convolutions.

    vectors       [K, B, F]        y_k = x_k W_kᵀ + b_k, one batched product
    images        [B, K C, H, W]   one convolution of K groups; memory in the order B, H, W, K, C
    small images  [K, B, C, H, W]  y_k = x_k M(W_k), one batched product; memory K, B, H, W, C

K networks, B data in a batch, F features, C channels of one network. M(W) [P C, Q O] is the
matrix of a convolution from P pixels to Q pixels of O channels: each pair of pixels has one of the
taps of W, or 0. For few pixels the product is faster, because convolutions reach a fraction of the
speed of products there (2 to 4 times faster for 2x2 pixels and 20 to 60 channels, one CPU core).

A scale s and a bias β after a convolution are folded into it, which saves two passes over the
images, forward and backward:

    s (W * x + b) + β = (s W) * x + (s b + β)

`SUPPORTED` maps each kind of module to its stacked form. It holds what the families are made of; a
network with any other module has no stacked form and is trained alone. A subclass of a supported
module counts as another module, because its `forward` may differ.
"""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nas_evidence.models.cnn import CellMean
from nas_evidence.models.fixup import FixupBias, FixupScale
from nas_evidence.models.resnet import Block, ResNet

#: Pairs of an input and an output pixel up to which a convolution is done as a product.
_MOST_PAIRS = 64


@dataclass(frozen=True)
class Stack:
    """The parameters of K networks: one tensor [K, *shape] for each of the first network's.

    of  the stacked tensor by the identity of the first network's parameter
    """

    n: int
    of: Mapping[int, Tensor]

    def __getitem__(self, parameter: Tensor) -> Tensor:
        return self.of[id(parameter)]


def can_stack(model: nn.Module) -> bool:
    """Tell whether every module of a network has a stacked form; one with constants has none."""
    constants = {"weight", "bias"} & model._buffers.keys()
    return type(model) in SUPPORTED and not constants and all(map(can_stack, model.children()))


def stacked_outputs(model: nn.Module, stack: Stack, inputs: Tensor) -> Tensor:
    """Return the outputs [K, B, C] of K networks on inputs [K, B, *shape].

    Args:
        model: the first network; only its structure, buffers and settings are read.
        stack: the parameters of all.
        inputs: a batch for each network.
    """
    return SUPPORTED[type(model)](model, stack, inputs)


def _images(x: Tensor) -> Tensor:
    """Return images of either layout as images [B, K C, H, W]."""
    if x.ndim == 4:
        return x
    return x.permute(1, 3, 4, 0, 2).flatten(3).permute(0, 3, 1, 2)


def _small_images(x: Tensor, n: int) -> Tensor:
    """Return images of either layout as images [K, B, C, H, W]."""
    if x.ndim == 5:
        return x
    by_network = x.view(len(x), n, -1, *x.shape[2:]).permute(1, 0, 3, 4, 2)
    return by_network.contiguous().permute(0, 1, 4, 2, 3)


def _vectors(x: Tensor, n: int) -> Tensor:
    """Return images of either layout as vectors [K, B, F], and vectors as they are."""
    if x.ndim == 4:
        x = x.reshape(len(x), n, -1, *x.shape[2:]).transpose(0, 1)
    return x.flatten(2)


def _sequential(module: nn.Module, stack: Stack, x: Tensor) -> Tensor:
    parts = list(module.children())
    while parts:
        part = parts.pop(0)
        if type(part) is not nn.Conv2d:
            x = stacked_outputs(part, stack, x)
            continue
        scale = bias = None
        if parts and type(parts[0]) is FixupScale:
            scale = parts.pop(0)
        if parts and type(parts[0]) is FixupBias:
            bias = parts.pop(0)
        x = _convolution(part, stack, x, scale=scale, bias=bias)
    return x


def _linear(module: nn.Module, stack: Stack, x: Tensor) -> Tensor:
    assert isinstance(module, nn.Linear)
    x, weight = _vectors(x, stack.n), stack[module.weight]
    if module.bias is None:
        return torch.bmm(x, weight.mT)
    return torch.baddbmm(stack[module.bias][:, None], x, weight.mT)


def _convolution(
    module: nn.Module,
    stack: Stack,
    x: Tensor,
    *,
    scale: nn.Module | None = None,
    bias: nn.Module | None = None,
) -> Tensor:
    """Return a convolution, times a scale and plus a bias if they are given, both folded in."""
    assert isinstance(module, nn.Conv2d)
    weight = stack[module.weight]  # [K, C_out, C_in / groups, h, w]
    shift = None if module.bias is None else stack[module.bias]  # [K, C_out]
    if scale is not None:
        assert isinstance(scale, FixupScale)
        factor = stack[scale.scale]  # [K, 1]
        weight = weight * factor[:, :, None, None, None]
        shift = None if shift is None else shift * factor
    if bias is not None:
        assert isinstance(bias, FixupBias)
        added = stack[bias.bias]
        shift = added.expand(-1, module.out_channels) if shift is None else shift + added
    if _is_product(module, x.shape[-2], x.shape[-1]):
        joins = _taps_that_join(_Sides.of(module, x), weight.device, weight.dtype)
        return _product(_small_images(x, stack.n), weight, shift, joins)
    return F.conv2d(
        _images(x),
        weight.flatten(0, 1).contiguous(memory_format=torch.channels_last),
        None if shift is None else shift.flatten(),
        module.stride,
        module.padding,
        module.dilation,
        stack.n * module.groups,
    )


def _product(x: Tensor, weight: Tensor, shift: Tensor | None, joins: Tensor) -> Tensor:
    """Return a convolution of small images as a product with its matrix.

    Args:
        x: [K, B, C, H, W].
        weight: [K, O, C, h, w].
        shift: [K, O], or none.
        joins: which tap joins two pixels [P, H_out, W_out, h w], 1 or 0.
    """
    n, n_out, n_in = weight.shape[:3]
    taps = weight.permute(0, 3, 4, 2, 1).reshape(n, -1, n_in * n_out)
    matrix = torch.matmul(joins.flatten(0, 2), taps)  # [K, P Q, C O]
    n_pixels, height, width = joins.shape[:3]
    matrix = matrix.view(n, n_pixels, height * width, n_in, n_out).transpose(2, 3)
    matrix = matrix.reshape(n, n_pixels * n_in, -1)  # [K, P C, Q O]
    flat = x.permute(0, 1, 3, 4, 2).flatten(2)
    if shift is None:
        found = torch.bmm(flat, matrix)
    else:
        each = shift.repeat(1, height * width)[:, None]
        found = torch.baddbmm(each, flat, matrix)
    return found.view(n, -1, height, width, n_out).permute(0, 1, 4, 2, 3)


class _Sides(NamedTuple):
    """Size, kernel, stride and padding of a convolution, along both sides."""

    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]

    @classmethod
    def of(cls, module: nn.Conv2d, x: Tensor) -> "_Sides":
        assert not isinstance(module.padding, str)
        return cls(tuple(x.shape[-2:]), module.kernel_size, module.stride, module.padding)


@functools.cache
def _taps_that_join(sides: _Sides, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return which tap joins an input and an output pixel [P, H_out, W_out, h w], 1 or 0.

    Kept, so that nothing is copied to the device in later steps.
    """
    rows, columns = (_joining(*side) for side in zip(*sides, strict=True))
    joins = torch.einsum("pqa,xyb->pxqyab", rows, columns)
    return joins.flatten(4).flatten(0, 1).to(device, dtype)


def _joining(size: int, kernel: int, stride: int, pad: int) -> Tensor:
    """Return the same along one side [size, out, kernel]."""
    n_out = (size + 2 * pad - kernel) // stride + 1
    tap = torch.arange(size)[:, None] + pad - stride * torch.arange(n_out)[None]
    return (tap[:, :, None] == torch.arange(kernel)).float()


def _is_product(module: nn.Conv2d, height: int, width: int) -> bool:
    plain = module.groups == 1 and module.dilation == (1, 1) and module.padding_mode == "zeros"
    if not plain or isinstance(module.padding, str):
        return False
    sides = zip((height, width), module.kernel_size, module.stride, module.padding, strict=True)
    n_out = math.prod([(n + 2 * pad - kernel) // by + 1 for n, kernel, by, pad in sides])
    return height * width * n_out <= _MOST_PAIRS


def _scale(module: nn.Module, stack: Stack, x: Tensor) -> Tensor:
    assert isinstance(module, FixupScale)
    return x * _of_each_feature(stack[module.scale], x)


def _bias(module: nn.Module, stack: Stack, x: Tensor) -> Tensor:
    assert isinstance(module, FixupBias)
    return x + _of_each_feature(stack[module.bias], x)


def _of_each_feature(scalars: Tensor, x: Tensor) -> Tensor:
    """Return scalars [K, 1] in a shape that broadcasts to vectors or images of either layout."""
    if x.ndim != 4:
        return scalars.view(-1, *[1] * (x.ndim - 1))
    n = len(scalars)
    return scalars.expand(n, x.shape[1] // n).reshape(1, -1, 1, 1)


def _cell_mean(module: nn.Module, stack: Stack, x: Tensor) -> Tensor:
    assert isinstance(module, CellMean)
    x = _images(x)
    grid = torch.kron(module.rows, module.columns)  # [cells, H W]
    means = torch.matmul(grid, x.permute(0, 2, 3, 1).flatten(1, 2))  # [B, cells, K C]
    return means.mT.view(*x.shape[:2], len(module.rows), len(module.columns))


def _pointwise(module: nn.Module, stack: Stack, x: Tensor) -> Tensor:
    found: Tensor = module(x)
    return found


def _pooling(module: nn.Module, stack: Stack, x: Tensor) -> Tensor:
    found: Tensor = module(_images(x))
    return found


def _flatten(module: nn.Module, stack: Stack, x: Tensor) -> Tensor:
    assert isinstance(module, nn.Flatten)
    return _vectors(x, stack.n)


def _block(module: nn.Module, stack: Stack, x: Tensor) -> Tensor:
    assert isinstance(module, Block)
    shifted = _bias(module.bias1a, stack, x)
    hidden = F.relu(_convolution(module.conv1, stack, shifted, bias=module.bias1b))
    residual = _convolution(
        module.conv2,
        stack,
        _bias(module.bias2a, stack, hidden),
        scale=module.scale,
        bias=module.bias2b,
    )
    if module.stride == 1:
        return F.relu(residual + x)
    thinned = shifted[..., :: module.stride, :: module.stride]
    if residual.ndim == 5:
        thinned = _small_images(thinned, stack.n)
        return F.relu(residual + F.pad(thinned, (0, 0, 0, 0, 0, module.added)))
    parts = thinned.permute(0, 2, 3, 1)
    parts = parts.reshape(*parts.shape[:3], stack.n, -1)  # [B, H, W, K, C]
    padded = F.pad(parts, (0, module.added)).flatten(3)
    return F.relu(residual + padded.permute(0, 3, 1, 2))


def _resnet(module: nn.Module, stack: Stack, x: Tensor) -> Tensor:
    assert isinstance(module, ResNet)
    x = F.relu(_convolution(module.conv, stack, x, bias=module.bias1))
    x = _vectors(stacked_outputs(module.blocks, stack, x).mean((-2, -1), keepdim=True), stack.n)
    return _linear(module.head, stack, _bias(module.bias2, stack, x))


Form = Callable[[nn.Module, Stack, Tensor], Tensor]
#: The stacked form of each kind of module.
SUPPORTED: Mapping[type[nn.Module], Form] = {
    nn.Sequential: _sequential,
    nn.Flatten: _flatten,
    nn.Linear: _linear,
    nn.Conv2d: _convolution,
    nn.ReLU: _pointwise,
    nn.MaxPool2d: _pooling,
    CellMean: _cell_mean,
    FixupScale: _scale,
    FixupBias: _bias,
    ResNet: _resnet,
    Block: _block,
}
