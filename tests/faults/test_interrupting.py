"""Ctrl-C ends a computation that Python itself could not interrupt."""

import signal
import subprocess
import sys
from pathlib import Path

from commands import environment

SCRIPT = """
import hashlib
import os
import signal
from nas_evidence.cli.interrupting import interruptible

def late(say):
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # as while a cluster starts
    say("late")
    return True

signal.signal(signal.SIGINT, lambda *_: None)  # also if it comes before the long call
with interruptible(late):
    print("started", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"x", b"y", 2_000_000_000)  # one call of many minutes
"""


def test_ctrl_c_while_the_modules_load_ends_without_a_traceback(tmp_path: Path) -> None:
    slow = "import time\nprint('loading', flush=True)\ntime.sleep(600)\n"
    (tmp_path / "typer.py").write_text(slow)
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-m", "nas_evidence", "--version"],
        env=environment(PYTHONPATH=f"{tmp_path}:{root}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (130, "interrupted\n")
    finally:
        process.kill()
        process.wait()


def test_ctrl_c_inside_a_long_call_ends_the_process() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        env=environment(PYTHONPATH=str(Path(__file__).parents[2])),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (130, "late\n")
    finally:
        process.kill()
        process.wait()
