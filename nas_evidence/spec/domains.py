"""Domains of architecture parameters, a range or a choice; and the base class of all values."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from nas_evidence.plumbing.masking import masked
from nas_evidence.plumbing.user_error import UserError

ParameterValue = bool | int | float | str


class Frozen(BaseModel):
    """An immutable value that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class Unit:
    """The unit of a number, or what it counts; used in `Annotated`, for documentation."""

    name: str


@dataclass(frozen=True)
class NoKey:
    """Marks a field that is no key of study files: Python sets it, or `search` does.

    Only the study file of a folder, and its copies, keep it if it is not the default.
    """


def keys_of(kind: type[Frozen]) -> list[str]:
    """Return the fields of a type that are keys of study files."""
    return [name for name, field in kind.model_fields.items() if NoKey() not in field.metadata]


#: No number of a study file is larger: it would be a mistake, and overflow somewhere.
LARGEST = 10**15
Count = Annotated[int, Field(ge=1, le=LARGEST)]
Positive = Annotated[float, Field(gt=0, le=LARGEST)]
NotNegative = Annotated[float, Field(ge=0, le=LARGEST)]
Epochs = Annotated[Count, Unit("epochs")]
Seconds = Annotated[Positive, Unit("seconds")]


class IntRange(Frozen):
    """The integers `low, low + step, ... <= high`; proposed uniformly in log scale if `log`."""

    low: int
    """Smallest member."""
    high: int
    """Largest member, if the steps reach it."""
    log: bool = False
    """Whether proposals are uniform in the logarithm."""
    step: Count = 1
    """From one integer member to the next; 1 with `log = true`."""

    @model_validator(mode="after")
    def _ordered(self) -> "IntRange":
        if self.low > self.high:
            raise UserError(
                "low-above-high",
                f"`low <= high` must hold, but got low = {self.low}, high = {self.high}",
            )
        if self.log and self.low < 1:
            raise UserError(
                "log-needs-low-1", f"`low >= 1` must hold with log = true, but got {self.low}"
            )
        if self.log and self.step != 1:
            raise UserError(
                "log-with-step", f"`step` must be 1 with log = true, but got {self.step}"
            )
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
    """Smallest member."""
    high: float
    """Largest member."""
    log: bool = False
    """Whether proposals are uniform in the logarithm."""

    @model_validator(mode="after")
    def _ordered(self) -> "FloatRange":
        if self.low > self.high:
            raise UserError(
                "low-above-high",
                f"`low <= high` must hold, but got low = {self.low}, high = {self.high}",
            )
        if self.log and self.low <= 0:
            raise UserError(
                "log-needs-positive-low",
                f"`low > 0` must hold with log = true, but got {self.low}",
            )
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
    """The members; `width = [8, 16]` is short for `width = {options = [8, 16]}`, and `[0, 0.1]` is
    `[0.0, 0.1]`."""

    @field_validator("options", mode="before")
    @classmethod
    def _of_python(cls, options: object) -> object:
        # Else the integers of NumPy would become floats.
        if not isinstance(options, list | tuple):
            return options
        return tuple(one.item() if hasattr(one, "item") else one for one in options)

    @field_validator("options")
    @classmethod
    def _of_one_type(cls, options: tuple[ParameterValue, ...]) -> tuple[ParameterValue, ...]:
        # A column of the tables holds one type: 0 would come back as 0.0, of another architecture.
        mixed = {type(option) for option in options} == {int, float}
        return tuple(map(float, options)) if mixed else options

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


def type_of(domain: Domain) -> type[ParameterValue] | None:
    """Return the type of the members of a domain; None if they have several.

    >>> type_of(Choice(options=(True, False))), type_of(Choice(options=(1, 0.5)))
    (<class 'bool'>, <class 'float'>)
    """
    if isinstance(domain, Choice):
        types = {type(option) for option in domain.options}
        return types.pop() if len(types) == 1 else None
    return int if isinstance(domain, IntRange) else float


def value_text(value: ParameterValue) -> str:
    """Return a value of a parameter for the eye.

    >>> value_text(0.24377618), value_text(8), value_text("max")
    ('0.2438', '8', 'max')
    """
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def architecture_text(family: str, values: Mapping[str, ParameterValue]) -> str:
    """Return an architecture in words; layers of one width go without saying.

    >>> architecture_text("mlp", {"depth": 2, "width": 64, "shape": "constant"})
    'mlp, depth 2, width 64'
    """
    said = (
        f"{name} {value_text(value)}"
        for name, value in values.items()
        if (name, value) not in (("shape", "constant"), ("numbers", "plain"))
    )
    return ", ".join([family, *said])


def described(domain: Domain) -> str:
    """Return the members of a domain in readable form.

    >>> described(IntRange(low=8, high=20, step=6)), described(Choice(options=("a", "b")))
    ('8, 14, ..., 20', "{'a', 'b'}")
    """
    if isinstance(domain, Choice):
        return "{" + ", ".join(map(repr, domain.options)) + "}"
    if isinstance(domain, IntRange) and domain.step > 1:
        return f"{domain.low}, {domain.low + domain.step}, ..., {domain.high}"
    return f"{domain.low}..{domain.high}"


def domain_of(value: Any, widest: Domain | None = None) -> Domain:
    """Return the domain that a study file gives: a range, options, or one value.

    Args:
        value: a table, a list of options, or the value itself.
        widest: what it must be within, if that is known.

    Raises:
        ValueError: if it is no domain, or not within the widest one.
    """
    if hasattr(value, "tolist"):  # an array, or a number of NumPy
        value = value.tolist()
    if not isinstance(value, Mapping | IntRange | FloatRange | Choice):
        value = {"options": tuple(value) if isinstance(value, list | tuple) else (value,)}
    if isinstance(value, Mapping):
        value = {key: end.item() if hasattr(end, "item") else end for key, end in value.items()}
        ends = (value.get("low"), value.get("high"))
        floats = widest is None and any(isinstance(end, float) for end in ends)
        numbers = FloatRange if floats or isinstance(widest, FloatRange) else IntRange
        value = (Choice if "options" in value else numbers).model_validate(value, strict=False)
    domain: Domain = value
    if isinstance(domain, Choice) and len(set(domain.options)) < len(domain.options):
        raise UserError("option-twice", f"repeats an option: {list(domain.options)}")
    if widest is None:
        return domain
    allowed = described(widest)
    if isinstance(widest, Choice) and not isinstance(domain, Choice):
        raise UserError(
            "range-of-options",
            f"must be options among {allowed}, but got {domain.low}..{domain.high}",
        )
    members = domain.options if isinstance(domain, Choice) else (domain.low, domain.high)
    for member in members:
        if not widest.contains(member):
            raise UserError(
                "outside-widest-range", f"allows {member!r}, which is outside {allowed}"
            )
    if isinstance(widest, IntRange) and isinstance(domain, IntRange) and domain.step % widest.step:
        raise UserError(
            "step-of-range",
            f"needs step = {widest.step}, but got step = {domain.step} (allowed: {allowed})",
        )
    return domain


def refuse_password(
    text: str, what: str, remedy: str = "the settings of the service's own client"
) -> None:
    """Refuse a URI with a password: it would be printed, logged, and seen in lists of processes.

    Raises:
        ValueError: if it holds one; masks it.
    """
    text = text.replace(" ", "%20")  # all of it is one URI
    if masked(text) != text:
        raise UserError(
            "password-visible",
            f"{what}{masked(text)} holds a password, which others would see; leave it out, and "
            f"give it in {remedy}.",
        )
