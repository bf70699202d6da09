"""Laplace approximation of the log evidence (MacKay 1992; Immer et al. 2021).

    log p(y|M) ≈ log p(y|θ*) − ½ Σ_l δ_l θ_lᵀθ_l − ½ (log|H + Δ| − log|Δ|)

    θ*  mode [P]      H  curvature of the summed nll [P, P]      Δ = diag(δ), δ_l for tensor l

The factors 2π of the prior and the Gaussian integral cancel exactly. Logs are natural, values in
nats, summed over the data, larger is better. Differs from laplace-torch: log determinants are sums
of log1p in float64, and every structure is differentiable with respect to the prior.

Away from a mode, the second-order expansion of the log joint adds (Immer et al. 2021, A.1, with
the sign of the shift corrected)

    + ½ gᵀ (H + Δ)⁻¹ g,      g = −∇ log p(y|θ) + Δ θ

With it the value is exact on linear-Gaussian models at any θ. gᵀ (H + Δ)⁻¹ g is reported if the
pass has the gradient; above 1 nat the parameters are not a mode. A likelihood power κ multiplies
the log likelihood, its gradient and H; the result is not the evidence of any model, and values
with different κ cannot be compared.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor, nn

from nas_evidence.curvature import CurvaturePass
from nas_evidence.maths.blocks import Kronecker
from nas_evidence.maths.constants import free_parameters
from nas_evidence.maths.precisions import of_each_parameter
from nas_evidence.maths.structured import BlockDiagonal, Structured
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.estimates import EvidenceEstimate, Term
from nas_evidence.spec.registry import SCORES


def laplace_estimate(
    kind: str,
    pass_: CurvaturePass,
    model: nn.Module,
    prior_precision: Mapping[str, float] | Tensor,
    *,
    likelihood_power: float = 1.0,
    log_jacobian: float = 0.0,
    at_mode_correction: bool = False,
) -> EvidenceEstimate:
    """Return the Laplace evidence of a model with its terms.

    Args:
        kind: the curvature kind that `pass_` was made with.
        pass_: curvature and log likelihood at the parameters of `model`.
        model: its free parameters are assumed to be the mode.
        prior_precision: > 0; one value per free tensor of `model.parameters()`, by name or [G].
        likelihood_power: κ > 0, on log likelihood and curvature.
        log_jacobian: Σ log |dz/du| of targets z in place of those that densities are of, nats; κ
            is on it too.
        at_mode_correction: add ½ gᵀ (H + Δ)⁻¹ g; needs a pass with its gradient.

    Raises:
        ValueError: for an impossible precision or power, or a correction without a gradient.
    """
    if not (likelihood_power > 0 and math.isfinite(likelihood_power)):
        raise UserError(
            "likelihood-power-not-positive",
            f"`likelihood_power > 0` must hold, but got {likelihood_power}",
        )
    if at_mode_correction and pass_.gradient is None:
        raise UserError(
            "correction-without-diagnosis",
            "`at_mode_correction` needs a curvature pass with `diagnose=True`",
        )
    names = pass_.curvature.names
    precision = checked_precision(names, prior_precision)
    note = _not_finite(pass_, squared_norms(model))
    if note:
        return EvidenceEstimate(
            estimator=kind,
            value=math.nan,
            relation=SCORES[kind].relation,
            seconds=pass_.seconds,
            valid=False,
            note=note,
        )
    scatter = precision * squared_norms(model)  # θ_lᵀ Δ_l θ_l of each tensor [G]
    log_likelihood = likelihood_power * pass_.log_likelihood
    scaled = precision / likelihood_power  # κ H with precision δ equals H with δ / κ
    log_det_ratio = pass_.curvature.log_det_ratio(scaled).cpu()
    value = log_likelihood - 0.5 * float(scatter.sum() + log_det_ratio.sum())
    value += likelihood_power * log_jacobian
    log_det_groups = names if len(log_det_ratio) == len(names) else ("all",)
    effective = pass_.curvature.effective_parameters(scaled).cpu()
    notes = [f"likelihood power {likelihood_power:g}"] if likelihood_power != 1 else []
    notes += _rounded(pass_.curvature, scaled)
    terms = [
        Term(term="log_likelihood", group="all", value=log_likelihood),
        *_by_group("scatter", names, scatter),
        *_by_group("log_det_ratio", log_det_groups, log_det_ratio),
        *_by_group("effective_parameters", names, effective),
        *_by_group("prior_precision", names, precision),
        Term(term="clamped_eigenvalues", group="all", value=pass_.curvature.n_clamped),
        Term(term="n_data", group="all", value=pass_.n_data),
    ]
    if log_jacobian:
        value_of_scale = likelihood_power * log_jacobian
        terms.append(Term(term="log_jacobian", group="all", value=value_of_scale))
    if likelihood_power != 1:
        terms.append(Term(term="likelihood_power", group="all", value=likelihood_power))
    if pass_.gradient is not None:
        norm = _gradient_norm_squared(pass_, model, precision, likelihood_power)
        value += 0.5 * norm if at_mode_correction else 0.0
        terms += _diagnosis(norm, corrected=at_mode_correction)
        if norm > 1:
            notes.append(f"not at a mode: gradient_norm_squared is {norm:.3g} nats, above 1")
    return EvidenceEstimate(
        estimator=kind,
        value=value,
        per_datum=value / pass_.n_data,
        relation=SCORES[kind].relation,
        terms=tuple(terms),
        seconds=pass_.seconds,
        note="; ".join(notes),
    )


def _rounded(curvature: Structured, precision: Tensor) -> list[str]:
    """Name the tensors whose prior precision is small beside the rounding of float32 factors."""
    if not isinstance(curvature, BlockDiagonal):
        return []
    spectra = curvature.spectra()
    blocks = zip(curvature.names, curvature.blocks, spectra, precision, strict=False)
    flags = {n: b.is_uncertain(v, p) for n, b, v, p in blocks if isinstance(b, Kronecker)}
    if not flags:
        return []
    uncertain = torch.stack([*flags.values()]).tolist()
    if not any(uncertain):
        return []
    named = [name for name, flag in zip(flags, uncertain, strict=True) if flag]
    return [
        f"the log determinant of {', '.join(named)} may be off by a nat: the prior precision is "
        "within the rounding of the curvature in float32; `model.double()` and double inputs "
        "avoid it"
    ]


def with_trace_ratios(estimate: EvidenceEstimate, ratios: Mapping[str, float]) -> EvidenceEstimate:
    """Return the estimate with tr(KFAC) / tr(exact diagonal) of each tensor among its terms.

    Args:
        estimate: of a Kronecker kind.
        ratios: from `nas_evidence.curvature.trace_ratios`; NaN where a trace is zero.
    """
    terms = tuple(
        Term(term="trace_ratio", group=name, value=ratio)
        for name, ratio in ratios.items()
        if math.isfinite(ratio)
    )
    return estimate.model_copy(update={"terms": (*estimate.terms, *terms)})


def mean_estimate(draws: Sequence[EvidenceEstimate]) -> EvidenceEstimate:
    """Return the mean of independent estimates, with its standard error if there are two or more.

    Args:
        draws: of one Monte-Carlo kind at the same parameters; if one is invalid, the first
            invalid one is returned unchanged.
    """
    invalid = [draw for draw in draws if not draw.valid]
    if invalid or len(draws) == 1:
        return (invalid or draws)[0]
    values = [draw.value for draw in draws]
    terms = tuple(
        Term(term=same[0].term, group=same[0].group, value=fmean(t.value for t in same))
        for same in zip(*(draw.terms for draw in draws), strict=True)
    )
    return draws[0].model_copy(
        update={
            "value": fmean(values),
            "per_datum": fmean(d.per_datum for d in draws if d.per_datum is not None),
            "standard_error": stdev(values) / len(values) ** 0.5,
            "terms": terms,
            "seconds": sum(draw.seconds for draw in draws),
        }
    )


def _gradient_norm_squared(
    pass_: CurvaturePass, model: nn.Module, precision: Tensor, power: float
) -> float:
    """Return gᵀ (κ H + Δ)⁻¹ g, g = −κ ∇ log p(y|θ) + Δ θ, with the H of the kind.

    Settling asks another question, with the exact H: `training.mode.newton_decrement`.
    """
    assert pass_.gradient is not None
    delta = of_each_parameter(precision, pass_.curvature.sizes)
    free = free_parameters(model).values()
    theta = torch.cat([p.detach().double().flatten() for p in free])
    gradient = delta.to(theta) * theta - power * pass_.gradient
    return float(pass_.curvature.inverse_quadratic(gradient, precision / power)) / power


def _diagnosis(norm: float, *, corrected: bool) -> list[Term]:
    terms = [Term(term="gradient_norm_squared", group="all", value=norm)]
    if corrected:
        terms.append(Term(term="at_mode_correction", group="all", value=0.5 * norm))
    return terms


def squared_norms(model: nn.Module) -> Tensor:
    """Return θ_lᵀθ_l of each free tensor of `model.parameters()`, float64 [G], on the CPU."""
    free = free_parameters(model).values()
    return torch.stack([p.detach().double().square().sum() for p in free]).cpu()


def checked_precision(
    names: tuple[str, ...],
    given: float | Sequence[float] | Mapping[str, float] | Tensor,
) -> Tensor:
    """Return the prior precision of each tensor [G], float64, on the CPU.

    Args:
        names: of the parameter tensors.
        given: one number, or one for each tensor, in their order or by name.

    Raises:
        ValueError: for a wrong name or number of values, or one that is not finite or not > 0.
    """
    numbers: Any = given
    if isinstance(given, Mapping):
        if set(given) != set(names):
            bad = sorted(set(given) ^ set(names))
            raise UserError(
                "prior-precision-names",
                "`prior_precision` must name each free parameter tensor once, but these are "
                f"missing, unknown or constant: {', '.join(bad)}",
            )
        numbers = [given[name] for name in names]
    try:
        precision = torch.as_tensor(numbers, dtype=torch.float64).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            "prior-precision-form",
            "`prior_precision` must be a number, one number per parameter tensor in their order, "
            f"or a mapping of their names to numbers, but got {given!r}",
        ) from error
    precision = precision if precision.ndim else precision.expand(len(names))
    positive = bool(((precision > 0) & precision.isfinite()).all())
    if precision.shape != (len(names),) or not positive:
        raise UserError(
            "prior-precision-values",
            f"`prior_precision` must hold {len(names)} finite values > 0, one for each free "
            f"parameter tensor, but got {len(precision.flatten())}: "
            f"{precision.flatten()[:20].tolist()}",
        )
    return precision


def _not_finite(pass_: CurvaturePass, norms: Tensor) -> str:
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
