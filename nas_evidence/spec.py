"""What is asked: the value types of a study, from the search space to one assignment.

Every default of the project lives in this file and nowhere else. The types are frozen and refuse
unknown keys; `codec.py` turns a study file into them with one message for each mistake.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

ParameterValue = bool | int | float | str

#: Curvature kinds whose spectrum splits over parameter tensors, fit for the online update.
ONLINE_KINDS = (
    "diag_ef",
    "diag_ggn",
    "diag_ggn_mc",
    "kfac_ggn",
    "kfac_ggn_mc",
    "kfac_ef",
    "ekfac_ggn",
    "block_ggn",
)
#: Laplace evidences: a curvature kind each. A bare name is exact, `_mc` is Monte Carlo.
LAPLACE_KINDS = (*ONLINE_KINDS, "full_ggn", "full_ef")
#: Scores read off the training losses at no cost; recorded for every trial.
CURVE_SCORES = ("sotl", "sotl_e", "sotl_ema", "prequential_epoch1")
#: What any useful score has to beat; recorded for every trial.
BASELINES = ("n_parameters", "train_nll_per_datum")
SCORES = LAPLACE_KINDS + CURVE_SCORES + BASELINES

FAMILY_NAMES = ("mlp", "cnn", "resnet", "linear")
#: Test images split off the bundled digits where a study names no `test_size`.
DIGITS_TEST_SIZE = 500
DATASET_NAMES = ("digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "npz")


class Frozen(BaseModel):
    """A value: immutable, and refusing keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class IntRange(Frozen):
    """The integers `low, low + step, ... <= high`; proposed uniformly in log scale if `log`."""

    low: int
    high: int
    log: bool = False
    step: Annotated[int, Field(ge=1)] = 1

    @model_validator(mode="after")
    def _ordered(self) -> "IntRange":
        if self.low > self.high:
            raise ValueError(
                f"`low <= high` must hold, but got low = {self.low}, high = {self.high}"
            )
        if self.log and self.low < 1:
            raise ValueError(f"`low >= 1` must hold with log = true, but got {self.low}")
        if self.log and self.step != 1:
            raise ValueError(f"`step` must be 1 with log = true, but got {self.step}")
        return self

    def at(self, unit: float) -> int:
        """Return the member at quantile `unit` in [0, 1)."""
        if self.log:
            low, high = math.log(self.low - 0.5), math.log(self.high + 0.5)
            return min(self.high, max(self.low, round(math.exp(low + unit * (high - low)))))
        count = (self.high - self.low) // self.step + 1
        return self.low + self.step * min(count - 1, int(unit * count))

    def contains(self, value: ParameterValue) -> bool:
        """Tell whether `value` is a member."""
        return (
            isinstance(value, int)
            and not isinstance(value, bool)
            and self.low <= value <= self.high
            and (value - self.low) % self.step == 0
        )

    @property
    def size(self) -> float:
        """Number of members."""
        return (self.high - self.low) // self.step + 1


class FloatRange(Frozen):
    """The interval [low, high]; proposed uniformly in log scale if `log`."""

    low: float
    high: float
    log: bool = False

    @model_validator(mode="after")
    def _ordered(self) -> "FloatRange":
        if self.low > self.high:
            raise ValueError(
                f"`low <= high` must hold, but got low = {self.low}, high = {self.high}"
            )
        if self.log and self.low <= 0:
            raise ValueError(f"`low > 0` must hold with log = true, but got {self.low}")
        return self

    def at(self, unit: float) -> float:
        """Return the member at quantile `unit` in [0, 1)."""
        if self.log:
            return float(self.low * (self.high / self.low) ** unit)
        return self.low + unit * (self.high - self.low)

    def contains(self, value: ParameterValue) -> bool:
        """Tell whether `value` is a member."""
        return isinstance(value, int | float) and self.low <= value <= self.high

    @property
    def size(self) -> float:
        """Number of members: infinite unless the interval is a point."""
        return 1 if self.low == self.high else math.inf


class Choice(Frozen):
    """One of a few options."""

    options: Annotated[tuple[ParameterValue, ...], Field(min_length=1)]

    def at(self, unit: float) -> ParameterValue:
        """Return the option at quantile `unit` in [0, 1)."""
        return self.options[min(len(self.options) - 1, int(unit * len(self.options)))]

    def contains(self, value: ParameterValue) -> bool:
        """Tell whether `value` is one of the options."""
        return any(type(value) is type(option) and value == option for option in self.options)

    @property
    def size(self) -> float:
        """Number of options."""
        return len(self.options)


Domain = IntRange | FloatRange | Choice

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
    prior_groups: Literal["tensor", "module", "kind", "width", "scalar"] = "tensor"


class TrainingPlan(Frozen):
    """How one architecture is trained; the prior is the only regulariser."""

    epochs: Annotated[int, Field(ge=1)] = 40
    batch_size: Annotated[int, Field(ge=1)] = 128
    optimiser: Literal["sgd", "adam"] = "sgd"
    learning_rate: Annotated[float, Field(gt=0)] = 0.01
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9  # read by "sgd"
    schedule: Literal["constant", "cosine", "steps"] = "cosine"
    milestones: tuple[Annotated[int, Field(ge=1)], ...] = ()  # epochs, read by "steps"
    decay: Annotated[float, Field(gt=0, lt=1)] = 0.1  # factor at each milestone
    prior_precision: Annotated[float, Field(gt=0)] = 1.0  # before the first update
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
    path: str | None = None  # of an .npz file

    @model_validator(mode="after")
    def _path(self) -> "DatasetSpec":
        if self.name == "npz" and self.path is None:
            raise ValueError('`path` must name the .npz file when name = "npz"')
        if self.name != "npz" and self.path is not None:
            raise ValueError(f'`path` is read for name = "npz" only, but name = "{self.name}"')
        if self.name != "digits" and self.test_size is not None:
            raise ValueError(
                f'`test_size` is for data without a test split, but "{self.name}" has one; '
                "use max_test"
            )
        return self


class SamplerSpec(Frozen):
    """Who proposes architectures; every argument is written out, none left to the library."""

    name: Literal["tpe", "random", "grid"] = "tpe"
    startup_per_family: Annotated[int, Field(ge=1)] = 6  # quasi-random points before the sampler
    n_ei_candidates: Annotated[int, Field(ge=1)] = 24
    multivariate: bool = True
    group: bool = True
    constant_liar: bool = True


class ResourceSpec(Frozen):
    """What a study may use; may change between runs of one study."""

    workers: Annotated[int, Field(ge=1)] = 2
    cpus: Annotated[int, Field(ge=1)] = 1  # torch threads a worker
    gpus: Literal["auto"] | float = "auto"  # share of one GPU a worker

    @field_validator("gpus", mode="before")
    @classmethod
    def _share(cls, value: object) -> object:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value != "auto" and not (number and 0 <= value <= 1):  # type: ignore[operator]
            raise ValueError(f'`gpus` must be "auto" or a share from 0 to 1, but got {value!r}')
        return value


class StudySpec(Frozen):
    """A whole study: one file, one folder of results."""

    name: Annotated[str, Field(min_length=1)]
    seed: Annotated[int, Field(ge=0)] = 0
    n_trials: Annotated[int, Field(ge=1)] = 24
    replicates: Annotated[int, Field(ge=1)] = 1
    objective: Literal[*SCORES] = "kfac_ggn"  # type: ignore[valid-type]
    estimators: tuple[Literal[*SCORES], ...] = ("diag_ef", "kfac_ggn")  # type: ignore[valid-type]
    dataset: DatasetSpec
    family: Mapping[str, Mapping[str, Domain]]
    plan: TrainingPlan = TrainingPlan()
    sampler: SamplerSpec = SamplerSpec()
    resources: ResourceSpec = ResourceSpec()

    @model_validator(mode="after")
    def _objective(self) -> "StudySpec":
        if self.objective in LAPLACE_KINDS and self.objective not in self.estimators:
            raise ValueError(
                f'`objective` must be one of the estimators, but got "{self.objective}" '
                f"with estimators = {list(self.estimators)}"
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
