"""Which folds of the data a score predicts, and how many trainings that takes."""

from collections.abc import Collection, Iterable, Mapping

from nas_evidence.spec.record import WHOLE_IDS
from nas_evidence.spec.registry import declared
from nas_evidence.spec.study import Assignment, TrainingPlan

#: Folds of each division of the data that are predicted, each after a training of its own; with
#: `plan.folds = 1` `two_fold` predicts one.
PREDICTED_FOLDS: Mapping[str, int] = {
    "two_fold": 2, "five_fold": 5, "ten_fold": 10, "heldout_10": 1,
}  # fmt: skip
#: Part of the data that is trained on for a fold of each.
TRAINED_ON: Mapping[str, float] = {
    "two_fold": 0.5, "five_fold": 0.8, "ten_fold": 0.9, "heldout_10": 0.9,
}  # fmt: skip


def division_of(score: str, plan: TrainingPlan, n_data: int) -> str:
    """Return the division of the data that a score trains networks on, "" if it has none.

    >>> [division_of("conditional_evidence", TrainingPlan(), n) for n in (300, 3000)]
    ['five_fold', 'two_fold']
    """
    division = declared(score).division
    if division != "plan":
        return division
    return {5: "five_fold", 10: "ten_fold"}.get(plan.n_folds(n_data), "two_fold")


def predicted_folds(
    plan: TrainingPlan, scores: Iterable[str], n_data: int, *, in_time: bool = False
) -> dict[str, int]:
    """Return the divisions that some scores need, with the folds predicted of each.

    The first of the blocks in time is only learned from.
    """
    known = {name: max(1, n - in_time) for name, n in PREDICTED_FOLDS.items()}
    if plan.folds == 1:
        known["two_fold"] = 1
    asked = {division_of(score, plan, n_data) for score in scores}
    return {name: count for name, count in known.items() if name in asked}


def parts_trained_on(plan: TrainingPlan, scores: Iterable[str], n_data: int) -> list[float]:
    """Return the part of the data that each fold's network learns from, the largest first.

    >>> parts_trained_on(TrainingPlan(), ["conditional_evidence"], 3000)
    [0.5, 0.5]
    """
    divisions = predicted_folds(plan, scores, n_data)
    parts = [TRAINED_ON[name] for name, count in divisions.items() for _ in range(count)]
    return sorted(parts, reverse=True)


def fewest_parts(plan: TrainingPlan, scores: Iterable[str], n_data: int) -> int:
    """Return the most parts that a score divides the data into, 1 without such a score.

    >>> fewest_parts(TrainingPlan(), ["kfac_ggn", "conditional_evidence"], 300)
    5
    """
    divisions = predicted_folds(plan, scores, n_data)
    folds = [max(2, PREDICTED_FOLDS[name]) for name in divisions]
    return max([1, *folds])


def reported_division(plan: TrainingPlan, scores: Collection[str], n_data: int) -> str:
    """Return the division whose networks stand for a trial that trains its folds alone."""
    kept, known = kept_division(plan, scores, n_data), predicted_folds(plan, scores, n_data)
    return kept if kept in known else next(iter(known))


def whole(
    assignment: Assignment, spread_factor: float | None = None, largest_loss: float | None = None
) -> Assignment:
    """Return what trains the network of all rows of a trial that trains its folds alone.

    By the same seed, so that it has the bits that it has in a trial that trains both. A trial of
    its own: it has the scores of the network alone.

    Args:
        assignment: of the trial.
        spread_factor: on the spread of predictions, which its folds have found.
        largest_loss: the largest training loss per datum that is no divergence.
    """
    update = {
        "trial_id": WHOLE_IDS + assignment.trial_id,
        "plan": assignment.plan.model_copy(update={"whole": True}),
        "estimators": tuple(e for e in assignment.estimators if not declared(e).division),
        "spread_factor": spread_factor,
        "largest_loss": largest_loss,
    }
    return assignment.model_copy(update=update)


def kept_division(plan: TrainingPlan, scores: Collection[str], n_data: int) -> str:
    """Return the division whose predictions a trial keeps beside its weights."""
    of_plan = next((score for score in ("conditional_evidence", "elpd") if score in scores), None)
    return division_of(of_plan, plan, n_data) if of_plan else "two_fold"
