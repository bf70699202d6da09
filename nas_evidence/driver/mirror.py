"""Where a study is stored: a folder, or an fsspec URI mirrored by a local folder.

The driver always works in a local folder; `Mirror` copies its changes to the URI, so that another
driver can pull and continue after the machine is lost. A push writes in the order of `driver.py`,
so any prefix of its writes is a state in which that driver could have been killed:

    data/, study.toml, warm_start.json, models/, evidence/ terms/ curves/, trials/ (the commit
    marker), the log (the record of proposals), logs/, then removals

Everything is pushed before each launch, so that every running trial is known to the store; the
journal, which holds the scores at the rungs, before each slice. Between pushes the store lags
slightly behind the driver: lost work is rerun from its checkpoint, with equal results.
Workers exchange checkpoints with the store directly (`workers/stored.py`); here they are empty
files, because the driver reads only their names.

`logs/events.jsonl` is stored in parts of 64 KiB, `logs/events/<n>.jsonl`, so that adding a line
takes one small write however long the study is.
"""

import atexit
import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

from nas_evidence.plumbing.user_error import Mistake, UserError
from nas_evidence.spec.record import LossKind, SliceReport, TrialRecord
from nas_evidence.spec.toml import StudyError
from nas_evidence.storage.faults import StudyStoppedError
from nas_evidence.storage.log import log_path
from nas_evidence.storage.remote import Remote, StoreError, is_uri
from nas_evidence.storage.remote_lease import RemoteLease
from nas_evidence.workers.executor import Event, Executor, Launch, Lost
from nas_evidence.workers.process import MakeWorker
from nas_evidence.workers.stored import StoredWorker, attempt_of

#: Seconds between two pushes of the logs and of study.db, which change all the time.
LOGS_EVERY = 30.0
#: Seconds between two checks for requests from other processes.
_LOOK_EVERY = 5.0
#: Size of one part of the journal, bytes.
PART_BYTES = 64 * 1024
#: The order of a push, by name prefix; other names come last.
_ORDER = (
    "data/",
    "study.toml",
    "warm_start.json",
    "models/",
    "evidence/",
    "terms/",
    "curves/",
    "trials/",
    "checkpoints/",
)
#: The place in that order before which the journal is stored.
_AFTER_JOURNAL = _ORDER.index("checkpoints/")
_CHECKPOINT = re.compile(r"checkpoints/\d+/attempt-\d+/epoch-\d+\.pt")
_WEIGHTS = re.compile(r"checkpoints/\d+/attempt-\d+/model\.safetensors")
_PART = re.compile(r"logs/events/\d+\.jsonl")
#: Uploaded by its writer, or never.
_NOT_OURS = re.compile(r"lock$|study\.db-|logs/worker-|logs/events|(.*/)?\.")
_NEVER_CHANGES = re.compile(r"(evidence|terms|curves|trials)/")
_SLOW_LOGS = re.compile(r"logs/.*\.log$|study\.db$")
#: Not fetched, and left as they are here, for whoever only looks at the results.
_NOT_LOOKED_AT = re.compile(r"(models|data|export|report|damaged)/|study\.db")

Stamp = tuple[int, int]  # size, modification time in ns


class Store:
    """Where a study is stored: a folder on this machine, or one shared by all machines.

    folder       local folder in which the driver works
    place        the store as the user named it
    uri          the same if it is a URI, else None
    make_worker  makes workers that store their checkpoints there; None for the plain worker
    looking      whether `pull` fetches results and logs only
    """

    uri: str | None = None
    looking = False
    make_worker: MakeWorker | None = None

    def __init__(self, folder: Path, place: str | None = None) -> None:
        self.folder, self.place = folder, place or str(folder)

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Let errors of the block name the store as the user did, not the folder it is in here."""
        try:
            yield
        except StudyError as error:
            mistakes = [Mistake(code, self._named(text)) for code, text in error.mistakes]
            raise StudyError(mistakes) from None
        except UserError as error:
            if type(error) is UserError:
                raise UserError(self._named(str(error))).with_code(error.code) from None
            raise

    def _named(self, text: str) -> str:
        return text.replace(str(self.folder), self.place)

    @contextlib.contextmanager
    def held(self, *, steal: bool = False) -> Iterator[None]:
        """Do nothing: a folder is protected by its own lock."""
        yield

    def around(self, executor: Executor) -> Executor:
        """Return an executor that keeps the store up to date; for a folder the given one."""
        return executor

    def check_answers(self) -> None:
        """Check that the store answers soon."""

    def pull(self) -> None:
        """Fetch what is stored, to read it."""

    def push(self, *, logs: bool = False) -> None:
        """Store what changed in `folder`."""

    def send(self, name: str) -> None:
        """Store one file of `folder` without holding the study: a request to its driver."""


def open_store(place: str, scratch: Path | None = None) -> Store:
    """Return the store of a study, given as the path of a folder or as a URI.

    Args:
        place: `runs/digits`, `/nfs/digits`, `s3://bucket/digits`, `file:///nfs/digits`, ...
        scratch: folder to work in if `place` is a URI; a temporary one by default.

    Raises:
        ValueError: if no installed package handles such URIs.
    """
    return Mirror(place, scratch) if is_uri(place) else Store(Path(place).expanduser())


class Mirror(Store):
    """A local folder mirrored to a URI.

    Raises:
        ValueError: if no installed package handles such URIs.
    """

    def __init__(self, uri: str, scratch: Path | None = None) -> None:
        self.remote = Remote(uri)
        self.uri = self.remote.uri
        if scratch is None:
            # The folder gets the last part of the URI as its name: messages may show it.
            name = self.uri.rpartition("/")[2] or "study"
            temporary = tempfile.mkdtemp(prefix="nas-evidence-")
            atexit.register(shutil.rmtree, temporary, ignore_errors=True)
            scratch = Path(temporary) / name
        super().__init__(scratch, self.uri)
        self.make_worker = partial(StoredWorker, self.uri)
        self._lease: RemoteLease | None = None
        self._sent: dict[str, Stamp] = {}
        self._homes: set[str] = set()
        self._journal_bytes = self._journal_inode = 0
        self._logs_at = 0.0

    @contextlib.contextmanager
    def held(self, *, steal: bool = False) -> Iterator[None]:
        """Hold the study exclusively, complete in `folder`; at the end everything is stored.

        Raises:
            ValueError: if another process works on the study, or the store cannot be used.
        """
        self.remote.check_answers()
        self.remote.check()
        self._lease = RemoteLease(Remote(self.place), steal=steal)
        self.remote.guard = self._lease.check
        try:
            self.pull()
            try:
                with self.named():
                    yield
            except StudyStoppedError:  # the store is silent, or taken over
                raise
            except BaseException:
                with contextlib.suppress(StudyStoppedError):  # raise the first error
                    self.push(logs=True)
                raise
            self.push(logs=True)
        finally:
            with contextlib.suppress(StudyStoppedError):
                self._lease.release()
            self._lease, self.remote = None, Remote(self.place)

    def around(self, executor: Executor) -> Executor:
        """Return an executor that pushes before each launch and slice."""
        return cast("Executor", MirroredExecutor(executor, self))

    def check_answers(self) -> None:
        """Check that the store answers soon.

        Raises:
            StoreError: if it does not.
        """
        self.remote.check_answers()

    def pull(self) -> None:
        """Make `folder` equal to the store; checkpoints become empty files.

        Raises:
            StoreError: if the store cannot be used.
        """
        while not self._pull():  # a running driver has removed a listed file: list again
            time.sleep(0.1)

    def _pull(self) -> bool:
        names = self.remote.names()
        there = {name: size for name, size in names.items() if not self._skips(name)}
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
            journal = log_path(self.folder)
            journal.parent.mkdir(exist_ok=True)
            journal.write_bytes(b"".join(self.remote.read(name) or b"" for name in parts))
            self._journal_bytes = journal.stat().st_size
            self._journal_inode = journal.stat().st_ino
        self._sent = self._stamps()
        self._homes = {path.name for path in (self.folder / "checkpoints").glob("[0-9]*")}
        return True

    def push(self, *, logs: bool = False) -> None:
        """Store what changed in `folder`, in an order that keeps every prefix consistent.

        Args:
            logs: Also store the logs, which are otherwise stored only now and then.

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
        changed.sort(key=lambda n: (_rank(n), n))
        n_before = sum(_rank(name) < _AFTER_JOURNAL for name in changed)
        self._upload(changed[:n_before], now)
        self.push_journal()
        self._upload(changed[n_before:], now)
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
        path = log_path(self.folder)
        facts = path.stat() if path.exists() else None
        size, inode = (0, 0) if facts is None else (facts.st_size, facts.st_ino)
        if (size, inode) == (self._journal_bytes, self._journal_inode):
            return
        n_parts, first = -(-size // PART_BYTES), self._journal_bytes // PART_BYTES
        if inode != self._journal_inode:  # written anew without its broken lines
            first = 0
        with path.open("rb") as file:
            for number in range(first, n_parts):
                file.seek(number * PART_BYTES)
                self.remote.write(_part(number), file.read(PART_BYTES))
        self.remote.remove(_part(k) for k in range(n_parts, -(-self._journal_bytes // PART_BYTES)))
        self._journal_bytes, self._journal_inode = size, inode

    def send(self, name: str) -> None:
        """Store one file of `folder` without holding the study: a request to its driver."""
        self.remote.upload(self.folder / name, name)

    def look_for_requests(self) -> None:
        """Fetch the requests of other processes; remove finished ones from the store."""
        for name in self.remote.names("requests"):
            if name not in self._sent:
                path = self.folder / name
                path.parent.mkdir(exist_ok=True)
                path.touch()
                self._sent[name] = _stamp(path)

    def note_checkpoint(self, name: str) -> None:
        """Record that a worker has stored a checkpoint, if its attempt is current."""
        if (self.folder / name).parent.is_dir():
            (self.folder / name).touch()

    def fetch_weights(self, attempt: str) -> None:
        """Fetch the weights that an attempt has stored, if it is current."""
        name = f"{attempt}/model.safetensors"
        if (self.folder / attempt).is_dir() and name in self.remote.names(attempt):
            self.remote.download({name: self.folder / name})

    def _upload(self, names: Iterable[str], now: Mapping[str, Stamp]) -> None:
        for name in names:
            self.remote.upload(self.folder / name, name)
            self._sent[name] = now[name]

    def _stamps(self, below: str = "") -> dict[str, Stamp]:
        """Return the files of the folder that this process stores, with size and time."""
        found: dict[str, Stamp] = {}
        with os.scandir(self.folder / below) as entries:  # a launch must not wait for pathlib
            for entry in entries:
                name = below + entry.name
                if _NOT_OURS.match(name):
                    continue
                if entry.is_dir():
                    found |= self._stamps(f"{name}/")
                elif not below.startswith("checkpoints/"):
                    with contextlib.suppress(FileNotFoundError):  # a log was just replaced
                        facts = entry.stat()
                        found[name] = facts.st_size, facts.st_mtime_ns
        return found

    def _check_lease(self) -> None:
        if self._lease is not None:
            self._lease.check()

    def _skips(self, name: str) -> bool:
        return self.looking and _NOT_LOOKED_AT.match(name) is not None

    def _clear(self, kept: Container[str]) -> None:
        """Remove files not known to equal the stored ones: another driver may have run since."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.rglob("*"):
            name = path.relative_to(self.folder).as_posix()
            if not path.is_dir() and name not in kept and not self._skips(name):
                path.unlink()
        for home in self.folder.glob("checkpoints/*"):
            shutil.rmtree(home)


class MirroredExecutor:
    """Wraps an executor; stores what the driver has written before each launch and slice."""

    def __init__(self, inner: Executor, keeper: Mirror) -> None:
        self._inner, self._keeper = inner, keeper
        self._names: dict[tuple[int, int], str] = {}  # of attempts, by trial and attempt
        self._has_news = True
        self._looked = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def launch(self, launch: Launch) -> None:
        """Store that a trial was asked and assigned, then start it."""
        assignment = launch.assignment
        self._names[assignment.trial_id, assignment.attempt] = attempt_of(launch.folder)
        self._keeper.push()
        self._inner.launch(launch)

    def advance(self, trial_id: int, until_epoch: int, *, timeout: float | None = None) -> None:
        """Store the trial's score at a rung, then let it continue training."""
        # Once it has passed the rung, that score cannot be recovered.
        self._keeper.push_journal()
        self._inner.advance(trial_id, until_epoch, timeout=timeout)

    def poll(self, timeout: float) -> list[Event]:
        """Return what happened; fetch the weights of trials that are over.

        Raises:
            StoreError: a worker cannot use the store, which is not the trial's fault.
        """
        if self._has_news or time.monotonic() - self._looked > _LOOK_EVERY:
            self._keeper.look_for_requests()
            self._keeper.push()
            self._has_news, self._looked = False, time.monotonic()
        events = self._inner.poll(timeout)
        for event in events:
            self._arrived(event)
        return events

    def _arrived(self, event: Event) -> None:
        attempt = self._names.get((event.trial_id, event.attempt))
        if isinstance(event, Lost):
            if event.kind is LossKind.STORE:
                raise StoreError(event.cause).with_code("store-lost-on-worker")
        elif isinstance(event, SliceReport):
            if event.epoch and attempt:
                self._keeper.note_checkpoint(f"{attempt}/epoch-{event.epoch:06d}.pt")
            return
        elif isinstance(event, TrialRecord) and attempt:
            self._keeper.fetch_weights(attempt)
        self._names.pop((event.trial_id, event.attempt), None)
        self._has_news = True


def _part(number: int) -> str:
    return f"logs/events/{number:06d}.jsonl"


def _rank(name: str) -> int:
    return next((i for i, start in enumerate(_ORDER) if name.startswith(start)), len(_ORDER))


def _stamp(path: Path) -> Stamp:
    facts = path.stat()
    return facts.st_size, facts.st_mtime_ns
