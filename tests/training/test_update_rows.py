"""Updates of the hyperparameters from a sample of many rows."""

import pytest
import torch
from records import asked

from nas_evidence.data.tensors import TensorData
from nas_evidence.models import build
from nas_evidence.spec.study import ArchitectureSpec, Assignment
from nas_evidence.training.loop import Member, Training, begin, train_epochs
from nas_evidence.training.online import (
    passes_of,
    sample_of,
    update_and_follow,
    update_hyperparameters,
)

MLP = ArchitectureSpec(family="mlp", values={"width": 8, "depth": 1})


def given(rows: int, seed: int = 3, **plan: object) -> Assignment:
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


def trained(data: TensorData, assignment: Assignment, n_epochs: int = 5) -> Training:
    model = build(MLP, (5,), 3, torch.Generator().manual_seed(1))
    state = begin(model, assignment.plan)
    train_epochs([Member(state, data, assignment)], n_epochs=n_epochs)
    return state


def test_few_rows_are_their_own_sample() -> None:
    data, assignment = problem(40), given(40)
    assert sample_of(data, assignment) == (data, assignment)


def test_a_sample_counts_as_much_as_all_data() -> None:
    sample, of_it = sample_of(problem(60), given(15, likelihood_power=0.5))
    assert len(sample.x_train) == len(sample.y_train) == 15
    assert of_it.plan.likelihood_power * 15 == 0.5 * 60


@pytest.mark.parametrize("task", ["labels", "real"])
def test_where_all_rows_are_alike_a_sample_learns_what_all_of_them_teach(task: str) -> None:
    plan = {} if task == "labels" else {"likelihood": "gaussian", "settle": 0}
    data = problem(60, task, alike=True)
    found = []
    for rows in (60, 12):
        assignment = given(rows, **plan)
        state = trained(data, given(60, **plan))
        update_and_follow(state, data, assignment)
        found.append((state.prior_precision, state.noise_std, state.best_evidence))
    (one, noise, evidence), (other, other_noise, other_evidence) = found
    torch.testing.assert_close(one, other, rtol=1e-4, atol=0)
    assert other_noise == pytest.approx(noise, rel=1e-4)
    assert other_evidence == pytest.approx(evidence, rel=1e-4)


def test_the_sample_is_the_same_at_every_update_of_every_network() -> None:
    data = problem(60)
    first, _ = sample_of(data, given(15))
    again, _ = sample_of(data, given(15, seed=4))
    assert torch.equal(again.x_train, first.x_train)
    assert torch.equal(again.y_train, first.y_train)
    assert len(first.x_train.unique(dim=0)) == 15  # no row twice


def test_what_an_update_returns_sees_all_data() -> None:
    data, assignment = problem(60), given(15)
    passes = update_and_follow(trained(data, assignment), data, assignment)
    assert passes.of("diag_ggn")[0].n_data == 60
    assert passes.assignment.plan.likelihood_power == 1


@pytest.mark.slow
def test_the_update_of_a_sample_is_the_maximum_of_its_evidence() -> None:
    data, assignment = problem(60), given(30, epochs=100, learning_rate=0.1, schedule="constant")
    state = trained(data, assignment, 100)  # has learned enough for precisions to rise
    sample = passes_of(state, *sample_of(data, assignment))
    update_hyperparameters(sample)
    pass_, best = sample.of("diag_ggn")[0], state.prior_precision.clone()
    value = sample.estimate("diag_ggn", pass_).value
    for tensor in range(len(best)):
        for factor in (0.9, 1.1):
            state.prior_precision = best.clone()
            state.prior_precision[tensor] *= factor
            assert sample.estimate("diag_ggn", pass_).value <= value + 1e-9
