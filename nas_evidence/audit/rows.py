"""A row of the audit: an estimate, the truth, and the interval that must contain the value."""

import contextlib
import ctypes
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nas_evidence.audit.known_problems import KnownProblem
from nas_evidence.spec.domains import Frozen
from nas_evidence.spec.record import EvidenceEstimate


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


def measured(problem: KnownProblem, name: str, call: Callable[[], EvidenceEstimate]) -> AuditRow:
    """Return the row of one estimate, measured but not yet checked."""
    with _peak_memory() as peak:
        started = time.process_time()
        estimate = call()
        seconds = time.process_time() - started
    return AuditRow(
        problem=problem.name,
        estimator=name,
        n_parameters=problem.n_parameters,
        n_data=len(problem.x),
        value=estimate.value if estimate.valid else math.nan,
        truth=problem.truth,
        truth_error=problem.truth_error,
        bias=estimate.value - problem.truth,
        spread=estimate.standard_error,
        seconds=seconds,
        memory_bytes=peak[0] if peak else None,
        holds=True,
    )


@contextlib.contextmanager
def _peak_memory() -> Iterator[list[int]]:
    """Yield a list that on exit holds the growth of the resident set in bytes, on Linux."""
    peak: list[int] = []
    try:
        # Return freed memory to the system, and reset the peak.
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = _status_bytes("VmRSS")
    except (OSError, AttributeError):
        yield peak
        return
    yield peak
    peak.append(max(0, _status_bytes("VmHWM") - before))


def _status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))
