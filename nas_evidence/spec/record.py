"""The results of a trial: estimates, curves and the record.

Every `value` is larger-is-better; evidence is in nats, summed over the data.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Literal

from nas_evidence.spec.columns import StandsBefore
from nas_evidence.spec.domains import Frozen, ParameterValue, Unit
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


#: Which networks of a trial: those without a fold, or one trained on all rows.
Of = Literal["folds", "whole"]
#: Ids of the race of the finalists start here; those of the search stay below.
RACE_IDS = 1_000_000
#: The network of all rows of trial t is a trial of its own, WHOLE_IDS + t, where trials train
#: their folds alone.
WHOLE_IDS = 2_000_000
#: When a trial runs: in the search, in the race of the finalists, or after it.
Stage = Literal["search", "race", "whole"]


def stage_of(trial_id: int) -> Stage:
    """Return when a trial runs.

    >>> [stage_of(i) for i in (7, 1_000_007, 2_000_007, 3_000_007)]
    ['search', 'race', 'whole', 'whole']
    """
    if trial_id < RACE_IDS:
        return "search"
    return "race" if trial_id < WHOLE_IDS else "whole"


def trial_of(trial_id: int) -> int:
    """Return the trial whose network of all rows this one trains; itself, if it ranks.

    >>> [trial_of(i) for i in (7, 1_000_007, 2_000_007, 3_000_007)]
    [7, 1000007, 7, 1000007]
    """
    return trial_id % WHOLE_IDS


def is_race(trial_id: int) -> bool:
    """Tell whether a trial belongs to the race of the finalists."""
    return stage_of(trial_id) == "race"


def is_searched(trial_id: int) -> bool:
    """Tell whether a trial belongs to the search, which `n_trials` counts."""
    return stage_of(trial_id) == "search"


def ranks(trial_id: int) -> bool:
    """Tell whether a trial ranks its architecture, and not only trains it on all rows."""
    return stage_of(trial_id) != "whole"


def n_searched(trial_ids: Iterable[int]) -> int:
    """Return how many of these trials belong to the search."""
    return sum(map(is_searched, trial_ids))


class Evaluation(Frozen):
    """An estimate and the number of epochs finished when it was made."""

    epoch: Annotated[int, Unit("epochs")]
    """Epochs finished when the row was made; 0 is before the main training."""
    estimate: EvidenceEstimate
    of: Of = "whole"
    """Which networks the score is of: `folds`, of some rows each, or `whole`, of all. Never
    compare the two. Null in files of earlier versions."""


class CurvePoint(Frozen):
    """One training epoch. Losses are taken before the step on their minibatch.

    The sums up to this epoch are filled in when the trial has ended (scores/sotl.py).
    """

    epoch: Annotated[int, Unit("epochs")]
    """Epochs finished, from 1."""
    train_nll_per_datum: Annotated[float, Unit("nats")]
    """Mean training loss of the epoch, before each step."""
    learning_rate: float
    """Learning rate of the epoch."""
    sotl: Annotated[float | None, Unit("nats")] = None
    """Sum of `train_nll_per_datum` up to this epoch; positive here."""
    sotl_e: Annotated[float | None, Unit("nats")] = None
    """The same over the last epochs only."""
    sotl_ema: Annotated[float | None, Unit("nats")] = None
    """The same with weights that fall with age."""
    prequential_epoch1: Annotated[float | None, Unit("nats")] = None
    """Losses of the first epoch, summed over the data."""
    seconds: Annotated[float, Unit("seconds")]
    """Time of the epoch."""
    noise_std: float | None = None
    """Learned noise after the epoch, the geometric mean of several targets. Not where the noise is
    an output."""
    temperature: float | None = None
    """Softmax temperature after the epoch. Labels only."""


class TrialRecord(Frozen):
    """The result of one finished attempt at one trial.

    Each field of one number, text or truth is a column of `trials` (spec/columns.py);
    `ArchitectureColumns` has those of the architecture.
    """

    trial_id: int
    """Number of the trial, from 0; of the race from 1,000,000; of the network of all rows of trial
    t 2,000,000 + t."""
    attempt: int
    """Which start of the trial, from 1. Readers use the last."""
    replicate: int
    """Which seed of its architecture, from 0; those of the race from 1000."""
    architecture: ArchitectureSpec
    status: TrialStatus
    """How the trial ended: see [messages](messages.md#how-a-trial-ends)."""
    cause: str = ""
    """Why it ended so, in words; empty for most complete trials."""
    seed: int
    """Seed of the trial, from (study seed, trial, replicate)."""
    stage: Stage = "search"
    """`search`; `race` for the race of the finalists; `whole` for networks of all rows where
    trials train their folds alone."""
    n_parameters: Annotated[int | None, Unit("parameters")] = None
    """Number of parameters of the network."""
    of: Of = "whole"
    """Whose epochs, curve and test figures these are: of the network of all rows (`whole`), or
    means over those of the `folds`."""
    n_data: Annotated[int | None, Unit("examples")] = None
    """Number of rows trained on; of several networks the mean, rounded."""
    flops: Annotated[int | None, Unit("operations")] = None
    """Floating-point operations of a forward pass of one example."""
    memory_bytes: Annotated[int | None, Unit("bytes")] = None
    """Estimated memory of training."""
    latency_seconds: Annotated[float | None, Unit("seconds")] = None
    """Measured forward pass of one example."""
    gpu_share: float | None = None
    """Share of one GPU; 0 on a CPU."""
    epochs: Annotated[int, Unit("epochs")] = 0
    """Epochs of the main training that were done."""
    best_epoch: Annotated[int | None, Unit("epochs")] = None
    """Evaluation epoch of the highest evidence of the online curvature."""
    best_evidence: Annotated[float | None, Unit("nats")] = None
    """That evidence, summed over the training data; above `plan.online.rows` estimated."""
    noise_std: float | None = None
    """Learned noise at the end; of standardised targets, the geometric mean of several. That of
    each is in the header of the stored weights and in the export. Not where the noise is an
    output."""
    temperature: float | None = None
    """Softmax temperature at the end. Labels only."""
    spread_factor: float | None = None
    """Factor on the temperature, or on the standard deviation of predictions of real targets,
    that is delivered: fitted to data that networks without their fold predict."""
    evaluations: tuple[Evaluation, ...] = ()
    curve: tuple[CurvePoint, ...] = ()
    test_accuracy: Annotated[float | None, Unit("fraction")] = None
    """Correct predictions of test rows. No score has seen them."""
    test_nll_per_datum: Annotated[float | None, Unit("nats")] = None
    """Log loss on test rows; of standardised targets, if real."""
    test_rmse: Annotated[float | None, Unit("of the target")] = None
    """Root mean squared error on test rows; of several targets their mean."""
    converged: bool | None = None
    """Whether settling ended at a mode with learned hyperparameters."""
    kept: Literal["settled", "scheduled"] | None = None
    """`settled` or `scheduled`: the state that was kept."""
    decrement_per_datum: Annotated[float | None, Unit("nats")] = None
    """Newton decrement of the kept state: distance to a mode."""
    train_seconds: Annotated[float, Unit("seconds")] = 0.0
    """Main training."""
    settle_seconds: Annotated[float, Unit("seconds")] = 0.0
    """Settling after the last epoch."""
    evidence_seconds: Annotated[float, Unit("seconds")] = 0.0
    """All scores."""
    total_seconds: Annotated[float, Unit("seconds")] = 0.0
    """Whole trial, on its worker."""
    content_hash: str | None = None
    """Hash of all that decides the result: study, data, assignment."""
    versions: str = ""
    """Versions of the packages that computed the trial, as JSON."""
    error: str = ""
    """Traceback, if there is one."""
    own: Mapping[str, ParameterValue] = {}  # columns that callbacks add

    def final_estimate(self, estimator: str) -> EvidenceEstimate | None:
        """Return the last estimate of that name, or None."""
        for evaluation in reversed(self.evaluations):
            if evaluation.estimate.estimator == estimator:
                return evaluation.estimate
        return None


class ArchitectureColumns(Frozen):
    """The columns of a trial's architecture, each before one of `TrialRecord`."""

    architecture_key: Annotated[str, StandsBefore("status")]
    """Hash of family and values: equal for equal architectures."""
    family: Annotated[str, StandsBefore("seed")]
    """Family of networks."""
    arch_depth: Annotated[int | None, StandsBefore("seed")]
    """Value of `depth`. Each parameter of the space has a column `arch_NAME`, null for families
    without it; in a space of your own this may be another type."""
    arch_width: Annotated[int | None, StandsBefore("seed")]
    """Value of `width`."""
    arch_shape: Annotated[str | None, StandsBefore("seed")]
    """Value of `shape`."""


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
    saved: bool = True  # a checkpoint holds the state after the slice
    curve: tuple[CurvePoint, ...] = ()  # without the sums
    evaluations: tuple[Evaluation, ...] = ()
