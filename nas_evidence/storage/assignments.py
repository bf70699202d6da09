"""The assignment of each attempt under way: `checkpoints/<trial>/attempt-N/assignment.json`."""

from collections.abc import Iterator
from pathlib import Path

from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.seals import DamagedError, read_sealed_json, sealed_json
from nas_evidence.spec.study import Assignment

_NAME = "assignment.json"


def write_assignment(attempt: Path, assignment: Assignment) -> None:
    """Write what an attempt is to do into its folder."""
    write_whole(attempt / _NAME, sealed_json(assignment.model_dump(mode="json")))


def read_assignment(path: Path) -> Assignment:
    """Return what `write_assignment` wrote.

    Raises:
        DamagedError: it does not match its checksum.
        OSError: it is gone, or the disk fails.
    """
    content = read_sealed_json(path.read_bytes(), path)
    try:
        return Assignment.model_validate(content)
    except ValueError as error:
        raise DamagedError(f"{path} is damaged: {str(error).splitlines()[0]}.").with_code(
            "assignment-unreadable"
        ) from None


def stored_assignments(folder: Path) -> Iterator[tuple[Path, Assignment | None]]:
    """Yield the assignments of a study; None for one that does not match its checksum."""
    for path in sorted(folder.glob(f"checkpoints/[0-9]*/attempt-*/{_NAME}")):
        try:
            yield path, read_assignment(path)
        except DamagedError:
            yield path, None
        except OSError:  # removed at this moment
            continue
