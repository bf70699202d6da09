"""The winner of a study beside simple models, from the study folder or computed and kept there."""

from typing import TYPE_CHECKING

from nas_evidence.baselines.comparison import Judgement, read_judgement, write_judgement
from nas_evidence.storage.tables import StudyTables

if TYPE_CHECKING:  # imports the data readers
    from nas_evidence.data.source import Source


def kept_judgement(tables: StudyTables, data: "Source") -> Judgement | None:
    """Return the winner of a study beside its yardsticks; data and torch only if it is new.

    Raises:
        ValueError: if the data are missing or do not fit.
    """
    stored, best = read_judgement(tables.folder), tables.standings.best
    if best is None or (stored is not None and stored.trial_id == best.trial_id):
        return stored
    from nas_evidence.baselines.on_test_rows import judge

    found = judge(tables, data.arrays(seed=tables.spec.seed))
    if found is not None:
        write_judgement(tables.folder, found)
    return found
