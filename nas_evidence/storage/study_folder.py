"""The folder of a study: create it, continue it, and lock it.

Needs neither torch nor ray, so that the folder exists before anything slow or fragile starts.
"""

import contextlib
import difflib
import fcntl
import os
import re
import shlex
import socket
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path

from nas_evidence.plumbing.backoff import try_again
from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.seals import DamagedError, read_sealed_json, sealed_json
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.study import StudySpec
from nas_evidence.spec.toml import differences, dump_study, load_study
from nas_evidence.storage.conditions import check_conditions, keep_copy
from nas_evidence.storage.faults import StudyStoppedError, about_disk
from nas_evidence.storage.requests import withdraw

_SUBFOLDERS = ("trials", "evidence", "terms", "curves", "models", "checkpoints", "logs")
_HALF_WRITTEN = ".study.toml."
#: Seconds between two renewals of the lease, and seconds until it expires without one.
RENEW_EVERY, LEASE_SECONDS = 10.0, 60.0
_LEASE_BYTES = 512


@dataclass(frozen=True)
class Lease:
    """Which process holds a study, when its lease expires, and since when it has held it.

    Times are in seconds since 1970; `since` is 0 if it is not known.
    """

    pid: int
    host: str
    boot_id: str
    expires_at: float
    since: float = 0.0

    def __str__(self) -> str:
        since = f", since {_when(self.since)}" if self.since else ""
        return f"process {self.pid} of host {self.host}{since}"


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
    path = folder / "study.toml"
    refuse_links(folder)
    if not path.is_file() and _is_foreign(folder):
        raise UserError(
            f"{folder} is neither empty nor a study folder (it has no study.toml); "
            "give another one with --out."
        ).with_code("folder-not-empty")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / "lock").touch()
    except OSError as error:
        raise UserError(
            f"{folder} cannot be created or written: {error.strerror}; give another with --out."
        ).with_code("folder-not-writable") from None
    with locked(folder, steal=steal):  # a running study keeps its file
        if path.is_file():
            old = load_study(path)
            if different := differences(old, study):
                raise UserError(
                    f"{folder} holds a study that differs: "
                    + "; ".join(different)
                    + ". Give another folder with --out, or the same study."
                ).with_code("folder-of-another-study")
            check_conditions(folder, old)
            study = study.model_copy(update={"n_trials": max(old.n_trials, study.n_trials)})
        keep_copy(folder, study)
        write_whole(path, dump_study(study))
        withdraw(folder)  # an old request to stop
    for name in _SUBFOLDERS:
        (folder / name).mkdir(exist_ok=True)
    return study


def read_study(folder: Path, overrides: Iterable[str] = ()) -> StudySpec:
    """Return the study of a folder, with `table.key=value` overrides.

    Raises:
        ValueError: if `folder` is not a study folder, its file was changed in more than the
            `FREE_KEYS` after trials had run, or for a wrong override.
    """
    if not (folder / "study.toml").is_file():
        export = any((folder / name).is_file() for name in ("meaning.json", "ensemble.json"))
        remedy = " It is an export: nas_evidence.Predictor.load reads it." if export else ""
        hint = remedy or _near(folder)
        raise UserError(f"{folder} is not a study folder: it has no study.toml.{hint}").with_code(
            "not-a-study-folder"
        )
    refuse_links(folder)
    study = load_study(folder / "study.toml")
    check_conditions(folder, study)
    return load_study(folder / "study.toml", overrides) if (overrides := [*overrides]) else study


def _near(folder: Path) -> str:
    """Return a question for a study of a similar name, beside the folder or in runs/."""
    homes = (Path("runs"), folder.parent)
    studies = {
        file.parent.name: file.parent for home in homes for file in home.glob("*/study.toml")
    }
    near = difflib.get_close_matches(folder.name, studies, n=1)
    return f" Did you mean {studies[near[0]]}?" if near else ""


def refuse_links(folder: Path) -> None:
    """Refuse a folder with a link that leads out of it, or with what is neither file nor folder.

    What is written there would go elsewhere; who reads a pipe waits for ever.

    Raises:
        ValueError: names the link, and where it leads, or the other thing.
    """
    home = folder.resolve()
    for place, folders, files in os.walk(home):
        for path in (Path(place) / name for name in (*folders, *files)):
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:  # a driver has removed it
                continue
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
                raise UserError(
                    f"{folder}/{path.relative_to(home)} is neither a file nor a folder, but a "
                    "pipe, a socket or a device; remove it."
                ).with_code("not-file-or-folder")
            if stat.S_ISLNK(mode) and not path.resolve().is_relative_to(home):
                raise UserError(
                    f"{folder}/{path.relative_to(home)} is a link to {path.resolve()}, outside of "
                    "the study; put what it leads to in its place, or remove it."
                ).with_code("link-outside")


@contextlib.contextmanager
def locked(folder: Path, *, steal: bool = False) -> Iterator[None]:
    """Hold the study exclusively: a lock on this host, a lease for other hosts.

    The lock of a dead process on this host is free at once. The lease, in the same file, is
    renewed while the study is held. Another host's lease blocks until it expires; then it can be
    taken over, but only with `steal`: that host may be cut off rather than dead.

    Raises:
        ValueError: if another process works on the study, or may.
    """
    refuse_links(folder)
    (folder / "lock").touch()
    with (folder / "lock").open("r+b", buffering=0) as file:  # appending, pwrite knows no offset
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another process works on {folder} ({read_lease(folder) or 'unknown'}); wait for "
                f"it, or stop it first: `nas-evidence cancel {shlex.quote(str(folder))}`."
            ).with_code("folder-locked") from None
        except OSError as error:  # a file system without locks
            raise OSError(error.errno, error.strerror, str(folder / "lock")) from error
        lease = read_lease(folder)
        if lease is not None and lease.boot_id != boot_id():  # on this host the lock decides
            refuse_if_held(lease, folder, steal=steal)
        elif lease_is_damaged(folder):
            refuse_damaged(folder, steal=steal)
        since = time.time()
        _write_lease(file, since)
        over = threading.Event()
        renewal = threading.Thread(target=_renew, args=(folder, file, over, since), daemon=True)
        renewal.start()
        try:
            yield
        finally:
            over.set()
            renewal.join()
            with contextlib.suppress(OSError):  # it expires
                if holds_lease(folder):
                    file.truncate(0)


def is_locked(folder: Path) -> bool:
    """Return whether a process of this host works on the study, or one elsewhere may."""
    if not (folder / "lock").exists():
        return False
    with (folder / "lock").open("r") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # a file system without locks: the lease tells
            pass
    lease = read_lease(folder)
    # A lease of this host was left by a dead process, or fetched from a store.
    elsewhere = lease is not None and (lease.boot_id != boot_id() or is_alive(lease.pid))
    return lease is not None and elsewhere and lease.expires_at > time.time()


def holds_lease(folder: Path) -> bool:
    """Return whether this process holds the study."""
    return _is_mine(read_lease(folder))


def check_lease(folder: Path) -> None:
    """Check that this process still holds the study.

    Raises:
        StudyStoppedError: if another process has taken it over, or that cannot be told.
    """
    try:
        lease = try_again(
            lambda: read_lease(folder),
            when=lambda error: isinstance(error, OSError),
            patience=RENEW_EVERY,
            pause=0.1,
            longest_pause=1.0,
        )
    except OSError as error:
        raise StudyStoppedError(about_disk(error, folder / "lock")).with_code(
            "lease-not-read"
        ) from error
    if not _is_mine(lease):
        raise taken_over(lease, folder)


def taken_over(lease: Lease | None, place: Path | str) -> StudyStoppedError:
    """Return the error that stops a driver that is no longer the holder of a study."""
    if lease is None:
        return StudyStoppedError(
            f"the lease in {place}/lock is gone or damaged, so this process has stopped and "
            "written nothing since. Nothing is lost: make sure that no other process works on "
            "the study, then run the command again."
        ).with_code("lease-gone")
    return StudyStoppedError(
        f"process {lease.pid} of host {lease.host} has taken over {place}; this one has stopped "
        "and written nothing since. Nothing is lost: leave the study to that process."
    ).with_code("lease-taken-over")


def read_lease(folder: Path) -> Lease | None:
    """Return the lease of the current or last holder; None if there is none."""
    return lease_of(_lock_text(folder))


def lease_of(text: str) -> Lease | None:
    """Return the lease in a text; None if it holds none that matches its checksum."""
    try:
        facts = read_sealed_json(text, Path("lock"))
        pid, expires_at = int(facts["pid"]), float(facts["expires_at"])
        since = float(facts.get("since", 0.0))
        return Lease(pid, str(facts["host"]), str(facts["boot_id"]), expires_at, since)
    except (DamagedError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None


def refuse_damaged(place: Path | str, *, steal: bool) -> None:
    """Refuse a study whose lease cannot be read: it does not say that nobody works on it.

    Raises:
        ValueError: without `steal`.
    """
    if not steal:
        raise UserError(
            f"the lease in {place}/lock is damaged, so it cannot be told who works on the study; "
            "make sure that nobody does, then take it over with --steal."
        ).with_code("lease-damaged")


def text_of(lease: Lease) -> str:
    """Return a lease as `lease_of` reads it."""
    return sealed_json(asdict(lease))


def lease_is_damaged(folder: Path) -> bool:
    """Return whether the file `lock` holds something that is no lease."""
    return bool(_lock_text(folder)) and read_lease(folder) is None


def refuse_if_held(lease: Lease, place: Path | str, *, steal: bool) -> None:
    """Check that the lease of another process has expired and may be taken over.

    Raises:
        ValueError: if not; names the holder, the expiry time and the remedy.
    """
    until = _when(lease.expires_at)
    ahead = lease.expires_at - time.time() > 2 * LEASE_SECONDS
    if ahead and not steal:  # no driver ever takes a lease for so long
        raise UserError(
            f"process {lease.pid} of host {lease.host} holds {place} until {until}, so a clock "
            "ran ahead when the lease was written; correct the clocks, make sure that the process "
            "is dead, then take the study over with --steal."
        ).with_code("lease-in-the-future")
    if lease.expires_at > time.time() and not ahead:
        raise UserError(
            f"another process works on {place} (process {lease.pid} of host {lease.host}, with a "
            f"lease until {until}); wait for it, or stop it first."
        ).with_code("lease-held")
    if lease.host != socket.gethostname() and not steal:  # else this host has rebooted
        raise UserError(
            f"process {lease.pid} of host {lease.host} held {place} and was last heard of before "
            f"{until}; make sure that it is dead, then take the study over with --steal."
        ).with_code("lease-expired")


def _when(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):  # no time at all
        return f"second {seconds:g}"


def _renew(folder: Path, file: FileIO, over: threading.Event, since: float) -> None:
    while not over.wait(RENEW_EVERY):
        with contextlib.suppress(OSError):  # the next write of results reports a full disk
            if not holds_lease(folder):
                return  # taken over: `check_lease` tells the driver
            _write_lease(file, since)


def _write_lease(file: FileIO, since: float) -> None:
    expires_at = time.time() + LEASE_SECONDS
    lease = Lease(os.getpid(), socket.gethostname(), boot_id(), expires_at, since)
    # Written in place, in one write of fixed size: the file is locked and cannot be replaced.
    os.pwrite(file.fileno(), text_of(lease).ljust(_LEASE_BYTES).encode(), 0)


def _is_mine(lease: Lease | None) -> bool:
    return lease is not None and (lease.pid, lease.boot_id) == (os.getpid(), boot_id())


def _lock_text(folder: Path) -> str:
    try:
        return (folder / "lock").read_text(encoding="utf-8", errors="replace").strip("\0 \n")
    except FileNotFoundError:
        return ""


def is_alive(pid: int) -> bool:
    """Return whether a process of this host is alive."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's process
        return True
    return True


def boot_id() -> str:
    """Return an id of the current boot of this host."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # not Linux
        return socket.gethostname()


def _is_foreign(folder: Path) -> bool:
    """Return whether the place holds anything but a partly created study folder."""
    if folder.is_dir():
        names = (path.name for path in folder.iterdir())
        return any(name != "lock" and not name.startswith(_HALF_WRITTEN) for name in names)
    return folder.exists()
