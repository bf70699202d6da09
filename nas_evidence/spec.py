"""What is asked: the value types of a study, from the search space to one assignment.

Every default of the project lives in this file and nowhere else. The types are frozen and refuse
unknown keys; `codec.py` turns a study file into them with one message for each mistake.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from nas_evidence.domains import Choice, Domain, Frozen, IntRange, ParameterValue, masked
from nas_evidence.scores import (
    DIAGONAL_KINDS,
    EARLY_SCORES,
    ON_REQUEST,
    ONLINE_KINDS,
    PREFERRED,
    SAMPLED_KINDS,
    SCORES,
    laplace_kinds_of,
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

    every: Annotated[int, Field(ge=1)] = 5  # F: epochs between updates
    burn_in: Annotated[int, Field(ge=0)] = 0  # B: no update in the first B epochs
    curvature: Literal[*ONLINE_KINDS] = "kfac_ggn_mc"  # type: ignore[valid-type]
    hyper_step: Literal["newton", "adam", "mackay"] = "newton"
    hyper_steps: Annotated[int, Field(ge=1)] = 100  # K, read by "adam"
    hyper_learning_rate: Annotated[float, Field(gt=0)] = 1.0  # gamma, read by "adam"
    prior_groups: Literal["tensor", "module", "kind", "width", "scalar", "parameter"] = "tensor"
    learn_noise: bool = True  # read by likelihood = "gaussian"
    learn_temperature: bool = False  # read by likelihood = "categorical"; about ten passes each
    patience: Annotated[int, Field(ge=1)] | None = None  # updates without a better evidence
    smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.5  # weight of the past in that evidence

    @model_validator(mode="after")
    def _parameter_groups(self) -> "OnlinePlan":
        if self.prior_groups == "parameter" and self.curvature not in DIAGONAL_KINDS:
            raise ValueError(
                '`curvature` must be a diagonal kind with prior_groups = "parameter", '
                f'but got "{self.curvature}"'
            )
        return self


class TrainingPlan(Frozen):
    """How one architecture is trained; the prior is the only regulariser."""

    likelihood: Literal["categorical", "gaussian"] = "categorical"
    noise_std: Annotated[float, Field(gt=0)] = 1.0  # of targets of unit variance; "gaussian"
    temperature: Annotated[float, Field(gt=0)] = 1.0  # divides the logits; "categorical"
    likelihood_power: Annotated[float, Field(gt=0)] = 1.0  # kappa, in training and evidence
    mc_draws: Annotated[int, Field(ge=1)] = MC_DRAWS  # of `_mc` kinds, at the last evaluation
    epochs: Annotated[int, Field(ge=1)] = 40
    batch_size: Annotated[int, Field(ge=1)] = 128
    optimiser: Literal["sgd", "adam"] = "sgd"
    learning_rate: Annotated[float, Field(gt=0)] = 0.01
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9  # read by "sgd"
    gradient_clip: Annotated[float, Field(ge=0)] = 2.0  # largest norm of a step's gradient; 0: any
    schedule: Literal["constant", "cosine", "steps"] = "cosine"
    milestones: tuple[Annotated[int, Field(ge=1)], ...] = ()  # epochs, read by "steps"
    decay: Annotated[float, Field(gt=0, lt=1)] = 0.1  # factor at each milestone
    prior_precision: Annotated[float, Field(gt=0)] = 1.0  # before the first update
    #: Where the blocks of the prequential evidence begin, as fractions of the training data.
    prequential_fractions: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = (0.5,)
    prequential_orders: Literal[1, 2] = 2  # of the data: one, or that and its reverse
    sotl_epochs: Annotated[int, Field(ge=1)] = 1  # E of sotl_e
    sotl_gamma: Annotated[float, Field(gt=0, lt=1)] = 0.9  # gamma of sotl_ema
    online: OnlinePlan = OnlinePlan()

    @model_validator(mode="after")
    def _milestones(self) -> "TrainingPlan":
        if self.schedule == "steps" and not self.milestones:
            raise ValueError('`milestones` must name at least one epoch with schedule = "steps"')
        if list(self.milestones) != sorted(set(self.milestones)):
            raise ValueError(f"`milestones` must increase, but got {list(self.milestones)}")
        return self

    @model_validator(mode="after")
    def _fractions(self) -> "TrainingPlan":
        fractions = list(self.prequential_fractions)
        if not fractions or fractions != sorted(set(fractions)):
            raise ValueError(
                f"`prequential_fractions` must be at least one and increase, but got {fractions}"
            )
        return self

    def evaluation_epochs(self) -> tuple[int, ...]:
        """Return the 1-based epochs at which evidence is stored: every F after B, and the last."""
        regular = range(self.online.every, self.epochs + 1, self.online.every)
        return tuple(sorted({e for e in regular if e > self.online.burn_in} | {self.epochs}))


class DatasetSpec(Frozen):
    """Which data, and how much of it; the test part is read by the report only."""

    name: Literal[*DATASET_NAMES]  # type: ignore[valid-type]
    test_size: Annotated[int, Field(ge=1)] | None = None  # for sets without a split of their own
    max_train: Annotated[int, Field(ge=1)] | None = None
    max_test: Annotated[int, Field(ge=1)] | None = None
    path: str | None = None  # of an .npz file, or a folder of .npy files

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
    """Who proposes architectures; every argument is written out, none left to the library."""

    name: Literal["tpe", "random", "qmc", "grid"] = "tpe"
    startup_per_family: Annotated[int, Field(ge=1)] = 6  # quasi-random points before the sampler
    families: Literal["shared", "joint", "separate"] = "shared"  # see proposing/proposer.py
    max_history: Annotated[int, Field(ge=1)] = 1000  # latest finished trials that TPE sees
    n_ei_candidates: Annotated[int, Field(ge=1)] = 24
    multivariate: bool = True
    group: bool = True
    constant_liar: bool = True

    @model_validator(mode="after")
    def _group(self) -> "SamplerSpec":
        if self.group and not self.multivariate:
            raise ValueError("`group` must be false with multivariate = false, but got true")
        return self


class PruningSpec(Frozen):
    """When a trial that does badly at a rung is stopped; no validation data is looked at."""

    rule: Literal["none", "halving", "median"] = "none"
    score: Literal[*SCORES] | None = None  # type: ignore[valid-type]  # else the objective
    first_epoch: Annotated[int, Field(ge=1)] = 5  # of the first rung
    reduction: Annotated[int, Field(ge=2)] = 3  # eta: the best 1/eta go on, epochs times eta
    startup_trials: Annotated[int, Field(ge=1)] = 4  # seen at a rung before anything is pruned

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

    n_parameters: Annotated[int, Field(ge=1)] | None = None
    flops: Annotated[int, Field(ge=1)] | None = None  # of one forward pass of one example
    memory_bytes: Annotated[int, Field(ge=1)] | None = None  # estimated, in training
    latency_seconds: Annotated[float, Field(gt=0)] | None = None  # one example, measured


class BudgetSpec(Frozen):
    """When a study ends before its last trial; may change between runs of one study."""

    wall_seconds: Annotated[float, Field(gt=0)] | None = None  # over all runs of the study
    device_seconds: Annotated[float, Field(gt=0)] | None = None  # of workers, all together


class DatabaseSpec(Frozen):
    """What coordinates a study, beside SQLite in its folder; the password is never written."""

    url: str | None = None  # as SQLAlchemy's: "postgresql://user@host/name"

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

    workers: Annotated[int, Field(ge=1)] = 2
    cpus: Annotated[int, Field(ge=1)] = 1  # torch threads a worker
    gpus: Literal["auto"] | float = "auto"  # share of one GPU a trial; "auto" by its memory
    trials_per_worker: Annotated[int, Field(ge=1)] = 50  # before its process is replaced
    worker_growth_bytes: Annotated[int, Field(ge=1)] = 2 * 1024**3  # and before that
    slice_timeout_seconds: Annotated[float, Field(gt=0)] = 300.0  # at least; see driver/driver.py

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
    seed: Annotated[int, Field(ge=0)] = 0
    n_trials: Annotated[int, Field(ge=1)] = 24
    replicates: Annotated[int, Field(ge=1)] = 1
    minimise: tuple[Literal[*COSTS], ...] = ()  # type: ignore[valid-type]  # beside the objective
    estimators: tuple[Literal[*SCORES], ...] = (  # type: ignore[valid-type]
        "diag_ef",
        "kfac_ggn",
        "prequential",
    )
    #: Which score ranks; not given, the first of `PREFERRED` that `estimators` names.
    objective: Literal[*SCORES] = Field(default_factory=_preferred)  # type: ignore[valid-type]
    scheduling: Literal["async", "batch"] = "async"
    batch: Annotated[int, Field(ge=1)] = 8  # proposals at a time, read by "batch"
    warm_start: str | None = None  # folder of an older study of the same data and objective
    first: tuple[Mapping[str, ParameterValue], ...] = ()  # architectures to try before others
    dataset: DatasetSpec
    family: Mapping[str, Mapping[str, Domain]]
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

        At 0 by what one order of the data says: the other is trained on by those that go on.
        """
        if self.pruning.rule == "none":
            return ()
        early = (0,) if self.pruning_score in EARLY_SCORES else ()
        return early + self.pruning.rungs(self.plan)

    @model_validator(mode="after")
    def _objective(self) -> "StudySpec":
        if self.objective in ON_REQUEST and self.objective not in self.estimators:
            raise ValueError(
                f'`objective` must be one of the estimators, but got "{self.objective}" '
                f"with estimators = {list(self.estimators)}"
            )
        kinds = laplace_kinds_of(self.estimators)
        if self.plan.online.prior_groups == "parameter" and not kinds <= DIAGONAL_KINDS:
            raise ValueError(
                f"`estimators` must be diagonal kinds ({', '.join(sorted(DIAGONAL_KINDS))}) with "
                f'prior_groups = "parameter", but got {sorted(kinds - DIAGONAL_KINDS)}'
            )
        if self.plan.likelihood == "gaussian" and (
            of_labels := [e for e in self.estimators if e.endswith("_accuracy")]
        ):
            raise ValueError(
                f'`estimators` must be scores of real targets with likelihood = "gaussian", but '
                f"got {of_labels}"
            )
        if self.pruning.rule != "none" and self.pruning_score in SAMPLED_KINDS:
            raise ValueError(
                "`score` in [pruning] must be known before the end of training, but "
                f'"{self.pruning_score}" is not; name another'
            )
        if self.pruning_score in ON_REQUEST and self.pruning_score not in self.estimators:
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
    estimators: tuple[str, ...]
    limits: LimitSpec = LimitSpec()
    seed: int

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
