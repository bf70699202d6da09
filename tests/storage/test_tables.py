"""Claims about the Parquet tables: whole, tolerant, never overwritten, null and never NaN."""

import io
import math
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from commands import contents
from fakes import compacted, finished, study
from hypothesis import given, settings
from hypothesis import strategies as st
from messages import refused
from records import at, curve_of, mlp, record_with

from nas_evidence.api.control import opened
from nas_evidence.spec.domains import IntRange
from nas_evidence.spec.record import (
    Evaluation,
    EvidenceEstimate,
    Term,
    TrialRecord,
    TrialStatus,
)
from nas_evidence.spec.study import ArchitectureSpec, DatasetSpec, StudySpec
from nas_evidence.storage.checkpoint_losses import last_checkpoint, losses_so_far
from nas_evidence.storage.study_folder import open_study
from nas_evidence.storage.tables import COLUMNS, TABLES, read_table, read_tables, write_record
from nas_evidence.storage.trial_row import TrialRow
from nas_evidence.training.checkpoint import save_checkpoint

SPEC = StudySpec(
    name="café <b>",
    seed=7,
    dataset=DatasetSpec(name="digits"),
    family={"mlp": {"width": IntRange(low=4, high=8)}},
)


def estimate(value: float, *, estimator: str = "kfac_ggn", valid: bool = True) -> EvidenceEstimate:
    return EvidenceEstimate(
        estimator=estimator,
        value=value,
        per_datum=value / 100,
        terms=(Term(term="scatter", group="0.weight", value=value),),
        valid=valid,
    )


def record(
    trial_id: int = 0,
    attempt: int = 1,
    *,
    value: float = -120.5,
    status: TrialStatus = TrialStatus.COMPLETE,
    architecture: ArchitectureSpec | None = None,
) -> TrialRecord:
    return record_with(
        trial_id,
        attempt=attempt,
        architecture=architecture or mlp(depth=2, width=8, shape="constant"),
        status=status,
        seed=3,
        n_parameters=650,
        epochs=2,
        evaluations=(*at(1, estimate(value - 10)), *at(2, estimate(value))),
        curve=curve_of(lambda epoch: 2.0, 1),
        test_accuracy=0.9,
        versions='{"torch": "2"}',
    )


def test_a_record_comes_back_in_four_tables(tmp_path: Path) -> None:
    write_record(tmp_path, record(), SPEC)
    trials, evidence = read_table(tmp_path, "trials"), read_table(tmp_path, "evidence")
    for table, columns in COLUMNS.items():
        assert list(read_table(tmp_path, table).columns) == [*columns]
    row = trials.iloc[0]
    assert (row.arch_depth, row.arch_width, row.arch_shape) == (2, 8, "constant")
    assert (row.status, row.n_data, row.seed) == ("complete", 100, 3)
    assert row.architecture_key == record().architecture.key
    assert evidence["value"].tolist() == [-130.5, -120.5]
    assert evidence["valid"].tolist() == [True, True]


def test_a_table_is_read_from_a_folder_given_as_text(tmp_path: Path) -> None:
    write_record(tmp_path, record(), SPEC)
    pd.testing.assert_frame_equal(
        read_table(str(tmp_path), "trials"), read_table(tmp_path, "trials")
    )


def test_files_are_plain_parquet_with_study_and_schema_version(tmp_path: Path) -> None:
    write_record(tmp_path, record(42, 3), SPEC)
    assert sorted(contents(tmp_path)) == [f"{table}/000042-a3.parquet" for table in sorted(TABLES)]
    schema = pq.read_schema(tmp_path / "evidence" / "000042-a3.parquet")
    assert schema.metadata[b"nas_evidence.schema_version"] == b"1"
    assert schema.metadata[b"nas_evidence.study"].decode() == "café <b>"
    assert schema.metadata[b"nas_evidence.study_seed"] == b"7"
    assert schema.field("value").type == pa.float64()
    assert not any(pa.types.is_dictionary(field.type) for field in schema)
    column = pq.ParquetFile(tmp_path / "evidence" / "000042-a3.parquet").metadata.row_group(0)
    assert column.column(0).compression == "UNCOMPRESSED"  # a part is compressed


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_number_is_invalid_and_null_but_for_an_infinite_score(
    tmp_path: Path, value: float
) -> None:
    write_record(tmp_path, record(value=value), SPEC)
    for table in TABLES:
        stored = pq.read_table(tmp_path / table / "000000-a1.parquet")
        for name in stored.column_names:
            cells = stored[name].to_pylist()
            wrong = {cell for cell in cells if isinstance(cell, float) and not math.isfinite(cell)}
            keeps = (table, name) == ("evidence", "value") and not math.isnan(value)
            assert wrong == ({value} if keeps else set())
    evidence = read_table(tmp_path, "evidence")
    assert not evidence["valid"].any()
    assert evidence["value"].isna().all() == math.isnan(value)
    assert evidence["note"].str.contains("value is").all()
    assert finished(tmp_path)[0].values == {}


def test_the_last_finished_attempt_wins_in_every_table(tmp_path: Path) -> None:
    for attempt, value in ((2, -50.0), (3, -10.0)):
        write_record(tmp_path, record(attempt=attempt, value=value), SPEC)
    for table in TABLES:
        assert read_table(tmp_path, table)["attempt"].unique().tolist() == [3]
    assert finished(tmp_path)[0].values == {"kfac_ggn": -10.0}


def test_an_attempt_without_commit_marker_does_not_exist_and_may_be_written_again(
    tmp_path: Path,
) -> None:
    write_record(tmp_path, record(), SPEC)
    (tmp_path / "trials" / "000000-a1.parquet").unlink()
    assert read_table(tmp_path, "evidence").empty
    assert finished(tmp_path) == {}
    write_record(tmp_path, record(value=-1.0), SPEC)
    assert finished(tmp_path)[0].values == {"kfac_ggn": -1.0}


def test_writing_the_same_record_again_changes_no_file(tmp_path: Path) -> None:
    write_record(tmp_path, record(), SPEC)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
    write_record(tmp_path, record(), SPEC)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")} == before


def test_a_committed_attempt_is_never_changed(tmp_path: Path) -> None:
    write_record(tmp_path, record(), SPEC)
    before = contents(tmp_path)
    with refused("attempt-already-stored", 0, 1):
        write_record(tmp_path, record(value=-1.0), SPEC)
    assert contents(tmp_path) == before


def test_unfinished_trials_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='"running"'):
        write_record(tmp_path, record(status=TrialStatus.RUNNING), SPEC)
    assert not contents(tmp_path)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(share=st.floats(min_value=0, max_value=0.999))
def test_a_file_torn_anywhere_is_skipped_and_reported(
    tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    folder = tmp_path_factory.mktemp("study")
    for trial_id in range(2):
        write_record(folder, record(trial_id), SPEC)
    torn = folder / "trials" / "000000-a1.parquet"
    torn.write_bytes(torn.read_bytes()[: int(share * torn.stat().st_size)])
    assert read_table(folder, "trials")["trial_id"].tolist() == [1]
    assert [file.path for file in read_tables(folder)[1]] == [torn]


def test_foreign_files_are_skipped_and_reported(tmp_path: Path) -> None:
    write_record(tmp_path, record(), SPEC)
    other = pa.table({"trial_id": [5], "attempt": [1], "status": ["complete"]})
    pq.write_table(other, tmp_path / "trials" / "000005-a1.parquet")
    pq.write_table(other, tmp_path / "trials" / "notes.parquet")
    (tmp_path / "trials" / ".000006-a1.parquet.tmp").write_text("hidden files are not ours to say")
    assert read_table(tmp_path, "trials")["trial_id"].tolist() == [0]
    assert [(file.path.name, file.reason.split(":")[0]) for file in read_tables(tmp_path)[1]] == [
        ("notes.parquet", "foreign"),
        ("000005-a1.parquet", "foreign"),
    ]


def test_parameters_of_new_families_become_columns(tmp_path: Path) -> None:
    write_record(tmp_path, record(0), SPEC)
    values = {"n_heads": 4, "dropout": 0.5, "gated": True, "norm": "none"}
    new = ArchitectureSpec(family="transformer", values=values)
    write_record(tmp_path, record(1, architecture=new), SPEC)
    trials = read_table(tmp_path, "trials")
    assert {name: trials[f"arch_{name}"][1] for name in values} == values
    assert trials["arch_n_heads"].isna().tolist() == [True, False]
    assert trials["arch_width"].dtype == pd.Int64Dtype()


def test_an_empty_folder_has_empty_tables_with_all_columns(tmp_path: Path) -> None:
    for table in TABLES:
        frame = read_table(tmp_path, table)
        assert frame.empty
        assert {"trial_id", "attempt"} <= set(frame.columns)
    assert finished(tmp_path) == {}


def test_the_last_value_counts_even_if_it_is_invalid(tmp_path: Path) -> None:
    good = record()
    bad = Evaluation(epoch=3, estimate=estimate(-1.0, valid=False))
    write_record(tmp_path, good.model_copy(update={"evaluations": (*good.evaluations, bad)}), SPEC)
    write_record(tmp_path, record(1, status=TrialStatus.INFEASIBLE), SPEC)
    rows = finished(tmp_path)
    assert rows[0].values == {}
    assert (rows[1].status, rows[1].values) == (TrialStatus.INFEASIBLE, {"kfac_ggn": -120.5})


def test_what_is_read_back_is_what_the_driver_knew(tmp_path: Path) -> None:
    costs = {"flops": 10**12, "memory_bytes": 5, "latency_seconds": 0.25, "gpu_share": 0.5}
    known = record().model_copy(update={**costs, "cause": "why", "total_seconds": 3.5})
    other = record(1, architecture=ArchitectureSpec(family="linear"), status=TrialStatus.FAILED)
    for one in (known, other):
        write_record(tmp_path, one, SPEC)
    assert finished(tmp_path) == {0: TrialRow.of(known), 1: TrialRow.of(other)}
    row = finished(tmp_path)[0]
    assert row.architecture.key == known.architecture.key == row.architecture_key
    assert row.costs == {
        "n_parameters": 650.0, "flops": 1e12, "memory_bytes": 5.0, "latency_seconds": 0.25,
    }  # fmt: skip


def assert_same_tables(folder: Path, before: dict[str, pd.DataFrame]) -> None:
    after, unreadable = read_tables(folder)
    assert not unreadable
    for table in TABLES:
        pd.testing.assert_frame_equal(after[table], before[table])


def mixed_study(folder: Path) -> None:
    """Write trials out of order, with two attempts of one, a new family and no commit of one."""
    for trial_id in (5, 0, 3):
        write_record(folder, record(trial_id, value=-float(trial_id)), SPEC)
    write_record(folder, record(3, 2, value=-99.0), SPEC)
    new = ArchitectureSpec(family="transformer", values={"n_heads": 4})
    write_record(folder, record(4, architecture=new), SPEC)
    write_record(folder, record(7), SPEC)
    (folder / "trials" / "000007-a1.parquet").unlink()


@pytest.mark.slow
def test_compacting_changes_no_row_and_leaves_what_is_not_committed(tmp_path: Path) -> None:
    mixed_study(tmp_path)
    before, rows = read_tables(tmp_path)[0], finished(tmp_path)
    compacted(tmp_path, at_least=6)
    assert len(list((tmp_path / "trials").iterdir())) == 5, "too few to join"
    for later in ((8, -1.0), (9, -2.0)):
        compacted(tmp_path)
        assert_same_tables(tmp_path, before)
        assert finished(tmp_path) == rows
        write_record(tmp_path, record(later[0], value=later[1]), SPEC)
        before, rows = read_tables(tmp_path)[0], finished(tmp_path)
    names = {table: sorted(p.name for p in (tmp_path / table).iterdir()) for table in TABLES}
    singles = {t: [n for n in names[t] if not n.startswith("part-")] for t in TABLES}
    assert singles["trials"] == ["000009-a1.parquet"]
    assert singles["evidence"] == ["000007-a1.parquet", "000009-a1.parquet"]
    assert len(names["trials"]) == 3
    # Any reader finds every row by the pattern.
    whole = pa.concat_tables(
        [pq.read_table(p) for p in (tmp_path / "trials").glob("*.parquet")],
        promote_options="permissive",
    )
    assert sorted(whole["trial_id"].to_pylist()) == [0, 3, 3, 4, 5, 8, 9]


@pytest.mark.slow
@pytest.mark.parametrize("at", range(1, 21, 2))
def test_killed_while_compacting_no_row_is_lost_or_counted_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    mixed_study(tmp_path)
    before, count, original = read_tables(tmp_path)[0], 0, Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:
        nonlocal count
        count += not path.name.startswith(".")
        if count == at:
            raise KeyboardInterrupt
        original(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    with pytest.raises(KeyboardInterrupt):
        compacted(tmp_path)
    monkeypatch.undo()
    assert_same_tables(tmp_path, before)
    compacted(tmp_path)
    assert_same_tables(tmp_path, before)
    duplicates = read_tables(tmp_path)[0]["trials"]["trial_id"].duplicated()
    assert not duplicates.any()


def test_a_folder_whose_name_is_not_utf_8_holds_tables_like_any_other(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xff\xe9")
    for trial_id in range(3):
        write_record(folder, record(trial_id), SPEC)
    compacted(folder, at_least=2)
    tables, unreadable = read_tables(folder)
    assert not unreadable
    assert len(tables["trials"]) == 3


def test_each_file_of_a_study_is_opened_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for trial_id in range(12):
        write_record(tmp_path, record(trial_id), SPEC)
    opened: list[Path] = []
    original = Path.read_bytes

    def counted(path: Path) -> bytes:
        opened.append(path)
        return original(path)

    monkeypatch.setattr(Path, "read_bytes", counted)
    assert len(read_table(tmp_path, "trials")) == 12
    assert sorted(opened) == sorted((tmp_path / "trials").glob("*.parquet"))
    opened.clear()
    assert len(finished(tmp_path)) == 12  # needs two tables
    assert sorted(opened) == sorted(tmp_path.glob("[te][rv]*/*.parquet"))


# --- claims about the losses of a trial under way: read from its checkpoint, without torch


def checkpoint(folder: Path, n_epochs: int) -> Path:
    """A checkpoint with a curve of the network, and one of a fold after it."""
    own, of_fold = (
        [point.model_dump_json() for point in curve_of(losses, n_epochs, 1)]
        for losses in (lambda epoch: 1 / (1 + epoch), lambda _: 7.0)
    )
    model = {"weight": torch.zeros(3)}
    state = {"network": {"model": model, "curve": own}, "scores": {"folds": {"curve": of_fold}}}
    return save_checkpoint(folder, n_epochs, state)


def test_losses_are_those_of_the_whole_network_until_the_checkpoint(tmp_path: Path) -> None:
    for attempt, n_epochs in ((1, 2), (1, 12), (2, 5)):
        checkpoint(tmp_path / f"attempt-{attempt}", n_epochs)
    found = last_checkpoint(tmp_path)
    assert found is not None
    epoch, path = found
    assert epoch == 12
    losses = losses_so_far(path)
    assert [one for one, _ in losses] == list(range(1, 13))
    assert losses[3][1] == curve_of(lambda epoch: 1 / (1 + epoch), 12, 1)[3].train_nll_per_datum


def test_of_a_study_in_a_store_they_are_read_from_there(tmp_path: Path) -> None:
    open_study(tmp_path / "s", study())
    path = checkpoint(tmp_path / "s" / "checkpoints" / "000000" / "attempt-1", 5)
    store = opened(f"file://{tmp_path}/s", looking="results")
    found = last_checkpoint(store.folder / "checkpoints" / "000000")
    assert found is not None
    epoch, here = found
    assert (epoch, here.stat().st_size) == (5, 0)
    assert store.losses_so_far(here) == losses_so_far(path)
    path.unlink()  # the trial has gone on
    assert store.losses_so_far(here) == []


def test_of_a_large_checkpoint_in_a_store_few_bytes_are_fetched() -> None:
    read, content = list[int](), io.BytesIO()
    torch.save(
        {"curve": ['{"epoch":1,"train_nll_per_datum":0.5}'], "w": torch.ones(10**6)}, content
    )
    content.read = lambda n=-1: read.append(n) or io.BytesIO.read(content, n)  # type: ignore
    assert losses_so_far(content) == [(1, 0.5)]
    assert sum(read) < 10**5


def test_what_cannot_be_read_has_no_losses(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, 3)
    path.write_bytes(path.read_bytes()[:200])
    assert losses_so_far(path) == []
    assert losses_so_far(tmp_path / "gone.pt") == []
    assert last_checkpoint(tmp_path / "gone") is None


@pytest.mark.slow
def test_it_needs_no_torch(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, 3)
    code = (
        "import sys; from pathlib import Path;"
        "from nas_evidence.storage.checkpoint_losses import losses_so_far;"
        f"print(len(losses_so_far(Path({str(path)!r}))), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["3", "False"]
