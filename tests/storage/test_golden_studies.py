"""Studies written when format 4 began are read, gone on with and repaired: a change is noticed.

`tests/golden/studies.py` wrote them.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import found, hashes
from fakes import last_log
from faulty import Cli
from golden.studies import FOLDERS, HOME, every_event, folded, made_with, search

import nas_evidence
from nas_evidence.driver.verification import verify
from nas_evidence.storage.log import _line, _read, read_log
from nas_evidence.storage.redo import find_done
from nas_evidence.storage.study_names import TableName
from nas_evidence.storage.tables import _SCHEMAS, TABLES

#: Another version of torch may change the last bits of what is trained again.
EXACT = json.loads((HOME / "made_with.json").read_text()) == made_with()
#: What differs in the state of a study that was interrupted.
FREE = (
    "again",
    "attempt",
    "files",
    "latency_seconds",
    "losses",
    "spent",
    "stems",
    "total_seconds",
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of all; the data of the studies are in the current folder."""
    home = Path(shutil.copytree(HOME, tmp_path / "golden"))
    monkeypatch.chdir(home)
    return home


def what_stays(value: Any, exact: bool = True) -> Any:
    """Return a state without what is free; its numbers compare to 1e-6 unless `exact`."""
    if isinstance(value, dict):
        return {key: what_stays(one, exact) for key, one in value.items() if key not in FREE}
    if isinstance(value, list):
        return [what_stays(one, exact) for one in value]
    return value if exact or not isinstance(value, float) else pytest.approx(value, 1e-6)


def assert_the_finished_one(folder: Path) -> None:
    """Check tables and state against those of the finished study, as it was committed."""
    now = found(folder, without=["attempt"])
    for name, frame in found(HOME / "finished", without=["attempt"]).items():
        close: dict[str, Any] = {} if EXACT else {"rtol": 1e-6, "atol": 1e-6}
        (merged,) = (HOME / "finished" / name).iterdir()
        then = pq.read_schema(merged)
        assert len(frame)
        for path in (folder / name).iterdir():
            assert same_columns(pq.read_schema(path), then)
        names = [column for column in frame.columns if column in then.names]
        one, other = now[name][names], frame[names]
        pd.testing.assert_frame_equal(one, other, check_exact=EXACT, obj=name, **close)
    finished = json.loads((HOME / "finished.json").read_text())
    assert what_stays(json.loads(folded(folder))) == what_stays(finished, EXACT)


def same_columns(now: Any, then: Any) -> bool:
    """Tell whether columns are still there in their order, each with its type."""
    found: bool = pa.schema([one for one in now if one.name in then.names]).equals(then)
    return found


@pytest.mark.parametrize("table", TABLES)
def test_columns_are_only_ever_added(table: TableName) -> None:
    (merged,) = (HOME / "finished" / table).iterdir()
    assert same_columns(_SCHEMAS[table], pq.read_schema(merged))


@pytest.mark.parametrize("name", [*FOLDERS, "every"])
def test_the_log_of_a_golden_study_folds_to_the_same_state(name: str) -> None:
    assert folded(HOME / name) == (HOME / f"{name}.json").read_text()


@pytest.mark.parametrize("name", [*FOLDERS, "every"])
def test_each_line_of_a_golden_log_would_be_written_the_same_today(name: str) -> None:
    lines = last_log(HOME / name).read_bytes().splitlines(keepends=True)
    read = [one and _line(*one) for one in map(_read, lines)]
    damaged = [number for number, line in enumerate(lines) if read[number] != line]
    assert [read[number] for number in damaged] == [None] * (name == "damaged")


def test_every_kind_of_event_is_in_a_golden_log() -> None:
    lines = last_log(HOME / "every").read_bytes().splitlines()
    read = [found[2] for line in lines if (found := _read(line))]
    assert read[1:] == every_event()


@pytest.mark.slow
def test_a_golden_study_that_is_finished_changes_in_no_table(home: Path) -> None:
    before, state = hashes(home / "finished"), read_log(home / "finished").state
    assert len(before) == len(TABLES)  # merged
    search(home / "finished")
    assert hashes(home / "finished") == before
    now = read_log(home / "finished").state
    assert replace(now, spent=state.spent) == state
    assert find_done(home / "finished").notes == []


def test_verify_names_a_checkpoint_of_another_trial(home: Path) -> None:
    first = home / "half/checkpoints/000001"
    first.rename(first.with_name("000009"))
    assert "of trial 1" in str(verify(home / "half"))


@pytest.mark.slow
def test_a_golden_study_that_was_killed_goes_on_from_its_checkpoint(home: Path) -> None:
    before, fold = hashes(home / "half"), home / "half/checkpoints/200000001"
    shutil.copytree(home / "half/checkpoints/000001", fold)  # as large networks left some, once
    search(home / "half")
    assert not fold.exists()
    assert before.items() < hashes(home / "half").items()
    assert_the_finished_one(home / "half")


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["resume", "repair"])
def test_a_golden_study_that_is_damaged_is_mended(home: Path, verb: str, cli: Cli) -> None:
    folder = home / "damaged"
    before, finds = hashes(folder), find_done(folder)
    (torn,) = finds.wrong
    assert torn.parent.name == "evidence"
    assert (list(finds.redo), [one.stem for one in finds.found]) == ([1], ["000002-a1"])
    assert len(finds.past.problems) == 1
    if verb == "repair":
        cli("repair", folder)
        assert cli("verify", folder)[1].startswith("OK: no problems found.\n")
    search(folder)
    now = hashes(folder)
    assert {name for name in before if now.get(name) != before[name]} == {f"evidence/{torn.name}"}
    assert read_log(folder).problems == []
    assert_the_finished_one(folder)


@pytest.mark.slow
def test_a_study_that_began_when_each_trial_trained_a_network_of_all_rows_ends_as_it_would_have(
    tmp_path: Path,
) -> None:
    """Commit 52e6435a wrote three of six trials, and the tables of all six undisturbed."""
    with ZipFile(HOME.parent / "before.zip") as stored:
        stored.extractall(tmp_path)
    nas_evidence.resume(tmp_path / "half", executor="inline")
    now = found(tmp_path / "half", without=["attempt"])
    for table in TABLES:
        then = pd.read_parquet(tmp_path / f"{table}.parquet")
        then = then.drop(columns=[name for name in ("attempt", "versions") if name in then])
        one = now[table][[*then]].astype(then.dtypes)
        keys = [key for key in ("trial_id", "epoch", "estimator", "term", "group") if key in then]
        then, one = (frame.sort_values(keys, ignore_index=True) for frame in (then, one))
        pd.testing.assert_frame_equal(one, then, check_dtype=False, rtol=1e-5, atol=1e-5)
