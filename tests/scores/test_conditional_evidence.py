"""Each fold given the others: `conditional_evidence`, which ranks by default, and `elpd`."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lone_trials import (
    assert_parking_changes_nothing,
    ended,
    mlp_assignment,
    of_three_classes,
    run,
    trained_part,
)
from torch import Tensor, nn
from torch.linalg import LinAlgError

from nas_evidence.curvature.memory import DoesNotFitError
from nas_evidence.data import load
from nas_evidence.data.proposed import with_numbers
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.evidence.last_layer import last_layer_of, late_given_early
from nas_evidence.evidence.softmax_layer import LogDensity
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.plumbing.tensor_seals import read_tensors
from nas_evidence.scores import folds as folds_module
from nas_evidence.scores.folds import Fold, fold_tasks
from nas_evidence.spec.record import EvidenceEstimate, TrialRecord, TrialStatus
from nas_evidence.spec.study import Assignment, DatasetSpec, TrainingPlan
from nas_evidence.training import parts
from nas_evidence.training.network import Network
from nas_evidence.workers.trial import Trial

NAME = "conditional_evidence"
ELPD = "elpd"


def assignment_of(*names: str, **plan: object) -> Assignment:
    given = {"epochs": 3, "folds": 5} | plan
    return mlp_assignment(*(names or (NAME,)), **given)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def data() -> TensorData:
    return of_three_classes(50)


@pytest.fixture(scope="module")
def real() -> TensorData:
    return to_tensors(load(DatasetSpec(name="diabetes", max_train=40), seed=0), "cpu")


def found_in(record: TrialRecord, name: str = NAME) -> EvidenceEstimate:
    found = record.final_estimate(name)
    assert found is not None
    return found


@pytest.mark.parametrize(("likelihood", "few"), [("categorical", 1000), ("gaussian", 5000)])
def test_few_data_have_five_folds_and_many_two(likelihood: str, few: int) -> None:
    plan = TrainingPlan.model_validate({"likelihood": likelihood, "epochs": 30})
    assert plan.folds == "auto"
    assert [with_numbers(plan, n).folds for n in (few - 1, few)] == [5, 2]


@pytest.mark.slow
@pytest.mark.parametrize(("folds", "other"), [(2, "two_fold"), (5, "five_fold"), (10, "ten_fold")])
def test_cross_validation_of_equal_folds_shares_its_trainings(
    folds: int, other: str, data: TensorData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    right = parts.new_network

    def counted(data: TensorData, given: Assignment) -> Network:
        started.append(len(data.x_train))
        return right(data, given)

    monkeypatch.setattr("nas_evidence.scores.folds.new_network", counted)
    both = run(assignment_of(NAME, other, folds=folds), data, tmp_path / "both")
    assert len(started) == folds
    alone = run(assignment_of(other, folds=1), data, tmp_path / "alone")
    if folds > 2:  # of halves there is one with `folds = 1`
        assert found_in(both, other).value == found_in(alone, other).value


@pytest.mark.slow
def test_the_value_is_the_mean_over_folds_and_per_datum_the_sum(
    data: TensorData, tmp_path: Path
) -> None:
    given = assignment_of()
    found = found_in(run(given, data, tmp_path))
    terms = {(t.term, t.group): t.value for t in found.terms}
    each = [terms["log_density", f"fold {k}"] for k in range(1, 6)]
    assert found.value == pytest.approx(sum(each) / 5)
    assert found.per_datum == pytest.approx(sum(each) / 50)
    assert found.note == "50 data given the others, in 5 folds"
    assert found.standard_error is None
    # The plain log density of fold 3, by hand.
    task = fold_tasks("five_fold", parts.order_of_data(50, given), given.plan)[2]
    part = parts.part_of(task.trained, data, given, task.purpose)
    alone = trained_part(part)
    alone.model.eval()
    outputs = alone.model(data.x_train[task.predicted]).detach()
    plain = float(Categorical().log_likelihood(outputs, data.y_train[task.predicted]))
    assert terms["log_predictive_as_trained", "fold 3"] == pytest.approx(plain, rel=1e-5)


@pytest.mark.slow
def test_one_fold_is_one_half(data: TensorData, tmp_path: Path) -> None:
    one = found_in(run(assignment_of(folds=1), data, tmp_path / "one"))
    two = found_in(run(assignment_of(folds=2), data, tmp_path / "two"))
    first = next(t.value for t in two.terms if (t.term, t.group) == ("log_density", "fold 1"))
    assert one.value == pytest.approx(first, rel=1e-4)  # alone, not beside another
    assert one.per_datum == pytest.approx(one.value / 25)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "term", "note"),
    [(NAME, "log_density", "given the others, in"), (ELPD, None, "predicted in")],
)
def test_the_first_fold_alone_is_the_score_at_the_first_rung(
    name: str, term: str | None, note: str, data: TensorData, tmp_path: Path
) -> None:
    given = assignment_of(name, epochs=2).model_copy(update={"first_fold_alone": True})
    trial = Trial.start(given, data, tmp_path)
    early = trial.advance(2).scores[name]
    found = found_in(ended(trial), name)
    values = [t.value for t in found.terms if t.group == "fold 1" and term in (None, t.term)]
    assert [early] == pytest.approx([value / 10 for value in values])
    assert found.note == f"50 data {note} 5 folds"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "parked_after"), [(NAME, 1), (NAME, 3), (ELPD, 1)])
def test_a_parked_trial_ends_bit_identical(
    name: str, parked_after: int, data: TensorData, tmp_path: Path
) -> None:
    given = assignment_of(name, folds=2 if name == NAME else 5)
    assert_parking_changes_nothing([name], given, data, tmp_path, slices=parked_after)


@pytest.mark.slow
@pytest.mark.parametrize("parked_after", [1, 2])
def test_a_parked_trial_ends_bit_identical_and_keeps_what_each_fold_predicted(
    parked_after: int, data: TensorData, tmp_path: Path
) -> None:
    given = assignment_of()
    names = (NAME, "five_fold")
    assert_parking_changes_nothing(names, given, data, tmp_path, slices=parked_after)
    kept = [
        read_tensors(tmp_path / place / "model.safetensors")[0]
        for place in ("undisturbed", "parked/attempt-2")
    ]
    assert (kept[0]["kept/two_fold/spread"] > 0).all()
    assert all(torch.equal(tensor, kept[1][name]) for name, tensor in kept[0].items())


@pytest.mark.parametrize(("name", "folds", "n"), [(NAME, 5, 40), (NAME, 1, 25), (ELPD, 5, 40)])
def test_a_fold_that_diverges_leaves_no_estimate(
    name: str, folds: int, n: int, data: TensorData, tmp_path: Path
) -> None:
    given = assignment_of(name, folds=folds)
    inputs = data.x_train.clone()
    inputs[parts.order_of_data(50, given)[3]] = 1e30
    trial = Trial.start(given, replace(data, x_train=inputs), tmp_path)
    trial.advance(3)
    trial.advance(3)
    found = found_in(trial.finish(TrialStatus.CANCELLED), name)
    assert not found.valid
    assert found.note == f"the training on {n} data diverged"


@pytest.mark.slow
@pytest.mark.parametrize("folds", [2, "auto"])
def test_real_targets_have_it_too(folds: object, real: TensorData, tmp_path: Path) -> None:
    given = assignment_of(epochs=4, folds=folds, likelihood="gaussian")
    found = found_in(run(given, real, tmp_path))
    assert found.valid
    assert found.note.endswith("in 5 folds" if folds == "auto" else "in 2 folds")
    assert -3 < (found.per_datum or 0) < 0


@pytest.mark.parametrize(("n", "folds"), [(999, 5), (1000, 2), (60_000, 2)])
def test_automatic_folds_are_a_number_from_the_data_alone(n: int, folds: int) -> None:
    plan = with_numbers(TrainingPlan(), n)
    assert plan.folds == folds
    stored = plan.model_copy(update={"folds": 10})
    assert with_numbers(TrainingPlan(), n, stored).folds == 10
    assert with_numbers(TrainingPlan(folds=1), n).folds == 1


@pytest.mark.slow
@pytest.mark.parametrize("power", [1.0, 0.4])
def test_the_value_is_that_of_the_network_trained_on_the_first_half(
    power: float, data: TensorData, tmp_path: Path
) -> None:
    given = assignment_of(folds=1, likelihood_power=power)
    record = run(given, data, tmp_path)
    found = record.final_estimate(NAME)
    order = parts.order_of_data(50, given)
    part = parts.part_of(order[:25], data, given, "prequential:25")
    alone = trained_part(part)
    layer = last_layer_of(alone.model, data.x_train[order], alone.prior_precision)
    by_hand = late_given_early(layer, data.y_train[order], 25, Categorical(), power=power).value
    assert found.value == pytest.approx(by_hand, rel=1e-9)
    assert found.per_datum == pytest.approx(by_hand / 25, rel=1e-9)
    assert found.note == "25 data given the others, in 1 fold"


@pytest.mark.slow
def test_late_labels_change_the_density_and_not_the_network(
    data: TensorData, tmp_path: Path
) -> None:
    """A wrong label among the late data costs nats; it must not reach features or precisions."""
    given = assignment_of(folds=1, epochs=12)
    order = parts.order_of_data(50, given)
    labels = data.y_train.clone()
    labels[order[25:]] = (labels[order[25:]] + 1) % 3
    right, wrong = (
        run(given, replace(data, y_train=y), tmp_path / str(i)).final_estimate(NAME)
        for i, y in enumerate((data.y_train, labels))
    )
    assert wrong.value < right.value


def test_a_network_whose_outputs_are_not_of_its_last_linear_layer_is_refused_before_training(
    data: TensorData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Twice(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    monkeypatch.setattr(
        "nas_evidence.training.parts.build", lambda *given: Twice(nn.Flatten(), nn.Linear(64, 3))
    )
    trial = Trial.start(assignment_of(folds=2), data, tmp_path)
    assert trial.status is TrialStatus.FAILED
    assert "must be those of the last linear layer" in trial.cause
    assert "two_fold" in trial.cause


def test_a_density_that_does_not_fit_is_no_estimate_and_the_trial_goes_on(
    data: TensorData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(what: str, *args: object, **known: object) -> None:
        if " 50 rows" in what:
            raise DoesNotFitError("x", "the inputs need about 9 GiB, but 1 GiB are free")

    monkeypatch.setattr("nas_evidence.evidence.last_layer.require_memory", refuse)
    record = run(assignment_of(folds=2), data, tmp_path)
    assert record.status is TrialStatus.COMPLETE
    found = record.final_estimate(NAME)
    assert not found.valid
    assert "GiB are free" in found.note


def fold(number: int, log_density: float, error: float) -> Fold:
    density = {"log_density": log_density, "density_error": error}
    return Fold(number=number, n_trained=20, n_data=10, **density)


def test_folds_are_averaged_and_blocks_in_time_added_with_the_squares_of_their_errors() -> None:
    folds = [fold(1, -3.0, 0.3), fold(2, -5.0, 0.4)]
    found = folds_module.density_estimate(folds, in_time=False)
    assert (found.value, found.per_datum) == pytest.approx((-4.0, -0.4))
    assert found.standard_error == pytest.approx(0.25)
    found = folds_module.density_estimate(folds, in_time=True)
    assert (found.value, found.per_datum) == pytest.approx((-8.0, -0.4))
    assert found.standard_error == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("outcome", "note"),
    [
        (LogDensity(0.5), "0.5 nats is above 0, impossible for labels"),
        (LogDensity(0.5, 0.1), "0.5 nats is above 0, impossible for labels"),
        (LinAlgError("the factorization could not be completed"), "could not be completed"),
    ],
)
def test_an_impossible_density_or_matrix_is_no_estimate_and_the_trial_goes_on(
    outcome: LogDensity | Exception, note: str, data: TensorData, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def computed(*args: object, **known: object) -> LogDensity:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(folds_module, "late_given_early", computed)
    record = run(assignment_of(epochs=1, folds=2), data, tmp_path)
    assert record.status is TrialStatus.COMPLETE
    found = record.final_estimate(NAME)
    assert not found.valid
    assert note in found.note


# --- as the networks predict it


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", ["categorical", "gaussian"])
def test_it_is_what_the_networks_without_a_fold_say_of_each_datum_of_it(
    likelihood: str, data: TensorData, real: TensorData, tmp_path: Path
) -> None:
    rows = data if likelihood == "categorical" else real
    assignment, n = assignment_of(ELPD, likelihood=likelihood), len(rows.x_train)
    found = found_in(run(assignment, rows, tmp_path), ELPD)
    terms = {term.group: term.value for term in found.terms}
    for task in fold_tasks("five_fold", parts.order_of_data(n, assignment), assignment.plan)[:2]:
        part = parts.part_of(task.trained, rows, assignment, task.purpose)
        alone = trained_part(part)
        f = alone.model.eval()(rows.x_train[task.predicted]).detach().double()
        y = rows.y_train[task.predicted]
        if likelihood == "categorical":
            log = f.log_softmax(1).gather(1, y[:, None])
        else:
            log = torch.distributions.Normal(f, alone.noise_std).log_prob(y.double())
        assert terms[f"fold {task.number}"] == pytest.approx(float(log.sum()), rel=1e-5)
    assert found.value == pytest.approx(sum(terms.values()) / 5)
    assert found.per_datum == pytest.approx(sum(terms.values()) / n)
    assert found.note == f"{n} data predicted in 5 folds"


@pytest.mark.slow
def test_the_evidence_of_the_same_folds_costs_no_training_more_and_changes_nothing(
    data: TensorData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, right = [], folds_module.new_network
    monkeypatch.setattr(
        folds_module, "new_network", lambda *part: started.append(1) or right(*part)
    )
    both = run(assignment_of(NAME, ELPD), data, tmp_path / "both")
    assert len(started) == 5
    alone = run(assignment_of(ELPD), data, tmp_path / "alone")
    assert found_in(both, ELPD).value == found_in(alone, ELPD).value
