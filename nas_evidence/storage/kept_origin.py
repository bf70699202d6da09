"""The file of a study that says from which other one its architectures are."""

import json
from pathlib import Path

from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.parsing import parsed_json
from nas_evidence.plumbing.seals import seal_object, unsealed_object
from nas_evidence.plumbing.sums import wrong_sums
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


def told_in_report(folder: Path, file: str) -> str | None:
    """Return what `refit_of.json` or `how_read.json` held, as the report of the study has it.

    None if the report has nothing of it, or is not as it was written.
    """
    report, name = folder / "report", "report.json"
    try:
        if wrong_sums(report, [name]):
            return None
        found = parsed_json((report / name).read_bytes()).get(file.removesuffix(".json"))
    except (OSError, ValueError, AttributeError):
        return None
    return json.dumps(found, indent=1) if isinstance(found, dict) else None


def restore_told(folder: Path, file: str) -> bool:
    """Write `refit_of.json` or `how_read.json` again from the report; return whether it could."""
    text = told_in_report(folder, file)
    if text is not None:
        write_whole(folder / file, seal_object(text).encode(), private=True)
    return text is not None
