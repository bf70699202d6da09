"""The lease on a study behind a URI: the file `lock` names its holder and the expiry time.

A thread renews it while the study is held. A study that nobody holds goes to who creates the file,
which succeeds once. To take over a lease, a process writes it and reads it again a little later;
the last writer holds it. Before each try of a write to the store the holder checks that its lease
has not expired, as it would if the process had been suspended, or the store silent, for minutes.
Two clocks tell: that of the wall may be set back, the other stands still while a machine sleeps.
"""

import contextlib
import os
import socket
import threading
import time

from nas_evidence.plumbing.user_error import UserError
from nas_evidence.storage.store import Store, StoreError
from nas_evidence.storage.study_folder import (
    LEASE_SECONDS,
    RENEW_EVERY,
    Lease,
    boot_id,
    is_alive,
    lease_of,
    refuse_damaged,
    refuse_if_held,
    taken_over,
    text_of,
)

_NAME = "lock"
#: Seconds between writing a contested lease and reading who holds it.
SETTLE = 1.0


class RemoteLease:
    """Holds a study from construction to `release`.

    Args:
        store: where it is.
        steal: take over the expired lease of another host.

    Raises:
        ValueError: if another process works on the study, or may.
    """

    def __init__(self, store: Store, *, steal: bool = False) -> None:
        self._store = store
        self._lost = False
        self._checking = threading.Lock()  # files are uploaded by several threads
        self._take(steal)
        self._over = threading.Event()
        self._renewal = threading.Thread(target=self._renew, daemon=True)
        self._renewal.start()

    def check(self) -> None:
        """Check that this process still holds the study.

        Raises:
            StudyStoppedError: if another process has taken it over.
        """
        with self._checking:
            late = time.monotonic() - self._renewed_at > LEASE_SECONDS
            if late or time.time() > self._mine.expires_at:  # not renewed: it was suspended
                self._renew_once()
        if self._lost:
            raise taken_over(self._read(), self._store.place)

    def release(self) -> None:
        """Release the study."""
        self._over.set()
        self._renewal.join()
        if not self._lost and self._is_mine():
            self._store.delete([_NAME])

    def _take(self, steal: bool) -> None:
        self._mine, self._renewed_at = _new(), time.monotonic()
        if self._store.put(_NAME, _text(self._mine), if_absent=True):
            return
        lease = self._read()
        if lease == self._mine:  # written, but the answer was lost and the client tried again
            return
        if lease is None and self._store.get(_NAME):
            refuse_damaged(self._store.place, steal=steal)
        elif lease is not None and not _is_left(lease):
            refuse_if_held(lease, self._store.place, steal=steal)
        self._mine, self._renewed_at = _new(), time.monotonic()
        self._store.put(_NAME, _text(self._mine))
        time.sleep(SETTLE)
        if not self._is_mine():
            raise UserError(
                f"another process has just taken {self._store.place}; leave the study to it."
            ).with_code("lease-just-taken")

    def _renew(self) -> None:
        while not self._over.wait(RENEW_EVERY):
            with contextlib.suppress(StoreError):  # the next write of results reports it
                self._renew_once()

    def _renew_once(self) -> None:
        if not self._lost and not self._is_mine():
            time.sleep(SETTLE)  # a store may answer once with what it held before
            self._lost = not self._is_mine()
        if not self._lost:
            lease, now = _new(), time.monotonic()
            self._store.put(_NAME, _text(lease))
            self._mine, self._renewed_at = lease, now

    def _is_mine(self) -> bool:
        lease = self._read()
        return lease is not None and (lease.pid, lease.host, lease.boot_id) == (
            self._mine.pid,
            self._mine.host,
            self._mine.boot_id,
        )

    def _read(self) -> Lease | None:
        content = self._store.get(_NAME)
        return None if content is None else lease_of(content.decode(errors="replace"))


def _is_left(lease: Lease) -> bool:
    """Return whether the lease belongs to a dead process of this host."""
    here = (lease.host, lease.boot_id) == (socket.gethostname(), boot_id())
    return here and not is_alive(lease.pid)


def _new() -> Lease:
    expires_at = time.time() + LEASE_SECONDS
    return Lease(os.getpid(), socket.gethostname(), boot_id(), expires_at)


def _text(lease: Lease) -> bytes:
    return text_of(lease).encode()
