"""Small studies for the tests of `faults/`: run in this process, instantly, and then damaged."""

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest
from fakes import FakeExecutor, Silent, finished

from nas_evidence.driver.driver import Driver
from nas_evidence.spec.study import StudySpec


def study(**changes: object) -> StudySpec:
    given: dict[str, object] = {
        "name": "s",
        "objective": "kfac_ggn",
        "n_trials": 12,
        "dataset": {"name": "digits"},
        "family": {"mlp": {"width": {"low": 4, "high": 200}}},
        "plan": {"epochs": 4, "online": {"every": 2}},
    }
    return StudySpec.model_validate({**given, **changes})


def run(spec: StudySpec, folder: Path, executor: FakeExecutor | None = None) -> Driver:
    driver = Driver(spec, folder, executor or FakeExecutor(), Silent())
    driver.run()
    return driver


class Cli(Protocol):
    """The command line in this process, as the fixture `cli` calls it."""

    def __call__(self, *arguments: object, code: int | None = 0) -> tuple[str, str]:
        """Return output and errors; fail on another exit code, unless `code` is None."""


class StopError(Exception):
    """The test ends a driver here."""


def stop_after(n: int, folder: Path) -> FakeExecutor:
    """Return an executor that ends the driver once so many trials are stored."""
    executor = FakeExecutor()
    poll = executor.poll

    def stopping(timeout: float) -> list[object]:
        if len(finished(folder)) >= n:
            raise StopError
        return poll(timeout)

    executor.poll = stopping  # type: ignore[method-assign,assignment]
    return executor


def stopped(spec: StudySpec, folder: Path, n: int) -> None:
    """Run a study until so many trials are stored."""
    with pytest.raises(StopError):
        run(spec, folder, stop_after(n, folder))


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Call the command line in this process; return exit code, output and errors."""
    capsys.readouterr()
    code = quiet_call(*arguments)
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err
    return code, said.out, said.err


def quiet_call(*arguments: object) -> int:
    """Call the command line in this process, with its output wherever it goes."""
    from nas_evidence.cli.main import main

    before, sys.argv = sys.argv, ["nas-evidence", *map(str, arguments)]
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        sys.argv = before
        _close_log()
    return 0


def flipped(path: Path, at: int, bit: int = 0) -> None:
    """Flip one bit of a file."""
    content = bytearray(path.read_bytes())
    content[at % len(content)] ^= 1 << bit
    path.write_bytes(bytes(content))


Damage = Callable[[Path], object]


def _close_log() -> None:
    """Close the log of a study, as the end of the process would: its folder may be gone."""
    logger = logging.getLogger("nas_evidence")
    for handler in [one for one in logger.handlers if isinstance(one, logging.FileHandler)]:
        logger.removeHandler(handler)
        handler.close()
