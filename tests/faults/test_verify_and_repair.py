"""`verify` finds what was damaged, and `repair` restores it without touching what is sound."""

import re
import shutil
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest
import safetensors.numpy
from commands import TINY, found, hashes, write_study
from fakes import asked_in, compacted, finished, last_log
from faulty import Cli, Damage, call, flipped

from nas_evidence.driver.restoration import restored_study
from nas_evidence.driver.verification import not_checked, verify
from nas_evidence.spec.study import FREE_KEYS, BudgetSpec, RaceSpec, ResourceSpec, RetrySpec
from nas_evidence.spec.toml import differences, dump_study, load_study
from nas_evidence.storage.conditions import content_hash
from nas_evidence.storage.events import Asked
from nas_evidence.storage.log import Log, log_files
from nas_evidence.storage.study_folder import read_study

pytestmark = pytest.mark.slow

STUDY = TINY.replace('[sampler]\nname = "random"', '[sampler]\nname = "posterior"')


@pytest.fixture(scope="module")
def finished_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study of real trials; `calm` beside it holds another name of its tables."""
    from faulty import quiet_call

    home = tmp_path_factory.mktemp("verify")
    path = write_study(home, STUDY)
    assert quiet_call("search", path, "--out", home / "s", "--executor", "inline") == 0
    return home / "s"


@pytest.fixture
def folder(finished_study: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_study, tmp_path / "s"))


def torn(name: str) -> Damage:
    def damage(folder: Path) -> object:
        path = folder / name
        return path.write_bytes(path.read_bytes()[:-40])

    return damage


def edited(folder: Path) -> None:
    path = folder / "study.toml"
    path.write_text(path.read_text().replace("epochs = 4", "epochs = 6"))


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
    now = found(folder, without=["attempt"])
    for name, frame in before.items():
        pd.testing.assert_frame_equal(now[name], frame, check_exact=True)
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
    log = last_log(folder)
    lines = log.read_bytes().splitlines(keepends=True)
    lost = [n for n, line in enumerate(lines) if b'"end"' in line and b'"trial_id":2' in line]
    assert len(lost) == 1
    log.write_bytes(b"".join(lines[: lost[0]] + lines[lost[0] + 1 :]))
    for name in ("evidence/000002-a1.parquet", "models/2.safetensors"):
        torn(name)(folder)
    text = cli("repair", folder)[0]
    assert "trial 2: trained again as attempt 2" in text
    assert verify(folder) == []
    now = found(folder, without=["attempt"])
    for name, frame in calm.items():
        pd.testing.assert_frame_equal(now[name], frame, check_exact=True)
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
        write_study(finished_study.parent, STUDY, mix_test_labels=True)
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
@pytest.mark.slow
def test_a_study_at_a_uri_is_repaired_there(
    tmp_path: Path, cli: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    path, store = write_study(tmp_path, STUDY), tmp_path / "store"
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
    now = found(store, without=["attempt"])
    for name, frame in before.items():
        pd.testing.assert_frame_equal(now[name], frame, check_exact=True)
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


def test_a_study_file_edited_by_hand_is_refused_by_name(folder: Path, cli: Cli) -> None:
    edited(folder)
    said = cli("resume", folder, "--executor", "inline", "--trials", 5, code=2)[1]
    assert "plan.epochs: 4 then, 6 now" in said
    assert "repair" in said


#: Another value of each key that may change between runs.
CHANGED: dict[str, object] = {
    "n_trials": 9,
    "budget": BudgetSpec(wall_seconds=60.0),
    "resources": ResourceSpec(workers=3),
    "retries": RetrySpec(crashes=7),
    "finalists": 2,
    "race": RaceSpec(trials=4),
    "metric": "f1",
    "deliver": "three",
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
        write_study(home, STUDY, mix_test_labels=True)
        code, _, said = call(capsys, "resume", folder, "--executor", "inline", "--trials", 5)
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
    now = found(folder, without=["attempt"])
    for name, frame in before.items():
        pd.testing.assert_frame_equal(now[name], frame, check_exact=True)


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
    assert len(finished(folder)) == 8
    torn("trials/000001-a1.parquet")(folder)
    said = cli("repair", folder)[0]
    assert "trial 1: trained again as attempt 2" in said
    assert "more:" not in said
