"""Checkpoints: everything a trial needs to resume, written atomically.

A checkpoint is one file `epoch-000015.pt`, written under a temporary name, synced and renamed. The
last two are kept, so that an unreadable newest one costs a slice and not the trial. They contain
no random states: every stream is seeded by (trial seed, purpose, epoch).
"""

import io
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.removal import remove
from nas_evidence.plumbing.seals import sealed, unsealed
from nas_evidence.spec.record import CurvePoint
from nas_evidence.training.network import Hyper, Network, Settling, Trained
from nas_evidence.training.quasi_newton import History

_LOG = logging.getLogger(__name__)
#: Numbers of a `Network`, written as they are.
_PLAIN = ("epoch", "best_epoch", "best_evidence", "train_seconds", "evidence_seconds")
_NAME = re.compile(r"epoch-(\d{6})\.pt")
_ATTEMPT = re.compile(r"attempt-\d+")


def state_of(network: Network) -> dict[str, Any]:
    """Return all that a network needs to go on, as tensors and plain values."""
    settling = network.settling
    return {
        "model": network.model.state_dict(),
        "optimiser": network.optimiser.state_dict(),
        "hyper": dict(vars(network.hyper)),
        **{name: getattr(network, name) for name in _PLAIN},
        "curve": [point.model_dump_json() for point in network.curve],
        "settling": None if settling is None else _packed(settling),
    }


def restore(network: Network, state: Mapping[str, Any]) -> None:
    """Let a new network of the same plan go on from `state_of`."""
    network.model.load_state_dict(state["model"])
    network.optimiser.load_state_dict(state["optimiser"])
    network.hyper = Hyper(**state["hyper"])
    for name in _PLAIN:
        setattr(network, name, state[name])
    network.curve = [CurvePoint.model_validate_json(t) for t in state["curve"]]
    if state["settling"] is not None:
        device = next(network.model.parameters()).device
        network.settling = _unpacked(state["settling"], device)


def _packed(settling: Settling) -> dict[str, Any]:
    scheduled = [settling.scheduled.theta, dict(vars(settling.scheduled.hyper))]
    history = [settling.history.steps, settling.history.changes]
    return vars(settling) | {"scheduled": scheduled, "history": history}


def _unpacked(state: Mapping[str, Any], device: torch.device) -> Settling:
    theta, hyper = state["scheduled"]
    steps, changes = state["history"]
    first = state["first"]
    tensors = {
        "scheduled": Trained(theta.to(device), Hyper(**hyper)),
        "theta": state["theta"].to(device),
        "first": None if first is None else first.to(device),
        "history": History(steps.to(device), changes.to(device)),
    }
    return Settling(**{**state, **tensors})


def save_checkpoint(folder: Path, epoch: int, state: Mapping[str, Any]) -> Path:
    """Write `state` as the checkpoint of `epoch` in `folder`, atomically; keep the last two.

    Raises:
        OSError: if it cannot be written; names the file, and leaves no partial file.
    """
    path = folder / f"epoch-{epoch:06d}.pt"
    # To memory first: on a full disk torch would hide the system's error behind its own.
    content = io.BytesIO()
    torch.save(dict(state), content)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(path, sealed(content.getbuffer()))
    for old in _checkpoints(folder)[2:]:
        remove(old)
    return path


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """Return the newest readable checkpoint of the trial that an attempt's `folder` belongs to.

    All `attempt-N` folders next to it count, since all attempts at a trial agree bit by bit; a
    folder with another name is used alone. Unreadable files are logged; None if no file is
    readable.
    """
    one_of_many = _ATTEMPT.fullmatch(folder.name)
    attempts = folder.parent.glob("attempt-*") if one_of_many else [folder]
    found = [path for attempt in attempts for path in _checkpoints(attempt)]
    for path in sorted(found, key=_place, reverse=True):
        try:
            return read_checkpoint(path)
        except (OSError, ValueError) as e:
            _LOG.warning("checkpoint_unreadable path=%s error=%r", path, e)
    return None


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return the state in a checkpoint.

    Raises:
        ValueError: it does not match its checksum.
        OSError: there is no such file, or the disk fails.
    """
    content = unsealed(path.read_bytes(), path)
    return dict(torch.load(io.BytesIO(content), map_location="cpu", weights_only=True))


def _place(path: Path) -> tuple[str, int]:
    """Return the order of a checkpoint: by epoch, then by attempt.

    All slices before the first epoch, and all rounds of settling, are of one epoch.
    """
    attempt = path.parent.name.removeprefix("attempt-")
    return path.name, int(attempt) if attempt.isdecimal() else 0


def _checkpoints(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if _NAME.fullmatch(p.name)), reverse=True)
