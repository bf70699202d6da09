"""What is written is UTF-8, whatever the locale says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_UNEXPECTED = """
import logging, sys
from nas_evidence.cli.main import _unexpected
logging.getLogger("nas_evidence").addHandler(logging.FileHandler(sys.argv[1], encoding="utf-8"))
_unexpected(RuntimeError("Straße 東京 \\udcff"))
"""


@pytest.mark.slow
def test_an_unexpected_error_is_told_in_a_locale_without_its_letters(tmp_path: Path) -> None:
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    (tmp_path / "unexpected.py").write_text(_UNEXPECTED, encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, tmp_path / "unexpected.py", tmp_path / "driver.log"],
        env={**os.environ, **ascii_only, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        check=False,
    )
    assert b"Traceback" not in ended.stderr
    assert b"; details in " in ended.stderr
    (details,) = tmp_path.glob("error-*.txt")
    assert "Straße 東京" in details.read_text(encoding="utf-8")
