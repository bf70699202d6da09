"""The patches that a convolution sees, as a view of its padded input."""

from torch import Tensor, nn
from torch.nn import functional


def patches(module: nn.Conv2d, a: Tensor) -> Tensor:
    """Return a strided view of the patches of a convolution [n, c_in, kh, kw, h_out, w_out]."""
    padded = zero_padded(module, a)
    n, channels, height, width = padded.shape
    stride, dilation, kernel = module.stride, module.dilation, module.kernel_size
    h_out = (height - dilation[0] * (kernel[0] - 1) - 1) // stride[0] + 1
    w_out = (width - dilation[1] * (kernel[1] - 1) - 1) // stride[1] + 1
    by_n, by_c, by_h, by_w = padded.stride()
    return padded.as_strided(
        (n, channels, kernel[0], kernel[1], h_out, w_out),
        (by_n, by_c, by_h * dilation[0], by_w * dilation[1], by_h * stride[0], by_w * stride[1]),
        padded.storage_offset(),
    )


def zero_padded(module: nn.Conv2d, a: Tensor) -> Tensor:
    """Return the input with its zero padding; the same tensor if there is none."""
    return functional.pad(a, padding(module)) if any(padding(module)) else a


def padding(module: nn.Conv2d) -> tuple[int, int, int, int]:
    """Return zero padding (left, right, top, bottom); "same" puts an odd one right or bottom."""
    if module.padding == "valid":
        return (0, 0, 0, 0)
    if module.padding == "same":
        totals = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
        (top, bottom), (left, right) = ((t // 2, t - t // 2) for t in totals)
        return (left, right, top, bottom)
    assert not isinstance(module.padding, str)
    height, width = module.padding
    return (width, width, height, height)
