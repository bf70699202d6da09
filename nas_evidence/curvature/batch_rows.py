"""How many rows a curvature pass processes at a time; the result does not depend on it.

The stored inputs of a batch should fit in the cache, but every batch also costs one addition into
sums of the size of the parameters. So nets with small activations use more rows: a
784-1024-512-256-128-10 net is 1.3 times faster with 512 than with 128, a small convolutional one
1.2 times slower (one CPU core, float32).

One rule serves every device. The draws of Monte-Carlo kinds depend on the number of rows, and it
is stored with the weights (`curvature_batch`). So a trial of a GPU has the draws of a CPU, and a
CPU can compute its evidence again. What a GPU forms from a batch has a bound of its own, see
`maths.at_once`.
"""

import torch
from torch import Tensor, nn

from nas_evidence.curvature.capture import layers_of, undisturbed
from nas_evidence.curvature.layers import is_perceptron
from nas_evidence.curvature.refusals import UnsupportedLayerError

#: Largest number of elements that all layer inputs of a batch should have together.
_ELEMENTS = 3 << 19
FEWEST_ROWS, MOST_ROWS = 128, 512


def rows_at_once(model: nn.Module, inputs: Tensor) -> int:
    """Return the number of rows for a pass over `inputs` [n, ...]: 128, 256 or 512."""
    if is_perceptron(model):
        return _rows(sum(m.in_features for m in model.modules() if isinstance(m, nn.Linear)))
    elements = 0

    def count(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        nonlocal elements
        elements += args[0].numel() if args else 0

    try:
        layers = layers_of(model)
    except UnsupportedLayerError:  # then data are processed one at a time anyway
        return FEWEST_ROWS
    handles = [layer.module.register_forward_pre_hook(count) for layer in layers]
    try:
        with undisturbed(model), torch.no_grad():
            model(inputs[:1].clone())
    finally:
        for handle in handles:
            handle.remove()
    return _rows(elements)


def _rows(elements: int) -> int:
    """Return the number of rows for so many elements of all layer inputs of a row."""
    power = 1 << (_ELEMENTS // max(1, elements)).bit_length() >> 1
    return max(FEWEST_ROWS, min(MOST_ROWS, power))
