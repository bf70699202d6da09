"""Ctrl-C ends a computation that Python itself could not interrupt."""

import signal
import subprocess
import sys
from pathlib import Path

from commands import environment

SCRIPT = """
import hashlib
from nas_evidence.cli.interrupting import interruptible

def late():
    print("late", flush=True)
    return True

with interruptible(late):
    print("started", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"x", b"y", 2_000_000_000)  # one call of many minutes
"""


def test_ctrl_c_inside_a_long_call_ends_the_process() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        env=environment(PYTHONPATH=str(Path(__file__).parents[2])),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=120)
        assert (process.returncode, out) == (130, "late\n")
    finally:
        process.kill()
        process.wait()
