"""The warning that the score does not rank well, by the test losses of all architectures."""

from pathlib import Path

import pytest
from records import at, mlp, record_with
from searched import estimate_of, load

from nas_evidence.reporting.contents import report_on
from nas_evidence.spec.record import TrialRecord


def ranked(n: int, *, backwards: bool) -> list[TrialRecord]:
    """Return architectures whose test loss falls, or rises, with the score that ranks."""
    sign = 1.0 if backwards else -1.0
    return [
        record_with(
            i, architecture=mlp(width=4 + i), evaluations=at(1, estimate_of(i / n)), n_data=100,
            n_parameters=100, test_nll_per_datum=2 + sign * i / n, test_accuracy=0.5,
        )
        for i in range(n)
    ]  # fmt: skip


@pytest.mark.parametrize("backwards", [False, True])
def test_a_winner_that_is_among_the_worst_on_the_test_data_is_said_and_no_other(
    backwards: bool, tmp_path: Path
) -> None:
    study = load(tmp_path, ranked(12, backwards=backwards))
    advice = report_on(study, None, place=tmp_path).headline.advice
    said = [one for one in advice if one.startswith("On the test data")]
    assert bool(said) is backwards
    assert all(f"{study.ranks_by} " in one and "worse" in one for one in said)
