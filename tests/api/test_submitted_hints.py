"""A study that was submitted is continued there: every hint has the address and the name."""

import json
from contextvars import Context
from pathlib import Path

import pytest
from fakes import FakeExecutor, drive, study
from faulty import Cli
from messages import refused

import nas_evidence
from nas_evidence.api.runs import Run
from nas_evidence.api.submission import send
from nas_evidence.cli.search import _options
from nas_evidence.jobs.job import Job
from nas_evidence.spec.record import TrialStatus
from nas_evidence.storage.kept_submission import (
    FILE,
    Submission,
    keep_submission,
    read_submission,
)
from nas_evidence.storage.study_folder import locked, open_study

URL = "http://127.0.0.1:8265"
WHERE = Submission(URL, "digits", "/nfs/s")
RESUME = f"nas-evidence resume /nfs/s --address {URL} --name digits"
CALL = f"nas_evidence.resubmit('/nfs/s', address='{URL}', name='digits')"


@pytest.fixture
def submitted(tmp_path: Path) -> Path:
    """The folder of a study that was submitted, and has begun no trial."""
    open_study(tmp_path / "s", study(n_trials=4, name="s"))
    keep_submission(tmp_path / "s", WHERE)
    return tmp_path / "s"


def test_status_and_its_json_name_the_cluster(submitted: Path, cli: Cli) -> None:
    assert f"continue: {RESUME}\n" in cli("status", submitted)[0]
    facts = json.loads(cli("status", submitted, "--json")[0])
    assert facts["submitted"] == {"address": URL, "name": "digits", "store": "/nfs/s"}
    with locked(submitted):
        shown = cli("status", submitted)[0]
        assert f"stop it: nas-evidence cancel --address {URL} --name digits\n" in shown
    at_uri = cli("status", f"file://{submitted}")[0]
    assert f"continue: {RESUME}\n" in at_uri


def test_cancel_of_a_folder_names_the_cluster(
    submitted: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nas_evidence.driver.cancel.cancel", lambda *_: "s: stopped")
    for place in (submitted, f"file://{submitted}"):
        assert cli("cancel", place)[0] == f"s: stopped\nresume: {RESUME}\n"


def test_refusals_name_the_cluster(submitted: Path) -> None:
    with (
        locked(submitted),
        refused("folder-locked", f"nas-evidence cancel --address {URL} --name digits"),
    ):
        Context().run(locked(submitted).__enter__)
    with refused("search-on-study-folder", RESUME):
        nas_evidence.search(submitted)


@pytest.mark.slow
def test_an_unfinished_study_in_python_names_the_call_that_submits_it_again(
    submitted: Path, cli: Cli
) -> None:
    loaded = nas_evidence.load(submitted)
    assert f"0 of 4 trials are complete; {CALL} goes on ({RESUME})" in repr(loaded)
    with refused("study-without-complete-trial", CALL):
        _ = loaded.best
    assert f"continue: {RESUME}\n" in cli("report", submitted)[0]
    failing = FakeExecutor(misbehave=lambda assignment: TrialStatus.FAILED)
    drive(study(n_trials=4, name="s"), submitted, failing)
    assert f"runs them again: {CALL[:-1]}, retry_failed=True)" in repr(loaded)


def test_a_hint_of_a_file_from_elsewhere_is_no_other_command(submitted: Path, cli: Cli) -> None:
    for address in ("http://h; touch owned", "http://me:secret@h", "--help", "file:///etc"):
        keep_submission(submitted, Submission(address, "digits", "/nfs/s"))
        assert read_submission(submitted) is None
    keep_submission(submitted, Submission(URL, "a b", "/x $(touch owned)"))
    assert (
        f"resume '/x $(touch owned)' --address {URL} --name 'a b'\n" in cli("status", submitted)[0]
    )
    (submitted / FILE).write_text("{")
    assert f"continue: nas-evidence resume {submitted}\n" in cli("status", submitted)[0]


class Cluster:
    """A job server in memory."""

    def __init__(self, alive: bool) -> None:
        self.known = [Job("nas-digits-1", "digits", "/nfs/s", "RUNNING")] * alive
        self.metadata: dict[str, str] = {}

    def jobs(self) -> list[Job]:
        return self.known

    def submit(self, command: str, *, metadata: dict[str, str], **_: object) -> None:
        self.metadata = metadata


@pytest.mark.parametrize("alive", [False, True])
def test_whoever_submits_writes_down_where_unless_a_job_is_alive(
    alive: bool, tmp_path: Path
) -> None:
    store = tmp_path / "s"
    open_study(store, study(n_trials=4, name="s"))
    cluster, where = Cluster(alive), Submission(URL, "digits", str(store))
    cluster.known = [Job(one.id, one.study, str(store), one.state) for one in cluster.known]
    send(cluster, where, arguments=["resume", str(store)])  # type: ignore[arg-type]
    assert read_submission(store) == (None if alive else where)
    assert cluster.metadata.get("nas_evidence_address") == (None if alive else URL)


@pytest.mark.slow
def test_a_job_writes_down_where_it_was_submitted_and_a_run_from_here_that_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"nas_evidence_study": "digits", "nas_evidence_store": "/nfs/s"}
    job = {"metadata": {**names, "nas_evidence_address": URL}}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(job))
    assert _options(Run("ray", address="auto")) == ["--address", URL, "--name", "digits"]
    quick = {"plan.epochs": 2, "plan.settle": 0, "estimators": ["diag_ef"],
             "objective": "diag_ef", "dataset.max_train": 60, "dataset.max_test": 20}  # fmt: skip
    search = {"families": "linear", "settings": quick, "out": tmp_path / "s", "progress": False}
    nas_evidence.search("digits", n_trials=1, **search)
    assert read_submission(tmp_path / "s") == WHERE
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR")
    nas_evidence.resume(tmp_path / "s", n_trials=2)
    assert read_submission(tmp_path / "s") is None
