"""Conditional evidence as the difference of two Laplace evidences.

    log p(D_late | D_early, δ, s)  ~  log q(D_early, D_late | δ, s) − log q(D_early | δ, s)

    q  Laplace approximation, each at a mode of its own
    δ, s, κ  prior precisions, noise or temperature, likelihood power: learned from D_early alone,
             and the same in both terms

By the chain rule this is what the data add to those before them; what the prior pays for being
vague is in both terms and cancels (Lotfi et al. 2022). Exact for linear models with Gaussian
noise, where it equals the predictive density of the late data. The log probability of labels
cannot be above 0: where it is, an approximation has failed, and the estimate is not valid.

The difference of two numbers of some hundred nats each has the errors of both, also those of two
trainings that ended at different distances from their modes.
"""

import math

from nas_evidence.evidence import ESTIMATORS
from nas_evidence.record import EvidenceEstimate, Term


def no_estimate(name: str, note: str) -> EvidenceEstimate:
    """Return the estimate of that name that is not valid, and why."""
    return EvidenceEstimate(
        estimator=name, value=-math.inf, relation=ESTIMATORS[name], valid=False, note=note
    )


def conditional_estimate(
    early: EvidenceEstimate, whole: EvidenceEstimate, *, n_early: int, n_data: int, labels: bool
) -> EvidenceEstimate:
    """Return the evidence of the late data given the early ones, in nats, named `conditional_...`.

    Args:
        early: of the first data alone.
        whole: of one kind with it, of all data, at the same hyperparameters.
        n_early: data of the first.
        n_data: data of the second.
        labels: whether a value above 0 is impossible.

    Raises:
        ValueError: if the two are of different kinds, or there are no late data.
    """
    if early.estimator != whole.estimator or not 0 < n_early < n_data:
        raise ValueError(
            "a conditional evidence needs two estimates of one kind, of some data and of more, "
            f"but got {early.estimator} of {n_early} and {whole.estimator} of {n_data}"
        )
    name = f"conditional_{whole.estimator}"
    failed = [e for e in (early, whole) if not e.valid]
    if failed:
        return no_estimate(name, failed[0].note)
    value = whole.value - early.value
    groups = {f"0-{n_early}": early, f"0-{n_data}": whole}
    errors = [e.standard_error for e in (early, whole) if e.standard_error is not None]
    note = f"{n_data - n_early} data after {n_early}, hyperparameters of the early ones"
    impossible = labels and value > 0
    if impossible:
        note = f"{value:.6g} nats is above 0, which no log probability of labels is; {note}"
    return EvidenceEstimate(
        estimator=name,
        value=value,
        per_datum=value / (n_data - n_early),
        standard_error=math.hypot(*errors) if errors else None,
        relation=ESTIMATORS[name],
        terms=tuple(
            Term(term="log_evidence", group=group, value=estimate.value)
            for group, estimate in groups.items()
        ),
        seconds=early.seconds + whole.seconds,
        valid=not impossible,
        note=note,
    )
