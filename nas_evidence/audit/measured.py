"""A row of the audit as it was measured: the estimate with its time and memory, not yet judged."""

import contextlib
import ctypes
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from nas_evidence.audit.known_problems import Problem
from nas_evidence.audit.rows import AuditRow
from nas_evidence.spec.record import EvidenceEstimate


def measured(problem: Problem, name: str, call: Callable[[], EvidenceEstimate]) -> AuditRow:
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
