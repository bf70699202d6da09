"""Forks of one process that has imported torch: they answer, they end, and none is left over."""

import os
import signal
import warnings
from collections.abc import Iterator
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from messages import refused
from processes import lives, wait_for

from nas_evidence.plumbing.user_error import UserError
from nas_evidence.workers.apart import ForkedObject, LostForkError
from nas_evidence.workers.fork_server import ForkServer

pytestmark = pytest.mark.slow  # the server imports torch


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    with closing(ForkServer(tmp_path_factory.mktemp("logs"))) as server:
        server.start()
        yield server


def doubled(pipe: Connection) -> None:
    while True:
        pipe.send(2 * pipe.recv())


@pytest.mark.long
def test_forks_answer_each_for_itself(forks: ForkServer) -> None:
    one, other = forks.begin(doubled), forks.begin(doubled)
    other.pipe.send(5)
    one.pipe.send(4)
    assert (one.pipe.recv(), other.pipe.recv()) == (8, 10)
    assert len({one.pid, other.pid, os.getpid()}) == 3
    one.end()
    other.pipe.send(6)
    assert other.pipe.recv() == 12
    other.end()
    assert not lives(one.pid)
    assert not lives(other.pid)


def test_a_fork_that_was_killed_closes_its_pipe_and_no_other(forks: ForkServer) -> None:
    one, other = forks.begin(doubled), forks.begin(doubled)
    os.kill(one.pid, signal.SIGKILL)
    with pytest.raises((EOFError, ConnectionResetError)):
        one.pipe.recv()
    other.pipe.send(1)
    assert other.pipe.recv() == 2
    one.end()
    other.end()


@pytest.mark.long
def test_a_killed_server_takes_its_forks_along_and_another_one_starts(tmp_path: Path) -> None:
    with closing(ForkServer(tmp_path)) as server:
        before = server.begin(doubled)
        orphan, first = before.pid, server.start().process
        first.kill()
        first.wait()
        after = server.begin(doubled)
        after.pipe.send(3)
        assert after.pipe.recv() == 6
        before.end()
        wait_for(lambda: not lives(orphan))
        last = after.pid
    wait_for(lambda: not lives(last))


def test_a_server_that_still_imports_is_closed_at_once(tmp_path: Path) -> None:
    server = ForkServer(tmp_path)
    fork = server.begin(doubled)
    process = server.start().process
    fork.end()
    server.close()
    assert process.poll() == -signal.SIGKILL


def test_a_server_that_still_imports_ends_with_its_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = tmp_path / "begun"
    slow = f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\n"
    (tmp_path / "torch.py").write_text(f"{slow}while True:\n    time.sleep(0.1)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with closing(ForkServer(None)) as server:
        started = server.start()
        wait_for(begun.exists)
        started.control.close()  # as the kernel does when the driver is killed
        assert started.process.wait(60) == -signal.SIGKILL


def test_a_fork_of_a_closed_server_can_be_ended(tmp_path: Path) -> None:
    server = ForkServer(tmp_path)
    fork = server.begin(doubled)
    server.close()
    fork.end()
    assert fork.pipe.closed


class Counter:
    """Counts its calls, in whichever process it is."""

    def __init__(self, first: int) -> None:
        self.n = first

    def next(self, *, by: int = 1) -> tuple[int, int]:
        self.n += by
        return self.n, os.getpid()

    def warn(self) -> None:
        warnings.warn("it is late", UserWarning, stacklevel=2)

    def fail(self) -> None:
        raise UserError("blue", "it is blue; paint it red")

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def test_an_object_in_a_fork_keeps_its_state_and_its_errors_and_warnings_come_here(
    forks: ForkServer,
) -> None:
    with closing(ForkedObject(forks, Counter, 3)) as there:
        (one, pid), (other, same) = there.call("next"), there.call("next", by=4)
        assert (one, other) == (4, 8)
        assert pid == same != os.getpid()
        with pytest.warns(UserWarning, match="it is late"):
            there.call("warn")
        with refused("blue", "paint it red"):
            there.call("fail")
        assert there.call("next")[0] == 9
    wait_for(lambda: not lives(pid))


def test_an_object_whose_fork_died_is_lost(forks: ForkServer) -> None:
    with closing(ForkedObject(forks, Counter, 0)) as there, pytest.raises(LostForkError):
        there.call("die")
