"""Copies for other tools hold what the study holds, and nothing they do stops a search."""

import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.request import urlopen

import numpy as np
import optuna
import pytest
from commands import QUICK, environment, small_search
from fakes import Heard, last_log, report_of
from faulty import flipped, run, study
from hypothesis import example, given
from hypothesis import strategies as st
from messages import refused
from records import asked, curve_of, record_with

import nas_evidence
from nas_evidence.api import trackers
from nas_evidence.api.callbacks import Callbacks, InThread
from nas_evidence.api.results import Study
from nas_evidence.api.runs import Run, UnfinishedStudy
from nas_evidence.api.trackers import check_track, tracker_of
from nas_evidence.api.trackers.init_log_finish import InitLogFinish
from nas_evidence.api.trackers.optuna import Optuna
from nas_evidence.api.trackers.prometheus import to_file
from nas_evidence.api.trackers.tracked import Tracked, Tracker
from nas_evidence.driver.mirror import WorkingCopy
from nas_evidence.plumbing.names import translated
from nas_evidence.proposing import optuna_export
from nas_evidence.proposing.past import ProposalResult
from nas_evidence.spec.domains import IntRange
from nas_evidence.spec.study import ArchitectureSpec, StudySpec
from nas_evidence.storage.log import read_log
from nas_evidence.storage.redo import find_done
from nas_evidence.storage.tables import read_table
from nas_evidence.workers.executor import StudyStatus, Watcher


def search(folder: Path, track: Any, n_trials: int = 2, **given: Any) -> Study:
    return small_search(folder, n_trials, track=track, **given)


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


def tracker_in(study: Study, text: str) -> Any:
    return tracker_of(text, study.spec, study.folder)


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


# --- names that a tracker does not take are translated, each to one of its own; nothing ends


#: Names of parameters that a family may have.
NAMES = (
    "kernel size (px)", "kernel size [px]", "kernel_size_px", "a b", "a_b", "_x", "-y-", "status",
    "a//b", "a/b", "/a", "..", "..a", ".", "n" * 300, "größe", "λ→μ", '"q"', "a\\b", "100 %",
)  # fmt: skip
ODD = ArchitectureSpec(family="mlp", values=dict.fromkeys(NAMES, 3))


def told(tracker: Watcher, spec: StudySpec, folder: Path, trial_id: int = 0) -> None:
    """Tell a tracker of a trial with these names, from its start to its end."""
    given = asked(ODD, trial_id=trial_id)
    tracker.study_started(spec, folder)
    tracker.launched(given)
    tracker.progressed(report_of(given, 2, curve=curve_of(float, 2)))
    tracker.ended(record_with(trial_id, architecture=ODD, curve=curve_of(float, 3)))
    tracker.study_ended("complete")


@pytest.mark.slow
def test_mlflow_has_each_parameter_under_a_name_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    spec = study(name='"x" / y')
    tracker: Any = tracker_of("mlflow", spec, tmp_path)
    told(tracker, spec, tmp_path)
    (run,) = tracker.client.search_runs([tracker.experiment])
    params = dict(run.data.params)
    assert (params.pop("family"), params.pop("replicate")) == ("mlp", "0")
    assert set(params.values()) == {"3"}
    assert len(params) == len(NAMES)
    assert {"a b", "a/b", "größe", "arch_status"} <= params.keys()  # those that it takes
    assert run.info.status == "FINISHED"
    assert not tracker.not_tracked


@pytest.mark.slow
def test_a_run_of_mlflow_that_was_left_without_parameters_gets_them_on_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    spec = study()
    first: Any = tracker_of("mlflow", spec, tmp_path)

    def lost(*_: object, **__: object) -> None:
        raise ConnectionError("the server is gone")

    monkeypatch.setattr(type(first.client), "log_batch", lost)
    with pytest.raises(ConnectionError):
        told(first, spec, tmp_path)
    monkeypatch.undo()
    again: Any = tracker_of("mlflow", spec, tmp_path)
    told(again, spec, tmp_path)
    (run,) = again.client.search_runs([again.experiment])
    assert len(run.data.params) == len(NAMES) + 2


@example(list(NAMES))
@given(st.lists(st.text(min_size=1).filter(lambda s: s.isprintable() and s.strip()), min_size=2))
def test_what_mlflow_checks_takes_every_translation_and_no_two_become_one(
    names: list[str],
) -> None:
    validation = pytest.importorskip("mlflow.utils.validation")
    from nas_evidence.api.trackers.mlflow import MLflow

    for name in names:
        validation._validate_param_name(found := translated(name, MLflow.fits))
        assert len(found) <= 250
    assert len({translated(name, MLflow.fits) for name in names}) == len({*names})


@pytest.mark.slow
def test_tensorboard_takes_each_name_as_it_is(tmp_path: Path) -> None:
    board = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    spec = study()
    told(tracker_of("tensorboard", spec, tmp_path), spec, tmp_path)
    events = board.EventAccumulator(str(tmp_path / "tensorboard" / "trial-000000"))
    events.Reload()
    text = events.Tensors("architecture/text_summary")[0].tensor_proto.string_val[0].decode()
    for name in NAMES:
        assert f"{'arch_' * (name == 'status')}{name}: 3" in text
    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    assert b"arch_status" in content
    assert b"complete" in content


@pytest.mark.parametrize("tool", ["wandb", "trackio"])
def test_projects_and_keys_of_wandb_and_trackio_are_none_that_they_refuse(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[dict[str, Any]] = []

    def init(**how: Any) -> SimpleNamespace:
        begun.append(how)
        return SimpleNamespace(log=lambda values, step: None, finish=lambda: None)

    tools = SimpleNamespace(init=init, Settings=lambda **_: None)
    monkeypatch.setitem(sys.modules, tool, tools)
    for name in ("a/b", "a-b", 'my "study" (1): 100 %', "ü" * 200):
        spec = study(name=name)
        told(tracker_of(tool, spec, tmp_path), spec, tmp_path)
        again: Any = tracker_of(tool, spec, tmp_path)
        assert again.known() == {(0, 1)}
    assert len(begun) == 4
    projects = {how["project"] for how in begun}
    assert len(projects) == 4
    assert not {*'/\\#?%:"()'} & {*"".join(projects)}
    assert max(map(len, projects)) <= 128
    config = begun[0]["config"]
    assert len(config) == len(NAMES) + 2
    assert not [key for key in config if key.startswith(("_", "-")) or key.endswith("-")]
    assert len([*(tmp_path / "logs").glob("track-*")]) == 4


class Picky(Tracker):
    """Refuses one metric and one parameter by their names, and cannot do without the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, Any] = {}

    def known(self) -> set[tuple[int, int]]:
        return set()

    def log(
        self, trial_id: int, about: Mapping[str, str], points: Mapping[int, Mapping[str, float]]
    ) -> None:
        self.write("parameter", about, self._take)
        for values in points.values():
            self.write("metric", values, self._take)

    def finish(self, trial: Tracked) -> None:
        self.write("metric", trial.final, self._take)

    def _take(self, values: Mapping[str, Any]) -> None:
        if wrong := {"a b", "learning_rate"} & {*values}:
            raise ValueError(f"no {wrong.pop()} here\nand more")
        self.kept |= values


def test_what_a_tracker_refuses_is_said_once_and_the_rest_goes_on(tmp_path: Path) -> None:
    said: list[str] = []
    picky = Picky()
    thread = InThread(lambda: picky, "track=picky")
    with Callbacks(Watcher(), [thread], study(), tmp_path, said.append) as callbacks:
        for trial_id in range(3):
            for method, told in (
                ("launched", asked(ODD, trial_id=trial_id)),
                ("ended", record_with(trial_id, architecture=ODD, curve=curve_of(float, 3))),
            ):
                getattr(callbacks, method)(told)
    assert " ".join(said).count("is left out") == 2
    assert "parameter a b is left out: no a b here" in " ".join(said)
    assert "and more" not in " ".join(said)
    assert {"kernel size (px)", "train_nll_per_datum", "final/epochs"} - picky.kept.keys() == {
        "final/epochs"
    }
    assert not {"a b", "learning_rate"} & picky.kept.keys()


def test_a_tool_that_refuses_an_architecture_has_the_rest_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[dict[str, str]] = []

    def init(*, config: dict[str, str], **_: Any) -> SimpleNamespace:
        if config:
            raise ValueError("too many keys")
        begun.append(config)
        return SimpleNamespace(log=lambda values, step: None, finish=lambda: None)

    monkeypatch.setitem(sys.modules, "trackio", SimpleNamespace(init=init))
    spec = study()
    tracker = InitLogFinish("trackio", spec, tmp_path)
    for trial_id in (0, 1):
        told(tracker, spec, tmp_path, trial_id)
    assert begun == [{}, {}]
    assert tracker.not_tracked == ["the architecture is left out: too many keys"]


def test_optuna_has_the_parameters_of_a_family_with_dots_in_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optuna_export, "searched", lambda study: ["pkg.mod:Net"])
    export, names = optuna_export.Export(study(), tmp_path), (*NAMES, "n" * 600)
    domains = dict.fromkeys(names, IntRange(low=1, high=4))
    monkeypatch.setattr(export, "_study", SimpleNamespace(family={"pkg.mod:Net": domains}))
    values = {name: 1 + i % 4 for i, name in enumerate(names)}
    one = ArchitectureSpec(family="pkg.mod:Net", values=values)
    trial = export._trial(one, ProposalResult((1.0,)))
    assert [*trial.params.values()] == [*values.values()]
    assert trial.params["pkg.mod:Net.kernel size (px)"] == 1
    assert max(map(len, trial.params)) <= 512


def test_the_name_of_a_study_is_one_label_of_prometheus(tmp_path: Path) -> None:
    publish = to_file(tmp_path / "metrics.prom")
    publish('a "b" \\ c', {("running_trials", ""): 1.0})
    assert (
        'running_trials{study="a \\"b\\" \\\\ c"} 1.0' in (tmp_path / "metrics.prom").read_text()
    )


def test_the_log_of_the_package_is_not_printed_where_nobody_asked_for_it() -> None:
    script = (
        "import logging, nas_evidence.api.callbacks\n"
        "logging.getLogger('nas_evidence.api.callbacks').warning('x', exc_info=ValueError('y'))"
    )
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
