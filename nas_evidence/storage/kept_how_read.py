"""The file of a study that says how its data were read: written once, when it begins."""

from pathlib import Path

from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.seals import seal_object, unsealed_object
from nas_evidence.spec.how_read import HowRead

#: In the folder of a study.
FILE = "how_read.json"


def keep_how_read(folder: Path, found: HowRead) -> None:
    """Write how the data of a study were read, unless that is there."""
    if read_how_read(folder) is None:
        write_whole(folder / FILE, seal_object(found.to_json()).encode(), private=True)


def read_how_read(folder: Path) -> HowRead | None:
    """Return how the data of a study were read; None if nobody wrote it, or it is damaged."""
    path = folder / FILE
    try:
        return HowRead.from_json(unsealed_object(path.read_bytes(), path).decode())
    except (OSError, ValueError):
        return None
