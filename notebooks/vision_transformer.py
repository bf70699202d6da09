"""A small vision transformer as your own family (Dosovitskiy et al. 2021).

    images [n, C, H, W] -> patches [n, T, width] -> blocks of attention and MLP -> mean over T

Run it: python notebooks/vision_transformer.py
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


class Positions(nn.Module):
    """Add a learned vector to each position."""

    def __init__(self, n_positions: int, width: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(0.02 * torch.randn(n_positions, width))

    def forward(self, h: Tensor) -> Tensor:
        return h + self.vectors


class Block(nn.Module):
    """Self-attention and a two-layer perceptron, each after a norm and beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, h: Tensor) -> Tensor:
        a = self.norm1(h)
        h = h + self.attention(a, a, a, need_weights=False)[0]
        return h + self.down(nn.functional.gelu(self.up(self.norm2(h))))


class Transformer(nn.Module):
    """The network; every parameter is in a module that is called once."""

    def __init__(
        self, input_shape: tuple[int, ...], n_outputs: int, *, patch: int, width: int, depth: int
    ) -> None:
        super().__init__()
        channels, height, breadth = input_shape
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.positions = Positions((height // patch) * (breadth // patch), width)
        self.blocks = nn.Sequential(*[Block(width, heads=2) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = self.positions(self.patches(x).flatten(2).transpose(1, 2))
        return self.head(self.norm(self.blocks(h)).mean(1))


class VisionTransformer:
    """The family: what may vary, and how to build a member."""

    domains = {  # noqa: RUF012
        "patch": [2, 4],
        "width": {"low": 8, "high": 32, "log": True},
        "depth": [1, 2],
    }

    def build(
        self, values: Mapping[str, Any], input_shape: tuple[int, ...], n_outputs: int
    ) -> nn.Module:
        width = 2 * round(values["width"] / 2)  # two heads of equal width
        return Transformer(
            input_shape, n_outputs, patch=values["patch"], width=width, depth=values["depth"]
        )


if __name__ == "__main__":
    from sklearn.datasets import load_digits

    import nas_evidence

    images, labels = load_digits(return_X_y=True)
    X, y = images.reshape(-1, 1, 8, 8), labels
    study = nas_evidence.search(X, y, families=[VisionTransformer], test_fraction=0.3)
    study.export()
