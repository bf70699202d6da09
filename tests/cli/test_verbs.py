"""How soon and what single verbs say: told without being imported, and true at a store."""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
import typer.main
from commands import SCRIPT, environment, forked
from fakes import Heard, drive, study
from faulty import Cli
from messages import refused
from searched import folder, record

import nas_evidence
from nas_evidence.api.control import facts_in
from nas_evidence.api.runs import Run, UnfinishedStudy, begun
from nas_evidence.cli.main import app
from nas_evidence.cli.report import exit_if_unranked
from nas_evidence.cli.search import _options
from nas_evidence.cli.verbs import VERBS
from nas_evidence.driver.mirror import working_copy
from nas_evidence.jobs.jobs import submission_of_this_job
from nas_evidence.reporting.contents import report_on
from nas_evidence.reporting.study_tables import load_study_tables
from nas_evidence.spec.record import Evaluation, EvidenceEstimate
from nas_evidence.spec.study import StudySpec
from nas_evidence.storage.kept_submission import Submission
from nas_evidence.storage.redo import find_done
from nas_evidence.storage.study_folder import open_study


def test_the_table_has_the_first_paragraph_of_each_docstring_and_its_command_the_group() -> None:
    commands: Any = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, verb in VERBS.items():
        paragraph = commands[name].help.partition("\n\n")[0]
        assert verb.text == " ".join(paragraph.split())
        assert verb.group == commands[name].rich_help_panel


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "at", "words"),
    [
        ("nas-evidence st", 1, ["status"]),
        ("nas-evidence re", 1, ["resume", "refit", "report", "repair", "reproduce"]),
        ("nas-evidence status --fol", 2, ["--follow"]),
        ("nas-evidence nowhere --fol", 2, []),
    ],
)
def test_the_shell_completes_verbs_and_their_options(
    line: str, at: int, words: list[str], tmp_path: Path
) -> None:
    asked = {"_NAS_EVIDENCE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(at)}
    code, said, _ = forked([str(SCRIPT)], tmp_path, environment(**asked))
    assert (code, said.split()) == (0, words)


# --- a search speaks before it imports torch, Ray or any other library that takes seconds


SLOW = ("torch", "ray", "optuna", "sklearn.datasets")


class Stopped(Exception):
    """Raised by the first line, to see the process as it was then."""


def test_the_first_line_comes_before_the_slow_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = StudySpec.model_validate(
        {"name": "s", "dataset": {"name": "digits"}, "family": {"linear": {}}, "n_trials": 5}
    )
    store = working_copy(str(tmp_path / "s"))
    spec, data = begun(store.folder, spec, None)
    finds = find_done(store.folder)
    for name in [n for n in sys.modules if n.partition(".")[0] in ("torch", "ray", "optuna")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "sklearn.datasets", raising=False)
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        raise Stopped

    with pytest.raises(Stopped):
        UnfinishedStudy(spec, store, Run("ray"), Heard(say), data, finds).run_trials()
    assert said == [f"s: 5 trials, workers as there is room -> {tmp_path / 's'}"]
    assert not [name for name in SLOW if name in sys.modules]


def forecast_told(seconds: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what is said of the seconds that a study will take."""
    monkeypatch.setattr("nas_evidence.driver.runtime.forecast_seconds", seconds)
    spec = StudySpec.model_validate(
        {"name": "s", "dataset": {"name": "digits"}, "family": {"linear": {}}}
    )
    lines: list[str] = []
    left: Any = UnfinishedStudy(spec, None, Run("local"), Heard(lines.append), None, None)
    with left.forecast_told(None, 1, 2):
        pass
    return lines


@pytest.mark.usefixtures("no_shortcuts")
def test_the_forecast_is_one_line_with_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = forecast_told(lambda *_, **__: 30.0, monkeypatch)
    assert re.fullmatch(r"s: less than a minute on the (CPU|GPU)", line)


@pytest.mark.usefixtures("no_shortcuts")
def test_a_forecast_that_fails_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> float:
        raise MemoryError("the largest network does not fit here")

    assert forecast_told(broken, monkeypatch) == []


# --- a study of which no score is finite ends with exit code 1 and one sentence, by every door


@pytest.mark.slow
def test_a_study_without_a_finite_score_fails_by_every_door(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    estimate = EvidenceEstimate(estimator="kfac_ggn", value=np.nan, valid=False, note="NaN")
    evaluations = (Evaluation(epoch=20, estimate=estimate),)
    folder(tmp_path / "a", [record(1, 1).model_copy(update={"evaluations": evaluations})])
    with pytest.raises(typer.Exit) as ended:
        exit_if_unranked(report_on(load_study_tables(tmp_path / "a")))
    assert ended.value.exit_code == 1
    assert "Nothing can be ranked" in capsys.readouterr().err.replace("\n", " ")
    with refused("study-without-finite-score", "Nothing can be ranked"):
        _ = nas_evidence.load(tmp_path / "a").best
    exit_if_unranked(report_on(load_study_tables(folder(tmp_path / "b", [record(1, 1)]))))


# --- no browser opens a report at a URI: one command, which is printed, fetches it


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


# --- what a job prints is read whatever log lines surround it, and what it advises can be typed


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
