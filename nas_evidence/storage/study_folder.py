"""The folder of a study: create it, continue it, and lock it.

Needs neither torch nor ray, so that the folder exists before anything slow or fragile starts.
"""

import contextlib
import difflib
import fcntl
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.foreign_text import shell_word
from nas_evidence.plumbing.mounts import is_shared
from nas_evidence.plumbing.user_error import Mistake, StudyError, UserError
from nas_evidence.spec.registry import is_outside
from nas_evidence.spec.study import StudySpec
from nas_evidence.spec.toml import Override, differences, dump_study, load_study, parse_study
from nas_evidence.storage.conditions import check_conditions, how_to_restore, keep_copy
from nas_evidence.storage.holding import Holder, announced, boot_id, held_here, holder_in, is_mine
from nas_evidence.storage.kept_submission import read_submission
from nas_evidence.storage.links import refuse_links
from nas_evidence.storage.requests import withdraw

_SUBFOLDERS = ("trials", "evidence", "terms", "curves", "models", "checkpoints", "logs")
_HALF_WRITTEN = ".study.toml."
_LOCK_BYTES = 1024


def default_folder(study: StudySpec) -> Path:
    """Return `runs/<name>`, the name reduced to letters, digits, dot, dash and underscore."""
    return Path("runs") / (re.sub(r"[^\w.-]+", "-", study.name).strip("-.") or "study")


def open_study(folder: Path, study: StudySpec, *, steal: bool = False) -> StudySpec:
    """Create the folder of `study`, or continue it; return the study as stored there.

    The `FREE_KEYS` of the study may change between runs; `n_trials` is never reduced below the
    number already proposed. `steal` as in `locked`.

    Raises:
        ValueError: if the folder holds something else, a study that differs in more than that, or
            a running one.
    """
    agreed(folder, study)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / "lock").touch()
    except OSError as error:
        raise _unwritable(folder, str(error.strerror)) from None
    with locked(folder, steal=steal):  # a running study keeps its file
        study = agreed(folder, study)
        keep_copy(folder, study)
        write_whole(folder / "study.toml", dump_study(study))
        withdraw(folder)  # an old request to stop
    for name in _SUBFOLDERS:
        (folder / name).mkdir(exist_ok=True)
    return study


def agreed(folder: Path, study: StudySpec) -> StudySpec:
    """Return `study` as its folder is to store it, which may hold it already; write nothing.

    Raises:
        ValueError: if the folder holds something else, or a study that differs in more than the
            `FREE_KEYS`.
    """
    path = folder / "study.toml"
    if any(map(is_outside, (*study.family, *study.estimators))):
        parse_study(dump_study(study), str(path))  # refuses what could not be read back
    refuse_links(folder)
    if not path.is_file():
        if _is_foreign(folder):
            raise UserError(
                "folder-not-empty",
                f"{folder} is neither empty nor a study folder (it has no study.toml); "
                "give another one as `out`.",
            )
        home = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        if not (home.is_dir() and os.access(home, os.W_OK)):
            raise _unwritable(folder, f"{home} is no folder that can be written")
        return study
    old = load_study(path)
    if different := differences(old, study):
        raise UserError(
            "folder-of-another-study",
            f"{folder} holds a study that differs: "
            + "; ".join(different)
            + ". Give another folder as `out`, or the same study.",
        )
    check_conditions(folder, old)
    return study.model_copy(update={"n_trials": max(old.n_trials, study.n_trials)})


def _unwritable(folder: Path, why: str) -> UserError:
    return UserError(
        "folder-not-writable",
        f"{folder} cannot be created or written: {why}; give another as `out`.",
    )


def read_study(folder: Path, overrides: Iterable[Override | str] = ()) -> StudySpec:
    """Return the study of a folder, with overrides of its keys.

    Raises:
        ValueError: if `folder` is not a study folder, its file was changed in more than the
            `FREE_KEYS` after trials had run, or for a wrong override.
    """
    if not (folder / "study.toml").is_file():
        export = any((folder / name).is_file() for name in ("meaning.json", "ensemble.json"))
        if export:
            hint = " It is an export: nas_evidence.Predictor.load reads it."
        elif how := how_to_restore(folder):
            hint = f" {how}"
        else:
            hint = _near(folder)
        raise UserError(
            "not-a-study-folder", f"{folder} is not a study folder: it has no study.toml.{hint}"
        )
    refuse_links(folder)
    study = restorable(folder)
    check_conditions(folder, study)
    return load_study(folder / "study.toml", overrides) if (overrides := [*overrides]) else study


def restorable(folder: Path) -> StudySpec:
    """Return the study of a folder's file.

    Raises:
        StudyError: for each mistake in it; says how it is restored, if trials have ended.
    """
    try:
        return load_study(folder / "study.toml")
    except StudyError as error:
        how = "" if "removed-key" in error.codes else how_to_restore(folder)
        more = [Mistake("study-file-lost", f"{folder}/study.toml is lost or damaged. {how}")]
        is_lost = not (folder / "study.toml").exists()
        found = [] if how and is_lost else error.mistakes
        raise StudyError([*found, *(more if how else [])]) from None


def _near(folder: Path) -> str:
    """Return a question for a study of a similar name, beside the folder or in runs/."""
    homes = (Path("runs"), folder.parent)
    studies = {
        file.parent.name: file.parent for home in homes for file in home.glob("*/study.toml")
    }
    near = difflib.get_close_matches(folder.name, studies, n=1)
    return f" Did you mean {studies[near[0]]}?" if near else ""


@contextlib.contextmanager
def locked(folder: Path, *, steal: bool = False) -> Iterator[None]:
    """Hold the study exclusively on this host, and say so to others in the file `lock`.

    The lock of a dead process on this host is free at once. A holder on another host is left alone
    while it is heard of; then it can be taken over, but only with `steal`: it may be cut off
    rather than dead. Who has taken over is known by the log (`log.py`), not by this lock.

    Raises:
        ValueError: if another process works on the study, or may.
    """
    refuse_links(folder)
    path = folder / "lock"
    path.touch()
    with path.open("r+b", buffering=0) as file:  # appending, pwrite knows no offset
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if is_mine(folder):
                raise held_here(folder) from None
            found = read_submission(folder)
            words = (str(folder),) if found is None else found.words
            raise UserError(
                "folder-locked",
                f"another process works on {folder} ({holder_of(folder) or 'unknown'}); wait for "
                f"it, or stop it first: `nas-evidence cancel {' '.join(map(shell_word, words))}`.",
            ) from None
        except OSError as error:  # a file system without locks
            raise OSError(error.errno, error.strerror, str(path)) from error

        def put(content: bytes, *, if_absent: bool = False) -> None:
            """Write in place, in one write of fixed size: a locked file cannot be replaced."""
            os.pwrite(file.fileno(), content.ljust(_LOCK_BYTES), 0)
            file.truncate(_LOCK_BYTES)  # a damaged file may be longer

        def is_left(holder: Holder) -> bool:
            if is_shared(folder):  # another container of this host may have a mount of its own
                return holder.is_dead_here()
            return holder.boot_id == boot_id()  # on this host the lock decides

        with announced(folder, path.read_bytes, put, is_left, steal=steal):
            yield


def is_locked(folder: Path) -> bool:
    """Return whether a process of this host works on the study, or one elsewhere may."""
    if not (folder / "lock").exists():
        return False
    with (folder / "lock").open("r") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # a file system without locks: the holder tells
            pass
    holder = holder_of(folder)
    return holder is not None and holder.may_be_alive


def holder_of(folder: Path) -> Holder | None:
    """Return the holder of a study, or the last one; None if there is none."""
    path = folder / "lock"
    return holder_in(path.read_bytes()) if path.exists() else None


def _is_foreign(folder: Path) -> bool:
    """Return whether the place holds anything but a partly created study folder."""
    if folder.is_dir():
        names = (path.name for path in folder.iterdir())
        return any(name != "lock" and not name.startswith(_HALF_WRITTEN) for name in names)
    return folder.exists()
