"""What the folds of a trial predicted, as tests compare it with what is delivered."""

from torch import Tensor

from nas_evidence.exporting.winner import Winner, stored_unseen
from nas_evidence.scores.folds import cross_fitted


def delivered_unseen(winner: Winner) -> Tensor | None:
    """Return `stored_unseen` with the factor that is fitted on the other folds."""
    table = stored_unseen(winner)
    return None if table is None else cross_fitted(table, winner.data, winner.assignment)
