"""Files that fail their checksum: kept in `damaged/` of the study folder, and read by nobody."""

import itertools
import logging
from pathlib import Path

from nas_evidence.plumbing.removal import move

_LOG = logging.getLogger(__name__)


def set_aside(folder: Path, place: str) -> None:
    """Move a file or folder, named relative to the study folder, to `damaged/`."""
    name = place.replace("/", "-")
    names = itertools.chain([name], (f"{name}.{n}" for n in itertools.count(2)))
    target = next(t for t in (folder / "damaged" / name for name in names) if not t.exists())
    target.parent.mkdir(exist_ok=True)
    move(folder / place, target)
    _LOG.warning("set_aside place=%s", place)
