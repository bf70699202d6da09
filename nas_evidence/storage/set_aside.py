"""Files that fail their checksum: kept in `damaged/` of the study folder, and read by nobody."""

import itertools
import logging
import os
from pathlib import Path

from nas_evidence.plumbing.names import stays_inside
from nas_evidence.plumbing.removal import move
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.storage.links import link_on_the_way

#: Longest name that a file gets there, bytes.
_LONGEST = 200
_LOG = logging.getLogger(__name__)


def set_aside(folder: Path, place: str) -> None:
    """Move a file or folder, named relative to the study folder, to `damaged/`.

    Raises:
        UserError: the place is none in a study folder.
    """
    above = Path(place).parent.as_posix()
    if not stays_inside(place) or link_on_the_way(folder, above):
        raise UserError(
            "place-outside",
            f"{place!r} leads out of {folder}, so it is left as it is; look at the file of the "
            "study that names it.",
        )
    name = place.replace("/", "-")
    if len(os.fsencode(name)) > _LONGEST:
        name = name[-_LONGEST // 4 :]  # a character has up to four bytes
    names = itertools.chain([name], (f"{name}.{n}" for n in itertools.count(2)))
    target = next(t for t in (folder / "damaged" / name for name in names) if not t.exists())
    target.parent.mkdir(exist_ok=True)
    move(folder / place, target)
    _LOG.warning("set_aside place=%s", place)
