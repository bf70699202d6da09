"""The command line as a person meets it: real processes on studies of a few seconds."""

import functools
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tomli_w

import nas_evidence
from nas_evidence.storage.tables import TABLES, read_tables

SCRIPT = Path(sys.executable).with_name("nas-evidence")
#: Nothing of the caller's terminal decides what is printed.
_ENVIRONMENT = {
    key: value
    for key, value in os.environ.items()
    if key not in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "PYTHONPATH")
} | {
    "OMP_NUM_THREADS": "1",
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONPATH": str(Path(nas_evidence.__file__).parents[1]),  # the package that is tested
    "PATH": f"{SCRIPT.parent}{os.pathsep}{os.environ.get('PATH', '')}",
}

TINY = """\
name = "tiny"
n_trials = 4
objective = "diag_ef"
estimators = ["diag_ef"]
[dataset]
name = "npz"
path = "{data}"
[family.mlp]
width = {{low = 4, high = 16, log = true}}
depth = 1
[family.linear]
[plan]
epochs = 4
batch_size = 32
[plan.online]
every = 2
curvature = "diag_ef"
[sampler]
name = "random"
"""


#: Settings of a search of seconds; and of updates that need no other curvature.
QUICK = {"plan.epochs": 2, "plan.settle": 0, "estimators": ["diag_ef"], "objective": "diag_ef"}
BY_DIAGONAL = {**QUICK, "plan.online.curvature": "diag_ef"}


def small_search(
    folder: Path, n_trials: int = 2, *, settings: Mapping[str, Any] | None = None, **given: Any
) -> nas_evidence.Study:
    """Search small perceptrons on a few rows of two classes, into `s`."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)), rng.integers(0, 2, 40)
    return nas_evidence.search(
        x, y, n_trials=n_trials, families=["mlp"], out=folder / "s", progress=False,
        settings=QUICK | dict(settings or {}), **given,
    )  # fmt: skip


def study_text(name: str, epochs: int, **changes: object) -> str:
    """A study file on some digits whose trials take `epochs` epochs of 25 small steps."""
    given = {
        "name": name,
        "n_trials": 4,
        "objective": "diag_ef",
        "estimators": ["diag_ef"],
        "dataset": {"name": "digits", "max_train": 400, "max_test": 100},
        "family": {"mlp": {"width": {"low": 16, "high": 64, "log": True}}},
        "plan": {
            "epochs": epochs,
            "batch_size": 16,
            "online": {"every": 5, "curvature": "diag_ef"},
        },
        "sampler": {"name": "random"},
    }
    return tomli_w.dumps(given | changes)


def environment(**more: str) -> dict[str, str]:
    return _ENVIRONMENT | more


def start(*arguments: object, folder: Path, **options: object) -> subprocess.Popen[str]:
    """Start `nas-evidence ...` in `folder`, in a session and process group of its own."""
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
        [str(SCRIPT), *map(str, arguments)],
        cwd=folder,
        env=environment(),
        text=True,
        start_new_session=True,
        **{**given, **options},
    )


#: The folder for what `shortcuts.py` keeps, if shortcuts are taken.
KEPT: list[Path] = []


@functools.cache
def _forking() -> subprocess.Popen[str]:
    """Return the process that forks for each command; it ends with this one."""
    return subprocess.Popen(
        [sys.executable, "-P", str(Path(__file__).with_name("forking.py")), *map(str, KEPT)],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )


def run(*arguments: object, folder: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run `nas-evidence ...` in `folder` to its end, which must be the exit code `code`."""
    command = [str(SCRIPT), *map(str, arguments)]
    ended, out, err = forked(command, folder, environment())
    assert ended == code, f"exit code {ended}\n{out}\n{err}"
    assert "Traceback" not in out + err
    return subprocess.CompletedProcess(command, code, out, err)


def forked_script(code: str, folder: Path) -> tuple[int, str, str]:
    """Run a program in Python in a folder; return its exit code and what it wrote."""
    (folder / "script.py").write_text(code)
    return forked([str(folder / "script.py")], folder, environment())


def forked(command: list[str], folder: Path, given: dict[str, str]) -> tuple[int, str, str]:
    """Run `nas-evidence ...` in this environment; return its exit code and what it wrote.

    A command that ends in `.py` is a program in Python.
    """
    server = _forking()
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
        request = {"arguments": command, "folder": str(folder), "environment": given}
        server.stdin.write(json.dumps({**request, "out": out.name, "err": err.name}) + "\n")
        pid = int(server.stdout.readline())
        too_long = threading.Timer(600, os.kill, (pid, signal.SIGKILL))
        too_long.start()
        ended = int(server.stdout.readline())
        too_long.cancel()
        return ended, out.read(), err.read()


def write_study(folder: Path, text: str = TINY, *, mix_test_labels: bool = False) -> Path:
    """Write a study of three well-separated classes, and its data, into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    y = np.arange(180) % 3
    x = generator.normal(size=(180, 6)) + 2 * np.eye(6)[y]
    y_test = np.roll(y[120:], 1) if mix_test_labels else y[120:]
    data = folder / "data.npz"
    np.savez(data, x_train=x[:120], y_train=y[:120], x_test=x[120:], y_test=y_test)
    path = folder / "tiny.toml"
    path.write_text(text.format(data=data))
    return path


def found(folder: Path, *, without: Sequence[str] = ()) -> dict[str, pd.DataFrame]:
    """Return all that a study found and another run of it must find again, bit by bit."""
    tables, unreadable = read_tables(folder)
    assert not unreadable
    for name, frame in tables.items():
        free = [c for c in frame if c.endswith("seconds") or c in ("versions", *without)]
        tables[name] = frame.drop(columns=free)
    assert set(tables) == set(TABLES)
    return dict(tables)


def assert_same(one: dict[str, pd.DataFrame], other: dict[str, pd.DataFrame]) -> None:
    for name, frame in one.items():
        assert len(frame)
        pd.testing.assert_frame_equal(frame, other[name], check_exact=True, obj=name)


def hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every Parquet file."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*.parquet"))
    }


def contents(folder: Path) -> dict[str, bytes | str]:
    """Return what each file below a folder holds, and where each link leads."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file():
            found[name] = path.read_bytes()
    return found
