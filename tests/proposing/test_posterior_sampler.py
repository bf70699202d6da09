"""Claims about proposals by the posterior over architectures."""

from itertools import islice
from typing import Any

import numpy as np
import pytest
from proposal_spaces import SPACE, WIDE, score, shown, study, whole
from records import plain_study
from threadpoolctl import threadpool_info, threadpool_limits

from nas_evidence.maths.architecture_posterior import ArchitecturePosterior, Floats, Prior
from nas_evidence.proposing import posterior_sampler
from nas_evidence.proposing.further import FEWEST, gain_of_further
from nas_evidence.proposing.past import Proposal
from nas_evidence.proposing.posterior_sampler import _values
from nas_evidence.proposing.proposer import Learner, ProposalResult, Proposer
from nas_evidence.proposing.startup import quasi_random_points, random_point, searched_domains
from nas_evidence.spec.coordinates import Candidate, Space, quantile
from nas_evidence.spec.domains import Choice
from nas_evidence.spec.study import ArchitectureSpec, StudySpec

SHAPED = WIDE | {"mlp": WIDE["mlp"] | {"shape": Choice(options=("constant", "taper"))}}


def spec_of(**changes: object) -> StudySpec:
    return study(sampler={"name": "posterior"}, **{"family": SHAPED, **changes})


@pytest.mark.slow
def test_the_first_and_best_is_found_sooner_than_by_chance() -> None:
    found = []
    for seed in range(4):
        proposer = Proposer(spec_of(seed=seed))
        for number in range(30):
            proposer.tell(number, whole(proposer.ask()))
        found.append(max(map(score, proposer.proposals())))
    chance = [
        max(score(random_point(spec_of(), 30 * k + i)) for i in range(30)) for k in range(40)
    ]
    assert sum(found) / len(found) > sorted(chance)[30]


@pytest.mark.slow
def test_an_architecture_that_is_running_or_known_is_not_proposed_again() -> None:
    spec = spec_of(family={"mlp": SPACE["mlp"]})
    points = list(islice(quasi_random_points(spec), 30))
    results = [(one, whole(one) if i % 2 else None) for i, one in enumerate(points)]
    learner = shown(spec, results)
    known = {one.key for one in points}
    assert not any(learner.draw(seed).key in known for seed in range(30))


def test_running_trials_spread_a_batch() -> None:
    spec = spec_of(family={"mlp": SPACE["mlp"]})
    points = list(islice(quasi_random_points(spec), 12))
    learner = shown(spec, [(one, whole(one)) for one in points])
    batch: list[ArchitectureSpec] = []
    for number in range(12, 20):
        batch.append(learner.draw(7))  # one seed: only what runs makes a difference
        learner.show(number, batch[-1], None)
    assert len({one.key for one in batch}) == 8


def test_before_any_result_draws_are_random_architectures() -> None:
    learner = Learner(spec_of())
    assert len({learner.draw(seed).key for seed in range(20)}) > 10
    learner = shown(spec_of(), [(random_point(spec_of(), 1), ProposalResult((1.0,), pruned=True))])
    assert len({learner.draw(seed).key for seed in range(20)}) > 10


@pytest.mark.slow
def test_with_a_cost_to_minimise_draws_are_cheaper() -> None:
    spec = spec_of(minimise=["n_parameters"])
    points = list(islice(quasi_random_points(spec), 1, 41))
    widths = [float(one.values["width"]) for one in points]
    learner = shown(
        spec,
        [(one, ProposalResult((0.0, width))) for one, width in zip(points, widths, strict=True)],
    )
    drawn = [float(learner.draw(seed).values["width"]) for seed in range(30)]
    assert sum(drawn) / len(drawn) < sum(widths) / len(widths) / 3


def test_families_share_the_coordinates_of_keys_that_both_have() -> None:
    space = Space(searched_domains(spec_of()))
    mlp = Candidate("mlp", {"depth": 3, "width": 64, "shape": "taper"})
    cnn = Candidate("cnn", {"depth": 3, "width": 16})
    at_mlp, at_cnn = space.points([mlp, cnn])
    assert list(space.options) == ["family", "depth", "width", "mlp.shape"]
    assert space.ordered == [False, True, True, False]
    assert at_mlp.tolist() == pytest.approx([0, 0.5, at_mlp[2], 1])
    assert at_cnn.tolist() == [1, 0.5, quantile(WIDE["cnn"]["width"], 16), -1]


def test_the_architecture_at_its_coordinates_is_itself() -> None:
    space, rng = Space(searched_domains(spec_of())), np.random.default_rng(0)
    drawn = [space.random(rng) for _ in range(200)]
    drawn += [space.varied(one, rng) for one in drawn]
    assert {one.family for one in drawn} == {"mlp", "cnn"}
    for one in drawn:
        assert one in space
        assert space.values(space.coordinates(one)) == one


def test_families_without_parameters_are_proposed_again_when_all_are_known() -> None:
    fixed = {"mlp": {"depth": Choice(options=(2,))}, "linear": {}}
    proposer = Proposer(spec_of(family=fixed))
    for number in range(4):
        proposer.tell(number, whole(proposer.ask()))
    assert len({one.key for one in proposer.proposals()[:2]}) == 2


def test_proposals_are_computed_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums in several threads end in other digits, and threads of a busy machine wait."""
    seen: list[int] = []
    gain = ArchitecturePosterior.predict

    def watched(self: ArchitecturePosterior, points: Floats) -> tuple[Floats, Floats]:
        seen.extend(
            pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"
        )
        return gain(self, points)

    monkeypatch.setattr(ArchitecturePosterior, "predict", watched)
    with threadpool_limits(2, user_api="blas"):
        spec = spec_of()
        shown(spec, [(random_point(spec, k), ProposalResult((float(k),))) for k in range(4)]).draw(
            0
        )
    assert seen
    assert set(seen) == {1}


def test_of_several_objectives_the_worse_one_counts() -> None:
    """A trial that is fair at both is ahead of those that are best at one and worst at other."""
    one = random_point(spec_of(), 0)
    trials = [
        Proposal(number, one, "COMPLETE", values)
        for number, values in enumerate([(1.0, 1.0), (0.0, 0.0), (0.6, 0.4)])  # the second a cost
    ]
    found = [_values(trials, np.random.default_rng(seed)) for seed in range(20)]
    assert sum(max(one, key=one.__getitem__) == 2 for one in found) >= 15


def test_a_running_trial_counts_as_what_is_expected_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[list[float]] = []

    class Watched(ArchitecturePosterior):
        def __init__(self, *given: Any) -> None:
            told.append([own[0] for own in given[2]])
            super().__init__(*given)

    monkeypatch.setattr(posterior_sampler, "ArchitecturePosterior", Watched)
    spec = spec_of(family={"mlp": SPACE["mlp"]})
    points = sorted(islice(quasi_random_points(spec), 12), key=score)
    learner = shown(spec, [(one, whole(one)) for one in points[1:]])
    learner.show(11, points[0], None)  # the worst
    learner.draw(0)
    (known, with_running), best = told, score(points[-1])
    assert with_running[:-1] == known
    assert with_running[-1] < best - 0.2 * (best - score(points[1]))


def test_idle_workers_are_filled_from_one_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to a number of running trials each counts; then proposals no longer depend on them."""
    fits: list[int] = []

    class Watched(ArchitecturePosterior):
        def __init__(self, *given: Any) -> None:
            fits.append(len(given[2]))
            super().__init__(*given)

    monkeypatch.setattr(posterior_sampler, "ArchitecturePosterior", Watched)
    monkeypatch.setattr(posterior_sampler, "MOST_RUNNING", 3)
    spec = spec_of(family={"mlp": WIDE["mlp"]})
    points = list(islice(quasi_random_points(spec), 12))
    learner = shown(spec, [(one, whole(one)) for one in points])
    asked: list[ArchitectureSpec] = []
    for number in range(12, 24):
        asked.append(learner.draw(number))
        learner.show(number, asked[-1], None)
    assert fits == [12, 13, 14, 15]
    assert len({one.key for one in [*points, *asked]}) == 24
    learner.show(12, asked[0], whole(asked[0]))
    learner.draw(24)
    assert fits[4:] == [13]


@pytest.mark.slow
def test_what_was_drawn_before_changes_no_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither with few running trials nor with many, of one objective or two."""
    monkeypatch.setattr(posterior_sampler, "MOST_RUNNING", 3)
    for minimise in ((), ("n_parameters",)):
        spec = spec_of(minimise=minimise)
        points = list(islice(quasi_random_points(spec), 12))
        results = [ProposalResult((score(one), *[1.0 + k] * len(minimise)))
                   for k, one in enumerate(points)]  # fmt: skip
        history: list[tuple[ArchitectureSpec, ProposalResult | None]]
        history = list(zip(points, results, strict=True))
        learner = shown(spec, history)
        for number in range(12, 20):
            one = learner.draw(number)
            assert shown(spec, history).draw(number) == one
            history.append((one, None))
            learner.show(number, one, None)


# --- claims about the forecast of what further trials would gain


def further_study(high: int = 400, **changes: object) -> StudySpec:
    family = {"mlp": {"width": {"low": 1, "high": high}}, "linear": {}}
    return plain_study(**{"family": family, **changes})


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
    spec = further_study(sampler={"name": sampler}, n_trials=60)
    found, tenfold = (forecast(spec, range(3, 23, 2), scale) for scale in (1.0, 10.0))
    assert tenfold is not None
    assert found > 0
    assert tenfold == pytest.approx(10 * found, rel=0.05)


def test_where_nothing_is_left_to_try_nothing_is_gained() -> None:
    everything = forecast(
        further_study(high=20, family={"mlp": {"width": {"low": 1, "high": 20}}}), range(1, 21)
    )
    assert everything == 0.0


def test_few_scores_and_several_objectives_have_no_forecast() -> None:
    assert forecast(further_study(), range(1, FEWEST)) is None
    assert forecast(further_study(minimise=("n_parameters",)), range(1, 1)) is None


def test_pruned_trials_are_no_scores_of_the_forecast() -> None:
    known = [
        (
            ArchitectureSpec(family="mlp", values={"width": w}),
            ProposalResult((float(w),), pruned=w > 9),
        )
        for w in range(3, 3 + 2 * FEWEST, 2)
    ]
    assert (
        gain_of_further(further_study(), Proposer(further_study()), known, prior=Prior()) is None
    )
