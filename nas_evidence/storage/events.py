"""The facts of a study, one class each: what a line of its log says.

`driver.py` writes them, `state.py` folds them. A fact that a decision rests on is written
durably before the decision acts. What becomes the name of a file is checked as one: a line with
another is damaged.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator
from pydantic_core import PydanticCustomError

from nas_evidence.maths.pareto import Point
from nas_evidence.spec.record import LossKind
from nas_evidence.spec.study import ArchitectureSpec
from nas_evidence.storage.study_names import Digest, Number, Part, Table
from nas_evidence.storage.trial_row import TrialRow


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants", strict=True)

    def facts(self) -> dict[str, Any]:
        """Return what a person reads: the values that are known, by name."""
        known = ((name, getattr(self, name)) for name in type(self).model_fields)
        return {name: value for name, value in known if value is not None and name != "event"}


class Began(_Event):
    """A process begins to write."""

    event: Literal["begin"] = "begin"
    pid: int
    host: str
    boot_id: str


class Asked(_Event):
    """The sampler has proposed an architecture; `recovered` if the log had lost it."""

    event: Literal["ask"] = "ask"
    number: Number
    architecture: ArchitectureSpec
    recovered: bool = False


class Launched(_Event):
    """An attempt at a trial has begun."""

    event: Literal["launch"] = "launch"
    trial_id: Number
    attempt: Number


class Parked(_Event):
    """An attempt is off its worker; it continues later."""

    event: Literal["park"] = "park"
    trial_id: Number
    attempt: Number


class AtRung(_Event):
    """A trial has reached a rung, with its scores there; None if they are not known."""

    event: Literal["rung"] = "rung"
    trial_id: Number
    epoch: Number
    point: Annotated[Point | None, Field(strict=False)]


class Judged(_Event):
    """What an asynchronous search has decided at a rung; `reason` is None if the trial passes."""

    event: Literal["judged"] = "judged"
    trial_id: Number
    epoch: Number
    reason: str | None


class AttemptLost(_Event):
    """An attempt was lost with its worker.

    epoch     of the last checkpoint of the trial, 0 without one
    progress  whether this attempt had written one; None where the loss does not count
    kind      of the loss
    share     of a GPU that the next attempt needs
    """

    event: Literal["lost"] = "lost"
    trial_id: Number
    attempt: Number
    cause: str
    epoch: Number | None = None
    progress: bool | None = None
    kind: LossKind = LossKind.CRASH
    share: float | None = None


class Again(_Event):
    """A stored trial runs again, on request or because its tables are torn.

    attempt  that is superseded
    """

    event: Literal["retry"] = "retry"
    trial_id: Number
    attempt: Number


class Ended(_Event):
    """A trial is stored: only from this line on it counts as finished.

    row      what is known of it without its tables
    files    digest of its file in each table
    wall_seconds, device_seconds  that the study has used so far
    """

    event: Literal["end"] = "end"
    row: TrialRow
    files: Mapping[Table, Digest]
    wall_seconds: float = 0.0
    device_seconds: float = 0.0
    recovered: bool = False

    def facts(self) -> dict[str, Any]:
        """Return what a person reads."""
        row = self.row
        return {"trial_id": row.trial_id, "attempt": row.attempt, "status": str(row.status)}


class Merged(_Event):
    """The files of some attempts are one file in each table now.

    part      name of the files, without their ending
    files     digest of each, by table
    attempts  trial id and attempt of each
    """

    event: Literal["merge"] = "merge"
    part: Part
    files: Mapping[Table, Digest]
    attempts: Annotated[tuple[tuple[Number, Number], ...], Field(strict=False)]

    def facts(self) -> dict[str, Any]:
        """Return what a person reads."""
        return {"part": self.part, "n_attempts": len(self.attempts)}


class Told(_Event):
    """The sampler knows the result of a proposal; see `driver/outcomes.py`."""

    event: Literal["tell"] = "tell"
    number: Number
    values: Annotated[Point | None, Field(strict=False)]
    pruned: bool
    constraints: Mapping[str, float]
    recovered: bool = False


class RaceRound(_Event):
    """The next trials of the race of the finalists, or their next networks of all rows."""

    event: Literal["race"] = "race"
    trial_ids: Annotated[tuple[Number, ...], Field(strict=False)]
    architectures: Annotated[tuple[ArchitectureSpec, ...], Field(strict=False)]

    @model_validator(mode="after")
    def _one_each(self) -> Self:
        if len(self.trial_ids) != len(self.architectures):
            raise PydanticCustomError("race", "each trial has one architecture")
        return self


class Used(_Event):
    """The seconds that the study has used so far."""

    event: Literal["used"] = "used"
    wall_seconds: float
    device_seconds: float


class Stopped(_Event):
    """A process ends in order."""

    event: Literal["stop"] = "stop"
    idle_share: float
    wall_seconds: float
    device_seconds: float


Event = (
    Began
    | Asked
    | Launched
    | Parked
    | AtRung
    | Judged
    | AttemptLost
    | Again
    | Ended
    | Merged
    | Told
    | RaceRound
    | Used
    | Stopped
)
#: Reads an event from JSON; raises `ValueError` for what is none.
EVENT: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="event")])
