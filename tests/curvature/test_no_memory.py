"""A pass that ends for want of memory says so: the network is not to blame."""

import pytest
import torch
from torch import Tensor, nn

from nas_evidence import estimate_evidence
from nas_evidence.plumbing.no_memory import is_memory_full


class Hungry(nn.Module):
    def __init__(self, fails_on: int) -> None:
        super().__init__()
        self.layer, self.fails_on = nn.Linear(3, 2), fails_on

    def forward(self, x: Tensor) -> Tensor:
        if len(x) == self.fails_on:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate")
        return self.layer(x)


@pytest.mark.parametrize("kind", ["diag_ef", "full_ggn", "kfac_ggn"])
@pytest.mark.parametrize("fails_on", [1, 8])
def test_want_of_memory_is_no_fault_of_the_model(kind: str, fails_on: int) -> None:
    x, y = torch.randn(8, 3), torch.arange(8) % 2
    with pytest.raises(RuntimeError) as caught:
        estimate_evidence(
            Hungry(fails_on), x, y, likelihood="categorical", curvature=kind, prior_precision=1.0
        )
    assert is_memory_full(caught.value)
    assert type(caught.value) is RuntimeError, caught.value
