"""The audit knows the truth, covers every registered estimator, and notices a wrong value."""

import json
from collections.abc import Callable

import pytest

from nas_evidence import auditing as audit
from nas_evidence.auditing import AuditRow, Claim, run_audit
from nas_evidence.auditing_problems import (
    definition,
    linear_problem,
)
from nas_evidence.record import EvidenceEstimate
from nas_evidence.registry import CURVATURES, SCORES

pytestmark = pytest.mark.slow


@pytest.fixture
def only_laplace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what takes seconds."""
    monkeypatch.setattr(audit, "_sampled_calls", lambda problem, block_size: {})


def test_every_curvature_of_a_linear_model_is_its_definition(only_laplace: None) -> None:
    rows = run_audit(["linear-12"])
    differences = [f"conditional_{kind}" for kind in CURVATURES]
    linearised = ["tangent", "ntk_init", "full_ggn_slq"]
    on_halves = ["tangent_conditional", "last_layer_conditional"]
    assert [row.estimator for row in rows] == [
        *CURVATURES, *linearised, *differences, *on_halves,
    ]  # fmt: skip
    assert all(row.holds for row in rows), [row for row in rows if not row.holds]
    full = next(row for row in rows if row.estimator == "full_ggn")
    assert full.truth is not None
    assert full.low is not None
    assert full.low <= full.truth <= (full.high or 0)
    assert full.bias == pytest.approx(0, abs=1e-8)
    for name in ("conditional_full_ggn", *on_halves):
        conditional = next(row for row in rows if row.estimator == name)
        assert conditional.bias == pytest.approx(0, abs=1e-8)
        assert conditional.truth != full.truth


@pytest.mark.parametrize("kind", ["diag_ggn", "kfac_ef", "full_ef"])
@pytest.mark.parametrize("relative", [1e-6, -1e-6])
def test_a_value_off_by_a_millionth_is_a_miss(
    kind: str, relative: float, only_laplace: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    right: Callable[..., EvidenceEstimate] = audit.estimate_evidence

    def wrong(*args: object, curvature: str, **known: object) -> EvidenceEstimate:
        found = right(*args, curvature=curvature, **known)
        factor = 1 + relative if curvature == kind else 1
        return found.model_copy(update={"value": found.value * factor})

    monkeypatch.setattr(audit, "estimate_evidence", wrong)
    missed = [row.estimator for row in run_audit(["linear-3"]) if not row.holds]
    # A difference of two values that are both off is off by as much.
    assert missed == [kind, f"conditional_{kind}"]


def test_a_classifier_is_held_to_definitions_and_to_a_grid(only_laplace: None) -> None:
    rows = {row.estimator: row for row in run_audit(["logistic-2"])}
    assert all(row.holds for row in rows.values())
    assert all(row.claim for row in rows.values())
    assert rows["diag_ggn"].value < rows["block_ggn"].value <= rows["full_ggn"].value + 1e-9
    assert abs(rows["full_ggn"].bias or 0) < 0.1


def test_a_value_that_is_not_a_number_or_outside_never_holds() -> None:
    row = AuditRow(
        problem="p", estimator="e", n_parameters=1, n_data=1, value=float("nan"), holds=True
    )
    assert not audit._judged(row, Claim()).holds
    one = row.model_copy(update={"value": 1.0})
    assert audit._judged(one, Claim()).holds
    assert audit._judged(one, Claim("", 0.9, 1.1)).holds
    assert not audit._judged(one, Claim("", low=1.1)).holds
    assert not audit._judged(one, Claim("", high=0.9)).holds


def test_rows_are_json_and_an_unknown_problem_is_refused(only_laplace: None) -> None:
    row = run_audit(["linear-3"])[0]
    again = AuditRow.model_validate(json.loads(row.model_dump_json()))
    assert again == row
    with pytest.raises(ValueError, match=r"linear-3.*\['linear-4'\]"):
        run_audit(["linear-4"])


def test_definitions_differ_where_the_kinds_do() -> None:
    problem = linear_problem("p", 0, n_data=9, n_features=3, n_outputs=2)
    values = [definition(problem, k) or 0.0 for k in CURVATURES if "mc" not in k]
    same = {"kfac_ggn", "ekfac_ggn", "block_ggn"}  # on one linear layer with Gaussian noise
    assert len({round(value, 8) for value in values}) == len(values) - len(same) + 1
    assert definition(problem, "full_ggn") == pytest.approx(problem.truth, abs=1e-9)


@pytest.mark.slow
def test_the_whole_audit_holds_for_every_registered_estimator() -> None:
    rows = run_audit()
    missed = [row for row in rows if not row.holds]
    assert not missed
    assert {row.estimator for row in rows} == set(SCORES)
