"""Which trial is best: one answer for the status, the report, the export and the kept weights."""

import random
from pathlib import Path

import pytest
from records import at, laplace, mlp, record_with

import nas_evidence.driver.outcomes as results_module
from nas_evidence.driver.outcomes import KeptModels
from nas_evidence.exporting.folder import trial_to_export
from nas_evidence.reporting.study_tables import load_study_tables
from nas_evidence.spec.record import (
    RACE_IDS,
    TrialRecord,
    TrialStatus,
)
from nas_evidence.spec.study import StudySpec
from nas_evidence.spec.toml import dump_study
from nas_evidence.storage.best import Standings
from nas_evidence.storage.study_folder import study_status
from nas_evidence.storage.tables import TrialRow, finished, read_study_tables, write_record

STUDY = StudySpec.model_validate(
    {
        "name": "two seeds",
        "objective": "kfac_ggn",
        "n_trials": 500,
        "finalists": 0,
        "replicates": 2,
        "dataset": {"name": "digits"},
        "family": {"mlp": {"width": {"low": 4, "high": 1000}}},
    }
)


def record(
    trial_id: int, width: int, value: float, status: TrialStatus = TrialStatus.COMPLETE
) -> TrialRecord:
    return record_with(
        trial_id,
        replicate=trial_id % 2,
        architecture=mlp(width=width),
        status=status,
        n_parameters=width,
        evaluations=at(1, laplace(value / 100)),
        test_accuracy=0.5,
        test_nll_per_datum=1.0,
    )


#: The luckiest trial is 1, pruned trials are no candidates, and the best mean is that of width 20,
#: for which trial 3 stands.
TWO_SEEDS = (
    record(0, 10, -900.0),
    record(1, 10, -100.0),
    record(2, 20, -310.0),
    record(3, 20, -290.0),
    record(4, 30, -400.0),
    record(5, 30, -1.0, TrialStatus.PRUNED),
)


def rows(*records: TrialRecord) -> list[TrialRow]:
    return [TrialRow.of(one) for one in records]


def test_the_best_mean_wins_and_its_best_replicate_stands_for_it() -> None:
    standings = Standings(STUDY, rows(*TWO_SEEDS))
    assert [one.trial_id for one in standings.first()] == [3, 4, 1]
    assert [one.mean for one in standings.first()] == [-300.0, -400.0, -500.0]


def test_the_order_of_arrival_decides_nothing_and_equals_keep_the_order_of_trials() -> None:
    records = [record(i, i // 2 % 7, float(i % 3)) for i in range(40)]
    expected = Standings(STUDY, rows(*records)).first()
    for seed in range(5):
        random.Random(seed).shuffle(records)
        assert Standings(STUDY, rows(*records)).first() == expected


def test_status_report_export_and_kept_weights_agree_on_the_winner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "study.toml").write_text(dump_study(STUDY), encoding="utf-8")
    models = tmp_path / "models"
    models.mkdir()
    for one in TWO_SEEDS:
        write_record(tmp_path, one, STUDY)
        (models / f"{one.trial_id}.safetensors").touch()
    done = finished(tmp_path)
    best, winner = study_status(tmp_path).best, load_study_tables(tmp_path).winner
    monkeypatch.setattr(results_module, "KEEP_ALL_MODELS", 5)
    monkeypatch.setattr(results_module, "KEEP_BEST_MODELS", 1)
    KeptModels(tmp_path, STUDY, done)
    kept = [int(path.stem) for path in models.iterdir()]
    exported = trial_to_export(read_study_tables(tmp_path, STUDY))
    assert (best.trial_id, winner.trial_id, exported, kept) == (3, 3, 3, [3])


def test_of_more_than_200_trials_the_weights_of_the_winner_are_always_kept(
    tmp_path: Path,
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    rng = random.Random(0)
    standings, kept = Standings(STUDY), KeptModels(tmp_path, STUDY, {})
    # The noise between seeds exceeds the differences: lucky trials are of bad architectures.
    for trial_id in range(300):
        width = trial_id // 2
        row = TrialRow.of(record(trial_id, width, -abs(width - 75) + rng.gauss(0, 40)))
        standings.add(row)
        (models / f"{trial_id}.safetensors").touch()
        kept.add(row, trial_id + 1)
        assert (models / f"{standings.best.trial_id}.safetensors").exists()
    there = {int(path.stem) for path in models.iterdir()}
    best = {one.trial_id for one in standings.first(results_module.KEEP_BEST_MODELS)}
    assert there <= best


def test_whichever_of_many_finalists_wins_the_race_its_weights_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results_module, "KEEP_ALL_MODELS", 10)
    monkeypatch.setattr(results_module, "KEEP_BEST_MODELS", 2)
    study = STUDY.model_copy(update={"finalists": 6})
    models = tmp_path / "models"
    models.mkdir()

    def end(one: TrialRecord) -> None:
        (models / f"{one.trial_id}.safetensors").touch()
        done.append(TrialRow.of(one))
        kept.add(done[-1], len(done))
        winner = Standings(STUDY, done).best
        assert (models / f"{winner.trial_id}.safetensors").exists()

    done: list[TrialRow] = []
    kept = KeptModels(tmp_path, study, {})
    for first, n_search in ((0, 30), (30, 40)):  # the longer search has other finalists
        for trial_id in range(first, n_search):
            end(record(trial_id, trial_id, float(trial_id)))
        for finalist in range(n_search - 6, n_search):  # all but the first of them fall
            fall = 0.0 if finalist == n_search - 6 else 90.0
            end(record(RACE_IDS + finalist, finalist, finalist - fall))
    assert len(list(models.iterdir())) <= 12 + 6
