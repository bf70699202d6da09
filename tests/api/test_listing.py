"""Which studies lie in a folder: what each has reached, and what ends no list."""

import json
import math
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from commands import run
from fakes import FakeExecutor, drive, leave_holder, study
from faulty import Cli
from messages import refused
from records import mlp

import nas_evidence
from nas_evidence.api.runs import Audience, Run, UnfinishedStudy
from nas_evidence.driver.mirror import WorkingCopy, working_copy
from nas_evidence.reporting.live import LiveReport
from nas_evidence.spec.how_read import HowRead
from nas_evidence.spec.record import TrialRecord, TrialStatus
from nas_evidence.spec.study import ResourceSpec
from nas_evidence.storage import holding
from nas_evidence.storage.events import Asked, Launched
from nas_evidence.storage.holding import Holder, holder_in
from nas_evidence.storage.kept_how_read import keep_how_read
from nas_evidence.storage.log import Log
from nas_evidence.storage.requests import is_open, request_cancel
from nas_evidence.storage.study_folder import locked, open_study
from nas_evidence.workers.pool import Limits


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


# --- A study without a complete trial can be looked at, and says what goes on


X = np.random.default_rng(0).normal(size=(40, 2))
Y = (X[:, 0] > 0).astype(int)


class Interrupts(nas_evidence.Watcher):
    """Stands for Ctrl-C after so many trials have ended."""

    def __init__(self, after: int) -> None:
        self.left = after

    def launched(self, assignment: object) -> None:
        if not self.left:
            raise KeyboardInterrupt

    def ended(self, record: TrialRecord) -> None:
        self.left -= 1


def interrupted(folder: Path, *, after: int) -> str:
    """Search until an interrupt, with the scores of few rows; return what it says."""
    with pytest.raises(KeyboardInterrupt) as raised:
        nas_evidence.search(
            X, Y, families="linear", n_trials=4, out=folder, callbacks=[Interrupts(after)],
            settings={"plan.epochs": 2, "plan.folds": 2, "finalists": 0, "replicates": 4},
        )  # fmt: skip
    return str(raised.value)


@pytest.mark.slow
def test_a_study_interrupted_in_its_first_trial_loads_and_says_what_goes_on(
    tmp_path: Path,
) -> None:
    place = tmp_path / "intr"
    goes_on = f"nas_evidence.resume('{place}') goes on"
    assert interrupted(place, after=0) == (
        f"stopped; nothing is lost, and 0 of 4 trials are stored; {goes_on}"
    )
    study, said = nas_evidence.load(place), f"0 of 4 trials are complete; {goes_on}"
    assert said in repr(study)
    assert said.replace("'", "&#x27;") in study._repr_html_()
    with pytest.warns(UserWarning, match="0 of 4 trials are complete") as warned:
        board = study.leaderboard()
    assert goes_on in str(warned[0].message)
    assert not len(board)
    assert warned[0].filename == __file__
    assert said in study.summary().headline.answer
    page = study.report()
    assert said in page.with_name("report.md").read_text().replace("\\", "")
    assert "0 of 4 trials are complete" in page.read_text()
    asked: list[Any] = [
        lambda: study.best, study.export, study.refit, lambda: study.predict(X),
        lambda: study.evaluate(X, Y), study.importance,
    ]  # fmt: skip
    for ask in asked:
        with refused("study-without-complete-trial", goes_on):
            ask()
    told = run("report", str(place), folder=tmp_path).stdout
    assert f"continue: nas-evidence resume {place}" in told


@pytest.mark.slow
def test_a_study_interrupted_later_says_what_goes_on_beside_its_ranking(tmp_path: Path) -> None:
    place = tmp_path / "intr"
    assert "1 of 4 trials are stored" in interrupted(place, after=1)
    study = nas_evidence.load(place)
    assert repr(study).endswith(f"; nas_evidence.resume('{place}') goes on)")
    assert study.leaderboard()["rank"].tolist() == [1]
    again = nas_evidence.resume(place)
    assert "goes on" not in repr(again)


@pytest.mark.slow
def test_a_study_whose_trials_all_failed_says_how_they_run_again(tmp_path: Path) -> None:
    frame = pd.DataFrame(X).assign(y=Y)
    with pytest.raises(RuntimeError):
        nas_evidence.search(
            frame, target="y", families="linear", n_trials=1, out=tmp_path / "s",
            settings={"limits.n_parameters": 1, "plan.epochs": 2, "finalists": 0},
        )  # fmt: skip
    said = repr(nas_evidence.load(tmp_path / "s"))
    assert "0 of 1 trials are complete, most often because: " in said
    assert f"runs them again: nas_evidence.resume('{tmp_path}/s', retry_failed=True)" in said


# --- A study that waits for room on a full cluster says so, and can be cancelled meanwhile


WAITS = "2 workers, 0 of 2 CPUs free"


def waiting(store: WorkingCopy) -> UnfinishedStudy:
    given: Any = {"data": None, "finds": None}
    left = UnfinishedStudy(study(n_trials=4), store, Run("ray"), Audience(), **given)
    left._starting = True
    return left


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The folder of a study that this process holds, with a heartbeat that has just come."""
    monkeypatch.setattr(holding, "BEAT_EVERY", 0.01)
    open_study(tmp_path / "s", study(n_trials=4, name="s"))
    with locked(tmp_path / "s"):
        yield tmp_path / "s"
    holder = holder_in((tmp_path / "s" / "lock").read_bytes())
    assert holder is None


def beaten(folder: Path, waits_for: str) -> None:
    """Wait for the heartbeat that says it."""
    while True:
        holder = holder_in((folder / "lock").read_bytes())
        if holder is not None and holder.waits_for == waits_for:
            return


def test_status_says_what_a_study_waits_for(held: Path, cli: Cli) -> None:
    waiting(working_copy(str(held)))._waits(WAITS)
    beaten(held, WAITS)
    now = nas_evidence.status(held)
    assert (now.state, now.waits_for) == ("running", WAITS)
    with closing(Log(held)) as log:  # asked of the executor, which has no worker for it
        log.write(Asked(number=0, architecture=mlp()))
        log.write(Launched(trial_id=0, attempt=1))
    shown = cli("status", held)[0].splitlines()
    assert shown[:2] == ["s: waiting, 0 of 4 trials (none yet)", f"waits for {WAITS}"]
    assert shown[2].startswith("held by ")
    assert len(shown) == 3
    assert json.loads(cli("status", held, "--json")[0])["waits_for"] == WAITS
    (listed,) = nas_evidence.list_studies(held.parent)
    assert (listed.state, listed.waits_for) == ("waiting", WAITS)
    assert f"waiting: {held}: waits for {WAITS}\n" in cli("list", held.parent)[0]
    waiting(working_copy(str(held)))._waits("")
    beaten(held, "")
    assert cli("status", held)[0].startswith("s: running, ")
    assert "waits for" not in cli("list", held.parent)[0]


def test_the_live_page_says_what_a_study_waits_for(held: Path) -> None:
    waiting(working_copy(str(held)))._waits(WAITS)
    beaten(held, WAITS)
    with closing(Log(held)) as log:
        log.write(Asked(number=0, architecture=mlp()))
        log.write(Launched(trial_id=0, attempt=1))
        live = LiveReport(held)
        page = live.write(10).html.read_text("utf-8")
        assert f"<strong>Waits for {WAITS}.</strong> 0 of 4 trials are finished. As of" in page
        assert 'id="live"' not in page
        assert live.write(10) is None
        waiting(working_copy(str(held)))._waits("")
        beaten(held, "")
        assert "<strong>Running.</strong>" in live.write(10).html.read_text("utf-8")


def test_watch_says_what_a_study_waits_for(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_study(tmp_path / "s", study(n_trials=4, name="s"))
    running = iter([True, True, False])
    folder = sys.modules["nas_evidence.storage.study_folder"]
    monkeypatch.setattr(folder, "is_locked", lambda _: next(running, False))
    holder = Holder(1, "h", "b", 0.0, 0.0, waits_for=WAITS)
    monkeypatch.setattr(folder, "holder_of", lambda _: holder)

    def looks(folder: Path, *, is_over: Any, **_: Any) -> Any:
        while not is_over():
            pass
        return iter(())

    monkeypatch.setattr("nas_evidence.reporting.live.watch", looks)
    assert cli("watch", tmp_path / "s")[0].splitlines()[1:] == [f"waits for {WAITS}"]


@pytest.mark.parametrize("kind", ["folder", "store"])
def test_a_study_that_waits_for_its_first_worker_is_cancelled(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    place = str(folder) if kind == "folder" else f"file://{folder}"
    open_study(folder, study(n_trials=4, name="s"))
    store = working_copy(place)
    store.pull()
    left = waiting(store)
    left._waits(WAITS)
    request_cancel(folder)  # from another terminal
    with pytest.raises(KeyboardInterrupt):
        left._waits(WAITS)
    assert not is_open(store.folder)
    left._starting = False  # then the driver looks
    request_cancel(folder)
    left._waits(WAITS)


def test_a_lock_with_all_that_it_may_say_fits_into_its_file(held: Path) -> None:
    waiting(working_copy(str(held)))._waits("9" * 500)
    beaten(held, "9" * 120)
    assert len((held / "lock").read_bytes()) == 1024


@pytest.mark.slow
def test_on_a_cluster_a_study_waits_without_limit_and_says_what_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from nas_evidence.workers import on_ray

    pool = object.__new__(on_ray.RayExecutor)  # connected to nothing
    pool.resources, pool.limits = ResourceSpec(), Limits()
    pool._nodes = [{"Resources": {"CPU": 1.0, "GPU": 1.0}}, {"Resources": {"CPU": 1.0}}]
    monkeypatch.setattr(on_ray.ray, "available_resources", lambda: {"GPU": 0.5})
    assert pool._waits_for(0.0, 2) == WAITS
    of_gpu = "1 worker with 1 CPU and 0.5 GPU, 0 of 2 CPUs and 0.5 of 1 GPU free"
    assert pool._waits_for(0.5, 1) == of_gpu
    pool.resources = ResourceSpec(cpus=3)
    assert pool._waits_for(0.0, 2) == "2 workers with 3 CPUs each, 0 of 2 CPUs free"
    for joined, patience in ((True, math.inf), (False, 900.0)):
        pool._joined = joined
        assert pool.patience == patience
    pool._joined = True
    assert "until there is room" in pool._for_how_long()
    pool.resources = ResourceSpec(wait_seconds=60.0)
    assert (pool.patience, pool._for_how_long()) == (60.0, "waiting for up to 1.0 min")
