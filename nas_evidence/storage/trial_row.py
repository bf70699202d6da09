"""What is known of a finished trial without its tables."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer

from nas_evidence.spec.columns import columns_declared
from nas_evidence.spec.domains import ParameterValue
from nas_evidence.spec.record import TrialRecord, TrialStatus
from nas_evidence.spec.study import ALL_COSTS, ArchitectureSpec
from nas_evidence.storage.study_names import Digest, Number


@dataclass(frozen=True, slots=True)
class TrialRow:
    """What the driver needs from a finished trial; the log has it.

    `values` maps each estimator to its last value (larger is better), if valid; `costs` has those
    of n_parameters, flops, memory_bytes and latency_seconds that are known; `own` what callbacks
    know of it, by column.
    """

    trial_id: Number
    attempt: Number
    replicate: int
    status: TrialStatus
    architecture: ArchitectureSpec
    values: Mapping[str, float]
    costs: Mapping[str, float]
    cause: str = ""
    total_seconds: float = 0.0
    epochs: int = 0
    gpu_share: float | None = None
    content_hash: Digest | None = None
    own: Mapping[str, ParameterValue] = field(default_factory=dict)

    @model_serializer(mode="wrap")
    def _written(self, fields: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the fields for the log, `own` only where there is something."""
        found: dict[str, Any] = fields(self)
        if not self.own:
            found.pop("own", None)
        return found

    @property
    def architecture_key(self) -> str:
        """Return the hash of family and values."""
        return self.architecture.key

    @property
    def family(self) -> str:
        """Return the name of the architecture's family."""
        return self.architecture.family

    @classmethod
    def of(cls, record: TrialRecord) -> "TrialRow":
        """Return the row that `tables.rows_of` reads back once `record` is written."""
        last = {e.estimate.estimator: e.estimate for e in record.evaluations}
        costs = {name: getattr(record, name) for name in ALL_COSTS}
        return cls(
            **{name: getattr(record, name) for name in COPIED},
            architecture=record.architecture,
            values={k: e.value for k, e in last.items() if e.valid and math.isfinite(e.value)},
            costs={k: float(v) for k, v in costs.items() if v is not None and math.isfinite(v)},
            own=dict(record.own),
        )


#: The fields that are columns of `trials`, taken over as they are.
COPIED = tuple(one.name for one in fields(TrialRow) if one.name in columns_declared(TrialRecord))
