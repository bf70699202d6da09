"""No browser opens a report at a URI: one command, which is printed, fetches it."""

import shlex
from pathlib import Path

import pytest
from fakes import drive, study
from faulty import Cli

from nas_evidence.storage.study_folder import open_study


@pytest.mark.slow
def test_the_command_under_a_report_at_a_uri_fetches_it(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec, folder = study(name="a", n_trials=2), tmp_path / "store" / "a"
    drive(open_study(folder, spec), folder)
    place = f"file://{tmp_path}/store/a"
    lines = cli("report", place)[0].splitlines()
    at = lines.index(f"report: {place}/report/index.html")
    word, _, command = lines[at + 1].partition(":")
    assert (word, "--to a-report" in command) == ("fetch", True)
    _, *words = shlex.split(command)
    assert "fetch:" not in cli(*words[words.index("report") :])[0]
    assert (tmp_path / "a-report" / "index.html").read_bytes()
    assert "fetch:" not in cli("report", folder)[0]
