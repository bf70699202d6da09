"""What a job prints is read whatever log lines surround it, and what it advises can be typed."""

import json
from pathlib import Path

import pytest

from nas_evidence.api.control import facts_in
from nas_evidence.api.runs import Run
from nas_evidence.cli.search import _options
from nas_evidence.jobs.jobs import submission_of_this_job
from nas_evidence.storage.kept_submission import Submission

LOG = "2026-11-22 22:00:01,123\tINFO worker.py:1879 -- Connecting to existing cluster\n"


@pytest.mark.parametrize("before", ["", LOG, LOG * 3, "{not JSON}\n"])
@pytest.mark.parametrize("after", ["", LOG])
def test_the_status_of_a_job_is_found_among_the_lines_of_its_log(before: str, after: str) -> None:
    facts = {"name": "digits", "by_status": {"complete": 2}, "best": None}
    assert facts_in(f"{before}{json.dumps(facts, indent=1)}\n{after}") == facts


def test_a_job_that_prints_no_status_is_quoted() -> None:
    with pytest.raises(ValueError, match="it said: 2026-11-22 22:00:01"):
        facts_in(LOG)


def test_a_job_advises_the_address_that_its_reader_has(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run("ray", address="auto")
    assert _options(run) == ["--address", "auto"]
    job = {"metadata": {"nas_evidence_study": "my study", "nas_evidence_store": "/nfs"}}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(job))
    assert submission_of_this_job() == Submission("", "my study", "/nfs")
    assert _options(run) == ["--address", "URL", "--name", "my study"]
    elsewhere = Run("ray", address="host:6379", data_root=Path("d"))
    assert _options(elsewhere) == ["--data-root", "d", "--address", "host:6379"]


@pytest.mark.parametrize("value", ["", "[]", '{"metadata": null}', "{"])
def test_a_process_of_another_job_has_no_study(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", value)
    assert submission_of_this_job() is None
