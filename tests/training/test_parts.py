"""Trainings on parts of the data, side by side: how far each trains, and what it ends as."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lone_trials import ended, linear_assignment, mlp_assignment, trained_part

from nas_evidence.data import load
from nas_evidence.data.tensors import to_tensors
from nas_evidence.spec.schedule import stops
from nas_evidence.spec.study import DatasetSpec
from nas_evidence.training import loop
from nas_evidence.training.loop import DivergedError, train_epochs
from nas_evidence.training.parts import part_of
from nas_evidence.workers.trial import Trial


def test_every_training_reaches_the_stop_and_none_goes_beyond_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Groups of two end with the epoch in which one diverges, each at its own."""
    any_data, plan = SimpleNamespace(x_train=[0]), SimpleNamespace(batch_size=1)
    networks: list[Any] = [
        SimpleNamespace(epoch=0, model=None, data=any_data, plan=plan) for _ in range(6)
    ]
    diverges_at = {0: 3, 2: 5}

    def epochs(group: Sequence[Any], n_epochs: int) -> list[DivergedError | None]:
        ends = [diverges_at.get(_number(networks, one), 99) for one in group]
        last = min([group[0].epoch + n_epochs, *ends])
        found = [DivergedError("far") if end == last else None for end in ends]
        for one, error in zip(group, found, strict=True):
            one.epoch = last - (error is not None)
        return found

    monkeypatch.setattr(loop, "n_together", lambda *_: 2)
    monkeypatch.setattr(loop, "_train_group", epochs)
    found = train_epochs(networks, n_epochs=8)
    assert [k for k, error in enumerate(found) if error is not None] == [0, 2]
    assert [network.epoch for network in networks] == [2, 8, 4, 8, 8, 8]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "likelihood", "settle", "epochs", "n"),
    # In each the last update moves the precisions.
    [
        ("linear", "categorical", 0, 6, 90),
        ("mlp", "categorical", 0, 4, 40),
        ("mlp", "gaussian", 1, 4, 40),
    ],
)
def test_a_network_of_a_fold_is_that_of_the_main_training_on_the_same_rows(
    family: str, likelihood: str, settle: float, epochs: int, n: int, tmp_path: Path
) -> None:
    """To the bit, also where the last epoch updates: it may settle from there."""
    name = "digits" if likelihood == "categorical" else "diabetes"
    spec = DatasetSpec.model_validate({"name": name, "max_train": 100, "max_test": 1})
    given = mlp_assignment(epochs=epochs, likelihood=likelihood, settle=settle)
    if family == "linear":
        given = given.model_copy(update={"architecture": linear_assignment().architecture})
    part = part_of(torch.arange(n), to_tensors(load(spec, seed=0), "cpu"), given, "part")
    trial = Trial.start(part[1], part[0], tmp_path)
    ended(trial)
    fold, main = trained_part(part), trial.network
    assert main is not None
    assert stops(given.plan)[-1].update
    for one, other in zip(fold.model.parameters(), main.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(fold.hyper.precision, main.hyper.precision)
    assert fold.hyper.scale == main.hyper.scale


def _number(networks: Sequence[Any], one: Any) -> int:
    return next(k for k, network in enumerate(networks) if network is one)
