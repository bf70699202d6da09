"""Jobs and logs of other people: they move no cursor, and their stores are no options."""

import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from faulty import Cli, run, stopped, study
from typer.testing import CliRunner

from nas_evidence.api import control, submission
from nas_evidence.cli import search as tracked_run
from nas_evidence.cli import submit as cluster
from nas_evidence.cli.main import app
from nas_evidence.jobs.job import Job
from nas_evidence.jobs.jobs import Submitted
from nas_evidence.storage.study_folder import open_study

NASTY = "/x $(touch owned) ;y"
TITLE = "\033]0;owned\007"
KILLED = """\
Job entrypoint command failed with exit code -9, last available logs (truncated to 20,000 chars):
[1/5] trial 0 linear - complete diag_ef=-0.532 (1 s)
"""


class Cluster:
    """A job server with one job, `nas-mine-1`, and what is asked of it."""

    def __init__(self, store: object, state: str = "RUNNING", message: str = "") -> None:
        self.store, self.exit_code = str(store), -9 if message == KILLED else None
        self.state, self.message, self.asked = state, message, list[tuple[str, str]]()

    def jobs(self) -> list[Job]:
        asked = [Job(job, "", "", "SUCCEEDED") for job, _ in self.asked]
        mine = Job("nas-mine-1", "mine", self.store, self.state, self.message, self.exit_code)
        return [mine, *asked]

    def submit(self, command: str, *, job_id: str, **_: Any) -> None:
        self.asked.append((job_id, command))

    def stop(self, job_id: str) -> None:
        self.state = "STOPPED"

    def logs(self, job_id: str) -> str:
        return f"\033[36m(pid=1)\033[0m a line{TITLE}\n"

    def tail(self, job_id: str) -> Iterator[str]:
        yield self.logs(job_id)


def seen(monkeypatch: pytest.MonkeyPatch, cluster: Cluster) -> Cluster:
    monkeypatch.setattr(control, "connect", lambda address, warn: cluster)
    return cluster


OF = ("--address", "http://h:1", "--name", "mine")


@pytest.mark.parametrize(
    "words", [("status", "--log"), ("status", "--follow"), ("status", "--log", "3")], ids=" ".join
)
def test_what_a_job_prints_moves_no_cursor(
    words: tuple[str, ...], cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen(monkeypatch, Cluster("/nowhere", "SUCCEEDED"))
    out = cli(*words, *OF)[0]
    assert "(pid=1) a line\\x1b]0;owned\\x07\n" in out
    assert "\033" not in out


def test_what_the_log_of_a_study_says_moves_no_cursor(tmp_path: Path, cli: Cli) -> None:
    run(open_study(tmp_path, study(n_trials=1)), tmp_path)
    (tmp_path / "logs" / "driver.log").write_text(f"2026-11-24 10:00:00 trial_id=0 {TITLE}\n")
    for words in (("status", "--log", tmp_path), ("status", "--log", tmp_path, "0")):
        out = cli(*words, code=None)[0]
        assert "\\x1b]0;owned\\x07\n" in out
        assert "\033" not in out


@pytest.mark.slow
@pytest.mark.parametrize("store", [NASTY, "--help"])
def test_a_store_in_a_printed_command_is_one_word_and_no_option(
    store: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = seen(monkeypatch, Cluster(store))
    out = cli("cancel", *OF, code=None)[0]
    assert f"resume: nas-evidence resume {shlex.quote(store)} --address http://h:1" in out
    cluster.state = "RUNNING"
    for words in (("status",), ("status", "3"), ("cancel", "3"), ("status", "--log", "3")):
        cli(*words, *OF, code=None)
        asked = shlex.split(cluster.asked[-1][1])
        assert asked[asked.index("--") + 1] == store


def test_names_are_printed_as_they_are_and_commands_with_blanks_can_be_typed(
    tmp_path: Path, cli: Cli
) -> None:
    folder = tmp_path / "my study; $(x)"
    stopped(open_study(folder, study(n_trials=3, name="[b]x[/b] :smile: $y")), folder, 1)
    out = cli("status", folder, code=None)[0]
    assert out.startswith("[b]x[/b] :smile: $y: stopped")
    assert f"continue: nas-evidence resume {shlex.quote(str(folder))}\n" in out


def test_a_killed_driver_is_said_to_be_with_the_command_that_goes_on(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(open_study(tmp_path, study(n_trials=3)), tmp_path, 1)
    seen(monkeypatch, Cluster(tmp_path, "FAILED", KILLED))
    out = cli("status", *OF, code=None)[0]
    assert "job:    nas-mine-1 failed (its driver was killed by signal 9, without a last" in out
    assert "complete diag_ef" not in out
    assert "mine: stopped, 1 of 3 trials" in out  # by its name there, not by that in its file
    assert f"continue: nas-evidence resume {tmp_path} --address http://h:1 --name mine" in out


@pytest.mark.slow
def test_following_a_study_in_a_folder_says_with_its_code_whether_it_has_ended(
    tmp_path: Path, cli: Cli
) -> None:
    spec = open_study(tmp_path, study(n_trials=3))
    stopped(spec, tmp_path, 1)
    cli("status", "--follow", tmp_path, code=130)
    run(spec, tmp_path)
    cli("status", "--follow", tmp_path)


# --- `--track` of a study that a cluster runs: passed on, and refused where nobody could read it


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
    assert tracked_run.resubmit is cluster.resubmit


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
