"""Minibatch steps preconditioned by a curvature, for data too large for full-batch steps.

    θ ← θ − ρ_t (κ K + D)⁻¹ ĝ,   ĝ = κ (N / B) Σ_batch ∇nll + D θ,   ρ_t = 1 / (T + t)

    K  curvature of all data, block diagonal      T  steps of an epoch      t  steps so far

With K the Hessian, rates of 1/t make θ_t as exact as the minimiser of all data seen (Robbins &
Monro 1951; Murata 1998); the first epoch counts as one already done. A step is no longer than a
quadratic loss with this curvature would have it fall by 5 % of a nat per datum.
"""

import torch
from torch import Tensor

from nas_evidence.data.tensors import TensorData, batches
from nas_evidence.maths.block_inverse import BlockInverse
from nas_evidence.spec import Assignment
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
    """Return θ [P], float64, after some epochs; the model of the training moves along.

    Args:
        training: whose hyperparameters stay as they are.
        data: to visit in random orders, one for each epoch.
        assignment: the plan and the seeds.
        inverse: of the curvature beside the prior.
        first_epoch: how many epochs of such steps there have been; sets the rate and the orders.
        n_epochs: to run.
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
