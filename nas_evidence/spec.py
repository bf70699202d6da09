"""What is asked: the value types of a study, from the search space to one assignment.

Every default of the project lives in this file and nowhere else. The types are frozen and refuse
unknown keys; `codec.py` turns a study file into them with one message for each mistake. The string
below a field says what it means: `study_reference.py` makes the reference page of them.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from nas_evidence.domains import (
    Choice,
    Count,
    Domain,
    Epochs,
    Frozen,
    IntRange,
    ParameterValue,
    Positive,
    Seconds,
    Unit,
    masked,
)
from nas_evidence.fixed_keys import without_fixed
from nas_evidence.registry import (
    ALIASES,
    DIAGONAL_CURVATURES,
    ONLINE_CURVATURES,
    PREFERRED,
    curvatures_of,
    declared,
)

#: What an architecture costs; what a limit may ask for.
ALL_COSTS = ("n_parameters", "flops", "memory_bytes", "latency_seconds")
#: What it costs in use, known before it is trained; what a study may minimise.
COSTS = tuple(name for name in ALL_COSTS if name != "memory_bytes")

#: Rows of a batch of `estimate_evidence`; the result does not depend on it.
EVIDENCE_BATCH = 512
#: Draws of the Monte-Carlo kinds, whose mean is the estimate.
MC_DRAWS = 4

FAMILY_NAMES = ("mlp", "cnn", "resnet", "linear")
#: Test examples split off the bundled sets where a study names no `test_size`.
DIGITS_TEST_SIZE = 500
DIABETES_TEST_SIZE = 142
DATASET_NAMES = ("digits", "diabetes", "mnist", "fashion_mnist", "cifar10", "cifar100", "npz")


#: What each family may be asked to vary, and the widest domain it accepts.
FAMILY_PARAMETERS: Mapping[str, Mapping[str, Domain]] = {
    "mlp": {
        "depth": IntRange(low=1, high=5),
        "width": IntRange(low=4, high=1024),
        "shape": Choice(options=("constant", "taper")),
    },
    "cnn": {"depth": IntRange(low=1, high=5), "width": IntRange(low=1, high=256)},
    "resnet": {"depth": IntRange(low=8, high=110, step=6), "width": IntRange(low=4, high=64)},
    "linear": {},
}
#: Values of parameters that a study does not mention.
FAMILY_DEFAULTS: Mapping[str, Mapping[str, ParameterValue]] = {
    "mlp": {"depth": 2, "width": 64, "shape": "constant"},
    "cnn": {"depth": 2, "width": 8},
    "resnet": {"depth": 8, "width": 16},
    "linear": {},
}


def _current(name: object) -> object:
    """Return the present name of a score that is known by an earlier one."""
    return ALIASES.get(name, name) if isinstance(name, str) else name


def _known_score(name: str) -> str:
    if declared(name).taken == "python":
        raise ValueError(f"must be a score that studies have, but got {name!r}")
    return name


#: A score by name, or by reference where it is from outside the package.
ScoreName = Annotated[str, BeforeValidator(_current), AfterValidator(_known_score)]


class ArchitectureSpec(Frozen):
    """One point of the search space: a family and the values of its parameters."""

    family: str
    values: Mapping[str, ParameterValue] = {}

    @property
    def key(self) -> str:
        """Return a stable 12-digit hash of family and values, equal in every process."""
        text = json.dumps([self.family, dict(sorted(self.values.items()))], separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

    def __str__(self) -> str:
        inside = ", ".join(f"{name}={value}" for name, value in self.values.items())
        return f"{self.family}({inside})"


class OnlinePlan(Frozen):
    """Online Laplace updates of the prior precisions (Immer et al. 2021, Algorithm 1)."""

    every: Epochs = 5
    """Epochs from one update and stored evaluation to the next (F); the last epoch has one too."""
    burn_in: Annotated[int, Field(ge=0), Unit("epochs")] = 0
    """Epochs at the start without updates and stored evaluations (B)."""
    curvature: Literal[*ONLINE_CURVATURES] = "kfac_ggn_mc"  # type: ignore[valid-type]
    """Curvature of the Laplace evidence that the updates maximise."""
    hyper_step: Literal["newton", "adam", "mackay"] = "newton"
    """How an update maximises: Newton to the maximum, Adam steps, or MacKay's fixed point."""
    hyper_steps: Annotated[Count, Unit("steps")] = 100
    """Adam steps of one update (K); read with `hyper_step = "adam"`."""
    hyper_learning_rate: Positive = 1.0
    """Learning rate of these steps (gamma), on log precisions; read with `hyper_step = "adam"`."""
    prior_groups: Literal["tensor", "module", "kind", "width", "scalar", "parameter"] = "tensor"
    """Parameters that share one prior precision: those of a tensor, of a module, of a kind of
    layer, all of them times the fan-in ("width"), all ("scalar"), or each its own."""
    learn_noise: bool = True
    """Whether updates also learn the noise; read with `likelihood = "gaussian"`."""
    learn_temperature: bool = False
    """Whether updates also learn the softmax temperature, at the cost of about ten passes each;
    read with `likelihood = "categorical"`."""
    patience: Annotated[Count, Unit("updates")] | None = None
    """Training ends after this many updates in a row without a better evidence, averaged over
    updates; without it, training runs all its epochs."""

    @model_validator(mode="after")
    def _parameter_groups(self) -> "OnlinePlan":
        if self.prior_groups == "parameter" and self.curvature not in DIAGONAL_CURVATURES:
            raise ValueError(
                '`curvature` must be a diagonal kind with prior_groups = "parameter", '
                f'but got "{self.curvature}"'
            )
        return self


def _settle(data: Mapping[str, Any]) -> float:
    return 1.0 if data.get("likelihood") == "gaussian" else 0.0


class TrainingPlan(Frozen):
    """How one architecture is trained; the prior is the only regulariser."""

    likelihood: Literal["categorical", "gaussian"] = "categorical"
    """What the targets are: "categorical" for class labels, "gaussian" for real numbers."""
    noise_std: Annotated[Positive, Unit("standard deviations of the targets")] = 1.0
    """Noise of the targets before the first update; read with `likelihood = "gaussian"`."""
    temperature: Positive = 1.0
    """Divides the logits, before the first update if it is learned; read with
    `likelihood = "categorical"`."""
    likelihood_power: Positive = 1.0
    """Weight of the log likelihood (kappa), in training and in the evidence."""
    mc_draws: Annotated[Count, Unit("draws")] = MC_DRAWS
    """Draws of the curvatures named `_mc` at the last evaluation; the estimate is their mean."""
    epochs: Epochs = 40
    """Passes over the training data; the longest a trial trains."""
    batch_size: Annotated[Count, Unit("examples")] = 128
    """Examples of one step."""
    optimiser: Literal["sgd", "adam"] = "sgd"
    """Optimiser of the weights."""
    learning_rate: Positive = 0.01
    """Learning rate at the start of training."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Momentum of SGD; read with `optimiser = "sgd"`."""
    gradient_clip: Annotated[float, Field(ge=0)] = 2.0
    """Largest norm of the gradient of one step; 0 for no limit."""
    schedule: Literal["constant", "cosine", "steps"] = "cosine"
    """How the learning rate falls: not at all, along a half cosine to 0, or at `milestones`."""
    milestones: tuple[Epochs, ...] = ()
    """Epochs after which the learning rate falls, in order; read with `schedule = "steps"`."""
    decay: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Multiplies the learning rate at each milestone."""
    settle: Annotated[float, Field(ge=0), Unit("scheduled trainings")] = Field(
        default_factory=_settle
    )
    """Most that settling may cost: after the last epoch the network goes to a mode, and its
    hyperparameters to the most evidence there; 0 for none. Without it 1 with
    `likelihood = "gaussian"`, else 0. Linear networks always settle."""
    prior_precision: Positive = 1.0
    """Precision of the Gaussian prior of the weights, before the first update."""
    folds: Annotated[Literal[1, 2], Unit("folds")] = 2
    """Folds of the score `two_fold` that are predicted: both halves, or at half the cost one."""
    online: OnlinePlan = OnlinePlan()

    @model_validator(mode="after")
    def _milestones(self) -> "TrainingPlan":
        if self.schedule == "steps" and not self.milestones:
            raise ValueError('`milestones` must name at least one epoch with schedule = "steps"')
        if list(self.milestones) != sorted(set(self.milestones)):
            raise ValueError(f"`milestones` must increase, but got {list(self.milestones)}")
        return self

    def evaluation_epochs(self) -> tuple[int, ...]:
        """Return the 1-based epochs at which evidence is stored: every F after B, and the last."""
        regular = range(self.online.every, self.epochs + 1, self.online.every)
        return tuple(sorted({e for e in regular if e > self.online.burn_in} | {self.epochs}))


class DatasetSpec(Frozen):
    """Which data, and how much of it; the test part is read by the report only."""

    name: Literal[*DATASET_NAMES]  # type: ignore[valid-type]
    """Name of a data set, or "npz" for arrays of your own."""
    test_size: Annotated[Count, Unit("examples")] | None = None
    """Examples split off as the test part of `digits` (else 500) or `diabetes` (else 142)."""
    max_train: Annotated[Count, Unit("examples")] | None = None
    """Most training examples: a seeded subset, stratified by class; without it, all."""
    max_test: Annotated[Count, Unit("examples")] | None = None
    """Most test examples, chosen in the same way; without it, all."""
    path: str | None = None
    """An .npz file or a folder of .npy files; read with `name = "npz"`."""

    @model_validator(mode="after")
    def _path(self) -> "DatasetSpec":
        if self.name == "npz" and self.path is None:
            raise ValueError('`path` must name the .npz file when name = "npz"')
        if self.name != "npz" and self.path is not None:
            raise ValueError(f'`path` is read for name = "npz" only, but name = "{self.name}"')
        if self.name not in ("digits", "diabetes") and self.test_size is not None:
            raise ValueError(
                f'`test_size` is for data without a test split, but "{self.name}" has one; '
                "use max_test"
            )
        return self


class SamplerSpec(Frozen):
    """Who proposes architectures."""

    name: Literal["tpe", "random", "qmc", "grid"] = "tpe"
    """Tree-structured Parzen estimator, uniform draws, a quasi-random sequence, or every point."""
    startup_per_family: Annotated[Count, Unit("architectures")] = 6
    """Quasi-random architectures of each family before the sampler starts."""


class PruningSpec(Frozen):
    """When a trial that does badly at a rung is stopped; no validation data is looked at."""

    rule: Literal["none", "halving", "median"] = "none"
    """Which trials go on at a rung: all, the best 1/`reduction`, or those not below the median."""
    score: ScoreName | None = None
    """What trials are compared by; without it, the objective."""
    first_epoch: Epochs = 5
    """Epoch of the first rung; the next are at this times `reduction`, `reduction` squared, ..."""
    reduction: Annotated[int, Field(ge=2)] = 3
    """Factor between the epochs of rungs (eta); "halving" keeps the best 1/eta."""
    startup_trials: Annotated[Count, Unit("trials")] = 4
    """Trials that must have reached a rung before any is pruned there."""

    def rungs(self, plan: TrainingPlan) -> tuple[int, ...]:
        """Return the epochs at which trials are compared: evaluations before the last epoch.

        The first evaluation from `first_epoch` on, from `first_epoch` times `reduction` on, ...
        """
        if self.rule == "none":
            return ()
        due, rungs = plan.evaluation_epochs(), []
        wanted = self.first_epoch
        while wanted < plan.epochs:
            rungs.append(min(epoch for epoch in due if epoch >= wanted))
            wanted *= self.reduction
        return tuple(sorted({rung for rung in rungs if rung < plan.epochs}))


class LimitSpec(Frozen):
    """What an architecture may cost; one above a limit is `infeasible` and is not trained."""

    n_parameters: Annotated[Count, Unit("parameters")] | None = None
    """Largest number of parameters."""
    flops: Annotated[Count, Unit("operations")] | None = None
    """Largest number of floating-point operations in a forward pass of one example."""
    memory_bytes: Annotated[Count, Unit("bytes")] | None = None
    """Largest memory in training, as estimated before it."""
    latency_seconds: Seconds | None = None
    """Longest forward pass of one example, as measured before training."""


class BudgetSpec(Frozen):
    """When a study ends before its last trial; may change between runs of one study."""

    wall_seconds: Seconds | None = None
    """Wall time, over all runs of the study."""
    device_seconds: Seconds | None = None
    """Time that all workers together have spent."""


class DatabaseSpec(Frozen):
    """What coordinates a study, beside SQLite in its folder; the password is never written."""

    url: str | None = None
    """As SQLAlchemy writes it: "postgresql://user@host/name". Without it, SQLite in the folder."""

    @field_validator("url")
    @classmethod
    def _url(cls, value: str | None) -> str | None:
        if value is not None and masked(value) != value:
            raise ValueError(
                "`url` must not hold a password, but it does; "
                "give it in the environment: NAS_EVIDENCE_DATABASE_PASSWORD"
            )
        return value


class ResourceSpec(Frozen):
    """What a study may use; may change between runs of one study."""

    workers: Annotated[Count, Unit("processes")] = 2
    """Trials that run at the same time."""
    cpus: Annotated[Count, Unit("CPUs")] = 1
    """CPUs, and torch threads, of one worker."""
    gpus: Literal["auto"] | float = "auto"
    """Share of one GPU, from 0 to 1, for each trial; "auto" chooses it by the memory needed."""
    slice_timeout_seconds: Seconds = 300.0
    """Silence after which a worker counts as hung; five times the longest slice so far, if that
    is longer."""

    @field_validator("gpus", mode="before")
    @classmethod
    def _share(cls, value: object) -> object:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value != "auto" and not (number and 0 <= value <= 1):  # type: ignore[operator]
            raise ValueError(f'`gpus` must be "auto" or a share from 0 to 1, but got {value!r}')
        return value


def _preferred(data: Mapping[str, Any]) -> str:
    asked = [name for name in PREFERRED if name in data.get("estimators", ())]
    return (*asked, PREFERRED[-1])[0]


class StudySpec(Frozen):
    """A whole study: one file, one folder of results."""

    name: Annotated[str, Field(min_length=1)]
    """Names the study, and its folder runs/<name> unless --out gives another."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seeds every random stream: the same study and seed give the same results."""
    n_trials: Annotated[Count, Unit("trials")] = 24
    """Trials to run, in any final status counted: architectures times replicates."""
    replicates: Annotated[Count, Unit("trials")] = 1
    """Trials of each architecture, each with its own seed."""
    minimise: tuple[Literal[*COSTS], ...] = ()  # type: ignore[valid-type]
    """Costs to trade off against the objective; the sampler then looks for the Pareto front."""
    estimators: tuple[ScoreName, ...] = ("diag_ef", "kfac_ggn", "two_fold")
    """Scores to compute for each trial; see [scores](estimators.md)."""
    #: Which score ranks; not given, the first of `PREFERRED` that `estimators` names.
    objective: ScoreName = Field(default_factory=_preferred)
    """The score that ranks; without it `two_fold` if `estimators` names it, else `kfac_ggn`."""
    scheduling: Literal["async", "batch"] = "async"
    """Whether a proposal is asked for whenever a worker is free, or `batch` of them together:
    the proposals are then the same for any number and speed of workers."""
    batch: Annotated[Count, Unit("proposals")] = 8
    """Proposals asked for together; read with `scheduling = "batch"`."""
    warm_start: str | None = None
    """Folder of an older study of the same data and objective, to learn from."""
    first: tuple[Mapping[str, ParameterValue], ...] = ()
    """Architectures to try before all others: `family` and its parameters."""
    dataset: DatasetSpec
    family: Mapping[str, Mapping[str, Domain]]
    """The tables [family.NAME]: families to search, and the domains of their parameters."""
    plan: TrainingPlan = TrainingPlan()
    sampler: SamplerSpec = SamplerSpec()
    pruning: PruningSpec = PruningSpec()
    limits: LimitSpec = LimitSpec()
    budget: BudgetSpec = BudgetSpec()
    resources: ResourceSpec = ResourceSpec()
    database: DatabaseSpec = DatabaseSpec()

    @property
    def pruning_score(self) -> str:
        """Return the score that trials are compared by at the rungs."""
        return str(self.pruning.score or self.objective)

    @property
    def rungs(self) -> tuple[int, ...]:
        """Return the epochs at which trials are compared; 0 if by a score known before the first.

        Rung 0 compares the score of the first fold; only survivors train the others.
        """
        if self.pruning.rule == "none":
            return ()
        early = (0,) if declared(self.pruning_score).taken == "before" else ()
        return early + self.pruning.rungs(self.plan)

    @model_validator(mode="after")
    def _objective(self) -> "StudySpec":
        if declared(self.objective).on_request and self.objective not in self.estimators:
            raise ValueError(
                f'`objective` must be one of the estimators, but got "{self.objective}" '
                f"with estimators = {list(self.estimators)}"
            )
        kinds, diagonal = curvatures_of(self.estimators), set(DIAGONAL_CURVATURES)
        if self.plan.online.prior_groups == "parameter" and not kinds <= diagonal:
            raise ValueError(
                f"`estimators` must be diagonal kinds ({', '.join(DIAGONAL_CURVATURES)}) with "
                f'prior_groups = "parameter", but got {sorted(kinds - diagonal)}'
            )
        if self.plan.likelihood == "gaussian" and (
            of_labels := [e for e in self.estimators if declared(e).labels_only]
        ):
            raise ValueError(
                f'`estimators` must be scores of real targets with likelihood = "gaussian", but '
                f"got {of_labels}"
            )
        if self.pruning.rule != "none" and declared(self.pruning_score).taken == "end":
            raise ValueError(
                "`score` in [pruning] must be known before the end of training, but "
                f'"{self.pruning_score}" is not; name another'
            )
        if declared(self.pruning_score).on_request and self.pruning_score not in self.estimators:
            raise ValueError(
                f"`score` in [pruning] must be one of the estimators, but got "
                f'"{self.pruning_score}" with estimators = {list(self.estimators)}'
            )
        if self.sampler.name == "grid":
            for family, domains in self.family.items():
                for key, domain in domains.items():
                    if math.isinf(domain.size):
                        raise ValueError(
                            f"`{key}` in [family.{family}] has no finite grid; "
                            'give options, or another sampler than "grid"'
                        )
        return self


class Assignment(Frozen):
    """One trial to run, complete in itself: any machine with the data can run it."""

    trial_id: Annotated[int, Field(ge=0)]
    attempt: Annotated[int, Field(ge=1)]
    replicate: Annotated[int, Field(ge=0)]
    architecture: ArchitectureSpec
    dataset: DatasetSpec
    plan: TrainingPlan
    estimators: tuple[Annotated[str, BeforeValidator(_current)], ...]
    limits: LimitSpec = LimitSpec()
    seed: int

    @model_validator(mode="before")
    @classmethod
    def _of_an_older_version(cls, data: object) -> object:
        if not isinstance(data, Mapping):
            return data
        kept, mistakes = without_fixed(data)
        if mistakes:
            raise ValueError("; ".join(mistakes.values()))
        return kept

    def derived_seed(self, purpose: str, counter: int = 0) -> int:
        """Return the seed of one random stream; the attempt is not part of it."""
        return derive_seed(self.seed, purpose, counter)


def derive_seed(*parts: int | str) -> int:
    """Return a 63-bit seed, a pure function of `parts`, equal in every process.

    >>> derive_seed(0, "order", 1) == derive_seed(0, "order", 1) != derive_seed(0, "order", 2)
    True
    """
    text = json.dumps(parts, separators=(",", ":"))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
