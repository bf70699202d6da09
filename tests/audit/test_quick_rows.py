"""The problems of the audit that take seconds hold; the whole audit takes minutes."""

import pytest

from nas_evidence.audit.run import run_audit


@pytest.mark.long
@pytest.mark.parametrize(
    "problem", ["linear-power", "logistic-power", "linear-3", "linear-bins", "noise-2"]
)
def test_a_problem_holds(problem: str) -> None:
    assert not [row for row in run_audit([problem]) if not row.holds]
