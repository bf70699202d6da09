"""Our trackers keep what `nas_evidence.testing` asks of every watcher."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from commands import environment
from wandb_files import wandb_runs

from nas_evidence.api.trackers import tracker_of
from nas_evidence.spec.study import StudySpec
from nas_evidence.testing import WatcherContract
from nas_evidence.testing.watcher_contract import Written, everything
from nas_evidence.workers.executor import Watcher

WRITTEN = ("train_nll_per_datum", "score/diag_ef")


class TestSilent(WatcherContract):
    def make(self, study: StudySpec, folder: Path) -> Watcher:
        return Watcher()


class Tracked(WatcherContract):
    name: str

    def make(self, study: StudySpec, folder: Path) -> Watcher:
        return tracker_of(self.name, study, folder)


@pytest.mark.slow
class TestOptuna(Tracked):
    name = "optuna"


class TestPrometheus(Tracked):
    name = "prometheus"

    def test_its_file_is_what_prometheus_reads_and_counts_what_happened(
        self, study: StudySpec, folder: Path
    ) -> None:
        parser = pytest.importorskip("prometheus_client.parser")
        for resumed in (False, True):  # a second process counts what the first one finished
            watcher = self.make(study, folder)
            watcher.study_started(study, folder)
            for event, *given in () if resumed else everything(study, folder):
                getattr(watcher, event)(*given)
            text = (folder / "metrics.prom").read_text()
            found = {
                (sample.name, *sorted(sample.labels.items())): sample.value
                for family in parser.text_string_to_metric_families(text)
                for sample in family.samples
            }
            own = ("study", study.name)
            assert found["nas_evidence_trials_total", ("status", "complete"), own] == 2
            assert found["nas_evidence_trials_total", ("status", "infeasible"), own] == 1
            assert found["nas_evidence_phase_seconds_total", ("phase", "train"), own] == 6.0
            assert found["nas_evidence_running_trials", own] == 0
            retries = found.get(("nas_evidence_retries_total", ("cause", "crash"), own))
            assert retries == (None if resumed else 1)


class Series:
    """A counter or gauge of `ray.util.metrics`: values by labels, as Ray would serve them."""

    served: ClassVar[dict[tuple[str, ...], float]] = {}

    def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
        self.name, self.keys = name, tag_keys

    def _at(self, tags: dict[str, str]) -> tuple[str, ...]:
        assert tuple(tags) == self.keys
        return (self.name, *tags.values())

    def inc(self, value: float, tags: dict[str, str]) -> None:
        assert value > 0
        self.served[self._at(tags)] = self.served.get(self._at(tags), 0.0) + value

    def set(self, value: float, tags: dict[str, str]) -> None:
        self.served[self._at(tags)] = value


class TestPrometheusOnRay(WatcherContract):
    @pytest.fixture(autouse=True)
    def _series(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from nas_evidence.workers import on_ray

        monkeypatch.setattr(Series, "served", {})
        monkeypatch.setattr(on_ray, "metrics", SimpleNamespace(Counter=Series, Gauge=Series))

    def make(self, study: StudySpec, folder: Path) -> Watcher:
        return tracker_of("prometheus", study, folder, on_ray=True)

    def test_ray_serves_the_numbers_that_the_file_would_hold(
        self, study: StudySpec, folder: Path
    ) -> None:
        file = folder / "study.prom"
        watchers = [
            self.make(study, folder),
            tracker_of(f"prometheus:{file}", study, folder, on_ray=True),
        ]
        for watcher in watchers:
            watcher.study_started(study, folder)
        n_running = []
        for event, *given in everything(study, folder):
            for watcher in watchers:
                getattr(watcher, event)(*given)
            lines = [line for line in file.read_text().splitlines() if line[0] != "#"]
            found = {
                (name, *re.findall(r'"(.*?)"', labels)): float(value)
                for line in lines
                for name, labels, value in [re.split("[{}]", line)]
            }
            assert Series.served == {k: v for k, v in found.items() if v or len(k) == 2}
            n_running.append(found["nas_evidence_running_trials", study.name])
        assert max(n_running) > n_running[-1] == 0
        assert not (folder / "metrics.prom").exists()


@pytest.mark.slow
class TestTensorBoard(Tracked):
    name = "tensorboard"

    def read(self, study: StudySpec, folder: Path) -> Written:
        reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
        found: Written = {}
        for home in (folder / "tensorboard").glob("trial-*"):
            events = reader.EventAccumulator(str(home))
            events.Reload()
            known = set(events.Tags()["scalars"]) & set(WRITTEN)
            if known:
                found[int(home.name[6:])] = {
                    name: [(e.step, pytest.approx(e.value)) for e in events.Scalars(name)]
                    for name in known
                }
        return found


@pytest.mark.slow
@pytest.mark.long
class TestMLflow(Tracked):
    name = "mlflow"

    def read(self, study: StudySpec, folder: Path) -> Written:
        tracker: Any = self.make(study, folder)
        runs = tracker.client.search_runs([tracker.experiment])
        assert len(runs) == study.n_trials
        found: Written = {}
        for run in runs:
            for name in {*WRITTEN} & set(run.data.metrics):
                history = tracker.client.get_metric_history(run.info.run_id, name)
                points = sorted((m.step, m.value) for m in history)
                trial_id = int(run.data.tags["nas_evidence.trial"])
                found.setdefault(trial_id, {})[name] = points
        return found


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
class TestWandb(Tracked):
    name = "wandb"

    @pytest.fixture(autouse=True)
    def offline(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WANDB_MODE", "offline")
        monkeypatch.setenv("WANDB_DIR", str(tmp_path))

    def kill(self, watcher: Any) -> None:
        watcher.study_ended("failed")

    def read(self, study: StudySpec, folder: Path) -> Written:
        """Of a trial that two processes wrote the files are sent one after the other."""
        found: Written = {}
        for run in wandb_runs(folder.parent):
            for name in {*WRITTEN} & set(run["series"]):
                series = found.setdefault(int(run["name"][6:12]), {})
                series[name] = series.get(name, []) + run["series"][name]
        return found


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(find_spec("trackio") is None, reason="trackio is not installed")
def test_trackio_keeps_the_contract_too(tmp_path: Path) -> None:
    """In a process of its own: trackio reads the place of its database when it is imported."""
    (tmp_path / "test_trackio.py").write_text(TRACKIO)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."],
        cwd=tmp_path, env={**environment(), "TRACKIO_DIR": str(tmp_path / "t")},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout
    assert "5 passed" in run.stdout


TRACKIO = """
from nas_evidence.api.trackers import tracker_of
from nas_evidence.testing import WatcherContract


class TestTrackio(WatcherContract):
    def make(self, study, folder):
        return tracker_of(f"trackio:{folder.parent.name}", study, folder)

    def kill(self, watcher):
        watcher.study_ended("failed")

    def read(self, study, folder):
        from trackio.sqlite_storage import SQLiteStorage

        found, project = {}, folder.parent.name
        for name in SQLiteStorage.get_runs(project):
            for log in SQLiteStorage.get_logs(project, name):
                for key in {"train_nll_per_datum", "score/diag_ef"} & set(log):
                    series = found.setdefault(int(name[6:12]), {})
                    series.setdefault(key, []).append((log["step"], log[key]))
        return found
"""
