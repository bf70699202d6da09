"""What a study decides from is sealed; a file that fails its seal is not believed over others."""

import random
import shutil
import uuid
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import TINY, write_study
from damages import differing, tables_of
from fakes import FakeExecutor, FakeProposer, compacted, drive, facts_in, finished, last_log
from faulty import Cli, flipped, quiet_call, run, stopped, study
from messages import refused

from nas_evidence.api.runs import begun
from nas_evidence.data.digest import data_digest
from nas_evidence.data.source import source_of
from nas_evidence.driver.verification import not_checked, verify
from nas_evidence.exporting.predictor import Predictor
from nas_evidence.exporting.soundness import written_whole
from nas_evidence.plumbing.sums import write_sums
from nas_evidence.plumbing.table_checksum import sealed
from nas_evidence.spec.dataset import DatasetSpec
from nas_evidence.spec.study import ArchitectureSpec
from nas_evidence.storage.conditions import note_conditions
from nas_evidence.storage.events import Launched, Stopped
from nas_evidence.storage.log import LOG, Log, mend_log, read_log
from nas_evidence.storage.study_folder import open_study, read_study
from nas_evidence.storage.tables import TABLES, file_digest, read_study_tables

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study, with five trials after a second run that asked for one more."""
    home = tmp_path_factory.mktemp("witnesses")
    path = write_study(home, TINY)
    assert quiet_call("search", path, "--out", home / "s", "--executor", "inline") == 0
    more = ("--trials", "5", "--set", "budget.wall_seconds=5000.0")
    assert quiet_call("resume", home / "s", *more, "--executor", "inline") == 0
    return home / "s"


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "s"))


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


def test_a_lost_study_file_is_said_with_the_command_that_restores_it(
    folder: Path, cli: Cli
) -> None:
    before = (folder / "study.toml").read_text()
    (folder / "study.toml").unlink()
    for verb in ("status", "resume"):
        said = cli(verb, folder, code=2)[1]
        assert f"it has no study.toml. `nas-evidence repair {folder}` restores it." in said
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
    run(study(n_trials=4), tmp_path)
    path, chance = last_log(tmp_path), random.Random(0)
    sound, events = path.read_bytes(), facts_in(tmp_path)
    for _ in range(300):
        flipped(path, at := chance.randrange(len(sound)), chance.randrange(8))
        kept = facts_in(tmp_path)
        assert [event for event in events if event in kept] == kept
        cut_short = at == len(sound) - 1  # the end of the last line: as after a crash
        assert read_log(tmp_path).problems or cut_short or kept == events
        path.write_bytes(sound)
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
    spec = study(n_trials=4)
    run(spec, tmp_path)
    stops = [Stopped(idle_share=0.0, wall_seconds=s, device_seconds=0.0) for s in (97, 98, 99)]
    with closing(Log(tmp_path)) as late:
        late.write(stops[0])
        with closing(Log(tmp_path)) as log:
            log.write(stops[1])
        late._append(late._file, stops[2])  # it had looked before
    late_line = "line 3 of 000001.jsonl: of a process that was superseded"
    assert read_log(tmp_path).problems == [late_line]
    assert any(late_line in note for note in run(spec, tmp_path).notices)
    assert read_log(tmp_path).problems == []
    assert read_log(tmp_path).state.spent.wall_seconds == 98


def test_sound_files_with_another_digest_are_adopted(tmp_path: Path) -> None:
    spec = study(n_trials=4)
    calm = run(spec, tmp_path).done
    path = tmp_path / "evidence" / "000001-a1.parquet"
    digest = read_log(tmp_path).state.files[path.stem]["evidence"]
    pq.write_table(pq.read_table(path), path, compression="none")  # the same rows
    again = FakeExecutor()
    assert run(spec, tmp_path, again).done == calm
    assert again.launches == []
    assert read_log(tmp_path).state.files[path.stem]["evidence"] == file_digest(path) != digest


def test_a_lost_end_of_the_log_is_named_as_unchecked(tmp_path: Path) -> None:
    run(study(n_trials=4), tmp_path)
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
    path, chance = folder / "export" / name, random.Random(0)
    sound = path.read_bytes()
    for _ in range(15):
        flipped(path, chance.randrange(len(sound)), chance.randrange(8))
        with pytest.raises(ValueError, match="is damaged or missing"):
            Predictor.load(folder / "export")
        path.write_bytes(sound)


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
    import nas_evidence

    before = hashes_of(folder / "export")

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nas_evidence.exporting.folder.model_card", killed)
    for to in (tmp_path / "winner", folder / "export"):
        with pytest.raises(KeyboardInterrupt):
            nas_evidence.load(folder).export(to)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s"]
    assert hashes_of(folder / "export") == before


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


def test_an_export_replaces_an_export_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    import nas_evidence

    loaded = nas_evidence.load(folder)
    x = np.zeros((3, 6), np.float32)
    first = loaded.predict(x).to_frame()
    loaded.export(tmp_path / "winner")
    loaded.export(tmp_path / "winner")
    again = Predictor.load(tmp_path / "winner").predict(x).to_frame()
    assert first.equals(again)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("mine")
    with refused("output-held", "chapter.tex"):
        loaded.export(tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "mine"


def hashes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


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
