"""Optimising to a mode at fixed hyperparameters: loss, curvature, Newton decrement, costs.

    loss(θ) = −κ log p(y|θ) + ½ θᵀ Δ θ        decrement = gᵀ (κ H + Δ)⁻¹ g,  g = ∇ loss(θ)

    H  exact Gauss-Newton matrix, by its products      Δ  diagonal of prior precisions

The decrement is twice the decrease of the loss that a Newton step predicts, in nats; 0 at a mode.
`gradient_norm_squared` of an evidence is the same form with the H of its kind, since it belongs to
the expansion by that H (`evidence/laplace.py`). Whether a network is at a mode must not depend on
the kind: a diagonal H misjudges the distance.
"""

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from nas_evidence.curvature.batch_rows import rows_at_once
from nas_evidence.curvature.products import LogJoint
from nas_evidence.data.tensors import TensorData
from nas_evidence.likelihoods import likelihood
from nas_evidence.maths.block_inverse import BlockInverse
from nas_evidence.maths.conjugate_gradients import solve
from nas_evidence.maths.structured import BlockDiagonal, Structured
from nas_evidence.spec.registry import CURVATURES
from nas_evidence.spec.study import TrainingPlan
from nas_evidence.training.cost import forward_pass
from nas_evidence.training.loop import DivergedError
from nas_evidence.training.network import Network
from nas_evidence.training.online import compute, n_noise_passes, passes_of

#: Data times parameters up to which a network settles, and decrements are in float64.
FULL_BATCH = 10**9
#: Maximum number of products for a reported decrement.
MOST_PRODUCTS = 100
#: Call overhead per parameter tensor and step, in forward flops of one example. Measured on one
#: CPU core: 0.7e6 for convolutions, 5e6 for linear layers.
_FLOPS_OF_A_CALL = 1e6


def gradient_cost(network: Network) -> float:
    """Return the cost of a full-batch gradient, as a fraction of a scheduled epoch's cost.

    Both take N F flops plus the call overhead of their steps, of which an epoch has more. That
    float64 is two to three times slower on a CPU is not counted.
    """
    model, x, batch_size = network.model, network.data.x_train, network.plan.batch_size
    flops = len(x) * forward_pass(copy.deepcopy(model).eval(), network.data.input_shape).flops
    calls = _FLOPS_OF_A_CALL * sum(1 for _ in model.parameters())
    passes = -(-len(x) // rows_at_once(model, x))
    return (flops + calls * passes) / (flops + calls * -(-len(x) // batch_size))


def newton_decrement(
    network: Network,
    *,
    theta: Tensor | None = None,
    max_products: int = MOST_PRODUCTS,
    enough: float = math.inf,
) -> tuple[float, int]:
    """Return gᵀ (κ H + Δ)⁻¹ g in nats at the parameters of a network.

    Args:
        network: at its hyperparameters.
        theta: the parameters before they were rounded to their dtype [P], float64, if known.
        max_products: most products with the exact Gauss-Newton matrix.
        enough: stop once the decrement is known to exceed this value.

    Returns:
        A lower bound of the decrement, to about 1 % if `max_products` allows, and the number
        of products.
    """
    theta = parameters_of(network) if theta is None else theta
    inverse = preconditioner(network)
    small = len(theta) * len(network.data.x_train) <= FULL_BATCH
    # The gradient is a sum that cancels at a mode; products do not cancel, so float32 is enough.
    _, gradient = log_joint(network, double=small).value_and_gradient(theta)
    product = log_joint(network, double=False).gauss_newton(theta)
    found = solve(product, gradient, inverse, max_products=max_products, enough=enough)
    return found.quadratic, found.n_products


def preconditioner(network: Network) -> BlockInverse:
    """Return the inverse of a block Gauss-Newton matrix plus the prior precision.

    Raises:
        DivergedError: if the curvature is not finite.
    """
    (found,) = preconditioners([network])
    if isinstance(found, DivergedError):
        raise found
    return found


def preconditioners(networks: Sequence[Network]) -> list[BlockInverse | DivergedError]:
    """Return `preconditioner` of networks of one architecture and plan, or why one diverged."""
    plan = networks[0].plan
    kind = plan.online.curvature
    if CURVATURES[kind].is_full:  # only used for small networks
        kind = "block_ggn"
    if CURVATURES[kind].columns == "residual":  # it vanishes where the data are fitted
        kind = "diag_ggn_mc" if CURVATURES[kind].is_diagonal else "kfac_ggn_mc"
    passes = [passes_of(network) for network in networks]
    return [
        error or _inverse(one.of(kind)[0].curvature, one.network)
        for one, error in zip(passes, compute(passes, kind), strict=True)
    ]


def _inverse(curvature: Structured, network: Network) -> BlockInverse:
    assert isinstance(curvature, BlockDiagonal)
    device = next(network.model.parameters()).device
    precision = network.hyper.precision.to(device)
    return BlockInverse(curvature, precision, network.plan.likelihood_power)


def log_joint(network: Network, *, double: bool) -> LogJoint:
    """Return the loss of a network on a copy of it, in its dtype or in float64."""
    data, sizes = network.data, [p.numel() for p in network.model.parameters()]
    model = copy.deepcopy(network.model)
    precision = network.hyper.precision.repeat_interleave(torch.tensor(sizes))
    return LogJoint(
        model.double() if double else model,
        data.x_train,
        data.y_train,
        network.likelihood,
        precision.to(next(model.parameters()).device),
        network.plan.likelihood_power,
        rows_at_once(network.model, data.x_train),
    )


def pass_cost(plan: TrainingPlan, data: TensorData) -> float:
    """Return the cost of an online curvature pass, in gradients: one per column."""
    if CURVATURES[plan.online.curvature].columns != "exact":
        return 2.0
    return 1.0 + likelihood(plan.likelihood).n_roots(plan.head_width(data.n_outputs))


def update_cost(plan: TrainingPlan, data: TensorData) -> float:
    """Return the cost of an update, in gradients; see `online.n_noise_passes`."""
    return (1 + n_noise_passes(plan, data.n_outputs)) * pass_cost(plan, data)


def parameters_of(network: Network) -> Tensor:
    """Return θ [P], float64."""
    return torch.cat([p.detach().double().flatten() for p in network.model.parameters()])


def write_parameters(network: Network, theta: Tensor) -> None:
    """Put θ [P], rounded to its dtype, into the network."""
    parameters = list(network.model.parameters())
    parts = torch.split(theta, [p.numel() for p in parameters])
    with torch.no_grad():
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.copy_(part.view_as(parameter))
