"""The folder of a study: create it, continue it, lock it, and tell how it stands.

Needs neither torch nor ray, so that a folder is there before anything slow or fragile starts.
"""

import contextlib
import fcntl
import json
import os
import re
import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nas_evidence.codec import differences, dump_study, load_study
from nas_evidence.record import TrialStatus
from nas_evidence.spec import Assignment, StudySpec
from nas_evidence.store import TrialRow, finished

_SUBFOLDERS = ("trials", "evidence", "terms", "curves", "models", "checkpoints", "logs")
_TEMPORARY = ".study.toml.tmp"


@dataclass(frozen=True)
class StudyStatus:
    """How a study stands. `state` is "running", "stopped" or "finished"."""

    name: str
    state: str
    n_trials: int
    by_status: dict[str, int]
    running: list[Assignment]
    best: TrialRow | None
    objective: str

    @property
    def n_finished(self) -> int:
        """Return the number of trials with a final status."""
        return sum(self.by_status.values())


def default_folder(study: StudySpec) -> Path:
    """Return `runs/<name>`, the name reduced to letters, digits, dot, dash and underscore."""
    return Path("runs") / (re.sub(r"[^\w.-]+", "-", study.name).strip("-.") or "study")


def open_study(folder: Path, study: StudySpec) -> StudySpec:
    """Create the folder of `study`, or continue it, and return the study as it stands there.

    The number of trials and the resources may change between runs; `n_trials` never shrinks below
    what the folder has asked for.

    Raises:
        ValueError: if the folder holds something else, or a study that differs in more than that,
            or is at work.
    """
    path = folder / "study.toml"
    if not path.is_file() and _is_foreign(folder):
        raise ValueError(
            f"{folder} is neither empty nor a study folder (it has no study.toml); "
            "give another one with --out."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{folder} cannot be created: {error.strerror}.") from None
    with locked(folder):  # a running study keeps the file it started from
        if path.is_file():
            old = load_study(path)
            if different := differences(old, study):
                raise ValueError(
                    f"{folder} holds a study that differs: "
                    + "; ".join(different)
                    + ". Give another folder with --out, or the same study."
                )
            study = study.model_copy(update={"n_trials": max(old.n_trials, study.n_trials)})
        _write_study(path, study)
    for name in _SUBFOLDERS:
        (folder / name).mkdir(exist_ok=True)
    return study


def read_study(folder: Path) -> StudySpec:
    """Return the study of a folder.

    Raises:
        ValueError: if `folder` is not a study folder.
    """
    if not (folder / "study.toml").is_file():
        raise ValueError(f"{folder} is not a study folder: it has no study.toml.")
    return load_study(folder / "study.toml")


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the study alone. The lock of a dead process on this host is free at once.

    Raises:
        ValueError: if another process of this host works on the study.
    """
    with (folder / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ValueError(
                f"another process works on {folder} ({file.read().strip() or 'unknown'}); "
                "wait for it, or stop it first."
            ) from None
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        file.flush()
        yield


def is_locked(folder: Path) -> bool:
    """Tell whether a process of this host works on the study."""
    if not (folder / "lock").exists():
        return False
    with (folder / "lock").open("r") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def study_status(folder: Path) -> StudyStatus:
    """Return how the study in `folder` stands, from what is on disk.

    Raises:
        ValueError: if `folder` is not a study folder.
    """
    study = read_study(folder)
    done = finished(folder)
    alive = is_locked(folder)
    running = []
    for path in sorted(folder.glob("checkpoints/*/attempt-*/assignment.json")) if alive else []:
        with contextlib.suppress(OSError, ValueError):  # written or removed at this moment
            assignment = Assignment.model_validate_json(path.read_text())
            if assignment.trial_id not in done:
                running.append(assignment)
    latest = {a.trial_id: a for a in sorted(running, key=lambda a: a.attempt)}
    ranked = [
        t
        for t in done.values()
        if t.status is TrialStatus.COMPLETE and study.objective in t.values
    ]
    all_done = len(done) >= study.n_trials
    return StudyStatus(
        name=study.name,
        state="running" if alive else "finished" if all_done else "stopped",
        n_trials=study.n_trials,
        by_status=dict(Counter(str(t.status) for t in done.values())),
        running=list(latest.values()),
        best=max(ranked, key=lambda t: t.values[study.objective], default=None),
        objective=study.objective,
    )


def _is_foreign(folder: Path) -> bool:
    """Tell whether something is there that is not a folder we were killed in the midst of."""
    if folder.is_dir():
        return any(path.name not in ("lock", _TEMPORARY) for path in folder.iterdir())
    return folder.exists()


def _write_study(path: Path, study: StudySpec) -> None:
    temporary = path.with_name(_TEMPORARY)
    with temporary.open("w", encoding="utf-8") as file:
        file.write(dump_study(study))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
