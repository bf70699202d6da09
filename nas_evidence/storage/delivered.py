"""Which trials a study delivers: what predicts, is exported and is judged in the report.

The key `deliver` of a study says it:

    single  the network that represents the best architecture
    seeds   all networks of that architecture: each was trained on all data, from another seed, and
            judged by the score
    three   all networks of the three best architectures

Several networks predict together, with equal weights (`exporting/mixture.py`). A study without the
key delivers one network.
"""

from typing import TYPE_CHECKING

from nas_evidence.spec.study import StudySpec
from nas_evidence.storage.best import Standing

if TYPE_CHECKING:  # imports pandas
    from nas_evidence.storage.tables import StudyTables

#: Architectures whose networks predict together, by what is delivered.
_ARCHITECTURES = {"seeds": 1, "three": 3}


def delivered_trials(tables: "StudyTables") -> list[int]:
    """Return the trials that a study delivers, first the one that represents the winner.

    Empty without a winner.
    """
    best = tables.standings.first(_ARCHITECTURES.get(tables.spec.deliver, 1))
    return [i for standing in best for i in delivered_of(standing, tables.spec)]


def delivered_of(standing: Standing, study: StudySpec) -> list[int]:
    """Return the trials of an architecture that a study delivers if it is among the best."""
    first = standing.trial_id
    if study.deliver not in _ARCHITECTURES:
        return [first]
    return [first, *sorted(standing.values.keys() - {first})]
