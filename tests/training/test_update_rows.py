"""Updates of the hyperparameters from a sample of many rows."""

from dataclasses import replace

import pytest
import torch
from records import asked

from nas_evidence.data.proposed import with_numbers
from nas_evidence.data.tensors import TensorData
from nas_evidence.models import build
from nas_evidence.spec.study import ArchitectureSpec, Assignment, OnlinePlan, TrainingPlan
from nas_evidence.training.loop import train_epochs
from nas_evidence.training.network import Network, begin
from nas_evidence.training.online import (
    passes_of_sample,
    sample_of,
    update_and_follow,
    update_hyperparameters,
)

MLP = ArchitectureSpec(family="mlp", values={"width": 8, "depth": 1})


def given(rows: int | str, seed: int = 3, **plan: object) -> Assignment:
    keys = {"epochs": 6, "online": {"every": 1, "rows": rows, "curvature": "diag_ggn"}, **plan}
    return asked(MLP, seed=seed, **keys)


def problem(n: int, task: str = "labels", *, alike: bool = False) -> TensorData:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(n, 5, generator=random)
    x = x[:1].expand(n, 5).contiguous() if alike else x
    outputs = 2 * x @ torch.randn(5, 3, generator=random)
    outputs = outputs + 0.5 * torch.randn(n, 3, generator=random)
    y = outputs.argmax(1) if task == "labels" else outputs / outputs.std()
    if alike:
        y = y[:1].expand(n, *y.shape[1:]).contiguous()
    zero = torch.zeros(3, dtype=torch.float64)
    return TensorData(
        x, y, x, y, task=task, n_outputs=3, input_shape=(5,), y_mean=zero, y_std=zero + 1
    )  # type: ignore[arg-type]


def trained(data: TensorData, assignment: Assignment, n_epochs: int = 5) -> Network:
    model = build(MLP, (5,), 3, torch.Generator().manual_seed(1))
    state = begin(model, data, assignment.plan, assignment.seed)
    train_epochs([state], n_epochs=n_epochs)
    return state


def test_few_rows_are_their_own_sample() -> None:
    data = problem(40)
    assert sample_of(data, 40) is data


def test_a_sample_counts_as_much_as_all_data() -> None:
    sample = passes_of_sample(trained(problem(60), given(15, likelihood_power=0.5), 1))
    assert len(sample.data.x_train) == len(sample.data.y_train) == 15
    assert sample.power * 15 == 0.5 * 60


@pytest.mark.parametrize(("n", "seen"), [(511, 511), (520, 256), (1500, 300)])
def test_an_update_reads_a_fifth_of_the_rows_but_no_fewer_than_256(n: int, seen: int) -> None:
    sample = passes_of_sample(trained(problem(n), given("auto"), 1))
    assert len(sample.data.x_train) == seen
    assert sample.power == n / seen


def test_a_study_with_a_number_of_rows_keeps_it_where_auto_is_asked() -> None:
    stored = TrainingPlan(online=OnlinePlan(rows=2048))
    assert with_numbers(TrainingPlan(), 1000, stored).online.rows == 2048
    assert with_numbers(TrainingPlan(), 1000).online.rows == "auto"


@pytest.mark.parametrize("task", ["labels", "real"])
def test_where_all_rows_are_alike_a_sample_learns_what_all_of_them_teach(task: str) -> None:
    plan = {} if task == "labels" else {"likelihood": "gaussian", "settle": 0}
    data = problem(60, task, alike=True)
    found = []
    for rows in (60, 12):
        assignment = given(rows, **plan)
        state = trained(data, given(60, **plan))
        state.plan = assignment.plan
        update_and_follow(state)
        found.append((state.prior_precision, state.noise_std, state.best_evidence))
    (one, noise, evidence), (other, other_noise, other_evidence) = found
    torch.testing.assert_close(one, other, rtol=1e-4, atol=0)
    assert other_noise == pytest.approx(noise, rel=1e-4)
    assert other_evidence == pytest.approx(evidence, rel=1e-4)


def test_the_sample_is_the_same_at_every_update_of_every_network() -> None:
    data = problem(60)
    first, again = (
        passes_of_sample(trained(data, given(15, seed=seed), 1)).data for seed in (3, 4)
    )
    assert torch.equal(again.x_train, first.x_train)
    assert torch.equal(again.y_train, first.y_train)
    assert len(first.x_train.unique(dim=0)) == 15  # no row twice


def test_what_an_update_returns_sees_all_data() -> None:
    data, assignment = problem(60), given(15)
    passes = update_and_follow(trained(data, assignment))
    assert passes.of("diag_ggn")[0].n_data == 60
    assert passes.power == 1


@pytest.mark.slow
def test_the_update_of_a_sample_is_the_maximum_of_its_evidence() -> None:
    data, assignment = problem(60), given(30, epochs=100, learning_rate=0.1, schedule="constant")
    state = trained(data, assignment, 100)  # has learned enough for precisions to rise
    sample = passes_of_sample(state)
    update_hyperparameters([sample])
    pass_, best = sample.of("diag_ggn")[0], state.prior_precision.clone()
    value = sample.estimate("diag_ggn", pass_).value
    for tensor in range(len(best)):
        for factor in (0.9, 1.1):
            moved = best.clone()
            moved[tensor] *= factor
            state.hyper = replace(state.hyper, precision=moved)
            assert sample.estimate("diag_ggn", pass_).value <= value + 1e-9
