"""Which curvature kinds cover a network, found by trying each on a few random data."""

from dataclasses import dataclass

import torch
from torch import nn

from nas_evidence.curvature import curvature_pass
from nas_evidence.likelihood import Gaussian
from nas_evidence.registry import CURVATURES


@dataclass(frozen=True)
class Coverage:
    """Whether a kind covers a network; `reason` names what is not covered."""

    kind: str
    covered: bool
    reason: str


def coverage(model: nn.Module, input_shape: tuple[int, ...], n_outputs: int) -> list[Coverage]:
    """Try every kind of curvature on four random data, and return what each said."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, *input_shape, generator=generator)
    y = torch.randn(4, n_outputs, generator=generator)
    found = []
    for kind in CURVATURES:
        try:
            curvature_pass(
                kind, model, x, y, Gaussian(1.0), batch_size=4,
                generator=torch.Generator().manual_seed(0),
            )  # fmt: skip
        except (ValueError, RuntimeError) as error:
            found.append(Coverage(kind, False, str(error).splitlines()[0]))
        else:
            found.append(Coverage(kind, True, ""))
    return found
