"""Sound files under another name: of another trial, attempt, table or study."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from commands import TINY, found, write_study
from fakes import compacted
from faulty import Cli, quiet_call
from matrix import REST

from nas_evidence.driver.verification import verify
from nas_evidence.storage.tables import TABLES, read_table

pytestmark = pytest.mark.slow

Damage = Callable[[Path, Path], None]
ONE, TWO = "000001-a1.parquet", "000002-a1.parquet"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A finished study of four trials, and one with another seed."""
    home = tmp_path_factory.mktemp("names")
    path, rest = write_study(home, TINY), ("--executor", "inline", "--trials", "4")
    for name, more in (("s", ()), ("other", ("--seed", "5"))):
        run = ("search", path, "--out", home / name, "--set", "scheduling=batch", *rest, *more)
        assert quiet_call(*run) == 0
    return home / "s", home / "other"


def exchanged(*tables: str) -> Damage:
    def damage(folder: Path, other: Path) -> None:
        for table in tables:
            one, two = folder / table / ONE, folder / table / TWO
            content = one.read_bytes()
            one.write_bytes(two.read_bytes())
            two.write_bytes(content)

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


def other_table(folder: Path, other: Path) -> None:
    shutil.copyfile(folder / "terms" / ONE, folder / "evidence" / ONE)


def exchanged_weights(folder: Path, other: Path) -> None:
    one, two = folder / "models" / "1.safetensors", folder / "models" / "2.safetensors"
    content = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(content)


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
    "other table": (other_table, [f"evidence/{ONE}"]),
    "weights exchanged": (exchanged_weights, ["models/1.safetensors", "models/2.safetensors"]),
    "weights foreign": (foreign("models", name="2.safetensors"), ["models/2.safetensors"]),
}
#: A table of the four is enough; `soak/damage.py` has them all.
WHAT = [
    pytest.param(what, marks=REST)
    if what.endswith((" exchanged", " foreign"))
    and what.startswith(tuple(set(TABLES) - {"evidence"}))
    else what
    for what in DAMAGES
]


@pytest.mark.parametrize("what", WHAT)
def test_a_sound_file_of_another_name_is_named_by_verify_and_set_right(
    made: tuple[Path, Path], tmp_path: Path, what: str, cli: Cli
) -> None:
    sound, other = made
    calm = found(sound, without=["attempt"])
    damage, places = DAMAGES[what]
    for verb in ("repair", "resume"):
        folder = tmp_path / verb
        shutil.copytree(sound, folder)
        damage(folder, other)
        named = {one.place for one in verify(folder)}
        assert named >= {*places}
        cli(verb, folder, *(["--executor", "inline"] if verb == "resume" else []))
        now = found(folder, without=["attempt"])
        for name, frame in calm.items():
            pd.testing.assert_frame_equal(now[name], frame, check_exact=True)
        if verb == "repair" or "weights" not in what:  # resume trains weights when it needs them
            assert verify(folder) == []
        assert cli("repair", folder)[0] == "nothing to repair.\n" or "weights" in what


@pytest.mark.parametrize("what", WHAT)
def test_who_only_reads_never_takes_a_file_for_that_of_its_name(
    made: tuple[Path, Path], tmp_path: Path, what: str
) -> None:
    sound, other = made
    folder = tmp_path / "s"
    shutil.copytree(sound, folder)
    DAMAGES[what][0](folder, other)
    for table in TABLES:
        calm, now = read_table(sound, table), read_table(folder, table)
        if "foreign" in what:  # the log tells; `read_study_tables` asks it
            continue
        kept = calm[calm["trial_id"].isin(now["trial_id"])].reset_index(drop=True)
        pd.testing.assert_frame_equal(now, kept)


def test_a_part_of_other_attempts_is_named_and_its_trials_run_again(
    made: tuple[Path, Path], tmp_path: Path, cli: Cli
) -> None:
    sound, other = made
    calm = found(sound, without=["attempt"])
    folder = tmp_path / "s"
    shutil.copytree(sound, folder)
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
    now = found(folder, without=["attempt"])
    for name, frame in calm.items():
        pd.testing.assert_frame_equal(now[name], frame, check_exact=True)
    assert verify(folder) == []
