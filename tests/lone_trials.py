"""One trial alone, without a service: a small MLP on digits, run whole or parked on the way."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch
from records import asked, mlp
from torch import Tensor

from nas_evidence.data import load
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.scores.protocol import Context, evaluate, scorers_of
from nas_evidence.spec.record import Evaluation, SliceReport, TrialRecord, TrialStatus
from nas_evidence.spec.registry import declared
from nas_evidence.spec.schedule import updates_after
from nas_evidence.spec.study import Assignment, DatasetSpec
from nas_evidence.testing.executor_contract import run_alone as run
from nas_evidence.training.life import advance
from nas_evidence.training.network import Network
from nas_evidence.training.online import update_and_follow
from nas_evidence.training.parts import new_network, stop_of_part
from nas_evidence.workers.trial import Trial


def mlp_assignment(
    *estimators: str, trial_id: int = 0, replicate: int = 0, seed: int = 5, width: int = 6,
    **plan: object,
) -> Assignment:  # fmt: skip
    given = {"batch_size": 16, "settle": 0, "online": {"every": 2}} | plan
    facts = {"trial_id": trial_id, "replicate": replicate, "seed": seed}
    return asked(mlp(depth=1, width=width), estimators, **facts, **given)


def linear_assignment() -> Assignment:
    return asked(replicate=2)


def evaluated(state: Network, given: Assignment) -> list[Evaluation]:
    """Evaluate a network outside a trial; all that was found is kept in `state.evaluations`."""
    due = updates_after(given.plan, state.epoch)
    context = Context(state, given)
    follow = any(declared(name).is_laplace for name in given.estimators)
    passes = update_and_follow(state, due=due, follow=follow)
    last = state.epoch == given.plan.epochs
    found = evaluate(context, scorers_of(context).values(), passes, last=last)
    vars(state).setdefault("evaluations", []).extend(found)
    return found


def ended(trial: Trial) -> TrialRecord:
    while trial.status is TrialStatus.RUNNING:
        trial.advance(trial.assignment.plan.epochs)
    return trial.finish()


def trained_part(part: tuple[TensorData, Assignment]) -> Network:
    """A network of some rows at the end of its training, alone."""
    network = new_network(*part)
    while not network.is_over:
        advance([network], stop_of_part(network))
    return network


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


def tensors_of(
    x: Tensor, y: Tensor, n_train: int | None = None, *, n_outputs: int | None = None
) -> TensorData:
    """Rows of labels, or of real targets as they are; the first `n_train` or all to train on."""
    n, real = len(x) if n_train is None else n_train, y.is_floating_point()
    width = n_outputs or (y.shape[1] if real else int(y.max()) + 1)
    one, task = torch.ones(width, dtype=torch.float64), "real" if real else "labels"
    shape = tuple(x.shape[1:])
    return TensorData(x[:n], y[:n], x[n:], y[n:], task, width, shape, 0 * one, one)
