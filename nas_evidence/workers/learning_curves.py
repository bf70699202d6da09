"""Trials without training: their results are synthetic or read from an older study.

A `SimulatedTrial` is a pure function of the epoch, so that resuming, parking or retrying a
simulated trial does not change how it ends.
"""

import bisect
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nas_evidence.record import TrialStatus
from nas_evidence.registry import CURVATURES
from nas_evidence.spec import Assignment, derive_seed
from nas_evidence.store import read_tables


@dataclass(frozen=True)
class SimulatedTrial:
    """The results of one architecture and seed, known in advance.

    seconds_per_epoch   on a worker of speed 1, evaluation included
    scores              epoch -> Laplace evidence by estimator, nats per datum
    train_nll           epoch -> mean loss of that epoch, nats per datum
    status, ends_at     how it ends and after which epoch; None for the last one
    costs               n_parameters, flops, latency_seconds, memory_bytes, where known
    slices_before       slices of trainings on parts of the data, before the first epoch, and the
    slice_seconds_before  time of one; an attempt that starts over repeats them
    share, needs_share  share of a GPU that is estimated, and that it really needs; 0 on a CPU
    """

    seconds_per_epoch: float
    scores: Callable[[int], Mapping[str, float]]
    train_nll: Callable[[int], float]
    n_data: int = 1000
    status: TrialStatus = TrialStatus.COMPLETE
    ends_at: int | None = None
    costs: Mapping[str, float] = field(default_factory=dict)
    slices_before: int = 0
    slice_seconds_before: float = 0.0
    share: float = 0.0
    needs_share: float = 0.0
    test_accuracy: float | None = None
    test_nll_per_datum: float | None = None


def synthetic(assignment: Assignment) -> SimulatedTrial:
    """Return a trial that depends on the architecture and, slightly, on the replicate.

        score(t) = best - 1.5 exp(-t / tau)      train nll(t) = 0.05 + 2.3 exp(-t / tau)

    `best` is largest at width 64 and depth 3, plus noise; tau, in epochs, is random, so that
    curves cross.
    """
    values = assignment.architecture.values
    width, depth = float(values.get("width", 16)), float(values.get("depth", 1))
    key = assignment.architecture.key
    chance = random.Random(derive_seed("synthetic", key))
    noise = random.Random(derive_seed("synthetic", key, assignment.replicate))
    tau = chance.uniform(2.0, 8.0)
    best = -0.3 - 0.05 * (math.log2(width) - 6) ** 2 - 0.05 * (depth - 3) ** 2
    best += 0.03 * chance.gauss(0, 1) + 0.01 * noise.gauss(0, 1)
    kinds = [name for name in assignment.estimators if name in CURVATURES]
    n_parameters = int(64 * width + width * width * (depth - 1) + 10 * width)
    return SimulatedTrial(
        seconds_per_epoch=1.0 + n_parameters / 20_000,
        scores=lambda epoch: {
            name: best - 0.02 * rank - 1.5 * math.exp(-epoch / tau)
            for rank, name in enumerate(kinds)
        },
        train_nll=lambda epoch: 0.05 + 2.3 * math.exp(-epoch / tau),
        costs={
            "n_parameters": n_parameters,
            "flops": 2 * n_parameters,
            "latency_seconds": 1e-5 * depth,
            "memory_bytes": 16 * n_parameters,
        },
        test_accuracy=1 / (1 + math.exp(-3 - 4 * best)),
        test_nll_per_datum=-best / 2,
    )


def recorded(folder: Path) -> Callable[[Assignment], SimulatedTrial]:
    """Return a function that looks up the trials of a finished study.

    Trials are found by architecture and replicate; replicates beyond those recorded start again
    from the first. After its last recorded epoch a trial keeps its last values; a pruned or
    cancelled trial counts as complete.

    Raises:
        ValueError: the function is called for an architecture that the study does not hold.
    """
    tables, _ = read_tables(folder, ["trials", "evidence", "curves"])
    laplace = tables["evidence"][tables["evidence"]["estimator"].isin(list(CURVATURES))]
    valid = laplace[laplace["valid"].fillna(False) & laplace["per_datum"].notna()]
    scores: dict[int, dict[int, dict[str, float]]] = {}
    for row in valid.itertuples():
        at = scores.setdefault(int(row.trial_id), {}).setdefault(int(row.epoch), {})
        at[row.estimator] = float(row.per_datum)
    losses: dict[int, dict[int, float]] = {}
    for row in tables["curves"].itertuples():
        losses.setdefault(int(row.trial_id), {})[int(row.epoch)] = float(row.train_nll_per_datum)
    found: dict[str, list[SimulatedTrial]] = {}
    for row in tables["trials"].sort_values(["replicate", "trial_id"]).itertuples():
        number = int(row.trial_id)
        trial = _as_recorded(row, scores.get(number, {}), losses.get(number, {}))
        found.setdefault(row.architecture_key, []).append(trial)

    def curves(assignment: Assignment) -> SimulatedTrial:
        trials = found.get(assignment.architecture.key)
        if trials is None:
            raise ValueError(
                f"{folder} must hold every architecture that is asked for, but not "
                f"{assignment.architecture}; record the whole search space first."
            )
        return trials[assignment.replicate % len(trials)]

    return curves


def _as_recorded(
    row: Any, scores: Mapping[int, Mapping[str, float]], losses: Mapping[int, float]
) -> SimulatedTrial:
    columns = ("n_parameters", "flops", "latency_seconds", "memory_bytes")
    status = TrialStatus(row.status)
    cut_short = status in (TrialStatus.PRUNED, TrialStatus.CANCELLED)
    complete = cut_short or status is TrialStatus.COMPLETE
    seconds = _known(row.train_seconds, 0.0) + _known(row.evidence_seconds, 0.0)
    return SimulatedTrial(
        seconds_per_epoch=seconds / max(1, int(row.epochs)),
        scores=_latest(scores, {}),
        train_nll=_latest(losses, math.nan),
        n_data=int(_known(row.n_data, 1)),
        status=TrialStatus.COMPLETE if complete else status,
        ends_at=None if complete else int(row.epochs),
        costs={
            name: value
            for name in columns
            if (value := _known(getattr(row, name), None)) is not None
        },
        test_accuracy=_known(row.test_accuracy, None),
        test_nll_per_datum=_known(row.test_nll_per_datum, None),
    )


def _known(cell: Any, otherwise: Any) -> Any:
    """Return a table cell, or `otherwise` where it is missing; `pandas.NA` is not a float."""
    try:
        return otherwise if math.isnan(cell) else cell
    except TypeError:
        return otherwise


def _latest(values: Mapping[int, Any], before: Any) -> Callable[[int], Any]:
    """Return the function epoch -> value at the last recorded epoch up to it."""
    epochs = sorted(values)

    def at(epoch: int) -> Any:
        index = bisect.bisect_right(epochs, epoch)
        return values[epochs[index - 1]] if index else before

    return at
