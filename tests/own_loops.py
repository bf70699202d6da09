"""A training loop of one's own with online Laplace, as a user writes it."""

from typing import Any

import torch
from torch import Tensor, nn

import nas_evidence
from nas_evidence.training.own_loop import OnlineLaplace


def looped(
    model: nn.Module, x: Tensor, y: Tensor, optimiser: Any = None, *, epochs: int = 0,
    n_steps: int = 1, batch: int | None = None, **options: Any,
) -> OnlineLaplace:  # fmt: skip
    """Take passes over all rows, `n_steps` an epoch; without an optimiser nothing moves."""
    optimiser = optimiser or torch.optim.SGD(model.parameters(), lr=1e-9)
    likelihood = "gaussian" if y.is_floating_point() else "categorical"
    given = {"likelihood": likelihood, **options}
    laplace = nas_evidence.online_laplace(model, optimiser, (x, y), **given)
    for _ in range(epochs):
        for _ in range(n_steps):
            for rows in torch.arange(len(x)).split(batch or len(x)):
                optimiser.zero_grad()
                laplace.loss(model(x[rows]), y[rows]).backward()
                optimiser.step()
        laplace.after_epoch()
    return laplace
