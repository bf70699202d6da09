"""The audit knows the truth, covers every registered estimator, and notices a wrong value."""

import json
import re
from collections.abc import Callable

import pytest
import torch
from messages import refused
from torch import nn

from nas_evidence.audit import run as audit
from nas_evidence.audit import sampled as auditing_sampled
from nas_evidence.audit import sum_of_losses
from nas_evidence.audit.known_problems import KnownProblem, definition, linear_problem
from nas_evidence.audit.run import AuditRow, Claim, run_audit
from nas_evidence.audit.sum_of_losses import sotl_row
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.spec.record import EvidenceEstimate
from nas_evidence.spec.registry import CURVATURES, SCORES

pytestmark = pytest.mark.slow


@pytest.fixture
def only_laplace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what takes seconds."""
    monkeypatch.setattr(auditing_sampled, "_sampled_calls", lambda problem: {})


def test_every_curvature_of_a_linear_model_is_its_definition(only_laplace: None) -> None:
    rows = run_audit(["linear-12"])
    assert [row.estimator for row in rows] == [*CURVATURES, "conditional_evidence", "sotl"]
    assert all(row.holds for row in rows), [row for row in rows if not row.holds]
    full = next(row for row in rows if row.estimator == "full_ggn")
    assert full.low <= full.truth <= (full.high or 0)
    assert full.bias == pytest.approx(0, abs=1e-8)
    assert rows[-2].bias == pytest.approx(0, abs=1e-8)
    assert rows[-2].truth != full.truth


@pytest.mark.parametrize("wrong", [lambda own: own[-1:], lambda own: [2 * one for one in own]])
def test_a_sum_of_training_losses_bounds_the_evidence_and_a_wrong_one_is_a_miss(
    wrong: Callable[[list[float]], list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = linear_problem("linear-3", 1, n_data=12, n_features=2, n_outputs=1)
    row = sotl_row(problem, 0)
    assert row.holds
    assert row.value < problem.truth
    right = sum_of_losses.sotl
    monkeypatch.setattr(sum_of_losses, "sotl", lambda losses: right(wrong(losses)))
    assert not sotl_row(problem, 0).holds


@pytest.mark.crossed
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
    missed = [row.estimator for row in run_audit(["linear-12"]) if not row.holds]
    assert missed == [kind]


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
    assert not audit.judged(row, Claim()).holds
    one = row.model_copy(update={"value": 1.0})
    assert audit.judged(one, Claim()).holds
    assert audit.judged(one, Claim("", 0.9, 1.1)).holds
    assert not audit.judged(one, Claim("", low=1.1)).holds
    assert not audit.judged(one, Claim("", high=0.9)).holds


def test_rows_are_json_and_an_unknown_problem_is_refused(only_laplace: None) -> None:
    row = run_audit(["linear-12"])[0]
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


@pytest.mark.soak
def test_the_whole_audit_holds_for_every_registered_estimator() -> None:
    said: list[str] = []
    rows = run_audit(say=said.append)
    missed = [row for row in rows if not row.holds]
    assert not missed
    for problem in audit.PROBLEMS:
        there = {row.estimator for row in rows if row.problem == problem}
        assert there == audit.estimators_in(problem), problem
    assert len(said) == len(audit.PROBLEMS)
    assert re.match(rf"1/{len(said)} linear-3: (\d+) of \1 rows hold, ", said[0])
    evidences = {name for name, score in SCORES.items() if score.relation != "SCORE"}
    assert evidences <= {row.estimator for row in rows}
    assert all(row.low is not None and row.high is not None for row in rows)


def test_a_problem_or_an_estimator_can_be_asked_for_alone() -> None:
    assert audit.named("linear-3") == (["linear-3"], None)
    assert audit.named("thermodynamic")[1] == "thermodynamic"
    assert all(audit.named(name)[0] for name in CURVATURES)
    with refused("audit-without-truth", "elpd"):
        audit.named("elpd")
    with refused("audit-problem-not-a-study", "lineer", "linear-3,"):
        audit.named("lineer")


def test_kronecker_definitions_of_a_network_are_those_of_the_estimators() -> None:
    """By dense algebra from inputs and blocks of biases, of two layers."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    x, y = torch.randn(9, 2).double(), torch.randint(0, 2, (9,))
    precision = torch.tensor([0.5, 1.0, 2.0, 3.0]).double()
    problem = KnownProblem("p", model, x, y, Categorical(), precision, truth=0.0)
    for kind in ("kfac_ggn", "kfac_ef", "ekfac_ggn"):
        value = definition(problem, kind)
        assert value == pytest.approx(audit._laplace(problem, kind, 0).value, rel=1e-10)
    convolution = nn.Sequential(nn.Unflatten(1, (1, 2)), nn.Conv1d(1, 2, 2), nn.Flatten())
    other = KnownProblem("p", convolution.double(), x, y, Categorical(), precision[:2], truth=0.0)
    assert definition(other, "kfac_ggn") is None


# --- the problems of the audit that take seconds hold; the whole audit takes minutes


@pytest.mark.long
@pytest.mark.parametrize("problem", ["linear-power", "logistic-power", "linear-3", "noise-2"])
def test_a_problem_holds(problem: str) -> None:
    assert not [row for row in run_audit([problem]) if not row.holds]
