"""The results of a trial: estimates, curves and the record.

Every `value` is larger-is-better; evidence is in nats, summed over the data.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Literal

from nas_evidence.spec.domains import Frozen, ParameterValue
from nas_evidence.spec.estimates import EvidenceEstimate, Term
from nas_evidence.spec.study import ArchitectureSpec

__all__ = [
    "CurvePoint",
    "Evaluation",
    "EvidenceEstimate",
    "SliceReport",
    "Term",
    "TrialRecord",
    "TrialStatus",
]


class LossKind(StrEnum):
    """What took an attempt away, set where it is seen; it decides what happens next.

    CRASH    the worker ended, or its call raised: tried again, a few times
    HUNG     it gave no answer in time: the same
    MEMORY   it ran out of memory, of the machine or of its share of a GPU: the same
    MACHINE  its machine is gone or cannot be reached: tried again, more often
    DISK     a disk is full or failing: the study stops
    STORE    the worker cannot use the study's store: the study stops
    """

    CRASH = "crash"
    HUNG = "hung"
    MEMORY = "memory"
    MACHINE = "machine"
    DISK = "disk"
    STORE = "store"


class TrialStatus(StrEnum):
    """The states of a trial; `RUNNING` and `LOST` are not final."""

    COMPLETE = "complete"
    PRUNED = "pruned"
    DIVERGED = "diverged"
    OUT_OF_MEMORY = "out_of_memory"
    FAILED = "failed"
    INFEASIBLE = "infeasible"
    CANCELLED = "cancelled"
    RUNNING = "running"
    LOST = "lost"

    @property
    def is_final(self) -> bool:
        """Tell whether a trial with this status is over."""
        return self not in (TrialStatus.RUNNING, TrialStatus.LOST)


#: Ids of the race of the finalists start here; those of the search stay below.
RACE_IDS = 1_000_000


def is_race(trial_id: int) -> bool:
    """Tell whether a trial belongs to the race of the finalists."""
    return trial_id >= RACE_IDS


def n_searched(trial_ids: Iterable[int]) -> int:
    """Return how many of these trials belong to the search, which `n_trials` counts."""
    return sum(not is_race(trial_id) for trial_id in trial_ids)


class Evaluation(Frozen):
    """An estimate and the number of epochs finished when it was made."""

    epoch: int
    estimate: EvidenceEstimate


class CurvePoint(Frozen):
    """One training epoch. Losses are taken before the step on their minibatch."""

    epoch: int  # 1-based
    train_nll_per_datum: float  # mean over the data of one epoch, nats
    learning_rate: float
    seconds: float
    # The sums up to this epoch, filled in when the trial has ended (scores/sotl.py).
    sotl: float | None = None  # sum of train_nll_per_datum over epochs 1..epoch
    sotl_e: float | None = None  # the same over the last E epochs
    sotl_ema: float | None = None  # sum_t gamma^(epoch - t) train_nll_per_datum_t
    prequential_epoch1: float | None = None  # nats summed over the data, first epoch only
    noise_std: float | None = None  # real targets only
    temperature: float | None = None  # labels only


class TrialRecord(Frozen):
    """The result of one finished attempt at one trial."""

    trial_id: int
    attempt: int
    replicate: int
    architecture: ArchitectureSpec
    status: TrialStatus
    cause: str = ""
    seed: int
    stage: Literal["search", "race"] = "search"
    n_parameters: int | None = None
    n_data: int | None = None
    flops: int | None = None  # of one forward pass of one example
    memory_bytes: int | None = None  # estimated, in training
    latency_seconds: float | None = None  # of one example, measured
    gpu_share: float | None = None  # of one GPU; 0 on a CPU
    epochs: int = 0
    best_epoch: int | None = None  # evaluated, of the highest evidence of the online curvature
    best_evidence: float | None = None  # nats; the last one is in `evaluations`
    noise_std: float | None = None  # at the end; of standardised targets
    temperature: float | None = None  # at the end
    spread_factor: float | None = None  # on the spread of delivered predictions
    evaluations: tuple[Evaluation, ...] = ()
    curve: tuple[CurvePoint, ...] = ()
    test_accuracy: float | None = None  # fraction
    test_nll_per_datum: float | None = None  # nats; real targets are standardised
    test_rmse: float | None = None  # real targets only, in their own unit
    converged: bool | None = None  # settling met its tolerance
    kept: Literal["settled", "scheduled"] | None = None  # the state of more evidence
    decrement_per_datum: float | None = None  # Newton decrement of the kept state, nats
    train_seconds: float = 0.0
    settle_seconds: float = 0.0
    evidence_seconds: float = 0.0
    total_seconds: float = 0.0
    content_hash: str | None = None  # of what decides the result (storage/conditions.py)
    versions: str = ""  # JSON object: package -> version
    error: str = ""  # traceback, where there is one
    own: Mapping[str, ParameterValue] = {}  # columns that callbacks add

    def final_estimate(self, estimator: str) -> EvidenceEstimate | None:
        """Return the last estimate of that name, or None."""
        for evaluation in reversed(self.evaluations):
            if evaluation.estimate.estimator == estimator:
                return evaluation.estimate
        return None


class SliceReport(Frozen):
    """What a slice of training reports to the driver; `done` once `finish` may be called.

    `curve` and `evaluations` are new since the last report of the attempt. The first report of an
    attempt has those of the attempts that it continues.
    """

    trial_id: int
    attempt: int
    epoch: int
    epochs: int
    done: bool
    status: TrialStatus = TrialStatus.RUNNING
    scores: Mapping[str, float] = {}  # latest valid ones; per datum where that exists
    costs: Mapping[str, float] = {}  # of COSTS, those that are known
    sotl: float | None = None
    seconds: float = 0.0  # that the slice took
    curve: tuple[CurvePoint, ...] = ()  # without the sums
    evaluations: tuple[Evaluation, ...] = ()
