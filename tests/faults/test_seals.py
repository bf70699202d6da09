"""What is stored is sealed: a damaged file, or a sound one of another name, is never believed."""

import random
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from commands import assert_same, contents, found
from damages import differing, tables_of
from fakes import FakeExecutor, FakeProposer, compacted, drive, facts_in, finished, last_log
from faulty import Cli, flipped, run, stopped, study
from matrix import REST
from messages import refused

import nas_evidence
from nas_evidence.api.runs import begun
from nas_evidence.cli.validate import Check
from nas_evidence.data.digest import data_digest
from nas_evidence.data.source import source_of
from nas_evidence.driver.verification import not_checked, verify
from nas_evidence.exporting.predictor import Predictor
from nas_evidence.exporting.soundness import written_whole
from nas_evidence.plumbing.seals import DamagedError
from nas_evidence.plumbing.sums import write_sums
from nas_evidence.plumbing.table_checksum import sealed
from nas_evidence.plumbing.tensor_seals import read_tensors, sealed_tensors
from nas_evidence.spec.dataset import DatasetSpec
from nas_evidence.spec.record import TrialStatus
from nas_evidence.spec.study import ArchitectureSpec, Assignment
from nas_evidence.storage.conditions import note_conditions
from nas_evidence.storage.events import Launched, Stopped
from nas_evidence.storage.log import LOG, Log, mend_log, read_log
from nas_evidence.storage.redo import ask_to_retry
from nas_evidence.storage.study_folder import open_study, read_study
from nas_evidence.storage.tables import (
    TABLES,
    file_digest,
    read_study_tables,
    read_table,
    read_tables,
)
from nas_evidence.training.checkpoint import read_checkpoint, save_checkpoint

pytestmark = pytest.mark.slow
SPEC = study(n_trials=4)


def each_flip(path: Path, n: int) -> Iterator[int]:
    """Flip a bit of a file, and give its content back after what is done with it, `n` times."""
    sound, chance = path.read_bytes(), random.Random(0)
    for _ in range(n):
        at = chance.randrange(len(sound))
        flipped(path, at, chance.randrange(8))
        yield at
        path.write_bytes(sound)


def conditions_of(folder: Path) -> Path:
    (path,) = (folder / "logs").glob("conditions-*.toml")
    return path


def replaced(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize("lost", ["unreadable", "deleted"])
def test_without_the_copy_an_edited_study_file_does_not_resume(
    folder: Path, lost: str, cli: Cli
) -> None:
    path = conditions_of(folder)
    if lost == "deleted":
        path.unlink()
        assert [finding.place for finding in verify(folder)] == [f"logs/{path.name}"]
    else:
        path.write_bytes(b"\xff" + path.read_bytes())
    replaced(folder / "study.toml", "epochs = 4", "epochs = 6")
    said = cli("resume", folder, "--trials", 6, "--executor", "inline", code=2)[1]
    assert "not those of its trials" in said
    assert len(finished(folder)) == 5


def test_repair_restores_a_torn_study_file_as_it_last_ran(folder: Path, cli: Cli) -> None:
    before = read_study(folder)
    assert (before.n_trials, before.budget.wall_seconds) == (5, 5000.0)
    path = folder / "study.toml"
    path.write_bytes(path.read_bytes()[:100])
    text = cli("repair", folder)[0]
    assert "restored from the sealed copy" in text
    assert read_study(folder) == before


@pytest.mark.parametrize("lost", [True, False])
def test_a_lost_study_file_is_said_with_the_command_that_restores_it(
    folder: Path, cli: Cli, lost: bool
) -> None:
    path = folder / "study.toml"
    before = path.read_text()
    path.unlink()
    if not lost:
        path.write_text(before[:100])
    for verb in ("status", "resume"):
        said = cli(verb, folder, code=2)[1]
        assert "it has no study.toml." in said if lost else "is lost or damaged." in said
        assert f" `nas-evidence repair {folder}` restores it." in said
    cli("repair", folder)
    assert (folder / "study.toml").read_text() == before


def test_repair_names_each_key_that_it_changes_back(folder: Path, cli: Cli) -> None:
    replaced(folder / "study.toml", "epochs = 4", "epochs = 6")
    replaced(folder / "study.toml", "batch_size = 32", "batch_size = 16")
    text = cli("repair", folder, code=None)[0]
    assert "plan.epochs: 6 there, 4 again" in text
    assert "plan.batch_size: 16 there, 32 again" in text


def test_verbs_that_only_read_name_an_edit_too(folder: Path, tmp_path: Path, cli: Cli) -> None:
    replaced(folder / "study.toml", "n_trials = 5", "n_trials = 4")
    said = cli("report", folder, "--to", tmp_path / "out")[1]
    assert "study.toml was edited, which `resume` takes: n_trials: 5 then, 4 now" in said


def test_an_edit_of_a_key_that_may_change_is_taken_and_named(folder: Path, cli: Cli) -> None:
    replaced(folder / "study.toml", "n_trials = 5", "n_trials = 6")
    said = cli("verify", folder)[1]
    assert "n_trials: 5 then, 6 now" in said
    text = cli("resume", folder, "--executor", "inline")[0]
    assert "note: study.toml was edited: n_trials: 5 then, 6 now" in text
    assert len(finished(folder)) == 6


@pytest.mark.parametrize("verb", ["report", "export", "status", "resume"])
def test_no_verb_believes_a_study_file_that_its_copy_contradicts(
    folder: Path, verb: str, tmp_path: Path, cli: Cli
) -> None:
    replaced(folder / "study.toml", "epochs = 4", "epochs = 5")
    to = ("--to", tmp_path / "out") if verb in ("report", "export") else ()
    said = cli(verb, folder, *to, code=2)[1]
    assert "plan.epochs: 4 then, 5 now" in said
    assert "repair" in said


def ask_line(folder: Path, number: int) -> int:
    """Return the first byte of the line of the log that has a proposal."""
    content, at = last_log(folder).read_bytes(), 0
    for line in content.splitlines(keepends=True):
        if f'"ask","number":{number},'.encode() in line:
            return at
        at += len(line)
    raise AssertionError(number)


def test_a_flipped_bit_in_a_proposal_that_has_not_run_is_named_and_trains_nothing_else(
    tmp_path: Path,
) -> None:
    spec = study(n_trials=8, scheduling="batch", batch=4)
    undisturbed = run(spec, tmp_path / "a").done
    folder = tmp_path / "b"
    stopped(spec, folder, 5)
    last = max(read_log(folder).state.proposals)
    assert last not in finished(folder)
    shutil.rmtree(folder / "checkpoints")  # of the trials under way
    content = last_log(folder).read_bytes()
    at = content.index(b'"width":', ask_line(folder, last)) + len(b'"width":')
    flipped(last_log(folder), at)
    assert len(read_log(folder).problems) == 1
    again = run(spec, folder, FakeExecutor())
    assert any("not as written" in note for note in again.notices)
    assert {i: row.architecture for i, row in again.done.items()} == {
        i: row.architecture for i, row in undisturbed.items()
    }
    assert read_log(folder).problems == []


def test_every_flipped_bit_and_every_lost_line_of_a_log_is_noticed(tmp_path: Path) -> None:
    run(SPEC, tmp_path)
    path, events = last_log(tmp_path), facts_in(tmp_path)
    sound = path.read_bytes()
    for at in each_flip(path, 300):
        kept = facts_in(tmp_path)
        assert [event for event in events if event in kept] == kept
        cut_short = at == len(sound) - 1  # the end of the last line: as after a crash
        assert read_log(tmp_path).problems or cut_short or kept == events
    lines = sound.splitlines(keepends=True)
    for lost in range(len(lines) - 1):
        path.write_bytes(b"".join(lines[:lost] + lines[lost + 1 :]))
        missing = f"lines are missing before line {lost + 1} of {path.name}"
        assert read_log(tmp_path).problems == [missing]


def test_a_line_that_a_crash_cut_short_is_not_damage(tmp_path: Path) -> None:
    spec = study(n_trials=6)
    stopped(spec, tmp_path, 3)
    path = last_log(tmp_path)
    path.write_bytes(path.read_bytes()[:-20])
    assert read_log(tmp_path).problems == []
    run(spec, tmp_path)
    assert read_log(tmp_path).problems == []


def test_two_sound_files_that_contradict_each_other_stop_the_study(tmp_path: Path) -> None:
    spec = study(n_trials=6, name="s")
    run(spec, tmp_path / "a")
    run(spec.model_copy(update={"seed": 5}), tmp_path / "b")
    shutil.copy(last_log(tmp_path / "b"), last_log(tmp_path / "a"))
    with refused("files-contradict", "proposal 0 is mlp"):
        run(spec.model_copy(update={"n_trials": 8}), tmp_path / "a")


class Wider(FakeProposer):
    """Proposes other networks, as another run of the same asynchronous study does."""

    def ask(self) -> ArchitectureSpec:
        super().ask()
        self.widths[-1] += 1
        return self.proposals()[-1]


@pytest.mark.parametrize("merged", [False, True])
def test_two_sound_replicates_that_contradict_each_other_are_named_with_their_files(
    tmp_path: Path, merged: bool
) -> None:
    spec, a, b = study(n_trials=6, replicates=2), tmp_path / "a", tmp_path / "b"
    drive(open_study(a, spec), a)
    drive(spec, b, proposer=Wider)
    before = tables_of(a)
    for table in TABLES:
        shutil.copy(b / table / "000003-a1.parquet", a / table)
    shutil.rmtree(a / LOG)  # it named the right one
    if merged:
        compacted(a)
    [stem] = {path.stem for path in (a / "trials").glob("part-*")} if merged else ["000003-a1"]
    other = stem if merged else "000002-a1"
    names = (f"trials/{other}.parquet", f"trials/{stem}.parquet", "proposal 1")
    assert any(all(name in one.problem for name in names) for one in verify(a))
    with refused("replicates-contradict", *names):
        drive(spec, a)
    for table in TABLES:
        (a / table / f"{stem}.parquet").unlink()
    drive(spec, a)
    assert differing(tables_of(a), before) == []


def test_lines_of_a_superseded_process_count_for_nobody(tmp_path: Path) -> None:
    run(SPEC, tmp_path)
    stops = [Stopped(idle_share=0.0, wall_seconds=s, device_seconds=0.0) for s in (97, 98, 99)]
    with closing(Log(tmp_path)) as late:
        late.write(stops[0])
        with closing(Log(tmp_path)) as log:
            log.write(stops[1])
        late._append(late._file, stops[2])  # it had looked before
    late_line = "line 3 of 000001.jsonl: of a process that was superseded"
    assert read_log(tmp_path).problems == [late_line]
    assert any(late_line in note for note in run(SPEC, tmp_path).notices)
    assert read_log(tmp_path).problems == []
    assert read_log(tmp_path).state.spent.wall_seconds == 98


def test_sound_files_with_another_digest_are_adopted(tmp_path: Path) -> None:
    calm = run(SPEC, tmp_path).done
    path = tmp_path / "evidence" / "000001-a1.parquet"
    digest = read_log(tmp_path).state.files[path.stem]["evidence"]
    pq.write_table(pq.read_table(path), path, compression="none")  # the same rows
    again = FakeExecutor()
    assert run(SPEC, tmp_path, again).done == calm
    assert again.launches == []
    assert read_log(tmp_path).state.files[path.stem]["evidence"] == file_digest(path) != digest


def test_a_lost_end_of_the_log_is_named_as_unchecked(tmp_path: Path) -> None:
    run(SPEC, tmp_path)
    assert not_checked(tmp_path) == []
    path = last_log(tmp_path)
    for end in (-1, -2, -3):
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:end]))
        assert read_log(tmp_path).problems == []
        assert "the end of logs/events" in not_checked(tmp_path)[0]


def test_a_sound_row_with_the_key_of_another_architecture_is_read_by_nobody(
    folder: Path, cli: Cli
) -> None:
    path = folder / "trials" / "000001-a1.parquet"
    table = pq.read_table(path)
    other = pa.array(["d1302c77be74"])
    at = table.column_names.index("architecture_key")
    content = table.set_column(at, "architecture_key", other)
    pq.write_table(content.replace_schema_metadata(sealed(content)), path)
    (one,) = verify(folder)
    assert (one.place, one.problem[:8]) == ("trials/000001-a1.parquet", "damaged:")
    assert read_study_tables(folder).missing == [
        "trials/000001-a1.parquet: damaged: not as it was written"
    ]
    cli("repair", folder)
    assert verify(folder) == []


def test_after_a_mend_the_lines_of_the_process_before_count_no_more(tmp_path: Path) -> None:
    run(study(n_trials=3), tmp_path)
    with closing(Log(tmp_path)) as asleep:
        asleep.write(Launched(trial_id=0, attempt=7))
        flipped(last_log(tmp_path), 100)
        mended = mend_log(tmp_path, read_log(tmp_path))
        asleep._append(asleep._file, Launched(trial_id=1, attempt=9))  # it had looked before
        with refused("taken-over"):
            asleep.write(Launched(trial_id=2, attempt=9))
    now = read_log(tmp_path)
    assert (now.state, now.problems) == (mended.state, [])


# --- the data that a study keeps


@pytest.mark.parametrize("damage", ["changed", "torn", "deleted"])
def test_a_damaged_copy_of_the_data_is_set_aside_by_repair_and_written_again_by_search(
    tmp_path: Path, damage: str, cli: Cli
) -> None:
    kinds = pd.Series(["r", "g", "b"] * 10)
    frame = pd.DataFrame({"a": np.arange(30.0), "b": np.sqrt(np.arange(30)), "kind": kinds})
    frame.to_csv(tmp_path / "data.csv")
    source = source_of(DatasetSpec(name="table", path=f"{tmp_path}/data.csv", target="kind"))
    spec, folder = study(dataset=source.spec), tmp_path / "s"
    open_study(folder, spec)
    source.write(folder)
    note_conditions(folder, spec, data_digest(source.arrays(seed=0)))
    assert cli("repair", folder, code=None)[0].startswith("nothing to repair")
    path = folder / "data" / "train.parquet"
    sound = path.read_bytes()
    if damage == "changed":
        frame.assign(a=7.0).to_parquet(path)
    elif damage == "torn":
        path.write_bytes(sound[:-20])
    else:
        path.unlink()
    text, said = cli("verify", folder, code=1)
    assert "data: " in text
    assert "repair: " in said
    assert "data: " in cli("repair", folder, code=None)[0]
    assert not path.exists()
    assert (folder / "damaged" / "data").exists()
    begun(folder, spec, source)
    assert path.read_bytes() == sound
    cli("verify", folder)


# --- exports


@pytest.mark.parametrize(
    "name", ["posterior.safetensors", "meaning.json", "architecture.toml", "model.safetensors"]
)
def test_no_flipped_bit_of_an_export_gives_other_predictions(folder: Path, name: str) -> None:
    for _ in each_flip(folder / "export" / name, 15):
        with pytest.raises(ValueError, match="is damaged or missing"):
            Predictor.load(folder / "export")


def test_a_missing_or_shortened_list_of_checksums_is_a_failed_check(folder: Path) -> None:
    sums = folder / "export" / "SHA256SUMS"
    lines = sums.read_text().splitlines(keepends=True)
    sums.write_text("".join(line for line in lines if "posterior" not in line))
    with refused("export-damaged", "posterior.safetensors"):
        Predictor.load(folder / "export")
    assert "export/posterior.safetensors" in [finding.place for finding in verify(folder)]
    sums.unlink()
    with refused("export-damaged", "SHA256SUMS"):
        Predictor.load(folder / "export")


def test_an_export_that_is_killed_leaves_nothing_in_its_place(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(folder / "export")

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nas_evidence.exporting.folder.model_card", killed)
    for to in (tmp_path / "winner", folder / "export"):
        with pytest.raises(KeyboardInterrupt):
            nas_evidence.load(folder).export(to)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s"]
    assert contents(folder / "export") == before


def test_a_torn_page_of_the_report_is_found_and_one_that_was_cut_short_is_unchecked(
    folder: Path,
) -> None:
    page = folder / "report" / "index.html"
    assert verify(folder) == not_checked(folder) == []
    page.write_bytes(page.read_bytes()[:40_960])
    assert [finding.place for finding in verify(folder)] == ["report/index.html"]
    (folder / "report" / "SHA256SUMS").unlink()
    assert "the report" in not_checked(folder)[0]


def like_an_export(folder: Path, text: str) -> None:
    names = ("architecture.toml", "model.safetensors", "posterior.safetensors", "meaning.json",
             "evidence.json", "README.md", "model.pt2")  # fmt: skip
    for name in names:
        (folder / name).write_text(text)
    write_sums(folder, names)


def test_what_a_killed_export_leaves_is_cleared_and_the_export_before_it_is_put_back(
    tmp_path: Path,
) -> None:
    to, name = tmp_path / "winner", f".winner.{uuid.uuid4().hex}"
    for left in (name, f"{name}.before", ".winner.mine"):
        (tmp_path / left).mkdir()
        like_an_export(tmp_path / left, left)
    with written_whole(to) as made:
        assert (to / "model.pt2").read_text() == f"{name}.before"
        like_an_export(made, "new")
        with written_whole(to) as other:  # spares one under way
            like_an_export(other, "newer")
    assert (to / "model.pt2").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".winner.mine", "winner"]


def test_the_copy_for_optuna_is_no_part_of_what_is_verified(tmp_path: Path) -> None:
    run(SPEC, tmp_path)
    before = verify(tmp_path)
    (tmp_path / "study.db").write_bytes(b"no database")
    assert verify(tmp_path) == before


# --- tables, checkpoints and weights


def test_a_torn_part_costs_only_its_own_trials_another_run(tmp_path: Path) -> None:
    run(SPEC, tmp_path)
    calm = found(tmp_path, without=["attempt"])
    compacted(tmp_path)
    (part,) = (tmp_path / "evidence").glob("part-*")
    part.write_bytes(part.read_bytes()[:-20])
    run(SPEC, tmp_path)
    assert read_table(tmp_path, "trials")["attempt"].tolist() == [2] * 4
    again = found(tmp_path, without=["attempt"])
    pd.testing.assert_frame_equal(again["evidence"], calm["evidence"])


@pytest.mark.long
def test_no_flipped_bit_of_a_table_is_read_as_another_value(tmp_path: Path) -> None:
    run(study(n_trials=1), tmp_path)
    right = found(tmp_path)
    for table in ("trials", "evidence"):
        for _ in each_flip(tmp_path / table / "000000-a1.parquet", 60):
            tables, unreadable = read_tables(tmp_path)
            if not unreadable:
                got = tables[table][right[table].columns]
                pd.testing.assert_frame_equal(got, right[table], check_exact=True)


def test_no_flipped_bit_of_a_checkpoint_is_read_as_another_state(tmp_path: Path) -> None:
    state = {"a": torch.arange(50.0), "epoch": 3, "names": ["x", "y"]}
    path = save_checkpoint(tmp_path, 3, state)
    for _ in each_flip(path, 200):
        with pytest.raises(DamagedError):
            read_checkpoint(path)


def test_no_flipped_bit_of_weights_is_read_as_other_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensors = {"w": torch.randn(7, 3), "b": torch.zeros(3, dtype=torch.float64)}
    path.write_bytes(sealed_tensors(tensors, {"noise_std": "0.5"}))
    for _ in each_flip(path, 400):
        try:
            got, header = read_tensors(path)
        except DamagedError:
            pass
        else:  # the flip is in blanks, or in the name of the checksum
            assert header["noise_std"] == "0.5"
            for name, tensor in tensors.items():
                torch.testing.assert_close(got[name], tensor, rtol=0, atol=0)


# --- trials that run again


def test_failed_trials_run_again_on_request_and_their_history_stays(tmp_path: Path) -> None:
    def unlucky(assignment: Assignment) -> str | None:
        return "bad machine" if assignment.trial_id in (1, 2) else None

    run(SPEC, tmp_path, FakeExecutor(misbehave=unlucky))
    before = finished(tmp_path)
    assert [before[i].status.value for i in (1, 2)] == ["failed", "failed"]
    assert ask_to_retry(tmp_path, [2]) == [2]
    executor = FakeExecutor()
    run(SPEC, tmp_path, executor)
    assert [launch.assignment.trial_id for launch in executor.launches] == [2]
    now = finished(tmp_path)
    assert now[2].status is TrialStatus.COMPLETE
    assert now[2].attempt > before[2].attempt
    assert (tmp_path / "trials" / f"000002-a{before[2].attempt}.parquet").exists()
    with refused("retry-not-failed", 0):
        ask_to_retry(tmp_path, [0])
    assert ask_to_retry(tmp_path, None) == [1]


def test_a_dry_run_says_which_failed_trials_would_run_again_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_study(tmp_path, SPEC)
    run(SPEC, tmp_path, FakeExecutor(misbehave=lambda a: "bad" if a.trial_id == 1 else None))
    last = last_log(tmp_path).read_bytes()
    with refused("conditions-lost"):  # after the trials: those here ran without data
        nas_evidence.resume(tmp_path, retry_failed=True, progress=Check())
    assert "retry: 1 failed trial\n" in (said := capsys.readouterr().out)
    assert "1 of 4 trials" in said
    assert last_log(tmp_path).read_bytes() == last


def test_a_retried_trial_has_all_its_attempts_again(tmp_path: Path) -> None:
    unlucky = FakeExecutor(misbehave=lambda a: "bad machine" if a.trial_id == 1 else None)
    run(SPEC, tmp_path, unlucky)
    ask_to_retry(tmp_path, None)
    again = FakeExecutor(misbehave=lambda a: "bad" if a.attempt < 6 else None)
    run(SPEC, tmp_path, again)
    assert finished(tmp_path)[1].status is TrialStatus.COMPLETE


def test_preemptions_of_a_trial_that_makes_progress_never_end_it(tmp_path: Path) -> None:
    spec = study(n_trials=1, plan={"epochs": 30, "online": {"every": 1}})

    def preempted(assignment: Assignment, epoch: int) -> str | None:
        return "preempted" if epoch == assignment.attempt + 1 else None

    run(spec, tmp_path, FakeExecutor(lose_at=preempted))
    assert finished(tmp_path)[0].status is TrialStatus.COMPLETE
    assert finished(tmp_path)[0].attempt > 20


def test_a_trial_of_an_asynchronous_search_that_runs_again_is_judged_as_before(
    tmp_path: Path,
) -> None:
    pruning = {"rule": "halving", "first_epoch": 2, "reduction": 2, "startup_trials": 1}
    spec = study(n_trials=16, scheduling="async", pruning=pruning)
    run(spec, tmp_path)
    before = finished(tmp_path)
    assert len({row.status for row in before.values()}) == 2  # some pruned, some complete
    for path in tmp_path.glob("trials/*.parquet"):
        path.unlink()
    run(spec, tmp_path)
    now = finished(tmp_path)
    assert {i: row.status for i, row in now.items()} == {i: r.status for i, r in before.items()}


# --- sound files of another trial, attempt, table or study

Damage = Callable[[Path, Path], None]
ONE, TWO = "000001-a1.parquet", "000002-a1.parquet"


def exchanged(*tables: str, one: str = ONE, two: str = TWO) -> Damage:
    def damage(folder: Path, other: Path) -> None:
        for table in tables:
            left, right = folder / table / one, folder / table / two
            content = left.read_bytes()
            left.write_bytes(right.read_bytes())
            right.write_bytes(content)

    return damage


def copied(source: str, to: str, *tables: str) -> Damage:
    def damage(folder: Path, other: Path) -> None:
        for table in tables:
            shutil.copyfile(folder / table / source, folder / table / to)

    return damage


def foreign(*tables: str, name: str = TWO) -> Damage:
    def damage(folder: Path, other: Path) -> None:
        for table in tables:
            shutil.copyfile(other / table / name, folder / table / name)

    return damage


WEIGHTS = exchanged("models", one="1.safetensors", two="2.safetensors")
DAMAGES: dict[str, tuple[Damage, list[str]]] = {
    "all exchanged": (exchanged(*TABLES), [f"{t}/{n}" for t in TABLES for n in (ONE, TWO)]),
    **{f"{t} exchanged": (exchanged(t), [f"{t}/{ONE}", f"{t}/{TWO}"]) for t in TABLES},
    "all copied": (copied(TWO, ONE, *TABLES), [f"{t}/{ONE}" for t in TABLES]),
    "trials copied": (copied(TWO, ONE, "trials"), [f"trials/{ONE}"]),
    "next attempt": (
        copied(TWO, "000002-a2.parquet", "evidence"),
        ["evidence/000002-a2.parquet"],
    ),
    "next row": (copied(TWO, "000002-a2.parquet", "trials"), ["trials/000002-a2.parquet"]),
    "new trial": (
        copied(TWO, "000009-a1.parquet", *TABLES),
        [f"{t}/000009-a1.parquet" for t in TABLES],
    ),
    "all foreign": (foreign(*TABLES), [f"{t}/{TWO}" for t in TABLES]),
    **{f"{t} foreign": (foreign(t), [f"{t}/{TWO}"]) for t in TABLES},
    "other table": (copied(f"../terms/{ONE}", ONE, "evidence"), [f"evidence/{ONE}"]),
    "weights exchanged": (WEIGHTS, ["models/1.safetensors", "models/2.safetensors"]),
    "weights foreign": (foreign("models", name="2.safetensors"), ["models/2.safetensors"]),
}
#: A table of the four is enough.
WHAT = [
    pytest.param(what, marks=REST)
    if what.endswith((" exchanged", " foreign"))
    and what.startswith(tuple(set(TABLES) - {"evidence"}))
    else what
    for what in DAMAGES
]


@pytest.mark.parametrize("what", WHAT)
def test_a_sound_file_of_another_name_is_named_by_verify_and_set_right(
    finished_study: Path, other: Path, tmp_path: Path, what: str, cli: Cli
) -> None:
    calm = found(finished_study, without=["attempt"])
    damage, places = DAMAGES[what]
    for verb in ("repair", "resume"):
        folder = Path(shutil.copytree(finished_study, tmp_path / verb))
        damage(folder, other)
        assert {one.place for one in verify(folder)} >= {*places}
        cli(verb, folder, *(["--executor", "inline"] if verb == "resume" else []))
        assert_same(calm, found(folder, without=["attempt"]))
        if verb == "repair" or "weights" not in what:  # resume trains weights when it needs them
            assert verify(folder) == []
        assert cli("repair", folder)[0] == "nothing to repair.\n" or "weights" in what


@pytest.mark.parametrize("what", WHAT)
def test_who_only_reads_never_takes_a_file_for_that_of_its_name(
    finished_study: Path, folder: Path, other: Path, what: str
) -> None:
    DAMAGES[what][0](folder, other)
    for table in TABLES:
        calm, now = read_table(finished_study, table), read_table(folder, table)
        if "foreign" in what:  # the log tells; `read_study_tables` asks it
            continue
        kept = calm[calm["trial_id"].isin(now["trial_id"])].reset_index(drop=True)
        pd.testing.assert_frame_equal(now, kept)


def test_a_part_of_other_attempts_is_named_and_its_trials_run_again(
    folder: Path, other: Path, cli: Cli
) -> None:
    calm = found(folder, without=["attempt"])
    compacted(folder)
    for table in TABLES:
        (part,) = (folder / table).glob("part-*")
        copy = part.with_name(f"part-{'0' * 32}.parquet")
        shutil.copyfile(part, copy)
        assert len(read_table(folder, table)) == len(calm[table])
        copy.unlink()
        shutil.copyfile(other / table / ONE, part)
    assert {one.place.partition("/")[0] for one in verify(folder)} == {*TABLES}
    cli("resume", folder, "--executor", "inline")
    assert_same(calm, found(folder, without=["attempt"]))
    assert verify(folder) == []
