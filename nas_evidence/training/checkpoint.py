"""Checkpoints: everything a trial needs to go on, written whole or not at all.

A checkpoint is one file `epoch-000015.pt`, written under a temporary name, synced and renamed. The
last two are kept, so that an unreadable newest one costs a slice and not the trial. Random states
are not in it: every stream is seeded by (trial seed, purpose, epoch).
"""

import logging
import os
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

_LOG = logging.getLogger(__name__)
_NAME = re.compile(r"epoch-(\d{6})\.pt")


def save_checkpoint(folder: Path, epoch: int, state: Mapping[str, Any]) -> Path:
    """Write `state` as the checkpoint of `epoch` in `folder`, atomically; keep the last two."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"epoch-{epoch:06d}.pt"
    temporary = folder / f".{path.name}.tmp"
    with temporary.open("wb") as file:
        torch.save(dict(state), file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    for old in _checkpoints(folder)[2:]:
        old.unlink()
    return path


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """Return the newest readable checkpoint in `folder`, or None; unreadable ones are logged."""
    for path in _checkpoints(folder):
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            return dict(state)
        except (OSError, RuntimeError, EOFError, LookupError, ValueError, pickle.PickleError) as e:
            _LOG.warning("checkpoint_unreadable path=%s error=%r", path, e)
    return None


def _checkpoints(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if _NAME.fullmatch(p.name)), reverse=True)
