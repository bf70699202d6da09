"""A study without a single score still has a report, and every verb says what is the matter."""

from pathlib import Path

import pytest
from fakes import FakeExecutor
from faulty import Cli, call, run, stopped, study

from nas_evidence.reporting.study_tables import load_study_tables
from nas_evidence.spec.record import TrialStatus
from nas_evidence.storage.study_folder import open_study

pytestmark = pytest.mark.slow

OUTCOMES = [
    TrialStatus.INFEASIBLE, TrialStatus.DIVERGED, TrialStatus.CANCELLED, TrialStatus.FAILED,
]  # fmt: skip
SPEC = study(n_trials=3)


@pytest.mark.long
@pytest.mark.parametrize("status", OUTCOMES)
def test_all_trials_ended_without_a_score(
    tmp_path: Path, status: TrialStatus, cli: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    open_study(tmp_path, SPEC)
    run(SPEC, tmp_path, FakeExecutor(misbehave=lambda assignment: status))
    for verb in (("report", tmp_path), ("watch", tmp_path), ("status", tmp_path)):
        code, text, said = call(capsys, *verb)
        assert (code, said) == (0, ""), (verb, said)
        assert text
    text, said = cli("resume", tmp_path, code=1)
    assert "no trial is complete" in said
    assert f"trials: 3 {status}" in text
    said = cli("export", tmp_path, "--to", tmp_path / "out", code=2)[1]
    assert said.count("\n") == 1


def test_a_report_of_a_study_without_any_trial(
    tmp_path: Path, cli: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    open_study(tmp_path, SPEC)
    code, text, said = call(capsys, "report", tmp_path)
    assert (code, said) == (0, "")
    assert "report: " in text
    said = cli("status", tmp_path, 0, code=2)[1]
    assert "no finished trial 0" in said


@pytest.mark.long
def test_a_report_while_only_one_trial_has_a_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_study(tmp_path, SPEC)
    stopped(SPEC, tmp_path, 1)
    code, text, said = call(capsys, "report", tmp_path)
    assert (code, said) == (0, "")
    assert "report: " in text


def test_a_ranking_by_the_estimate_is_empty_if_all_trials_failed(tmp_path: Path) -> None:
    spec = study(n_trials=2, objective="conditional_evidence", rank_by="estimate")
    open_study(tmp_path, spec)
    run(spec, tmp_path, FakeExecutor(misbehave=lambda assignment: TrialStatus.FAILED))
    found = load_study_tables(tmp_path)
    assert found.trials["status"].tolist() == ["failed", "failed"]
    assert found.ranking == ()
