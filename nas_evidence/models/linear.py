"""The baseline: one linear map from the flattened input to the outputs."""

import math
from collections import OrderedDict
from collections.abc import Mapping

from torch import nn

from nas_evidence.spec.domains import ParameterValue


def construct(
    values: Mapping[str, ParameterValue], input_shape: tuple[int, ...], n_outputs: int
) -> nn.Module:
    """Return the map; weights are not yet initialised."""
    head = nn.Linear(math.prod(input_shape), n_outputs)
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), head=head))
