"""When a training stops to update its hyperparameters or to evaluate: one list, for all who ask.

    updates      every F epochs after the first B; none of "never"
    evaluations  as often or every `evaluate_every` epochs, after the first B; and after the last
    a slice      from one stop to the next: each ends with a report
    rungs        evaluations before the last epoch, where trials are compared

After the last stop the network settles, in rounds of F epochs' work.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

from nas_evidence.plumbing.user_error import Mistake
from nas_evidence.spec.registry import declared
from nas_evidence.spec.study import StudySpec, TrainingPlan


@dataclass(frozen=True)
class Stop:
    """Where a training stops.

    epoch     1-based, after which it stops
    update    the hyperparameters are updated
    evaluate  evidence is stored, at the hyperparameters after the update
    last      the epochs are over: the network settles, and is then evaluated
    """

    epoch: int
    update: bool
    evaluate: bool
    last: bool


def _next_due(after: int, every: int, burn_in: int) -> int:
    """Return the first epoch after another at which what is done every so many epochs is done."""
    return every * (max(after, burn_in) // every + 1)


def updates_after(plan: TrainingPlan, epoch: int) -> bool:
    """Return whether the hyperparameters are updated after a 1-based epoch.

    `stops` lists the same epochs up to the last one; a loop of a user's own has no last one.
    """
    if plan.online.every == "never":
        return False
    return _next_due(epoch - 1, interval(plan), plan.online.burn_in) == epoch


def interval(plan: TrainingPlan) -> int:
    """Return F: the epochs of a round of settling, and the number that "auto" stands for.

    Which epochs have an update says `updates_after`.
    """
    if isinstance(plan.online.every, int):
        return plan.online.every
    epochs = plan.epochs - plan.online.burn_in
    return max(1, min(max(5, epochs // 8), epochs // 6))


def stops(plan: TrainingPlan) -> tuple[Stop, ...]:
    """Return where a training stops, in order; the last stop is after the last epoch.

    >>> plan = TrainingPlan.model_validate({"epochs": 8, "online": {"every": 3}})
    >>> [(one.epoch, one.update, one.evaluate) for one in stops(plan)]
    [(3, True, True), (6, True, True), (8, False, True)]
    """
    every = interval(plan)
    evaluate_every = every if plan.evaluate_every == "update" else plan.evaluate_every
    update_every = None if plan.online.every == "never" else every
    return _stops(plan.epochs, update_every, evaluate_every, plan.online.burn_in)


@lru_cache
def _stops(
    epochs: int, update_every: int | None, evaluate_every: int, burn_in: int
) -> tuple[Stop, ...]:
    def due(every: int | None) -> set[int]:
        found, epoch = set[int](), 0
        while every is not None and (epoch := _next_due(epoch, every, burn_in)) <= epochs:
            found.add(epoch)
        return found

    updates, evaluations = due(update_every), due(evaluate_every) | {epochs}
    return tuple(
        Stop(epoch, epoch in updates, epoch in evaluations, last=epoch == epochs)
        for epoch in sorted(updates | evaluations)
    )


def next_stop(plan: TrainingPlan, epoch: int) -> Stop:
    """Return the first stop after an epoch; from the last epoch on the last one.

    After the last epoch the network settles: reports of its rounds repeat that epoch.
    """
    every = stops(plan)
    return next((stop for stop in every if stop.epoch > epoch), every[-1])


def learns(plan: TrainingPlan) -> bool:
    """Return whether the hyperparameters are updated at all."""
    return _first_update(plan) <= plan.epochs


def _first_update(plan: TrainingPlan) -> float:
    never = plan.online.every == "never"
    return math.inf if never else _next_due(0, interval(plan), plan.online.burn_in)


def rungs(study: StudySpec) -> tuple[int, ...]:
    """Return the epochs at which trials are compared: evaluations before the last epoch.

    The first evaluation from `first_epoch` on, from `first_epoch` times `reduction` on, ...; and 0
    for a score that is known before training. Rung 0 compares the score of the first fold; only
    survivors train the others.
    """
    pruning, plan = study.pruning, study.plan
    if pruning.rule == "none":
        return ()
    found = {0} if declared(study.pruning_score).taken == "before" else set()
    evaluations = [stop.epoch for stop in stops(plan) if stop.evaluate]
    wanted = pruning.first_epoch
    while wanted < plan.epochs:
        found.add(min(epoch for epoch in evaluations if epoch >= wanted))
        wanted *= pruning.reduction
    return tuple(sorted(found - {plan.epochs}))


def never_reached(plan: TrainingPlan, pruning: str = "none") -> dict[str, Mistake]:
    """Return the keys whose epochs a plan never reaches, each with what to change.

    Args:
        plan: with a number of epochs.
        pruning: the rule by which trials are compared at evaluations before the last epoch.
    """
    found, online = dict[str, Mistake](), plan.online
    last = max(1, plan.epochs - 1)  # one epoch has no better place for an update
    if online.every != "never" and _first_update(plan) > last:
        late = "burn_in" if online.burn_in >= plan.epochs - 1 > 0 else "every"
        found[f"online.{late}"] = Mistake(
            "update-never-reached",
            f"[plan.online]: `{late}` must leave epochs to train on after an update, but got "
            f"{getattr(online, late)} with epochs = {plan.epochs}: prior and noise would "
            'never be learned; give burn_in = 0 and every = "auto", or every = "never" to '
            "keep their first values",
        )
    every, latest = plan.evaluate_every, plan.epochs - (pruning != "none")
    if every != "update" and _next_due(0, every, online.burn_in) > latest:
        rule = f' and rule = "{pruning}" in [pruning]' if pruning != "none" else ""
        found["evaluate_every"] = Mistake(
            "evaluation-never-reached",
            f"[plan]: `evaluate_every` must have a multiple from {online.burn_in + 1} to {latest} "
            f"with burn_in = {online.burn_in}, epochs = {plan.epochs}{rule}, but got {every}; "
            "give a smaller number, or leave it out to evaluate after each update",
        )
    late_ones = [m for m in plan.milestones if isinstance(m, int) and m >= plan.epochs]
    if plan.schedule == "steps" and late_ones:
        found["milestones"] = Mistake(
            "milestone-never-reached",
            f"[plan]: `milestones` must be below epochs = {plan.epochs}, but got "
            f"{list(plan.milestones)}; give fractions of the epochs, such as [0.5, 0.75]",
        )
    return found
