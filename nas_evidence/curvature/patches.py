"""The patches that a convolution sees, as a view of its padded input.

A convolution along one axis is one over images of height 1.
"""

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional

Convolution = nn.Conv1d | nn.Conv2d


class Sides(NamedTuple):
    """Kernel, stride and dilation of a convolution along height and width."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]


def sides(module: Convolution) -> Sides:
    """Return the settings of a convolution along both sides of an image."""
    flat = (1,) * (2 - len(module.kernel_size))
    return Sides(flat + module.kernel_size, flat + module.stride, flat + module.dilation)


def images(a: Tensor) -> Tensor:
    """Return inputs [n, C, L] as images [n, C, 1, L], and images as they are."""
    return a[:, :, None] if a.ndim == 3 else a


def patches(module: Convolution, a: Tensor) -> Tensor:
    """Return a strided view of the patches of a convolution [n, c_in, kh, kw, h_out, w_out]."""
    padded = images(with_padding(module, a))
    n, channels, height, width = padded.shape
    kernel, stride, dilation = sides(module)
    h_out = (height - dilation[0] * (kernel[0] - 1) - 1) // stride[0] + 1
    w_out = (width - dilation[1] * (kernel[1] - 1) - 1) // stride[1] + 1
    by_n, by_c, by_h, by_w = padded.stride()
    return padded.as_strided(
        (n, channels, kernel[0], kernel[1], h_out, w_out),
        (by_n, by_c, by_h * dilation[0], by_w * dilation[1], by_h * stride[0], by_w * stride[1]),
        padded.storage_offset(),
    )


def with_padding(module: Convolution, a: Tensor) -> Tensor:
    """Return the input with its padding; the same tensor if there is none."""
    around = padding(module)
    if not any(around):
        return a
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return functional.pad(a, around, mode=mode)


def padding(module: Convolution) -> tuple[int, ...]:
    """Return padding (left, right, top, bottom); "same" puts an odd one right or bottom."""
    if module.padding == "valid":
        return (0, 0) * len(module.kernel_size)
    if module.padding == "same":
        totals = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
        sides = [(total // 2, total - total // 2) for total in totals]
    else:
        assert not isinstance(module.padding, str)
        sides = [(each, each) for each in module.padding]
    return tuple(length for pair in reversed(sides) for length in pair)
