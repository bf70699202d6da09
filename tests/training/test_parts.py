"""Trainings on parts of the data, side by side: who trains how far when one of them diverges."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from nas_evidence.training import loop
from nas_evidence.training.loop import DivergedError, train_epochs


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


def _number(networks: Sequence[Any], one: Any) -> int:
    return next(k for k, network in enumerate(networks) if network is one)
