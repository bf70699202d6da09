"""What a watcher of your own is told, in which order, and what happens when it raises."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fakes
import numpy as np
import pytest
from fakes import FakeExecutor

import nas_evidence
from nas_evidence.api.results import Study
from nas_evidence.spec.record import SliceReport, TrialRecord
from nas_evidence.spec.study import Assignment, StudySpec
from nas_evidence.spec.toml import dump_study
from nas_evidence.storage.tables import read_table
from nas_evidence.workers.executor import Executor, StudyStatus
from nas_evidence.workers.inline import InlineExecutor

QUICK = {
    "plan.epochs": 4,
    "plan.online.every": 2,
    "plan.settle": 0,
    "estimators": ["diag_ef"],
    "objective": "diag_ef",
}


def search(folder: Path, n_trials: int = 2, **given: Any) -> Study:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)), rng.integers(0, 2, 40)
    return nas_evidence.search(
        x, y, n_trials=n_trials, families=["mlp"], out=folder / "s", progress=False,
        **{"settings": QUICK, **given},
    )  # fmt: skip


class Diary(nas_evidence.Watcher):
    """Notes what it is told; raises at the event `bad`."""

    def __init__(self, bad: str = "", error: BaseException | None = None) -> None:
        self.told: list[str] = []
        self.status: list[StudyStatus] = []
        self.epochs: list[int] = []
        self._bad, self._error = bad, error or ValueError("no such file")

    def _note(self, event: str, *trial_id: int) -> None:
        self.told.append(" ".join(map(str, (event, *trial_id))))
        if event == self._bad:
            raise self._error

    def study_started(self, study: StudySpec, folder: Path) -> None:
        assert (folder / "study.toml").is_file()
        self._note("study_started")

    def launched(self, assignment: Assignment) -> None:
        self._note("launched", assignment.trial_id)

    def progressed(self, report: SliceReport) -> None:
        if report.trial_id == 0:
            self.epochs += [point.epoch for point in report.curve]
        self._note("progressed", report.trial_id)

    def ended(self, record: TrialRecord) -> None:
        self._note("ended", record.trial_id)

    def study_ended(self, status: StudyStatus) -> None:
        self.status.append(status)
        self._note("study_ended")


@pytest.mark.slow
def test_a_watcher_is_told_of_study_trials_and_epochs_in_their_order(tmp_path: Path) -> None:
    diary = Diary()
    search(tmp_path, callbacks=[diary])
    trials = [
        word for i in (0, 1) for word in (f"launched {i}", *3 * [f"progressed {i}"], f"ended {i}")
    ]
    assert diary.told == ["study_started", *trials, "study_ended"]
    assert diary.epochs == [1, 2, 3, 4]
    assert diary.status == ["complete"]
    again = Diary()
    nas_evidence.resume(tmp_path / "s", n_trials=3, callbacks=[again], progress=False)
    assert again.told[1] == "launched 2"


@pytest.mark.slow
@pytest.mark.parametrize("bad", ["study_started", "launched", "progressed", "ended"])
def test_a_watcher_that_raises_is_one_warning_and_loses_no_trial(tmp_path: Path, bad: str) -> None:
    diary, other = Diary(bad), Diary()
    with pytest.warns(RuntimeWarning, match="has stopped") as warned:
        study = search(tmp_path, callbacks=[diary, other])
    assert [str(one.message) for one in warned] == [
        "callback Diary has stopped, the search goes on: ValueError: no such file"
    ]
    assert diary.told[-1].startswith(bad)
    assert other.told[-1] == "study_ended"
    assert list(study.trials["status"]) == ["complete", "complete"]


@pytest.mark.slow
def test_a_watcher_changes_no_result(tmp_path: Path) -> None:
    values = [
        read_table(search(tmp_path / name, callbacks=told).folder, "evidence")["value"].tolist()
        for name, told in (("with", [Diary()]), ("without", []))
    ]
    assert values[0] == values[1]


@pytest.mark.slow
def test_the_end_of_a_study_says_how_it_ended(tmp_path: Path) -> None:
    stopped, broken, spent, complete = Diary(), Diary(), Diary(), Diary()
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path, callbacks=[stopped, Diary("ended", KeyboardInterrupt())])

    def no_workers(*given: Any, **more: Any) -> Executor:
        executor = InlineExecutor(*given[:2])
        executor.poll = lambda timeout: 1 / 0  # type: ignore[assignment]
        return executor

    with pytest.raises(ZeroDivisionError):
        search(tmp_path, callbacks=[broken], executor=no_workers)
    settings = {"budget.wall_seconds": 1e-9}
    nas_evidence.resume(tmp_path / "s", settings=settings, callbacks=[spent], progress=False)
    settings = {"budget.wall_seconds": 1e9}
    nas_evidence.resume(tmp_path / "s", settings=settings, callbacks=[complete], progress=False)
    ends = [diary.status for diary in (stopped, broken, spent, complete)]
    assert ends == [["cancelled"], ["failed"], ["incomplete"], ["complete"]]


@pytest.mark.slow
def test_an_executor_of_your_own_runs_the_trials(tmp_path: Path) -> None:
    made: list[InlineExecutor] = []

    def mine(*given: Any, **more: Any) -> Executor:
        arrays, resources, logs = given
        assert (tmp_path / "s") in logs.parents
        made.append(InlineExecutor(arrays, resources, **more))
        return made[-1]

    own = search(tmp_path, executor=mine)
    assert len(made) == 1
    usual = search(tmp_path / "usual")
    assert own.ranking.equals(usual.ranking)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "widths"),
    [
        ({"workers": 2}, [32, 16, 8, 4]),
        ({"workers": 1}, [4, 16, 8, 32]),
        ({"workers": 2, "time_limit": "1h"}, [4, 16, 8, 32]),
        ({"workers": 2, "overrides": {"budget.wall_seconds": 1e9}}, [4, 16, 8, 32]),
    ],
)
def test_a_grid_runs_longest_first_without_a_limit(
    tmp_path: Path, given: dict[str, Any], widths: list[int]
) -> None:
    family = {"mlp": {"width": {"options": [4, 16, 8, 32]}}}
    spec = fakes.study(n_trials=4, family=family, sampler={"name": "grid"}, finalists=0)
    (tmp_path / "study.toml").write_text(dump_study(spec))
    made = FakeExecutor(workers=given["workers"])
    settings = {"dataset.max_train": 60, **given.pop("overrides", {})}
    nas_evidence.search(
        tmp_path / "study.toml", out=tmp_path / "s", executor=lambda *_, **__: made,
        settings=settings, progress=False, **given,
    )  # fmt: skip
    assert [one.assignment.architecture.values["width"] for one in made.launches] == widths


@pytest.mark.slow
def test_an_executor_is_named_by_module_on_the_command_line_and_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Callable[..., tuple[str, str]]
) -> None:
    (tmp_path / "slots.py").write_text(
        "from nas_evidence.workers.inline import InlineExecutor\n"
        "made = []\n"
        "def mine(*given, **more):\n"
        "    made.append(InlineExecutor(*given[:2], **more))\n"
        "    return made[-1]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one != str(tmp_path)])
    search(tmp_path, n_trials=1, executor="slots:mine", allow_code=True)
    cli("resume", "s", "--trials", "2", "--executor", "slots:mine", "--allow-code")
    made = sys.modules.pop("slots").made
    assert len(made) == 2
