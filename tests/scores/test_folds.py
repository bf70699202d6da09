"""Cross-validation: what networks say of data that they have not seen."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
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
from messages import refused
from records import asked
from scipy.stats import norm

from nas_evidence.data import load
from nas_evidence.data.arrays import ArrayData
from nas_evidence.data.tensors import TensorData, normalised_rows, select, to_tensors
from nas_evidence.data.units import Units
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.likelihoods.heteroscedastic import Heteroscedastic
from nas_evidence.likelihoods.predictive import Classes
from nas_evidence.maths.target_scale import fit
from nas_evidence.plumbing.tensor_seals import read_tensors
from nas_evidence.scores import folds, scale_choice
from nas_evidence.scores.folds import (
    OUTPUTS,
    SCALES,
    SPREAD,
    Folds,
    FoldTask,
    LogPredictive,
    all_folds,
    cross_fitted,
    fold_tasks,
    log_predictive,
)  # fmt: skip
from nas_evidence.scores.laplace_scores import laplace_estimates
from nas_evidence.scores.protocol import Context
from nas_evidence.spec.record import EvidenceEstimate, TrialRecord, TrialStatus
from nas_evidence.spec.study import (
    Assignment,
    DatasetSpec,
    StudySpec,
    TrainingPlan,
    derive_seed,
)
from nas_evidence.training import parts
from nas_evidence.training.online import passes_of
from nas_evidence.training.parts import new_network, order_of_data, part_of
from nas_evidence.training.predict_rows import outputs_of
from nas_evidence.workers.trial import Trial

SCORES = ("two_fold", "heldout_10", "five_fold")


def assignment_of(*, estimators: tuple[str, ...] = SCORES, **changes: object) -> Assignment:
    return mlp_assignment(*estimators, **({"epochs": 3} | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def data() -> TensorData:
    spec = DatasetSpec(name="digits", max_train=120, max_test=50)
    return to_tensors(load(spec, seed=0), "cpu")


def order_of(data: TensorData, replicate: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(derive_seed("blocks", replicate))
    return torch.randperm(len(data.x_train), generator=generator)


def test_equal_outputs_have_the_evidence_of_equal_probabilities() -> None:
    found = log_predictive(torch.zeros(7, 4), torch.arange(7) % 4, Categorical(2.0))
    assert found.log_predictive == pytest.approx(7 * math.log(1 / 4), rel=1e-12)
    assert found.hits == 2  # the first of equal classes is named


def test_the_scale_of_real_targets_is_marginalised_as_by_hand() -> None:
    outputs, targets = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.5], [0.0]])
    densities = [
        math.prod(norm(f, 0.3 * s).pdf(y) for f, y in ((0.0, 0.5), (1.0, 0.0))) for s in SCALES
    ]
    found = log_predictive(outputs, targets, Gaussian(0.3))
    assert found.log_predictive == pytest.approx(math.log(sum(densities) / len(SCALES)), rel=1e-10)
    assert found.scale == SCALES[densities.index(max(densities))]
    assert found.hits is None


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_marginalising_costs_at_most_the_logarithm_of_the_number_of_scales(
    temperature: float,
) -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = 10 * torch.randn(40, 3, generator=generator)
    targets = torch.randint(0, 3, (40,), generator=generator)
    best = max(
        float(Categorical(temperature * s).log_likelihood(outputs, targets)) for s in SCALES
    )
    found = log_predictive(outputs, targets, Categorical(temperature)).log_predictive
    assert best - math.log(len(SCALES)) <= found <= best


def test_overconfidence_is_forgiven_and_indifference_is_not() -> None:
    """The same outputs 8 times too large are told from the right ones by the prior at most."""
    generator = torch.Generator().manual_seed(1)
    outputs = 2 * torch.randn(2000, 3, generator=generator)
    targets = torch.multinomial(outputs.softmax(-1), 1, generator=generator)[:, 0]
    right, loud = (log_predictive(k * outputs, targets, Categorical()) for k in (1.0, 8.0))
    assert loud.log_predictive == pytest.approx(right.log_predictive, abs=1e-3)
    assert (right.scale, loud.scale) == (1.0, 8.0)


@pytest.mark.parametrize("n", [2, 7, 120])
@pytest.mark.parametrize("score", ["two_fold", "five_fold"])
def test_every_datum_is_predicted_once_by_a_network_that_has_not_seen_it(
    score: str, n: int
) -> None:
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    if score == "five_fold" and n < 5:
        with refused("too-few-data-for-folds", "five_fold", 5, 2):
            fold_tasks(score, order, TrainingPlan())
        return
    tasks = fold_tasks(score, order, TrainingPlan())
    everything = torch.arange(n)
    assert torch.equal(torch.cat([t.predicted for t in tasks]).sort().values, everything)
    for task in tasks:
        both = torch.cat([task.trained, task.predicted])
        assert torch.equal(both.sort().values, everything)
    assert len({task.purpose for task in tasks}) == len(tasks)


def test_one_fold_of_two_is_the_first_half_predicting_the_second() -> None:
    order = torch.arange(10)
    (task,) = fold_tasks("two_fold", order, TrainingPlan(folds=1))
    assert (task.trained.tolist(), task.predicted.tolist()) == ([*range(5)], [*range(5, 10)])
    (tenth,) = fold_tasks("heldout_10", order, TrainingPlan())
    assert tenth.predicted.tolist() == [9]


@pytest.mark.slow
@pytest.mark.parametrize("folds", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_score_is_that_of_trials_on_the_other_folds_alone(
    folds: int, data: TensorData, tmp_path: Path
) -> None:
    """Brute force: train without a fold through the ordinary path, predict it."""
    given = assignment_of(folds=folds)
    record = run(given, data, tmp_path / "whole")
    for score in SCORES:
        value, hits, n = 0.0, 0, 0
        tasks = fold_tasks(score, order_of(data), given.plan)
        for task in tasks:
            found = predicted_by_hand(given, data, task, tmp_path)
            value, n = value + found.log_predictive, n + len(task.predicted)
            hits += found.hits or 0
        estimate = record.final_estimate(score)
        accuracy = record.final_estimate(f"{score}_accuracy")
        assert estimate.value == pytest.approx(value / len(tasks), rel=1e-6)
        assert estimate.per_datum == pytest.approx(value / n, rel=1e-6)
        assert len({(term.term, term.group) for term in estimate.terms}) == len(estimate.terms)
        assert accuracy.value == pytest.approx(hits / n)
        assert accuracy.per_datum is None


def predicted_by_hand(
    given: Assignment, data: TensorData, task: FoldTask, folder: Path
) -> LogPredictive:
    """How well a lone trial on the other folds predicts a fold."""
    some = replace(data, x_train=data.x_train[task.trained], y_train=data.y_train[task.trained])
    update = {"estimators": (), "seed": given.derived_seed(task.purpose)}
    trial = Trial.start(given.model_copy(update=update), some, folder / task.purpose)
    trial.advance(given.plan.epochs)
    trial.network.model.eval()
    outputs = trial.network.model(data.x_train[task.predicted]).detach()
    return log_predictive(outputs, data.y_train[task.predicted], Categorical())


def test_the_two_directions_differ_by_the_evidence_of_their_own_halves() -> None:
    """Linear-Gaussian: log p(D_2|D_1) - log p(D_1|D_2) = log p(D_2) - log p(D_1), not 0."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 4, dtype=torch.float64, generator=generator)
    y = x.sum(1) + torch.randn(40, dtype=torch.float64, generator=generator)

    def log_evidence(rows: slice) -> float:
        phi = x[rows]
        covariance = phi @ phi.T + torch.eye(len(phi)).double()
        zero = torch.zeros(len(phi)).double()
        return float(torch.distributions.MultivariateNormal(zero, covariance).log_prob(y[rows]))

    first, second, both = slice(0, 20), slice(20, 40), slice(0, 40)
    directions = [log_evidence(both) - log_evidence(part) for part in (first, second)]
    gap = log_evidence(second) - log_evidence(first)
    assert directions[0] - directions[1] == pytest.approx(gap, rel=1e-10)
    assert abs(gap) > 1


def test_the_first_fold_alone_is_reported_where_trials_are_compared_after_it(
    data: TensorData, tmp_path: Path
) -> None:
    given = assignment_of(estimators=("two_fold",), epochs=4)
    given = given.model_copy(update={"first_fold_alone": True})
    trial = Trial.start(given, data, tmp_path)
    said = [trial.advance(2).scores.get("two_fold") for _ in range(4)]  # two slices a fold
    record = ended(trial)
    estimate = record.final_estimate("two_fold")
    terms = {t.group: t.value for t in estimate.terms if t.term == "log_predictive"}
    one = terms["fold 1"] / 60
    assert said == [None, pytest.approx(one), pytest.approx(one), estimate.per_datum]
    assert estimate.note == "120 data predicted in 2 folds"


def test_a_report_before_training_has_the_score_once_all_folds_are_predicted(
    data: TensorData, tmp_path: Path
) -> None:
    given = assignment_of(estimators=("two_fold",), epochs=4)
    trial = Trial.start(given, data, tmp_path)
    said = [trial.advance(2) for _ in range(3)]  # two slices with both folds, then the training
    estimate = ended(trial).final_estimate("two_fold")
    assert [report.epoch for report in said] == [0, 0, 2]
    assert [report.scores.get("two_fold") for report in said[:2]] == [None, estimate.per_datum]


@pytest.mark.slow
def test_what_is_predicted_has_not_been_seen(data: TensorData, tmp_path: Path) -> None:
    """Other labels in the fold that is predicted leave the other predictions' training alone."""
    given = assignment_of(estimators=("two_fold",), folds=2)
    late = order_of(data)[60:]  # predicted as fold 1, trained on for fold 2
    labels = data.y_train.clone()
    labels[late] = (labels[late] + 1) % 10
    found = [
        run(given, replace(data, y_train=y), tmp_path / str(i)).final_estimate("two_fold")
        for i, y in enumerate((data.y_train, labels))
    ]
    assert found[0] is not None
    assert found[1] is not None
    task = fold_tasks("two_fold", order_of(data), given.plan)[0]
    hand = predicted_by_hand(given, data, task, tmp_path)
    changed = predicted_by_hand(given, replace(data, y_train=labels), task, tmp_path / "changed")
    terms = [{t.group: t.value for t in e.terms if t.term == "log_predictive"} for e in found if e]
    assert terms[0]["fold 1"] == pytest.approx(hand.log_predictive, rel=1e-6)
    assert terms[1]["fold 1"] == pytest.approx(changed.log_predictive, rel=1e-6)


def test_the_training_itself_is_the_same_with_and_without(
    data: TensorData, tmp_path: Path
) -> None:
    plain, scored = (
        run(assignment_of(estimators=e), data, tmp_path / str(len(e))) for e in ((), SCORES)
    )
    assert [p.sotl for p in plain.curve] == [p.sotl for p in scored.curve]
    assert plain.test_accuracy == scored.test_accuracy  # the log loss is of another spread
    assert (plain.spread_factor == 1) & (scored.spread_factor != 1)


def test_architectures_are_judged_by_the_same_blocks_and_replicates_by_others() -> None:
    torch.testing.assert_close(
        *(torch.Generator().manual_seed(derive_seed("blocks", 0)).get_state() for _ in range(2))
    )
    assert derive_seed("blocks", 0) != derive_seed("blocks", 1)


@pytest.mark.parametrize("parked_after", [1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_a_trial_parked_at_any_slice_ends_bit_identical(
    parked_after: int, data: TensorData, tmp_path: Path
) -> None:
    scores = ("two_fold", "heldout_10")
    names = [name for score in scores for name in (score, f"{score}_accuracy")]
    given = assignment_of(estimators=scores)
    report = assert_parking_changes_nothing(names, given, data, tmp_path, slices=parked_after)
    # Three trainings side by side come before the training proper, in two slices.
    assert report.epoch == (2 if parked_after == 3 else 0)
    kept = [
        read_tensors(tmp_path / place / "model.safetensors")[0]
        for place in ("undisturbed", "parked/attempt-2")
    ]
    assert kept[0].keys() == kept[1].keys() >= {"kept/two_fold/outputs", "kept/two_fold/spread"}
    assert all(torch.equal(tensor, kept[1][name]) for name, tensor in kept[0].items())


def test_what_is_kept_of_one_fold_is_the_half_it_predicted_and_nothing_if_it_is_too_much(
    data: TensorData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = assignment_of(estimators=("two_fold",), epochs=1, folds=1)
    run(given, data, tmp_path / "one")
    spread = read_tensors(tmp_path / "one" / "model.safetensors")[0]["kept/two_fold/spread"]
    assert (spread > 0).nonzero()[:, 0].tolist() == sorted(order_of(data)[60:].tolist())
    monkeypatch.setattr(folds, "MOST_KEPT", 120 * 11 - 1)
    run(given, data, tmp_path / "none")
    names = read_tensors(tmp_path / "none" / "model.safetensors")[0].keys()
    assert not [name for name in names if name.startswith("kept/")]


def test_a_training_that_diverges_is_no_estimate_and_says_where(
    data: TensorData, tmp_path: Path
) -> None:
    inputs = data.x_train.clone()
    inputs[order_of(data)[30]] = 1e30  # trained on for the first fold alone
    given = assignment_of(estimators=("two_fold",), epochs=2)
    record = run(given, replace(data, x_train=inputs), tmp_path)
    trial = Trial.start(given, replace(data, x_train=inputs), tmp_path / "again")
    trial.advance(2)
    found = trial.finish(TrialStatus.CANCELLED).evaluations
    assert [e.estimate.valid for e in found] == [False, False]
    assert found[0].estimate.note == "the training on 60 data diverged"
    assert record.status is TrialStatus.DIVERGED


def test_too_few_data_are_refused_by_name(data: TensorData, tmp_path: Path) -> None:
    few = replace(data, x_train=data.x_train[:1], y_train=data.y_train[:1])
    trial = Trial.start(assignment_of(), few, tmp_path)
    trial.advance(1)
    assert trial.status is TrialStatus.FAILED
    assert "two_fold needs at least 2 data" in trial.cause


@pytest.mark.slow
def test_real_targets_are_predicted_too(tmp_path: Path) -> None:
    spec = DatasetSpec(name="diabetes", max_train=120)
    data = to_tensors(load(spec, seed=0), "cpu")
    given = assignment_of(
        estimators=("two_fold",), epochs=20, likelihood="gaussian", learning_rate=0.01
    )
    record = run(given, data, tmp_path)
    estimate = record.final_estimate("two_fold")
    assert record.final_estimate("two_fold_accuracy") is None
    constant = norm(0, 1).logpdf(data.y_train.numpy()).mean()
    assert constant - 0.3 < (estimate.per_datum or -math.inf) < 0


def test_rows_of_a_file_are_selected_without_reading_them(tmp_path: Path) -> None:
    import numpy as np

    from nas_evidence.data.mapped import MappedRows

    stored = np.random.default_rng(0).random((9, 3)).astype(np.float32)
    np.save(tmp_path / "x.npy", stored)
    rows = normalised_rows(MappedRows(tmp_path / "x.npy"), torch.zeros(3), torch.ones(3))
    index = torch.tensor([7, 2, 5])
    some = select(rows, index)  # type: ignore[arg-type]
    assert len(some) == 3
    torch.testing.assert_close(some[:2], torch.from_numpy(stored)[index[:2]])
    torch.testing.assert_close(some[torch.tensor([2, 0])], torch.from_numpy(stored)[index[[2, 0]]])


def table_of(data: TensorData) -> torch.Tensor:
    """Return random predictions of each datum and their spread, as `Folds.unseen` has them."""
    outputs = torch.randn(
        len(data.y_train), data.n_outputs, generator=torch.Generator().manual_seed(0)
    )
    return torch.cat([outputs, torch.ones(len(outputs), 1)], 1)


def test_the_factor_of_a_fold_is_fitted_to_the_other_folds(data: TensorData) -> None:
    table, given = table_of(data), assignment_of(estimators=("conditional_evidence",), folds=5)
    [first, *_] = all_folds("five_fold", order_of_data(len(table), given))
    changed = data.y_train.clone()
    changed[first.predicted] = (changed[first.predicted] + 1) % data.n_outputs
    one, other = (
        cross_fitted(table, replace(data, y_train=y), given)[:, -1]
        for y in (data.y_train, changed)
    )
    assert torch.equal(one[first.predicted], other[first.predicted])
    assert not torch.equal(one[first.trained], other[first.trained])


def test_rows_that_were_not_predicted_do_not_enter_the_factor(data: TensorData) -> None:
    table, given = table_of(data), assignment_of(estimators=("conditional_evidence",), folds=5)
    folds = all_folds("five_fold", order_of_data(len(table), given))
    table[folds[1].predicted] = 0
    seen = torch.cat([folds[k].predicted for k in (2, 3, 4)])
    found = cross_fitted(table, data, given)[folds[0].predicted, -1]
    expected = Classes(table[seen, :-1], table[seen, -1:]).factor(data.y_train[seen])
    torch.testing.assert_close(found, torch.full_like(found, expected))


def test_outputs_on_folds_and_on_test_data_are_in_full_precision(
    data: TensorData, tmp_path: Path
) -> None:
    given = assignment_of(estimators=("two_fold",), epochs=1)
    setting, seen = torch.backends.cudnn.conv, []
    before = setting.fp32_precision

    def look(module: torch.nn.Module, args: tuple[torch.Tensor]) -> None:
        if not module.training and len(args[0]) > 1:  # one row only counts, or is timed
            seen.append(setting.fp32_precision)

    try:
        setting.fp32_precision = "tf32"  # as torch allows by default
        with torch.nn.modules.module.register_module_forward_pre_hook(look):
            trial = Trial.start(given, data, tmp_path)
            trial.advance(1)
            ended(trial)
    finally:
        setting.fp32_precision = before
    assert len(seen) > 3
    assert set(seen) == {"ieee"}


# --- real targets of a fold on a scale: units, and what the network without the fold may know


def arrays_of(y: np.ndarray, *, log: bool) -> ArrayData:
    """Return targets [n, 1] of random inputs, without test rows."""
    x = np.random.default_rng(0).normal(size=(len(y), 2)).astype(np.float32)
    return ArrayData(
        "npz", x, y, x[:0], y[:0], task="real", n_outputs=1, input_shape=(2,),
        mean=np.zeros(2, np.float32), std=np.ones(2, np.float32), y_mean=y.mean(0),
        y_std=y.std(0), fitted_scale=fit("log", y) if log else None,
    )  # fmt: skip


@pytest.mark.parametrize("likelihood", [Gaussian(0.7), Heteroscedastic()])
def test_both_densities_of_a_fold_have_the_log_jacobian(
    likelihood: Gaussian | Heteroscedastic,
) -> None:
    random = torch.Generator().manual_seed(0)
    width = 2 if isinstance(likelihood, Heteroscedastic) else 1
    outputs, targets = (torch.randn(5, k, generator=random) for k in (width, 1))
    plain = log_predictive(outputs, targets, likelihood)
    scaled = log_predictive(outputs, targets, likelihood, -12.5)
    assert plain.as_trained == pytest.approx(float(likelihood.log_likelihood(outputs, targets)))
    assert scaled.as_trained == pytest.approx(plain.as_trained - 12.5)
    assert scaled.log_predictive == pytest.approx(plain.log_predictive - 12.5)


def test_means_of_a_fold_are_held_to_the_range_of_the_other_rows_alone() -> None:
    """A mean far above all targets ends at the bound of the scale that the other rows have."""
    plan = {"likelihood": "gaussian", "epochs": 2, "folds": 2, "settle": 0, "online": {"every": 2}}
    given = asked(None, ["two_fold"], seed=3, **plan)
    n = 24
    task = all_folds("two_fold", order_of_data(n, given))[0]
    y = np.exp(np.random.default_rng(1).normal(size=(n, 1)))
    y[int(task.predicted[0])] = 1e4  # seen by no network without the fold
    data = to_tensors(arrays_of(y, log=True), "cpu")
    run = new_network(*part_of(task.trained, data, given, task.purpose))
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.fill_(1e3 * float(parameter.ndim == 1))  # a bias
    folds = Folds(["two_fold"], Context(new_network(data, given), given))
    folds._predict(run, data, task)
    known = fit("log", y[task.trained.numpy()])
    highest = (known.highest - known.centre) / known.spread
    assert folds.unseen is not None
    np.testing.assert_allclose(folds.unseen[task.predicted, 0], highest.item(), rtol=1e-5)


def test_the_lead_of_a_scale_is_per_datum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standardised noise has -½ log 2πe = -1.42 nats a datum, whatever the number of rows."""
    monkeypatch.setattr(scale_choice, "CURVES", ("identity",))
    y = np.random.default_rng(2).normal(size=(40, 1))
    spec = StudySpec.model_validate(
        {
            "name": "noise", "objective": "conditional_evidence", "n_trials": 1,
            "dataset": {"name": "npz", "path": "data"}, "family": {"linear": {}},
            "plan": {"likelihood": "gaussian", "epochs": 2, "settle": 0, "learning_rate": 1e-4},
        }
    )  # fmt: skip
    found = scale_choice.chosen_scale(spec, arrays_of(y, log=False)).values["identity"]
    assert found == pytest.approx(-0.5 * math.log(2 * math.pi * math.e), abs=0.4)


# --- scores of data with groups or times: who is predicted from whom, and what is added


#: Rows of every test.
N = 50


def in_groups() -> Units:
    return Units(np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5)))


def in_time() -> Units:
    return Units(np.random.default_rng(0).permutation(np.repeat(np.arange(25), 2)), in_time=True)


def unit_data(units: Units | None) -> TensorData:
    return replace(of_three_classes(N), units=units)


def given(*names: str, **plan: object) -> Assignment:
    return mlp_assignment(*names, **({"epochs": 3} | plan))  # type: ignore[arg-type]


def found_in(record: TrialRecord, name: str) -> EvidenceEstimate:
    found = record.final_estimate(name)
    assert found is not None
    return found


def densities(found: EvidenceEstimate, term: str) -> dict[str, float]:
    return {t.group: t.value for t in found.terms if t.term == term}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "term"), [("five_fold", "log_predictive"),
                                            ("conditional_evidence", "log_density")])  # fmt: skip
def test_blocks_in_time_add_up_and_the_first_is_only_learned_from(
    name: str, term: str, tmp_path: Path
) -> None:
    found = found_in(run(given(name, folds=5), unit_data(in_time()), tmp_path), name)
    each = densities(found, term)
    assert [*each] == ["fold 2", "fold 3", "fold 4", "fold 5"]
    assert found.value == pytest.approx(sum(each.values()))
    assert found.per_datum == pytest.approx(found.value / 40)
    assert found.note.endswith("in 4 blocks in time")


def test_groups_are_averaged_as_folds_are(tmp_path: Path) -> None:
    found = found_in(run(given("five_fold"), unit_data(in_groups()), tmp_path), "five_fold")
    each = densities(found, "log_predictive")
    assert len(each) == 5
    assert found.value == pytest.approx(sum(each.values()) / 5)


@pytest.mark.slow
@pytest.mark.parametrize("units", [in_groups(), in_time()])
def test_a_fold_is_what_a_network_trained_on_other_groups_or_earlier_times_predicts(
    units: Units, tmp_path: Path
) -> None:
    assignment, tensors = given("five_fold"), unit_data(units)
    each = densities(found_in(run(assignment, tensors, tmp_path), "five_fold"), "log_predictive")
    order = parts.order_of_data(N, assignment, units)
    task = fold_tasks("five_fold", order, assignment.plan, units)[-1]
    part = parts.part_of(task.trained, tensors, assignment, task.purpose)
    alone = trained_part(part)
    alone.model.eval()
    outputs = alone.model(tensors.x_train[task.predicted]).detach()
    likelihood = Categorical()
    by_hand = log_predictive(outputs, tensors.y_train[task.predicted], likelihood)
    assert each[f"fold {task.number}"] == pytest.approx(by_hand.log_predictive, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two_fold", "heldout_10", "five_fold", "conditional_evidence"])
def test_no_score_learns_from_later_rows(name: str, tmp_path: Path) -> None:
    """The latest rows change what is predicted of them, but no density of the earlier blocks."""
    units = in_time()
    plain = run(given(name, folds=5), unit_data(units), tmp_path / "plain")
    poisoned = unit_data(units)
    inputs = poisoned.x_train.clone()
    inputs[torch.from_numpy(units.of >= 23)] = 1e3
    record = run(given(name, folds=5), replace(poisoned, x_train=inputs), tmp_path / "poisoned")
    one, other = (found_in(r, name) for r in (plain, record))
    terms = [
        {(t.term, t.group): t.value for t in found.terms if t.term != "output_scale"}
        for found in (one, other)
    ]
    late = {group for _, group in terms[0]} and max(group for _, group in terms[0])
    assert {k: v for k, v in terms[0].items() if k[1] != late} == {
        k: v for k, v in terms[1].items() if k[1] != late
    }
    assert one.value != other.value


@pytest.mark.slow
def test_a_trial_keeps_no_prediction_of_the_first_block(tmp_path: Path) -> None:
    units = in_time()
    trial = Trial.start(given("conditional_evidence", folds=5), unit_data(units), tmp_path)
    ended(trial)
    kept = read_tensors(tmp_path / "model.safetensors")[0]
    assert (kept[f"kept/{SPREAD}"][torch.from_numpy(units.of < 5)] == 0).all()
    assert (kept[f"kept/{SPREAD}"][torch.from_numpy(units.of >= 5)] > 0).all()
    assert kept[f"kept/{OUTPUTS}"].shape == (N, 3)


@pytest.mark.parametrize(("units", "says"), [(None, ""), (in_groups(), "groups are divided")])
def test_the_code_of_the_first_epoch_says_that_it_divides_groups(
    units: Units | None, says: str, tmp_path: Path
) -> None:
    found = found_in(run(given("sotl"), unit_data(units), tmp_path), "prequential_epoch1")
    assert says in found.note
    assert bool(says) == bool(found.note)


# --- trials that train their folds alone

ALONE = ("diag_ef", "two_fold", "five_fold", "conditional_evidence", "elpd")


def both(data: TensorData, folder: Path, **plan: object) -> tuple[TrialRecord, TrialRecord]:
    """A trial that trains its folds alone, and the same one with the network of all rows."""
    given = assignment_of(estimators=ALONE, **plan)
    alone = assignment_of(estimators=ALONE, whole=False, **plan)
    return run(alone, data, folder / "alone"), run(given, data, folder / "whole")


@pytest.mark.parametrize("n_folds", [2, 5])
def test_folds_trained_alone_have_the_scores_to_the_bit_and_keep_the_same_predictions(
    data: TensorData, tmp_path: Path, n_folds: int
) -> None:
    alone, whole = both(data, tmp_path, folds=n_folds)
    assert (alone.status, alone.of, whole.of) == (TrialStatus.COMPLETE, "folds", "whole")
    assert (alone.n_data, whole.n_data) == (120 - 120 // n_folds, 120)
    for name in ALONE[1:]:
        one, other = alone.final_estimate(name), whole.final_estimate(name)
        assert one is not None
        assert other is not None
        assert (one.value, one.per_datum, one.terms) == (other.value, other.per_datum, other.terms)
    assert alone.spread_factor == whole.spread_factor
    kept, header = read_tensors(tmp_path / "alone" / "model.safetensors")
    every, _ = read_tensors(tmp_path / "whole" / "model.safetensors")
    assert kept.keys() == {n for n in every if n.startswith("kept/")}  # no network
    assert all(torch.equal(kept[name], every[name]) for name in kept)
    assert Assignment.model_validate_json(header["assignment"]).plan.whole is False


def test_a_trial_of_folds_alone_reports_the_means_of_their_networks(
    data: TensorData, tmp_path: Path
) -> None:
    """Of two networks all have evidences, of five the first alone; by hand, from their parts."""
    for n_folds, division in ((2, "two_fold"), (5, "five_fold")):
        given = assignment_of(estimators=ALONE, whole=False, folds=n_folds)
        record = run(given, data, tmp_path / division)
        tasks = all_folds(division, order_of_data(len(data.x_train), given))
        networks = [
            trained_part(part_of(task.trained, data, given, task.purpose)) for task in tasks
        ]
        losses = [[point.train_nll_per_datum for point in one.curve] for one in networks]
        found = {e.estimate.estimator: e.estimate for e in record.evaluations}
        assert {e.of for e in record.evaluations} == {"folds"}
        assert found["sotl"].value == pytest.approx(-np.mean([sum(one) for one in losses]))
        assert record.curve[-1].train_nll_per_datum == pytest.approx(np.mean(losses, 0)[-1])
        evidences = [laplace_estimates(["diag_ef"], passes_of(one))[0] for one in networks]
        some = evidences if n_folds == 2 else evidences[:1]
        assert found["diag_ef"].value == pytest.approx(np.mean([one.value for one in some]))
        assert found["diag_ef"].per_datum == pytest.approx(
            np.mean([one.value / len(tasks[0].trained) for one in some])
        )
        right = [
            float((outputs_of(one.model, data.x_test).argmax(1) == data.y_test).float().mean())
            for one in networks
        ]
        assert record.test_accuracy == pytest.approx(np.mean(right))
        assert "prequential_epoch1" not in found  # a code length of all rows


def test_a_trial_of_folds_alone_parked_at_any_slice_ends_bit_identical(
    data: TensorData, tmp_path: Path
) -> None:
    given = assignment_of(estimators=ALONE, whole=False, folds=2)
    assert_parking_changes_nothing([*ALONE, "sotl"], given, data, tmp_path, slices=1)


def test_a_trial_of_folds_alone_diverges_with_a_network_that_stands_for_it(
    data: TensorData, tmp_path: Path
) -> None:
    given = assignment_of(estimators=ALONE, whole=False, learning_rate=1e9)
    record = run(given, data, tmp_path)
    assert (record.status, record.of) == (TrialStatus.DIVERGED, "folds")
    assert "fold 1: the training on 96 data diverged" in record.cause
