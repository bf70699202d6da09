"""The rows of the audit that take seconds hold; the whole audit takes minutes."""

from collections.abc import Iterable

import numpy as np
import pytest

from nas_evidence.audit import pieces as auditing_parts
from nas_evidence.audit.pieces import NAMES, brute_force, rows_of_part
from nas_evidence.audit.run import run_audit
from nas_evidence.audit.trained import coin_claims

#: They take seconds.
SLOW = ("box_normaliser", "finalists", "ensemble_members")


def those_of_seconds(names: Iterable[str], slow: Iterable[str]) -> list[object]:
    return [pytest.param(n, marks=pytest.mark.slow if n in slow else []) for n in names]


@pytest.mark.long
@pytest.mark.parametrize("name", those_of_seconds(NAMES, SLOW))
def test_each_part_is_what_another_computation_says(name: str) -> None:
    rows = rows_of_part(name, seed=0)
    assert rows
    assert all(row.estimator == name and row.low is not None for row in rows)
    assert not [row for row in rows if not row.holds]


@pytest.mark.long
@pytest.mark.parametrize(
    "problem",
    those_of_seconds(
        ("linear-power", "logistic-power", "trial", "linear-3", "trial-linear"),
        ("logistic-power", "trial", "linear-3", "trial-linear"),
    ),
)
def test_a_problem_holds(problem: str) -> None:
    assert not [row for row in run_audit([problem]) if not row.holds]


def test_a_part_with_another_value_is_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    right = auditing_parts.gain_over_a_constant
    monkeypatch.setattr(
        auditing_parts, "gain_over_a_constant", lambda *given: 1.001 * right(*given)
    )
    assert not rows_of_part("gain_over_a_constant", seed=0)[0].holds


def test_half_of_the_labels_by_luck_is_not_within_the_limits_of_coins() -> None:
    """A network that knows its 80 labels gains 55 nats, one that knows 16 of them 11."""
    claim = coin_claims(160)["two_fold"]
    assert claim.high is not None
    assert -80 * np.log(2) < claim.high < -64 * np.log(2)


@pytest.mark.slow
def test_the_best_of_equal_architectures_is_any_of_them() -> None:
    best, centre = brute_force([[0.0, 1.0, 0.5]] * 4, n_exact=6)
    np.testing.assert_allclose(best, 0.25, atol=1e-9)
    np.testing.assert_allclose(centre, centre[0])
