"""Prior precisions δ of the parameters of a model: one per tensor [G], or one per parameter [P].

Which of the two is told here and nowhere else. Where G = P every tensor has one parameter, and
both mean the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Precisions:
    """The values δ [G] or [P], and the number of parameters in each tensor.

    >>> each = Precisions(torch.tensor([2.0, 3.0]), (1, 2))
    >>> each.is_per_tensor, each.of_each_parameter().tolist()
    (True, [2.0, 3.0, 3.0])
    >>> [part.tolist() for part in Precisions(torch.ones(3), (1, 2)).by_tensor()]
    [[1.0], [1.0, 1.0]]
    """

    values: Tensor
    sizes: Sequence[int]

    @property
    def is_per_tensor(self) -> bool:
        """Tell whether there is one value per tensor."""
        return len(self.values) == len(self.sizes)

    def by_tensor(self) -> tuple[Tensor, ...]:
        """Return the value [] or the values [size] of each tensor."""
        if self.is_per_tensor:
            return self.values.unbind()
        return torch.split(self.values, list(self.sizes))

    def of_each_parameter(self) -> Tensor:
        """Return one value per parameter [P]."""
        if not self.is_per_tensor:
            return self.values
        return self.values.repeat_interleave(torch.tensor(self.sizes, device=self.values.device))
