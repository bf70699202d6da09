"""Encodings of numbers in front of a network: fixed functions of its inputs, without parameters.

A curvature, an evidence and a posterior are of the parameters behind them, so they stay what they
are: those of the plain network on encoded inputs.
"""

from collections import OrderedDict
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from nas_evidence.maths.piecewise import Bins
from nas_evidence.spec.domains import ParameterValue
from nas_evidence.spec.study import NUMBERS, PLAIN

#: The module of a network that encodes its numbers.
LAYER = "numbers"


class Piecewise(nn.Module):
    """Each number, then its piecewise-linear encoding by M bins, see `maths/piecewise.py`.

    The bins are buffers [M], which lie in every file of weights; those of several networks on the
    same data are equal.
    """

    column: Tensor
    low: Tensor
    high: Tensor
    mean: Tensor
    std: Tensor

    def __init__(self, n_bins: int) -> None:
        super().__init__()
        self.register_buffer("column", torch.zeros(n_bins, dtype=torch.int64))
        for name in ("low", "high", "mean", "std"):
            self.register_buffer(name, torch.zeros(n_bins, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., d + M] for numbers [..., d], in their dtype."""
        low, high, mean, std = (
            one.to(x.dtype) for one in (self.low, self.high, self.mean, self.std)
        )
        ramps = (x.index_select(-1, self.column) - low) / (high - low)
        return torch.cat([x, (ramps.clamp(0, 1) - mean) / std], -1)


def obstacle(values: Mapping[str, ParameterValue], input_shape: tuple[int, ...]) -> str | None:
    """Return why numbers of such inputs cannot be encoded as the values say, or None."""
    if values[NUMBERS] == PLAIN or len(input_shape) == 1:
        return None
    return f'numbers = "{values[NUMBERS]}" needs vectors, but an input is {list(input_shape)}'


def encoding_of(model: nn.Module) -> Piecewise | None:
    """Return the layer in front of a network of the package that encodes its numbers, or None."""
    found = model._modules.get(LAYER) if type(model) is nn.Sequential else None
    return found if isinstance(found, Piecewise) else None


def behind_encoding(model: nn.Module) -> nn.Module:
    """Return the network on encoded inputs, with the same parameters: the model if it has none."""
    if encoding_of(model) is None:
        return model
    rest = ((name, part) for name, part in model.named_children() if name != LAYER)
    return nn.Sequential(OrderedDict(rest)).train(model.training)


def buffers_of(bins: Bins) -> dict[str, Tensor]:
    """Return the tensors of the layer by their names in a network."""
    return {
        f"{LAYER}.{name}": torch.from_numpy(value.copy()) for name, value in vars(bins).items()
    }


def stored_bins(tensors: Mapping[str, Tensor], prefix: str = "") -> Bins | None:
    """Return the bins among the tensors of a network; None where it encodes no numbers.

    Args:
        tensors: as in `state_dict()`, or in a file of weights.
        prefix: before the names of the network's own tensors.
    """
    names = [f"{prefix}{LAYER}.{name}" for name in Bins.__dataclass_fields__]
    if not all(name in tensors for name in names):
        return None
    return Bins(*(tensors[name].cpu().numpy() for name in names))
