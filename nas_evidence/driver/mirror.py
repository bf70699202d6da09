"""The working copy of a study: its folder, or a local folder that mirrors an fsspec URI.

The driver always works in a local folder; `Mirror` copies its changes to the URI, so that another
driver can pull and continue after the machine is lost. A push writes in the order of `driver.py`,
so any prefix of its writes is a state in which that driver could have been killed:

    data/, study.toml, warm_start.json, models/, evidence/ terms/ curves/, trials/ (the commit
    marker), the log (the record of proposals), logs/, then removals

Files of one step of that order travel at a time. Durable, that is at the store before the driver
goes on, are

    before a launch    all that is written: the proposal, every ended trial
    before a slice     the scores and verdicts at rungs, since who has passed a rung cannot be
                       scored there again; no other line of the log

Everything else goes with the next push: after a trial ended, or after `_LOOK_EVERY` seconds. What
the store lacks when a machine is lost is rerun from a checkpoint, with equal results.

Only what this process removed itself (`plumbing/removal.py`) is removed from the store. The folder
may lie where others clean up: what vanished is fetched again. Once an hour all files get a new
time of access, so that cleaners take them for files in use.

Workers exchange checkpoints with the store directly (`workers/stored.py`); here they are empty
files, because the driver reads only their names.

New lines of the log go as one object, the next `logs/events/<n>.jsonl`, created only if it is
absent. So whoever has created the next one has the study: the other driver's creation fails, and
it looks for that object before it changes anything else. Of 256 objects one more is made that
joins them, to be fetched in their place; it may be deleted, they stay.
"""

import atexit
import contextlib
import logging
import math
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, cast

from nas_evidence.plumbing.removal import forget_removals, is_below, noted_removals
from nas_evidence.plumbing.user_error import Mistake, StudyError, UserError
from nas_evidence.spec.record import LossKind, SliceReport, TrialRecord
from nas_evidence.storage.checkpoint_losses import losses_so_far
from nas_evidence.storage.faults import StoreError, StudyStoppedError
from nas_evidence.storage.holding import Holder, announced, refuse_if_held
from nas_evidence.storage.links import refuse_links
from nas_evidence.storage.log import (
    LOG,
    is_whole,
    joined,
    log_files,
    numbers_in,
    piece,
    taken_over,
    without_copies,
)
from nas_evidence.storage.store import Stamp, Store, is_uri
from nas_evidence.storage.study_folder import holder_of
from nas_evidence.storage.study_names import is_removable
from nas_evidence.workers.executor import Event, Executor, Launch, Lost, Verdict
from nas_evidence.workers.process import MakeWorker
from nas_evidence.workers.stored import StoredWorker, attempt_name

_LOG = logging.getLogger(__name__)
#: Seconds between two pushes of the logs and of study.db, which change all the time.
LOGS_EVERY = 30.0
#: Seconds between two checks for requests from other processes.
_LOOK_EVERY = 5.0
#: Seconds after which a driver looks again whether another one has taken the study over.
FENCE_EVERY = 5.0
#: Seconds between two times that all files here get a new time of access.
YOUNG_EVERY = 3600.0
#: How many objects of the log one more joins.
JOINED = 256
#: The order of a push, by name prefix; other names come last.
_ORDER: tuple[str | tuple[str, ...], ...] = (
    "data/", "study.toml", "warm_start.json", "models/", ("evidence/", "terms/", "curves/"),
    "trials/", f"{LOG}/",
)  # fmt: skip
_CHECKPOINT = re.compile(r"checkpoints/\d+/attempt-\d+/epoch-\d+\.pt")
#: Uploaded by its writer, or never.
_NOT_OURS = re.compile(r"lock$|study\.db-|logs/worker-|logs/events|(.*/)?\.")
_SLOW_LOGS = re.compile(r"logs/.*\.log$|study\.db$")
#: Lines of the log that are stored before the next slice begins.
_RUNG = re.compile(rb'"event": ?"(rung|judged)"')
#: What whoever only looks fetches, beside `lock` and the log, as often as there are new lines.
_RESULTS = (
    "warm_start.json", "how_read.json", "refit_of.json", "code/", "terms/", "curves/",
)  # fmt: skip
_SEEN = {
    "results": ("study.toml", "trials/", "evidence/", *_RESULTS),
    "status": ("study.toml", "submitted.json", "trials/", "evidence/"),
    "logs": ("study.toml",),
}

Looking = Literal["results", "status", "logs"]
#: Size, modification time in ns and number of the inode. Where times are in whole seconds, a file
#: that is replaced at once has the same time, and often the same size.
LocalStamp = tuple[int, int, int]


class WorkingCopy:
    """The folder of a study, on this machine or shared by all machines.

    folder       local folder in which the driver works
    place        the study as the user named it
    uri          the same if it is a URI, else None
    make_worker  makes workers that store their checkpoints there; None for the plain worker
    looking      at what somebody looks who changes nothing: `pull` fetches no more; else None
    """

    uri: str | None = None
    looking: Looking | None = None
    make_worker: MakeWorker | None = None

    def __init__(self, folder: Path, place: str | None = None) -> None:
        self.folder, self.place = folder, place or str(folder)

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Let errors of the block name the study as the user did, not the folder it is in here."""
        try:
            yield
        except StudyError as error:
            mistakes = [Mistake(code, self._named(text)) for code, text in error.mistakes]
            raise StudyError(mistakes) from None
        except UserError as error:
            if type(error) is UserError:
                raise UserError(error.code, self._named(str(error))) from None
            raise

    def _named(self, text: str) -> str:
        return text.replace(str(self.folder), self.place)

    @contextlib.contextmanager
    def held(self, *, steal: bool = False) -> Iterator[None]:
        """Check that no link leads out of the folder, which is protected by its own lock."""
        refuse_links(self.folder, self.place)
        yield

    @contextlib.contextmanager
    def looked_at(self, *, steal: bool = False) -> Iterator[None]:
        """Check that the study could be held, and read it; nothing is written at its place.

        Raises:
            ValueError: if another process works on the study, or may.
        """
        self.check_answers()
        self.looking = "results"
        self.pull()
        self.look("data/")
        lock = self.folder / "lock"
        held = lock.read_bytes() if lock.is_file() else b""
        refuse_if_held(held, self.place, Holder.is_dead_here, steal=steal)
        with self.named():
            yield

    def look_for_requests(self) -> None:
        """Fetch the requests of other processes."""

    def losses_so_far(self, checkpoint: Path) -> list[tuple[int, float]]:
        """Return epoch and loss of a trial under way, by the path of its checkpoint here."""
        return losses_so_far(checkpoint)

    def around(self, executor: Executor) -> Executor:
        """Return an executor that keeps the store up to date; for a folder the given one."""
        return executor

    def check_answers(self) -> None:
        """Check that the store answers soon, and that no link leads out of it.

        Raises:
            ValueError: if one does.
        """
        if os.path.lexists(self.folder / "study.toml"):  # else its links are nobody's matter
            refuse_links(self.folder, self.place)

    def pull(self) -> None:
        """Fetch what is stored, to read it."""

    def look(self, *places: str) -> None:
        """Fetch these files, and all below these folders, which end with a slash."""

    def push(self, *, logs: bool = False) -> None:
        """Store what changed in `folder`."""

    def send(self, name: str) -> None:
        """Store one file of `folder` without holding the study: a request to its driver."""


def working_copy(place: str, scratch: Path | None = None) -> WorkingCopy:
    """Return the working copy of a study, given as the path of a folder or as a URI.

    Args:
        place: `runs/digits`, `/nfs/digits`, `s3://bucket/digits`, `file:///nfs/digits`, ...
        scratch: folder to work in if `place` is a URI; a temporary one by default.

    Raises:
        ValueError: if no installed package handles such URIs, or if no place has such a name.
    """
    if "\0" in place:
        raise UserError(
            "place-of-code-0",
            f"{place!r} has a character of code 0, which no folder has; correct the path.",
        )
    return Mirror(place, scratch) if is_uri(place) else WorkingCopy(Path(place).expanduser())


class Mirror(WorkingCopy):
    """A local folder mirrored to a URI.

    Raises:
        ValueError: if no installed package handles such URIs.
    """

    def __init__(self, uri: str, scratch: Path | None = None) -> None:
        self.store = Store(uri)
        self.uri = self.store.place
        if scratch is None:
            # The folder gets the last part of the URI as its name: messages may show it.
            name = self.uri.rpartition("/")[2] or "study"
            temporary = tempfile.mkdtemp(prefix="nas-evidence-")
            atexit.register(shutil.rmtree, temporary, ignore_errors=True)
            scratch = Path(temporary) / name
        super().__init__(scratch, self.uri)
        self.make_worker = partial(StoredWorker, self.uri)
        self._fetched: dict[str, tuple[Stamp, LocalStamp]] = {}  # what is here as it is there
        self._damaged: set[str] = set()  # joined objects of the log that are not used
        self._sent: dict[str, LocalStamp] = {}
        self._removed: set[str] = set()  # by this process, since the last push
        self._logs_at = 0.0
        self._young_at = time.monotonic()
        self._knows_log = False
        self._log: list[str] = []  # the objects of the log there
        self._next = self._lowest = 0  # number of the next one, and of the first file here
        self._unsent = (0, 0)  # where the lines begin that are not there: file here, byte
        self._joined = b""  # the objects since the last joined one
        self._fencing = threading.Lock()  # files are uploaded by several threads
        self._fenced_at = 0.0, 0.0  # monotonic, wall

    @contextlib.contextmanager
    def held(self, *, steal: bool = False) -> Iterator[None]:
        """Hold the study exclusively, complete in `folder`; at the end everything is stored.

        Raises:
            ValueError: if another process works on the study, or the store cannot be used.
        """
        self.store.check_answers()
        self.store.check()
        plain = Store(self.place)
        get = partial(plain.get, "lock")

        def put(content: bytes, *, if_absent: bool = False) -> None:
            if content:
                plain.put("lock", content, if_absent=if_absent)
            else:
                plain.delete(["lock"])

        with announced(self.place, get, put, Holder.is_dead_here, steal=steal):
            try:
                self.pull()
                self._removed = noted_removals(self.folder)
                self.store.guard = self._check_fence
                try:
                    with self.named():
                        yield
                except StudyStoppedError:  # the store is silent, or the study taken over
                    raise
                except BaseException:
                    with contextlib.suppress(StudyStoppedError):  # raise the first error
                        self.push(logs=True)
                    raise
                self.push(logs=True)
            finally:
                self.store = plain
                forget_removals(self.folder)

    def around(self, executor: Executor) -> Executor:
        """Return an executor that stores before a launch or a slice what must be durable."""
        return cast("Executor", MirroredExecutor(executor, self))

    def check_answers(self) -> None:
        """Check that the store answers soon.

        Raises:
            StoreError: if it does not.
        """
        self.store.check_answers()

    def losses_so_far(self, checkpoint: Path) -> list[tuple[int, float]]:
        """Return the same from the store: here a checkpoint is an empty file."""
        name = checkpoint.relative_to(self.folder).as_posix()
        return self.store.read_parts(name, losses_so_far) or []

    # --- from the store

    def pull(self) -> None:
        """Make `folder` equal to the store; fetch only what changed since the last time.

        Checkpoints become empty files. Who only looks lists no more than what may have changed.

        Raises:
            StoreError: if the store cannot be used.
        """
        if self.looking is None:
            self._look_below("")
            self._sent = self._stamps()
            return
        known, before = self._next if self._knows_log else -1, holder_of(self.folder)
        self.look("lock")
        holder = holder_of(self.folder)
        if holder and (before is None or holder.since != before.since):
            self._knows_log = False  # it may have been mended
        self.look(f"{LOG}/" if self._knows_log else "logs/")
        self.look(*(["checkpoints/"] if self.looking == "results" else []))
        self.look(*(_SEEN[self.looking] if self._next != known else ()))

    def look(self, *places: str) -> None:
        """Fetch these files, and all below these folders; of a known log what is later."""
        for place in places:
            if place == f"{LOG}/" and self._knows_log:
                while self._fetch_one(piece(self._next)):
                    self._next += 1
            elif place.endswith("/"):
                self._look_below(place)
            else:
                self._fetch_one(place)

    def _look_below(self, place: str) -> None:
        while not self._fetch(self.store.list(place.rstrip("/")), place):
            time.sleep(0.1)  # a driver has removed a listed file

    def _fetch_one(self, name: str) -> bool:
        content, path = self.store.get(name), self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(content)
        return content is not None

    def _fetch(self, listed: Mapping[str, Stamp], below: str = "") -> bool:
        """Make what is below a folder equal to what is listed there; return whether it is."""
        left = re.compile(r"logs/.*\.log" if self.looking in ("status", "results") else "")
        there = {name: stamp for name, stamp in listed.items() if not left.fullmatch(name)}
        log = [name for name in there if numbers_in(name)]
        unread = {*log} - {*without_copies(name for name in log if name not in self._damaged)}
        checkpoints = {name for name in there if _CHECKPOINT.fullmatch(name)}
        wanted = there.keys() - checkpoints - unread
        wanted -= {name for name in wanted if name.startswith("checkpoints/")}
        kept = {name for name in wanted if self._is_here(name, there[name])}
        self._clear(below, {*kept, *checkpoints})
        if not self.store.download({name: self.folder / name for name in wanted - kept}):
            return False
        for name in wanted - kept:
            self._fetched[name] = there[name], _stamp(self.folder / name)
        for name in checkpoints:
            self.note_checkpoint(name)
        copies = {name for name in wanted - kept if numbers_in(name) and "-" in name}
        damaged = {name for name in copies if not is_whole(self.folder / name)}
        self._damaged |= damaged
        if not damaged and f"{LOG}/".startswith(below):
            self._note_log(log)
        return not damaged

    def _note_log(self, names: list[str]) -> None:
        """Note which objects of the log there are, and where the next lines go."""
        numbers = {name: numbers_in(name) or (0, 0) for name in names}
        self._log, self._next = names, 1 + max((last for _, last in numbers.values()), default=-1)
        self._knows_log, self._unsent = True, (self._next, 0)
        self._lowest = min((first for first, _ in numbers.values()), default=0)
        block = range(self._next // JOINED * JOINED, self._next)
        here = (self.folder / piece(number) for number in block)
        self._joined = b"".join(path.read_bytes() for path in here if path.exists())

    def _is_here(self, name: str, stamp: Stamp) -> bool:
        known, here = self._fetched.get(name), self.folder / name
        if known is None or not stamp.equals(known[0]) or not here.is_file():
            return False
        return _stamp(here) == known[1]  # as it was fetched

    def _clear(self, below: str, kept: Container[str]) -> None:
        """Remove what is not known to equal the store: another driver may have run since."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in sorted((self.folder / below).rglob("*"), reverse=True):
            name = path.relative_to(self.folder).as_posix()
            if path.is_dir():
                if name.startswith("checkpoints/"):
                    with contextlib.suppress(OSError):  # not empty
                        path.rmdir()
            elif name not in kept:
                path.unlink()

    # --- to the store

    def push(self, *, logs: bool = False) -> None:
        """Store what changed in `folder`, in an order that keeps every prefix consistent.

        Args:
            logs: Also store the logs, which are otherwise stored only now and then.

        Raises:
            StudyStoppedError: if the store cannot be used, or another process has the study.
        """
        self.store.guard()
        removed, now = {*self._removed}, self._stamps()
        logs = logs or time.monotonic() - self._logs_at > LOGS_EVERY
        changed = [
            name
            for name, stamp in now.items()
            if self._sent.get(name) != stamp and (logs or not _SLOW_LOGS.fullmatch(name))
        ]
        for _, step in groupby(sorted([*changed, f"{LOG}/"], key=_rank), key=_rank):
            names = [*step]
            if f"{LOG}/" in names:
                self.push_log()
            else:
                self._upload(names, now)
        self._remove([n for n in self._sent if n not in now and is_below(n, removed)])
        self._restore([n for n in self._sent if n not in now])
        self._removed -= removed
        self._keep_young()
        if logs:
            self._logs_at = time.monotonic()

    def push_log(self, *, of_rungs: bool = False) -> None:
        """Store the lines of the log that are not stored yet, or if some are `of_rungs`."""
        content, end, lowest = self._new_lines()
        if not content or (of_rungs and not _RUNG.search(content)):
            return
        name = piece(self._next)
        written = self.store.put(name, content, if_absent=True)
        there = content if written else self.store.get(name) or b""
        if not there or not content.startswith(there):
            raise taken_over(there, self.place)
        self._next, self._unsent, self._fenced_at = self._next + 1, end, _clocks()
        if there != content:  # half of ours; the answer was lost
            self.store.put(name, content)
        if lowest > self._lowest:  # the log was mended: what is before is void
            self.store.delete(self._log)
            self._lowest, self._log, self._joined = lowest, [], b""
        self._log.append(name)
        self._joined += content
        if self._next % JOINED == 0:
            first, last = (Path(piece(n)).stem for n in (self._next - JOINED, self._next - 1))
            self._log.append(f"{LOG}/{first}-{last}.jsonl")
            self.store.put(self._log[-1], joined(self._joined))
            self._joined = b""

    def _new_lines(self) -> tuple[bytes, tuple[int, int], int]:
        """Return the lines that are not stored yet, where they end, and the first file here."""
        content, (file, byte), numbers = b"", self._unsent, list[int]()
        for path in log_files(self.folder):
            numbers += (numbers_in(path.as_posix()) or ())[:1]
            if numbers[-1] >= self._unsent[0]:
                byte = byte if numbers[-1] == file else 0
                with path.open("rb") as lines:
                    lines.seek(byte)
                    content += (new := lines.read())
                file, byte = numbers[-1], byte + len(new)
        return content, (file, byte), min(numbers, default=0)

    def send(self, name: str) -> None:
        """Store one file of `folder` without holding the study: a request to its driver."""
        self.store.upload({name: self.folder / name})

    def look_for_requests(self) -> None:
        """Fetch the requests of other processes; remove finished ones from the store."""
        for name in self.store.list("requests"):
            if name not in self._sent and is_removable(name):
                path = self.folder / name
                path.parent.mkdir(exist_ok=True)
                path.touch()
                self._sent[name] = _stamp(path)

    def note_checkpoint(self, name: str) -> None:
        """Record that a worker has stored a checkpoint of a current attempt."""
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)  # it may have vanished
        (self.folder / name).touch()

    def fetch_weights(self, attempt: str) -> None:
        """Fetch the weights that a current attempt has stored, if there are some."""
        name = f"{attempt}/model.safetensors"
        self.store.download({name: self.folder / name})

    def _upload(self, names: Iterable[str], now: Mapping[str, LocalStamp]) -> None:
        self.store.upload({name: self.folder / name for name in names if name[-1] != "/"})
        self._sent |= {name: now[name] for name in names}

    def _remove(self, names: Collection[str]) -> None:
        """Remove from the store what this process has removed here."""
        gone = [name for name in names if name[-1] != "/"]
        for home in (name for name in names if name[-1] == "/"):
            gone += self.store.list(home.rstrip("/"))
        self.store.delete(gone)
        for name in names:
            del self._sent[name]

    def _restore(self, vanished: Collection[str]) -> None:
        """Fetch again what vanished here: the store may have the only copy."""
        for name in vanished:
            _LOG.warning("vanished place=%s folder=%s; fetched again", name, self.folder)
            if name[-1] == "/":
                (self.folder / name).mkdir(parents=True, exist_ok=True)
                there = [one for one in self.store.list(name[:-1]) if _CHECKPOINT.fullmatch(one)]
                for one in there:
                    self.note_checkpoint(one)
            elif self.store.download({name: self.folder / name}):
                self._sent[name] = _stamp(self.folder / name)
            else:  # whoever may write there has removed it
                del self._sent[name]

    def _keep_young(self) -> None:
        """Set the time of access of all files here, now and then."""
        if time.monotonic() - self._young_at < YOUNG_EVERY:
            return
        self._young_at, now = time.monotonic(), time.time_ns()
        for path in (self.folder.parent, self.folder, *self.folder.rglob("*")):
            with contextlib.suppress(OSError):  # it has just been removed
                os.utime(path, ns=(now, path.stat().st_mtime_ns))

    def _stamps(self, below: str = "") -> dict[str, LocalStamp]:
        """Return the files of the folder that this process stores, with size and time."""
        found: dict[str, LocalStamp] = {}
        with os.scandir(self.folder / below) as entries:  # a launch must not wait for pathlib
            for entry in entries:
                name = below + entry.name
                if _NOT_OURS.match(name) or entry.is_symlink():
                    continue
                if below == "checkpoints/":  # of a trial: its workers store what is in it
                    found[f"{name}/"] = 0, 0, 0
                elif entry.is_dir():
                    found |= self._stamps(f"{name}/")
                else:
                    with contextlib.suppress(FileNotFoundError):  # a log was just replaced
                        found[name] = _stamp_of(entry.stat())
        return found

    def _check_fence(self) -> None:
        """Look now and then whether another driver has created the next object of the log.

        By two clocks: that of the wall may be set back, the other stands still in a sleep.
        """
        with self._fencing:
            now = _clocks()
            if all(0 <= a - b < FENCE_EVERY for a, b in zip(now, self._fenced_at, strict=True)):
                return
            if (there := self.store.get(piece(self._next))) is not None:
                raise taken_over(there, self.place)
            self._fenced_at = now


class MirroredExecutor:
    """Wraps an executor; stores before each launch and slice what must be durable by then."""

    def __init__(self, inner: Executor, keeper: Mirror) -> None:
        self._inner, self._keeper = inner, keeper
        self._names: dict[tuple[int, int], str] = {}  # of current attempts, by trial and attempt
        self._has_news = True
        self._looked = -math.inf

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def launch(self, launch: Launch) -> None:
        """Store that a trial was asked and assigned, then start it."""
        assignment = launch.assignment
        trial_id = assignment.trial_id  # messages of its earlier attempts count no more
        self._names = {key: name for key, name in self._names.items() if key[0] != trial_id}
        self._names[trial_id, assignment.attempt] = attempt_name(launch.folder)
        self._keeper.push()
        self._inner.launch(launch)

    def advance(self, trial_id: int, until_epoch: int, *, timeout: float | None = None) -> None:
        """Store the trial's score at a rung, then let it continue training."""
        # Once it has passed the rung, that score cannot be recovered.
        self._keeper.push_log(of_rungs=True)
        self._inner.advance(trial_id, until_epoch, timeout=timeout)

    def finish(self, trial_id: int, verdict: Verdict | None = None) -> None:
        """Store the scores at rungs, then ask for a trial's record."""
        # The record reaches the store before the log: its rivals must know the score by then.
        self._keeper.push_log(of_rungs=True)
        self._inner.finish(trial_id, verdict)

    def poll(self, timeout: float) -> list[Event]:
        """Return what happened; fetch the weights of trials that are over.

        Raises:
            StoreError: a worker cannot use the store, which is not the trial's fault.
        """
        is_due = time.monotonic() - self._looked > _LOOK_EVERY
        if is_due:
            self._keeper.look_for_requests()
            self._looked = time.monotonic()
        if is_due or self._has_news:
            self._keeper.push()
            self._has_news = False
        events = self._inner.poll(timeout)
        for event in events:
            self._arrived(event)
        return events

    def _arrived(self, event: Event) -> None:
        attempt = self._names.get((event.trial_id, event.attempt))
        if isinstance(event, Lost):
            if event.kind is LossKind.STORE:
                raise StoreError("store-lost-on-worker", event.cause)
        elif isinstance(event, SliceReport):
            if event.epoch and attempt and event.saved:
                self._keeper.note_checkpoint(f"{attempt}/epoch-{event.epoch:06d}.pt")
            return
        elif isinstance(event, TrialRecord) and attempt:
            self._keeper.fetch_weights(attempt)
        self._names.pop((event.trial_id, event.attempt), None)
        self._has_news = True


def _clocks() -> tuple[float, float]:
    return time.monotonic(), time.time()


def _rank(name: str) -> int:
    return next((i for i, start in enumerate(_ORDER) if name.startswith(start)), len(_ORDER))


def _stamp(path: Path) -> LocalStamp:
    return _stamp_of(path.stat())


def _stamp_of(facts: os.stat_result) -> LocalStamp:
    return facts.st_size, facts.st_mtime_ns, facts.st_ino
