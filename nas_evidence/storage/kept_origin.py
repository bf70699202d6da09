"""The file of a study that says from which other one its architectures are."""

from pathlib import Path

from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.seals import seal_object, unsealed_object
from nas_evidence.spec.origin import Origin

#: In the folder of a study that trains architectures of another one again.
FILE = "refit_of.json"


def keep_origin(folder: Path, origin: Origin) -> None:
    """Write what a study comes from, unless that is there."""
    if read_origin(folder) is None:
        write_whole(folder / FILE, seal_object(origin.to_json()).encode(), private=True)


def read_origin(folder: Path) -> Origin | None:
    """Return what a study comes from; None for a search, or if the file is damaged."""
    path = folder / FILE
    try:
        return Origin.from_json(unsealed_object(path.read_bytes(), path).decode())
    except (OSError, ValueError):
        return None
