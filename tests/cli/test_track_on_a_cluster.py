"""`--track` of a study that a cluster runs: passed on, and refused where nobody could read it."""

from itertools import pairwise
from typing import Any

import pytest
from typer.testing import CliRunner

from nas_evidence.api import submission
from nas_evidence.cli import search as run
from nas_evidence.cli import submit as cluster
from nas_evidence.cli.main import app
from nas_evidence.jobs.job import Job
from nas_evidence.jobs.jobs import Submitted

SUBMIT = ("submit", "digits", "--address", "http://127.0.0.1:1")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Arguments of the jobs that would have been submitted."""
    found: list[list[str]] = []

    def keep(*_: Any, arguments: list[str], **__: Any) -> Submitted:
        found.append(arguments)
        return Submitted(Job("nas-digits-1", "digits", "/s", "PENDING"), True, None)

    monkeypatch.setattr(submission, "connect", lambda address, warn: None)
    monkeypatch.setattr(submission, "send", keep)
    return found


def test_a_submitted_study_is_tracked_by_its_driver(sent: list[list[str]]) -> None:
    given = ["--store", "/nfs/digits", "--track", "tensorboard", "--track", "mlflow:http://h:5000"]
    result = CliRunner().invoke(app, [*SUBMIT, *given], catch_exceptions=False)
    assert result.exit_code == 0
    (arguments,) = sent
    tracked = [arguments[i + 1] for i, word in enumerate(arguments) if word == "--track"]
    assert tracked == ["tensorboard", "mlflow:http://h:5000"]


def test_a_tracker_with_a_server_of_its_own_needs_no_place(sent: list[list[str]]) -> None:
    given = ["--store", "s3://bucket/digits", "--track", "wandb"]
    assert CliRunner().invoke(app, [*SUBMIT, *given], catch_exceptions=False).exit_code == 0
    assert len(sent) == 1


def test_the_package_of_a_tracker_is_needed_on_the_cluster_and_not_here(
    sent: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nas_evidence.api.trackers.find_spec", lambda name: None)
    given = ["--store", "/nfs/digits", "--track", "mlflow"]
    assert CliRunner().invoke(app, [*SUBMIT, *given], catch_exceptions=False).exit_code == 0
    assert len(sent) == 1


@pytest.mark.parametrize(
    ("store", "track", "said"),
    [
        ("s3://bucket/digits", "mlflow", "name a place that all see, such as track=mlflow:http"),
        ("s3://bucket/digits", "tensorboard", "such as track=tensorboard:/nfs/DIR"),
        ("/nfs/digits", "comet", "must be one of mlflow"),
    ],
)
def test_a_tracker_that_nobody_could_read_is_refused_before_anything_is_sent(
    sent: list[list[str]], store: str, track: str, said: str
) -> None:
    where = ["--store", store, "--track", track]
    with pytest.raises(ValueError, match=said):
        CliRunner().invoke(app, [*SUBMIT, *where], catch_exceptions=False)
    again = ["resume", store, "--address", "http://127.0.0.1:1", "--track", track]
    with pytest.raises(ValueError, match=said):
        CliRunner().invoke(app, again, catch_exceptions=False)
    assert sent == []
    assert run.resubmit is cluster.resubmit


def test_a_study_is_resumed_on_a_cluster_with_all_that_was_typed(sent: list[list[str]]) -> None:
    words = ["resume", "/nfs/x", "--address", "http://127.0.0.1:1", "--name", "x", "--steal"]
    more = ["--trials", "9", "--set", "finalists=2", "--time", "2h", "--executor", "ray"]
    result = CliRunner().invoke(app, [*words, *more, "--retry-failed", "3,5"])
    assert result.exit_code == 0, result.exception
    (found,) = sent
    assert found[:4] == ["resume", "/nfs/x", "--address", "auto"]
    assert {*pairwise(found)} >= {
        ("--trials", "9"), ("--set", "finalists=2"), ("--time", "2h"), ("--retry-failed", "3,5"),
    }  # fmt: skip
    assert "--steal" in found
    assert "--executor" not in found
