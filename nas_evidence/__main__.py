"""The entry of the command line; `python -m nas_evidence` where its script is not on the path.

Loading the modules takes a second or more. Nothing has begun by then, so Ctrl-C ends at once. What
is imported here comes before that, and a Ctrl-C then shows a traceback: so it is little.
"""

import atexit
import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import threading
    from types import FrameType

_INTERRUPTED = 130
#: Interrupts that wait for the end of an import, and how often one waits a tenth of a second.
_LATER: "list[threading.Timer]" = []
_MOST = 20


def main() -> None:
    """Load the command line and run it."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # it is closed: a file of a study would get its number
            stream = open(os.devnull, mode)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)  # it stays open when another takes its place
    handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if handled:  # not if the caller has it ignored, as `nohup` does
        signal.signal(signal.SIGINT, _end)
    from nas_evidence.plumbing.unpacked import leave_unpacked

    try:
        folder = leave_unpacked(with_files=True)
    except FileNotFoundError:
        sys.stderr.write(
            "error: the current folder was removed; go to another one (`cd`), and run the same "
            "command again\n"
        )
        raise SystemExit(2) from None
    if folder:  # a job: import the package that was sent there
        sys.path.insert(0, str(folder))
        for package in ("nas_evidence", "nas_evidence.plumbing"):  # what is loaded by now
            sys.modules[package].__path__.insert(0, str(folder / package.replace(".", "/")))
    try:
        from nas_evidence.cli.main import main as command_line
        from nas_evidence.cli.verbs import VERBS, function_of

        for verb in {*sys.argv[1:2]} & {*VERBS}:
            function_of(verb)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "nas_evidence":
            raise
        sys.stderr.write(
            f"error: the command line needs {error.name}, which is not installed: `pip install "
            ".` in a clone installs all it needs; without it, an export is used from Python by "
            "nas_evidence.Predictor.load(DIR)\n"
        )
        raise SystemExit(1) from None
    except (ImportError, OSError, MemoryError) as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        sys.stderr.write(
            f"error: the command line cannot be loaded: {why}; with a limit on memory raise it "
            "(`ulimit -v`), else `pip install --force-reinstall .` in a clone\n"
        )
        raise SystemExit(1) from None

    if handled:
        signal.signal(signal.SIGINT, _interrupt)
        sys.unraisablehook = _unraisable
    try:
        command_line()
    except SystemExit as end:
        if end.code == _INTERRUPTED:
            import logging

            logging.shutdown()
            _leave(_INTERRUPTED)
        raise


def run() -> None:
    """Run the command line, and end the process when all else that is due at its end is done.

    Unloading torch would take two seconds more, and ten on a busy machine.
    """
    code = 0
    atexit.register(lambda: _leave(code))  # the first to be registered is the last to run
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    except BaseException:
        code = 1
        raise
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done but the end of the process


def _leave(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # it went away, or is closed
            stream.flush()
    os._exit(code)


def _interrupt(signum: int, frame: "FrameType | None") -> None:
    """Raise KeyboardInterrupt; in an import a little later, for C++ code there would abort."""
    inside = frame
    while inside is not None and not inside.f_code.co_filename.startswith("<frozen importlib"):
        inside = inside.f_back
    if inside is not None and len(_LATER) < _MOST:
        _again()
    else:
        _LATER.clear()
        raise KeyboardInterrupt


def _unraisable(found: "sys.UnraisableHookArgs") -> None:
    """Interrupt again what was interrupted in a destructor or a callback, where it is ignored."""
    if issubclass(found.exc_type, KeyboardInterrupt):
        _again()
    else:
        sys.__unraisablehook__(found)


def _again() -> None:
    import threading

    _LATER.append(later := threading.Timer(0.1, signal.raise_signal, [signal.SIGINT]))
    later.daemon = True
    later.start()


def _end(signum: int, frame: object) -> None:
    sys.stderr.write("interrupted\n")
    sys.stderr.flush()
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    run()
