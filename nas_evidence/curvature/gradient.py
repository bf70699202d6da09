"""The gradient of the log likelihood, summed over the data: one ordinary pass.

    ∇ log p(y|θ) = Σ_n J_nᵀ ∂ log p(y_n|f_n) / ∂f_n      [P], zero for no prior at a mode

It measures how far a model is from a mode, see `evidence.laplace`. It costs as much as a training
epoch without the steps.
"""

import torch
from torch import Tensor, nn

from nas_evidence.curvature.capture import undisturbed
from nas_evidence.likelihoods import Likelihood
from nas_evidence.maths.constants import constants_aside, free_parameters
from nas_evidence.maths.full_precision import full_precision
from nas_evidence.maths.vector_jacobian import vector_jacobian


def log_likelihood_gradient(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    likelihood: Likelihood,
    *,
    batch_size: int,
) -> Tensor:
    """Return the gradient in the free parameters, in their order, float64 [P].

    The model is evaluated in evaluation mode and left exactly as it was.
    """
    parameters = [*free_parameters(model).values()]
    size = sum(p.numel() for p in parameters)
    total = torch.zeros(size, dtype=torch.float64, device=inputs.device)
    with constants_aside(model), full_precision(), undisturbed(model):
        for parameter in parameters:
            parameter.requires_grad_(True)
        for start in range(0, len(inputs), batch_size):
            rows = slice(start, start + batch_size)
            # A copy: whatever `forward` does, the data stay as they are.
            outputs = model(inputs[rows].detach().clone())
            column = likelihood.residual(outputs, targets[rows])
            # A parameter that no datum of the batch uses has gradient zero.
            parts = vector_jacobian(outputs, parameters, column, materialize_grads=True)
            total += torch.cat([part.flatten() for part in parts])
    return total
