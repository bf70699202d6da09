"""Trainings on parts of the data, side by side: who trains how far when one of them diverges."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from nas_evidence.training import life
from nas_evidence.training.loop import DivergedError


def test_every_training_reaches_the_stop_and_none_goes_beyond_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Groups of two end with the epoch in which one diverges, each at its own."""
    networks = [SimpleNamespace(epoch=0) for _ in range(6)]
    diverges_at = {0: 3, 2: 5}

    def epochs(some: Sequence[Any], *, n_epochs: int = 1) -> list[DivergedError | None]:
        found: list[DivergedError | None] = []
        for start in range(0, len(some), 2):
            group = some[start : start + 2]
            ends = [diverges_at.get(_number(networks, one), 99) for one in group]
            last = min([group[0].epoch + n_epochs, *ends])
            found += [DivergedError("far") if end == last else None for end in ends]
            for one, error in zip(group, found[-len(group) :], strict=True):
                one.epoch = last - (error is not None)
        return found

    monkeypatch.setattr(life, "train_epochs", epochs)
    found = life._train_until(dict(enumerate(networks)), 8)  # type: ignore[arg-type]
    assert [k for k, error in found.items() if error is not None] == [0, 2]
    assert [network.epoch for network in networks] == [2, 8, 4, 8, 8, 8]


def _number(networks: Sequence[Any], one: Any) -> int:
    return next(k for k, network in enumerate(networks) if network is one)
