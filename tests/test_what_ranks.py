"""Status, terminal, report, Python and model card name the same value that ranks."""

import html
import json
import re
from pathlib import Path

import pytest
from commands import run
from fakes import stored
from records import mlp, of_few_rows, plain_study
from searched import build_report

import nas_evidence
from nas_evidence.api.results import Study
from nas_evidence.driver.status import study_status
from nas_evidence.exporting.folder import rank_of
from nas_evidence.reporting.study_tables import load_study_tables
from nas_evidence.storage.tables import read_study_tables

pytestmark = pytest.mark.slow

#: What ranks n architectures, by the two keys that decide it.
CASES = [
    ("estimate", 10, "estimate", "estimate"),
    ("estimate", 6, "the mean of conditional_evidence and elpd", "estimate"),
    ("score", 10, "conditional_evidence", "conditional_evidence"),
]


def written(folder: Path, rank_by: str, n: int) -> Path:
    """Write a finished study of n architectures whose order is not that of the first score."""
    study = plain_study(
        name="doors", n_trials=n, finalists=0, rank_by=rank_by, plan={"folds": 5},
        estimators=["conditional_evidence", "elpd"],
    )  # fmt: skip
    trials = (
        of_few_rows(i, mlp(width=6 + 5 * i), -1.0 - 0.01 * (i % 4), -1.5 + 0.05 * i)
        for i in range(n)
    )
    return stored(study, folder, trials)


def first_of(folder: Path, name: str) -> tuple[int, float]:
    """Return the trial that is first by the tables of the report, and its value."""
    shown = load_study_tables(folder)
    assert shown.ranks_by == name
    assert shown.winner is not None
    value = shown.value(shown.winner)
    assert value is not None
    return shown.winner.trial_id, value


@pytest.mark.parametrize(("rank_by", "n", "name", "column"), CASES)
def test_status_python_and_the_card_have_the_value_of_the_report(
    rank_by: str, n: int, name: str, column: str, tmp_path: Path
) -> None:
    folder = written(tmp_path / "study", rank_by, n)
    first, value = first_of(folder, name)

    now = study_status(folder)
    assert (now.ranks_by, now.column, now.best.trial_id) == (name, column, first)
    assert now.value == pytest.approx(value)
    best = nas_evidence.status(folder).best
    assert best.pop("architecture").startswith("mlp, ")
    assert best == {"trial_id": first, column: pytest.approx(value),
                    "unit": "nats per datum", "ranked_by": name}  # fmt: skip

    study = Study(folder)
    assert repr(study).endswith(f"ranked by {name})")
    assert study.ranking[column].iloc[0] == pytest.approx(value)
    board = study.leaderboard()
    assert board["estimate" if column == "estimate" else "score"].iloc[0] == pytest.approx(value)

    order = rank_of(read_study_tables(folder), first)
    assert order == {"ranked_by": name, "rank": 1, "ranking_value": pytest.approx(value)}


def test_the_trial_of_no_architecture_that_ranks_has_no_rank_on_its_card(tmp_path: Path) -> None:
    folder = written(tmp_path / "study", "estimate", 9)
    tables = read_study_tables(folder)
    tables.standings.first()
    last = load_study_tables(folder).ranking[-1]
    assert rank_of(tables, last.trial_id)["rank"] == 9


@pytest.mark.parametrize(("rank_by", "n", "name", "column"), CASES)
def test_commands_and_the_page_name_it_as_well(
    rank_by: str, n: int, name: str, column: str, tmp_path: Path
) -> None:
    folder = written(tmp_path / "study", rank_by, n)
    first, value = first_of(folder, name)

    def told(verb: str, *more: object) -> str:
        return run(verb, folder, *more, folder=tmp_path).stdout

    said = told("status")
    assert f" (trial {first}) with {name} = " in said
    best = json.loads(told("status", "--json"))["best"]
    assert best[column] == pytest.approx(value)
    assert f"ranked 1 of {n} by {name}" in told("status", first)
    assert f"of {n} architectures by {name}" in told("report")

    paths = build_report(folder)
    page = html.unescape(re.sub(r"<[^>]+>", "", paths.html.read_text(encoding="utf-8")))
    assert f"architectures ranked by {name}" in page
    assert f"{value:.4f}" in page
    facts = json.loads((paths.html.parent / "report.json").read_text(encoding="utf-8"))
    assert facts["study"]["ranked_by"] == name
