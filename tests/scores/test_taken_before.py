"""A score from outside the package that is taken before training: once, at the initial weights."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from lone_trials import ended, mlp_assignment, of_three_classes, parked_and_resumed, run
from messages import refused

from nas_evidence.cli.show import _scores
from nas_evidence.data.tensors import TensorData
from nas_evidence.models import build
from nas_evidence.plumbing.own_modules import Code
from nas_evidence.reporting.study_tables import _epochs
from nas_evidence.scores.protocol import Context, Scorer, _Function
from nas_evidence.spec.record import EvidenceEstimate, TrialRecord
from nas_evidence.spec.registry import SCORES, Score, declared, import_outside
from nas_evidence.spec.study import Assignment
from nas_evidence.training.checkpoint import load_checkpoint, save_checkpoint
from nas_evidence.workers.trial import Trial

DATA = of_three_classes(48)
CALLS: list[int] = []


def squares(context: Context) -> float:
    """The squared length of the weights; its gradients are left behind."""
    CALLS.append(context.training.epoch)
    total = sum(p.square().sum() for p in context.model.parameters())
    assert isinstance(total, torch.Tensor)
    total.backward()
    context.model.eval()
    return float(total.detach())


class Squares(Scorer):
    """The same as a class that knows nothing of when it is taken."""

    def evaluate(self, *, last: bool) -> list[EvidenceEstimate]:
        return [EvidenceEstimate(estimator=self.names[0], value=squares(self.context))]


class InSlices(Squares):
    """The same after two slices of work, which a checkpoint keeps."""

    def __init__(self, names: Any, context: Context) -> None:
        super().__init__(names, context)
        self.done = 0

    def due(self) -> bool:
        return self.done < 2

    def advance(self) -> None:
        self.done += 1

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state: Any) -> None:
        self.done = state["done"]


def doubles(context: Context) -> float:
    with torch.no_grad():
        context.model.head.weight.mul_(2)  # type: ignore[operator, union-attr]
    return 0.0


def outside(name: str, made: Any, taken: Any = "before") -> dict[str, Any]:
    return {name: Score(name=name, summary=name, implementation=made, taken=taken)}


FUNCTION, CLASS, SLICES, WRONG = "t:FUNCTION", "t:CLASS", "t:SLICES", "t:WRONG"
LATE, LATE_CLASS = "t:LATE", "t:LATE_CLASS"
CODE = Code(
    local={
        **outside(FUNCTION, squares), **outside(CLASS, Squares), **outside(SLICES, InSlices),
        **outside(WRONG, doubles), **outside(LATE, squares, "end"),
        **outside(LATE_CLASS, Squares, "end"),
    }
)  # fmt: skip


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    CALLS.clear()
    with CODE.in_use():
        import_outside([*CODE.local])
        yield


def given(*names: str, **more: Any) -> Assignment:
    return mlp_assignment(*names, epochs=4, width=4, **more)


def at_the_start(assignment: Assignment, data: TensorData = DATA) -> float:
    generator = torch.Generator().manual_seed(assignment.derived_seed("init"))
    model = build(assignment.architecture, data.input_shape, data.n_outputs, generator)
    return sum(float(p.detach().square().sum()) for p in model.parameters())


def rows(record: TrialRecord, name: str) -> list[tuple[int, float]]:
    return [
        (e.epoch, e.estimate.value) for e in record.evaluations if e.estimate.estimator == name
    ]


@pytest.mark.parametrize("name", [FUNCTION, CLASS, SLICES])
def test_it_is_taken_once_at_the_initial_weights_and_stored_for_epoch_0(
    name: str, tmp_path: Path
) -> None:
    assignment = given(name)
    record = run(assignment, DATA, tmp_path)
    assert rows(record, name) == [(0, pytest.approx(at_the_start(assignment), rel=1e-6))]
    assert CALLS == [0]
    final = record.final_estimate(name)
    assert final is not None
    assert final.value == rows(record, name)[0][1]


def test_a_function_of_the_package_is_taken_once_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    built_in = {"squares": outside("squares", squares)["squares"]}
    for module in ("nas_evidence.spec.registry", "nas_evidence.scores.protocol"):
        monkeypatch.setattr(f"{module}.SCORES", {**SCORES, **built_in})
    assignment = given("squares")
    record = run(assignment, DATA, tmp_path)
    assert rows(record, "squares") == [(0, pytest.approx(at_the_start(assignment), rel=1e-6))]
    assert CALLS == [0]


@pytest.mark.parametrize("name", [LATE, LATE_CLASS])
def test_one_that_is_taken_at_the_end_is_taken_once_there(name: str, tmp_path: Path) -> None:
    record = run(given(name), DATA, tmp_path)
    assert [epoch for epoch, _ in rows(record, name)] == [4]
    assert CALLS == [4]


def test_the_first_report_has_the_value_that_ranks(tmp_path: Path) -> None:
    """At the first rung a trial is judged by the number that it is ranked by, before any fold."""
    trial = Trial.start(given(FUNCTION, "two_fold"), DATA, tmp_path)
    report = trial.advance(2)
    assert report.epoch == 0
    assert [e.epoch for e in report.evaluations] == [0]
    assert "two_fold" not in report.scores
    record = ended(trial)
    assert rows(record, FUNCTION) == [(0, report.scores[FUNCTION])]
    assert record.final_estimate("two_fold") is not None


@pytest.mark.parametrize("name", [FUNCTION, CLASS, SLICES])
@pytest.mark.parametrize("slices", [1, 4])
def test_a_resumed_trial_has_the_value_of_the_initial_weights(
    name: str, slices: int, tmp_path: Path
) -> None:
    assignment = given(name)
    _, record = parked_and_resumed(assignment, DATA, tmp_path, slices=slices)
    assert rows(record, name) == [(0, pytest.approx(at_the_start(assignment), rel=1e-6))]
    assert CALLS == [0]


def test_a_checkpoint_from_before_scores_were_taken_once_is_trained_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assignment = given(FUNCTION)
    first = Trial.start(assignment, DATA, tmp_path / "1")
    for _ in range(2):
        first.advance(2)
    state = load_checkpoint(tmp_path / "1")
    assert state is not None
    save_checkpoint(tmp_path / "1", 2, state | {"scores": state["scores"] | {FUNCTION: {}}})
    again = Trial.start(assignment, DATA, tmp_path / "2", resume_from=tmp_path / "1")
    assert "checkpoint_of_another_trial" in caplog.text
    assert rows(ended(again), FUNCTION)[0][1] == pytest.approx(at_the_start(assignment), rel=1e-6)


def test_the_training_is_the_same_bit_by_bit_with_and_without_it(tmp_path: Path) -> None:
    with_it = run(given(FUNCTION, "kfac_ggn"), DATA, tmp_path / "with")
    without = run(given("kfac_ggn"), DATA, tmp_path / "without")
    assert rows(with_it, "kfac_ggn") == rows(without, "kfac_ggn")
    assert [p.train_nll_per_datum for p in with_it.curve] == [
        p.train_nll_per_datum for p in without.curve
    ]


def test_one_that_changes_the_network_ends_the_trial_with_the_reason(tmp_path: Path) -> None:
    record = run(given(WRONG), DATA, tmp_path)
    assert record.status == "failed"
    assert "head.weight" in record.cause
    assert "deepcopy" in record.cause


def test_replicates_and_finalists_have_values_of_their_own_seeds(tmp_path: Path) -> None:
    first, second = (given(FUNCTION, seed=seed) for seed in (5, 6))
    found = [rows(run(one, DATA, tmp_path / str(one.seed)), FUNCTION) for one in (first, second)]
    assert found[0] != found[1]
    assert found[1] == [(0, pytest.approx(at_the_start(second), rel=1e-6))]


def test_folds_train_without_it(tmp_path: Path) -> None:
    run(given(FUNCTION, "two_fold", "conditional_evidence"), DATA, tmp_path)
    assert CALLS == [0]


def test_a_trial_is_shown_with_the_last_row_of_each_score() -> None:
    rows = [(FUNCTION, 0), ("kfac_ggn", 2), ("kfac_ggn", 4)]
    evidence = [{"estimator": n, "epoch": e, "value": 1.0, "per_datum": None} for n, e in rows]
    shown = _scores({"evidence": evidence})
    assert [(row["estimator"], row["epoch"]) for row, _ in shown] == [rows[0], rows[2]]


def test_no_figure_of_the_training_begins_before_it() -> None:
    assert _epochs(pd.DataFrame({"epoch": [0, 2, 2, 4]})) == (2, 4)


def test_a_score_that_no_moment_of_a_trial_takes_is_refused() -> None:
    with refused("score-taken", "'late'", "before, evaluation"):
        Score(name="late", summary="late", implementation=id, taken="first_pass")  # type: ignore[arg-type]


@pytest.mark.parametrize("returned", ["high", None])
def test_a_score_that_returns_no_number_is_named(returned: object) -> None:
    context: Any = SimpleNamespace(data=SimpleNamespace(x_train=[0.0]))
    score = _Function(declared("sotl"), lambda context: returned, context)
    with refused("score-no-number", "sotl", str(returned)):
        score.evaluate(last=True)


def test_an_outside_score_is_unknown_until_it_is_imported() -> None:
    assert declared("elsewhere:THING").name == "elsewhere:THING"
    with pytest.raises(ValueError, match="did you mean 'two_fold'"):
        declared("two_folds")
