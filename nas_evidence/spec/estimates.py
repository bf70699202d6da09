"""One score of one model, with its parts.

Every `value` is larger-is-better; evidence is in nats, summed over the data.
"""

from nas_evidence.spec.domains import Frozen
from nas_evidence.spec.registry import Relation


class Term(Frozen):
    """One named part of an estimate; `group` is a parameter tensor, or "all"."""

    term: str
    group: str
    value: float


class EvidenceEstimate(Frozen):
    """One score of one model.

    value           larger is better; nats summed over the data where `per_datum` is given, of
                    folds over the data of one fold, averaged over the folds
    per_datum       mean over the data in nats, or None for other units: value / n_data, of folds
                    value / (n_data / folds)
    standard_error  of `value`, None where the estimator is deterministic
    relation        what holds on linear-Gaussian models: exact, lower bound, or score only
    terms           the parts of the value, some by parameter group
    valid, note     False, with the condition that was not met; never a silent NaN
    """

    estimator: str
    value: float
    per_datum: float | None = None
    standard_error: float | None = None
    relation: Relation = "SCORE"
    terms: tuple[Term, ...] = ()
    seconds: float = 0.0
    valid: bool = True
    note: str = ""

    def raised(self, nats: float, n_data: int) -> "EvidenceEstimate":
        """Return the estimate with nats of all `n_data` data added, such as of a Jacobian."""
        if nats == 0:
            return self
        per_datum = None if self.per_datum is None else self.per_datum + nats / n_data
        return self.model_copy(update={"value": self.value + nats, "per_datum": per_datum})
