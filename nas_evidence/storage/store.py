"""The files of a study where other machines see them: a folder, or below an fsspec URI.

    s3://bucket/study   gs://bucket/study   memory://study   file:///nfs/study   /nfs/study

`Store` has six functions: `put`, `get`, `list`, `delete`, `upload`, `download`. A file is written
completely or not at all: one PUT on object stores, a rename in folders. Names are relative, with
slashes; a listing leaves out those that begin with a dot, or lead elsewhere. Calls to a store that
does not answer are retried with pauses; if that fails, or cannot help, the error is one line, made
here.

A store is never followed out of itself: before the first request a folder with a link out of it is
refused, and each later request refuses a link on its way.

Only this module and `store_folder` import fsspec, when a store is opened. Each service's client
finds its own credentials (environment, profile, role of the machine); none pass through here.
"""

import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from glob import has_magic
from pathlib import Path
from threading import Thread
from typing import Any, BinaryIO, NamedTuple, TypeVar

from nas_evidence.plumbing.backoff import try_again
from nas_evidence.plumbing.names import is_name
from nas_evidence.plumbing.proxies import pass_proxies_by
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.domains import refuse_password
from nas_evidence.storage.faults import StoreError, StudyStoppedError
from nas_evidence.storage.links import link_on_the_way, refuse_links
from nas_evidence.storage.study_names import is_removable

_LOG = logging.getLogger(__name__)
#: Seconds that a store may be silent during a study, and the longest pause between two tries.
PATIENCE, LONGEST_PAUSE = 120.0, 15.0
#: Seconds in which it must answer whoever only looks.
LOOKING = 20.0
#: Files removed by one call (what S3 removes in one request), and files uploaded at a time.
REMOVED_AT_ONCE, UPLOADED_AT_ONCE = 1000, 16
#: Bytes that one request for a part of a file fetches at least.
_PART = 1 << 16
_EXTRAS = {"s3": "s3", "s3a": "s3"}
_PROBE = ".probe"
#: What services call the version of a file in their listings, the surest first.
_VERSIONS = (
    "ETag", "etag", "generation", "mtime", "LastModified", "last_modified", "updated", "created",
)  # fmt: skip
#: Errors that retries cannot fix.
_HOPELESS = (
    PermissionError, FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError,
    # The service cannot list or write at all, or cannot read such an address.
    NotImplementedError, AttributeError, TypeError, ValueError, LookupError,
)  # fmt: skip
_HOPELESS_NAMES = {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound"}

T = TypeVar("T")


class Stamp(NamedTuple):
    """What a listing says of a file: `size` in bytes, and `version`, None if it does not tell."""

    size: int
    version: str | None

    def equals(self, other: "Stamp | None") -> bool:
        """Return whether the file is known to be the one that had the other stamp."""
        return self == other and self.version is not None


def is_uri(place: str) -> bool:
    """Return whether a place is a URI rather than the path of a folder."""
    return "://" in place


class Store:
    """The files in a folder, or below a URI.

    Args:
        place: path of the folder, or the URI.
        in_use: by a driver, which has looked for links in it; so a worker looks only at those on
            the way of a request.

    Raises:
        ValueError: if no installed package handles such URIs, for one with a password, or for a
            chain of file systems such as `dir::file:///nfs/study`.

    Example:
        >>> store = Store("memory://example/study")
        >>> store.put("logs/a", b"1"), store.put("logs/a", b"2", if_absent=True)
        (True, False)
        >>> store.get("logs/a"), list(store.list("logs"))
        (b'1', ['logs/a'])
    """

    def __init__(self, place: str, *, in_use: bool = False) -> None:
        refuse_password(place, "the store ")
        self.place = re.sub(r"(?<=[^:/])/+$", "", place)
        protocol = self.place.partition("://")[0]
        in_folder = not is_uri(self.place) or protocol in ("file", "local")
        if not in_folder and "::" in self.place:
            raise UserError(
                "store-chained",
                f"{self.place} is a chain of file systems, and what lies behind one is not "
                "guarded; give the last of them alone, as file:///nfs/study or s3://bucket/study.",
            )
        try:
            self._fs: Any
            if in_folder:
                from nas_evidence.storage.store_folder import StoreFolder  # late: with fsspec

                self._fs = StoreFolder(skip_instance_cache=True)
                root = self._fs._strip_protocol(self.place)
            else:  # other processes write there too: do not cache listings
                from fsspec.core import url_to_fs

                pass_proxies_by(self.place)
                how = {"skip_instance_cache": True, "use_listings_cache": False}
                self._fs, root = url_to_fs(self.place, **how)
        except ImportError as error:
            extra = _EXTRAS.get(protocol)
            package = (
                f"'nas-evidence[{extra}]'" if extra else f"what fsspec needs for it ({error})"
            )
            raise UserError(
                "store-needs-package", f"{self.place} cannot be opened: install {package}."
            ) from None
        except (ValueError, TypeError, LookupError, OSError) as error:
            known = "s3://, gs://, file:// and others that fsspec lists"
            raise UserError(
                "store-not-opened", f"{self.place} cannot be opened: {error} (known: {known})."
            ) from None
        self._root, self._in_folder = str(root).rstrip("/"), in_folder
        self._may_have_links = in_folder and not in_use  # until it was looked through
        #: Called before each try of a change, but for `if_absent`; what it raises ends the try.
        self.guard: Callable[[], None] = lambda: None
        self._silent: BaseException | None = None  # the last error that was followed by a retry

    # --- the six functions

    def put(self, name: str, content: bytes, *, if_absent: bool = False) -> bool:
        """Write a file atomically.

        Args:
            name: of the file.
            content: all of it.
            if_absent: leave the file as it is if it exists; the guard is not asked.

        Returns:
            Whether it was written. False may also mean that the answer to a first try was lost.
        """
        put = partial(self._put, name, content, if_absent=if_absent)
        return self._try(put) if if_absent else self._change(put)

    def get(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is no such file."""

        def cat() -> bytes | None:
            try:
                content: bytes = self._fs.cat_file(self._path(name))
            except FileNotFoundError:
                return None
            return content

        return self._try(cat)

    def list(self, below: str = "") -> dict[str, Stamp]:
        """Return the files below a folder, by name."""

        def find() -> Mapping[str, Any]:
            self._fs.invalidate_cache()
            try:
                found: Mapping[str, Any] = self._fs.find(self._path(below), detail=True)
            except FileNotFoundError:
                return {}
            return found

        listed = {
            str(path).removeprefix(self._root).lstrip("/"): _stamp(facts)
            for path, facts in self._try(find).items()
            if not _is_link(facts)
        }
        return {name: stamp for name, stamp in listed.items() if is_name(name)}

    def folders(self) -> Sequence[str]:
        """Return the names of the folders directly below, in order; [] if there are none."""

        def ls() -> Sequence[str]:
            try:
                found = self._fs.ls(self._path(""), detail=True)
            except FileNotFoundError:
                return []
            return [
                str(one["name"]).rstrip("/").rpartition("/")[2]
                for one in found
                if one["type"] == "directory" and not _is_link(one)
            ]

        return sorted(name for name in self._try(ls) if is_name(name))

    def delete(self, names: Iterable[str]) -> None:
        """Remove files, many by one request where the service can; absent ones are ignored.

        This is all that is ever removed in a store: names that no study removes are left.
        """
        paths = [self._path(name) for name in names if is_removable(name)]
        for first in range(0, len(paths), REMOVED_AT_ONCE):
            self._change(partial(self._delete, paths[first : first + REMOVED_AT_ONCE]))

    def upload(self, files: Mapping[str, Path]) -> None:
        """Upload local files, by name, several at a time where the service can.

        Each file is written atomically, and only if the guard lets it; their order is free.
        """
        n_threads = min(len(files), UPLOADED_AT_ONCE if self._fs.async_impl else 1)
        if n_threads < 2:
            for name, path in files.items():
                self._upload(name, path)
            return
        with ThreadPoolExecutor(n_threads) as threads:
            for _ in threads.map(self._upload, files.keys(), files.values()):
                pass

    def download(self, files: Mapping[str, Path]) -> bool:
        """Fetch files to local paths, several at a time where the service can.

        Returns:
            Whether all existed; if one did not, none of them is there.
        """
        for path in files.values():
            path.parent.mkdir(parents=True, exist_ok=True)
        there, here = [self._path(name) for name in files], [str(p) for p in files.values()]

        def get() -> bool:
            try:
                self._fs.get(there, here)
            except FileNotFoundError:
                for path in files.values():
                    path.unlink(missing_ok=True)
                return False
            return True

        return not files or self._try(get)

    def read_parts(self, name: str, read: Callable[[BinaryIO], T]) -> T | None:
        """Return what a function reads of a file; None if there is no such file.

        Where the service can, only the parts that it reads are fetched.
        """

        def opened() -> T | None:
            path, parts = self._path(name), {"block_size": _PART, "cache_type": "readahead"}
            try:
                with self._fs.open(path, "rb", **({} if self._in_folder else parts)) as file:
                    return read(file)
            except FileNotFoundError:
                return None

        return self._try(opened)

    # --- whether it can be used

    def check(self) -> None:
        """Check that files can be written now, and that two writers can be told apart.

        Raises:
            StoreError: if not.
        """
        if self._in_folder:  # a folder of our own, as a study folder is
            self._try(lambda: Path(self._root).mkdir(0o700, parents=True, exist_ok=True))
        self._try(lambda: self._put(_PROBE, b""), patience=0.0)
        overwrites = self._try(lambda: self._put(_PROBE, b"", if_absent=True), patience=0.0)
        self._try(lambda: self._delete([self._path(_PROBE)]), patience=0.0)
        if overwrites:
            raise StoreError(
                "store-without-create",
                f"the store {self.place} overwrites a file that it was asked to create only if "
                "absent, so two drivers could not be told apart; give another store.",
            )

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
            raise StoreError(
                "store-silent", self._error_line(self._silent or TimeoutError(silent))
            )

    def _ask(self) -> None:
        with contextlib.suppress(UserError):  # whoever looks next is told
            self.get("study.toml")

    # --- one request each

    def _put(self, name: str, content: bytes, *, if_absent: bool = False) -> bool:
        mode = "create" if if_absent else "overwrite"
        try:
            self._fs.pipe_file(self._path(name), content, mode=mode)
        except FileExistsError:
            if not if_absent:  # a file where a folder is wanted
                raise
            return False
        return True

    def _upload(self, name: str, path: Path) -> None:
        self._change(lambda: self._fs.put_file(str(path), self._path(name)))

    def _delete(self, paths: Sequence[str]) -> None:
        try:
            if len(paths) > 1 and not has_magic(self._root):  # fsspec would expand it
                self._fs.rm([*paths])
                return
        except FileNotFoundError:  # of one of them; others may be left
            pass
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(path)

    def _path(self, name: str) -> str:
        """Return the path of a file.

        Raises:
            StoreError: a link in a folder is on its way.
        """
        if self._in_folder and (link := link_on_the_way(Path(self._root), name)):
            raise StoreError(
                "link-in-store",
                f"{self.place}/{link} is a link, and a store is never followed through one; put "
                "what it leads to in its place, or remove it.",
            )
        return f"{self._root}/{name}" if name else self._root

    # --- retries and errors

    def _change(self, action: Callable[[], T]) -> T:
        """Change the store, each try only if the guard lets it: minutes may lie between tries."""

        def guarded() -> T:
            self.guard()
            return action()

        return self._try(guarded)

    def _try(self, action: Callable[[], T], *, patience: float | None = None) -> T:
        """Return what the action returns; retry for a while where that may help.

        Raises:
            StoreError: it failed.
            UserError: this is the first request to a folder, and a link leads out of it.
        """
        if self._may_have_links:
            refuse_links(Path(self._root), self.place)
            self._may_have_links = False
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
            raise StoreError("store-failed", self._error_line(error)) from None

    def _note(self, error: BaseException) -> None:
        self._silent = error
        _LOG.warning("store_silent place=%s error=%r", self.place, error)

    def _error_line(self, error: BaseException) -> str:
        why = (str(error).strip().splitlines() or [type(error).__name__])[-1].rstrip(".")
        return (
            f"the store {self.place} cannot be used: {why}. Check its address, that its bucket "
            "or folder exists, and the credentials of this machine. Nothing that it holds is lost."
        )


def _stamp(facts: Mapping[str, Any]) -> Stamp:
    version = next((str(facts[key]) for key in _VERSIONS if facts.get(key) is not None), None)
    return Stamp(int(facts["size"] or 0), version)


def _may_be_temporary(error: BaseException) -> bool:
    """Return whether a retry may help; each service has its own errors."""
    hopeless = isinstance(error, _HOPELESS) or type(error).__name__ in _HOPELESS_NAMES
    return isinstance(error, Exception) and not hopeless


def _is_link(facts: Mapping[str, Any]) -> bool:
    """Return whether a listing says of a file that it is a link."""
    return bool(facts.get("islink")) or facts.get("type") == "link"
