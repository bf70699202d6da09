"""Ctrl-C takes effect within two seconds, also inside a long computation.

Python handles a signal between two of its instructions, and a backward pass or a factorisation is
one instruction. A thread learns of the signal at once (`signal.set_wakeup_fd`). Everything that
counts is on disk before each step, so the process may end at any moment.
"""

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator

#: Seconds that a computation may take to end by itself after Ctrl-C.
PATIENCE = 1.0
#: SIGHUP comes when the terminal is closed.
_ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


@contextlib.contextmanager
def interruptible(on_late: Callable[[Callable[[str], None]], bool]) -> Iterator[None]:
    """Watch for Ctrl-C, SIGTERM and SIGHUP during the block.

    Args:
        on_late: Called from a thread if the block has not ended `PATIENCE` seconds after a
            signal, with a function that prints a line; says what goes on, and returns whether
            to end the process now, with exit code 130.
    """
    if threading.current_thread() is not threading.main_thread():  # only it gets signals
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    screen = os.dup(2)  # standard error goes to a file while a cluster starts or ends
    over = threading.Event()

    def say(line: str) -> None:
        with contextlib.suppress(OSError):
            os.write(screen, f"{line}\n".encode())

    def wait() -> None:
        while not over.is_set():
            ready, _, _ = select.select([reading], [], [], 0.2)
            signalled = ready and set(os.read(reading, 64)) & _ENDING
            if signalled and not over.wait(PATIENCE) and on_late(say):
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(130)

    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    thread = threading.Thread(target=wait, daemon=True, name="interruptible")
    thread.start()
    try:
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(before)
        thread.join()
        os.close(reading)
        os.close(writing)
        os.close(screen)
