"""One trial alone, without a service: a small MLP on digits, run whole or parked on the way."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from nas_evidence.data import load
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.scores.protocol import Context, evaluate, scorers_of
from nas_evidence.spec.record import Evaluation, SliceReport, TrialRecord, TrialStatus
from nas_evidence.spec.registry import declared
from nas_evidence.spec.schedule import interval, is_due
from nas_evidence.spec.study import ArchitectureSpec, Assignment, DatasetSpec, TrainingPlan
from nas_evidence.testing.executor_contract import run_alone as run
from nas_evidence.training.loop import Training
from nas_evidence.training.online import update_and_follow
from nas_evidence.workers.trial import Trial


def mlp_assignment(
    *estimators: str, trial_id: int = 0, replicate: int = 0, seed: int = 5, width: int = 6,
    **plan: object,
) -> Assignment:  # fmt: skip
    return Assignment(
        trial_id=trial_id, attempt=1, replicate=replicate, seed=seed, estimators=estimators,
        architecture=ArchitectureSpec(family="mlp", values={"depth": 1, "width": width}),
        dataset=DatasetSpec(name="digits"),
        plan={"batch_size": 16, "settle": 0, "online": {"every": 2}, **plan},
    )  # fmt: skip


def linear_assignment() -> Assignment:
    return Assignment(
        trial_id=0, attempt=1, replicate=2, architecture=ArchitectureSpec(family="linear"),
        dataset=DatasetSpec(name="digits"), plan=TrainingPlan(), estimators=(), seed=0,
    )  # fmt: skip


def evaluated(state: Training, data: TensorData, given: Assignment) -> list[Evaluation]:
    """Evaluate a training outside a trial; all that was found is kept in `state.evaluations`."""
    due = is_due(state.epoch, interval(given.plan), given.plan.online.burn_in)
    context = Context(state, data, given)
    follow = any(declared(name).is_laplace for name in given.estimators)
    passes = update_and_follow(state, data, given, due=due, follow=follow)
    last = state.epoch == given.plan.epochs
    found = evaluate(context, scorers_of(context).values(), passes, last=last)
    vars(state).setdefault("evaluations", []).extend(found)
    return found


def ended(trial: Trial) -> TrialRecord:
    while trial.status is TrialStatus.RUNNING:
        trial.advance(trial.assignment.plan.epochs)
    return trial.finish()


def parked_and_resumed(
    assignment: Assignment, data: TensorData, folder: Path, *, slices: int
) -> tuple[SliceReport, TrialRecord]:
    """The last report of the first attempt, and what the second one ends with."""
    first = Trial.start(assignment, data, folder / "attempt-1")
    report = [first.advance(2) for _ in range(slices)][-1]
    again = assignment.model_copy(update={"attempt": 2})
    resume_from = folder / "attempt-1"
    return report, ended(Trial.start(again, data, folder / "attempt-2", resume_from=resume_from))


def assert_parking_changes_nothing(
    names: Iterable[str], assignment: Assignment, data: TensorData, folder: Path, *, slices: int
) -> SliceReport:
    """Compare with an undisturbed trial; return the last report of the first attempt."""
    undisturbed = run(assignment, data, folder / "undisturbed")
    report, resumed = parked_and_resumed(assignment, data, folder / "parked", slices=slices)
    for name in names:
        records = (undisturbed, resumed)
        values = [found.value for r in records if (found := r.final_estimate(name))]
        assert len(values) == 2
        assert values[0] == values[1]
    return report


def of_three_classes(max_train: int) -> TensorData:
    """Return some digits with their labels modulo 3, and 20 test images."""
    tensors = to_tensors(
        load(DatasetSpec(name="digits", max_train=max_train, max_test=20), seed=0), "cpu"
    )
    few = tensors.y_train % 3
    return replace(tensors, y_train=few, y_test=tensors.y_test % 3, n_outputs=3)
