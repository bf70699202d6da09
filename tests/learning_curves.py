"""Trials without training: their results are synthetic.

A `SimulatedTrial` is a pure function of the epoch, so that resuming, parking or retrying a
simulated trial does not change how it ends.
"""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from nas_evidence.spec.record import TrialStatus
from nas_evidence.spec.registry import CURVATURES
from nas_evidence.spec.study import Assignment, derive_seed


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
