"""Ctrl-C ends a computation that Python itself could not interrupt."""

import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from commands import environment

SCRIPT = """
import hashlib
import os
import signal
from nas_evidence.cli.interrupt import interruptible

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
    # Not one long sleep: a signal between Python's last look and the sleep would wait for its end.
    slow = "import time\nprint('loading', flush=True)\nwhile True:\n    time.sleep(0.1)\n"
    (tmp_path / "typer.py").write_text(slow)
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-m", "nas_evidence", "--version"],
        env=environment(PYTHONPATH=f"{tmp_path}:{root}"),
        preexec_fn=partial(
            signal.signal, signal.SIGINT, signal.SIG_DFL
        ),  # also in background jobs
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (130, "interrupted\n")
    finally:
        process.kill()
        process.wait()


def test_little_is_imported_before_ctrl_c_ends_without_a_traceback() -> None:
    code = "import sys\nbefore = {*sys.modules}\nimport nas_evidence.__main__\n"
    process = subprocess.run(
        [sys.executable, "-c", f"{code}print(*({{*sys.modules}} - before))"],
        env=environment(PYTHONPATH=str(Path(__file__).parents[2])),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    slow = {"logging", "pathlib", "shutil", "tempfile", "threading"}
    assert not slow & {*process.stdout.split()}


@pytest.mark.slow
def test_ctrl_c_inside_a_long_call_ends_the_process() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        env=environment(PYTHONPATH=str(Path(__file__).parents[2])),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (130, "late\n")
    finally:
        process.kill()
        process.wait()


INSIDE = """
import sys
import weakref
import nas_evidence.cli.main

def verb():
    global kept
    if sys.argv[1] == "callback":
        thing = type("Thing", (), {})()
        kept = weakref.ref(thing, lambda _: wait())
        del thing
    else:
        sys.path.insert(0, sys.argv[2])
        import slow
        print("imported", flush=True)
    wait()

def wait():
    print("waiting", flush=True)
    while True:
        pass

nas_evidence.cli.main.app = lambda *_, **__: verb()
from nas_evidence.__main__ import run
run()
"""


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("place", "then"), [("callback", "waiting"), ("import", "imported")])
def test_a_stop_is_neither_lost_in_a_callback_nor_raised_in_an_import(
    tmp_path: Path, place: str, then: str, sent: signal.Signals
) -> None:
    slow = "import time\nprint('waiting', flush=True)\nend = time.monotonic() + 0.5\n"
    slow += "while time.monotonic() < end:\n    pass\n"
    (tmp_path / "slow.py").write_text(slow)
    process = subprocess.Popen(
        [sys.executable, "-c", INSIDE, place, str(tmp_path)],
        env=environment(PYTHONPATH=str(Path(__file__).parents[2])),
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(sent)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 130
        assert err == "interrupted; nothing is lost: run the same command again to go on\n"
        assert out.startswith(then)
    finally:
        process.kill()
        process.wait()
