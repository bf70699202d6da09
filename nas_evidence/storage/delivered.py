"""Which trials a study delivers: what predicts, is exported and is judged in the report.

The key `deliver` of a study says it:

    single  the network that represents the best architecture
    seeds   all networks of that architecture: each was trained on all data, from another seed, and
            judged by the score
    three   all networks of the three best architectures

Several networks predict together, with equal weights (`exporting/mixture.py`). A study without the
key delivers one network.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nas_evidence.spec.study import StudySpec
from nas_evidence.storage.best import Standing, Standings
from nas_evidence.storage.told_order import told_order

if TYPE_CHECKING:  # imports pandas
    from nas_evidence.storage.tables import StudyTables

#: Architectures whose networks predict together, by what is delivered.
_ARCHITECTURES = {"seeds": 1, "three": 3}


def delivered_trials(tables: "StudyTables") -> list[int]:
    """Return the trials that a study delivers, first the one that represents the winner.

    Empty without a winner.
    """
    study = tables.spec
    if "standings" not in vars(tables):  # not fitted yet
        told = told_order(tables.folder, study, [*tables.rows, *tables.whole_rows])[: n_architectures(study)]
        if told:
            return [i for one in told for i in _delivered(one.trial_id, one.trial_ids, study)]
    return delivered_among(tables.standings, study)


def delivered_among(standings: Standings, study: StudySpec) -> list[int]:
    """Return the same of the standings of a study."""
    best = standings.first(n_architectures(study))
    return [i for standing in best for i in delivered_of(standing, study)]


def n_architectures(study: StudySpec) -> int:
    """Return of how many architectures a study delivers networks."""
    return _ARCHITECTURES.get(study.deliver, 1)


def cost_of_networks(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return how many parameters networks have together, and how long a forward pass of all takes.

    Args:
        rows: of their trials in the table `trials`, where the pass of one example was measured.
    """
    n = sum(int(row["n_parameters"]) for row in rows)
    seconds = sum(float(row.get("latency_seconds") or "nan") for row in rows)
    if math.isnan(seconds):
        return f"{n:,} parameters in all"
    return f"{n:,} parameters in all, and a forward pass of one row takes {1000 * seconds:.2g} ms"


def delivered_of(standing: Standing, study: StudySpec) -> list[int]:
    """Return the trials of an architecture that a study delivers if it is among the best."""
    return _delivered(standing.trial_id, standing.values, study)


def _delivered(first: int, trial_ids: Iterable[int], study: StudySpec) -> list[int]:
    if study.deliver not in _ARCHITECTURES:
        return [first]
    return [first, *sorted({*trial_ids} - {first})]
