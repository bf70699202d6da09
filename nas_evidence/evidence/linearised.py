"""Evidence of the linearised network at its own optimum (Khan et al. 2019; Antorán et al. 2022).

    f(θ) = m_0 + J θ,   θ ~ N(0, D⁻¹),   m_0 = f(θ̂) − J θ̂            J, m_0 fixed

    log q(y) = κ log p(y | f*) − ½ (f* − m_0)ᵀ α − ½ log|I + Rᵀ K R|      function space
             = κ log p(y | f*) − ½ θ*ᵀ D θ* − ½ log|I + D⁻¹ Jᵀ W J|       weight space

    θ̂  weights of the network that is linearised       J  its Jacobian [N C, P]
    K = J D⁻¹ Jᵀ  kernel [N C, N C]                      α = κ ∇ log p(y | f*)  [N C]
    W = R Rᵀ  Hessian of −κ log p(y | f*) in the outputs, one C x C block for each datum

The optimum f* of a model that is linear in its weights is unique: no distance from a mode enters,
unlike in the Laplace evidence of the network itself. With Gaussian noise log q is exactly
log N(y; m_0, K + s² I / κ); with classes it is Laplace's approximation of a log-concave posterior
(Rasmussen & Williams 2006, section 3.4). Both forms are the same number: function space costs
(N C)³, weight space N C P² + P³, and less for a last layer (design.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nas_evidence.curvature.likelihood import Gaussian, Likelihood
from nas_evidence.curvature.memory import require_memory
from nas_evidence.evidence.design import Design, design_of
from nas_evidence.evidence.jacobian import Jacobian
from nas_evidence.maths.precisions import Precisions

#: Largest min(data x outputs, parameters) that is computed.
LIMIT = 6000
_NEWTON_STEPS, _HALVINGS = 60, 30
#: Relative gain of a Newton step below which it is the last one.
_SMALL_GAIN = 1e-13


class TooLargeError(ValueError):
    """Data times outputs and parameters both exceed `LIMIT`."""


@dataclass(frozen=True)
class Tangent:
    """A linearised network on some data: Jacobian, prior mean m_0 [N, C], targets."""

    jacobian: Jacobian
    mean: Tensor
    targets: Tensor

    @property
    def is_dual(self) -> bool:
        """Whether the function-space form is the smaller one."""
        return self.jacobian.n_rows <= self.jacobian.n_parameters


@dataclass(frozen=True)
class Fit:
    """The evidence of a linearised network, and what MacKay's step needs.

    value        log q in nats
    outputs      f* [N, C]
    effective    γ_l of each tensor [G]; None if not asked for
    moving       c_l of each tensor [G], likewise
    norms        ‖θ*_l‖² of each tensor [G], likewise
    solution     α [N C] or θ* [P], where another search may start
    """

    value: float
    outputs: Tensor
    solution: Tensor
    effective: Tensor | None = None
    moving: Tensor | None = None
    norms: Tensor | None = None

    def slope(self, precision: Tensor) -> Tensor:
        """Return d log q / d log δ_l [G] at the precisions of the fit."""
        assert self.effective is not None
        assert self.moving is not None
        assert self.norms is not None
        return 0.5 * (self.effective + self.moving - precision * self.norms)


def tangent_of(
    jacobian: Jacobian, targets: Tensor, theta: Tensor | None, *, limit: int = LIMIT
) -> Tangent:
    """Return the network linearised at weights θ̂ [P].

    Args:
        jacobian: at θ̂, of the tensors that are free; the others count as part of m_0.
        targets: int64 [N], or float [N, C].
        theta: θ̂ of these tensors; None for the prior mean 0, as at initialisation in the limit
            of infinite width.
        limit: largest min(N C, P).

    Raises:
        TooLargeError: if min(N C, P) is above it.
    """
    size = min(jacobian.n_rows, jacobian.n_parameters)
    if size > limit:
        raise TooLargeError(
            f"min(data x outputs, parameters) must be at most {limit} for an exact evidence of "
            f"the linearised network, but is {size}"
        )
    outputs = jacobian.outputs
    mean = torch.zeros_like(outputs)
    if theta is not None:
        mean = outputs - jacobian.times(theta.to(outputs))
    real = targets.is_floating_point()
    return Tangent(jacobian, mean, targets.to(outputs) if real else targets)


def log_evidence(
    tangent: Tangent,
    likelihood: Likelihood,
    precision: Tensor,
    *,
    power: float = 1.0,
    dual: bool | None = None,
    details: bool = False,
) -> Fit:
    """Return log q(y) in nats.

    Args:
        tangent: the linearised network and its data.
        likelihood: with its noise or temperature.
        precision: one per tensor [G] or per parameter [P], > 0.
        power: κ, on the log likelihood.
        dual: whether to work in function space; None for the smaller form.
        details: also return what MacKay's step needs; one precision per tensor only.
    """
    if tangent.is_dual if dual is None else dual:
        grams = Grams.of(tangent.jacobian, precision, separate=details)
        return in_function_space(tangent, likelihood, grams, precision, power)
    weights = Weights(design_of(tangent.jacobian), tangent.jacobian.sizes)
    return in_weight_space(tangent, likelihood, weights, precision, power, details=details)


def conditional_log_evidence(
    tangent: Tangent,
    n_early: int,
    likelihood: Likelihood,
    precision: Tensor,
    *,
    power: float = 1.0,
    dual: bool | None = None,
) -> float:
    """Return log q(late data | early data) in nats: the first `n_early` data are the early ones.

    The difference of two evidences of one linear model, each at its own optimum; exact for
    Gaussian noise.
    """
    if not 0 < n_early < len(tangent.mean):
        raise ValueError(
            f"`0 < n_early < n_data` must hold, but got {n_early} of {len(tangent.mean)}"
        )
    whole, n_rows = tangent.jacobian, n_early * tangent.mean.shape[1]
    early = replace(tangent, mean=tangent.mean[:n_early], targets=tangent.targets[:n_early])
    if tangent.is_dual if dual is None else dual:
        grams = Grams.of(whole, precision, separate=False)
        first = Grams(grams.kernel[:n_rows, :n_rows].contiguous())
        values = [
            in_function_space(one, likelihood, gram, precision, power).value
            for one, gram in ((tangent, grams), (early, first))
        ]
    else:
        design = design_of(whole)
        values = [
            in_weight_space(
                one, likelihood, Weights(part, whole.sizes), precision, power, details=False
            ).value
            for one, part in ((tangent, design), (early, design.first(n_early)))
        ]
    return values[0] - values[1]


@dataclass(frozen=True)
class Grams:
    """The kernel K [N C, N C]; for MacKay's step also J_l J_lᵀ of each tensor."""

    kernel: Tensor
    each: tuple[Tensor, ...] = ()

    @classmethod
    def of(cls, jacobian: Jacobian, precision: Tensor, *, separate: bool) -> "Grams":
        """Return the kernel of a Jacobian, and the parts of it if they are needed."""
        parts = Precisions(precision.to(jacobian.outputs), jacobian.sizes).by_tensor()
        copies = 6 + (len(parts) if separate else 1)
        what = f"the kernel of {jacobian.n_rows} rows"
        device = jacobian.outputs.device
        require_memory(what, 8 * copies * jacobian.n_rows**2, device, instead="fewer data")
        if separate:
            one = jacobian.outputs.new_ones(())
            each = tuple(part.gram(one) for part in jacobian.parts)
            return cls(_weighted(each, parts), each)
        kernel = jacobian.outputs.new_zeros(jacobian.n_rows, jacobian.n_rows)
        for part, delta in zip(jacobian.parts, parts, strict=True):
            kernel += part.gram(delta)
        return cls(kernel)

    def at(self, precision: Tensor) -> "Grams":
        """Return the kernel at other precisions [G]."""
        return Grams(_weighted(self.each, precision.to(self.kernel).unbind()), self.each)


def _weighted(each: Sequence[Tensor], precision: Sequence[Tensor]) -> Tensor:
    total = torch.zeros_like(each[0])
    for gram, delta in zip(each, precision, strict=True):
        total.add_(gram, alpha=1 / float(delta))
    return total


def in_function_space(
    tangent: Tangent,
    likelihood: Likelihood,
    grams: Grams,
    precision: Tensor,
    power: float,
    *,
    start: Tensor | None = None,
) -> Fit:
    """Return the evidence, from the kernel; with the parts of the kernel also MacKay's terms."""
    kernel, mean, y = grams.kernel, tangent.mean, tangent.targets

    def at(alpha: Tensor) -> tuple[Tensor, float]:
        moved = kernel @ alpha
        outputs = mean + moved.view_as(mean)
        value = power * float(likelihood.log_likelihood(outputs, y))
        return outputs, value - 0.5 * float(alpha @ moved)

    # At a mode of the network itself alpha is the gradient there.
    starts = [power * likelihood.residual(tangent.jacobian.outputs[: len(y)], y).flatten()]
    starts += [torch.zeros_like(starts[0]), *([] if start is None else [start])]

    def step_from(alpha: Tensor, outputs: Tensor) -> Tensor:
        root = power**0.5 * likelihood.hessian_roots(outputs)  # [K, N, C]
        factor = _factor_of(kernel, root)
        slope = power * likelihood.residual(outputs, y).flatten()
        b = _across(root, _along(root, (outputs - mean).flatten())) + slope
        inner = torch.cholesky_solve(_along(root, kernel @ b)[:, None], factor)[:, 0]
        return b - _across(root, inner) - alpha

    alpha, outputs, value = _ascended(max(starts, key=lambda one: at(one)[1]), at, step_from)
    root = power**0.5 * likelihood.hessian_roots(outputs)
    factor = _factor_of(kernel, root)
    found = Fit(value - float(factor.diagonal().log().sum()), outputs, alpha)
    if not grams.each:
        return found
    inner = _sandwich(root, torch.cholesky_inverse(factor))  # (K + W⁻¹)⁻¹
    slope = torch.zeros_like(alpha)
    if not isinstance(likelihood, Gaussian):
        n_data, n_outputs = mean.shape
        by_datum = kernel.view(n_data, n_outputs, -1)
        left = torch.bmm(by_datum, (inner @ kernel).view(-1, n_data, n_outputs).transpose(0, 1))
        blocks = torch.einsum("ncnd->ncd", kernel.view(n_data, n_outputs, n_data, n_outputs))
        turn = _hessian_slope(likelihood, outputs, blocks - left, power).flatten()
        slope = turn - inner @ (kernel @ turn)
    sums = [
        (
            float((inner * g).sum()) / d,
            float(slope @ g @ alpha) / d,
            float(alpha @ g @ alpha) / d**2,
        )
        for g, d in zip(grams.each, precision.tolist(), strict=True)
    ]
    return _with_sums(found, sums)


def _ascended(
    start: Tensor,
    at: Callable[[Tensor], tuple[Tensor, float]],
    step_from: Callable[[Tensor, Tensor], Tensor],
) -> tuple[Tensor, Tensor, float]:
    """Return a maximum by Newton's method with step halving, and outputs and value there.

    Args:
        start: where to begin.
        at: outputs and value at a point.
        step_from: the step from a point with its outputs.
    """
    point = start
    outputs, value = at(point)
    for _ in range(_NEWTON_STEPS):
        step = step_from(point, outputs)
        for halving in range(_HALVINGS):
            tried = point + 0.5**halving * step
            new_outputs, new_value = at(tried)
            if new_value >= value:
                break
        else:
            break
        gain, point, outputs, value = new_value - value, tried, new_outputs, new_value
        if gain <= _SMALL_GAIN * (1 + abs(value)):
            break
    return point, outputs, value


def _with_sums(fit: Fit, sums: Sequence[tuple[float, float, float]]) -> Fit:
    effective, moving, norms = torch.tensor(sums, dtype=torch.float64).unbind(1)
    return replace(fit, effective=effective, moving=moving, norms=norms)


def _hessian_slope(
    likelihood: Likelihood, outputs: Tensor, covariance: Tensor, power: float
) -> Tensor:
    """Return ∂/∂f Σ_n tr(Σ_n W_n(f_n)) [N, C] for fixed Σ_n [N, C, C], W of a softmax."""
    with torch.enable_grad():
        f = outputs.detach().requires_grad_(True)
        temperature = likelihood.temperature  # type: ignore[attr-defined]
        p = torch.softmax(f / temperature, 1)
        spread = torch.einsum("ncc,nc->n", covariance, p)
        total = (spread - torch.einsum("nc,ncd,nd->n", p, covariance, p)).sum()
        (slope,) = torch.autograd.grad(power / temperature**2 * total, f)
    return slope


def _along(root: Tensor, vector: Tensor) -> Tensor:
    """Return Rᵀ v [N K] for v [N C]."""
    return torch.einsum("knc,nc->nk", root, vector.view(root.shape[1:])).flatten()


def _across(root: Tensor, vector: Tensor) -> Tensor:
    """Return R u [N C] for u [N K]."""
    n_columns, n_data, _ = root.shape
    return torch.einsum("knc,nk->nc", root, vector.view(n_data, n_columns)).flatten()


def _factor_of(kernel: Tensor, root: Tensor) -> Tensor:
    """Return the Cholesky factor of I + Rᵀ K R [N K, N K]."""
    inner = _blockwise(kernel, root.permute(1, 2, 0))
    inner.diagonal().add_(1.0)
    factor: Tensor = torch.linalg.cholesky(inner)
    return factor


def _sandwich(root: Tensor, inner: Tensor) -> Tensor:
    """Return R B R^T [N C, N C] for B [N K, N K]."""
    return _blockwise(inner, root.permute(1, 0, 2))


def _blockwise(matrix: Tensor, blocks: Tensor) -> Tensor:
    """Return Sᵀ M S for S = blockdiag(blocks), blocks [N, a, b], M symmetric [N a, N a]."""
    n, a, b = blocks.shape
    left = torch.bmm(blocks.mT, matrix.view(n, a, n * a))  # [N, b, N a]
    turned = left.reshape(n * b, n, a).permute(1, 2, 0)  # [N, a, N b]
    return torch.bmm(blocks.mT, turned).reshape(n * b, n * b)


@dataclass(frozen=True)
class Weights:
    """The rows of J [N C, P], and the sizes of the tensors."""

    design: Design
    sizes: tuple[int, ...]


def in_weight_space(
    tangent: Tangent,
    likelihood: Likelihood,
    weights: Weights,
    precision: Tensor,
    power: float,
    *,
    details: bool,
    start: Tensor | None = None,
) -> Fit:
    """Return the evidence, from the rows of J; with `details` also MacKay's terms."""
    design, mean, y = weights.design, tangent.mean, tangent.targets
    delta = Precisions(precision.to(mean), weights.sizes).of_each_parameter()

    def at(theta: Tensor) -> tuple[Tensor, float]:
        outputs = mean + design.times(theta)
        value = power * float(likelihood.log_likelihood(outputs, y))
        return outputs, value - 0.5 * float((delta * theta.square()).sum())

    def step_from(theta: Tensor, outputs: Tensor) -> Tensor:
        factor = _precision_factor(design, power**0.5 * likelihood.hessian_roots(outputs), delta)
        slope = design.transposed(power * likelihood.residual(outputs, y)) - delta * theta
        return torch.cholesky_solve(slope[:, None], factor)[:, 0]

    first = torch.zeros_like(delta) if start is None else start
    theta, outputs, value = _ascended(first, at, step_from)
    factor = _precision_factor(design, power**0.5 * likelihood.hessian_roots(outputs), delta)
    log_det_ratio = 2 * float(factor.diagonal().log().sum()) - float(delta.log().sum())
    found = Fit(value - 0.5 * log_det_ratio, outputs, theta)
    if not details:
        return found
    inverse = torch.cholesky_inverse(factor)
    shift = torch.zeros_like(theta)
    if not isinstance(likelihood, Gaussian):
        turn = _hessian_slope(likelihood, outputs, design.spread(inverse), power)
        shift = inverse @ design.transposed(turn)
    each = (1 - delta * inverse.diagonal(), shift * delta * theta, theta.square())
    pieces = [[float(p.sum()) for p in torch.split(one, list(weights.sizes))] for one in each]
    return _with_sums(found, list(zip(*pieces, strict=True)))


def _precision_factor(design: Design, root: Tensor, delta: Tensor) -> Tensor:
    """Return the Cholesky factor of Jᵀ W J + D [P, P]."""
    matrix = design.hessian(root)
    matrix.diagonal().add_(delta)
    factor: Tensor = torch.linalg.cholesky(matrix)
    return factor
