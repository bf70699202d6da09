"""Where a study is stored: a folder, or an fsspec URI that a local folder is kept in step with.

The driver works in a local folder as ever; `Mirror` carries what changed there to the URI, so that
after the loss of the whole machine another driver pulls and goes on. Any prefix of the writes of a
push is a state that the driver of `driver.py` can be killed in, for they go in its order:

    study.toml, models/, evidence/ terms/ curves/, trials/ (the commit marker), study.db (a
    snapshot), assignment.json, logs/, then what is removed

A push comes before every launch, so that what runs is known as asked; the journal, which knows
what was shown at the rungs, before every slice. Between two pushes the store stands where the
driver stood a little earlier: what ran since runs again from its checkpoint, with equal results.
Checkpoints pass between workers and store (`stored_worker.py`); here they are empty files, for
the driver reads their names only.

`logs/events.jsonl` is stored in parts of 64 KiB, `logs/events/<n>.jsonl`, so that a line more
costs one small write however long the study is.
"""

import contextlib
import os
import re
import shutil
import sqlite3
import tempfile
import time
import weakref
from collections.abc import Container, Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

from nas_evidence.storage.faults import StudyStoppedError
from nas_evidence.storage.journal import journal_path
from nas_evidence.storage.remote import Remote, is_uri
from nas_evidence.storage.remote_lease import RemoteLease
from nas_evidence.workers.mirrored import MirroredExecutor
from nas_evidence.workers.process import MakeWorker
from nas_evidence.workers.protocol import Executor
from nas_evidence.workers.stored import StoredWorker

#: Seconds between two pushes of what changes all the time and decides nothing: the logs.
LOGS_EVERY = 30.0
#: Bytes of a part of the journal.
PART_BYTES = 64 * 1024
_DATABASE = "study.db"
#: The order of a push: first words of names; what matches none comes last.
_ORDER = (
    "study.toml",
    "database.json",
    "models/",
    "evidence/",
    "terms/",
    "curves/",
    "trials/",
    _DATABASE,
    "checkpoints/",
)
_CHECKPOINT = re.compile(r"checkpoints/\d+/attempt-\d+/epoch-\d+\.pt")
_ASSIGNMENT = re.compile(r"checkpoints/\d+/attempt-\d+/assignment\.json")
_WEIGHTS = re.compile(r"checkpoints/\d+/attempt-\d+/model\.safetensors")
_PART = re.compile(r"logs/events/\d+\.jsonl")
#: Uploaded by who writes it, or nobody's.
_NOT_OURS = re.compile(r"lock$|study\.db-|logs/worker-|logs/events|(.*/)?\.")
_NEVER_CHANGES = re.compile(r"(evidence|terms|curves|trials)/")
_SLOW_LOGS = re.compile(r"logs/.*\.log$")

Stamp = tuple[int, int]  # size, time of the last change in ns


class Store(Protocol):
    """Where a study is stored.

    folder       on this machine, in which the driver works
    place        as the user named it
    uri          that, where it is one; else None
    make_worker  who runs trials so that their checkpoints get there; None for the plain worker
    """

    folder: Path
    place: str
    uri: str | None
    make_worker: MakeWorker | None

    def held(self, *, steal: bool = False) -> contextlib.AbstractContextManager[None]:
        """Hold the study alone, with all of it in `folder`; at the end all of it is stored."""

    def around(self, executor: Executor) -> Executor:
        """Return an executor that keeps the store in step."""

    def pull(self) -> None:
        """Fetch what is there, to look at it."""

    def push(self) -> None:
        """Store what changed in `folder`."""

    def send(self, name: str) -> None:
        """Store one file of `folder`, without holding the study: a request to its driver."""


def open_store(place: str, scratch: Path | None = None) -> Store:
    """Return the store of a study, given as the path of a folder or as a URI.

    Args:
        place: `runs/digits`, `/nfs/digits`, `s3://bucket/digits`, `file:///nfs/digits`, ...
        scratch: folder to work in where `place` is a URI; a temporary one if not given.

    Raises:
        ValueError: if no installed package knows such URIs.
    """
    return Mirror(place, scratch) if is_uri(place) else FolderStore(Path(place))


class FolderStore:
    """A folder on this machine, or one that all machines share."""

    uri: str | None = None
    make_worker: MakeWorker | None = None

    def __init__(self, folder: Path) -> None:
        self.folder, self.place = folder, str(folder)

    @contextlib.contextmanager
    def held(self, *, steal: bool = False) -> Iterator[None]:
        """Do nothing: the lock in the folder serves."""
        yield

    def around(self, executor: Executor) -> Executor:
        """Return the executor itself."""
        return executor

    def pull(self) -> None:
        """Do nothing: it is there."""

    def push(self) -> None:
        """Do nothing: it is there."""

    def send(self, name: str) -> None:
        """Do nothing: it is there."""


class Mirror:
    """A local folder and a URI, kept in step.

    Raises:
        ValueError: if no installed package knows such URIs.
    """

    def __init__(self, uri: str, scratch: Path | None = None) -> None:
        self.remote = Remote(uri)
        self.place = self.remote.uri
        self.uri: str | None = self.place
        if scratch is None:
            # The last word names the folder, so that messages that show it can be understood.
            name = self.place.rpartition("/")[2] or "study"
            temporary = tempfile.mkdtemp(prefix="nas-evidence-")
            weakref.finalize(self, shutil.rmtree, temporary, ignore_errors=True)
            scratch = Path(temporary) / name
        self.folder = scratch
        self.make_worker: MakeWorker | None = partial(StoredWorker, self.place)
        self._lease: RemoteLease | None = None
        self._sent: dict[str, Stamp] = {}
        self._homes: set[str] = set()
        self._journal_bytes = 0
        self._logs_at = 0.0

    @contextlib.contextmanager
    def held(self, *, steal: bool = False) -> Iterator[None]:
        """Hold the study alone, with all of it in `folder`; at the end all of it is stored.

        Raises:
            ValueError: if another process works on the study, or the store cannot be used.
        """
        self.remote.check()
        self._lease = RemoteLease(self.remote, steal=steal)
        try:
            self.pull()
            try:
                yield
            except StudyStoppedError:  # of a store that is silent, or somebody else's now
                raise
            except BaseException:
                with contextlib.suppress(StudyStoppedError):  # the first word counts
                    self.push(logs=True)
                raise
            self.push(logs=True)
        finally:
            with contextlib.suppress(StudyStoppedError):
                self._lease.release()
            self._lease = None

    def around(self, executor: Executor) -> Executor:
        """Return an executor that pushes before each launch and slice."""
        return MirroredExecutor(executor, self)

    def pull(self) -> None:
        """Make `folder` what is stored; checkpoints become empty files.

        Raises:
            StoreError: if the store cannot be used.
        """
        while not self._pull():  # a driver at work has removed what was just listed: list again
            time.sleep(0.1)

    def _pull(self) -> bool:
        there = self.remote.names()
        kept = {
            name
            for name in there.keys() & self._sent.keys()
            if _NEVER_CHANGES.match(name) and self._sent[name][0] == there[name]
        }
        self._clear(kept)
        parts = sorted(name for name in there if _PART.fullmatch(name))
        checkpoints = {name for name in there if _CHECKPOINT.fullmatch(name)}
        weights = {name for name in there if _WEIGHTS.fullmatch(name)}
        wanted = there.keys() - {*parts, *checkpoints, *weights, *kept}
        if self._lease is not None:
            wanted -= {"lock"}
        if not self.remote.download({name: self.folder / name for name in wanted}):
            return False
        for name in checkpoints:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            self.note_checkpoint(name)
        if parts:
            journal = journal_path(self.folder)
            journal.parent.mkdir(exist_ok=True)
            journal.write_bytes(b"".join(self.remote.read(name) or b"" for name in parts))
            self._journal_bytes = journal.stat().st_size
        self._sent = self._stamps()
        self._homes = {path.name for path in (self.folder / "checkpoints").glob("[0-9]*")}
        return True

    def push(self, *, logs: bool = False) -> None:
        """Store what changed in `folder`, in the order that keeps every prefix whole.

        Args:
            logs: Also of what is stored now and then only.

        Raises:
            StudyStoppedError: if the store cannot be used, or another process has the study.
        """
        self._check_lease()
        now = self._stamps()
        logs = logs or time.monotonic() - self._logs_at > LOGS_EVERY
        changed = [
            name
            for name, stamp in now.items()
            if self._sent.get(name) != stamp and (logs or not _SLOW_LOGS.fullmatch(name))
        ]
        for name in sorted(changed, key=lambda n: (_rank(n), n)):
            self._upload(name)
            self._sent[name] = now[name]
        self.push_journal()
        gone = [name for name in self._sent if name not in now]
        self.remote.remove(n for n in gone if not n.startswith("checkpoints/"))
        homes = {path.name for path in (self.folder / "checkpoints").glob("[0-9]*")}
        for home in sorted(self._homes - homes):
            self.remote.remove(self.remote.names(f"checkpoints/{home}"))
        self._homes = homes
        for name in gone:
            del self._sent[name]
        if logs:
            self._logs_at = time.monotonic()

    def push_journal(self) -> None:
        """Store the lines of the journal that are not stored yet.

        Raises:
            StudyStoppedError: as `push`.
        """
        path = journal_path(self.folder)
        size = path.stat().st_size if path.exists() else 0
        if size == self._journal_bytes:
            return
        self._check_lease()
        with path.open("rb") as file:
            for number in range(self._journal_bytes // PART_BYTES, -(-size // PART_BYTES)):
                file.seek(number * PART_BYTES)
                self.remote.write(f"logs/events/{number:06d}.jsonl", file.read(PART_BYTES))
        self._journal_bytes = size

    def send(self, name: str) -> None:
        """Store one file of `folder`, without holding the study: a request to its driver."""
        self.remote.upload(self.folder / name, name)

    def look_for_requests(self) -> None:
        """Take up the requests that others have sent; those that are done are removed there."""
        for name in self.remote.names("requests"):
            if name not in self._sent:
                path = self.folder / name
                path.parent.mkdir(exist_ok=True)
                path.touch()
                self._sent[name] = _stamp(path)

    def note_checkpoint(self, name: str) -> None:
        """Take note that a worker has stored a checkpoint, if its attempt still counts."""
        if (self.folder / name).parent.is_dir():
            (self.folder / name).touch()

    def fetch_weights(self, attempt: str) -> None:
        """Fetch the weights that an attempt has stored, if its trial still counts."""
        name = f"{attempt}/model.safetensors"
        if (self.folder / attempt).is_dir() and name in self.remote.names(attempt):
            self.remote.download({name: self.folder / name})

    def _upload(self, name: str) -> None:
        if name != _DATABASE:
            self.remote.upload(self.folder / name, name)
            return
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / _DATABASE
            source = sqlite3.connect(self.folder / _DATABASE)
            target = sqlite3.connect(copy)
            with contextlib.closing(source), contextlib.closing(target):
                source.backup(target)
            self.remote.upload(copy, name)

    def _stamps(self, below: str = "") -> dict[str, Stamp]:
        """Return what is in the folder and is stored from here."""
        found: dict[str, Stamp] = {}
        with os.scandir(self.folder / below) as entries:  # a launch must not wait for pathlib
            for entry in entries:
                name = below + entry.name
                if _NOT_OURS.match(name):
                    continue
                if entry.is_dir():
                    found |= self._stamps(f"{name}/")
                elif not below.startswith("checkpoints/") or _ASSIGNMENT.fullmatch(name):
                    with contextlib.suppress(FileNotFoundError):  # a log that was just renewed
                        facts = entry.stat()
                        found[name] = facts.st_size, facts.st_mtime_ns
        return found

    def _check_lease(self) -> None:
        if self._lease is not None:
            self._lease.check()

    def _clear(self, kept: Container[str]) -> None:
        """Remove all but what is known to be as it is stored: another driver may have gone on."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.rglob("*"):
            if not path.is_dir() and path.relative_to(self.folder).as_posix() not in kept:
                path.unlink()
        for home in self.folder.glob("checkpoints/*"):
            shutil.rmtree(home)


def _rank(name: str) -> int:
    return next((i for i, start in enumerate(_ORDER) if name.startswith(start)), len(_ORDER))


def _stamp(path: Path) -> Stamp:
    facts = path.stat()
    return facts.st_size, facts.st_mtime_ns
