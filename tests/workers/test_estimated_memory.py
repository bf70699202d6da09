"""The memory of a trial on a GPU, estimated without one: the rows of the data that it holds."""

from dataclasses import replace

import numpy as np
import pytest
from lone_trials import mlp_assignment

from nas_evidence.data import ArrayData, load
from nas_evidence.data.tensors import to_tensors
from nas_evidence.scores.folds import Folds
from nas_evidence.scores.protocol import Context
from nas_evidence.spec.divisions import parts_trained_on
from nas_evidence.spec.study import UPDATE_ROWS, ArchitectureSpec, Assignment, DatasetSpec
from nas_evidence.training.cost import cost_of
from nas_evidence.training.parts import new_network, part_of
from nas_evidence.workers.worker import estimated_bytes

SCORES = [("two_fold",), ("five_fold",), ("heldout_10",), ("two_fold", "five_fold", "heldout_10")]


@pytest.fixture(scope="module")
def arrays() -> ArrayData:
    return load(DatasetSpec(name="digits", max_train=200, max_test=50), seed=0)


def of_data(given: Assignment, arrays: ArrayData) -> int:
    """The estimated bytes beside those of the network."""
    cost = cost_of(
        given.architecture, arrays.input_shape, 10, given.plan, given.estimators,
        len(arrays.x_train), device="cuda",
    )  # fmt: skip
    return estimated_bytes(given, arrays) - cost.memory_bytes


@pytest.mark.parametrize("scores", SCORES, ids="+".join)
def test_the_rows_that_a_group_of_folds_holds_are_in_the_estimate(
    scores: tuple[str, ...], arrays: ArrayData
) -> None:
    given, data = mlp_assignment(*scores, epochs=1), to_tensors(arrays, "cpu")
    whole = new_network(*part_of(None, data, given, "whole"))
    folds = Folds(scores, Context(whole, given))
    held = [len(folds._new_run(task).data.x_train) for task in folds._left()]
    sizes = [200 * part for part in parts_trained_on(given.plan, scores, 200)]
    assert sorted(held, reverse=True) == pytest.approx(sizes)
    predicted = max(len(task.predicted) for task in folds._left())
    rows = 200 + 50 + sum(sorted(held)[-8:]) + predicted
    assert of_data(given, arrays) / (4 * 64) == pytest.approx(rows, abs=1 + 0.2 * predicted)


def test_cifar_with_its_two_halves_is_as_large_as_its_copies(arrays: ArrayData) -> None:
    cnn = ArchitectureSpec(family="cnn", values={"depth": 2, "width": 16})
    given = mlp_assignment("conditional_evidence", "diag_ef")
    shape, given = (3, 32, 32), given.model_copy(update={"architecture": cnn})
    blank = np.zeros((), dtype=np.uint8)  # of stride 0
    cifar = replace(
        arrays,
        x_train=np.broadcast_to(blank, (50_000, *shape)),
        x_test=np.broadcast_to(blank, (10_000, *shape)),
        y_train=np.zeros(50_000, dtype=np.int64),
        input_shape=shape,
    )
    halves, predicted, samples = 50_000, 25_000, 3 * UPDATE_ROWS
    rows = 60_000 + halves + predicted + samples
    assert of_data(given, cifar) == 4 * 3072 * rows
