"""A searched head on a frozen backbone of torchvision, as your own family.

    images [n, 1 or 3, H, W] -> first blocks of ResNet-18, constant -> 2 x 2 means -> searched head

Parameters with requires_grad=False are constants: they have no prior, no curvature and no part in
the evidence. The backbone stays in evaluation mode, where its batch normalisation is constant too.

Run it: python notebooks/frozen_backbone.py
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d
from torchvision.models import resnet18

#: Features of an image: 64 channels of 2 x 2 means.
WIDTH = 256


def backbone() -> nn.Module:
    """Return the stem and the first blocks, frozen and in evaluation mode.

    Here with the random weights of seed 0. A file of weights that lies beside this module is read
    before the blocks are taken:

        content = pkgutil.get_data(__name__, "resnet18.pt")
        whole.load_state_dict(torch.load(io.BytesIO(content), weights_only=True))
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        whole = resnet18(weights=None)
    return nn.Sequential(*[*whole.children()][:5]).requires_grad_(False).eval()


class OnBackbone(nn.Module):
    """A head on the features."""

    def __init__(self, features: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.features, self.head = features, head

    def forward(self, x: Tensor) -> Tensor:
        features = self.features(x.expand(-1, 3, -1, -1))
        return self.head(adaptive_avg_pool2d(features, 2).flatten(1))


class FrozenBackbone:
    """The family: what may vary in the head, and how to build a member."""

    domains = {"depth": [0, 1, 2], "width": {"low": 8, "high": 64, "log": True}}  # noqa: RUF012

    def build(
        self, values: Mapping[str, Any], input_shape: tuple[int, ...], n_outputs: int
    ) -> nn.Module:
        layers, width = list[nn.Module](), WIDTH
        for _ in range(values["depth"]):
            layers += [nn.Linear(width, values["width"]), nn.ReLU()]
            width = values["width"]
        return OnBackbone(backbone(), nn.Sequential(*layers, nn.Linear(width, n_outputs)))


if __name__ == "__main__":
    from sklearn.datasets import load_digits

    import nas_evidence

    X, y = load_digits(return_X_y=True)
    study = nas_evidence.search(
        X.reshape(-1, 1, 8, 8), y, families=[FrozenBackbone], test_fraction=0.3
    )
    study.report()
    study.export()
