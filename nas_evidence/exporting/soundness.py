"""Integrity of an export: files that it must have, and those that fail their checksum.

An export is written into a folder beside its place and renamed, so that it is there whole or not
at all. Every file is in SHA256SUMS; each reader checks what it reads.
"""

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nas_evidence.plumbing.files import hidden_beside, hidden_stem
from nas_evidence.plumbing.parsing import parsed_json
from nas_evidence.plumbing.sums import NAME, write_sums, wrong_sums
from nas_evidence.plumbing.user_error import UserError

MODEL_CARD, MEANING, ENSEMBLE = "README.md", "meaning.json", "ensemble.json"
PT2, ONNX, POSTERIOR = "model.pt2", "model.onnx", "posterior.safetensors"
_OF_ONE = (
    "architecture.toml", "model.safetensors", POSTERIOR, MEANING, "evidence.json", MODEL_CARD,
)  # fmt: skip
_OF_AN_ENSEMBLE = (ENSEMBLE, MODEL_CARD)
#: Written if asked for.
_ON_DEMAND = (PT2, ONNX)
#: All that an export may hold.
_OURS = {*_OF_ONE, *_OF_AN_ENSEMBLE, *_ON_DEMAND, NAME, "code", "members"}


def is_export(folder: Path) -> bool:
    """Return whether a folder holds an export, sound or not."""
    return any((folder / name).is_file() for name in ("model.safetensors", ENSEMBLE, NAME))


def wrong_files(folder: Path) -> list[str]:
    """Return the files of an export that are missing or not as they were written."""
    if (folder / ENSEMBLE).is_file() or (folder / "members").is_dir():
        members = sorted(path for path in (folder / "members").glob("*") if path.is_dir())
        inside = [f"members/{m.name}/{name}" for m in members for name in wrong_files(m)]
        return wrong_sums(folder, _wanted(folder, _OF_AN_ENSEMBLE)) + inside
    return wrong_sums(folder, _wanted(folder, _OF_ONE))


def is_export_of(folder: Path, trial_id: int, metric: str | None = None) -> bool:
    """Return whether a folder holds the sound export of a trial, for this metric."""
    if (folder / ENSEMBLE).is_file() or wrong_files(folder):
        return False
    try:
        written, meaning = (read_json(folder, name) for name in ("evidence.json", MEANING))
    except UserError:  # with right checksums, and not ours
        return False
    return bool(written.get("trial_id") == trial_id and meaning.get("metric") == metric)


def check_files(folder: Path, *names: str) -> None:
    """Check files of an export before they are read.

    Raises:
        ValueError: one of them is not as it was written.
    """
    if wrong := wrong_sums(folder, names):
        raise UserError(
            f"{folder}/{wrong[0]} is damaged or missing: it does not match SHA256SUMS; export the "
            "trial again."
        ).with_code("export-damaged")


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """Return the object in a file of an export.

    Raises:
        ValueError: it holds none; names the file.
    """
    try:
        found = parsed_json((folder / name).read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise UserError("it is no object").with_code("json-no-object")
    except ValueError as error:
        raise UserError(f"{folder}/{name} is damaged: {error}; export the trial again.").with_code(
            "export-json-unreadable"
        ) from None
    return found


def check_code(folder: Path) -> None:
    """Check the code of an export before it is imported.

    Raises:
        ValueError: a file of it is not as it was written.
    """
    if code := [name for name in _files(folder) if name.startswith("code/")]:
        check_files(folder, *code)


@contextlib.contextmanager
def written_whole(to: Path) -> Iterator[Path]:
    """Give a folder to write an export into; at the end it is sealed and put in place.

    Raises:
        ValueError: there is something else in the place.
    """
    ours = _OURS if is_export(to) else _OURS - {MODEL_CARD}  # of whatever has one
    foreign = [path.name for path in to.glob("*") if path.name not in ours]
    if to.is_file() or foreign:
        held = f"holds {min(foreign)}, which is no part of an export" if foreign else "is a file"
        raise UserError(f"{to} {held}; name another folder.").with_code("export-target-held")
    to.parent.mkdir(parents=True, exist_ok=True)
    place = to.resolve()
    _clear_leftovers(place)
    made = hidden_beside(place)
    before = made.with_name(f"{made.name}.before")
    made.mkdir()
    with _held(made):
        try:
            yield made
            write_sums(made, sorted(_files(made)))
            if place.exists():
                place.replace(before)
            made.replace(place)
            shutil.rmtree(before, ignore_errors=True)
        except OSError as error:
            if error.filename is None or str(error.filename).startswith(str(made)):
                raise OSError(error.errno, error.strerror or str(error), str(to)) from error
            raise
        finally:
            shutil.rmtree(made, ignore_errors=True)


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[bool]:
    """Lock a folder, where its file system has locks; tell whether nobody else has it."""
    handle, free = os.open(folder, os.O_RDONLY), False
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        yield free
    finally:
        os.close(handle)


def _clear_leftovers(place: Path) -> None:
    """Remove what a killed export has left beside its place; put the export before it back."""
    ours = re.compile(re.escape(f"{hidden_stem(place)}.") + r"[0-9a-f]{32}(\.before)?")
    for left in sorted(path for path in place.parent.iterdir() if ours.fullmatch(path.name)):
        old = left.suffix == ".before"
        with contextlib.suppress(OSError), _held(left) as free:  # another may be clearing, too
            if not free or (old and left.with_suffix("").exists()):  # an export goes on
                continue
            if old and not place.exists():
                left.replace(place)
            else:
                shutil.rmtree(left, ignore_errors=True)


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
