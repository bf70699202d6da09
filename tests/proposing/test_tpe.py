"""TPE proposes the same architectures as it did, and few trials suffice for it to learn from."""

import json
import math
import random
from itertools import islice, pairwise
from pathlib import Path

import pytest

from nas_evidence.proposing.past import MAX_BEST, MAX_LEARNT, Proposal
from nas_evidence.proposing.proposer import Learner, ProposalResult, Proposer
from nas_evidence.proposing.startup import quasi_random_points
from nas_evidence.spec.study import ArchitectureSpec, StudySpec

GOLDEN = Path(__file__).with_name("proposals.json")
WIDTH = {"low": 4, "high": 1024, "log": True}
SHAPE = {"options": ["constant", "taper"]}
WIDE = {
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
    "wide": {"family": WIDE},
    "costs": {"family": WIDE, "minimise": ["n_parameters"], "seed": 1},
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
    spec = study(**CASES[name])
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


def study(**keys: object) -> StudySpec:
    few = {family: WIDE[family] for family in ("mlp", "resnet")}
    return StudySpec.model_validate(
        {
            "name": "s",
            "dataset": {"name": "digits"},
            "sampler": {"name": "tpe"},
            "objective": "kfac_ggn",
            "family": few,
            **keys,
        }
    )


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
        found.show(number, point, result(number, point, len(spec.minimise)))
    return found


def result(number: int, point: ArchitectureSpec, n_costs: int) -> ProposalResult:
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
    few, many = learner(study(minimise=minimise), n), learner(study(minimise=minimise), n + 300)
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
    shuffled = learner(study(minimise=minimise), n + 300, order=5)
    assert [trial.number for trial in seen(shuffled)] == numbers
