"""A residual network for tables as your own family (Gorishniy et al. 2021).

    features [n, d] -> width -> blocks x + W_down relu(W_up norm(x)) -> norm -> outputs

Run it: python notebooks/tabular_resnet.py
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


class Block(nn.Module):
    """Two layers beside a shortcut; LayerNorm, because BatchNorm mixes the data of a batch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(self.norm(x)).relu())


class TabularResNet:
    """The family: what may vary, and how to build a member."""

    domains = {"width": {"low": 8, "high": 64, "log": True}, "blocks": [1, 2, 3]}  # noqa: RUF012

    def build(
        self, values: Mapping[str, Any], input_shape: tuple[int, ...], n_outputs: int
    ) -> nn.Module:
        width = values["width"]
        blocks = [Block(width) for _ in range(values["blocks"])]
        return nn.Sequential(
            nn.Linear(input_shape[0], width), *blocks, nn.LayerNorm(width), nn.ReLU(),
            nn.Linear(width, n_outputs),
        )  # fmt: skip


if __name__ == "__main__":
    from sklearn.datasets import load_diabetes

    import nas_evidence

    X, y = load_diabetes(return_X_y=True)
    study = nas_evidence.search(X, y, families=[TabularResNet, "linear"], test_fraction=0.3)
    study.export()
