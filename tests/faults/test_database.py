"""A database that was lost, damaged or restored never gives a trial another architecture."""

import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from faulty import Damage, run, stopped, study

from nas_evidence.proposing.proposer import Proposer
from nas_evidence.spec import StudySpec
from nas_evidence.store import finished, read_table

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # loss of power is not tested


def without_row(database: Path) -> None:
    with sqlite3.connect(database) as connection:
        ids = [i for (i,) in connection.execute("SELECT trial_id FROM trials ORDER BY trial_id")]
        for table in ("trials", "trial_values", "trial_params", "trial_user_attributes"):
            connection.execute(f"DELETE FROM {table} WHERE trial_id = {ids[3]}")
    connection.close()


def halved(database: Path) -> None:
    content = database.read_bytes()
    database.write_bytes(content[: len(content) // 2])


DAMAGES: dict[str, Damage] = {
    "deleted": lambda file: file.unlink(),
    "empty": lambda file: file.write_bytes(b""),
    "garbage": lambda file: file.write_bytes(os.urandom(5000)),
    "truncated": halved,
    "a row is missing": without_row,
}


def agree(folder: Path, spec: StudySpec) -> None:
    """Every proposal in the database is that of its stored trials; all are told."""
    proposer = Proposer(spec, folder / "study.db")
    for trial_id, row in finished(folder).items():
        assert proposer.proposals()[trial_id].key == row.architecture_key
    assert proposer.told() == set(range(spec.n_trials))


@pytest.mark.parametrize("scheduling", ["async", "batch"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_database_is_rebuilt_from_results_and_journal(
    tmp_path: Path, damage: str, scheduling: str
) -> None:
    spec = study(scheduling=scheduling, batch=3)
    calm, folder = tmp_path / "calm", tmp_path / "s"
    run(spec, calm)
    stopped(spec, folder, 7)
    stored = {i: row.architecture_key for i, row in finished(folder).items()}
    DAMAGES[damage](folder / "study.db")
    (notice,) = run(spec, folder).notices
    assert "rebuilt" in notice
    agree(folder, spec)
    now = {i: row.architecture_key for i, row in finished(folder).items()}
    assert stored.items() <= now.items()
    assert damage == "deleted" or (folder / "study.db.damaged-1").exists()
    if scheduling == "batch":
        wanted, found = (
            read_table(f, "trials")["architecture_key"].tolist() for f in (calm, folder)
        )
        assert wanted == found
    assert run(spec, folder).notices == []


def test_a_database_restored_from_an_earlier_copy_is_brought_up_to_date(tmp_path: Path) -> None:
    spec, folder = study(), tmp_path / "s"
    stopped(spec, folder, 4)
    shutil.copy(folder / "study.db", tmp_path / "copy.db")
    stopped(spec, folder, 8)
    shutil.copy(tmp_path / "copy.db", folder / "study.db")
    assert run(spec, folder).notices == []
    agree(folder, spec)


def test_a_database_of_another_study_is_set_aside(tmp_path: Path) -> None:
    spec, folder = study(), tmp_path / "s"
    stopped(spec, folder, 6)
    run(study(seed=5), tmp_path / "other")
    shutil.copy(tmp_path / "other" / "study.db", folder / "study.db")
    (notice,) = run(spec, folder).notices
    assert "proposal" in notice
    agree(folder, spec)


def test_a_newer_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    spec, folder = study(), tmp_path / "s"
    stopped(spec, folder, 4)
    proposer = Proposer(spec, folder / "study.db")
    proposer._storage.set_study_user_attr(proposer._study_id, "schema_version", 99)
    with pytest.raises(ValueError, match="a newer nas-evidence wrote it"):
        run(spec, folder)
    assert not (folder / "study.db.damaged-1").exists()
