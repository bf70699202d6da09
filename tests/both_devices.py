"""The same trial on the CPU and on an invented GPU, and what differs.

In float64, so that other branches and other orders of sums on the GPU differ by rounding alone:
what says float32 in the code means float64 meanwhile.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from unittest import mock

import numpy as np
import torch
from fake_gpu import FakeGpu
from records import asked
from torch import Tensor

from nas_evidence.data import load
from nas_evidence.data.arrays import ArrayData
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.spec.record import EvidenceEstimate, TrialRecord, TrialStatus
from nas_evidence.spec.study import ArchitectureSpec, Assignment, DatasetSpec
from nas_evidence.workers.trial import Trial

#: Relative; what is compared is in float64.
TOLERANCE = 1e-9
#: Where a trial is parked.
Where = Literal["folds", "training", "settling"]
SIZES: dict[str, dict[str, object]] = {
    "mlp": {"depth": 1, "width": 6},
    "cnn": {"depth": 2, "width": 3},
    "resnet": {"depth": 8, "width": 4},
    "linear": {},
}


@contextlib.contextmanager
def in_double() -> Iterator[None]:
    """Compute in float64 what would be in float32."""
    before = torch.get_default_dtype()
    with (
        mock.patch.object(torch, "float32", torch.float64),
        mock.patch.object(Tensor, "float", Tensor.double),
    ):
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


@dataclass(frozen=True)
class Outcome:
    """What a trial found: numbers by name, and its weights."""

    record: TrialRecord
    numbers: dict[str, float]
    weights: dict[str, Tensor]


def assignment(
    family: str, *estimators: str, data: DatasetSpec | None = None, replicate: int = 0,
    values: dict[str, object] | None = None, **plan: object,
) -> Assignment:  # fmt: skip
    """Return a trial of two epochs, with an update after each."""
    sizes = SIZES.get(family, {}) if values is None else values
    online = {"every": 1}
    given = {"settle": 0, "epochs": 2, "batch_size": 32, "learning_rate": 0.02, "folds": 2}
    return asked(
        ArchitectureSpec(family=family, values=sizes), estimators, trial_id=3,
        replicate=replicate, seed=11 + replicate, dataset=data or DatasetSpec(name="digits"),
        **(given | {"online": online} | plan),
    )  # fmt: skip


def small(name: str, n: int = 90) -> ArrayData:
    """Return a few rows of a bundled data set."""
    return load(DatasetSpec(name=name, max_train=n, max_test=20), seed=0)


def _reached(trial: Trial, where: Where) -> bool:
    """Tell whether a trial is in the middle of what `where` names."""
    network = trial.network
    assert network is not None
    if where == "folds":
        return network.epoch == 0
    if where == "training":
        return 0 < network.epoch < trial.assignment.plan.epochs
    return network.settling is not None and len(network.settling.history.steps) > 0


def _run(given: Assignment, data: TensorData, folder: Path, parked: Where | None) -> Trial:
    """Run a trial; where it is parked, the next attempt continues from its checkpoint."""
    trial, attempt = Trial.start(given, data, folder / "1"), 1
    while trial.status is TrialStatus.RUNNING:
        assert trial.network is not None
        trial.advance(trial.network.epoch + 1)
        if trial.status is TrialStatus.RUNNING and parked and _reached(trial, parked):
            parked, attempt = None, 2
            again = given.model_copy(update={"attempt": attempt})
            trial = Trial.start(again, data, folder / "2", resume_from=folder / "1")
    assert parked is None, f"it was never in the {parked}"
    return trial


def outcome(
    given: Assignment, arrays: ArrayData, device: str, folder: Path, *, parked: Where | None = None
) -> Outcome:
    """Return what a trial finds on a device.

    Args:
        given: the trial.
        arrays: its data.
        device: "cpu" or, in a `FakeGpu`, "cuda".
        folder: of its files.
        parked: where it is parked once, to be resumed from its checkpoint.
    """
    double = replace(
        arrays, mean=arrays.mean.astype(np.float64), std=arrays.std.astype(np.float64)
    )
    with in_double():
        trial = _run(given, to_tensors(double, device), folder, parked)
        record = trial.finish()
        assert record.status is TrialStatus.COMPLETE, record.error or record.cause
        network = trial.network
        assert network is not None
        weights = {name: one.detach().cpu() for name, one in network.model.named_parameters()}
        weights["prior precision"] = network.hyper.precision.cpu()
    return Outcome(record, _numbers(record), weights)


def numbers_of(estimate: EvidenceEstimate) -> dict[str, float]:
    """Return the finite numbers of an estimate by name."""
    name = estimate.estimator + ("" if estimate.valid else ", invalid")
    found = {name: estimate.value, f"{name}, standard error": estimate.standard_error}
    for term in estimate.terms:
        if term.term != "clamped_eigenvalues":  # how many are negative by rounding
            found[f"{name}, {term.term} {term.group}"] = term.value
    return {k: v for k, v in found.items() if v is not None and math.isfinite(v)}


def _numbers(record: TrialRecord) -> dict[str, float]:
    """Return the numbers of a record by name: scores, their terms, metrics, noise."""
    names = ("test_nll_per_datum", "test_accuracy", "test_rmse", "noise_std")
    found = {name: value for name in names if (value := getattr(record, name)) is not None}
    for one in record.evaluations:
        for name, value in numbers_of(one.estimate).items():
            found[f"{name} at {one.epoch}"] = value
    return found


def both(
    given: Assignment, arrays: ArrayData, folder: Path, *, parked: Where | None = None
) -> tuple[Outcome, Outcome, FakeGpu]:
    """Return what a trial finds on the CPU and on the GPU, and the GPU with its counts."""
    cpu = outcome(given, arrays, "cpu", folder / "cpu", parked=parked)
    with FakeGpu() as gpu:
        found = outcome(given, arrays, "cuda", folder / "gpu", parked=parked)
    return cpu, found, gpu


def differences(one: Outcome, other: Outcome) -> dict[str, float]:
    """Return the relative difference of each number, and of the weights by their largest.

    Raises:
        AssertionError: if the two have other numbers.
    """
    assert one.numbers.keys() == other.numbers.keys()
    assert one.weights.keys() == other.weights.keys()
    scale = {name: max(abs(value), 1e-6) for name, value in one.numbers.items()}
    found = {k: abs(v - other.numbers[k]) / scale[k] for k, v in one.numbers.items()}
    for name, weight in one.weights.items():
        assert weight.dtype == torch.float64
        size = float(weight.abs().max().clamp(min=1e-6))
        found[name] = float((weight - other.weights[name]).abs().max()) / size
    return found
