"""The Laplace evidence with the full Gauss-Newton matrix, of which only products are formed.

    log q(D) = κ log p(D|θ) − ½ θᵀ D θ − ½ tr log(I + D^-½ κ H D^-½)

The trace is estimated by stochastic Lanczos quadrature (maths/lanczos.py), so it has a standard
error; so do the effective parameters γ = tr(H (H + D)⁻¹), by Hutchinson. Memory is P times the
number of Lanczos steps, where `full_ggn` needs min(P, N C)². Cost: at most `N_STEPS` products for
each of `N_PROBES` and for the largest eigenvalues, each about two gradients over all data.
"""

import math
import time

import torch
from torch import Tensor

from nas_evidence.curvature.products import LogJoint
from nas_evidence.maths.lanczos import stochastic_lanczos
from nas_evidence.record import EvidenceEstimate, Term
from nas_evidence.scores.protocol import Context
from nas_evidence.training.mode import log_joint, parameters_of

N_PROBES, N_STEPS = 8, 60


def score(context: Context) -> EvidenceEstimate:
    """Return the evidence of the network where its training ended, in nats."""
    training = context.training
    joint = log_joint(training, context.data, context.assignment.plan, double=False)
    return evidence_by_products(joint, parameters_of(training), context.generator("full_ggn_slq"))


def evidence_by_products(
    joint: LogJoint, theta: Tensor, generator: torch.Generator
) -> EvidenceEstimate:
    """Return the Laplace evidence in nats, with the standard error of its log determinant.

    Args:
        joint: the log joint of a network; its precisions and likelihood power are used.
        theta: its parameters [P], float64.
        generator: of the random signs, on the CPU.
    """
    started = time.perf_counter()
    log_joint_value = -joint.value(theta)
    product, scale = joint.gauss_newton(theta), joint.precision.to(theta).rsqrt()
    traces = stochastic_lanczos(
        lambda v: scale * product(scale * v),
        len(theta),
        n_probes=N_PROBES,
        n_steps=N_STEPS,
        generator=generator,
        device=theta.device,
    )
    value = log_joint_value - 0.5 * traces.log_det
    known = {
        "log_joint": log_joint_value,
        "log_det_ratio": traces.log_det,
        "log_det_last_change": traces.change,
        "effective_parameters": traces.effective,
        "effective_parameters_error": traces.effective_error,
    }
    valid = math.isfinite(value)
    return EvidenceEstimate(
        estimator="full_ggn_slq",
        value=value if valid else -math.inf,
        per_datum=value / len(joint.inputs) if valid else None,
        standard_error=0.5 * traces.log_det_error if valid else None,
        terms=tuple(Term(term=t, group="all", value=v) for t, v in known.items()) if valid else (),
        seconds=time.perf_counter() - started,
        valid=valid,
        note=f"{traces.n_products} products" if valid else f"the log evidence is {value}",
    )
