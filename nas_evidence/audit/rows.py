"""A row of the audit: an estimate, the truth, and the interval that must contain the value."""

import math
from dataclasses import dataclass

from nas_evidence.spec.domains import Frozen


class AuditRow(Frozen):
    """One estimator on one problem.

    value            of the estimator; nats for evidences
    truth            log evidence in nats, None if the problem has none
    bias, spread     value − truth, and the standard error of the value, nats
    low, high        limits of the value, None for no limit
    claim            the reason for low and high
    seconds          of processor time    memory_bytes  peak resident, None if unknown
    """

    problem: str
    estimator: str
    n_parameters: int
    n_data: int
    value: float
    truth: float | None = None
    truth_error: float | None = None
    bias: float | None = None
    spread: float | None = None
    low: float | None = None
    high: float | None = None
    claim: str = ""
    seconds: float = 0.0
    memory_bytes: int | None = None
    holds: bool


@dataclass(frozen=True)
class Claim:
    """The limits of a value, and the reason for them."""

    text: str = "none: the bias is shown"
    low: float | None = None
    high: float | None = None


def around(centre: float, tolerance: float, text: str) -> Claim:
    """Return the claim that a value is within a tolerance of another."""
    return Claim(text, centre - tolerance, centre + tolerance)


def judged(row: AuditRow, claim: Claim) -> AuditRow:
    """Return the row with its claim; a row whose value is not finite never holds."""
    holds = math.isfinite(row.value)
    holds = holds and (claim.low is None or row.value >= claim.low)
    holds = holds and (claim.high is None or row.value <= claim.high)
    return row.model_copy(
        update={"low": claim.low, "high": claim.high, "claim": claim.text, "holds": holds}
    )
