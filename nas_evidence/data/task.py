"""Check that the likelihood suits the targets, and the augmentation the inputs."""

from typing import Protocol

from nas_evidence.data.arrays import Task
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.study import TrainingPlan


class _HasTask(Protocol):
    @property
    def task(self) -> Task:
        """Whether the targets are labels or real numbers."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""


def check_task(plan: TrainingPlan, data: _HasTask) -> None:
    """Check that the likelihood of the plan fits the targets, and its augmentation the inputs.

    Raises:
        ValueError: if not; names both, and the remedy.
    """
    needed = {"labels": "categorical", "real": "gaussian"}[data.task]
    if (plan.likelihood == "categorical") != (data.task == "labels"):
        what = "labels" if data.task == "labels" else "real numbers"
        raise UserError(
            f'`likelihood` must be "{needed}" if the targets are {what}, but got '
            f'"{plan.likelihood}"; set likelihood = "{needed}" in [plan]'
        ).with_code("likelihood-of-targets")
    if plan.augment and len(data.input_shape) != 3:
        raise UserError(
            f"`augment` needs images, but an input has the shape {list(data.input_shape)}; remove "
            "`augment` from [plan]"
        ).with_code("augment-without-images")
