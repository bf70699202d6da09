"""A process that has loaded the libraries and forks itself for each command that it is given.

A command, of ours or a program in Python, is then a real process, with an exit code, streams and
an environment of its own, without the seconds that loading takes. Tests of the start, of the end
and of signals take a fresh one.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import sys
from pathlib import Path

#: What most commands load; not Ray, which reads the environment while it is loaded.
_LOADED = (
    "torch", "pandas", "pyarrow.parquet", "sklearn.linear_model", "sklearn.ensemble", "optuna",
    "jinja2", "scipy.stats", "nas_evidence.cli.main",
    "nas_evidence.api.runs",
)  # fmt: skip


def _become(request: dict[str, object]) -> None:
    """Make this fork the process that was asked for."""
    os.chdir(str(request["folder"]))
    os.environ.clear()
    os.environ.update(request["environment"])  # type: ignore[call-overload]
    streams = (
        (os.devnull, os.O_RDONLY),
        (request["out"], os.O_WRONLY),
        (request["err"], os.O_WRONLY),
    )
    for number, (path, flags) in enumerate(streams):
        opened = os.open(str(path), flags)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv = list(request["arguments"])  # type: ignore[call-overload]


def _wait_for_requests() -> None:
    """Answer each line with the id of a fork, and then with its exit code; return in each fork."""
    while line := sys.stdin.readline():
        pid = os.fork()
        if pid == 0:
            os.setsid()
            _become(json.loads(line))
            return
        os.write(1, b"%d\n" % pid)
        os.write(1, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def _take_shortcuts(folder: str) -> None:
    """Take those of `shortcuts.py`, and load the templates of the report."""
    sys.path.append(str(Path(__file__).parent))
    import shortcuts

    from nas_evidence.reporting.templating import environment

    sys.path.pop()
    shortcuts.take(Path(folder))
    for name in ("study.html.j2", "study.md.j2", "captions.html.j2"):
        environment().get_template(name)


def _end(code: int) -> None:
    """End without unloading the libraries, which takes another second."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the tests; they end this one
    for name in _LOADED:
        importlib.import_module(name)
    os.fsync = lambda descriptor: None  # as in conftest.py
    if given := sys.argv[1:]:
        _take_shortcuts(given[0])
    gc.collect()
    gc.freeze()
    _wait_for_requests()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from nas_evidence.__main__ import main

    script = sys.argv[0]
    try:
        if script.endswith(".py"):
            sys.path.insert(0, str(Path(script).resolve().parent))
            runpy.run_path(script, run_name="__main__")
        else:
            main()
    except SystemExit as end:
        _end(int(end.code or 0))
    except Exception:
        sys.excepthook(*sys.exc_info())
        _end(1)
    _end(0)
