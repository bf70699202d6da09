"""Laplace approximation of the log evidence (MacKay 1992; Immer et al. 2021).

    log p(D|M) ≈ log p(D|θ*) − ½ Σ_l δ_l θ_lᵀθ_l − ½ (log|H + D| − log|D|)

    θ*  mode [P]      H  curvature of the summed nll [P, P]      D = diag(δ), δ_l for tensor l

The factors 2π of prior and Gaussian integral cancel exactly. All logs natural, values in nats,
summed over the data, larger is better. Differs from laplace-torch: log determinants are sums of
log1p in float64, and gradients with respect to the prior pass through every structure.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from nas_evidence.curvature import CurvaturePass
from nas_evidence.evidence import ESTIMATORS
from nas_evidence.maths.structured import Structured
from nas_evidence.record import EvidenceEstimate, Term


def log_evidence(
    log_likelihood: Tensor | float,
    curvature: Structured,
    *,
    squared_norms: Tensor,
    prior_precision: Tensor,
) -> Tensor:
    """Return the Laplace log evidence in nats, float64 [], differentiable in the prior precision.

    Args:
        log_likelihood: [], nats, summed over the data, at the mode.
        curvature: of the summed negative log likelihood at the mode.
        squared_norms: θ_lᵀθ_l of each parameter tensor [G].
        prior_precision: δ_l > 0 of each parameter tensor [G].
    """
    scatter = (prior_precision.double() * squared_norms.to(prior_precision.device)).sum()
    log_det_ratio = curvature.log_det_ratio(prior_precision).sum().to(scatter.device)
    return log_likelihood - 0.5 * (scatter + log_det_ratio)


def laplace_estimate(
    kind: str,
    pass_: CurvaturePass,
    model: nn.Module,
    prior_precision: Mapping[str, float] | Tensor,
) -> EvidenceEstimate:
    """Return the Laplace evidence of a model with its terms.

    Args:
        kind: the curvature kind that `pass_` was made with.
        pass_: curvature and log likelihood at the parameters of `model`.
        model: whose parameters are taken for the mode.
        prior_precision: one value > 0 for each tensor of `model.parameters()`: by name, or [G].
    """
    names = pass_.curvature.names
    precision = _precision(names, prior_precision)
    norms = squared_norms(model)
    note = _not_finite(pass_, norms)
    if note:
        return EvidenceEstimate(
            estimator=kind,
            value=math.nan,
            relation=ESTIMATORS[kind],
            seconds=pass_.seconds,
            valid=False,
            note=note,
        )
    scatter = precision * norms
    log_det_ratio = pass_.curvature.log_det_ratio(precision).cpu()
    value = pass_.log_likelihood - 0.5 * float(scatter.sum() + log_det_ratio.sum())
    log_det_groups = names if len(log_det_ratio) == len(names) else ("all",)
    effective = pass_.curvature.effective_parameters(precision).cpu()
    terms = (
        Term(term="log_likelihood", group="all", value=pass_.log_likelihood),
        *_by_group("scatter", names, scatter),
        *_by_group("log_det_ratio", log_det_groups, log_det_ratio),
        *_by_group("effective_parameters", names, effective),
        *_by_group("prior_precision", names, precision),
        Term(term="clamped_eigenvalues", group="all", value=pass_.curvature.n_clamped),
        Term(term="n_data", group="all", value=pass_.n_data),
    )
    return EvidenceEstimate(
        estimator=kind,
        value=value,
        per_datum=value / pass_.n_data,
        relation=ESTIMATORS[kind],
        terms=terms,
        seconds=pass_.seconds,
    )


def squared_norms(model: nn.Module) -> Tensor:
    """Return θ_lᵀθ_l of each tensor of `model.parameters()`, float64 [G], on the CPU."""
    return torch.stack([p.detach().double().square().sum() for p in model.parameters()]).cpu()


def _precision(names: tuple[str, ...], given: Mapping[str, float] | Tensor) -> Tensor:
    if isinstance(given, Mapping):
        if set(given) != set(names):
            odd = sorted(set(given) ^ set(names))
            raise ValueError(
                "`prior_precision` must name each parameter tensor once, but these are missing "
                f"or unknown: {', '.join(odd)}"
            )
        given = torch.tensor([given[name] for name in names], dtype=torch.float64)
    precision = given.detach().double().cpu()
    positive = bool(((precision > 0) & precision.isfinite()).all())
    if precision.shape != (len(names),) or not positive:
        raise ValueError(
            f"`prior_precision` must hold {len(names)} finite values > 0, one for each parameter "
            f"tensor, but got {precision.tolist()}"
        )
    return precision


def _not_finite(pass_: CurvaturePass, norms: Tensor) -> str:
    """Return the condition that fails, or an empty text."""
    if not math.isfinite(pass_.log_likelihood):
        return f"the log likelihood is {pass_.log_likelihood}"
    if not bool(norms.isfinite().all()):
        return "a parameter is not finite"
    traces = pass_.curvature.trace()
    for name, trace in zip(pass_.curvature.names, traces.tolist(), strict=True):
        if not math.isfinite(trace):
            return f"the curvature of `{name}` is not finite"
    return ""


def _by_group(term: str, names: tuple[str, ...], values: Tensor) -> tuple[Term, ...]:
    pairs = zip(names, values.tolist(), strict=True)
    return tuple(Term(term=term, group=name, value=value) for name, value in pairs)
