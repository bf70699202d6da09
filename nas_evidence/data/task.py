"""Whether the targets fit a plan: labels a categorical likelihood, real numbers a Gaussian."""

from typing import Protocol

from nas_evidence.data.arrays import Task
from nas_evidence.spec import TrainingPlan


class _HasTask(Protocol):
    @property
    def task(self) -> Task:
        """Whether the targets are labels or real numbers."""


def check_task(plan: TrainingPlan, data: _HasTask) -> None:
    """Check that the likelihood of the plan fits the targets.

    Raises:
        ValueError: if it does not; names both, and the remedy.
    """
    needed = {"labels": "categorical", "real": "gaussian"}[data.task]
    if plan.likelihood != needed:
        what = "labels" if data.task == "labels" else "real numbers"
        raise ValueError(
            f'`likelihood` must be "{needed}" if the targets are {what}, but got '
            f'"{plan.likelihood}"; set likelihood = "{needed}" in [plan]'
        )
