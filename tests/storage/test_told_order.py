"""The order of architectures as the report tells it is that of the estimates."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import finished, logged
from records import at, laplace, mlp, record_with
from searched import build_report

from nas_evidence.driver.status import study_status
from nas_evidence.plumbing.sums import write_sums
from nas_evidence.spec.study import StudySpec
from nas_evidence.spec.toml import dump_study
from nas_evidence.storage.tables import read_study_tables, write_record
from nas_evidence.storage.told_order import ToldRank, best_trial, told_order

pytestmark = pytest.mark.slow

STUDY = StudySpec.model_validate(
    {
        "name": "told", "n_trials": 9, "rank_by": "estimate", "plan": {"folds": 5},
        "estimators": ["conditional_evidence", "elpd"], "dataset": {"name": "digits"},
        "family": {"mlp": {"width": {"low": 4, "high": 64}}},
    }
)  # fmt: skip


def add(folder: Path, trial_id: int, width: int, score: float) -> None:
    scores = {"conditional_evidence": score, "elpd": score - 0.2 * (trial_id % 3)}
    record = record_with(
        trial_id, architecture=mlp(width=width), n_data=100, n_parameters=100 + width,
        evaluations=at(1, *(laplace(v, kind=kind) for kind, v in scores.items())),
    )  # fmt: skip
    write_record(folder, record, STUDY)


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("told")
    (folder / "study.toml").write_text(dump_study(STUDY), encoding="utf-8")
    for i in range(9):
        add(folder, i, 6 + 5 * min(i, 7), -1.0 + 0.03 * i)
    logged(folder)
    build_report(folder)
    return folder


@pytest.fixture
def folder(reported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(reported, tmp_path / "told"))


def told_in(folder: Path) -> list[ToldRank]:
    return told_order(folder, STUDY, finished(folder).values())


def test_it_is_the_computed_one_to_the_last_digits(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = study_status(folder)
    assert told_in(folder)[0][::2] == (told.best.trial_id, told.value)
    monkeypatch.setattr("nas_evidence.driver.status.told_order", lambda *_: [])
    computed = study_status(folder)
    assert told.value == pytest.approx(computed.value, rel=1e-12)
    for name in ("best", "unit", "column", "ranks_by"):
        assert getattr(told, name) == getattr(computed, name)


def test_nothing_is_fitted_where_the_report_is_of_what_is_stored(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nas_evidence.driver.status.Standings", None)
    assert study_status(folder).best is not None


def test_the_best_trial_is_the_same_and_needs_no_fit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted, told = (read_study_tables(folder, STUDY) for _ in range(2))
    expected = fitted.standings.best
    monkeypatch.setattr("nas_evidence.storage.tables.Standings", None)
    assert expected is not None
    assert best_trial(told) == expected.trial_id
    assert told_in(folder)[0].trial_ids == (7, 8)


def changed(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """A report that says something else, with sums that are right."""

    def write(folder: Path) -> None:
        path = folder / "report" / "report.json"
        report = json.loads(path.read_text())
        change(report["study"])
        path.write_text(json.dumps(report))
        write_sums(path.parent, ["report.json"])

    return write


def another_trial(folder: Path) -> None:
    add(folder, 9, 60, -1.0)
    logged(folder)


def without_sums(folder: Path) -> None:
    (folder / "report" / "SHA256SUMS").unlink()


def edited(folder: Path) -> None:
    path = folder / "report" / "report.json"
    path.write_text(path.read_text().replace('"rank": 1,', '"rank":  1,'))


def torn(folder: Path) -> None:
    (folder / "report" / "report.json").write_bytes(b"{")
    write_sums(folder / "report", ["report.json"])


@pytest.mark.parametrize(
    "change",
    [
        another_trial,
        without_sums,
        edited,
        torn,
        changed(lambda study: study.update(name="other")),
        changed(lambda study: study.update(score="elpd")),
        changed(lambda study: study.update(ranked_by="the mean")),
        changed(lambda study: study.update(unit="larger is better")),
        changed(lambda study: study["ranking"].pop()),
        changed(lambda study: study["ranking"].clear()),
        changed(lambda study: study["ranking"][0].update(trial_id=77)),
        changed(lambda study: study["ranking"].reverse()),
        changed(lambda study: study["ranking"][0].update(estimate=math.nan)),
        changed(lambda study: study["ranking"][0].update(estimate="much")),
        changed(lambda study: study["ranking"][2].update(objective=-0.5)),
        changed(lambda study: study.update(ranking=[1])),
    ],
)
def test_a_report_of_anything_else_is_not_believed(
    change: Callable[[Path], None], folder: Path
) -> None:
    change(folder)
    assert told_in(folder) == []
    assert study_status(folder).best.trial_id in finished(folder)
