"""The baseline: one linear map from the flattened input to the outputs.

`numbers = "piecewise"` encodes the inputs first, see `models/number_layers.py`. The map is linear
in its parameters still, and piecewise linear in each number.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping

from torch import nn

from nas_evidence.models.number_layers import LAYER, Piecewise
from nas_evidence.spec.domains import ParameterValue


def construct(
    values: Mapping[str, ParameterValue],
    input_shape: tuple[int, ...],
    n_outputs: int,
    n_bins: int | None = None,
) -> nn.Module:
    """Return the map, with that many bins of numbers; weights are not yet initialised."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    if n_bins is not None:
        layers[LAYER] = Piecewise(n_bins)
    layers["head"] = nn.Linear(math.prod(input_shape) + (n_bins or 0), n_outputs)
    return nn.Sequential(layers)
