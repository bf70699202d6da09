"""Copies for other tools hold what the study holds, and nothing they do stops a search."""

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.request import urlopen

import numpy as np
import optuna
import pytest
from commands import environment
from fakes import Heard, last_log, report_of
from faulty import flipped, run, study
from messages import refused
from records import asked, curve_of, record_with
from wandb_files import wandb_runs

import nas_evidence
from nas_evidence.api import trackers
from nas_evidence.api.results import Study
from nas_evidence.api.runs import Run, UnfinishedStudy
from nas_evidence.api.trackers import check_track, tracker_of
from nas_evidence.api.trackers.optuna import Optuna
from nas_evidence.api.trackers.tracked import Tracked, Tracker
from nas_evidence.driver.mirror import WorkingCopy
from nas_evidence.spec.study import ArchitectureSpec
from nas_evidence.storage.log import read_log
from nas_evidence.storage.redo import find_done
from nas_evidence.storage.tables import read_table
from nas_evidence.workers.executor import StudyStatus, Watcher

QUICK = {
    "plan.epochs": 2,
    "plan.settle": 0,
    "estimators": ["diag_ef"],
    "objective": "diag_ef",
}


def search(
    folder: Path, track: Any, n_trials: int = 2, settings: Mapping[str, Any] | None = None
) -> Study:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)), rng.integers(0, 2, 40)
    return nas_evidence.search(
        x,
        y,
        n_trials=n_trials,
        settings={**QUICK, **(settings or {})},
        families=["mlp"],
        out=folder / "s",
        track=track,
        progress=False,
    )


class Memory(Tracker):
    """A tracker that keeps what it is told, and may fail at one of its finished trials."""

    def __init__(self, known: Iterable[tuple[int, int]] = (), fail_at: int | None = None) -> None:
        super().__init__()
        self.finished: list[Tracked] = []
        self.points: dict[int, dict[str, list[tuple[int, float]]]] = {}
        self.told: list[tuple[int, str]] = []  # trial and what, in order
        self._known, self._fail_at = set(known), fail_at

    def known(self) -> set[tuple[int, int]]:
        return self._known

    def log(
        self, trial_id: int, about: Mapping[str, str], points: Mapping[int, Mapping[str, float]]
    ) -> None:
        assert about["family"] == "mlp"
        self.told.append((trial_id, "log"))
        series = self.points.setdefault(trial_id, {})
        for epoch, values in points.items():
            for name, value in values.items():
                series.setdefault(name, []).append((epoch, value))

    def pause(self, trial_id: int) -> None:
        self.told.append((trial_id, "pause"))

    def finish(self, trial: Tracked) -> None:
        if len(self.finished) == self._fail_at:
            raise ConnectionError("the server is gone")
        self.told.append((trial.key[0], "finish"))
        self.finished.append(trial)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    return tracked_by(monkeypatch, Memory())


def tracked_by(monkeypatch: pytest.MonkeyPatch, tracker: Memory) -> Memory:
    monkeypatch.setattr("nas_evidence.api.runs.tracker_of", lambda *_, **__: tracker)
    return tracker


@pytest.mark.slow
def test_what_is_told_while_a_trial_runs_is_what_the_tables_say_later(
    tmp_path: Path, memory: Memory
) -> None:
    study = search(tmp_path, "tensorboard", settings={"plan.epochs": 4, "plan.online.every": 2})
    assert memory.told[:3] == [(0, "log"), (0, "log"), (0, "finish")]
    told = {trial.key: trial for trial in memory.finished}
    for read in Tracked.all_in(study.folder):
        one = told[read.key]
        assert (read.about, read.status) == (one.about, one.status)
        assert read.final == pytest.approx(dict(one.final))
        assert read.series == one.series
        assert memory.points[read.key[0]] == one.series
    curve = read_table(study.folder, "curves")
    curve = curve[curve["trial_id"] == 0]
    points = memory.points[0]["train_nll_per_datum"]
    assert points == list(zip(curve["epoch"], curve["train_nll_per_datum"], strict=True))
    assert [epoch for epoch, _ in points] == [1, 2, 3, 4]
    assert "score/diag_ef" in memory.points[0]


def test_epochs_that_a_second_attempt_repeats_are_written_once() -> None:
    tracker, given = Memory(), asked(ArchitectureSpec(family="mlp", values={"width": 4}))
    for attempt, epochs in ((1, [1, 2]), (1, [3]), (2, [1, 2]), (2, [3, 4])):
        assignment = given.model_copy(update={"attempt": attempt})
        curve = tuple(point for point in curve_of(float, 4) if point.epoch in epochs)
        tracker.launched(assignment)
        tracker.progressed(report_of(assignment, epochs[-1], curve=curve))
        tracker.parked(0)
    assert tracker.points[0]["train_nll_per_datum"] == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]
    assert tracker.told.count((0, "pause")) == 4


@pytest.mark.slow
def test_a_late_tracker_does_not_write_twice_what_ended_before_it_began(tmp_path: Path) -> None:
    study = search(tmp_path, ())
    tracker, given = Memory(), asked(ArchitectureSpec(family="mlp", values={"width": 4}))
    tracker.study_started(study.spec, study.folder)
    before = list(tracker.told)
    tracker.launched(given)
    tracker.progressed(report_of(given, 1, curve=curve_of(float, 1)))
    tracker.ended(record_with(0))
    assert tracker.told == before
    tracker.ended(record_with(0, attempt=2, architecture=given.architecture))  # asked for again
    assert tracker.told[len(before) :] == [(0, "finish")]


@pytest.mark.slow
def test_a_resumed_study_writes_what_its_tracker_has_not_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = search(tmp_path, ())
    first = min(one.key for one in Tracked.all_in(study.folder))
    made = tracked_by(monkeypatch, Memory(known={first}))
    nas_evidence.resume(study.folder, n_trials=3, track=["mlflow"], progress=False)
    assert sorted(trial.key[0] for trial in made.finished) == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("fail_at", [0, 1])
def test_a_failing_tracker_is_one_warning_and_the_search_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail_at: int
) -> None:
    made = tracked_by(monkeypatch, Memory(fail_at=fail_at))
    with pytest.warns(RuntimeWarning, match="has stopped") as warned:
        study = search(tmp_path, ["mlflow:http://nowhere"], n_trials=3)
    assert len(study.trials) == 3
    assert len(made.finished) == fail_at
    assert [str(one.message) for one in warned] == [
        "track=mlflow:http://nowhere has stopped, the search goes on: "
        "ConnectionError: the server is gone"
    ]


HANGING = """
import time
from pathlib import Path

from nas_evidence import Watcher
from nas_evidence.api import callbacks

class Hanging(Watcher):
    def study_started(self, study, folder):
        time.sleep(1000)

callbacks._PATIENCE = 0.2
hanging = callbacks.InThread(Hanging, "track=mlflow")
with callbacks.Callbacks(Watcher(), [hanging], None, Path("."), print):
    pass
"""


@pytest.mark.slow
def test_a_tracker_that_hangs_is_left_alone_and_the_process_ends(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", HANGING],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert process.stdout == "track=mlflow is not done after 0 s; left alone\n"


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
    with refused("unknown-tracker", "'comet'"):
        check_track(["comet"])
    with refused("track-project", "'a/b'"):
        check_track(["wandb:a/b"], installed=False)
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs mlflow: .*\.\[mlflow\]"):
        check_track(["mlflow:sqlite:///x.db"])


@pytest.mark.slow
def test_event_files_read_back_hold_curves_scores_and_architecture(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    study = search(tmp_path, "tensorboard")
    trials = Tracked.all_in(study.folder)
    assert tracker_in(study, "tensorboard").known() == {one.key for one in trials}
    cut = study.folder / "tensorboard" / "trial-000001"
    (cut / "ended-1").unlink()  # as if the process had been killed before
    nas_evidence.resume(study.folder, track="tensorboard", progress=False)
    assert tracker_in(study, "tensorboard").known() == {one.key for one in trials}
    for one in trials:
        home = study.folder / "tensorboard" / f"trial-{one.key[0]:06d}"
        events = reader.EventAccumulator(str(home))
        events.Reload()
        for name, points in one.series.items():
            read = [(e.step, e.value) for e in events.Scalars(name)]
            np.testing.assert_allclose(read, points, rtol=1e-6, err_msg=name)
        text = events.Tensors("architecture/text_summary")[0].tensor_proto.string_val[0].decode()
        assert f"family: {one.about['family']}" in text


def tracker_in(study: Study, text: str) -> Any:
    return tracker_of(text, study.spec, study.folder)


@pytest.mark.long
@pytest.mark.slow
def test_runs_read_back_from_a_database_of_mlflow(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    text = f"mlflow:sqlite:///{tmp_path / 'm.db'}"
    study = search(tmp_path, text)
    tracker = tracker_in(study, text)
    keys = {one.key for one in Tracked.all_in(study.folder)}
    assert tracker.known() == keys
    again = tracker_in(study, text)
    again.study_started(study.spec, study.folder)
    for one in Tracked.all_in(study.folder):  # what is there already is not doubled
        again.log(one.key[0], one.about, {e: {n: v} for n, s in one.series.items() for e, v in s})
    runs = tracker.client.search_runs([tracker.experiment])
    assert len(runs) == len(keys)
    by_trial = {int(run.data.tags["nas_evidence.trial"]): run for run in runs}
    for one in Tracked.all_in(study.folder):
        run = by_trial[one.key[0]]
        assert run.data.params == dict(one.about)
        assert run.info.status == "FINISHED"
        assert run.data.tags["nas_evidence.status"] == "complete"
        for name, points in one.series.items():
            read = [
                (m.step, m.value) for m in tracker.client.get_metric_history(run.info.run_id, name)
            ]
            np.testing.assert_allclose(sorted(read), points, err_msg=name)


@pytest.mark.long
@pytest.mark.slow
def test_an_export_is_an_artifact_of_the_run_of_its_trial(tmp_path: Path) -> None:
    """Of a study that was not tracked: its runs are written first."""
    mlflow = pytest.importorskip("mlflow")
    study = search(tmp_path, ())
    with refused("export-track", "'tensorboard'"):
        study.export(tmp_path / "e", track="tensorboard")
    study.export(tmp_path / "e", track="mlflow")
    tracker = tracker_in(study, "mlflow")
    (run,) = (
        run
        for run in tracker.client.search_runs([tracker.experiment])
        if run.data.tags["nas_evidence.trial"] == str(study.best.trial_id)
    )
    kept = mlflow.artifacts.download_artifacts(
        f"runs:/{run.info.run_id}/export",
        dst_path=str(tmp_path),
        tracking_uri=f"sqlite:///{study.folder.resolve() / 'mlflow.db'}",
    )
    names = {path.name for path in (tmp_path / "e").iterdir()}
    assert {path.name for path in Path(kept).iterdir()} == names
    x = np.zeros((2, 3))
    told = nas_evidence.Predictor.load(kept).predict(x).mean
    np.testing.assert_array_equal(told, study.predict(x).mean)


def test_networks_of_several_architectures_are_an_artifact_of_no_run(tmp_path: Path) -> None:
    spec: Any = None
    (tmp_path / "ensemble.json").write_text("{}")
    with refused("export-track-ensemble"):
        trackers.keep_export("mlflow", spec, tmp_path, tmp_path)


@pytest.mark.long
@pytest.mark.slow
def test_runs_read_back_from_files_of_wandb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    study = search(tmp_path, "wandb:mine")
    nas_evidence.resume(study.folder, n_trials=3, track="wandb:mine", progress=False)
    runs = wandb_runs(tmp_path)
    assert len(runs) == 3
    for one in Tracked.all_in(study.folder):
        (run,) = (run for run in runs if f"trial-{one.key[0]:06d}" in run["name"])
        assert (run["project"], run["group"]) == ("mine", study.spec.name)
        assert run["config"] == dict(one.about)
        assert run["series"].pop("status")[-1][1] == "complete"
        for name, points in one.series.items():
            assert run["series"].pop(name) == points, name
        assert {name: points[-1][1] for name, points in run["series"].items()} == {
            f"final/{name}": value for name, value in one.final.items()
        }


@pytest.mark.long
@pytest.mark.slow
def test_runs_read_back_from_the_database_of_trackio(tmp_path: Path) -> None:
    """In a process of its own: trackio reads the place of its database when it is imported."""
    if find_spec("trackio") is None:
        pytest.skip("trackio is not installed")
    search(tmp_path, ())
    script = tmp_path / "script.py"
    script.write_text(TRACKIO)
    found = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path, env={**environment(), "TRACKIO_DIR": str(tmp_path / "t")},
        capture_output=True, text=True, timeout=600, check=True,
    )  # fmt: skip
    runs = json.loads(found.stdout.splitlines()[-1])
    trials = {f"trial-{one.key[0]:06d}": one for one in Tracked.all_in(tmp_path / "s")}
    assert (
        sorted(name[:12] for name in runs)
        == sorted(trials)
        == [f"trial-{i:06d}" for i in range(3)]
    )
    for name, (config, logs) in runs.items():
        one = trials[name[:12]]
        assert {key: config[key] for key in one.about} == dict(one.about)
        for metric, points in one.series.items():
            read = [(log["step"], log[metric]) for log in logs if metric in log]
            np.testing.assert_allclose(read, points, err_msg=metric)
        assert [log["status"] for log in logs if "status" in log] == ["complete"]


def test_a_run_that_a_killed_process_left_is_continued_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two processes, with a package that has `init`, `log` and `finish`."""
    steps: list[tuple[str, int, list[str]]] = []

    def init(*, name: str, **given: Any) -> SimpleNamespace:
        assert given["resume"] == "allow"
        log = lambda values, step: steps.append((name, step, sorted(values)))  # noqa: E731
        return SimpleNamespace(log=log, finish=lambda: None)

    monkeypatch.setitem(sys.modules, "trackio", SimpleNamespace(init=init))
    given, curve = asked(ArchitectureSpec(family="mlp")), curve_of(float, 3)
    for attempt, slices in ((1, [curve[:2]]), (2, [curve[:1], curve[1:]])):
        tracker = tracker_of("trackio", study(n_trials=1), tmp_path)
        tracker.launched(given)
        for points in slices:
            report = report_of(given, points[-1].epoch, attempt=attempt, curve=points)
            tracker.progressed(report)
    assert [step for _, step, _ in steps] == [1, 2, 3]
    assert len({name for name, _, _ in steps}) == 1


TRACKIO = """
import json

import nas_evidence
import trackio

for n_trials in (2, 3, 3):
    nas_evidence.resume("s", n_trials=n_trials, track="trackio:mine", progress=False)
from trackio.sqlite_storage import SQLiteStorage

runs = trackio.Api().runs("mine")
logs = {run.name: (run.config, SQLiteStorage.get_logs("mine", run.name)) for run in runs}
print(json.dumps(logs))
"""


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nas_evidence.proposing.optuna_export._LOCKED", 0.1)
    study = search(tmp_path, "optuna")
    stopped = "track=optuna has stopped, the search goes on: "
    with closing(sqlite3.connect(study.folder / "study.db", isolation_level=None)) as holding:
        holding.execute("BEGIN EXCLUSIVE")
        with pytest.warns(RuntimeWarning, match=stopped) as warned:
            nas_evidence.resume(study.folder, n_trials=3, track="optuna", progress=True)
    assert len(warned) == 1
    assert len(study.trials) == 3


@pytest.mark.slow
def test_a_tracker_reads_the_log_only_after_the_driver_has_mended_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, said, read = study(n_trials=2), list[str](), list[list[str]]()
    run(spec, tmp_path)
    flipped(last_log(tmp_path), at=100)
    assert read_log(tmp_path).problems != []
    seen = Optuna, "study_ended", lambda self, status: read.append(read_log(tmp_path).problems)
    monkeypatch.setattr(*seen)
    store, run_there, data = WorkingCopy(tmp_path), Run(track=("optuna",)), cast("Any", None)
    UnfinishedStudy(
        spec, store, run_there, Heard(said.append), data, find_done(tmp_path)
    ).finish_off()
    assert read == [[]]
    assert sum("not as written" in line for line in said) == 1


class Scrape(Watcher):
    """Reads, before the search lets go of Ray, what its nodes serve of this package."""

    series: dict[str, float]

    def study_ended(self, status: StudyStatus) -> None:
        import ray

        (node,) = ray.nodes()
        url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        until = time.monotonic() + 120
        self.series = {}
        # Ray collects every 10 s.
        while self.series.get("ray_nas_evidence_trials_total") != 2:
            assert time.monotonic() < until, self.series
            with suppress(OSError), urlopen(url, timeout=10) as answer:
                lines = answer.read().decode().splitlines()
                found = [line.split() for line in lines if line.startswith("ray_nas_evidence")]
                self.series = {name.partition("{")[0]: float(value) for name, value in found}
            time.sleep(1.0)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.ray
def test_where_ray_runs_the_trials_it_serves_the_counters(tmp_path: Path) -> None:
    rng, scrape = np.random.default_rng(0), Scrape()
    nas_evidence.search(
        rng.normal(size=(40, 3)),
        rng.integers(0, 2, 40),
        n_trials=2,
        settings={**QUICK, "resources.gpus": 0},
        families=["mlp"],
        out=tmp_path / "s",
        executor="ray",
        track="prometheus",
        callbacks=[scrape],
        progress=False,
    )
    assert scrape.series["ray_nas_evidence_running_trials"] == 0
    assert scrape.series["ray_nas_evidence_phase_seconds_total"] >= 0
    assert not (tmp_path / "s" / "metrics.prom").exists()
