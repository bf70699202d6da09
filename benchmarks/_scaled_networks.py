"""Perceptrons with the scaling layer and the learning-rate factors of RealMLP, for Adam.

    x -> s * x -> W_1 (s * x) + b_1 -> relu -> .. -> head

s [d] is one learned factor for each input column, 1 at first. RealMLP multiplies the learning
rate of s by 6 and that of the hidden biases by 0.1 (Holzmueller et al. 2024, "Better by Default").
Adam's steps do not depend on the scale of a gradient. So the same steps come from s = 6 t and
b = 0.1 c, where t and c are trained at the common rate. Their prior precisions are learned, one
for each tensor, so that another scale of a tensor is no other prior.

Differs from RealMLP: the head is a plain linear layer, whose bias keeps its rate, since scores of
the last layer need it so. Weights are drawn as the family `mlp` draws them.
"""

import itertools
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

#: On the learning rate of the scaling layer and of the hidden biases.
OF_SCALES, OF_BIASES = 6.0, 0.1


class Scales(nn.Module):
    """s * x with s = OF_SCALES t, t [d] a parameter."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.t = nn.Parameter(torch.full((n,), 1 / OF_SCALES))

    def forward(self, x: Tensor) -> Tensor:
        """Return [n, d] for numbers [n, d]."""
        return x * (OF_SCALES * self.t)


class Biases(nn.Module):
    """x + b with b = OF_BIASES c, c [width] a parameter."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.c = nn.Parameter(torch.zeros(n))

    def forward(self, x: Tensor) -> Tensor:
        """Return [n, width] for hidden units [n, width]."""
        return x + OF_BIASES * self.c


def drawn(layer: nn.Linear) -> nn.Linear:
    """Return the layer with weights from N(0, 2 / fan_in) and biases 0."""
    if not layer.weight.is_meta:
        nn.init.normal_(layer.weight, std=math.sqrt(2 / layer.in_features))
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return layer


class Screened:
    """The family: perceptrons of two sizes, with and without; nothing else differs."""

    domains = {"kind": ["plain", "scaled"], "size": ["1x32", "2x24"]}  # noqa: RUF012

    def build(
        self, values: Mapping[str, Any], input_shape: tuple[int, ...], n_outputs: int
    ) -> nn.Module:
        """Return the network."""
        scaled = values["kind"] == "scaled"
        depth, width = map(int, values["size"].split("x"))
        sizes = (math.prod(input_shape), *(width,) * depth)
        parts: list[nn.Module] = [nn.Flatten()]
        if scaled:
            parts.append(Scales(sizes[0]))
        for n_in, n_out in itertools.pairwise(sizes):
            parts.append(drawn(nn.Linear(n_in, n_out, bias=not scaled)))
            parts += [Biases(n_out), nn.ReLU()] if scaled else [nn.ReLU()]
        return nn.Sequential(*parts, drawn(nn.Linear(width, n_outputs)))
