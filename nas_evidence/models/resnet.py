"""Residual networks for small images without normalisation: Fixup (Zhang, Dauphin & Ma, 2019).

    depth = 6 n + 2: a convolution, three stages of n blocks with w, 2w, 4w channels, a linear head
    block(x) = ReLU(scale * conv2(ReLU(conv1(x + b1a) + b1b) + b2a) + b2b + shortcut(x))

Convolutions have no bias of their own. Where a stage starts with stride 2, the shortcut keeps
every second pixel of x + b1a and appends zero channels, without parameters. ResNet-20 of width 16
has 268,393 parameters on 3x32x32 images with 10 classes, as published by Immer et al. (2021).

Initialisation: with L = 3 n blocks, conv1 of each is He-normal times L^(-1/2), conv2 and the head
are zero; the network starts as the constant 0. He's rule uses the fan-in of a weight.
"""

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from nas_evidence.models.fixup import FixupBias, FixupScale
from nas_evidence.spec.domains import ParameterValue

SMALLEST = 4  # pixels per side: each stride of 2 still has more than one pixel


class Block(nn.Module):
    """Two convolutions plus a shortcut; [n, c_in, H, W] -> [n, c_out, H/stride, W/stride]."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.stride, self.added = stride, c_out - c_in
        self.bias1a = FixupBias()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride=stride, padding=1, bias=False)
        self.bias1b = FixupBias()
        self.bias2a = FixupBias()
        self.conv2 = nn.Conv2d(c_out, c_out, 3, padding=1, bias=False)
        self.scale = FixupScale()
        self.bias2b = FixupBias()

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of residual and shortcut, rectified."""
        shifted = self.bias1a(x)
        residual = F.relu(self.bias1b(self.conv1(shifted)))
        residual = self.bias2b(self.scale(self.conv2(self.bias2a(residual))))
        if self.stride == 1:
            return F.relu(residual + x)
        thinned = shifted[:, :, :: self.stride, :: self.stride]
        return F.relu(residual + F.pad(thinned, (0, 0, 0, 0, 0, self.added)))


class ResNet(nn.Module):
    """Images [n, C, H, W] to outputs [n, n_outputs]."""

    def __init__(self, depth: int, width: int, n_channels: int, n_outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(n_channels, width, 3, padding=1, bias=False)
        self.bias1 = FixupBias()
        blocks = []
        c_in = width
        for c_out in (width, 2 * width, 4 * width):
            for _ in range(n_blocks(depth) // 3):
                blocks.append(Block(c_in, c_out, stride=1 if c_in == c_out else 2))
                c_in = c_out
        self.blocks = nn.Sequential(*blocks)
        self.bias2 = FixupBias()
        self.head = nn.Linear(c_in, n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs [n, n_outputs]."""
        x = self.blocks(F.relu(self.bias1(self.conv(x))))
        outputs: Tensor = self.head(self.bias2(x.mean((2, 3))))
        return outputs


def n_blocks(depth: int) -> int:
    """Return the number of residual blocks, 3 n for depth 6 n + 2.

    >>> n_blocks(20)
    9
    """
    return (depth - 2) // 2


def construct(
    values: Mapping[str, ParameterValue], input_shape: tuple[int, ...], n_outputs: int
) -> nn.Module:
    """Return the network; weights are not yet initialised."""
    return ResNet(int(values["depth"]), int(values["width"]), input_shape[0], n_outputs)


def obstacle(values: Mapping[str, ParameterValue], input_shape: tuple[int, ...]) -> str | None:
    """Return why the input does not fit the network, or None."""
    if len(input_shape) != 3:
        return (
            f"resnet needs images [channels, height, width], but an input is {list(input_shape)}"
        )
    _, height, width = input_shape
    if min(height, width) < SMALLEST:
        return (
            f"resnet needs images of at least {SMALLEST}x{SMALLEST}, "
            f"but the input is {height}x{width}"
        )
    return None


def gain(name: str, values: Mapping[str, ParameterValue]) -> float:
    """Return the factor on He's standard deviation for the weight called `name`."""
    if name == "head.weight" or name.endswith("conv2.weight"):
        return 0.0
    if name.endswith("conv1.weight"):
        return float(n_blocks(int(values["depth"])) ** -0.5)
    return 1.0
