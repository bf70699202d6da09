"""A score of minus infinity: last in the correlations of a study, unranked, and in no figure."""

import json
import math
import re
from pathlib import Path

import pandas as pd
import pytest
from scipy import stats
from searched import build_report, folder, load, record

import nas_evidence
from nas_evidence.api.figure import figures_of_report
from nas_evidence.reporting.contents import report_on, trust_of
from nas_evidence.spec.record import TrialRecord

pytestmark = pytest.mark.slow


def records(value: float) -> list[TrialRecord]:
    """Return trials of six architectures; the best one on test rows has another score."""
    return [record(i, i, value=value if i == 1 else None) for i in range(6)]


@pytest.mark.parametrize("value", [-math.inf, math.inf, math.nan])
def test_an_infinite_score_of_a_study_has_a_place_in_its_correlations_and_no_rank(
    value: float, tmp_path: Path
) -> None:
    study = load(tmp_path, records(value))
    rows = {row.score: row.statistics for row in trust_of(study).rows if row.group == "all"}
    found, others = rows["kfac_ggn"], study.architectures.dropna()
    assert (found.n, found.n_missing) == ((5, 1) if math.isnan(value) else (6, 0))
    ranks = stats.rankdata(others["kfac_ggn"])
    target = others["test_nll_per_datum"]
    assert found.rho == pytest.approx(stats.spearmanr(ranks, target).statistic, rel=1e-12)
    (unranked,) = (one for one in study.ranking if one.rank is None)
    assert unranked.objective is None
    row = nas_evidence.read_table(tmp_path, "evidence").query("trial_id == 1").iloc[-1]
    assert not row["valid"]
    assert row["value"] == value or (math.isnan(value) and pd.isna(row["value"]))
    assert f"value is {value}" in row["note"]


def test_tables_figures_and_json_of_a_study_with_an_infinite_score_are_whole(
    tmp_path: Path,
) -> None:
    place = folder(tmp_path, records(-math.inf))
    written = build_report(place)
    facts = json.loads((place / "report" / "report.json").read_text())
    text = json.dumps(facts)
    assert "Infinity" not in text
    own = [r for r in facts["trust"]["rows"] if r["score"] == "kfac_ggn" and r["group"] == "all"]
    assert all(row["statistics"]["n"] == 6 for row in own)
    table = pd.read_csv(place / "report" / "correlations.csv").query("group == 'all'")
    assert table.query("score == 'kfac_ggn'")["note"].isna().all()
    drawn = re.findall(r"<svg.*?</svg>", written.html.read_text("utf-8"), re.DOTALL)
    assert drawn
    assert not [one for one in drawn if re.search(r"\b(inf|nan)\b", one)]
    figures = figures_of_report(report_on(load(tmp_path / "again", records(-math.inf))))
    assert {"ranking", "scatter", "score"} <= figures.keys()
    assert not any(
        figure.data.isin([math.inf, -math.inf]).any(axis=None) for figure in figures.values()
    )
