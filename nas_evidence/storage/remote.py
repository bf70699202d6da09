"""Files behind an fsspec URI: `s3://bucket/study`, `gs://...`, `memory://...`, `file:///nfs/study`.

A file is written completely or not at all: one PUT on object stores, a rename on file systems.
Names are relative, with slashes; those that begin with a dot are ignored. Calls to a store that
does not answer are retried with pauses; if that fails, or cannot help, the error is one line.

Only this module imports fsspec. Each service's client finds its own credentials (environment,
profile, role of the machine); they never pass through here.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from fsspec.core import url_to_fs

from nas_evidence.plumbing.backoff import try_again
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.domains import refuse_password
from nas_evidence.storage.faults import StudyStoppedError

_LOG = logging.getLogger(__name__)
_LOG.addHandler(logging.NullHandler())  # a driver has its log; on a terminal the error says it all
#: Seconds that a store may be silent during a study, and the longest pause between two tries.
PATIENCE, LONGEST_PAUSE = 120.0, 15.0
#: Seconds in which it must answer whoever only looks.
LOOKING = 20.0
_EXTRAS = {"s3": "s3", "s3a": "s3"}
_PROBE = ".probe"
#: Errors that retries cannot fix.
_HOPELESS = (
    PermissionError, FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError,
    # The service cannot list or write at all, or cannot read such an address.
    NotImplementedError, AttributeError, TypeError, ValueError, LookupError,
)  # fmt: skip
_HOPELESS_NAMES = {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound"}

T = TypeVar("T")


class StoreError(StudyStoppedError):
    """The store cannot be used now; nothing of the study is lost."""


def is_uri(place: str) -> bool:
    """Return whether a place is a URI rather than the path of a folder."""
    return "://" in place


class Remote:
    """The files below a URI.

    Raises:
        ValueError: if no installed package handles such URIs, or for one with a password.
    """

    def __init__(self, uri: str) -> None:
        refuse_password(uri, "the store ")
        self.uri = uri.rstrip("/")
        protocol = self.uri.partition("://")[0]
        # Other processes write there too: do not cache listings.
        how = {"use_listings_cache": False}
        if protocol in ("file", "local"):
            how = {"auto_mkdir": True}
        try:
            self._fs, root = url_to_fs(self.uri, skip_instance_cache=True, **how)
        except ImportError as error:
            extra = _EXTRAS.get(protocol)
            package = (
                f"'nas-evidence[{extra}]'" if extra else f"what fsspec needs for it ({error})"
            )
            raise UserError(f"{self.uri} cannot be opened: install {package}.").with_code(
                "store-needs-package"
            ) from None
        except (ValueError, TypeError, LookupError, OSError) as error:
            known = "s3://, gs://, file:// and others that fsspec lists"
            raise UserError(f"{self.uri} cannot be opened: {error} (known: {known}).").with_code(
                "store-not-opened"
            ) from None
        self._root = str(root).rstrip("/")
        #: Called before each try of a change; what it raises ends the try.
        self.guard: Callable[[], None] = lambda: None
        self._renames = protocol in ("file", "local")
        self._silent: BaseException | None = None  # the last error that was followed by a retry

    def check(self) -> None:
        """Check that files can be written now.

        Raises:
            StoreError: if not.
        """
        if self._renames:  # a folder of our own, as a study folder is
            self._try(lambda: Path(self._root).mkdir(0o700, parents=True, exist_ok=True))
        self._try(lambda: self._write(_PROBE, b""), patience=0.0)
        self._try(lambda: self._remove(self._path(_PROBE)), patience=0.0)

    def check_answers(self) -> None:
        """Check that the store answers soon; its client may try again by itself for minutes.

        Raises:
            StoreError: if it does not.
        """
        asking = Thread(target=self._ask, daemon=True)
        asking.start()
        asking.join(LOOKING)
        if asking.is_alive():
            silent = f"it has not answered for {LOOKING:.0f} seconds"
            raise StoreError(self._error_line(self._silent or TimeoutError(silent))).with_code(
                "store-silent"
            )

    def _ask(self) -> None:
        with contextlib.suppress(StoreError):  # whoever looks next is told
            self.read("study.toml")

    def names(self, below: str = "") -> dict[str, int]:
        """Return the files below a folder and their sizes in bytes."""

        def find() -> Mapping[str, Any]:
            self._fs.invalidate_cache()
            try:
                found: Mapping[str, Any] = self._fs.find(self._path(below), detail=True)
            except FileNotFoundError:
                return {}
            return found

        listed = {
            str(path).removeprefix(self._root).lstrip("/"): int(facts["size"] or 0)
            for path, facts in self._try(find).items()
        }
        return {n: size for n, size in listed.items() if n and not _is_hidden(n)}

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is no such file."""

        def cat() -> bytes | None:
            try:
                content: bytes = self._fs.cat_file(self._path(name))
            except FileNotFoundError:
                return None
            return content

        return self._try(cat)

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically."""
        self._change(lambda: self._write(name, content))

    def create(self, name: str, content: bytes) -> bool:
        """Write a file unless it exists; return False if it exists, as far as is known.

        Some services let two simultaneous writers both succeed: read the file again a bit later.
        """

        def pipe() -> bool:
            try:
                self._fs.pipe_file(self._path(name), content, mode="create")
            except FileExistsError:
                return False
            return True

        return self.read(name) is None and self._try(pipe)

    def upload(self, file: Path, name: str) -> None:
        """Upload a local file."""

        def put() -> None:
            target = self._path(_hidden(name) if self._renames else name)
            self._fs.put_file(str(file), target)
            if self._renames:
                self._fs.mv(target, self._path(name))

        self._change(put)

    def download(self, files: Mapping[str, Path]) -> bool:
        """Fetch files, several at a time where the service can; create their local folders.

        Returns:
            Whether all existed; if one did not, others may be missing too.
        """
        for path in files.values():
            path.parent.mkdir(parents=True, exist_ok=True)
        there, here = [self._path(name) for name in files], [str(p) for p in files.values()]

        def get() -> bool:
            try:
                self._fs.get(there, here)
            except FileNotFoundError:
                return False
            return True

        return not files or self._try(get)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files; those that do not exist are ignored."""
        for path in map(self._path, names):
            self._change(partial(self._remove, path))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(path)

    def _write(self, name: str, content: bytes) -> None:
        target = self._path(_hidden(name) if self._renames else name)
        self._fs.pipe_file(target, content)
        if self._renames:
            self._fs.mv(target, self._path(name))

    def _change(self, action: Callable[[], None]) -> None:
        """Change the store, each try only if the guard lets it: minutes may lie between tries."""

        def guarded() -> None:
            self.guard()
            action()

        self._try(guarded)

    def _try(self, action: Callable[[], T], *, patience: float | None = None) -> T:
        """Return what the action returns; retry for a while where that may help."""
        try:
            return try_again(
                action,
                when=_may_be_temporary,
                patience=PATIENCE if patience is None else patience,
                pause=0.5,
                longest_pause=LONGEST_PAUSE,
                before_pause=self._note,
            )
        except StudyStoppedError:  # by the guard
            raise
        except Exception as error:  # each service has its own errors
            raise StoreError(self._error_line(error)).with_code("store-failed") from None

    def _note(self, error: BaseException) -> None:
        self._silent = error
        _LOG.warning("store_silent uri=%s error=%r", self.uri, error)

    def _error_line(self, error: BaseException) -> str:
        why = (str(error).strip().splitlines() or [type(error).__name__])[-1].rstrip(".")
        return (
            f"the store {self.uri} cannot be used: {why}. Check its address, that its bucket "
            "or folder exists, and the credentials of this machine. Nothing that it holds is lost."
        )


def _may_be_temporary(error: BaseException) -> bool:
    """Return whether a retry may help; each service has its own errors."""
    hopeless = isinstance(error, _HOPELESS) or type(error).__name__ in _HOPELESS_NAMES
    return isinstance(error, Exception) and not hopeless


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _hidden(name: str) -> str:
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}.{last}.tmp"
