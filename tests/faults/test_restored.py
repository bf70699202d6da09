"""Damage is found and restored, or said with what brings the study back; what is sound stays."""

import json
import re
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy
from commands import assert_same, found, hashes, write_study
from damages import differing, tables_of
from fakes import asked_in, compacted, finished, last_log
from faulty import Cli, Damage, call, flipped, quiet_call
from messages import refused

import nas_evidence
from nas_evidence.data import ArrayData, load
from nas_evidence.driver.restoration import repair, restored_study
from nas_evidence.driver.verification import not_checked, verify
from nas_evidence.exporting.predictor import Predictor
from nas_evidence.exporting.soundness import conditions_in, is_export_of
from nas_evidence.plumbing.sums import listed, write_sums
from nas_evidence.spec.study import (
    FREE_KEYS,
    BudgetSpec,
    RaceSpec,
    ResourceSpec,
    RetrySpec,
    StudySpec,
)
from nas_evidence.spec.toml import differences, dump_study, load_study
from nas_evidence.storage.conditions import content_hash
from nas_evidence.storage.events import Asked
from nas_evidence.storage.log import Log, log_files
from nas_evidence.storage.store import Store
from nas_evidence.storage.study_folder import read_study

pytestmark = pytest.mark.slow


def torn(name: str) -> Damage:
    def damage(folder: Path) -> object:
        path = folder / name
        return path.write_bytes(path.read_bytes()[:-40])

    return damage


def lose(path: Path) -> None:
    path.unlink()


def spoil(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def edited(folder: Path) -> None:
    path = folder / "study.toml"
    path.write_text(path.read_text().replace("epochs = 4", "epochs = 6"))


def without_conditions(folder: Path) -> None:
    for path in (folder / "logs").glob("conditions-*.toml"):
        path.unlink()


def without_a_key(folder: Path) -> None:
    with last_log(folder).open("a") as file:
        file.write('{"t": 1.0, "event": "tell"}\n{"t": 2.0, "event": "stop"}\n')


DAMAGES: dict[str, Damage] = {
    "evidence/000001-a1.parquet": torn("evidence/000001-a1.parquet"),
    "curves/000002-a1.parquet": lambda folder: flipped(folder / "curves/000002-a1.parquet", 300),
    "study.toml": edited,
    "models/1.safetensors": torn("models/1.safetensors"),
    "export/model.safetensors": torn("export/model.safetensors"),
    "logs/events": without_a_key,
    "how_read.json": torn("how_read.json"),
}


@pytest.mark.parametrize("place", DAMAGES)
def test_what_is_damaged_is_found_and_restored_and_the_rest_untouched(
    folder: Path, place: str, cli: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    said = cli("verify", folder)[1]
    assert said == "OK: no problems found.\n"
    before, sound = found(folder, without=["attempt"]), hashes(folder)
    DAMAGES[place](folder)
    text, said = cli("verify", folder, code=1)
    assert place in text
    assert "repair" in said
    code, text, said = call(capsys, "repair", folder)
    assert (code, said) == (0, "")
    assert place.split("/")[0] in text
    code, text, said = call(capsys, "verify", folder)
    assert (code, text) == (0, ""), text
    assert_same(before, found(folder, without=["attempt"]))
    kept = hashes(folder)
    for name, digest in sound.items():
        assert name == place or kept[name] == digest
    assert cli("repair", folder)[0] == "nothing to repair.\n"


@pytest.mark.parametrize("table", ["evidence", "terms", "curves"])
def test_a_torn_table_is_one_finding(folder: Path, table: str) -> None:
    for trial_id in (0, 1):
        torn(f"{table}/{trial_id:06d}-a1.parquet")(folder)
    found = verify(folder)
    assert [finding.place for finding in found] == [
        f"{table}/{trial_id:06d}-a1.parquet" for trial_id in (0, 1)
    ]
    assert [finding.problem[-17:] for finding in found] == [
        "(rows of trial 0)",
        "(rows of trial 1)",
    ]


def test_a_torn_part_is_one_finding_that_names_its_trials(folder: Path) -> None:
    compacted(folder)
    (part,) = (folder / "evidence").glob("part-*")
    torn(f"evidence/{part.name}")(folder)
    (finding,) = verify(folder)
    assert finding.place == f"evidence/{part.name}"
    assert "(rows of trial 0, 1, 2" in finding.problem


def test_a_missing_table_is_one_finding(folder: Path) -> None:
    (folder / "evidence" / "000001-a1.parquet").unlink()
    (finding,) = verify(folder)
    assert finding.place == "evidence/000001-a1.parquet"
    assert finding.problem == "missing (rows of trial 1)"


@pytest.mark.long
def test_a_log_that_contradicts_a_sound_trial_is_found_beside_a_torn_table_and_mended(
    folder: Path, cli: Cli
) -> None:
    asked = asked_in(folder)
    with closing(Log(folder)) as log:
        log.write(Asked(number=1, architecture=asked[0]))
    torn("evidence/000000-a1.parquet")(folder)
    table, finding = verify(folder)
    assert table.place == "evidence/000000-a1.parquet"
    assert finding.place == "logs/events"
    assert "proposal 1 is" in finding.problem
    cli("repair", folder)
    assert asked_in(folder) == asked
    assert verify(folder) == []


@pytest.mark.long
def test_three_damages_of_one_trial_are_mended_at_once(folder: Path, cli: Cli) -> None:
    calm = found(folder, without=["attempt"])
    log = log_files(folder)[0]
    lines = log.read_bytes().splitlines(keepends=True)
    lost = [n for n, line in enumerate(lines) if b'"end"' in line and b'"trial_id":2' in line]
    assert len(lost) == 1
    log.write_bytes(b"".join(lines[: lost[0]] + lines[lost[0] + 1 :]))
    for name in ("evidence/000002-a1.parquet", "models/2.safetensors"):
        torn(name)(folder)
    text = cli("repair", folder)[0]
    assert "trial 2: trained again as attempt 2" in text
    assert verify(folder) == []
    assert_same(calm, found(folder, without=["attempt"]))
    assert cli("repair", folder)[0] == "nothing to repair.\n"


def test_repair_names_what_is_left_and_mends_the_rest(folder: Path, cli: Cli) -> None:
    torn("evidence/000001-a1.parquet")(folder)
    torn("export/model.safetensors")(folder)
    data = load_study(folder / "study.toml").dataset.path
    assert data is not None
    away = Path(data).with_suffix(".away")
    Path(data).rename(away)
    try:
        text = cli("repair", folder, code=1)[0]
    finally:
        away.rename(data)
    assert "trial 1: not restored; " in text
    assert "export: moved to damaged/" in text
    assert "left:   evidence/000001-a1.parquet: missing (rows of trial 1)" in text
    cli("repair", folder)
    assert verify(folder) == []


def test_a_lost_log_is_found_and_its_proposals_are_restored(folder: Path, cli: Cli) -> None:
    asked = asked_in(folder)
    shutil.rmtree(folder / "logs" / "events")
    ends, proposals = verify(folder)
    assert ends.problem.startswith("it lacks the end of trials that are stored: 0, 1")
    assert proposals.problem == f"it lacks {len(asked)} proposals that ran, first 0"
    cli("repair", folder)
    assert asked_in(folder) == asked
    assert verify(folder) == []


def test_a_folder_of_another_format_is_not_repaired(folder: Path, cli: Cli) -> None:
    path = folder / "study.toml"
    path.write_text(path.read_text().replace("format 4", "format 5", 1))
    before = hashes(folder)
    said = cli("repair", folder, code=2)[1]
    assert "the format of a study folder must be 4, but it is 5" in said
    assert hashes(folder) == before


def test_what_is_outside_the_folder_is_said_to_be_unchecked(folder: Path) -> None:
    assert not_checked(folder) == []
    left = " ".join(not_checked(folder, with_checkpoints=False, data="gone"))
    assert "the data set (gone)" in left
    assert "the checkpoints in the store" in left


def test_verify_compares_the_data_where_they_are_and_says_when_they_are_not(
    folder: Path, finished_study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = finished_study.parent / "data.npz"
    kept = data.read_bytes()
    try:
        write_study(finished_study.parent, mix_test_labels=True)
        changed = call(capsys, "verify", folder)
        (folder / "study.toml").write_text(  # of a version that kept no hash of the file
            re.sub("content = .*", "", (folder / "study.toml").read_text())
        )
        older = call(capsys, "verify", folder)
        data.unlink()
        gone = call(capsys, "verify", folder)
    finally:
        data.write_bytes(kept)
    assert changed[0] == 1
    assert "data set 'npz': " in changed[1]
    assert "is not the data that this study began with" in changed[1]
    assert "data set 'npz': not what the trials were trained on (the hash was" in older[1]
    assert changed[2].endswith("restore the data, or start another study with these\n")
    assert "data set" not in gone[1]
    assert "not checked: the data set (it is not at hand: " in gone[2]
    assert "data.npz" in gone[2]


@pytest.mark.long
def test_a_study_at_a_uri_is_repaired_there(
    tmp_path: Path, cli: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    path, store = write_study(tmp_path), tmp_path / "store"
    uri = f"file://{store}"
    cli("search", path, "--out", uri, "--executor", "inline")
    before = found(store, without=["attempt"])
    weights = safetensors.numpy.load_file(store / "models/2.safetensors")
    torn("evidence/000001-a1.parquet")(store)
    torn("models/2.safetensors")(store)
    part = store / "logs/events/000000.jsonl"
    log = part.read_bytes()
    part.write_bytes(b'{"t": 1.0, "event": "tell"}\n' + log)
    text, said = cli("verify", uri, code=1)
    for place in ("evidence/000001-a1.parquet", "models/2.safetensors", "logs/events"):
        assert place in text
    assert f"repair {uri}" in said
    text = cli("repair", uri)[0]
    assert "trial 1: trained again as attempt 2" in text
    code, text, _ = call(capsys, "verify", uri)
    assert (code, text) == (0, "")
    assert_same(before, found(store, without=["attempt"]))
    again = safetensors.numpy.load_file(store / "models/2.safetensors")
    assert {name: one.tobytes() for name, one in again.items()} == {
        name: one.tobytes() for name, one in weights.items()
    }
    events = re.compile(rb'"event":(?!"begin").*(?=, "blake2b")')
    kept = events.findall(b"".join(path.read_bytes() for path in log_files(store)))
    lines = events.findall(log)
    assert kept[: len(lines)] == lines, "every sound line is there"
    assert (store / "damaged" / "evidence-000001-a1.parquet").is_file()
    assert not (store / "lock").exists()


#: Another value of each key that may change between runs.
CHANGED: dict[str, object] = {
    "n_trials": 9,
    "budget": BudgetSpec(wall_seconds=60.0),
    "resources": ResourceSpec(workers=3),
    "retries": RetrySpec(crashes=7),
    "finalists": 2,
    "race": RaceSpec(trials=4),
    "metric": "f1",
    "stop": "auto",
}


@pytest.mark.parametrize("key", FREE_KEYS)
def test_repair_keeps_every_key_that_may_change_and_restores_the_others(
    folder: Path, key: str
) -> None:
    study = read_study(folder)
    changed = study.model_copy(
        update={key: CHANGED[key], "plan": study.plan.model_copy(update={"epochs": 6})}
    )
    assert getattr(changed, key) != getattr(study, key)
    (folder / "study.toml").write_text(dump_study(changed))
    restored = restored_study(folder, [])
    assert restored.plan.epochs == 4
    assert getattr(restored, key) == CHANGED[key]
    assert content_hash(restored, "") == content_hash(study, "")
    assert not differences(restored, study)


def test_other_data_under_the_same_name_are_refused(
    folder: Path, finished_study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = finished_study.parent
    kept = (home / "data.npz").read_bytes()
    try:
        write_study(home, mix_test_labels=True)
        code, _, said = call(capsys, "resume", folder, "--executor", "inline", "--trials", 6)
    finally:
        (home / "data.npz").write_bytes(kept)
    assert code == 2
    assert "is not the data that this study began with" in said


def test_every_row_has_the_hash_of_what_decides_it(folder: Path) -> None:
    hash_of = found(folder)["trials"]["content_hash"]
    assert hash_of.nunique() == 1
    assert (folder / "logs" / f"conditions-{hash_of[0]}.toml").is_file()


def test_a_torn_table_of_a_finished_study_runs_its_trial_again_on_resume(
    folder: Path, cli: Cli
) -> None:
    before = found(folder, without=["attempt"])
    torn("curves/000003-a1.parquet")(folder)
    text = cli("resume", folder, "--executor", "inline")[0]
    assert "1 file is damaged, moved to damaged/" in text
    assert_same(before, found(folder, without=["attempt"]))


def test_torn_weights_of_the_winner_block_nothing(folder: Path, cli: Cli) -> None:
    for path in (folder / "models").iterdir():
        path.write_bytes(b"torn")
    shutil.rmtree(folder / "export")
    text = cli("resume", folder, "--executor", "inline")[0]
    assert "export:" in text


def test_trials_of_the_race_do_not_stand_for_a_lost_one_of_the_search(
    folder: Path, cli: Cli
) -> None:
    options = ("--executor", "inline", "--set", "finalists=2", "--set", "race.trials=4")
    cli("resume", folder, *options)
    assert "more:" not in cli("repair", folder, code=None)[0]
    assert len(finished(folder)) == 9
    torn("trials/000001-a1.parquet")(folder)
    said = cli("repair", folder)[0]
    assert "trial 1: trained again as attempt 2" in said
    assert "more:" not in said


# --- what a refusal says to do brings the study back

HOW = ("--executor", "inline")
SMALL = ("--target", "kind", "--set", "finalists=0", "--set", "plan.epochs=2", *HOW)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished study that keeps its data, `s`, and of its table."""
    home = tmp_path_factory.mktemp("remedies")
    rows = "".join(f"{k % 7}.5,{k % 5}.25,{'abc'[k % 3]}\n" for k in range(90))
    (home / "t.csv").write_text("width,length,kind\n" + rows)
    assert quiet_call("search", home / "t.csv", "--out", home / "s", "--trials", 2, *SMALL) == 0
    return home


@pytest.fixture(scope="module")
def three(home: Path) -> Path:
    """The same study with a trial more."""
    folder = Path(shutil.copytree(home / "s", home / "three"))
    assert quiet_call("resume", folder, "--trials", 3, *HOW) == 0
    return folder


@pytest.fixture
def of_a_table(home: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(home / "s", tmp_path / "s"))


@pytest.mark.long
@pytest.mark.parametrize("damage", [lose, spoil])
@pytest.mark.parametrize("sealed", [True, False], ids=["", "without its sealed copy"])
def test_a_study_whose_copy_of_the_data_is_gone_gets_it_from_the_search_that_is_named(
    home: Path,
    three: Path,
    of_a_table: Path,
    cli: Cli,
    damage: Callable[[Path], None],
    sealed: bool,
) -> None:
    folder = of_a_table
    damage(folder / "data" / "train.parquet")
    if not sealed:
        without_conditions(folder)
    for verb in (("repair", folder), ("resume", folder, "--trials", 3, *HOW)):
        said = "".join(cli(*verb, code=None))
        assert "it is the study's own copy of its data: a search" in said
        assert f"out={folder} writes it again" in said
        assert "--data-root" not in said
    cli("search", home / "t.csv", "--out", folder, "--trials", 3, *SMALL)
    cli("repair", folder)
    assert verify(folder) == []
    assert differing(tables_of(folder), tables_of(three)) == []


@pytest.mark.long
def test_a_sound_copy_of_the_data_stays_where_it_is_when_it_is_given_again(
    home: Path, of_a_table: Path, cli: Cli
) -> None:
    kept = of_a_table / "data" / "train.parquet"
    before = kept.stat().st_ino
    cli("search", home / "t.csv", "--out", of_a_table, "--trials", 2, *SMALL)
    assert kept.stat().st_ino == before
    assert not (of_a_table / "damaged").exists()


@pytest.mark.parametrize("damage", [lose, spoil])
def test_a_study_file_lost_with_its_sealed_copy_comes_back_from_a_backup(
    finished_study: Path, folder: Path, cli: Cli, damage: Callable[[Path], None]
) -> None:
    torn("evidence/000000-a1.parquet")(folder)
    without_conditions(folder)
    damage(folder / "study.toml")
    for verb in ("repair", "resume", "status"):
        said = "".join(cli(verb, folder, code=2))
        assert "Errno" not in said
        assert "The sealed copy in logs/ is lost or damaged, too: put a copy of the file" in said
        assert f"`nas-evidence repair {folder}` checks it by the trials" in said
    shutil.copy(finished_study / "study.toml", folder)
    cli("repair", folder)
    assert verify(folder) == []
    cli("resume", folder, *HOW)
    assert differing(tables_of(folder), tables_of(finished_study)) == []


def test_a_damaged_study_file_is_said_with_the_command_that_restores_it(
    folder: Path, cli: Cli
) -> None:
    spoil(folder / "study.toml")
    said = "".join(cli("resume", folder, *HOW, code=2))
    assert f"study.toml is lost or damaged. `nas-evidence repair {folder}` restores it." in said


def test_the_lock_that_cannot_be_read_is_taken_over_as_the_sentence_says(
    finished_study: Path, folder: Path, cli: Cli
) -> None:
    (folder / "lock").write_text('{"pid": 1')
    assert cli("verify", folder, code=1)[1].rstrip().endswith("--steal")
    assert "take it over with the option `steal`" in cli("repair", folder, code=2)[1]
    cli("repair", folder, "--steal")
    assert verify(folder) == []
    assert differing(tables_of(folder), tables_of(finished_study)) == []


@pytest.mark.long
@pytest.mark.parametrize("top", [None, 2])
def test_a_sound_export_of_another_study_in_its_place_is_named_and_used_by_nobody(
    other: Path, folder: Path, cli: Cli, top: int | None
) -> None:
    name, which = ("export", ()) if top is None else (f"export-top-{top}", ("--top", top))
    (folder.parent / "new.csv").write_text("a,b,c,d,e,f\n1,2,3,4,5,6\n")
    asked = ("predict", folder, folder.parent / "new.csv", *which, "--json")
    right = cli(*asked)[0]
    theirs = nas_evidence.load(other).export(top=top)
    shutil.rmtree(folder / name)
    shutil.copytree(theirs, folder / name)
    assert [(one.place, one.problem) for one in verify(folder)] == [
        (name, "it is of another study")
    ]
    assert cli(*asked)[0] == right
    assert verify(folder) == []
    [aside] = [path for path in (folder / "damaged").iterdir() if path.is_dir()]
    assert conditions_in(aside) == conditions_in(theirs)  # nothing of theirs is lost


@pytest.mark.parametrize("verb", ["resume", "repair"])
def test_resume_and_repair_set_an_export_of_another_study_aside(
    other: Path, folder: Path, cli: Cli, verb: str
) -> None:
    shutil.rmtree(folder / "export")
    shutil.copytree(other / "export", folder / "export")
    said = cli(verb, folder, *(HOW if verb == "resume" else ()))[0]
    assert re.search(r"export.*(another study|moved to damaged/)", said)
    best = nas_evidence.load(folder).best.trial_id
    assert nas_evidence.load(folder).is_exported(best) == (verb == "resume")
    assert not is_export_of(folder / "export", best, "accuracy", conditions="of another")


@pytest.mark.long
def test_predictions_replace_a_file_of_yours_only_by_force(
    home: Path, cli: Cli, tmp_path: Path
) -> None:
    data, mine = home / "t.csv", "mine\n"
    for option, name in (("--to", "p.csv"), ("--to", "p.parquet"), ("--reliability", "r.svg")):
        (tmp_path / name).write_text(mine)
        asked = ("predict", home / "s", data, option, tmp_path / name)
        asked += ("--to", tmp_path / f"{name}.csv") if option == "--reliability" else ()
        said = cli(*asked, code=2)[1]
        assert f"{option} {tmp_path / name} exists" in said
        assert "--force" in said
        assert (tmp_path / name).read_text() == mine
        cli(*asked, "--force")
        assert (tmp_path / name).read_bytes() != mine.encode()


# --- what cannot be restored is said, and the rest is repaired


def loaded(study: StudySpec) -> ArrayData:
    return load(study.dataset, seed=study.seed)


def other(study: StudySpec) -> ArrayData:
    arrays = loaded(study)
    return replace(arrays, x_train=arrays.x_train + 1)


@pytest.mark.parametrize("lost", [False, True], ids=["with its copy", "copy of the study lost"])
def test_no_trial_is_trained_again_on_other_data(folder: Path, lost: bool) -> None:
    torn("evidence/000000-a1.parquet")(folder)
    if lost:
        without_conditions(folder)
    said = repair(folder, other)
    assert any(line.startswith("trial 0: not restored; study.toml or the data") for line in said)
    assert any(line.startswith("evidence/") and "moved to damaged/" in line for line in said)
    assert not list((folder / "evidence").glob("000000-*"))
    assert (folder / "logs").exists()
    again = repair(folder, loaded)
    assert any(line.startswith("trial 0: trained again") for line in again)


@pytest.fixture
def export(folder: Path) -> Path:
    return folder / "export"


def changed(export: Path, name: str, change: Callable[[Any], Any]) -> None:
    """Change a file of an export, and give it the right checksum."""
    content = change(json.loads((export / name).read_text(encoding="utf-8")))
    (export / name).write_text(json.dumps(content), encoding="utf-8")
    write_sums(export, [*listed(export)])


NEEDED = ("input_shape", "classes", "targets", "preparation")


@pytest.mark.crossed
@pytest.mark.parametrize("key", NEEDED)
@pytest.mark.parametrize("value", [None, 7, {"x": [1]}, "gone"], ids=str)
def test_an_export_whose_meaning_lacks_a_key_is_not_sound(
    export: Path, key: str, value: object
) -> None:
    if value == "gone":
        changed(export, "meaning.json", lambda all_: {k: v for k, v in all_.items() if k != key})
    elif key == "preparation" and value is None:
        pytest.skip("None is what arrays have")
    else:
        changed(export, "meaning.json", lambda all_: {**all_, key: value})
    with refused("export-not-fitting", str(export)):
        Predictor.load(export)


@pytest.mark.parametrize(
    "whole",
    [{}, {"members": 3}, {"members": [{}]}, {"members": []}, {"members": [{"weight": "x"}]}],
)
def test_an_ensemble_that_names_its_members_badly_is_not_sound(
    tmp_path: Path, whole: object
) -> None:
    (tmp_path / "ensemble.json").write_text(json.dumps(whole))
    write_sums(tmp_path, ["ensemble.json"])
    with refused("export-not-fitting", str(tmp_path)):
        Predictor.load(tmp_path)


@pytest.mark.parametrize(
    "uri",
    ["dir::file:///x", "simplecache::s3://b/k", "dir://x::file:///y", "reference::s3://b/k"],
)
def test_a_chain_of_file_systems_is_no_store(uri: str) -> None:
    with refused("store-chained", uri):
        Store(uri)
