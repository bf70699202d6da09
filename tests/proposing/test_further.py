"""Claims about the forecast of what further trials would gain."""

import pytest

from nas_evidence.maths.architecture_posterior import Prior
from nas_evidence.proposing.further import FEWEST, gain_of_further
from nas_evidence.proposing.proposer import ProposalResult, Proposer
from nas_evidence.spec.study import ArchitectureSpec, StudySpec


def study(high: int = 400, **changes: object) -> StudySpec:
    given: dict[str, object] = {
        "name": "s",
        "dataset": {"name": "digits"},
        "family": {"mlp": {"width": {"low": 1, "high": high}}, "linear": {}},
    }
    return StudySpec.model_validate({**given, **changes})


def forecast(spec: StudySpec, widths: range, scale: float = 1.0) -> float | None:
    known = [
        (
            ArchitectureSpec(family="mlp", values={"width": width}),
            ProposalResult((scale * width**0.5,)),
        )
        for width in widths
    ]
    failed = (ArchitectureSpec(family="mlp", values={"width": 1}), ProposalResult(None))
    return gain_of_further(spec, Proposer(spec), [*known, failed], prior=Prior())


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["tpe", "posterior", "random", "qmc", "grid"])
def test_each_sampler_has_a_gain_in_the_unit_of_the_score(sampler: str) -> None:
    spec = study(sampler={"name": sampler}, n_trials=60)
    found, tenfold = (forecast(spec, range(3, 23, 2), scale) for scale in (1.0, 10.0))
    assert tenfold is not None
    assert found > 0
    assert tenfold == pytest.approx(10 * found, rel=0.05)


def test_where_nothing_is_left_to_try_nothing_is_gained() -> None:
    everything = forecast(
        study(high=20, family={"mlp": {"width": {"low": 1, "high": 20}}}), range(1, 21)
    )
    assert everything == 0.0


def test_few_scores_and_several_objectives_have_no_forecast() -> None:
    assert forecast(study(), range(1, FEWEST)) is None
    assert forecast(study(minimise=("n_parameters",)), range(1, 1)) is None


def test_pruned_trials_are_no_scores_of_the_forecast() -> None:
    known = [
        (
            ArchitectureSpec(family="mlp", values={"width": w}),
            ProposalResult((float(w),), pruned=w > 9),
        )
        for w in range(3, 3 + 2 * FEWEST, 2)
    ]
    assert gain_of_further(study(), Proposer(study()), known, prior=Prior()) is None
