"""Which studies lie in a folder: what each has reached, and what ends no list."""

import json
from pathlib import Path

import pytest
from commands import run
from fakes import FakeExecutor, drive, leave_holder, study
from messages import refused

import nas_evidence
from nas_evidence.spec.how_read import HowRead
from nas_evidence.spec.record import TrialStatus
from nas_evidence.storage.kept_how_read import keep_how_read
from nas_evidence.storage.study_folder import open_study


def begun(folder: Path, **changes: object) -> Path:
    open_study(folder, study(name=folder.name, **changes))
    return folder


def test_a_list_has_state_trials_best_and_data_of_each_study_and_leaves_others_out(
    tmp_path: Path,
) -> None:
    done = begun(tmp_path / "done", n_trials=3)
    drive(study(name="done", n_trials=3), done)
    keep_how_read(done, HowRead((), n_train=8, n_test=2, given="flats.csv"))
    begun(tmp_path / "new")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("x")
    (tmp_path / "file.csv").write_text("a,b\n")
    first, second = nas_evidence.list_studies(tmp_path)
    assert (first.place, first.state, first.n_finished, first.n_trials) == (
        str(done), "finished", 3, 3,
    )  # fmt: skip
    best = nas_evidence.load(done).best
    assert (first.trial_id, first.best) == (best.trial_id, f"mlp, {words(best.values)}")
    assert (first.data, first.n_rows) == ("flats.csv", 10)
    assert first.age is not None
    assert (second.name, second.state, second.best, second.age) == ("new", "stopped", None, None)
    assert [one.place for one in nas_evidence.list_studies(done)] == [str(done)]


def words(values: object) -> str:
    assert isinstance(values, dict)
    return ", ".join(f"{k} {v}" for k, v in values.items() if (k, v) != ("shape", "constant"))


def test_a_held_study_runs_as_status_says(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s")
    leave_holder(folder, seconds_ago=1)
    state = nas_evidence.list_studies(tmp_path)[0].state
    assert state == nas_evidence.status(folder).state == "running"


def test_damaged_studies_end_no_list_and_say_what_is_wrong(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        drive(study(name=name, n_trials=2), begun(tmp_path / name, n_trials=2))
    (tmp_path / "a" / "study.toml").write_text("name = 3")
    (tmp_path / "b" / "study.toml").unlink()
    found = {Path(one.place).name: one for one in nas_evidence.list_studies(tmp_path)}
    assert [found[name].state for name in "abc"] == ["damaged", "damaged", "finished"]
    assert "must be text" in found["a"].problem
    assert "study.toml" in found["b"].problem


def test_a_study_whose_trials_failed_has_no_best(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s", n_trials=2)
    failing = FakeExecutor(misbehave=lambda assignment: TrialStatus.FAILED)
    drive(study(n_trials=2, name="s"), folder, failing)
    (one,) = nas_evidence.list_studies(tmp_path)
    assert (one.state, one.best, one.value) == ("finished", None, None)


def test_studies_below_a_uri_are_listed(tmp_path: Path) -> None:
    drive(study(name="a", n_trials=2), begun(tmp_path / "a", n_trials=2))
    (tmp_path / "other").mkdir()
    (one,) = nas_evidence.list_studies(f"file://{tmp_path}")
    assert (one.place, one.n_finished) == (f"file://{tmp_path}/a", 2)


def test_a_folder_that_is_not_there_is_refused_but_runs_may_be_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert nas_evidence.list_studies() == []
    with refused("list-of-no-folder", "nowhere"):
        nas_evidence.list_studies("nowhere")


@pytest.mark.slow
def test_the_verb_lists_and_says_of_an_empty_folder_that_it_is(tmp_path: Path) -> None:
    assert "runs holds no study" in run("list", folder=tmp_path).stderr
    drive(study(name="a", n_trials=2), begun(tmp_path / "runs" / "a", n_trials=2))
    shown = run("list", folder=tmp_path).stdout.splitlines()
    assert shown[0].split("\t")[:3] == ["study", "state", "trials"]
    assert shown[1].split("\t")[:3] == ["runs/a", "finished", "2 of 2"]
    (one,) = json.loads(run("list", "--json", folder=tmp_path).stdout)
    assert (one["name"], one["n_finished"]) == ("a", 2)
