"""Integrity of an export: files that it must have, and those that fail their checksum.

An export is there whole or not at all. Every file is in SHA256SUMS; each reader checks what it
reads.
"""

import contextlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from nas_evidence.plumbing.outputs import check_output, files_in, written_here
from nas_evidence.plumbing.outputs import written_whole as put_whole
from nas_evidence.plumbing.parsing import parsed_json
from nas_evidence.plumbing.sums import NAME, listed, write_sums, wrong_sums
from nas_evidence.plumbing.user_error import UserError

MODEL_CARD, MEANING, ENSEMBLE = "README.md", "meaning.json", "ensemble.json"
PT2, ONNX, POSTERIOR = "model.pt2", "model.onnx", "posterior.safetensors"
#: The source of `encode.py`: a table as inputs of the two, for whoever has no nas-evidence.
ENCODE = "encode.py"
_OF_ONE = (
    "architecture.toml", "model.safetensors", POSTERIOR, MEANING, "evidence.json", MODEL_CARD,
)  # fmt: skip
_OF_AN_ENSEMBLE = (ENSEMBLE, MODEL_CARD)
#: Written if asked for.
_ON_DEMAND = (PT2, ONNX, ENCODE)


def is_export(folder: Path) -> bool:
    """Return whether a folder holds an export, sound or not."""
    return any((folder / name).is_file() for name in ("model.safetensors", ENSEMBLE, NAME))


def wrong_export_files(folder: Path) -> list[str]:
    """Return the files of an export that are missing or not as they were written."""
    if (folder / ENSEMBLE).is_file() or (folder / "members").is_dir():
        members = sorted(path for path in (folder / "members").glob("*") if path.is_dir())
        inside = [f"members/{m.name}/{name}" for m in members for name in wrong_export_files(m)]
        return wrong_sums(folder, _wanted(folder, _OF_AN_ENSEMBLE)) + inside
    return wrong_sums(folder, _wanted(folder, _OF_ONE))


def is_export_of(folder: Path, trial_id: int, metric: str | None, *, conditions: str) -> bool:
    """Return whether a folder holds the sound export of a trial, for this metric.

    Args:
        folder: that may hold it.
        trial_id: of the trial.
        metric: of the study.
        conditions: hash of those under which the trial ran: another study has such a trial too.
    """
    if (folder / ENSEMBLE).is_file() or wrong_export_files(folder):
        return False
    try:
        written, meaning = (read_json(folder, name) for name in ("evidence.json", MEANING))
    except UserError:  # with right checksums, and not ours
        return False
    same = written.get("trial_id") == trial_id and written.get("conditions") == conditions
    return bool(same and meaning.get("metric") == metric)


def is_ensemble_of(
    folder: Path,
    trials: Sequence[int],
    conditions: Collection[str],
    metric: str | None,
) -> bool:
    """Return whether a folder holds the sound export of these trials with equal weights.

    Args:
        folder: that may hold it.
        trials: that it was made of.
        conditions: hashes of those under which they ran: another study has such trials too.
        metric: of the study.
    """
    if not (folder / ENSEMBLE).is_file() or wrong_export_files(folder):
        return False
    try:
        written = read_json(folder, ENSEMBLE)
    except UserError:  # with a right checksum, and not ours
        return False
    asked = ("mixture", list(trials), metric)  # the weights of earlier versions were fitted
    same = tuple(map(written.get, ("kind", "chosen", "metric"))) == asked
    return bool(same and conditions_in(folder) <= {*conditions})


def is_of_other_kind(folder: Path, *, several: bool) -> bool:
    """Return whether a folder holds one network where several are to be, or several for one."""
    return (folder / ("model.safetensors" if several else ENSEMBLE)).exists()


def check_kind(to: Path, *, several: bool) -> None:
    """Check that a folder does not hold an export of the other kind.

    Raises:
        ValueError: it does.
    """
    if is_of_other_kind(to, several=several):
        held = "one network" if several else "several networks"
        raise UserError(
            "folder-of-another-export", f"{to} holds the export of {held}; choose another folder."
        )


def conditions_in(folder: Path) -> set[str]:
    """Return the hashes of the conditions under which the networks of an export were trained."""
    found = set[str]()
    for place in (folder, *sorted((folder / "members").glob("*"))):
        with contextlib.suppress(UserError, OSError):  # missing, or no object: named elsewhere
            found.add(str(read_json(place, "evidence.json").get("conditions") or ""))
    return found - {""}


def check_files(folder: Path, *names: str) -> None:
    """Check files of an export before they are read.

    Raises:
        ValueError: one of them is not as it was written.
    """
    if wrong := wrong_sums(folder, names):
        raise UserError(
            "export-damaged",
            f"{folder}/{wrong[0]} is damaged or missing: it does not match SHA256SUMS; export the "
            "trial again.",
        )


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """Return the object in a file of an export.

    Raises:
        ValueError: it holds none; names the file.
    """
    try:
        found = parsed_json((folder / name).read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise UserError("json-no-object", "it is no object")
    except ValueError as error:
        raise UserError(
            "export-json-unreadable",
            f"{folder}/{name} is damaged: {error}; export the trial again.",
        ) from None
    return found


@contextlib.contextmanager
def fitting_together(folder: Path) -> Iterator[None]:
    """Read an export in the block; a right checksum proves nothing about who wrote a file.

    Raises:
        ValueError: a file lacks what belongs in it, or holds something else; names the export.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # whatever a description of others may lead to
        why = (str(error).strip().splitlines() or [""])[0]
        raise UserError(
            "export-not-fitting",
            f"{folder} is not a sound export: its files do not fit together "
            f"({type(error).__name__}: {why}); export the trial again.",
        ) from None


def check_code(folder: Path) -> None:
    """Check the code of an export before it is imported.

    Raises:
        ValueError: a file of it is not as it was written.
    """
    if code := [name for name in _files(folder) if name.startswith("code/")]:
        check_files(folder, *code)


def check_place(to: Path, *, force: bool) -> None:
    """Check that an export may be written into a folder: it is empty, or an export.

    Args:
        to: the folder.
        force: whether files with the names of an export's may be replaced. Other files stay.

    Raises:
        ValueError: it may not.
    """
    check_output(to, _foreign(to), verb="export", force=force, own=("code", "members"))


def is_replaceable(folder: Path) -> bool:
    """Return whether a folder is not there, is empty, or is an export that nobody has changed."""
    return not _foreign(folder) and (folder.is_dir() or not folder.exists())


def _foreign(folder: Path) -> list[str]:
    ours = written_by_export(folder)
    return [name for name in files_in(folder) if name not in ours]


def written_by_export(folder: Path) -> set[str]:
    """Return the files of a folder that an export has written and nobody has changed."""
    if ENSEMBLE in listed(folder):
        found = written_here(folder, _OF_AN_ENSEMBLE)
        for member in (folder / "members").glob("*"):
            inside = written_here(member, _OF_ONE)
            found |= {f"members/{member.name}/{name}" for name in inside}
        return found
    return written_here(folder, _OF_ONE)


@contextlib.contextmanager
def written_whole(to: Path, *, force: bool = False) -> Iterator[Path]:
    """Give a folder to write an export into; at the end it is sealed and put in place.

    Raises:
        ValueError: as `check_place`.
    """
    check_place(to, force=force)

    def ours(place: Path) -> set[str]:
        # Forced, an older program is one of the files that are replaced.
        old = written_by_export(place)
        return old | set(_ON_DEMAND).intersection(files_in(place)) if force else old

    with put_whole(to, ours) as made:
        yield made
        write_sums(made, sorted(_files(made)))
        check_place(to, force=force)  # an export may take minutes


def _wanted(folder: Path, required: tuple[str, ...]) -> list[str]:
    there = {n for n in _files(folder) if n in _ON_DEMAND or n.startswith("code/")}
    return sorted({*required, *there})


def _files(folder: Path) -> list[str]:
    """Return the files of an export but those of its members, which have sums of their own."""
    every = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return [
        name
        for name in every
        if name != NAME and not name.startswith("members/") and "__pycache__" not in name
    ]
