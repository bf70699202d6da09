"""Prior precisions δ of the tensors of a model [G], as one for each parameter [P]."""

from collections.abc import Sequence

import torch
from torch import Tensor


def of_each_parameter(values: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the value of each parameter [P] from one for each tensor [G].

    Args:
        values: of the tensors [G].
        sizes: number of parameters in each.

    >>> of_each_parameter(torch.tensor([2.0, 3.0]), (1, 2)).tolist()
    [2.0, 3.0, 3.0]
    """
    return values.repeat_interleave(torch.tensor(sizes, device=values.device))
