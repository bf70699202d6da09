"""The value types of a study, from the search space to one assignment.

All defaults of the project are in this file. The types are frozen and refuse unknown keys;
`spec/toml.py` builds them from a study file, with one message per error. The string below a field
gives its meaning: `docs/_make/study_reference.py` makes the reference page from these strings.
"""

import difflib
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from numbers import Integral
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails

from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.dataset import DATASET_NAMES as DATASET_NAMES
from nas_evidence.spec.dataset import OWN_DATA
from nas_evidence.spec.dataset import DatasetSpec as DatasetSpec
from nas_evidence.spec.domains import (
    LARGEST,
    Choice,
    Count,
    Domain,
    Epochs,
    Frozen,
    IntRange,
    NoKey,
    NotNegative,
    ParameterValue,
    Positive,
    Seconds,
    Unit,
    domain_of,
    value_text,
)
from nas_evidence.spec.families import domains_of
from nas_evidence.spec.likelihoods import LIKELIHOODS, Declared, LikelihoodName, default_of
from nas_evidence.spec.metric_names import check_metric
from nas_evidence.spec.registry import (
    ONLINE_CURVATURES,
    PREFERRED,
    declared,
    is_outside,
)

#: Costs of an architecture that are recorded.
ALL_COSTS = ("n_parameters", "flops", "memory_bytes", "latency_seconds")
#: Costs in use, known before training, that a study can minimise.
COSTS = tuple(name for name in ALL_COSTS if name != "memory_bytes")

_COMPACT = json.JSONEncoder(separators=(",", ":"))
#: Batch size of `estimate_evidence`; does not affect the result.
EVIDENCE_BATCH = 512
#: Architectures that race if a study does not say, and the smallest search that has a race then.
FINALISTS, FEWEST_FOR_RACE = 5, 20
#: The two scores whose mean is estimated, the first of which is the objective; and the most
#: training rows for which it is, unless a study asks for it (docs/decisions/0027).
ESTIMATED, ROWS_ESTIMATED = ("conditional_evidence", "elpd"), 1000
#: Training rows of an update with `rows = "auto"`: one in so many of those that there are, but no
#: fewer than the first bound and no more than the second; all of fewer than twice the first. See
#: docs/results/few-rows-and-real-targets.md.
UPDATE_PART, FEWEST_UPDATE_ROWS, UPDATE_ROWS = 5, 256, 2048
#: Folds of `plan.folds = "auto"` with few training rows (`TargetKind.few`), and with more.
FOLDS_OF_FEW, FOLDS_OF_MANY = 5, 2

#: Smallest share of a GPU: Ray counts no smaller ones.
LEAST_SHARE = 0.0001
#: Longest name of a study, characters.
MAX_NAME = 200

#: A parameter of earlier versions, and the one value of it that is left: see `is_plain`.
NUMBERS, PLAIN = "numbers", "plain"

#: The parameters of each family, with the widest domain of each.
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
#: Families whose networks need images.
OF_IMAGES = frozenset({"cnn", "resnet"})
#: Values of parameters that a study omits.
FAMILY_DEFAULTS: Mapping[str, Mapping[str, ParameterValue]] = {
    "mlp": {"depth": 2, "width": 64, "shape": "constant"},
    "cnn": {"depth": 2, "width": 8},
    "resnet": {"depth": 8, "width": 16},
    "linear": {},
}


def is_plain(family: str, name: str, value: object) -> bool:
    """Tell whether a parameter, or its domain in a study file, is `numbers = "plain"`.

    Studies of earlier versions that list it have it in the keys of their architectures.
    """
    of_earlier = name == NUMBERS and family in ("mlp", "linear")
    return of_earlier and value in (PLAIN, [PLAIN], {"options": [PLAIN]})


def domains_of_family(family: str) -> Mapping[str, Domain]:
    """Return the parameters of a family and the widest domain of each.

    Raises:
        ValueError: if it is from outside the package and has not been imported.
    """
    return domains_of(family) if is_outside(family) else FAMILY_PARAMETERS[family]


def _known_score(name: str) -> str:
    declared(name)
    return name


#: A score by name, or by reference if it is from outside the package.
ScoreName = Annotated[str, AfterValidator(_known_score)]


class ArchitectureSpec(Frozen):
    """One point of the search space: a family and the values of its parameters."""

    family: str
    values: Mapping[str, ParameterValue] = {}

    @cached_property
    def key(self) -> str:
        """Return a stable 12-digit hash of family and values, equal in every process."""
        text = _COMPACT.encode([self.family, dict(sorted(self.values.items()))])
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

    def __copy__(self) -> Self:
        copied = super().__copy__()
        copied.__dict__.pop("key", None)  # `model_copy` gives the copy other values
        return copied

    def __str__(self) -> str:
        inside = ", ".join(f"{name}={value_text(value)}" for name, value in self.values.items())
        return f"{self.family}({inside})"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= LARGEST


def _interval(value: object) -> object:
    if not _is_count(value) and value not in ("auto", "never"):
        raise UserError(
            "online-every", f'must be an integer >= 1, "auto" or "never", but got {value!r}'
        )
    return value


def _rows(value: object) -> object:
    if not _is_count(value) and value != "auto":
        raise UserError("online-rows", f'must be an integer >= 1 or "auto", but got {value!r}')
    return value


def _evaluations(value: object) -> object:
    if not _is_count(value) and value != "update":
        raise UserError(
            "evaluate-every", f'must be an integer >= 1 or "update", but got {value!r}'
        )
    return value


def _milestones(value: object) -> object:
    """Check epochs, or fractions of the epochs; in order."""
    if not isinstance(value, list | tuple):
        return value
    epochs = [isinstance(m, int) and not isinstance(m, bool) and m >= 1 for m in value]
    fractions = [isinstance(m, float) and 0 < m < 1 for m in value]
    if not (all(epochs) or all(fractions)):
        raise UserError(
            "epochs-or-fractions",
            f"must be epochs >= 1, or all of them fractions of the epochs between 0 and 1, but "
            f"got {list(value)}",
        )
    if list(value) != sorted(set(value)):
        raise UserError("epochs-must-increase", f"must increase, but got {list(value)}")
    return tuple(value)


class OnlinePlan(Frozen):
    """Online Laplace updates of the prior precisions (Immer et al. 2021, Algorithm 1)."""

    every: Annotated[Epochs | Literal["auto", "never"], BeforeValidator(_interval)] = "auto"
    """Epochs between updates (F). "auto": an eighth of the epochs after `burn_in`, at least 5 but
    at most a sixth, so that the network trains on after each of five updates; stored as a number
    when the study begins. "never": hyperparameters keep their first values."""
    burn_in: Annotated[int, Field(ge=0), Unit("epochs")] = 0
    """First epochs, without updates and stored evaluations (B)."""
    curvature: Literal[*ONLINE_CURVATURES] = "kfac_ggn_mc"  # type: ignore[valid-type]
    """Curvature of the Laplace evidence that the updates maximise; `full_ggn` and `full_ef` for
    small networks or few data: parameters or rows up to 2,000."""
    rows: Annotated[Count | Literal["auto"], BeforeValidator(_rows), Unit("rows")] = "auto"
    """Maximum number of training rows that an update reads: of more, a random sample, the same for
    all networks and updates. Each row counts for as many as it stands for. Fewer rows make updates
    faster and precisions noisier. Settling and every reported evidence read all rows. "auto": of
    labels a fifth of the rows that a network is trained on, from 256 to 2,048, and all of fewer
    than 512; of real targets 2,048."""
    hyper_step: Literal["newton", "adam"] = "newton"
    """Maximiser: Newton to the maximum, or 100 Adam steps of 1 on log precisions."""
    hyper_steps: Annotated[Count, Unit("steps"), NoKey()] = 100
    """Adam steps per update (K); used with `hyper_step = "adam"`."""
    hyper_learning_rate: Annotated[Positive, NoKey()] = 1.0
    """Their learning rate (gamma), on log precisions; used with `hyper_step = "adam"`."""
    prior_groups: Literal["tensor", "scalar"] = "tensor"
    """Parameters that share one prior precision: those of a tensor, or all."""
    learn_noise: Annotated[bool, NoKey()] = True
    """Whether updates also learn the noise; used with `likelihood = "gaussian"`."""


def _settle(data: Mapping[str, Any]) -> float:
    known = LIKELIHOODS.get(data.get("likelihood", ""))
    return 1.0 if known is not None and known.settles and not data.get("augment") else 0.0


class TrainingPlan(Frozen):
    """How one architecture is trained; the prior is the only regulariser."""

    likelihood: LikelihoodName = "categorical"
    """What describes the targets."""
    noise_std: Annotated[Positive, Unit("standard deviations of the targets"), NoKey()] = 1.0
    """Noise of the targets before the first update; used with `likelihood = "gaussian"`."""
    temperature: Annotated[Positive, NoKey()] = 1.0
    """Divides the logits; used with `likelihood = "categorical"`."""
    likelihood_power: Positive = 1.0
    """Weight of the log likelihood (kappa), in training and in the evidence."""
    augment: tuple[Literal["RandomCrop", "RandomHorizontalFlip"], ...] = ()
    """Random operations on images, as torchvision's, drawn anew in each epoch: shifts by up to an
    eighth of a side, and reflections. The evidence is that of the images after one draw, with
    `likelihood_power` for how often an image and its variants count. Without settling."""
    epochs: Epochs = 40
    """Maximum number of passes over the training data. "auto", the default of study files: as many
    as show about 40,000 data in all, in 625 steps at least, from 20 to 300 epochs; chosen from the
    number of training data when the study begins and stored as a number."""
    evaluate_every: Annotated[Epochs | Literal["update"], BeforeValidator(_evaluations)] = "update"
    """Epochs between stored evaluations, after `burn_in`; the last epoch always has one. "update":
    after each update, or as often with `every = "never"`. Rungs are at evaluations."""
    batch_size: Annotated[Count, Unit("examples")] = 128
    """Examples per step."""
    optimiser: Literal["sgd", "adam"] = "sgd"
    """Optimiser of the weights; "sgd" has momentum 0.9."""
    learning_rate: Positive = 0.01
    """Learning rate at the start of training."""
    momentum: Annotated[float, Field(ge=0, lt=1), NoKey()] = 0.9
    """Momentum of SGD; used with `optimiser = "sgd"`."""
    schedule: Literal["constant", "cosine", "steps"] = "cosine"
    """Learning rate: constant, falling along a half cosine to 0, or to a tenth at `milestones`."""
    milestones: Annotated[
        tuple[int | float, ...], BeforeValidator(_milestones), Unit("epochs")
    ] = ()
    """Epochs after which the learning rate falls, or fractions of `epochs`, such as 0.5; in order;
    used with `schedule = "steps"`."""
    settle: Annotated[NotNegative, Unit("scheduled trainings")] = Field(default_factory=_settle)
    """Budget of settling: after the last epoch the network is optimised to a mode, and its
    hyperparameters to the largest evidence there; 0 for no settling. Without it 1 for real
    targets, else 0. Linear networks always settle, except with `augment`."""
    prior_precision: Annotated[Positive, NoKey()] = 1.0
    """Precision of the Gaussian prior of the weights, before the first update."""
    precision: Literal["float32", "bf16"] = "float32"
    """Arithmetic of products in training steps: "bf16" is bfloat16 by autocast, for wide networks
    on GPUs that are faster so; small ones wait for its casts. With "float32" a GPU computes the
    convolutions of a step in TF32. Parameters, curvature, evidence and the outputs on folds and
    test data are float32 or float64 always, without TF32."""
    compile: bool = False
    """Run training steps on a GPU as compiled CUDA graphs; pays for small networks, whose steps
    wait for launches. On a CPU it changes nothing."""
    folds: Annotated[Literal["auto", 1, 2, 5, 10], Unit("folds")] = "auto"
    """Folds of the score `conditional_evidence`, each predicted after a training without it; 1 for
    one half only, of `two_fold` too. "auto": 5 with few rows to train on, else 2; stored as a
    number when the study begins."""
    whole: bool | None = None
    """Whether each trial trains a network of all rows beside those of its folds. If false the
    finalists alone have one, after the search. If absent true where a score that is asked for,
    ranks or prunes is none of fold networks; stored when the study begins. A study that began
    without the key goes on with true."""
    online: OnlinePlan = OnlinePlan()

    @model_validator(mode="after")
    def _augment(self) -> "TrainingPlan":
        if len(set(self.augment)) < len(self.augment):
            raise UserError(
                "augment-twice",
                f"`augment` must name an operation once, but got {list(self.augment)}",
            )
        if self.augment and self.settle:
            raise UserError(
                "settle-with-augment",
                f"`settle` must be 0 with `augment`, but got {self.settle:g}: settling would fit "
                "one draw of the images; remove one of the two",
            )
        return self

    @property
    def declared(self) -> Declared:
        """The declaration of the likelihood."""
        return LIKELIHOODS[self.likelihood]

    def update_rows(self, n_data: int) -> int:
        """Return how many rows an update reads at most, of a network that has `n_data`.

        >>> [TrainingPlan().update_rows(n) for n in (511, 512, 5000, 60_000)]
        [2048, 256, 1000, 2048]
        """
        if self.online.rows != "auto":
            return self.online.rows
        if n_data < 2 * FEWEST_UPDATE_ROWS or not self.declared.kind.chance_of:
            return UPDATE_ROWS
        return min(max(FEWEST_UPDATE_ROWS, n_data // UPDATE_PART), UPDATE_ROWS)

    def head_width(self, n_outputs: int) -> int:
        """Return how many outputs a network has for some classes or real targets.

        >>> TrainingPlan(likelihood="heteroscedastic").head_width(3)
        6
        """
        return self.declared.outputs * n_outputs

    @property
    def automatic(self) -> bool:
        """Return whether the number of epochs is still to be chosen from the data."""
        return "epochs" not in self.model_fields_set

    @model_validator(mode="after")
    def _falling(self) -> "TrainingPlan":
        if self.schedule == "steps" and not self.milestones:
            raise UserError(
                "milestones-missing",
                '`milestones` must name at least one epoch with schedule = "steps"',
            )
        return self

    @property
    def milestone_epochs(self) -> tuple[int, ...]:
        """Return the epochs after which the learning rate falls."""
        return tuple(m if isinstance(m, int) else round(m * self.epochs) for m in self.milestones)

    def n_folds(self, n_data: int) -> int:
        """Return the folds of `conditional_evidence`, "auto" as a number."""
        if self.folds != "auto":
            return self.folds
        return FOLDS_OF_FEW if n_data < self.declared.kind.few else FOLDS_OF_MANY


#: The samplers of this package, and what comes before the name of one of Optuna's.
SAMPLERS, OF_OPTUNA = ("posterior", "tpe", "random", "qmc", "grid"), "optuna:"
#: What comes before the name of a sampler that was given in Python, which no file holds.
IN_PYTHON = "python:"


def _known_sampler(name: object) -> object:
    if name in SAMPLERS or re.fullmatch(r"\w[\w.]*:\w[\w.]*", str(name)):
        return name
    near = difflib.get_close_matches(str(name), SAMPLERS, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    raise UserError(
        "unknown-sampler",
        f'must be one of {", ".join(SAMPLERS)}, "{OF_OPTUNA}NAME" for a sampler of Optuna, or '
        f'"module:NAME" for your own, but got {name!r}{hint}',
    )


class SamplerSpec(Frozen):
    """How architectures are proposed."""

    name: Annotated[Literal[*SAMPLERS] | str, BeforeValidator(_known_sampler)] = "posterior"  # type: ignore[valid-type]
    """Posterior over architectures, tree-structured Parzen estimator, uniform draws, quasi-random
    sequence, or every point; "optuna:NAME" for a sampler of Optuna, such as "optuna:GPSampler"; or
    "module:NAME" for your own."""
    arguments: Mapping[str, Any] = {}
    """Arguments of a sampler of Optuna that are numbers, texts, true or false, or of your own; its
    seed follows from that of the study."""

    @property
    def of_optuna(self) -> str:
        """Return the name of a sampler of Optuna, "" for one of this package."""
        return self.name.removeprefix(OF_OPTUNA) if self.name.startswith(OF_OPTUNA) else ""

    @property
    def own(self) -> str:
        """Return the reference of a sampler from outside the package, "" for others."""
        return self.name if is_outside(self.name) and not self.of_optuna else ""

    @model_validator(mode="after")
    def _arguments(self) -> "SamplerSpec":
        if self.arguments and (not is_outside(self.name) or self.name.startswith(IN_PYTHON)):
            raise UserError(
                "sampler-without-arguments",
                f'`arguments` must be left out with name = "{self.name}", but got '
                f"{dict(self.arguments)}; they are for samplers of Optuna, such as "
                f'"{OF_OPTUNA}GPSampler"',
            )
        return self


class PruningSpec(Frozen):
    """When to stop trials that score badly at a rung; uses no validation data."""

    rule: Literal["none", "halving", "median"] = "none"
    """Trials that continue at a rung: all, the best third by `score`, or its median and above.
    Rungs are at the first evaluations from epochs 5, 15, 45, ... on, and at the start for a score
    that is known there; no trial is pruned before four have reached its rung."""
    score: ScoreName | None = None
    """The score that trials are compared by, such as "sotl", which costs nothing; if absent, the
    objective."""
    first_epoch: Annotated[Epochs, NoKey()] = 5
    """Epoch of the first rung; the next are at this times `reduction`, its square, ..."""
    reduction: Annotated[int, Field(ge=2), NoKey()] = 3
    """Factor between the epochs of rungs (eta); "halving" keeps the best 1/eta."""
    startup_trials: Annotated[Count, Unit("trials"), NoKey()] = 4
    """Trials that must have reached a rung before any is pruned there."""


class LimitSpec(Frozen):
    """Upper limits; an architecture above one is `infeasible` and is not trained."""

    n_parameters: Annotated[Count, Unit("parameters")] | None = None
    """Largest number of parameters."""
    memory_bytes: Annotated[Count, Unit("bytes")] | None = None
    """Largest estimated memory of training."""

    @cached_property
    def given(self) -> dict[str, int]:
        """Return the limits that there are, by name."""
        return {name: limit for name, limit in self if limit is not None}


class BudgetSpec(Frozen):
    """When a study stops before its last trial; may change between runs of a study."""

    wall_seconds: Seconds | None = None
    """Wall time over all runs of the study."""


class RetrySpec(Frozen):
    """When a trial that keeps losing its worker is given up; may change between runs of a study.

    A lost attempt is retried from its last checkpoint. `resume --retry-failed` retries trials that
    were given up.
    """

    crashes: Annotated[Literal["unlimited"] | int, Unit("attempts")] = 3
    """Attempts in a row that may crash or hang their worker without writing a checkpoint, beside
    10 that may be lost together with their machine; or "unlimited", for both."""

    @field_validator("crashes", mode="before")
    @classmethod
    def _limit(cls, value: object) -> object:
        number = isinstance(value, int) and not isinstance(value, bool)
        if value != "unlimited" and not (number and 1 <= value <= LARGEST):  # type: ignore[operator]
            raise UserError(
                "retries-form",
                f'`crashes` must be a number of attempts or "unlimited", but got {value!r}',
            )
        return value


class RaceSpec(Frozen):
    """The race of the finalists after the search; see `finalists`."""

    trials: Annotated[Count, Unit("trials")] | None = None
    """Maximum number of trials of the race, on top of `n_trials`; if absent a third of `n_trials`,
    at least 10."""


class ResourceSpec(Frozen):
    """The resources of a study; may change between runs of a study."""

    workers: Annotated[Literal["auto"] | Count, Unit("processes")] = "auto"
    """Trials that run in parallel, as soon as there is room for so many. "auto" on Ray: as many as
    the cores and GPUs of the machine or the cluster carry; in plain processes 2. On Ray a worker
    without a trial for a minute is released."""
    cpus: Annotated[Count, Unit("CPUs")] = 1
    """CPUs and torch threads per worker."""
    gpus: Literal["auto"] | float = "auto"
    """Share of one GPU per trial, from 0 to 1; "auto" chooses it by estimated memory."""
    slice_timeout_seconds: Seconds = 300.0
    """Silence after which a worker counts as hung, or five times the longest slice so far if that
    is longer."""
    wait_seconds: Literal["auto"] | Seconds = "auto"
    """How long a study waits for room for a worker, then it stops. "auto" waits without limit on a
    cluster, and 900 s on one machine. `--time` ends it, too."""

    @field_validator("workers", mode="before")
    @classmethod
    def _number(cls, value: object) -> object:
        if isinstance(value, Integral) and not isinstance(value, bool):
            value = int(value)  # of numpy, too
        number = type(value) is int
        if value != "auto" and not (number and 1 <= value <= LARGEST):  # type: ignore[operator]
            raise UserError(
                "workers-form",
                f'`workers` must be "auto" or an integer from 1 on, but got {value!r}',
            )
        return value

    @field_validator("gpus", mode="before")
    @classmethod
    def _share(cls, value: object) -> object:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        share = number and (value == 0 or LEAST_SHARE <= value <= 1)  # type: ignore[operator]
        if value != "auto" and not share:
            raise UserError(
                "gpus-form",
                f'`gpus` must be "auto", 0, or a share from {LEAST_SHARE} to 1, but got '
                f"{value!r}; a trial runs on one GPU at most",
            )
        return value


def _families(tables: object, info: ValidationInfo) -> object:
    """Return the domains of each family, by name or reference; each mistake has its place.

    Those of a study file are within the widest ones, the context; other studies may go beyond.
    """
    if not isinstance(tables, Mapping) or not tables:
        known = ", ".join(f"[family.{name}]" for name in FAMILY_PARAMETERS)
        raise UserError("no-family", f"`family` must have at least one table of {known}")
    found, wrong = dict[str, dict[str, Domain]](), list[InitErrorDetails]()

    def refuse(kind: str, value: object, *loc: Any, **context: Any) -> None:
        wrong.append(InitErrorDetails(type=kind, loc=loc, input=value, ctx=context))

    for family, table in tables.items():
        own = is_outside(family) or (isinstance(table, Mapping) and "module" in table)
        widest = info.context.get(family) if info.context and not own else None
        if not isinstance(table, Mapping):
            refuse("dict_type", table, family)
            continue
        if widest is None and info.context and not own:
            refuse("extra_forbidden", table, family)
            continue
        name = str(table.get("module", family))
        if own and info.context and not re.fullmatch(r"[\w.]+:[\w.]+", name):
            form = f'must be a reference "package.module:NAME", but got {name!r}'
            error = UserError("family-module-form", form)
            refuse("value_error", name, family, "module", error=error)
        found[name] = {}
        for key, value in table.items():
            if widest is not None and not (key in widest or is_plain(family, key, value)):
                refuse("extra_forbidden", value, family, key)
            elif key != "module" or not own:
                try:
                    found[name][key] = domain_of(value, (widest or {}).get(key))
                except ValidationError as error:
                    for e in error.errors():
                        refuse(e["type"], e["input"], family, key, *e["loc"], **e.get("ctx", {}))
                except UserError as error:
                    refuse("value_error", value, family, key, error=error)
    if wrong:
        raise ValidationError.from_exception_data("family", wrong)
    return found


#: Keys of a study that may change between its runs: none decides the result of a trial.
FREE_KEYS = (
    "n_trials", "budget", "resources", "retries", "finalists", "race", "metric",
)  # fmt: skip


def _usual(data: Mapping[str, Any]) -> tuple[str, ...]:
    return usual_estimators(data.get("plan") or TrainingPlan())


def usual_estimators(plan: TrainingPlan) -> tuple[str, ...]:
    """Return the scores of a study that names none.

    >>> usual_estimators(TrainingPlan(likelihood="heteroscedastic"))
    ('diag_ef', 'kfac_ggn', 'conditional_evidence', 'elpd')
    """
    held_out = ("two_fold",) if plan.augment else ESTIMATED
    found = ("diag_ef", "kfac_ggn", *held_out)
    return tuple(name for name in found if name not in plan.declared.without)


def _preferred(data: Mapping[str, Any]) -> str:
    return preferred(data.get("estimators", ()))


def preferred(estimators: Sequence[str]) -> str:
    """Return the score of these that ranks if a study names none.

    >>> preferred(["elpd", "kfac_ggn"])
    'kfac_ggn'
    """
    asked = [name for name in PREFERRED if name in estimators]
    return (*asked, *map(str, estimators), PREFERRED[-1])[0]


class StudySpec(Frozen):
    """A complete study: one file, one folder of results."""

    name: Annotated[str, Field(min_length=1)]
    """Name of the study, and of its folder runs/<name> unless `out` gives another."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of all random streams: the same study and seed give the same results."""
    n_trials: Annotated[Count, Unit("trials")] = 24
    """Trials to run, whatever their final status: architectures times replicates."""
    replicates: Annotated[Count, Unit("trials")] = 1
    """Trials per architecture, each with its own seed."""
    finalists: Annotated[int, Field(ge=0), Unit("architectures")] | None = None
    """Best architectures that are trained again after the search, with further seeds, until the
    first is the best by the score with probability 0.9; 0 for none. If absent 5, but 0 with fewer
    than 20 trials or with `minimise`."""
    metric: str | None = None
    """Metric to show first, of the winner's predictions in the report and in `predict`. It ranks
    nothing; of two classes `predict` chooses by the threshold that is best by it."""
    minimise: tuple[Literal[*COSTS], ...] = ()  # type: ignore[valid-type]
    """Costs to trade off against the objective: the sampler then searches the Pareto front."""
    dataset: DatasetSpec
    plan: TrainingPlan = TrainingPlan()
    estimators: tuple[ScoreName, ...] = Field(default_factory=_usual)
    """Scores to compute in each trial; see [scores](estimators.md). If absent `diag_ef`,
    `kfac_ggn`, `conditional_evidence` and `elpd`, with `augment` in their place `two_fold`."""
    objective: ScoreName = Field(default_factory=_preferred, validate_default=True)
    """The score that ranks; if absent `conditional_evidence` if in `estimators`, else `two_fold`,
    else `kfac_ggn`, else the first of them."""
    rank_by: Literal["auto", "score", "estimate"] = "auto"
    """What orders architectures: the objective, as its mean over seeds; or what the trials of all
    architectures say of the mean of `conditional_evidence` and `elpd`, from eight architectures
    on. `auto` is the estimate for those two scores in five folds of up to 1,000 rows."""
    scheduling: Literal["async", "batch"] = "async"
    """Whether to propose whenever a worker is free, or `batch` architectures together, which makes
    the proposals independent of the number and speed of workers."""
    batch: Annotated[Count, Unit("proposals")] = 8
    """Proposals per batch; used with `scheduling = "batch"`."""
    curves: bool = False
    """Whether to compute Laplace scores at every evaluation, for curves over the epochs, and not
    only at the last one; pruning has its own score at every evaluation in any case."""
    warm_start: str | None = None
    """Folder of an older study of the same data and objective for the sampler to learn from."""
    first: tuple[Mapping[str, ParameterValue], ...] = ()
    """Architectures to try before all others: `family` and its parameters."""
    family: Annotated[Mapping[str, Mapping[str, Domain]], BeforeValidator(_families)] = Field(
        default={}, validate_default=True
    )
    """The tables [family.NAME]: families to search, and the domains of their parameters."""
    sampler: SamplerSpec = SamplerSpec()
    pruning: PruningSpec = PruningSpec()
    limits: LimitSpec = LimitSpec()
    budget: BudgetSpec = BudgetSpec()
    resources: ResourceSpec = ResourceSpec()
    retries: RetrySpec = RetrySpec()
    race: RaceSpec = RaceSpec()

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        if len(value) > MAX_NAME or not value.isprintable() or not value.strip():
            raise UserError(
                "study-name",
                f"`name` must be 1 to {MAX_NAME} printable characters, but got {value[:20]!r} "
                f"and in all {len(value)} characters",
            )
        return value

    @field_validator("objective")
    @classmethod
    def _computed(cls, value: str, info: ValidationInfo) -> str:
        estimators = info.data.get("estimators", (value,))  # absent if they are wrong
        if declared(value).on_request and value not in estimators:
            raise UserError(
                "objective-not-an-estimator",
                f'`objective` must be one of the estimators, but got "{value}" with estimators = '
                f"{list(estimators)}",
            )
        return value

    @property
    def n_finalists(self) -> int:
        """Return how many architectures the race of the finalists compares, 0 for no race."""
        if self.finalists is not None:
            return self.finalists
        return FINALISTS if self.n_trials >= FEWEST_FOR_RACE and not self.minimise else 0

    @property
    def pruning_score(self) -> str:
        """Return the score by which trials are compared at the rungs."""
        return str(self.pruning.score or self.objective)

    @property
    def followed(self) -> tuple[str, ...]:
        """Return the scores to compute at every evaluation, even if they cost a pass each time."""
        if self.curves:
            return self.estimators
        pruned_by = () if self.pruning.rule == "none" else (self.pruning_score,)
        return tuple(name for name in self.estimators if name in pruned_by)

    @model_validator(mode="after")
    def _finalists(self) -> "StudySpec":
        if self.finalists == 1:
            raise UserError(
                "one-finalist", "`finalists` must be 0 (no race) or at least 2, but got 1"
            )
        if self.finalists and self.minimise:
            raise UserError(
                "finalists-with-minimise",
                "`finalists` must be 0 with `minimise`: several objectives have no single best",
            )
        return self

    @model_validator(mode="after")
    def _task(self) -> "StudySpec":
        task, likelihood = self.dataset.task, self.plan.likelihood
        if task is not None and self.plan.declared.task != task:
            raise UserError(
                "likelihood-of-task",
                f'`likelihood` in [plan] must be "{default_of(task)}" with task = "{task}" '
                f'in [dataset], but got "{likelihood}"; remove one of the two',
            )
        if task is not None or self.dataset.name not in OWN_DATA:  # else only the data know
            check_metric(self.metric, likelihood)
        return self

    @property
    def needs_whole(self) -> list[str]:
        """Return what only networks of all rows give, as a study file has it; empty if nothing."""
        found = [name for name in self.estimators if not declared(name).of_folds]
        if not declared(self.objective).division:
            found.insert(0, str(self.objective))
        if self.pruning.rule != "none":
            found.append(f'[pruning] rule = "{self.pruning.rule}"')
        return [*dict.fromkeys(found), *["curves = true"] * self.curves]

    @property
    def trains_whole(self) -> bool:
        """Return whether each trial trains a network of all rows."""
        return self.plan.whole is not False

    @property
    def of_folds(self) -> str:
        """Return what follows the names of a trial's test figures: whose they are."""
        return "" if self.trains_whole else " of folds"

    def with_whole(self) -> "StudySpec":
        """Return it with the decision whether each trial trains a network of all rows."""
        if self.plan.whole is not None:
            return self
        plan = self.plan.model_copy(update={"whole": bool(self.needs_whole)})
        return self.model_copy(update={"plan": plan})

    @model_validator(mode="after")
    def _whole(self) -> "StudySpec":
        if self.plan.whole is False and (needed := self.needs_whole):
            raise UserError(
                "whole-needed",
                f"`whole` in [plan] must be true with {', '.join(needed)}, which only networks of "
                "all rows have; leave `whole` out",
            )
        return self

    @property
    def ranking_scores(self) -> tuple[str, ...]:
        """Return the scores whose mean is the value that ranks."""
        return ESTIMATED if self.rank_by == "estimate" else (str(self.objective),)

    @property
    def can_be_estimated(self) -> bool:
        """Return whether both scores whose mean is estimated are there, to rank by the first."""
        has_both = self.objective == ESTIMATED[0] and ESTIMATED[1] in self.estimators
        return has_both and not self.minimise

    def with_order(self, n_rows: int) -> "StudySpec":
        """Return it with what orders the architectures for a number of training rows."""
        if self.rank_by != "auto":
            return self
        measured = self.plan.folds == FOLDS_OF_FEW and n_rows <= ROWS_ESTIMATED
        by_estimate = measured and self.can_be_estimated and self.dataset.time_column is None
        return self.model_copy(update={"rank_by": "estimate" if by_estimate else "score"})

    @model_validator(mode="after")
    def _estimate(self) -> "StudySpec":
        if self.rank_by == "estimate" and not self.can_be_estimated:
            raise UserError(
                "rank-by-estimate",
                '`rank_by` may be "estimate" with objective = "conditional_evidence", `elpd` in '
                f'`estimators` and without `minimise`, but got objective = "{self.objective}", '
                f"estimators = {list(self.estimators)}, minimise = {list(self.minimise)}; "
                "leave out `rank_by`",
            )
        return self

    @model_validator(mode="after")
    def _objective(self) -> "StudySpec":
        likelihood, kind = self.plan.likelihood, self.plan.declared.kind
        if others := [e for e in self.estimators if declared(e).metric not in ("", *kind.metrics)]:
            raise UserError(
                "estimators-of-other-targets",
                f"`estimators` must be defined for {kind.targets} with likelihood = "
                f'"{likelihood}", but got {others}',
            )
        for name, why in self.plan.declared.without.items():
            if name in self.estimators:
                raise UserError(
                    "estimator-of-other-likelihoods",
                    f'`estimators` must not have {name} with likelihood = "{likelihood}": {why}; '
                    "remove it",
                )
        if self.plan.augment and (
            of_plain := [e for e in self.estimators if declared(e).plain_only]
        ):
            raise UserError(
                "estimators-without-augment",
                "`estimators` must be defined for augmented images with `augment` in [plan], but "
                f"got {of_plain}; remove them, or `augment`",
            )
        if self.dataset.units_column and (
            mixing := [e for e in self.estimators if declared(e).own_order]
        ):
            raise UserError(
                "estimators-mix-rows",
                "`estimators` must keep groups together and times in order with `groups` or "
                f"`time_column` in [dataset], but got {mixing}, which take rows in an order of "
                "their own; remove them, or use conditional_evidence",
            )
        if self.pruning.rule != "none" and declared(self.pruning_score).taken == "end":
            raise UserError(
                "pruning-score-too-late",
                "`score` in [pruning] must be known before the end of training, but "
                f'"{self.pruning_score}" is not; name another',
            )
        if declared(self.pruning_score).on_request and self.pruning_score not in self.estimators:
            raise UserError(
                "pruning-score-not-an-estimator",
                f"`score` in [pruning] must be one of the estimators, but got "
                f'"{self.pruning_score}" with estimators = {list(self.estimators)}',
            )
        if self.sampler.name == "grid":
            for family, domains in self.family.items():
                for key, domain in domains.items():
                    if math.isinf(domain.size):
                        raise UserError(
                            "grid-of-a-range",
                            f"`{key}` in [family.{family}] has no finite grid; "
                            'give options, or another sampler than "grid"',
                        )
        return self


#: Sets of keys that `search` takes by one word; "default" leaves all as the study file has it.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "quick": {"n_trials": 8, "plan.folds": 2, "finalists": 0},
    "default": {},
    "thorough": {"n_trials": 96, "plan.folds": 10, "finalists": 8},
}


def preset_keys(name: str | None) -> Mapping[str, Any]:
    """Return the keys of a preset with their values; none without a preset.

    Raises:
        ValueError: for an unknown name.
    """
    if name is not None and name not in PRESETS:
        raise UserError(
            "unknown-preset", f"preset must be one of {', '.join(PRESETS)}, but got {name!r}"
        )
    return {} if name is None else PRESETS[name]


class Assignment(Frozen):
    """One trial to run, self-contained: any machine with the data can run it."""

    trial_id: Annotated[int, Field(ge=0)]
    attempt: Annotated[int, Field(ge=1)]
    replicate: Annotated[int, Field(ge=0)]
    architecture: ArchitectureSpec
    dataset: DatasetSpec
    plan: TrainingPlan
    estimators: tuple[str, ...]
    followed: tuple[str, ...] = ()
    limits: LimitSpec = LimitSpec()
    #: Whether trials are compared after the first fold, which is then not trained beside others.
    first_fold_alone: bool = False
    #: Of the network of all rows of a trial that has trained its folds alone: the factor on the
    #: spread of predictions that they found, and the largest training loss that is no divergence.
    spread_factor: float | None = None
    largest_loss: float | None = None
    seed: int
    #: In the headers of weights of studies begun before; read and not written.
    beside_folds: Annotated[bool, Field(exclude=True)] = False

    def derived_seed(self, purpose: str, counter: int = 0) -> int:
        """Return the seed of one random stream; it does not depend on the attempt."""
        return derive_seed(self.seed, purpose, counter)


def derive_seed(*parts: int | str) -> int:
    """Return a 63-bit seed, a pure function of `parts`, equal in every process.

    >>> derive_seed(0, "order", 1) == derive_seed(0, "order", 1) != derive_seed(0, "order", 2)
    True
    """
    digest = hashlib.blake2b(_COMPACT.encode(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
