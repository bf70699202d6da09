"""A job on a Ray cluster, and what can go wrong with one; needs no ray."""

from dataclasses import dataclass

from nas_evidence.plumbing.user_error import UserError

_ALIVE = ("PENDING", "RUNNING")
#: The keys of a job's metadata that say of which study it is, where that is stored, and at which
#: address it was submitted.
STUDY, STORE, ADDRESS = "nas_evidence_study", "nas_evidence_store", "nas_evidence_address"


class UnreachableError(UserError):
    """The cluster does not answer, or its answer makes no sense."""


class IdTakenError(UserError):
    """A job with this id already exists."""


class NotReadyError(UnreachableError):
    """The cluster has just started and accepts no jobs yet."""


@dataclass(frozen=True)
class Job:
    """A job of a study, as the cluster describes it; state and exit code are Ray's."""

    id: str
    study: str
    store: str
    state: str
    message: str = ""
    exit_code: int | None = None

    @property
    def alive(self) -> bool:
        """Return whether the job is waiting or running."""
        return self.state in _ALIVE

    @property
    def cause(self) -> str:
        """Return why it failed as one line; "" while it runs, or if nobody knows."""
        if self.state != "FAILED":
            return ""
        if self.exit_code is not None and self.exit_code < 0:
            # What it had printed last says nothing of its end.
            return f"its driver was killed by signal {-self.exit_code}, without a last word"
        return (self.message.strip().splitlines() or [""])[-1]
