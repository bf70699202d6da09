"""Fully connected networks with ReLU on the flattened input.

`shape = "constant"` has `depth` hidden layers of `width` units. `shape = "taper"` is the network
of Immer et al. (2021, appendix C.4) and ignores both: 1,494,154 parameters on 28x28 images with
10 classes.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping
from itertools import pairwise

from torch import nn

from nas_evidence.spec.domains import ParameterValue

TAPER = (1024, 512, 256, 128)


def construct(
    values: Mapping[str, ParameterValue], input_shape: tuple[int, ...], n_outputs: int
) -> nn.Module:
    """Return the network; weights are not yet initialised."""
    constant = (int(values["width"]),) * int(values["depth"])
    hidden = TAPER if values["shape"] == "taper" else constant
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for i, (n_in, n_out) in enumerate(pairwise((math.prod(input_shape), *hidden)), start=1):
        layers[f"linear{i}"] = nn.Linear(n_in, n_out)
        layers[f"relu{i}"] = nn.ReLU()
    layers["head"] = nn.Linear(hidden[-1], n_outputs)
    return nn.Sequential(layers)
