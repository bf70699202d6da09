"""Arithmetic in the precision of its numbers, whatever the user's settings allow.

By default a GPU computes float32 convolutions in TF32, with 10 bits of mantissa, and
`torch.set_float32_matmul_precision` allows less on CPUs too. That is fine for a training step. In
curvature and evidence it is an error of a thousandth in sums whose small eigenvalues matter.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

_DEVICES = ("cuda", "cpu")


@contextmanager
def full_precision() -> Iterator[None]:
    """Multiply float32 numbers as float32: no TF32, no bfloat16, no autocast; restores all."""
    settings = (
        torch.backends.cuda.matmul,
        torch.backends.cudnn.conv,  # type: ignore[attr-defined]
        torch.backends.mkldnn.matmul,  # type: ignore[attr-defined]
        torch.backends.mkldnn.conv,  # type: ignore[attr-defined]
    )
    before = [setting.fp32_precision for setting in settings]
    with ExitStack() as stack:
        for device in _DEVICES:
            stack.enter_context(torch.autocast(device, enabled=False))
        try:
            for setting in settings:
                setting.fp32_precision = "ieee"
            yield
        finally:
            for setting, value in zip(settings, before, strict=True):
                setting.fp32_precision = value
