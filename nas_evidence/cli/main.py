"""The command line; `cli/verbs.py` says in which files its verbs are.

Exit codes: 0 done, 1 failure (every trial failed, or an unexpected error), 2 wrong usage or an
invalid study, 130 interrupted.
"""

import contextlib
import io
import itertools
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from nas_evidence.cli.lasting import LASTING, last
from nas_evidence.cli.terminal import err, out
from nas_evidence.cli.verbs import Group
from nas_evidence.plumbing.foreign_text import cut
from nas_evidence.plumbing.masking import masked
from nas_evidence.plumbing.no_memory import is_memory_full
from nas_evidence.plumbing.user_error import StudyError, UserError
from nas_evidence.plumbing.version import __version__
from nas_evidence.storage.faults import (
    StudyStoppedError,
    about_disk,
    is_disk_full,
    is_memory_limited,
    is_out_of_place,
    is_read_only,
)

_INTERRUPTED = 130
#: With this in the environment an unexpected error is raised with its traceback.
_DEBUG = "NAS_EVIDENCE_DEBUG"
app = typer.Typer(
    cls=Group,
    add_completion=True,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Neural-architecture search ranked by the conditional marginal likelihood (last-layer "
    "Laplace, K folds): no validation split needed.",
)


def main() -> None:
    """Run the command line; every error becomes one clear message and an exit code.

    A verb that works goes on if standard output goes away; standard error has its last lines.
    """
    if next(iter(sys.argv[1:]), "") not in LASTING:
        _main()
        return
    shown, _ = last(sys.stdout, 1), last(sys.stderr, 2)
    try:
        _main()
    except SystemExit as end:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        if shown is None or shown.gone is None or end.code:
            raise
        err.print(
            f"error: standard output went away ({shown.gone.strerror}); the work was done all the "
            "same, and ended with these lines:"
        )
        for line in shown.last_lines():
            err.print(line)
        sys.exit(1)


def _main() -> None:
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # not under `nohup`
        signal.signal(signal.SIGHUP, _interrupt)
    logging.raiseExceptions = False  # a log on a full disk; the study stops with a sentence
    for stream in (sys.stdout, sys.stderr):  # of a terminal or a pipe that knows no Unicode
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        # Not standalone: typer.Exit returns a number, and errors are raised here.
        if successor := MOVED.get(next(iter(sys.argv[1:]), "")):
            raise UserError(
                "verb-moved", f"there is no verb {sys.argv[1]!r}; use `nas-evidence {successor}`."
            )
        if "--single" in sys.argv:
            why = "`--single` is no longer an option: one network predicts without it."
            raise UserError("option-gone", why)
        code = app(with_ids(sys.argv[1:]), standalone_mode=False, prog_name="nas-evidence")
        if code == _INTERRUPTED:  # by typer, which prints nothing
            _say_interrupted()
        sys.exit(code)
    except (KeyboardInterrupt, typer.Abort):
        _say_interrupted()
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:  # the reader has closed the pipe, like `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except StudyError as error:
        for message in error.messages:
            err.print(message)
        sys.exit(2)
    except ValueError as error:
        err.print(f"error: {masked(str(error))}")
        sys.exit(1 if isinstance(error, StudyStoppedError) else 2)
    except Exception as error:
        if os.environ.get(_DEBUG):
            raise
        if is_memory_full(error) or (isinstance(error, ImportError) and is_memory_limited()):
            err.print(
                f"error: there is not enough memory ({_first_line(error)}); free some, raise the "
                "limit (`ulimit -v`), or take fewer --workers, then run the same command again"
            )
            sys.exit(1)
        if isinstance(error, ImportError):
            err.print(
                f"error: {error}; install it again in a clone: pip install --force-reinstall ."
            )
            sys.exit(1)
        if is_disk_full(error) or is_read_only(error) or is_out_of_place(error):
            err.print(f"error: {about_disk(error)}")
            sys.exit(1)
        if hasattr(error, "show") and hasattr(error, "exit_code"):  # click's own usage errors
            error.show()
            sys.exit(error.exit_code)
        _unexpected(error)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        out.print(f"nas-evidence {__version__}")
        raise typer.Exit(0)


#: What does now what verbs of other names did.
MOVED = {
    "validate": "search STUDY --dry-run",
    "show": "status DIR TRIAL",
    "logs": "status DIR [TRIAL] --log",
    "attach": "status DIR --follow",
}


def with_ids(arguments: Sequence[str]) -> list[str]:
    """Return command-line arguments in which `--retry-failed` always has a value.

    >>> with_ids(["resume", "--retry-failed", "runs/digits"])
    ['resume', '--retry-failed', 'all', 'runs/digits']
    >>> with_ids(["resume", "runs/digits", "--retry-failed", "3", "5,6"])
    ['resume', 'runs/digits', '--retry-failed', '3,5,6']
    """
    if "--retry-failed" not in arguments:
        return list(arguments)
    at = list(arguments).index("--retry-failed") + 1
    ids = list(itertools.takewhile(lambda a: a.replace(",", "").isdecimal(), arguments[at:]))
    return [*arguments[:at], ",".join(ids) or "all", *arguments[at + len(ids) :]]


def _say_interrupted() -> None:
    with contextlib.suppress(OSError):  # the terminal may be gone
        err.print("interrupted; nothing is lost: run the same command again to go on")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _interrupt(signum: int, frame: FrameType | None) -> None:
    """Do as Ctrl-C does, which waits for the end of an import; also where that is ignored."""
    if not callable(ctrl_c := signal.getsignal(signal.SIGINT)):
        raise KeyboardInterrupt
    ctrl_c(signum, frame)


def _unexpected(error: BaseException) -> NoReturn:
    """Say what happened in one line; the details go to the logs of the study, or nowhere."""
    why = masked(cut(_first_line(error), 2_000))
    err.print(f"unexpected {type(error).__name__}: {why}{_details(error)}")
    sys.exit(1)


def _details(error: BaseException) -> str:
    for handler in logging.getLogger("nas_evidence").handlers:
        log = Path(getattr(handler, "baseFilename", ""))
        if log.name == "driver.log":
            path = log.with_name(f"error-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt")
            with contextlib.suppress(OSError):
                text = masked(cut("".join(traceback.format_exception(error)), 1_000_000))
                path.write_text(text, encoding="utf-8", errors="backslashreplace")
                return f"; details in {path}"
    return f"; show the details: {_DEBUG}=1 in the environment"
