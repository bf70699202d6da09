"""`--dry-run` of search, resume and refit: all is checked, and nothing is written or started."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import BY_DIAGONAL, contents, run, write_study

import nas_evidence
from nas_evidence.storage.study_folder import locked

pytestmark = pytest.mark.slow

INLINE = ("--executor", "inline")
#: Commands that run something, with the trials that are left.
COMMANDS = {
    ("search", "tiny.toml"): "4 trials",
    ("search", "tiny.toml", "--out", "done"): "all 4 trials are finished",
    ("search", "tiny.toml", "--out", "file://{home}/new"): "4 trials",
    ("resume", "done"): "all 4 trials are finished",
    ("resume", "done", "--trials", "6"): "2 of 6 trials",
    ("resume", "file://{home}/done", "--trials", "6"): "2 of 6 trials",
    ("refit", "done"): "3 trials",
    ("refit", "done", "data.npz", "--top", "2", "--seeds", "1"): "2 trials",
}  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study file, its data, and the finished study `done`."""
    home = tmp_path_factory.mktemp("home")
    write_study(home)
    run("search", "tiny.toml", "--out", "done", *INLINE, folder=home)
    return home


def state(home: Path) -> object:
    """Return all files and folders of a folder with what they hold and when they changed."""
    times = {str(path): path.stat().st_mtime_ns for path in home.rglob("*")}
    return times, contents(home)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_dry_run_says_what_would_run_and_writes_nothing(
    words: tuple[str, ...], home: Path
) -> None:
    words = tuple(word.format(home=home) for word in words)
    before = state(home)
    lines = run(*words, "--dry-run", folder=home).stdout.splitlines()
    assert state(home) == before
    assert lines[-1] == "valid: nothing was written; without --dry-run it runs"
    said = next(v for k, v in COMMANDS.items() if tuple(w.format(home=home) for w in k) == words)
    assert any(f": {said}" in line for line in lines)
    assert any(line.startswith("time: ") for line in lines) != ("all 4" in said)


def test_the_run_itself_begins_with_the_line_of_the_dry_run(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home, tmp_path / "h")
    asked = ("resume", "done", "--trials", "5", *INLINE)
    said = run(*asked, "--dry-run", folder=tmp_path / "h").stdout.splitlines()
    assert said[0] == "tiny: 1 of 5 trials, 1 worker -> done"
    assert run(*asked, folder=tmp_path / "h").stdout.splitlines()[0] == said[0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("search", "tiny.toml", "--out", "done", "--set", "plan.epochs=9"), "study that differs"),
        (("search", "tiny.toml", "--out", "."), "neither empty nor a study folder"),
        (("search", "tiny.toml", "--out", "tiny.toml/s"), "cannot be created"),
        (("search", "mnist", "--data-root", "gone"), "mnist"),
        (("resume", "done", "--trials", "3"), "cannot become 3"),
        (("resume", "done", "--set", "plan.epochs=9"), "study that differs"),
        (("resume", "done", "--retry-failed"), "only failed trials") ,
        (("resume", "gone"), "not a study folder"),
        (("resume", "--address", "http://h:1", "--name", "s"), "leave --address out"),
        (("refit", "done", "gone.csv"), "gone.csv"),
        (("refit", "done", "--top", "9"), "top must be"),
        (("refit", "done", "--out", "done"), "other data"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_a_dry_run_refuses_what_the_run_would(
    words: tuple[str, ...], says: str, home: Path
) -> None:
    if words[-1] == "--retry-failed":
        words = (*words, "0")
    before = state(home)
    refused = run(*words, "--dry-run", folder=home, code=2).stderr
    assert says in refused
    assert refused.count("\n") == 1
    assert state(home) == before


def test_a_dry_run_refuses_a_study_on_which_another_process_works(home: Path) -> None:
    with locked(home / "done"):
        refused = run("resume", "done", "--dry-run", folder=home, code=2).stderr
    assert "another process works on done" in refused


def test_a_dry_run_notices_other_data_than_those_of_the_trials(home: Path) -> None:
    write_study(home, mix_test_labels=True)
    try:
        said = run("resume", "done", "--trials", "6", "--dry-run", folder=home, code=2).stderr
    finally:
        write_study(home)
    assert "data.npz" in said


# --- the verb refit: what it prints, where it writes, and what the first study knows of it


@pytest.mark.long
def test_refit_says_what_it_trains_and_refuses_rows_that_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    weight = np.random.default_rng(0).normal(10, 4, 40)
    pets = pd.DataFrame({"weight": weight, "pet": np.where(weight > 10, "dog", "cat")})
    pets.to_csv("pets.csv", index=False)
    options = {"test_fraction": 0.2, "n_trials": 1, "settings": BY_DIAGONAL, "progress": False}
    nas_evidence.search("pets.csv", target="pet", **options)
    inline = ("--executor", "inline")
    said = run("refit", "runs/pets", "--seeds", 2, *inline, folder=tmp_path).stdout
    assert said.splitlines()[0] == (
        "refit of trial 0 of runs/pets (linear) on all its 40 rows, its 8 test rows among them"
    )
    assert "export: runs/pets-refit/export" in said
    assert "What test rows said of the architecture is in runs/pets." in said
    assert "--test" not in said

    pets.assign(pet="cow").to_csv("cows.csv", index=False)
    wrong = run("refit", "runs/pets", "cows.csv", folder=tmp_path, code=2).stderr
    assert wrong.startswith("error: ")
    assert "cow" in wrong
    pets.assign(more=1)[:30].to_csv("fewer.csv", index=False)
    other = run("refit", "runs/pets", "fewer.csv", *inline, folder=tmp_path, code=2).stderr
    assert "runs/pets-refit belongs to other data (pets.csv, 40 rows)" in other
    shown = run("list", folder=tmp_path).stdout.splitlines()
    assert [line.split("\t")[0] for line in shown[1:]] == ["runs/pets-refit", "runs/pets"]
    assert shown[1].split("\t")[5:7] == ["pets.csv", "40"]
