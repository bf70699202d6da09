"""Sums over the data of squared weight gradients, Σ_n (Σ_t s_t a_tᵀ)²: four kernels, one rule.

    pairs     Σ_{t ≤ t'} w_tt' (s_t s_t')ᵀ (a_t a_t'), w = 1 if t = t' else 2: products over all
              data at once; no gradient of a datum is formed, so it writes least. T (T + 1) / 2
              products instead of T, so for few positions
    grouped   the gradients of all data from one convolution in which the data are groups
    rows      the gradients as products of patches, one row per position; copies whole runs of
              channels where these are last in memory
    columns   the same, one column per position; for inputs whose channels are not last

The rule was timed on one core (float32, 128 rows, 3x3 kernels of 1 to 128 channels on 1x1 to 32x32
positions; benchmarks/cost_of_curvature.py).
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from nas_evidence.curvature.patches import Convolution, images, patches, with_padding
from nas_evidence.maths.at_once import elements_at_once

#: On a CPU, maximum number of elements of the gradients formed at a time, and of
#: what they are formed from.
_ELEMENTS = 1 << 20
#: Positions up to which pairs of them are faster than gradients.
_FEW_POSITIONS = 4
#: Elements of the gradients that a grouped convolution makes at a time; beyond the cache it takes
#: up to five times as long.
_GROUPED_ELEMENTS = 1 << 19


def weight_squares(module: nn.Linear | Convolution, a: Tensor, g: Tensor) -> Tensor:
    """Return the sum over data of squared weight gradients [d_out d_in of all groups].

    Args:
        module: Linear, Conv1d or Conv2d.
        a: its input [n, ..., d_in], [n, c_in, L] or [n, c_in, H, W].
        g: gradient at its output.
    """
    n_positions = g[0].numel() // len(module.weight)
    if n_positions <= _FEW_POSITIONS:
        return _summed(_pairs(module, *part) for part in _parts(module, a, g))
    if isinstance(module, nn.Linear):
        return _summed(_products(*part) for part in _parts(module, a, g))
    if isinstance(module, nn.Conv2d) and _grouped_is_faster(module, a):
        step = max(1, min(128, _GROUPED_ELEMENTS // module.weight.numel()))
        starts = range(0, len(a), step)
        parts = ((a[i : i + step], g[i : i + step]) for i in starts)
        return _summed(_grouped(module, *part).square_().sum(0) for part in parts)
    if module.groups == 1 and channels_last(a):
        return _summed(_rows(module, *part) for part in _parts(module, a, g))
    return _summed(_columns(module, *part) for part in _parts(module, a, g))


def channels_last(a: Tensor) -> bool:
    """Tell whether the channels of images [n, C, H, W] are next to each other in memory."""
    several = a.ndim == 4 and a.shape[1] > 1
    return several and a.is_contiguous(memory_format=torch.channels_last)


def _summed(parts: Iterator[Tensor]) -> Tensor:
    total = next(parts)
    for part in parts:
        total += part
    return total.flatten()


def _parts(
    module: nn.Linear | Convolution, a: Tensor, g: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield a and g in chunks of data, small enough for the cache of a CPU."""
    weight = module.weight
    groups = 1 if isinstance(module, nn.Linear) else module.groups
    patch = groups * weight[0].numel() * (g[0].numel() // len(weight))
    most = elements_at_once(_ELEMENTS, a.device, a.dtype)
    step = max(1, most // max(patch, weight.numel(), 1))
    for start in range(0, len(a), step):
        yield a[start : start + step], g[start : start + step]


def _pairs(module: nn.Linear | Convolution, a: Tensor, g: Tensor) -> Tensor:
    """Return the sum from pairs of positions [groups, d_out, d_in]."""
    n, groups, d_out = len(a), 1, len(module.weight)
    if isinstance(module, nn.Linear):
        inputs = a.reshape(n, -1, a.shape[-1]).permute(1, 2, 0).contiguous()[:, None]
        gradients = g.reshape(n, -1, d_out).permute(1, 2, 0).contiguous()[:, None]
    else:
        groups = module.groups
        by_position = patches(module, a).permute(4, 5, 1, 2, 3, 0)
        positions = by_position.shape[0] * by_position.shape[1]
        inputs = by_position.reshape(positions, groups, -1, n)  # [T, groups, d_in, n]
        gradients = images(g).permute(2, 3, 1, 0).reshape(positions, groups, d_out // groups, n)
    total = inputs.new_zeros(groups, d_out // groups, inputs.shape[2])
    for t in range(len(inputs)):
        a_pairs, s_pairs = inputs[t] * inputs[t:], gradients[t] * gradients[t:]
        s_pairs[1:].mul_(2)
        for a_pair, s_pair in zip(a_pairs, s_pairs, strict=True):
            total.baddbmm_(s_pair, a_pair.mT)
    return total.clamp_(min=0)  # terms of both signs may sum to less than nothing by rounding


def _products(a: Tensor, g: Tensor) -> Tensor:
    """Return the sum for inputs [n, ..., d_in] and gradients [n, ..., d_out] [d_out, d_in]."""
    return (g.flatten(1, -2).mT @ a.flatten(1, -2)).square_().sum(0)


def _rows(module: Convolution, a: Tensor, g: Tensor) -> Tensor:
    """Return the sum from one row per position [d_out, d_in]; not for groups."""
    seen = patches(module, a)  # [n, c_in, kh, kw, h, w]
    n, c_in, kh, kw, height, width = seen.shape
    inputs = seen.permute(0, 4, 5, 2, 3, 1).reshape(n, height * width, -1)
    gradients = g.permute(0, 2, 3, 1).reshape(n, height * width, -1)
    total = (gradients.mT @ inputs).square_().sum(0)
    return total.reshape(-1, kh, kw, c_in).permute(0, 3, 1, 2)


def _columns(module: Convolution, a: Tensor, g: Tensor) -> Tensor:
    """Return the sum from one column per position [groups, d_out, d_in]."""
    n, groups = len(a), module.groups
    seen = patches(module, a)
    inputs = seen.reshape(n, groups, -1, seen.shape[4] * seen.shape[5])
    gradients = g.flatten(2).reshape(n, groups, -1, inputs.shape[3])
    return (gradients @ inputs.mT).square_().sum(0)


def _grouped_is_faster(module: nn.Conv2d, a: Tensor) -> bool:
    """Tell whether one grouped convolution beats products of patches, for many positions.

    From 8 input channels up to 8,000 weights it takes 0.4 to 1.0 times as long, otherwise up to
    twice as long. Only float32 on a CPU has the fast kernel.
    """
    few = module.in_channels >= 8 and module.weight.numel() <= 8_000
    return few and a.device.type == "cpu" and a.dtype == torch.float32


def _grouped(module: nn.Conv2d, a: Tensor, g: Tensor) -> Tensor:
    """Return the weight gradient of each datum [n, d_out, d_in]: the data become groups."""
    padded, weight = with_padding(module, a), module.weight
    _, gradient, _ = torch.ops.aten.convolution_backward(
        g.reshape(1, -1, *g.shape[2:]),
        padded.reshape(1, -1, *padded.shape[2:]),
        weight.new_empty(1).expand(len(a) * weight.shape[0], *weight.shape[1:]),
        None,
        module.stride,
        (0, 0),
        module.dilation,
        False,
        (0, 0),
        len(a) * module.groups,
        (False, True, False),
    )
    gradients: Tensor = gradient.reshape(len(a), weight.shape[0], -1)
    return gradients
