"""The Laplace evidence with the full Gauss-Newton matrix, of which only products are formed.

    log q(D) = κ log p(D|θ) − ½ θᵀ D θ − ½ tr log(I + D^-½ κ H D^-½)

The trace is estimated by stochastic Lanczos quadrature (maths/lanczos.py), so it has a standard
error; so do the effective parameters γ = tr(H (H + D)⁻¹), by Hutchinson. Memory is P times the
number of Lanczos steps, where `full_ggn` needs min(P, N C)². Cost: at most `N_PROBES` x `N_STEPS`
products, each about two gradients over all data.
"""

import math
import time
from collections.abc import Callable

from torch import Tensor

from nas_evidence.maths.lanczos import Traces, stochastic_lanczos
from nas_evidence.maths.precisions import Precisions
from nas_evidence.record import EvidenceEstimate, Term
from nas_evidence.scores.protocol import Context
from nas_evidence.training.mode import log_joint, parameters_of

N_PROBES, N_STEPS = 8, 60


def score(context: Context) -> EvidenceEstimate:
    """Return the evidence of the network where its training ended, in nats."""
    started = time.perf_counter()
    training, data, plan = context.training, context.data, context.assignment.plan
    joint = log_joint(training, data, plan, double=False)
    theta = parameters_of(training)
    log_joint_value = -joint.value(theta)
    traces = _traces(context, joint.gauss_newton(theta))
    value = log_joint_value - 0.5 * traces.log_det
    valid = math.isfinite(value)
    return EvidenceEstimate(
        estimator="full_ggn_slq",
        value=value if valid else -math.inf,
        per_datum=value / len(data.x_train) if valid else None,
        standard_error=0.5 * traces.log_det_error if valid else None,
        relation="SCORE",
        terms=(
            Term(term="log_joint", group="all", value=log_joint_value),
            Term(term="log_det_ratio", group="all", value=traces.log_det),
            Term(term="log_det_last_change", group="all", value=traces.change),
            Term(term="effective_parameters", group="all", value=traces.effective),
            Term(term="effective_parameters_error", group="all", value=traces.effective_error),
        )
        if valid
        else (),
        seconds=time.perf_counter() - started,
        valid=valid,
        note=f"{traces.n_products} products" if valid else f"the log evidence is {value}",
    )


def _traces(context: Context, product: Callable[[Tensor], Tensor]) -> Traces:
    sizes = [p.numel() for p in context.model.parameters()]
    delta = Precisions(context.training.prior_precision, sizes).of_each_parameter()
    device = next(context.model.parameters()).device
    scale = delta.double().to(device).rsqrt()
    return stochastic_lanczos(
        lambda v: scale * product(scale * v),
        sum(sizes),
        n_probes=N_PROBES,
        n_steps=N_STEPS,
        generator=context.generator("full_ggn_slq"),
        device=device,
    )
