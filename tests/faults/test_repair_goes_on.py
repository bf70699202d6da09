"""`repair` of what it cannot restore: one sentence with the remedy, and the rest is repaired."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import TINY, write_study
from faulty import Cli, quiet_call
from messages import refused

from nas_evidence.data import ArrayData, load
from nas_evidence.driver.restoration import repair
from nas_evidence.exporting.predictor import Predictor
from nas_evidence.plumbing.sums import listed, write_sums
from nas_evidence.spec.study import StudySpec
from nas_evidence.storage.store import Store

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("gaps")
    assert (
        quiet_call("search", write_study(home, TINY), "--out", home / "s", "--executor", "inline")
        == 0
    )
    return home / "s"


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "s"))


def torn(folder: Path) -> Path:
    """Tear the evidence of a trial."""
    path = min((folder / "evidence").glob("*.parquet"))
    path.write_bytes(path.read_bytes()[:-20])
    return path


def without_conditions(folder: Path) -> None:
    for path in (folder / "logs").glob("conditions-*.toml"):
        path.unlink()


def loaded(study: StudySpec) -> ArrayData:
    return load(study.dataset, seed=study.seed)


def other(study: StudySpec) -> ArrayData:
    arrays = loaded(study)
    return replace(arrays, x_train=arrays.x_train + 1)


@pytest.mark.parametrize("lost", [False, True], ids=["with its copy", "copy of the study lost"])
def test_no_trial_is_trained_again_on_other_data(folder: Path, lost: bool) -> None:
    path = torn(folder)
    if lost:
        without_conditions(folder)
    said = repair(folder, other)
    assert any(line.startswith("trial 0: not restored; study.toml or the data") for line in said)
    assert any(line.startswith("evidence/") and "moved to damaged/" in line for line in said)
    assert not list(path.parent.glob("000000-*"))
    assert (folder / "logs").exists()
    again = repair(folder, loaded)
    assert any(line.startswith("trial 0: trained again") for line in again)


def test_a_study_file_lost_with_its_copy_is_refused_with_a_remedy_that_works(
    folder: Path, cli: Cli
) -> None:
    study = (folder / "study.toml").read_bytes()
    torn(folder)
    without_conditions(folder)
    (folder / "study.toml").unlink()
    _, said = cli("repair", folder, code=2)
    assert "Errno" not in said
    assert "The sealed copy in logs/ is lost or damaged, too: put a copy of the file" in said
    (folder / "study.toml").write_bytes(study)
    cli("repair", folder)
    _, said = cli("verify", folder)
    assert "OK: no problems found." in said


def test_verify_of_a_damaged_lock_names_the_repair_that_works(folder: Path, cli: Cli) -> None:
    (folder / "lock").write_text('{"pid": 1')
    _, said = cli("verify", folder, code=1)
    assert said.rstrip().endswith("--steal")
    _, said = cli("repair", folder, code=2)
    assert "`steal`" in said
    cli("repair", folder, "--steal")
    cli("verify", folder)


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
