"""A study of which no score is finite ends with exit code 1 and one sentence, by every door."""

from pathlib import Path

import numpy as np
import pytest
import typer
from messages import refused
from searched import folder, record

import nas_evidence
from nas_evidence.cli.report import exit_if_unranked
from nas_evidence.reporting.contents import report_on
from nas_evidence.reporting.study_tables import load_study_tables
from nas_evidence.spec.record import Evaluation, EvidenceEstimate


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
