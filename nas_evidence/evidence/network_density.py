"""A network and its prior as densities of its parameters, for sampling estimators.

    U(w) = Σ_n log p(y_n|f(x_n; w))        w  all parameters, flat, in their order  [R, P]
    V(w) = log p(w), normalised            for R replicas at a time

The network is a float64 copy in evaluation mode that evaluates all replicas at once.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from nas_evidence.evidence.laplace import checked_precision
from nas_evidence.likelihoods import Likelihood
from nas_evidence.maths.constants import as_constants, free_parameters
from nas_evidence.maths.functional_call import functional_call
from nas_evidence.maths.hmc import Density
from nas_evidence.maths.precisions import of_each_parameter
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.estimates import EvidenceEstimate, Term
from nas_evidence.spec.registry import SCORES

#: Summed log likelihood [] of one flat parameter vector [P] on inputs [n, ...] and targets.
FlatLogLikelihood = Callable[[Tensor, Tensor, Tensor], Tensor]


def flat_parameters(model: nn.Module) -> Tensor:
    """Return all free parameters of a model in their order, float64 [P]."""
    return torch.cat([p.detach().double().flatten() for p in free_parameters(model).values()])


def flat_log_likelihood(
    model: nn.Module, inputs: Tensor, targets: Tensor, likelihood: Likelihood
) -> tuple[FlatLogLikelihood, Tensor, Tensor]:
    """Return the log likelihood as a pure function of its parameters, and the data in float64.

    Raises:
        ValueError: if the likelihood refuses these outputs and targets, or there are no data.
    """
    if len(inputs) != len(targets) or len(inputs) == 0:
        raise UserError(
            "rows-differ",
            f"`inputs` and `targets` must have the same number of rows, at least one, but "
            f"have {len(inputs)} and {len(targets)}",
        )
    network = as_constants(copy.deepcopy(model)).double().eval().requires_grad_(False)
    names, shapes, sizes = zip(
        *((name, p.shape, p.numel()) for name, p in network.named_parameters()), strict=True
    )
    x = inputs.detach().double() if inputs.is_floating_point() else inputs
    y = targets.detach().double() if targets.is_floating_point() else targets
    likelihood.log_likelihood(network(x[:1]), y[:1])

    def log_likelihood(flat: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        parts = zip(names, torch.split(flat, list(sizes)), shapes, strict=True)
        parameters = {name: part.view(shape) for name, part, shape in parts}
        with sdpa_kernel(
            SDPBackend.MATH
        ):  # attention that can be batched, and differentiated twice
            outputs = functional_call(network, parameters, inputs)
        return likelihood.log_likelihood(outputs, targets)

    return log_likelihood, x, y


def network_density(
    model: nn.Module, inputs: Tensor, targets: Tensor, likelihood: Likelihood
) -> Density:
    """Return U: log likelihoods [R] in nats and their gradients [R, P] at positions [R, P].

    Raises:
        ValueError: as `flat_log_likelihood`.
    """
    log_likelihood, x, y = flat_log_likelihood(model, inputs, targets, likelihood)
    batched = vmap(grad_and_value(lambda flat: log_likelihood(flat, x, y)))
    # Traced once per number of replicas: otherwise Python takes half the time of tiny networks.
    traced: dict[torch.Size, Callable[[Tensor], tuple[Tensor, Tensor]]] = {}

    def density(positions: Tensor) -> tuple[Tensor, Tensor]:
        if positions.shape not in traced:
            traced[positions.shape] = make_fx(batched)(positions)
        gradients, values = traced[positions.shape](positions)
        return values, gradients

    return density


def gaussian_density(precision: Tensor) -> Density:
    """Return the normalised density N(w; 0, diag(precision)⁻¹) for a precision [P]."""
    log_constant = 0.5 * (precision / (2 * math.pi)).log().sum()

    def density(positions: Tensor) -> tuple[Tensor, Tensor]:
        gradient = precision * -positions
        return log_constant - 0.5 * (gradient.square() / precision).sum(1), gradient

    return density


def spread_precision(model: nn.Module, given: float | Tensor | Mapping[str, float]) -> Tensor:
    """Return the prior precision of each parameter, float64 [P], on the device of the model.

    Args:
        model: the network that the prior is for.
        given: one number, or one for each tensor, in their order [G] or by name.

    Raises:
        ValueError: for a wrong name or number of values, or one that is not finite or not > 0.
    """
    free = free_parameters(model)
    names, sizes = tuple(free), tuple(p.numel() for p in free.values())
    device = next(iter(free.values())).device
    precision = checked_precision(names, given).to(device)
    return of_each_parameter(precision, sizes)


def estimate_of_runs(
    estimator: str,
    values: Sequence[float],
    terms: Mapping[str, float],
    *,
    n_data: int,
    seconds: float,
    note: str = "",
    valid: bool = True,
) -> EvidenceEstimate:
    """Return the mean of independent log evidences with its standard error.

    Args:
        estimator: a name in `nas_evidence.spec.registry.SCORES`.
        values: nats, of at least two independent runs.
        terms: parts and diagnostics.
        n_data: number of data points.
        seconds: of all runs.
        note: a condition that was not met, or a remark on the result.
        valid: whether all conditions were met.
    """
    value = fmean(values)
    finite = all(math.isfinite(v) for v in values)
    return EvidenceEstimate(
        estimator=estimator,
        value=value if finite else math.nan,
        per_datum=value / n_data if finite else None,
        standard_error=stdev(values) / len(values) ** 0.5 if finite else None,
        relation=SCORES[estimator].relation,
        terms=tuple(Term(term=k, group="all", value=v) for k, v in terms.items()),
        seconds=seconds,
        valid=valid and finite,
        note=note if finite else "a run is not finite",
    )
