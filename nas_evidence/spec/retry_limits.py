"""When a trial that keeps losing its worker is given up: the table [retries] of a study file."""

from typing import Annotated, Literal

from pydantic import ValidationInfo, field_validator

from nas_evidence.spec.domains import LARGEST, Frozen, Unit

#: A number of attempts, or no limit.
Limit = Literal["unlimited"] | int


class RetrySpec(Frozen):
    """When a trial that keeps losing its worker is given up; may change between runs of a study.

    A lost attempt is retried from its last checkpoint. `resume --retry-failed` retries trials that
    were given up.
    """

    crashes: Annotated[Limit, Unit("attempts")] = 3
    """Attempts in a row that may crash or hang their worker without writing a checkpoint, beside
    10 that may be lost together with their machine; or "unlimited", for both."""

    @field_validator("crashes", mode="before")
    @classmethod
    def _limit(cls, value: object, info: ValidationInfo) -> object:
        number = isinstance(value, int) and not isinstance(value, bool)
        if value != "unlimited" and not (number and 1 <= value <= LARGEST):  # type: ignore[operator]
            raise ValueError(
                f'`{info.field_name}` must be a number of attempts or "unlimited", '
                f"but got {value!r}"
            )
        return value
