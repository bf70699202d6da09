"""Samplers of Optuna by name: inside the space, resumable, and refused in one sentence."""

import json
import math
import random
from collections.abc import Iterator, Mapping
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from fakes import finished
from learning_curves import synthetic
from messages import refused
from proposal_spaces import SPACE, WIDE, score, shown, study
from records import plain_study
from simulated import SimulatedExecutor

from nas_evidence.api.request import Request
from nas_evidence.driver.driver import Driver
from nas_evidence.proposing import optuna_samplers
from nas_evidence.proposing.optuna_samplers import check_sampler, sampler_notices
from nas_evidence.proposing.past import MAX_BEST, MAX_LEARNT, Proposal
from nas_evidence.proposing.proposer import Learner, ProposalResult, Proposer
from nas_evidence.proposing.startup import quasi_random_points, startup_points
from nas_evidence.spec.coordinates import Space
from nas_evidence.spec.domains import Choice
from nas_evidence.spec.study import ArchitectureSpec, StudySpec
from nas_evidence.spec.toml import StudyError, dump_study, parse_study
from nas_evidence.workers.executor import Watcher

#: Each with arguments under which it has learnt something after twenty trials.
ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "CmaEsSampler": {"popsize": 5},
    "GPSampler": {"n_startup_trials": 12},
    "NSGAIISampler": {"population_size": 4},
    "NSGAIIISampler": {"population_size": 4},
    "QMCSampler": {"scramble": True},
    "RandomSampler": {},
    "TPESampler": {"n_startup_trials": 12, "multivariate": True},
}
SHAPED = WIDE | {"mlp": WIDE["mlp"] | {"shape": Choice(options=("constant", "taper"))}}
#: Draws after the 13 start-up points of this space; each of `GPSampler` takes a second.
N_DRAWN = {name: 3 if name == "GPSampler" else 16 for name in ARGUMENTS}


@pytest.fixture(params=list(ARGUMENTS))
def name(request: pytest.FixtureRequest) -> str:
    if request.param == "CmaEsSampler":
        pytest.importorskip("cmaes")
    return str(request.param)


def spec_of(name: str, arguments: Mapping[str, Any] | None = None, **keys: object) -> StudySpec:
    arguments = ARGUMENTS.get(name, {}) if arguments is None else arguments
    sampler = {"name": f"optuna:{name}", "arguments": arguments}
    given = {"sampler": sampler, "family": SHAPED, "scheduling": "batch", "batch": 4, **keys}
    return study(**given)


def result(number: int, one: ArchitectureSpec, n_costs: int = 0) -> ProposalResult:
    """Some are pruned, some fail."""
    if number % 7 == 3:
        return ProposalResult(None, pruned=True)
    if number % 11 == 5:
        return ProposalResult(None)
    return ProposalResult((score(one), *[float(one.values.get("width", 1))] * n_costs))


def batches(spec: StudySpec, until: int) -> Iterator[range]:
    return (range(n, min(n + spec.batch, until)) for n in range(0, until, spec.batch))


def searched(spec: StudySpec, until: int, resumed_at: int = 0) -> list[ArchitectureSpec]:
    """Propose in batches; after a restart the known proposals are all adopted before any result,
    as the driver does."""
    proposer, n_costs = Proposer(spec), len(spec.minimise)

    def tell(numbers: range) -> None:
        for number in reversed(numbers):
            proposer.tell(number, result(number, proposer.proposals()[number], n_costs))

    for batch in batches(spec, until):
        for number in batch:
            if number == resumed_at > 0:
                known, proposer = proposer.proposals(), Proposer(spec)
                for one in known:
                    proposer.adopt(one)
                tell(range(batch.start))
            proposer.ask()
        tell(batch)
    return proposer.proposals()


def test_every_sampler_of_optuna_has_a_case_or_a_substitute() -> None:
    assert list(optuna_samplers._offered()) == sorted(ARGUMENTS)


@pytest.mark.slow
def test_proposals_are_in_the_space_and_those_of_a_study_that_was_resumed(name: str) -> None:
    spec = spec_of(name)
    n_start = len(startup_points(spec))
    n = n_start + N_DRAWN[name]
    proposals, space = searched(spec, n), Space(spec.family)
    assert all(one in space for one in proposals)
    assert len({one.key for one in proposals}) == len(proposals)
    for number in {n_start + 1, n - 1}:
        assert searched(spec, n, resumed_at=number) == proposals
    reseeded = searched(spec.model_copy(update={"seed": 1}), n_start + 2)
    assert reseeded[n_start:] != proposals[n_start : n_start + 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [one for one in ARGUMENTS if one not in ("QMCSampler", "RandomSampler")], indirect=True
)
def test_draws_follow_the_values(name: str) -> None:
    spec, means = spec_of(name, family={"mlp": WIDE["mlp"]}), []
    points = list(islice(quasi_random_points(spec), 40))
    for sign in (1.0, -1.0):
        learner = shown(spec, [(p, ProposalResult((sign * score(p),))) for p in points])
        drawn = [learner.draw(seed) for seed in range(N_DRAWN[name])]
        means.append(sum(map(score, drawn)) / len(drawn))
    assert means[0] > means[1] + 0.5  # nats of the landscape


@pytest.mark.slow
@pytest.mark.parametrize("name", ["NSGAIISampler", "NSGAIIISampler", "QMCSampler", "TPESampler"])
def test_several_objectives_are_searched_and_resumed(name: str) -> None:
    spec = spec_of(name, minimise=["n_parameters"])
    n = len(startup_points(spec)) + N_DRAWN[name]
    assert searched(spec, n, resumed_at=n - 3) == searched(spec, n)


@pytest.mark.slow
def test_with_a_cost_to_minimise_nsga_draws_cheaper_architectures() -> None:
    spec = spec_of("NSGAIISampler", family={"mlp": WIDE["mlp"]}, minimise=["n_parameters"])
    points = list(islice(quasi_random_points(spec), 40))
    widths = []
    for power in (1, -1):
        costs = [float(p.values["width"]) ** power for p in points]
        learner = shown(
            spec, [(p, ProposalResult((0.0, c))) for p, c in zip(points, costs, strict=True)]
        )
        drawn = [float(learner.draw(seed).values["width"]) for seed in range(16)]
        widths.append(sum(map(math.log, drawn)) / len(drawn))
    assert widths[0] < widths[1] - 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["NSGAIISampler", "TPESampler"])
def test_one_worker_and_three_and_a_study_that_goes_on_propose_the_same(
    name: str, tmp_path: Path
) -> None:
    """Of a study that goes on the driver adopts all proposals before it tells any result."""
    cnn = {"cnn": WIDE["cnn"]}
    spec = spec_of(name, {"NSGAIISampler": {"population_size": 4}}.get(name, {}),
                   family=cnn, n_trials=20, finalists=0, plan={"epochs": 2})  # fmt: skip

    def run(folder: Path, workers: int, n_trials: int = 20) -> list[ArchitectureSpec]:
        changed = spec.model_copy(update={"n_trials": n_trials})
        executor = SimulatedExecutor(synthetic, workers=workers, seed=workers)
        Driver(changed, folder, executor, Watcher()).run()
        return [row.architecture for _, row in sorted(finished(folder).items())]

    calm = run(tmp_path / "one", 1)
    assert run(tmp_path / "three", 3) == calm
    for n_trials in (10, 13):
        run(tmp_path / "again", 2, n_trials)
    assert run(tmp_path / "again", 2) == calm


@pytest.mark.slow
def test_a_sequence_goes_on_where_it_was() -> None:
    spec = spec_of("QMCSampler", family={"mlp": WIDE["mlp"]})
    depths = [one.values["depth"] for one in searched(spec, 6 + 16)[6:]]
    assert {depths.count(depth) for depth in set(depths)} <= {2, 3, 4, 5}  # 3.2 each
    assert len(set(depths)) == 5


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments", "code", "words"),
    [
        ("GPSamplr", {}, "unknown-sampler-of-optuna", "did you mean 'optuna:GPSampler'"),
        ("GridSampler", {}, "unknown-sampler-of-optuna", 'give name = "grid"'),
        ("BaseSampler", {}, "unknown-sampler-of-optuna", "must be one of optuna:CmaEsSampler"),
        ("NSGAIISampler", {"population_sise": 9}, "unknown-sampler-argument", "population_size"),
        ("RandomSampler", {"x": 9}, "unknown-sampler-argument", "known: none"),
        ("NSGAIISampler", {"crossover": "u"}, "sampler-argument-object", "object of Python"),
        ("NSGAIISampler", {"seed": 3}, "sampler-seed", "`seed` at the head"),
        ("NSGAIISampler", {"population_size": "9"}, "sampler-argument-type", "an integer"),
        ("NSGAIISampler", {"population_size": True}, "sampler-argument-type", "an integer"),
        ("NSGAIISampler", {"mutation_prob": [1]}, "sampler-argument-type", "a number"),
        ("NSGAIISampler", {"population_size": 1}, "sampler-refuses-arguments", "greater"),
        ("TPESampler", {"prior_weight": 1.0}, "sampler-refuses-arguments", "deprecated"),
    ],
)  # fmt: skip
def test_what_optuna_cannot_do_is_refused_before_anything_runs(
    name: str, arguments: dict[str, Any], code: str, words: str
) -> None:
    spec = spec_of(name, arguments)
    with refused(code, words):
        Request(spec)
    with refused(code, words):
        Proposer(spec)


def test_a_missing_package_and_a_second_objective_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(optuna_samplers, "find_spec", lambda name: None)
    with refused("sampler-needs-package", "pip install cmaes"):
        check_sampler(spec_of("CmaEsSampler"))
    monkeypatch.setattr(optuna_samplers, "find_spec", lambda name: name)
    with refused("sampler-of-one-objective", "optuna:NSGAIISampler"):
        check_sampler(spec_of("CmaEsSampler", minimise=["flops"]))


FILE = """\
name = "s"
[dataset]
name = "digits"
[family.mlp]
width = {{low = 4, high = 64}}
[sampler]
{sampler}
"""


def test_a_study_file_keeps_the_arguments_and_reads_them_back() -> None:
    text = FILE.format(sampler='name = "optuna:GPSampler"\narguments = {n_startup_trials = 5}')
    spec = parse_study(text, "s.toml", ["sampler.arguments.deterministic_objective=true"])
    assert spec.sampler.arguments == {"n_startup_trials": 5, "deterministic_objective": True}
    assert parse_study(dump_study(spec), "s.toml") == spec


@pytest.mark.parametrize(
    ("sampler", "code", "words"),
    [
        ('name = "posterier"', "unknown-sampler", "did you mean 'posterior'"),
        ('name = "optuna:"', "unknown-sampler", '"optuna:NAME"'),
        ("arguments = {x = 1}", "sampler-without-arguments", "left out"),
        ("arguments = 3", "wrong-type", "must be a table"),
    ],
)
def test_a_study_file_with_another_sampler_is_refused_with_its_place(
    sampler: str, code: str, words: str
) -> None:
    with pytest.raises(StudyError, match=r"s\.toml:[67]: ") as caught:
        parse_study(FILE.format(sampler=sampler), "s.toml")
    assert caught.value.codes == (code,)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "family", "left"),
    [
        ("GPSampler", SHAPED, "mlp.shape"),
        ("CmaEsSampler", SHAPED, "family, mlp.shape"),
        ("NSGAIISampler", SPACE, ""),
        ("TPESampler", SHAPED, ""),
    ],
)
def test_what_a_sampler_leaves_to_chance_is_said(
    name: str, family: dict[str, object], left: str
) -> None:
    found = sampler_notices(spec_of(name, family=family))
    assert [text.partition(" draws ")[2].partition(" at random")[0] for text in found] == (
        [left] if left else []
    )


# --- TPE proposes the same architectures as it did, and few trials suffice for it to learn from


GOLDEN = Path(__file__).with_name("proposals.json")
WIDTH = {"low": 4, "high": 1024, "log": True}
SHAPE = {"options": ["constant", "taper"]}
TPE_SPACE = {
    "mlp": {"depth": {"low": 1, "high": 5}, "width": WIDTH, "shape": SHAPE},
    "cnn": {"depth": {"low": 1, "high": 5}, "width": {"low": 1, "high": 256, "log": True}},
    "resnet": {"depth": {"low": 8, "high": 44, "step": 6}, "width": {"low": 4, "high": 64}},
    "linear": {},
}
CHOICES = {
    "mlp": {
        "shape": SHAPE,
        "depth": {"options": [1, 2, 4]},
        "width": {"low": 4, "high": 512, "log": True},
    },
    "linear": {},
}
CASES: dict[str, dict[str, object]] = {
    "wide": {"family": TPE_SPACE},
    "costs": {"family": TPE_SPACE, "minimise": ["n_parameters"], "seed": 1},
    "choices": {"family": CHOICES, "seed": 5},
}


def outcome(number: int, architecture: ArchitectureSpec, n_costs: int) -> ProposalResult:
    """Some are pruned, some fail, some exceed a limit."""
    values = architecture.values
    width, depth = float(values.get("width", 1)), float(values.get("depth", 1))
    best = {"mlp": -1.0, "cnn": 0.0, "resnet": -1.5, "linear": -2.0}[architecture.family]
    if number % 7 == 3:
        return ProposalResult(None, pruned=True)
    if number % 13 == 5:
        return ProposalResult(None)
    constraints = {"flops": math.log(width / 60)} if number % 5 == 2 else {}
    value = best - abs(math.log(width / 40)) - abs(depth - 3) / 4
    return ProposalResult((value, *[width * depth] * n_costs), constraints)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_proposals_are_those_of_the_first_release(name: str) -> None:
    """Four are always under way, and told in a mixed order. Written by the sampler of 0.1, which
    had fits of its own: a plain `TPESampler` on a plain study proposes the same."""
    spec = tpe_study(**CASES[name])
    proposer, wanted = Proposer(spec), json.loads(GOLDEN.read_text())[name]
    waiting: list[int] = []
    for number, architecture in enumerate(wanted):
        assert str(proposer.ask()) == architecture
        waiting.append(number)
        if len(waiting) == 4:
            if number % 3 == 0:
                waiting.append(waiting.pop(0))
            told = waiting.pop(0)
            point = proposer.proposals()[told]
            proposer.tell(told, outcome(told, point, len(spec.minimise)))


def tpe_study(**keys: object) -> StudySpec:
    few = {family: TPE_SPACE[family] for family in ("mlp", "resnet")}
    given = {"sampler": {"name": "tpe"}, "objective": "kfac_ggn", "family": few}
    return plain_study(**(given | keys))


def learner(spec: StudySpec, n: int, *, order: int | None = None) -> Learner:
    """One that has seen n finished trials, some pruned or infeasible, and three running ones."""
    numbered = list(enumerate(islice(quasi_random_points(spec), n)))
    found = Learner(spec)
    for number, point in numbered[-3:]:
        found.show(number, point, None)
    rest = numbered[:-3]
    if order is not None:
        random.Random(order).shuffle(rest)
    for number, point in rest:
        found.show(number, point, tpe_result(number, point, len(spec.minimise)))
    return found


def tpe_result(number: int, point: ArchitectureSpec, n_costs: int) -> ProposalResult:
    width = float(point.values["width"])
    if number % 7 == 3:
        return ProposalResult(None, pruned=True)
    constraints = {"flops": 0.5} if number % 11 == 5 else {}
    return ProposalResult((-abs(width - 50), *([width] * n_costs)), constraints)


def seen(found: Learner) -> list[Proposal]:
    return [trial for trial in found._past.trials() if trial.state != "RUNNING"]


@pytest.mark.parametrize("minimise", [(), ("n_parameters",)])
def test_of_many_trials_the_sampler_sees_the_best_and_others_of_every_age(
    minimise: tuple[str, ...],
) -> None:
    n = MAX_LEARNT + 3  # three are running
    few, many = (
        learner(tpe_study(minimise=minimise), n),
        learner(tpe_study(minimise=minimise), n + 300),
    )
    assert [trial.number for trial in seen(few)] == list(range(MAX_LEARNT))
    numbers = [trial.number for trial in seen(many)]
    assert len(numbers) == len(set(numbers)) == MAX_LEARNT
    assert numbers == sorted(numbers)
    values = {
        trial.number: trial.values[0]
        for trial in many._past._finished
        if trial.values is not None and not trial.constraints
    }
    if not minimise:
        assert set(sorted(values, key=lambda n: (-values[n], n))[:MAX_BEST]) <= set(numbers)
    assert max(b - a for a, b in pairwise(numbers)) <= 4  # 556 in 256
    shuffled = learner(tpe_study(minimise=minimise), n + 300, order=5)
    assert [trial.number for trial in seen(shuffled)] == numbers
