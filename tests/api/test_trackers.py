"""Copies for other tools hold what the study holds, and nothing they do stops a search."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from commands import environment
from faulty import flipped, run, study
from messages import refused

import nas_evidence
from nas_evidence.api import trackers
from nas_evidence.api.runs import Audience, Run, finish_off
from nas_evidence.api.studies import Study
from nas_evidence.api.trackers import Tracked, Tracker, check_track, tracker_of
from nas_evidence.driver.mirror import WorkingCopy
from nas_evidence.storage.log import log_path, read_log
from nas_evidence.storage.redo import find_done
from nas_evidence.storage.tables import read_table

QUICK = {
    "plan.epochs": 2,
    "plan.settle": 0,
    "estimators": ["diag_ef"],
    "objective": "diag_ef",
}


def search(folder: Path, track: Any, n_trials: int = 2) -> Study:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)), rng.integers(0, 2, 40)
    return nas_evidence.search(
        x,
        y,
        n_trials=n_trials,
        settings=QUICK,
        families=["mlp"],
        out=folder / "s",
        track=track,
        progress=False,
    )


class Memory(Tracker):
    """A tracker that keeps what it is told, and may fail."""

    def __init__(self, known: set[tuple[int, int]] = frozenset(), fail_at: int | None = None):  # type: ignore[assignment]
        self.runs: list[Tracked] = []
        self._known, self._fail_at = known, fail_at

    def known(self) -> set[tuple[int, int]]:
        return set(self._known)

    def write(self, run: Tracked) -> None:
        if len(self.runs) == self._fail_at:
            raise ConnectionError("the server is gone")
        self.runs.append(run)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    made = Memory()
    monkeypatch.setattr(trackers, "tracker_of", lambda text, spec, folder: made)
    return made


@pytest.mark.slow
def test_what_is_told_at_the_end_of_a_trial_is_what_the_tables_say_later(
    tmp_path: Path, memory: Memory
) -> None:
    study = search(tmp_path, "tensorboard")
    assert [run.key[0] for run in memory.runs] == [0, 1]
    told = {run.key: run for run in memory.runs}
    for read in Tracked.all_in(study.folder):
        one = told[read.key]
        assert read.about == one.about
        assert read.complete == one.complete
        assert read.final == pytest.approx(dict(one.final))
        assert read.series.keys() == one.series.keys()
        for name, points in one.series.items():
            assert read.series[name] == points, name
    curve = read_table(study.folder, "curves")
    curve = curve[curve["trial_id"] == 0]
    points = told[memory.runs[0].key].series["train_nll_per_datum"]
    assert points == list(zip(curve["epoch"], curve["train_nll_per_datum"], strict=True))
    assert "score/diag_ef" in memory.runs[0].series


@pytest.mark.slow
def test_a_tracker_of_your_own_is_told_and_its_failure_names_its_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = Memory(fail_at=1)
    search(tmp_path, own)
    assert [run.key for run in own.runs] == [(0, 1)]
    later = Memory(known={(0, 1)})
    nas_evidence.resume(tmp_path / "s", n_trials=2, track=[later], progress=True)
    assert [run.key for run in later.runs] == [(1, 1)]
    failing = Memory(fail_at=0)
    nas_evidence.resume(tmp_path / "s", track=failing, progress=True)
    assert "track='Memory' has stopped" in capsys.readouterr().out


@pytest.mark.slow
def test_a_resumed_study_writes_what_its_tracker_has_not_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = search(tmp_path, ())
    keys = {one.key for one in Tracked.all_in(study.folder)}
    first = min(keys)
    made = Memory(known={first})
    monkeypatch.setattr(trackers, "tracker_of", lambda text, spec, folder: made)
    nas_evidence.resume(study.folder, n_trials=3, track=["mlflow"], progress=False)
    assert sorted(run.key[0] for run in made.runs) == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("fail_at", [0, 1])
def test_a_failing_tracker_is_one_warning_and_the_search_goes_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fail_at: int,
) -> None:
    made = Memory(fail_at=fail_at)
    monkeypatch.setattr(trackers, "tracker_of", lambda text, spec, folder: made)
    rng = np.random.default_rng(0)
    study = nas_evidence.search(
        rng.normal(size=(40, 3)), rng.integers(0, 2, 40), n_trials=3, settings=QUICK,
        out=tmp_path / "s", track=["mlflow:http://nowhere"], progress=True,
    )  # fmt: skip
    assert len(study.trials) == 3
    assert len(made.runs) == fail_at
    said = [line for line in capsys.readouterr().out.splitlines() if "warning" in line]
    assert said == [
        "warning: track='mlflow:http://nowhere' has stopped, the search goes on: "
        "the server is gone"
    ]


HANGING = """
import time
from pathlib import Path

from nas_evidence.api import trackers
from nas_evidence.spec.study import StudySpec
from nas_evidence.workers.executor import Watcher

class Hanging(trackers.Tracker):
    def known(self):
        time.sleep(1000)

trackers._PATIENCE = 0.2
trackers.tracker_of = lambda *_: Hanging()
family = {"mlp": {}}
spec = StudySpec.model_validate({"name": "s", "dataset": {"name": "digits"}, "family": family})
with trackers.Tracking(["mlflow"], spec, Path("."), Watcher(), print):
    pass
"""


@pytest.mark.slow
def test_a_tracker_that_hangs_is_left_alone_and_the_process_ends(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", HANGING],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert process.stdout == "warning: --track mlflow is not done after 0 s; left alone\n"


@pytest.mark.slow
def test_results_do_not_depend_on_a_tracker(tmp_path: Path, memory: Memory) -> None:
    values = [
        read_table(search(tmp_path / name, track).folder, "evidence")["value"].tolist()
        for name, track in (("with", ["mlflow"]), ("without", ()))
    ]
    assert values[0] == values[1]


def test_an_unknown_tracker_and_a_missing_extra_are_one_sentence_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with refused("unknown-tracker", "'wandb'"):
        check_track(["wandb"])
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs mlflow: .*\.\[mlflow\]"):
        check_track(["mlflow:sqlite:///x.db"])


@pytest.mark.slow
def test_event_files_read_back_hold_curves_scores_and_architecture(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    study = search(tmp_path, "tensorboard")
    tracker = tracker_of("tensorboard", study.spec, study.folder)
    assert tracker.known() == {one.key for one in Tracked.all_in(study.folder)}
    for one in Tracked.all_in(study.folder):
        events = reader.EventAccumulator(str(study.folder / "tensorboard" / one.name))
        events.Reload()
        for name, points in one.series.items():
            read = [(e.step, e.value) for e in events.Scalars(name)]
            np.testing.assert_allclose(read, points, rtol=1e-6, err_msg=name)
        text = events.Tensors("architecture/text_summary")[0].tensor_proto.string_val[0].decode()
        assert f"family: {one.about['family']}" in text


@pytest.mark.long
@pytest.mark.slow
def test_runs_read_back_from_a_database_of_mlflow(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    study = search(tmp_path, f"mlflow:sqlite:///{tmp_path / 'm.db'}")
    tracker = tracker_of(f"mlflow:sqlite:///{tmp_path / 'm.db'}", study.spec, study.folder)
    assert isinstance(tracker, trackers.MLflow)
    assert tracker.known() == {one.key for one in Tracked.all_in(study.folder)}
    runs = {
        int(run.data.tags["nas_evidence.trial"]): run
        for run in tracker.client.search_runs([tracker.experiment])
    }
    for one in Tracked.all_in(study.folder):
        run = runs[one.key[0]]
        assert run.data.params == dict(one.about)
        assert run.info.status == "FINISHED"
        for name, points in one.series.items():
            read = [
                (m.step, m.value) for m in tracker.client.get_metric_history(run.info.run_id, name)
            ]
            np.testing.assert_allclose(sorted(read), points, err_msg=name)


@pytest.mark.long
@pytest.mark.slow
def test_a_search_leaves_its_proposals_for_optuna_and_a_resume_restores_them(
    tmp_path: Path,
) -> None:
    study = search(tmp_path, "optuna")
    file = study.folder / "study.db"
    wanted = proposals(file, study.spec.name)
    table = read_table(study.folder, "evidence")
    table = table[table["estimator"] == "diag_ef"]
    scores = table.groupby("trial_id")["value"].last()
    assert [values for values, _ in wanted] == [[score] for score in scores]
    for damage in (Path.unlink, lambda path: path.write_bytes(b"torn")):
        damage(file)
        nas_evidence.resume(study.folder, track="optuna", progress=False)
        assert proposals(file, study.spec.name) == wanted
    file.unlink()
    nas_evidence.resume(study.folder, n_trials=3, track="optuna", progress=False)
    assert proposals(file, study.spec.name)[:2] == wanted
    assert len(proposals(file, study.spec.name)) == 3


def proposals(file: Path, name: str) -> list[tuple[list[float], dict[str, Any]]]:
    storage = optuna.storages.RDBStorage(f"sqlite:///{file}")
    try:
        trials = optuna.load_study(study_name=name, storage=storage).trials
        return [(trial.values, trial.params) for trial in trials]
    finally:
        storage.remove_session()
        storage.engine.dispose()


@pytest.mark.slow
def test_a_study_db_that_another_process_holds_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("nas_evidence.proposing.optuna_export._LOCKED", 0.1)
    study = search(tmp_path, "optuna")
    with closing(sqlite3.connect(study.folder / "study.db", isolation_level=None)) as holding:
        holding.execute("BEGIN EXCLUSIVE")
        nas_evidence.resume(study.folder, n_trials=3, track="optuna", progress=True)
    said = [line for line in capsys.readouterr().out.splitlines() if "warning" in line]
    assert len(said) == 1
    assert said[0].startswith("warning: track='optuna' has stopped, the search goes on: ")
    assert len(study.trials) == 3


@pytest.mark.slow
def test_a_tracker_reads_the_log_only_after_the_driver_has_mended_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, said, read = study(n_trials=2), list[str](), list[list[str]]()
    run(spec, tmp_path)
    flipped(log_path(tmp_path), at=100)
    assert read_log(tmp_path).problems != []
    seen = trackers.Optuna, "close", lambda self: read.append(read_log(tmp_path).problems)
    monkeypatch.setattr(*seen)
    store, audience = WorkingCopy(tmp_path), Audience(said.append)
    finish_off(spec, store, Run(track=("optuna",)), audience, find_done(tmp_path))
    assert read == [[]]
    assert sum("not as written" in line for line in said) == 1
