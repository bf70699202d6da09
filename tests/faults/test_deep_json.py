"""JSON and TOML that are nested deeper than Python allows are damaged files, and no crash."""

import ast
import json
import shutil
from pathlib import Path

import pytest
from commands import TINY, write_study
from faulty import call, quiet_call

import nas_evidence
from nas_evidence.plumbing.parsing import parsed_json, parsed_toml
from nas_evidence.plumbing.seals import DamagedError, is_sealed_json, read_sealed_json, seal_object
from nas_evidence.plumbing.sums import write_sums
from nas_evidence.plumbing.tensor_seals import read_tensors

DEEP = 100_000
LISTS = "[" * DEEP + "]" * DEEP
OBJECT = f'{{"trials": {LISTS}}}'
PACKAGE = Path(nas_evidence.__file__).parent


def test_deep_text_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parsed_json(LISTS)
    with pytest.raises(ValueError, match="nested too deeply"):
        parsed_toml(f"a = {LISTS}")


def test_a_sealed_file_that_is_deep_or_no_json_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text in (OBJECT, '{"trials": ]'):
        path.write_text(seal_object(text + "}" * (text[-1] == "]")))
        with pytest.raises(DamagedError):
            read_sealed_json(path.read_bytes(), path)
        assert not is_sealed_json(path)
    header = OBJECT.encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(DamagedError):
        read_tensors(path)


def test_no_other_file_of_the_package_parses_json_or_toml() -> None:
    """A parser that is called elsewhere can end its caller with a RecursionError."""
    found = [
        str(path.relative_to(PACKAGE))
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr)
        in {("json", "loads"), ("json", "load"), ("tomllib", "loads"), ("tomllib", "load")}
    ]
    # encode.py runs without the package, on a file of its own export.
    assert found == ["exporting/encode.py"] * 2 + ["plumbing/parsing.py"] * 2


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("deep")
    path = write_study(home, TINY.replace("n_trials = 4", "n_trials = 2"))
    assert quiet_call("search", path, "--out", home / "s", "--executor", "inline") == 0
    return home / "s"


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("place", ["report/comparison.json", "warm_start.json", "lock"])
@pytest.mark.parametrize("verb", ["verify", "report", "resume", "status"])
def test_a_study_with_a_deep_file_ends_in_a_sentence_or_goes_on(
    made: Path, tmp_path: Path, place: str, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(made, tmp_path / "s"))
    (folder / place).write_text(seal_object(OBJECT))
    more = ("--executor", "inline", "--trials", "3") if verb == "resume" else ()
    code, _, err = call(capsys, verb, folder, *more)
    assert "Recursion" not in err
    assert "unexpected" not in err
    if verb == "verify":
        assert code == 1
    if place == "report/comparison.json" and verb != "verify":
        assert code == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["meaning.json", "evidence.json", "architecture.toml"])
def test_an_export_with_a_deep_file_is_refused_by_name(
    made: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(made / "export", tmp_path / "export"))
    (folder / name).write_text(f"a = {LISTS}" if name.endswith("toml") else OBJECT)
    names = [path.name for path in folder.iterdir() if path.name != "SHA256SUMS"]
    write_sums(folder, sorted(names))
    data = tmp_path / "new.csv"
    data.write_text("x0,x1\n1,2\n")
    code, _, err = call(capsys, "predict", folder, data)
    assert "unexpected" not in err
    assert code == 2
    if name == "meaning.json":
        assert "meaning.json is damaged" in err


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["json", "jsonl"])
def test_data_that_are_deep_are_refused_by_name(
    tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"t.{ending}"
    path.write_text(json.dumps({"a": 1}) + "\n" + LISTS if ending == "jsonl" else LISTS)
    code, _, err = call(capsys, "search", path, "--target", "y", "--out", tmp_path / "s")
    assert code == 2
    assert f"t.{ending} cannot be read as a table" in err
