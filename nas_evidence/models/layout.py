"""The order in memory of a network's images: channels first, or last.

Numbers and shapes are the same either way; only strides differ, and sums by rounding. The weights
decide: a convolution whose weight has its channels last returns its output so, whatever its input,
and elementwise layers and pooling keep the order of their input.

On one CPU core in float32 training is 1.04 to 1.5 times as fast with channels last, for CNNs of
width 2 to 32 and ResNets of width 4 to 16 on 8x8 and 28x28 images. Curvature passes are 0.99 to
1.4 times as fast from width 8, and 0.8 to 1.2 times below. Training takes most of the time, so
CNNs always have their channels last; ResNets, whose epochs gain less, from width 8. On a GPU
neither order has been timed; benchmarks/gpu/probe.py compares them.
"""

import torch
from torch import nn


def laid_out(model: nn.Module, *, channels_last: bool) -> nn.Module:
    """Return the model with the weights of its convolutions in an order of memory, in place."""
    order = torch.channels_last if channels_last else torch.contiguous_format
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.to(memory_format=order)
    return model
