"""Prior precisions, and a noise, that maximise the evidence of a linearised network.

MacKay's step for the precision δ_l of tensor l maximises log q at fixed W. With classes W moves
with f*, and so with δ; ignoring that, the step can lead away from the maximum (64-32-32-10 network
at initialisation, 200 digits: from -1.130 to -1.255 nats per datum in 12 steps; counting it: to
-1.095). The term c_l counts it:

    γ_l = tr((I + Rᵀ K R)⁻¹ Rᵀ J_l J_lᵀ R) / δ_l      δ_l <- (γ_l + c_l) / ‖θ*_l‖²
    c_l = tᵀ (I + K W)⁻¹ J_l J_lᵀ α / δ_l             θ*_l = J_lᵀ α / δ_l
    t   = ∂/∂f tr(Σ W(f)) at f*,  Σ = K − K R (I + Rᵀ K R)⁻¹ Rᵀ K held fixed

so that d log q / d log δ_l = ½ (γ_l + c_l − δ_l ‖θ*_l‖²) exactly (Rasmussen & Williams 2006,
section 5.5.1, for one precision per tensor). With Gaussian noise c_l = 0. Steps are taken half-way
in the logarithms, and the best value on the way is kept.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from nas_evidence.curvature.likelihood import Gaussian, Likelihood
from nas_evidence.evidence.design import design_of
from nas_evidence.evidence.linearised import (
    Fit,
    Grams,
    Tangent,
    Weights,
    in_function_space,
    in_weight_space,
)

#: MacKay's steps at most, and the gain of a step, nats per datum, below which it is the last one.
MACKAY_STEPS, _GAIN = 8, 0.002


@dataclass(frozen=True)
class Fitted:
    """The best evidence on the way of MacKay's step, and its hyperparameters.

    value       log q in nats
    precision   of each tensor [G]
    likelihood  with the noise fitted, for real targets
    n_steps     taken
    """

    value: float
    precision: Tensor
    likelihood: Likelihood
    n_steps: int


def fit_by_mackay(
    tangent: Tangent,
    likelihood: Likelihood,
    precision: Tensor,
    *,
    power: float = 1.0,
    n_steps: int = MACKAY_STEPS,
    dual: bool | None = None,
) -> Fitted:
    """Return the evidence at precisions, and a noise, that maximise it up to W's own motion.

    Args:
        tangent: the linearised network and its data.
        likelihood: where to start; a noise is fitted, a temperature stays.
        precision: where to start, one per tensor [G].
        power: κ.
        n_steps: at most, each half the way of MacKay's in the logarithms.
        dual: as in `log_evidence`.
    """
    dual = tangent.is_dual if dual is None else dual
    precision = precision.detach().double().cpu()
    if dual:
        grams = Grams.of(tangent.jacobian, precision, separate=True)
    else:
        weights = Weights(design_of(tangent.jacobian), tangent.jacobian.sizes)
    best: Fitted | None = None
    start: Tensor | None = None
    for step in range(n_steps + 1):
        if dual:
            grams = grams.at(precision)
            fit = in_function_space(tangent, likelihood, grams, precision, power, start=start)
        else:
            fit = in_weight_space(
                tangent, likelihood, weights, precision, power, details=True, start=start
            )
        start = fit.solution
        gain = fit.value - (-math.inf if best is None else best.value)
        if best is None or gain > 0:
            best = Fitted(fit.value, precision, likelihood, step)
        moved = _mackay(tangent, fit, likelihood, precision, power)
        if moved is None or (0 <= gain < _GAIN * len(tangent.mean)):
            break
        precision, likelihood = moved
    assert best is not None
    return best


def _mackay(
    tangent: Tangent, fit: Fit, likelihood: Likelihood, precision: Tensor, power: float
) -> tuple[Tensor, Likelihood] | None:
    """Return hyperparameters half-way to MacKay's in the logarithms, None where undefined."""
    assert fit.effective is not None
    assert fit.moving is not None
    assert fit.norms is not None
    # Far from the maximum c_l can outweigh gamma_l; then a step of bounded length.
    wanted = torch.maximum(fit.effective + fit.moving, 0.1 * fit.effective).clamp(min=1e-10)
    ratio = wanted / (precision * fit.norms).clamp(min=1e-10)
    moved = (precision * ratio.sqrt()).clamp(1e-8, 1e12)
    if not bool(moved.isfinite().all()):
        return None
    if not isinstance(likelihood, Gaussian):
        return moved, likelihood
    rss = float((tangent.targets - fit.outputs).square().sum())
    left = fit.outputs.numel() - float(fit.effective.sum()) / power
    if rss <= 0 or left <= 0:
        return moved, likelihood
    return moved, Gaussian((likelihood.noise_std * (rss / left) ** 0.5) ** 0.5)
