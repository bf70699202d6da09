"""Trainings on parts of the data, side by side: who trains how far when one of them diverges."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from nas_evidence.spec.study import TrainingPlan
from nas_evidence.training import parts
from nas_evidence.training.loop import DivergedError


def test_every_training_reaches_the_stop_and_none_goes_beyond_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Groups of two end with the epoch in which one diverges, each at its own."""
    plan = TrainingPlan(epochs=40, online={"every": 8})
    given = SimpleNamespace(plan=plan)
    runs = [SimpleNamespace(training=SimpleNamespace(epoch=0), assignment=given) for _ in range(6)]
    diverges_at = {0: 3, 2: 5}

    def epochs(
        members: Sequence[Any], before_step: Any = None, *, n_epochs: int = 1
    ) -> list[DivergedError | None]:
        found: list[DivergedError | None] = []
        for start in range(0, len(members), 2):
            group = [m.training for m in members[start : start + 2]]
            ends = [diverges_at.get(_number(runs, one), 99) for one in group]
            last = min([group[0].epoch + n_epochs, *ends])
            found += [DivergedError("far") if end == last else None for end in ends]
            for one, error in zip(group, found[-len(group) :], strict=True):
                one.epoch = last - (error is not None)
        return found

    monkeypatch.setattr(parts, "train_epochs", epochs)
    found = parts._train_to(8, dict(enumerate(runs)))  # type: ignore[arg-type]
    assert [k for k, error in found.items() if error is not None] == [0, 2]
    assert [run.training.epoch for run in runs] == [2, 8, 4, 8, 8, 8]


def _number(runs: Sequence[Any], training: Any) -> int:
    return next(k for k, run in enumerate(runs) if run.training is training)
