"""Folders whose names are not UTF-8, or as long as a name can be, are folders as any other."""

import os
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from commands import run

from nas_evidence.data.reading import read_frame
from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.foreign_text import shell_word
from nas_evidence.storage.store import Store

NOT_UTF_8 = os.fsdecode(b"n\xff\xfe")
LONG = "n" * 255


@pytest.fixture
def table(tmp_path: Path) -> Path:
    frame = pd.DataFrame({"a": [i % 7 for i in range(60)], "y": ["p", "q"] * 30})
    frame.to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


@pytest.mark.parametrize("name", [NOT_UTF_8, "my study", "it's", "a\nb", "a\x1b[2J", "$(x)`y`"])
def test_a_printed_command_names_the_folder_that_is_meant(name: str) -> None:
    printed = subprocess.run(
        ["bash", "-c", f"printf %s {shell_word(name)}"], capture_output=True, check=True
    )
    assert printed.stdout == os.fsencode(name)
    assert shell_word(name).isprintable()


@pytest.mark.parametrize("ending", ["parquet", "feather", "csv", "json"])
def test_a_table_is_read_where_its_path_is_not_utf_8(tmp_path: Path, ending: str) -> None:
    frame = pd.DataFrame({"a": [1, 2], "b": [3.5, 4.5]})
    plain, odd = tmp_path / f"t.{ending}", tmp_path / NOT_UTF_8 / f"t.{ending}"
    write = {"csv": lambda path: frame.to_csv(path, index=False), "json": frame.to_json}
    write.get(ending, getattr(frame, f"to_{ending}"))(plain)
    odd.parent.mkdir()
    odd.write_bytes(plain.read_bytes())
    if ending == "json":
        odd.write_text('[{"a": 1, "b": 3.5}, {"a": 2, "b": 4.5}]')
    pd.testing.assert_frame_equal(read_frame(odd, stored=True), frame)


def test_a_file_of_the_longest_name_is_written_whole(tmp_path: Path) -> None:
    for name in (LONG, "é" * 127, "n" * 200):
        write_whole(tmp_path / name, b"x")
        assert Store(f"file://{tmp_path}").put(f"s/{name}", b"y")
    assert len([*tmp_path.iterdir()]) == 4


@pytest.mark.long
@pytest.mark.parametrize("name", [NOT_UTF_8, LONG], ids=["not UTF-8", "long"])
def test_a_study_of_such_a_name_lives_as_any_other(tmp_path: Path, table: Path, name: str) -> None:
    folder = tmp_path / name
    few = ["--set", "finalists=0", "--set", "plan.epochs=2", "--executor", "inline"]
    run("search", table, "--target", "y", "--trials", 1, "--out", folder, *few, folder=tmp_path)
    assert "no problems" in run("verify", folder, folder=tmp_path).stderr
    run("resume", folder, "--trials", 2, "--executor", "inline", folder=tmp_path)
    done = run("repair", folder, folder=tmp_path)
    assert "nothing to repair" in done.stdout + done.stderr
    assert not (folder / "damaged").exists()
    to = tmp_path / f"{name[:240]}.parquet"
    run("predict", folder, table, "--to", to, folder=tmp_path)
    assert len(read_frame(to, stored=True)) == 60
    run("export", folder, "--to", tmp_path / "e" / name, folder=tmp_path)
    run("export", folder, "--to", tmp_path / "e" / name, folder=tmp_path)
    assert os.listdir(tmp_path / "e") == [name]


@pytest.mark.slow
def test_a_name_that_is_too_long_is_refused_in_a_sentence(tmp_path: Path, table: Path) -> None:
    where = tmp_path / (LONG + "n")
    given = ("--target", "y", "--trials", 1, "--out", where, "--executor", "inline")
    said = run("search", table, *given, folder=tmp_path, code=1).stderr
    assert "give it a shorter name" in said
    assert "unexpected" not in said
