"""One factor on all prior precisions that maximises the evidence at fixed parameters.

    F(x) = −½ eˣ Σ_l δ_l ‖θ_l‖² − ½ Σ_l Σ log1p(λ e⁻ˣ / δ_l)
    F′   = ½ (γ(eˣ δ) − eˣ Σ_l δ_l ‖θ_l‖²)

    λ  eigenvalues of the curvature of tensor l      γ  effective parameters of all tensors

F is concave, so its slope has one root. The ratios of the precisions stay fixed.
"""

import math

from scipy.optimize import brentq
from torch import Tensor

from nas_evidence.curvature import CurvaturePass
from nas_evidence.evidence.laplace import squared_norms
from nas_evidence.spec.study import TrainingPlan
from nas_evidence.training.joint import LOG_PRECISION_RANGE
from nas_evidence.training.loop import Training


def rescaled_precision(
    held: Tensor, pass_: CurvaturePass, training: Training, plan: TrainingPlan
) -> Tensor:
    """Return the precisions `held` times the factor that maximises the evidence, within bounds.

    Args:
        held: δ of each tensor [G].
        pass_: curvature at the parameters of the training.
        training: provides the parameters.
        plan: the likelihood power.
    """
    curvature = pass_.curvature
    power = plan.likelihood_power
    scatter = float((held * squared_norms(training.model).cpu()).sum())

    def slope(x: float) -> float:
        factor = math.exp(x)
        return (
            float(curvature.effective_parameters(factor * held / power).sum()) - factor * scatter
        )

    low, high = (bound - float(held.log().mean()) for bound in LOG_PRECISION_RANGE)
    if slope(high) > 0 or slope(low) < 0:
        return held
    best = held * math.exp(brentq(slope, low, high, xtol=1e-9))
    return best.clamp(*(math.exp(bound) for bound in LOG_PRECISION_RANGE))
