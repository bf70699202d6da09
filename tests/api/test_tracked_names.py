"""Names that a tracker does not take are translated, each to one of its own; nothing ends."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import environment
from fakes import report_of
from faulty import study
from hypothesis import example, given
from hypothesis import strategies as st
from records import asked, curve_of, record_with

from nas_evidence.api.callbacks import Callbacks, InThread
from nas_evidence.api.trackers import tracker_of
from nas_evidence.api.trackers.init_log_finish import InitLogFinish
from nas_evidence.api.trackers.prometheus import to_file
from nas_evidence.api.trackers.tracked import Tracked, Tracker
from nas_evidence.plumbing.names import translated
from nas_evidence.proposing import optuna_export
from nas_evidence.proposing.past import ProposalResult
from nas_evidence.spec.domains import IntRange
from nas_evidence.spec.study import ArchitectureSpec, StudySpec
from nas_evidence.workers.executor import Watcher

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
