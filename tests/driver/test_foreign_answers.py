"""An answer that is not of the trial under way is a lost attempt: nothing waits, nothing lies."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fakes import FakeExecutor, Silent, drive, finished, study
from records import asked
from toy_worker import Toy

from nas_evidence.spec.record import SliceReport, TrialRecord, TrialStatus
from nas_evidence.spec.study import ArchitectureSpec, ResourceSpec
from nas_evidence.workers.executor import Event, Launch, Lost, Verdict, checked
from nas_evidence.workers.inline import InlineExecutor
from nas_evidence.workers.pool import Pool, Seat
from nas_evidence.workers.process import Answer

OTHER = ArchitectureSpec(family="mlp", values={"width": 63})
#: What makes an answer one of another trial, and what the loss must say.
WRONG: dict[str, Callable[[Any], Any]] = {
    "trial_id": lambda event: event.model_copy(update={"trial_id": 77}),
    "attempt": lambda event: event.model_copy(update={"attempt": 9}),
    "architecture": lambda record: record.model_copy(update={"architecture": OTHER}),
    "seed": lambda record: record.model_copy(update={"seed": record.seed + 1}),
    "replicate": lambda record: record.model_copy(update={"replicate": 5}),
    "running": lambda record: record.model_copy(update={"status": TrialStatus.RUNNING}),
    "NoneType": lambda record: None,
    "str": lambda record: "done",
}


class Confused(Toy):
    """Its trial 2 ends, once, in an answer of another trial."""

    spoil: Callable[[Any], Any]
    spoiled = False

    def finish(self, verdict: Verdict | None) -> TrialRecord:
        record = super().finish(verdict)
        if record.trial_id == 2 and not type(self).spoiled:
            type(self).spoiled = True
            return cast("TrialRecord", type(self).spoil(record))
        return record

    def close(self) -> None:
        pass


class Impatient(InlineExecutor):
    """Ends a test that would wait for ever."""

    empty = 0

    def poll(self, timeout: float) -> list[Event]:
        events = super().poll(timeout)
        self.empty = 0 if events else self.empty + 1
        assert self.empty < 100, "the driver waits for a trial that has ended"
        return events


@pytest.mark.parametrize("what", WRONG)
def test_an_answer_of_another_trial_is_a_lost_attempt_and_the_study_ends_the_same(
    tmp_path: Path, what: str
) -> None:
    spec, watcher = study(n_trials=4), Silent()
    drive(spec, tmp_path / "calm", FakeExecutor(workers=1))
    make = type("Once", (Confused,), {"spoil": staticmethod(WRONG[what]), "spoiled": False})
    executor = Impatient(None, ResourceSpec(), make_worker=make)
    drive(spec, tmp_path / "s", executor, watcher)
    [loss] = watcher.losses
    assert (loss.trial_id, loss.attempt) == (2, 1)
    assert what in loss.cause
    calm, found = finished(tmp_path / "calm"), finished(tmp_path / "s")
    assert {i: row.architecture_key for i, row in found.items()} == {
        i: row.architecture_key for i, row in calm.items()
    }
    assert {i: row.attempt for i, row in found.items()} == {0: 1, 1: 1, 2: 2, 3: 1}


def test_a_worker_that_always_answers_for_another_trial_fails_its_trial_and_no_other(
    tmp_path: Path,
) -> None:
    class Never(FakeExecutor):
        """An executor of others, which checks nothing itself."""

        def poll(self, timeout: float) -> list[Event]:
            events = super().poll(timeout)
            return [
                WRONG["seed"](e) if isinstance(e, TrialRecord) and e.trial_id == 1 else e
                for e in events
            ]

    drive(study(n_trials=3), tmp_path, Never(workers=1))
    rows = finished(tmp_path)
    assert [rows[i].status for i in range(3)] == ["complete", "failed", "complete"]


def test_a_pool_replaces_a_worker_that_answers_for_another_trial() -> None:
    assignment = asked(trial_id=3)
    report = SliceReport(trial_id=3, attempt=assignment.attempt, epoch=1, epochs=4, done=False)
    lost: list[str] = []
    pool = SimpleNamespace(
        _over=set(),
        _note=lambda worker, answer, is_over: None,
        lose=lambda worker, why, kind: lost.append(why),
    )
    seat = Seat(None, 0.0, launch=Launch(assignment, Path("x"), None), started=True)

    def collected(event: object) -> object:
        return Pool._collect(cast("Pool", pool), seat, Answer(event, 0.0, 0, ""))

    assert collected(report) == report
    assert not lost
    for wrong in (WRONG["trial_id"](report), WRONG["attempt"](report), None):
        assert collected(wrong) is None
    assert len(lost) == 3
    seat.launch, seat.started = None, False
    assert collected(None) is None  # an answer to `park`
    assert len(lost) == 3


def test_a_loss_of_the_trial_under_way_stays_as_it_is() -> None:
    assignment = asked(trial_id=3)
    loss = Lost(3, assignment.attempt, "no answer")
    assert checked(loss, assignment) is loss
