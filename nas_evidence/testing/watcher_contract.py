"""What every watcher owes a search: it takes each event, in any order a study can have."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nas_evidence.spec.record import (
    CurvePoint,
    Evaluation,
    EvidenceEstimate,
    SliceReport,
    TrialRecord,
    TrialStatus,
)
from nas_evidence.spec.study import ArchitectureSpec, Assignment, StudySpec
from nas_evidence.storage.study_folder import open_study
from nas_evidence.storage.tables import write_record
from nas_evidence.workers.executor import Lost, Watcher

_EPOCHS = 4
#: Epochs and values by trial and name.
Written = dict[int, dict[str, list[tuple[int, float]]]]


class WatcherContract:
    """The tests of a watcher. Give `make`; `read` where it writes something that can be read.

    Example:
        class TestPrinting(WatcherContract):
            def make(self, study, folder):
                return Printing()
    """

    def make(self, study: StudySpec, folder: Path) -> Watcher:
        """Return a new watcher of a study, as the process that runs or resumes it has one."""
        raise NotImplementedError

    def kill(self, watcher: Watcher) -> None:
        """Do what the death of its process does, if that matters to what a second one finds."""

    def read(self, study: StudySpec, folder: Path) -> Written:
        """Return what was written: by trial and name the epochs with their values, in order.

        `train_nll_per_datum` and `score/NAME` are compared.
        """
        pytest.skip("nothing is written that can be read")

    @pytest.fixture
    def study(self) -> StudySpec:
        """Return a study of three trials."""
        return StudySpec.model_validate(
            {
                "name": "watched",
                "n_trials": 3,
                "dataset": {"name": "digits"},
                "family": {"mlp": {"width": {"low": 4, "high": 64}}},
                "objective": "diag_ef",
                "estimators": ["diag_ef"],
                "plan": {"epochs": _EPOCHS, "settle": 0, "online": {"every": 2}},
            }
        )

    @pytest.fixture
    def folder(self, study: StudySpec, tmp_path: Path) -> Path:
        """Return the folder of the study."""
        open_study(tmp_path / "study", study)
        return tmp_path / "study"

    def test_it_takes_a_study_in_which_everything_happens(
        self, study: StudySpec, folder: Path
    ) -> None:
        _tell(self.make(study, folder), study, folder, everything(study, folder))

    def test_it_takes_a_study_that_was_finished_before(
        self, study: StudySpec, folder: Path
    ) -> None:
        for _ in everything(study, folder):
            pass
        _tell(self.make(study, folder), study, folder, iter(()))

    def test_it_takes_a_study_that_fails_before_its_first_trial(
        self, study: StudySpec, folder: Path
    ) -> None:
        watcher = self.make(study, folder)
        watcher.study_started(study, folder)
        watcher.study_ended("failed")

    def test_what_it_writes_is_what_happened_and_nothing_twice(
        self, study: StudySpec, folder: Path
    ) -> None:
        _tell(self.make(study, folder), study, folder, everything(study, folder))
        assert self.read(study, folder) == expected()

    def test_a_second_process_writes_what_the_first_one_missed_and_nothing_twice(
        self, study: StudySpec, folder: Path
    ) -> None:
        first, events = self.make(study, folder), everything(study, folder)
        first.study_started(study, folder)
        for n, (event, *given) in enumerate(events):
            if n < 11:  # then it is killed: one trial has ended, and one is under way
                getattr(first, event)(*given)
        self.kill(first)
        _tell(self.make(study, folder), study, folder, iter(()))
        _tell(self.make(study, folder), study, folder, iter(()))
        assert self.read(study, folder) == expected()


def _tell(
    watcher: Watcher, study: StudySpec, folder: Path, events: Iterator[tuple[Any, ...]]
) -> None:
    """Tell a watcher of a run; what it raises is raised."""
    watcher.study_started(study, folder)
    for event, *given in events:
        getattr(watcher, event)(*given)
    watcher.study_ended("complete")


def everything(study: StudySpec, folder: Path) -> Iterator[tuple[Any, ...]]:
    """Yield the events of a run: a trial parked once, one lost once, and one that is infeasible.

    As the driver does, it stores each record before it tells of it.
    """
    for trial_id, pauses in enumerate(("parked", "lost", "")):
        attempt, begun = 1, 0
        while True:
            given = _assignment(study, trial_id, attempt)
            yield "launched", given
            yield "progressed", _report(given, begun, since=0)
            if pauses and attempt == 1:
                yield "progressed", _report(given, 2, since=0)
                if pauses == "parked":
                    yield "parked", trial_id
                else:
                    yield "lost", Lost(trial_id, 1, "the worker process crashed")
                attempt, begun = 2, 2
                continue
            if pauses:
                yield "progressed", _report(given, _EPOCHS, since=begun)
            record = _record(given, complete=bool(pauses))
            write_record(folder, record, study)
            yield "ended", record
            break


def expected() -> Written:
    """Return what a watcher that writes has of `everything`."""
    curve = [(point.epoch, point.train_nll_per_datum) for point in _curve()]
    scores = [(e.epoch, e.estimate.per_datum or 0.0) for e in _evaluations()]
    return {
        trial_id: {"train_nll_per_datum": curve, "score/diag_ef": scores} for trial_id in (0, 1)
    }


def _assignment(study: StudySpec, trial_id: int, attempt: int) -> Assignment:
    given: dict[str, Any] = {
        "trial_id": trial_id,
        "attempt": attempt,
        "replicate": 0,
        "architecture": ArchitectureSpec(family="mlp", values={"width": 8 + trial_id}),
        "dataset": study.dataset,
        "plan": study.plan,
        "estimators": study.estimators,
        "seed": trial_id,
    }
    return Assignment.model_validate(given)


def _curve() -> tuple[CurvePoint, ...]:
    return tuple(
        CurvePoint(epoch=n, train_nll_per_datum=1 / n, learning_rate=0.25, seconds=1.0)
        for n in range(1, _EPOCHS + 1)
    )


def _evaluations() -> tuple[Evaluation, ...]:
    return tuple(
        Evaluation(
            epoch=n,
            estimate=EvidenceEstimate(estimator="diag_ef", value=-100 / n, per_datum=-1 / n),
        )
        for n in (2, 4)
    )


def _report(given: Assignment, epoch: int, *, since: int) -> SliceReport:
    found = [e for e in _evaluations() if since < e.epoch <= epoch]
    return SliceReport(
        trial_id=given.trial_id,
        attempt=given.attempt,
        epoch=epoch,
        epochs=_EPOCHS,
        done=epoch == _EPOCHS,
        scores={e.estimate.estimator: e.estimate.per_datum or 0.0 for e in found},
        curve=_curve()[since:epoch],
        evaluations=tuple(found),
    )


def _record(given: Assignment, *, complete: bool) -> TrialRecord:
    found: dict[str, Any] = {"status": TrialStatus.INFEASIBLE, "cause": "too wide"}
    if complete:
        found = {
            "status": TrialStatus.COMPLETE,
            "n_parameters": 81,
            "n_data": 100,
            "epochs": _EPOCHS,
            "curve": _curve(),
            "evaluations": _evaluations(),
            "test_accuracy": 0.75,
            "train_seconds": 3.0,
        }
    same = ("trial_id", "attempt", "replicate", "architecture", "seed")
    return TrialRecord.model_validate({**{k: getattr(given, k) for k in same}, **found})
