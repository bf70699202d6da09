"""The lease on a study behind a URI: the file `lock` names its holder and the expiry time.

A thread renews it while the study is held. Object stores have no locks: to take over a lease, a
process writes it and reads it again a little later; the last writer holds it. Before each try of
a write to the store the holder checks that its lease has not expired, as it would if the process
had been suspended, or the store silent, for minutes. Two clocks tell: that of the wall may be set
back, the other stands still while a machine sleeps.
"""

import contextlib
import os
import socket
import threading
import time

from nas_evidence.plumbing.user_error import UserError
from nas_evidence.storage.remote import Remote, StoreError
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
        remote: the store.
        steal: take over the expired lease of another host.

    Raises:
        ValueError: if another process works on the study, or may.
    """

    def __init__(self, remote: Remote, *, steal: bool = False) -> None:
        self._remote = remote
        self._lost = False
        self._take(steal)
        self._over = threading.Event()
        self._renewal = threading.Thread(target=self._renew, daemon=True)
        self._renewal.start()

    def check(self) -> None:
        """Check that this process still holds the study.

        Raises:
            StudyStoppedError: if another process has taken it over.
        """
        late = time.monotonic() - self._renewed_at > LEASE_SECONDS
        if late or time.time() > self._mine.expires_at:  # not renewed: this process was suspended
            self._renew_once()
        if self._lost:
            raise taken_over(self._read(), self._remote.uri)

    def release(self) -> None:
        """Release the study."""
        self._over.set()
        self._renewal.join()
        if not self._lost and self._is_mine():
            self._remote.remove([_NAME])

    def _take(self, steal: bool) -> None:
        self._mine, self._renewed_at = _new(), time.monotonic()
        if self._remote.create(_NAME, _text(self._mine)):
            return
        lease = self._read()
        if lease == self._mine:  # written, but the answer was lost and the client tried again
            return
        if lease is None and self._remote.read(_NAME):
            refuse_damaged(self._remote.uri, steal=steal)
        elif lease is not None and not _is_left(lease):
            refuse_if_held(lease, self._remote.uri, steal=steal)
        self._mine, self._renewed_at = _new(), time.monotonic()
        self._remote.write(_NAME, _text(self._mine))
        time.sleep(SETTLE)
        if not self._is_mine():
            raise UserError(
                f"another process has just taken {self._remote.uri}; leave the study to it."
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
            self._remote.write(_NAME, _text(lease))
            self._mine, self._renewed_at = lease, now

    def _is_mine(self) -> bool:
        lease = self._read()
        return lease is not None and (lease.pid, lease.host, lease.boot_id) == (
            self._mine.pid,
            self._mine.host,
            self._mine.boot_id,
        )

    def _read(self) -> Lease | None:
        content = self._remote.read(_NAME)
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
