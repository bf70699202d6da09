"""Proposals: stratified start, seeded by counter, learning from what was told, resumable."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import pytest
from messages import refused
from proposal_spaces import SPACE, WIDE, score, shown, study, whole

from nas_evidence.proposing.proposer import Learner, ProposalResult, Proposer
from nas_evidence.proposing.startup import (
    grid_points,
    quasi_random_points,
    startup_points,
)
from nas_evidence.proposing.warm_start import (
    WARM_START,
    Found,
    kept_warm_start,
    warm_trials,
)
from nas_evidence.spec.coordinates import is_ordered, quantile
from nas_evidence.spec.domains import Choice, Domain, FloatRange, IntRange, ParameterValue
from nas_evidence.spec.record import Evaluation, EvidenceEstimate, TrialRecord, TrialStatus
from nas_evidence.spec.study import ArchitectureSpec, DatasetSpec, StudySpec
from nas_evidence.spec.toml import dump_study
from nas_evidence.storage.tables import write_record

#: Samplers that learn from results.
LEARNERS = ["tpe", "posterior"]
SMALL = {"cnn": {"depth": IntRange(low=1, high=3), "width": Choice(options=(4, 8))}}


def ask_all(
    spec: StudySpec,
    count: int,
    told: Callable[[ArchitectureSpec], ProposalResult] = whole,
    *,
    before: Sequence[ArchitectureSpec] = (),
    warm: Sequence[Found] = (),
) -> list[ArchitectureSpec]:
    """Ask and tell in turns, after the proposals of an earlier process."""
    proposer = Proposer(spec, warm)
    for number, architecture in enumerate(before):
        proposer.adopt(architecture)
        proposer.tell(number, told(architecture))
    for number in range(len(before), len(before) + count):
        proposer.tell(number, told(proposer.ask()))
    return proposer.proposals()[len(before) :]


# --- the start --------------------------------------------------------------------------------


def test_start_up_gives_each_family_its_share_and_the_baseline_one_trial() -> None:
    points = startup_points(study())
    assert Counter(p.family for p in points) == {"linear": 1, "mlp": 6, "cnn": 6, "resnet": 6}
    assert points[0].family == "linear"
    assert len({p.key for p in points}) == len(points)


def test_start_up_points_lie_in_the_space_and_carry_every_parameter() -> None:
    for point in startup_points(study()):
        for key, domain in SPACE[point.family].items():
            assert domain.contains(point.values[key])
    assert all("shape" in p.values for p in startup_points(study()) if p.family == "mlp")


def test_what_is_known_takes_the_place_of_start_up_points() -> None:
    known = startup_points(study(seed=7))
    assert startup_points(study(), known) == []
    some = [point for point in known if point.family == "cnn"][:2]
    left = Counter(point.family for point in startup_points(study(), some))
    assert left == {"linear": 1, "mlp": 6, "cnn": 4, "resnet": 6}


def test_fixed_points_come_first_with_the_family_values_for_what_is_not_searched() -> None:
    given = ({"family": "mlp", "depth": 3, "width": 100}, {"family": "linear"})
    points = startup_points(study(first=given))
    assert str(points[0]) == "mlp(depth=3, width=100, shape=constant)"
    assert points[1].family == "linear"
    assert len({p.key for p in points}) == len(points)


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ({"depth": 2}, "`family` must be one of mlp, cnn, resnet, linear, but got None"),
        ({"family": "vit"}, "`family` must be one of"),
        ({"family": "mlp", "width": 8}, "`depth` of family 'mlp' is searched and needs a value"),
        ({"family": "mlp", "depth": 9, "width": 8}, "must be in 1.."),
        ({"family": "mlp", "depth": 2, "width": 8.0}, "must be in 4.."),
        ({"family": "mlp", "depth": 2, "width": 8, "shape": "taper"}, "stays 'constant'"),
        ({"family": "cnn", "depth": 2, "width": 8, "size": 3}, "does not exist"),
    ],
)
def test_a_fixed_point_outside_the_space_is_refused(
    point: dict[str, object], message: str
) -> None:
    spec = study(first=({"family": "linear"}, point))
    with pytest.raises(ValueError, match="see entry 2 of `first`") as caught:
        Proposer(spec)
    assert message in str(caught.value)


def test_the_grid_holds_every_architecture_once_then_replicates_in_order() -> None:
    spec = study(sampler={"name": "grid"}, family=SMALL)
    points = startup_points(spec)
    assert len(points) == len({p.key for p in points}) == 6
    assert ask_all(spec, 13) == [*points, *points, points[0]]


def test_qmc_goes_through_the_families_in_turns_without_repetition() -> None:
    spec = study(sampler={"name": "qmc"}, family=WIDE)
    asked = ask_all(spec, 31)
    assert Counter(a.family for a in asked) == {"linear": 1, "mlp": 15, "cnn": 15}
    assert len({a.key for a in asked}) == 31
    assert asked[:13] == startup_points(spec)
    every = {a.key for a in grid_points(study(family=SMALL))}
    assert {a.key for a in quasi_random_points(study(family=SMALL))} == every


def test_quasi_random_points_fill_a_family_more_evenly_than_chance() -> None:
    spec = study(family={"mlp": WIDE["mlp"]})
    widths = [float(p.values["width"]) for p in islice(quasi_random_points(spec), 32)]
    octaves = Counter(int(8 * math.log(w / 3.5) / math.log(1024.5 / 3.5)) for w in widths)
    assert set(octaves) == set(range(8))
    assert all(2 <= n <= 6 for n in octaves.values())  # 4 each; a repeated point takes another


@pytest.mark.parametrize(
    "domain",
    [
        IntRange(low=1, high=5),
        IntRange(low=8, high=110, step=6),
        IntRange(low=8, high=21, step=6),
        IntRange(low=1, high=256, log=True),
        IntRange(low=3, high=3),
        IntRange(low=3, high=3, log=True),
        FloatRange(low=-1.0, high=2.5),
        FloatRange(low=1e-3, high=2.5, log=True),
        FloatRange(low=1.0, high=1.0),
        Choice(options=(8, 14, 20.5)),
    ],
)
def test_the_value_at_its_quantile_is_the_value(domain: Domain) -> None:
    assert is_ordered(domain)
    values = sorted({domain.at(unit / 1000) for unit in range(1000)})
    for value in values:
        assert domain.at(quantile(domain, value)) == pytest.approx(value, rel=1e-12)
    quantiles = [quantile(domain, value) for value in values]
    assert quantiles == sorted(quantiles)
    assert 0 <= quantiles[0] <= quantiles[-1] <= 1


@pytest.mark.parametrize("options", [("a", "b"), (8, 4), (False, True), (1, "b"), (4, 4)])
def test_options_that_do_not_grow_have_no_order(options: tuple[ParameterValue, ...]) -> None:
    assert not is_ordered(Choice(options=options))


# --- draws are a function of the study and of what was told -------------------------------------


@pytest.mark.slow
def test_the_same_seed_and_results_give_the_same_proposals() -> None:
    shaped = SPACE["mlp"] | {"shape": Choice(options=("constant", "taper"))}
    changes = {"family": SPACE | {"mlp": shaped}}
    one = ask_all(study(**changes), 23)
    two = ask_all(study(**changes), 23)
    other = ask_all(study(seed=1, **changes), 23)
    assert one == two
    assert one != other


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tpe", "posterior", "random", "qmc"])
def test_a_new_process_goes_on_as_the_old_one_would_have(name: str) -> None:
    spec = study(sampler={"name": name})
    whole = ask_all(spec, 24)
    first = ask_all(spec, 12)
    assert [*first, *ask_all(spec, 12, before=first)] == whole


@pytest.mark.parametrize("name", LEARNERS)
def test_the_order_of_telling_does_not_matter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nas_evidence.proposing.past.MAX_LEARNT", 15)
    monkeypatch.setattr("nas_evidence.proposing.past.MAX_BEST", 4)

    def after(order: Callable[[list[int]], list[int]]) -> list[str]:
        proposer = Proposer(study(sampler={"name": name}))
        for _ in range(3):
            first = len(proposer.proposals())
            for _ in range(8):
                proposer.ask()
            for number in order(list(range(first, first + 8))):
                proposer.tell(number, whole(proposer.proposals()[number]))
        return [architecture.key for architecture in proposer.proposals()]

    assert after(lambda numbers: numbers) == after(lambda numbers: numbers[::-1])


def test_a_known_architecture_is_drawn_again_until_the_space_is_used_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nas_evidence.proposing.startup.STARTUP_PER_FAMILY", 2)
    spec = study(family=SMALL)
    keys = [a.key for a in ask_all(spec, 9)]
    assert len(set(keys[:6])) == len(set(keys)) == 6


def draws(learner: Learner, count: int = 40) -> Counter[str]:
    return Counter(str(learner.draw(seed)) for seed in range(count))


@pytest.mark.long
@pytest.mark.parametrize("name", LEARNERS)
def test_draws_follow_the_values(name: str) -> None:
    spec = study(family=WIDE, sampler={"name": name})
    points = list(islice(quasi_random_points(spec), 1, 41))
    best = shown(spec, [(p, whole(p)) for p in points])
    worst = shown(spec, [(p, ProposalResult((-score(p),))) for p in points])
    mean = [sum(score(learner.draw(seed)) for seed in range(40)) / 40 for learner in (best, worst)]
    assert mean[0] > mean[1] + 1  # nats of the landscape


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize(
    "bad",
    [
        ProposalResult((9.0,), pruned=True),
        ProposalResult(None, {"n_parameters": 0.5}),
        ProposalResult((9.0,), {"n_parameters": 0.5}),
    ],
)
def test_a_pruned_or_infeasible_trial_repels(bad: ProposalResult, name: str) -> None:
    """The best third of the landscape is told as bad: draws keep away from it."""
    spec = study(family={"mlp": WIDE["mlp"]}, sampler={"name": name})
    points = list(islice(quasi_random_points(spec), 40))

    def wide(architecture: ArchitectureSpec) -> bool:
        return float(architecture.values["width"]) > 100

    learner = shown(spec, [(p, bad if wide(p) else ProposalResult((0.0,))) for p in points])
    share = sum(wide(learner.draw(seed)) for seed in range(40)) / 40
    assert share < 0.2  # 0.42 of the space
    good = shown(
        spec, [(p, ProposalResult((9.0,)) if wide(p) else ProposalResult((0.0,))) for p in points]
    )
    assert sum(wide(good.draw(seed)) for seed in range(40)) / 40 > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("last", ["proposal", "warm"])
def test_no_trial_of_the_past_is_overlooked(last: str) -> None:
    """Optuna's sampler leaves out the trial that is asked for, by its number."""
    spec = study(family={"mlp": WIDE["mlp"]})
    points = list(islice(quasi_random_points(spec), 12))

    def learner(value: float) -> Learner:
        if last == "warm":
            return Learner(spec, [(p, (score(p),)) for p in points[1:]] + [(points[0], (value,))])
        return shown(
            spec, [(points[0], ProposalResult((value,))), *((p, whole(p)) for p in points[1:])]
        )

    assert draws(learner(9.0), 20) != draws(learner(-9.0), 20)


@pytest.mark.slow
def test_a_failure_is_not_learnt_from() -> None:
    points = list(islice(quasi_random_points(study()), 1, 20))
    results = [(p, whole(p)) for p in points]
    failed = (startup_points(study(seed=3))[5], ProposalResult(None))
    assert draws(shown(study(), [*results, failed])) == draws(shown(study(), results))


@pytest.mark.slow
def test_with_a_cost_to_minimise_draws_are_cheaper() -> None:
    spec = study(family={"mlp": WIDE["mlp"]}, minimise=("n_parameters",))
    points = list(islice(quasi_random_points(spec), 40))
    cheap = shown(spec, [(p, ProposalResult((0.0, float(p.values["width"])))) for p in points])
    dear = shown(
        spec, [(p, ProposalResult((0.0, 1e4 / float(p.values["width"])))) for p in points]
    )
    means = [
        sum(math.log(float(x.draw(seed).values["width"])) for seed in range(30)) / 30
        for x in (cheap, dear)
    ]
    assert means[0] < means[1] - 1


# --- warm start ---------------------------------------------------------------------------------


def old_study(folder: Path, architectures: list[ArchitectureSpec], **changes: object) -> Path:
    """A folder with two replicates of each architecture, one nat above and below its score."""
    spec = study(replicates=2, **changes)
    folder.mkdir()
    (folder / "study.toml").write_text(dump_study(spec))
    for trial_id in range(2 * len(architectures)):
        architecture = architectures[trial_id // 2]
        value = score(architecture) + (-1) ** trial_id
        estimate = EvidenceEstimate(estimator="kfac_ggn", value=value, relation="SCORE")
        record = TrialRecord(
            trial_id=trial_id,
            attempt=1,
            replicate=trial_id % 2,
            architecture=architecture,
            status=TrialStatus.COMPLETE,
            seed=1,
            n_parameters=100,
            evaluations=(Evaluation(epoch=1, estimate=estimate),),
        )
        write_record(folder, record, spec)
    return folder


@pytest.mark.slow
def test_a_warm_start_is_history_and_not_a_proposal(tmp_path: Path) -> None:
    points = startup_points(study())
    outside = ArchitectureSpec(family="mlp", values={"depth": 4, "width": 300})
    folder = old_study(tmp_path / "old", [*points, outside])
    spec = study(warm_start=str(folder))
    warm = kept_warm_start(spec, tmp_path)
    assert [values for _, values in warm] == [pytest.approx((score(p),)) for p in points]
    assert Proposer(spec, warm).proposals() == []
    asked = ask_all(spec, 3, warm=warm)
    assert not {a.key for a in asked} & {p.key for p in points}
    assert all(a.family != "linear" for a in asked)


def test_plain_numbers_of_an_earlier_study_stay_where_it_lists_them_alone(tmp_path: Path) -> None:
    spec = study(first=({"family": "linear", "numbers": "plain"},))
    assert startup_points(spec)[0] == ArchitectureSpec(family="linear")
    space = {**spec.family, "linear": {"numbers": Choice(options=("plain",))}}
    spec = spec.model_copy(update={"first": ({"family": "linear"},), "family": space})
    assert startup_points(spec)[0].values == {"numbers": "plain"}
    folder = old_study(tmp_path / "old", [ArchitectureSpec(family="linear")])
    spec = spec.model_copy(update={"warm_start": str(folder)})
    assert [architecture.values for architecture, _ in warm_trials(spec)] == [{"numbers": "plain"}]


@pytest.mark.slow
def test_a_warm_start_outlives_its_folder_and_leads_to_the_same_draws(tmp_path: Path) -> None:
    points = startup_points(study())
    folder = old_study(tmp_path / "old", points)
    spec = study(warm_start=str(folder), minimise=("n_parameters",))

    def told(architecture: ArchitectureSpec) -> ProposalResult:
        return ProposalResult((score(architecture), 100.0))

    calm = ask_all(spec, 4, told, warm=warm_trials(spec))
    assert kept_warm_start(spec, tmp_path) == warm_trials(spec)
    folder.rename(tmp_path / "moved")
    warm = kept_warm_start(spec, tmp_path)
    first = ask_all(spec, 2, told, warm=warm)
    assert first + ask_all(spec, 2, told, before=first, warm=warm) == calm


def test_a_damaged_warm_start_is_one_sentence(tmp_path: Path) -> None:
    spec = study(warm_start=str(old_study(tmp_path / "old", startup_points(study())[:3])))
    kept_warm_start(spec, tmp_path)
    path = tmp_path / WARM_START
    path.write_text(path.read_text().replace("-1.", "-2.", 1))
    with refused("warm-start-damaged"):
        kept_warm_start(spec, tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": DatasetSpec(name="digits", max_train=99)}, "`dataset` must be the same"),
        ({"objective": "diag_ef"}, "`objective` must be the same"),
        ({"plan": {"likelihood": "gaussian"}}, "`likelihood` must be the same"),
        ({"plan": {"augment": ["RandomCrop"]}}, "`augment` must be the same"),
        ({"minimise": ("flops",)}, "no finished trial"),
        ({"family": {"mlp": {"depth": IntRange(low=5, high=5)}}}, "no finished trial"),
    ],
)
def test_a_warm_start_that_does_not_compare_is_refused(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    folder = old_study(tmp_path / "old", startup_points(study())[:2])
    with pytest.raises(ValueError, match=message):
        kept_warm_start(study(warm_start=str(folder), **changes), tmp_path)
    assert not (tmp_path / WARM_START).exists()


# --- search -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_sampler_beats_random_on_a_synthetic_objective() -> None:
    def run(name: str, seed: int) -> tuple[float, float]:
        """Return the best value found, and the mean of the last 25 of 45."""
        spec = study(family=WIDE, sampler={"name": name}, seed=seed)
        values = [score(a) for a in ask_all(spec, 45)]
        return max(values), sum(values[20:]) / 25

    runs = [(run("tpe", seed), run("random", seed)) for seed in (1, 2, 3, 4)]
    assert all(tpe[1] > chance[1] for tpe, chance in runs)
    assert sum(tpe[0] > chance[0] for tpe, chance in runs) >= 3
