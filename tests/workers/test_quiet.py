"""Where the lines on standard error go while Ray starts or stops."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from nas_evidence.workers.quiet import stderr_to


@pytest.mark.parametrize("ends_first", [0, 1])
def test_two_overlapping_studies_give_standard_error_back(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], ends_first: int
) -> None:
    log, blocks = tmp_path / "logs" / "ray.log", [ExitStack(), ExitStack()]
    for block in blocks:
        block.enter_context(stderr_to(log))
        os.write(2, b"of Ray\n")
    blocks[ends_first].close()
    os.write(2, b"of Ray\n")
    blocks[1 - ends_first].close()
    os.write(2, b"for the user\n")
    assert log.read_text() == "of Ray\n" * 3
    assert capfd.readouterr().err == "for the user\n"
