"""Prequential evidence: what a network says of data that it has not seen."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lone_trials import assert_parking_changes_nothing, ended, mlp_assignment, run
from scipy.stats import norm

from nas_evidence.data import load
from nas_evidence.data.tensors import NormalisedRows, TensorData, select, to_tensors
from nas_evidence.evidence.prequential import SCALES, Forecast, block_bounds, forecast
from nas_evidence.likelihood import Categorical, Gaussian
from nas_evidence.record import TrialStatus
from nas_evidence.spec import Assignment, DatasetSpec, TrainingPlan, derive_seed
from nas_evidence.training.prequential import fractions_of
from nas_evidence.trial import Trial

SCORES = ("prequential", "heldout_10")


def assignment_of(*, estimators: tuple[str, ...] = SCORES, **changes: object) -> Assignment:
    given: dict[str, object] = {
        "epochs": 3, "prequential_fractions": [0.25, 0.5], "prequential_orders": 1, **changes
    }  # fmt: skip
    return mlp_assignment(*estimators, **given)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def data() -> TensorData:
    spec = DatasetSpec(name="digits", max_train=120, max_test=50)
    return to_tensors(load(spec, seed=0), "cpu")


def order_of(data: TensorData, replicate: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(derive_seed("blocks", replicate))
    return torch.randperm(len(data.x_train), generator=generator)


def test_equal_outputs_have_the_evidence_of_equal_probabilities() -> None:
    found = forecast(torch.zeros(7, 4), torch.arange(7) % 4, Categorical(2.0))
    assert found.log_evidence == pytest.approx(7 * math.log(1 / 4), rel=1e-12)
    assert found.hits == 2  # the first of equal classes is named


def test_the_scale_of_real_targets_is_marginalised_as_by_hand() -> None:
    outputs, targets = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.5], [0.0]])
    densities = [
        math.prod(norm(f, 0.3 * s).pdf(y) for f, y in ((0.0, 0.5), (1.0, 0.0))) for s in SCALES
    ]
    found = forecast(outputs, targets, Gaussian(0.3))
    assert found.log_evidence == pytest.approx(math.log(sum(densities) / len(SCALES)), rel=1e-10)
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
    found = forecast(outputs, targets, Categorical(temperature)).log_evidence
    assert best - math.log(len(SCALES)) <= found <= best


def test_overconfidence_is_forgiven_and_indifference_is_not() -> None:
    """The same outputs 8 times too large are told from the right ones by the prior at most."""
    generator = torch.Generator().manual_seed(1)
    outputs = 2 * torch.randn(2000, 3, generator=generator)
    targets = torch.multinomial(outputs.softmax(-1), 1, generator=generator)[:, 0]
    right, loud = (forecast(k * outputs, targets, Categorical()) for k in (1.0, 8.0))
    assert loud.log_evidence == pytest.approx(right.log_evidence, abs=1e-3)
    assert (right.scale, loud.scale) == (1.0, 8.0)


def test_blocks_follow_each_other_and_end_with_the_data() -> None:
    assert block_bounds([0.125, 0.25, 0.5], 120) == [(15, 30), (30, 60), (60, 120)]
    with pytest.raises(ValueError, match=r"fractions \[0.125, 0.25\] cut 7 data at \[0, 1, 7\]"):
        block_bounds([0.125, 0.25], 7)


@pytest.mark.parametrize("orders", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_score_is_that_of_trials_on_the_earlier_data_alone(
    orders: int, data: TensorData, tmp_path: Path
) -> None:
    """Brute force: train on a prefix through the ordinary path, predict the next block."""
    given = assignment_of(prequential_orders=orders)
    record = run(given, data, tmp_path / "whole")
    for score, all_cuts in fractions_of(given.plan, given.estimators).items():
        value, hits, n = 0.0, 0, 0
        for turn, cuts in enumerate(all_cuts):
            order = order_of(data).flip(0) if turn else order_of(data)
            for begin, end in block_bounds(cuts, len(order)):
                purpose = f"{score}:{begin}" + ":reversed" * turn
                found = forecast_by_hand(given, data, order, begin, end, tmp_path / purpose)
                value, n = value + found.log_evidence, n + end - begin
                hits += found.hits or 0
        estimate = record.final_estimate(score)
        accuracy = record.final_estimate(f"{score}_accuracy")
        assert estimate is not None
        assert accuracy is not None
        assert estimate.value == pytest.approx(value / len(all_cuts), rel=1e-6)
        assert estimate.per_datum == pytest.approx(value / n, rel=1e-6)
        assert len({(term.term, term.group) for term in estimate.terms}) == len(estimate.terms)
        assert accuracy.value == pytest.approx(hits / n)
        assert accuracy.per_datum is None


def forecast_by_hand(
    given: Assignment, data: TensorData, order: torch.Tensor, begin: int, end: int, folder: Path
) -> Forecast:
    """Return how well a lone trial on the data before a block foretells it."""
    early, late = order[:begin], order[begin:end]
    some = replace(data, x_train=data.x_train[early], y_train=data.y_train[early])
    update = {"estimators": (), "seed": given.derived_seed(folder.name)}
    trial = Trial.start(given.model_copy(update=update), some, folder)
    trial.advance(given.plan.epochs)
    assert trial.training is not None
    trial.training.model.eval()
    outputs = trial.training.model(data.x_train[late]).detach()
    return forecast(outputs, data.y_train[late], Categorical())


def test_two_orders_from_one_half_on_judge_by_every_datum_once(
    data: TensorData, tmp_path: Path
) -> None:
    given = assignment_of(
        estimators=("prequential",), prequential_fractions=[0.5], prequential_orders=2, epochs=1
    )
    record = run(given, data, tmp_path)
    estimate = record.final_estimate("prequential")
    assert estimate is not None
    groups = [term.group for term in estimate.terms if term.term == "log_predictive"]
    assert groups == ["60-120", "60-120 reversed"]
    order = order_of(data)
    assert torch.equal(
        torch.cat([order[60:], order.flip(0)[60:]]).sort().values, torch.arange(120)
    )
    assert estimate.note == "60 data predicted after 60 in each of two orders"


def test_a_report_before_training_has_the_score_of_whole_orders_alone(
    data: TensorData, tmp_path: Path
) -> None:
    given = assignment_of(estimators=("prequential",), epochs=2, prequential_orders=2)
    trial = Trial.start(given, data, tmp_path)
    said = [trial.advance(2).scores.get("prequential") for _ in range(4)]  # two blocks an order
    record = ended(trial)
    estimate = record.final_estimate("prequential")
    assert estimate is not None
    terms = {t.group: t.value for t in estimate.terms if t.term == "log_predictive"}
    one = (terms["30-60"] + terms["60-120"]) / 90
    assert said == [None, pytest.approx(one), pytest.approx(one), estimate.per_datum]


def test_what_is_predicted_has_not_been_seen(data: TensorData, tmp_path: Path) -> None:
    """Other labels in the last block leave every earlier term as it is."""
    late = order_of(data)[60:]  # the last block
    labels = data.y_train.clone()
    labels[late] = (labels[late] + 1) % 10
    changed = replace(data, y_train=labels)
    given = assignment_of(estimators=("prequential",))
    terms = [
        {(t.term, t.group): t.value for t in estimate.terms}
        for one in (data, changed)
        if (estimate := run(given, one, tmp_path / str(id(one))).final_estimate("prequential"))
    ]
    key = ("log_predictive", "30-60")
    assert terms[0][key] == terms[1][key]
    assert terms[0][("log_predictive", "60-120")] != terms[1][("log_predictive", "60-120")]


def test_the_training_itself_is_the_same_with_and_without(
    data: TensorData, tmp_path: Path
) -> None:
    plain, scored = (
        run(assignment_of(estimators=e), data, tmp_path / str(len(e))) for e in ((), SCORES)
    )
    assert [p.sotl for p in plain.curve] == [p.sotl for p in scored.curve]
    assert plain.test_nll_per_datum == scored.test_nll_per_datum


def test_architectures_are_judged_by_the_same_blocks_and_replicates_by_others() -> None:
    torch.testing.assert_close(
        *(torch.Generator().manual_seed(derive_seed("blocks", 0)).get_state() for _ in range(2))
    )
    assert derive_seed("blocks", 0) != derive_seed("blocks", 1)


@pytest.mark.parametrize("parked_after", [1, pytest.param(2, marks=pytest.mark.slow), 5, 7])
def test_a_trial_parked_at_any_slice_ends_bit_identical(
    parked_after: int, data: TensorData, tmp_path: Path
) -> None:
    names = [name for score in SCORES for name in (score, f"{score}_accuracy")]
    report = assert_parking_changes_nothing(
        names, assignment_of(), data, tmp_path, slices=parked_after
    )
    # Three blocks of two slices each, the first up to epoch 2, come before the training proper.
    assert report.epoch == (2 if parked_after == 7 else 0)


def test_a_training_that_diverges_is_no_estimate_and_says_where(
    data: TensorData, tmp_path: Path
) -> None:
    inputs = data.x_train.clone()
    inputs[order_of(data)[30]] = 1e30  # trained on for the last block alone
    given = assignment_of(estimators=("prequential",), epochs=2)
    trial = Trial.start(given, replace(data, x_train=inputs), tmp_path)
    for _ in range(2):
        trial.advance(2)
    assert trial.training is not None
    assert trial.training.part is None
    blocks = trial.training.blocks["prequential"]
    assert [b.log_evidence is None for b in blocks] == [False, True]


def test_too_few_data_are_refused_by_name(data: TensorData, tmp_path: Path) -> None:
    few = replace(data, x_train=data.x_train[:3], y_train=data.y_train[:3])
    trial = Trial.start(assignment_of(), few, tmp_path)
    trial.advance(1)
    assert trial.status is TrialStatus.FAILED
    assert "every block must hold at least one datum" in trial.cause


@pytest.mark.slow
def test_real_targets_are_predicted_too(tmp_path: Path) -> None:
    spec = DatasetSpec(name="diabetes", max_train=120)
    data = to_tensors(load(spec, seed=0), "cpu")
    given = assignment_of(
        estimators=("prequential",), epochs=20, likelihood="gaussian", learning_rate=0.01
    )
    record = run(given, data, tmp_path)
    estimate = record.final_estimate("prequential")
    assert estimate is not None
    assert record.final_estimate("prequential_accuracy") is None
    constant = norm(0, 1).logpdf(data.y_train.numpy()).mean()
    assert constant - 0.3 < (estimate.per_datum or -math.inf) < 0


def test_rows_of_a_file_are_selected_without_reading_them(tmp_path: Path) -> None:
    import numpy as np

    from nas_evidence.data.mapped import MappedRows

    stored = np.random.default_rng(0).random((9, 3)).astype(np.float32)
    np.save(tmp_path / "x.npy", stored)
    rows = NormalisedRows(MappedRows(tmp_path / "x.npy"), torch.zeros(3), torch.ones(3))
    index = torch.tensor([7, 2, 5])
    some = select(rows, index)  # type: ignore[arg-type]
    assert len(some) == 3
    torch.testing.assert_close(some[:2], torch.from_numpy(stored)[index[:2]])
    torch.testing.assert_close(some[torch.tensor([2, 0])], torch.from_numpy(stored)[index[[2, 0]]])


@pytest.mark.parametrize("fractions", [[], [0.5, 0.25], [0.5, 0.5], [0.0], [1.0]])
def test_fractions_must_increase_inside_the_data(fractions: list[float]) -> None:
    with pytest.raises(ValueError, match="prequential_fractions"):
        TrainingPlan.model_validate({"prequential_fractions": fractions})
