"""One score of one model, with its parts.

Every `value` is larger-is-better; evidence is in nats, summed over the data.
"""

from typing import Annotated

from nas_evidence.spec.domains import Frozen, Unit
from nas_evidence.spec.registry import Relation


class Term(Frozen):
    """One named part of an estimate."""

    term: str
    """Name of the part of the estimate."""
    group: str
    """Parameter tensor or fold that the part belongs to, or `all`."""
    value: Annotated[float, Unit("see meaning")]
    """The part. Log likelihoods, scatter and log determinants in nats summed over the data;
    precisions, counts and noise in their own unit."""


class EvidenceEstimate(Frozen):
    """One score of one model, with its parts, some by parameter group; never a silent NaN."""

    estimator: str
    """Name of the score, as in a study file."""
    value: Annotated[float, Unit("see meaning")]
    """The score; larger is better. Nats summed over the data where `per_datum` is given. Scores
    from folds (`conditional_evidence`, `two_fold`, ...): over the data of one fold, averaged over
    the folds, about N/K times `per_datum`; of blocks in time over all data predicted. `sotl*` and
    `train_nll_per_datum` are negated sums."""
    per_datum: Annotated[float | None, Unit("nats")] = None
    """Mean over the data that the score predicts or explains: value / N, of K folds
    value / (N/K). Compare scores by this one. Null for scores of other units."""
    relation: Relation = "SCORE"
    """What holds on linear-Gaussian models: `EXACT_ON_LINEAR`, `LOWER_BOUND`, or `SCORE`, which
    only ranks."""
    standard_error: Annotated[float | None, Unit("as value")] = None
    """Of `value`; null where the score is deterministic."""
    terms: tuple[Term, ...] = ()
    valid: bool = True
    """False if a condition was not met: `note` says which. Never ranks."""
    note: str = ""
    """What to know about it: see [messages](messages.md#notes-of-scores)."""
    seconds: Annotated[float, Unit("seconds")] = 0.0
    """Time that the score took."""

    def raised(self, nats: float, n_data: int) -> "EvidenceEstimate":
        """Return the estimate with nats of all `n_data` data added, such as of a Jacobian."""
        if nats == 0:
            return self
        per_datum = None if self.per_datum is None else self.per_datum + nats / n_data
        return self.model_copy(update={"value": self.value + nats, "per_datum": per_datum})
