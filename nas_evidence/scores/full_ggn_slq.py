"""The Laplace evidence with the full Gauss-Newton matrix, of which only products are formed.

    log q(D) = κ log p(D|θ) − ½ θᵀ D θ − ½ tr log(I + D^-½ κ H D^-½)

Up to `N_EXACT` parameters, or data times outputs, the trace is computed from as many products,
without error. Beyond, it is estimated by stochastic Lanczos quadrature (maths/lanczos.py), and so
are the effective parameters γ = tr(H (H + D)⁻¹). The standard error holds the spread of the probes
and the bound on the error of the quadrature; where the latter is the larger one, though
`N_STEPS` were taken, the estimate is not valid. Products are in float64: rounding of float32 is as
large as the smallest eigenvalue where the largest is 10⁷, as at a precision of 10⁻³. Memory is P
times the number of steps, where `full_ggn` needs min(P, N C)². Cost: at most `N_STEPS` products
for each of `N_PROBES` and for the largest eigenvalues, each about two gradients over all data.
"""

import math
import time

import torch
from torch import Tensor

from nas_evidence.curvature.capture import undisturbed
from nas_evidence.curvature.products import LogJoint
from nas_evidence.maths.lanczos import Traces, exact_traces, stochastic_lanczos
from nas_evidence.scores.protocol import Context
from nas_evidence.spec.record import EvidenceEstimate, Term
from nas_evidence.training.mode import log_joint, parameters_of

N_PROBES, N_STEPS, N_EXACT = 8, 200, 1000
#: Error of a quadrature, as a part of tr log A, that is small enough whatever the probes say.
_TOLERANCE = 1e-3


def score(context: Context) -> EvidenceEstimate:
    """Return the evidence of the network where its training ended, in nats."""
    training = context.training
    joint = log_joint(training, context.data, context.assignment.plan, double=True)
    return evidence_by_products(joint, parameters_of(training), context.generator("full_ggn_slq"))


def evidence_by_products(
    joint: LogJoint, theta: Tensor, generator: torch.Generator, *, n_exact: int = N_EXACT
) -> EvidenceEstimate:
    """Return the Laplace evidence in nats, with the standard error of its log determinant.

    Args:
        joint: the log joint of a network in float64, whose precisions and power are used.
        theta: its parameters [P], float64.
        generator: of the random signs, on the CPU.
        n_exact: most parameters, or data times outputs, for a trace without error.
    """
    started = time.perf_counter()
    log_joint_value = -joint.value(theta)
    traces = _traces(joint, theta, generator, n_exact)
    value = log_joint_value - 0.5 * traces.log_det
    known = {
        "log_joint": log_joint_value,
        "log_det_ratio": traces.log_det,
        "log_det_quadrature_error": traces.log_det_quadrature,
        "effective_parameters": traces.effective,
        "effective_parameters_error": traces.effective_error,
    }
    finite = math.isfinite(value)
    terms = tuple(Term(term=t, group="all", value=v) for t, v in known.items())
    return EvidenceEstimate(
        estimator="full_ggn_slq",
        value=value if finite else -math.inf,
        per_datum=value / len(joint.inputs) if finite else None,
        standard_error=0.5 * traces.log_det_error if finite else None,
        terms=terms if finite else (),
        seconds=time.perf_counter() - started,
        valid=finite and _settled(traces),
        note=_note(value, traces),
    )


def _traces(joint: LogJoint, theta: Tensor, generator: torch.Generator, n_exact: int) -> Traces:
    with undisturbed(joint.model), torch.no_grad():
        n_outputs = joint.model(joint.inputs[:1].to(next(joint.model.parameters()))).shape[1]
    rank = len(joint.inputs) * joint.likelihood.n_roots(n_outputs)
    matrix, scale = joint.gauss_newton(theta), joint.precision.to(theta).rsqrt()

    def product(v: Tensor) -> Tensor:
        return scale * matrix(scale * v)

    if min(len(theta), rank) <= n_exact:
        return exact_traces(product, len(theta), rank=rank, device=theta.device)
    return stochastic_lanczos(
        product,
        len(theta),
        n_probes=N_PROBES,
        n_steps=N_STEPS,
        generator=generator,
        tolerance=_TOLERANCE,
        device=theta.device,
    )


def _settled(traces: Traces) -> bool:
    """Return whether the quadrature adds less error than the probes, or hardly any."""
    return traces.log_det_quadrature <= max(traces.log_det_spread, _TOLERANCE * traces.log_det)


def _note(value: float, traces: Traces) -> str:
    if not math.isfinite(value):
        return f"the log evidence is {value}"
    if _settled(traces):
        return f"{traces.n_products} products"
    return (
        f"after {N_STEPS} Lanczos steps the log determinant is known to "
        f"{traces.log_det_quadrature:.0f} nats only: prior precisions are too small beside the "
        "curvature"
    )
