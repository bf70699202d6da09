"""What a refusal says to do brings the study back: the results are those of the sound one."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from damages import differing, tables_of
from faulty import Cli, quiet_call

import nas_evidence
from nas_evidence.driver.verification import verify
from nas_evidence.exporting.soundness import conditions_in, is_export_of

pytestmark = [pytest.mark.slow, pytest.mark.long]
HOW = ("--executor", "inline")
TABLE = "width,length,kind\n" + "".join(
    f"{k % 7}.5,{k % 5}.25,{'abc'[k % 3]}\n" for k in range(90)
)
SMALL = ("--target", "kind", "--set", "finalists=0", "--set", "plan.epochs=2", *HOW)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study that keeps its data, and the table beside it."""
    home = tmp_path_factory.mktemp("remedies")
    (home / "t.csv").write_text(TABLE)
    assert quiet_call("search", home / "t.csv", "--out", home / "s", "--trials", 2, *SMALL) == 0
    return home


@pytest.fixture(scope="module")
def three(made: Path) -> Path:
    """The same study with a trial more."""
    folder = Path(shutil.copytree(made / "s", made / "three"))
    assert quiet_call("resume", folder, "--trials", 3, *HOW) == 0
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "s", tmp_path / "s"))


def lose(path: Path) -> None:
    path.unlink()


def spoil(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize("damage", [lose, spoil])
@pytest.mark.parametrize("sealed", [True, False], ids=["", "without its sealed copy"])
def test_a_study_whose_copy_of_the_data_is_gone_gets_it_from_the_search_that_is_named(
    made: Path, three: Path, folder: Path, cli: Cli, damage: Callable[[Path], None], sealed: bool
) -> None:
    damage(folder / "data" / "train.parquet")
    if not sealed:
        [path.unlink() for path in (folder / "logs").glob("conditions-*.toml")]
    for verb in (("repair", folder), ("resume", folder, "--trials", 3, *HOW)):
        said = "".join(cli(*verb, code=None))
        assert "it is the study's own copy of its data: a search" in said
        assert f"out={folder} writes it again" in said
        assert "--data-root" not in said
    cli("search", made / "t.csv", "--out", folder, "--trials", 3, *SMALL)
    cli("repair", folder)
    assert verify(folder) == []
    assert differing(tables_of(folder), tables_of(three)) == []


def test_a_sound_copy_of_the_data_stays_where_it_is_when_it_is_given_again(
    made: Path, folder: Path, cli: Cli
) -> None:
    kept = folder / "data" / "train.parquet"
    before = kept.stat().st_ino
    cli("search", made / "t.csv", "--out", folder, "--trials", 2, *SMALL)
    assert kept.stat().st_ino == before
    assert not (folder / "damaged").exists()


@pytest.mark.parametrize("damage", [lose, spoil])
def test_a_study_file_lost_with_its_sealed_copy_comes_back_from_a_backup(
    made: Path, folder: Path, cli: Cli, damage: Callable[[Path], None]
) -> None:
    damage(folder / "study.toml")
    [path.unlink() for path in (folder / "logs").glob("conditions-*.toml")]
    for verb in ("repair", "resume", "status"):
        said = "".join(cli(verb, folder, code=2))
        assert "The sealed copy in logs/ is lost or damaged, too: put a copy of the file" in said
        assert f"`nas-evidence repair {folder}` checks it by the trials" in said
    shutil.copy(made / "s" / "study.toml", folder)
    cli("repair", folder)
    assert verify(folder) == []
    cli("resume", folder, *HOW)
    assert differing(tables_of(folder), tables_of(made / "s")) == []


def test_a_damaged_study_file_is_said_with_the_command_that_restores_it(
    folder: Path, cli: Cli
) -> None:
    spoil(folder / "study.toml")
    said = "".join(cli("resume", folder, *HOW, code=2))
    assert f"study.toml is lost or damaged. `nas-evidence repair {folder}` restores it." in said


def test_the_lock_that_cannot_be_read_is_taken_over_as_the_sentence_says(
    made: Path, folder: Path, cli: Cli
) -> None:
    (folder / "lock").write_text("{")
    assert "take it over with the option `steal`" in cli("repair", folder, code=2)[1]
    cli("repair", folder, "--steal")
    assert verify(folder) == []
    assert differing(tables_of(folder), tables_of(made / "s")) == []


@pytest.fixture(scope="module")
def others(made: Path) -> Path:
    """The export of another study: the same data, another seed."""
    how = ("--trials", 2, "--seed", 7, *SMALL)
    assert quiet_call("search", made / "t.csv", "--out", made / "b", *how) == 0
    return made / "b" / "export"


@pytest.mark.parametrize("top", [None, 2])
def test_a_sound_export_of_another_study_in_its_place_is_named_and_used_by_nobody(
    made: Path, others: Path, folder: Path, cli: Cli, tmp_path: Path, top: int | None
) -> None:
    name, which = ("export", ()) if top is None else (f"export-top-{top}", ("--top", top))
    sound = ("predict", made / "s", made / "t.csv", *which, "--json")
    right = cli(*sound)[0]
    theirs = nas_evidence.load(others.parent).export(top=top)
    shutil.rmtree(folder / name, ignore_errors=True)
    shutil.copytree(theirs, folder / name)
    assert [(one.place, one.problem) for one in verify(folder)] == [
        (name, "it is of another study")
    ]
    assert cli("predict", folder, made / "t.csv", *which, "--json")[0] == right
    assert verify(folder) == []
    [aside] = [path for path in (folder / "damaged").iterdir() if path.is_dir()]
    assert conditions_in(aside) == conditions_in(theirs)  # nothing of theirs is lost


def test_resume_and_repair_set_an_export_of_another_study_aside(
    others: Path, folder: Path, cli: Cli, tmp_path: Path
) -> None:
    for verb in ("resume", "repair"):
        there = Path(shutil.copytree(folder, tmp_path / verb))
        shutil.rmtree(there / "export")
        shutil.copytree(others, there / "export")
        more = HOW if verb == "resume" else ()
        said = cli(verb, there, *more)[0]
        assert re.search(r"export.*(another study|moved to damaged/)", said)
        best = nas_evidence.load(there).best.trial_id
        is_ours = nas_evidence.load(there).is_exported(best)
        assert is_ours == (verb == "resume")
        assert not is_export_of(there / "export", best, "accuracy", conditions="of another")


def test_predictions_replace_a_file_of_yours_only_by_force(
    made: Path, cli: Cli, tmp_path: Path
) -> None:
    data, mine = made / "t.csv", "mine\n"
    for option, name in (("--to", "p.csv"), ("--to", "p.parquet"), ("--reliability", "r.svg")):
        (tmp_path / name).write_text(mine)
        asked = ("predict", made / "s", data, option, tmp_path / name)
        asked += ("--to", tmp_path / f"{name}.csv") if option == "--reliability" else ()
        said = cli(*asked, code=2)[1]
        assert f"{option} {tmp_path / name} exists" in said
        assert "--force" in said
        assert (tmp_path / name).read_text() == mine
        cli(*asked, "--force")
        assert (tmp_path / name).read_bytes() != mine.encode()
