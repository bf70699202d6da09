"""Preconditioned minibatch steps, for data too large for full-batch steps.

    θ ← θ − ρ_t (κ K + D)⁻¹ ĝ,   ĝ = κ (N / B) Σ_batch ∇nll + D θ,   ρ_t = 1 / (T + t)

    K  curvature of all data, block diagonal      T  steps per epoch      t  steps so far

If K is the Hessian, rates of 1/t make θ_t as accurate as the minimiser over all data seen (Robbins
& Monro 1951; Murata 1998); rates start as if one epoch were already done. A step is shortened if a
quadratic loss with this curvature would fall by more than 0.05 nats per datum.
"""

import torch
from torch import Tensor

from nas_evidence.data.tensors import TensorData, batches
from nas_evidence.maths.block_inverse import BlockInverse
from nas_evidence.spec.study import Assignment
from nas_evidence.training.loop import Training
from nas_evidence.training.mode import (
    likelihood_now,
    parameters_of,
    precision_of_each,
    write_parameters,
)

_LONGEST = 0.05  # nats per datum


def descend_by_batches(
    training: Training,
    data: TensorData,
    assignment: Assignment,
    inverse: BlockInverse,
    *,
    first_epoch: int,
    n_epochs: int,
) -> Tensor:
    """Return θ [P], float64, after some epochs; updates the model of the training in place.

    Args:
        training: its hyperparameters stay fixed.
        data: visited in a new random order each epoch.
        assignment: the plan and the seeds.
        inverse: inverse of the curvature plus the prior precision.
        first_epoch: number of earlier epochs of such steps; sets the rate and the orders.
        n_epochs: epochs to run.
    """
    plan, model, n_data = assignment.plan, training.model, len(data.x_train)
    parameters = list(model.parameters())
    precision = precision_of_each(training)
    likelihood = likelihood_now(training, plan)
    theta = parameters_of(training)
    per_epoch = -(-n_data // plan.batch_size)
    count = per_epoch * (1 + first_epoch)
    model.eval()
    for epoch in range(first_epoch, first_epoch + n_epochs):
        order = torch.Generator().manual_seed(assignment.derived_seed("settle", epoch))
        for index in batches(n_data, plan.batch_size, order):
            rows = index.to(data.x_train.device)
            loss = n_data * likelihood.nll_mean(model(data.x_train[rows]), data.y_train[rows])
            parts = torch.autograd.grad(loss, parameters)
            flat = torch.cat([part.flatten() for part in parts]).double()
            gradient = plan.likelihood_power * flat + precision * theta
            step = inverse(gradient) / count
            fall = float(gradient @ step) / count  # ρ² ĝᵀ (κ K + D)⁻¹ ĝ
            limit = _LONGEST * n_data
            theta = theta - step * min(1.0, (limit / fall) ** 0.5 if fall > 0 else 1.0)
            write_parameters(training, theta)
            count += 1
    return theta
