"""The status of a study and its end, asked in Python."""

import json
from pathlib import Path

import pytest
from faulty import Cli, stopped, study
from messages import refused

import nas_evidence
from nas_evidence.storage.study_folder import open_study

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A study of three trials that was stopped after the first."""
    stopped(open_study(tmp_path, study(n_trials=3)), tmp_path, 1)
    return tmp_path


def test_the_status_in_python_is_what_the_command_line_prints(folder: Path, cli: Cli) -> None:
    now = nas_evidence.status(folder)
    assert (now.state, now.n_finished, now.n_trials, now.job) == ("stopped", 1, 3, None)
    printed = cli("status", folder, "--json", code=None)[0]
    assert json.loads(now.to_json()) == json.loads(printed)
    assert "job" not in json.loads(printed)


def test_a_study_is_named_by_its_folder_or_by_address_and_name() -> None:
    with refused("no-folder-and-no-name", "`address` and `name`"):
        nas_evidence.status()
    with refused("address-without-name"):
        nas_evidence.cancel(name="digits")


def test_what_does_not_run_cannot_be_cancelled(folder: Path) -> None:
    with refused("cancel-study-not-running"):
        nas_evidence.cancel(folder)
