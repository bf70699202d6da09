"""Draws from fits that are reused are those of Optuna's own sampler, and few trials suffice."""

import random
from itertools import islice, pairwise

import optuna
import pytest
from optuna.samplers import TPESampler

from nas_evidence.proposing import parzen
from nas_evidence.proposing.proposer import MAX_BEST, MAX_LEARNT, Learner, Told
from nas_evidence.proposing.startup import quasi_random_points
from nas_evidence.spec import ArchitectureSpec, StudySpec

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")


def study(**keys: object) -> StudySpec:
    wide = {"depth": {"low": 1, "high": 5}, "width": {"low": 4, "high": 1024, "log": True}}
    shaped = {**wide, "shape": {"options": ["constant", "taper"]}}
    return StudySpec.model_validate(
        {"name": "s", "dataset": {"name": "digits"}, "family": {"mlp": shaped, "resnet": {
            "depth": {"low": 8, "high": 44, "step": 6}, "width": {"low": 4, "high": 64}}}, **keys}
    )  # fmt: skip


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


def result(number: int, point: ArchitectureSpec, n_costs: int) -> Told:
    width = float(point.values["width"])
    if number % 7 == 3:
        return Told(None, pruned=True)
    constraints = {"flops": 0.5} if number % 11 == 5 else {}
    return Told((-abs(width - 50), *([width] * n_costs)), constraints)


@pytest.mark.parametrize("minimise", [(), ("n_parameters",)])
def test_a_draw_is_that_of_a_fresh_sampler_of_optuna(
    minimise: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = study(minimise=minimise)
    reusing = learner(spec, 60)
    draws = [reusing.draw(seed) for seed in range(6)]
    original = learner(spec, 60)

    def plain(seed: int, fits: parzen.Fits) -> TPESampler:
        return TPESampler(
            n_startup_trials=1, n_ei_candidates=24, multivariate=True, group=True,
            constant_liar=True, seed=seed,
        )  # fmt: skip

    monkeypatch.setattr("nas_evidence.proposing.proposer.sampler_of", plain)
    assert draws == [original.draw(seed) for seed in range(6)]
    assert len(set(map(str, draws))) > 1


def seen(found: Learner) -> list[optuna.trial.FrozenTrial]:
    return found._past._seen()


@pytest.mark.parametrize("minimise", [(), ("n_parameters",)])
def test_of_many_trials_the_sampler_sees_the_best_and_others_of_every_age(
    minimise: tuple[str, ...],
) -> None:
    n = MAX_LEARNT + 3  # three are running
    few, many = learner(study(minimise=minimise), n), learner(study(minimise=minimise), n + 300)
    assert [trial.number for trial in seen(few)] == list(range(1, MAX_LEARNT + 1))
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
