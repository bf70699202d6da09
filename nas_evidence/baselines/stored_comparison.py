"""The winner of a study beside simple models, from the study folder or computed and kept there."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING

from nas_evidence.baselines.comparison import Comparison, read_comparison, write_comparison
from nas_evidence.storage.tables import StudyTables
from nas_evidence.storage.told_order import best_trial

if TYPE_CHECKING:  # imports the data readers
    from nas_evidence.data import ArrayData
    from nas_evidence.data.source import Source

Within = Callable[[], AbstractContextManager[None]]


def kept_comparison(
    tables: StudyTables,
    data: "Source",
    *,
    within: Within = nullcontext,
) -> Comparison | None:
    """Return the winner of a study beside its baselines; data and torch only if it is new.

    Args:
        tables: of the study.
        data: of the study.
        within: what it returns raises TimeoutError when the time for simple models is over. The
            comparison then has the winner's own metrics, and names what it lacks, which the next
            call computes.

    Raises:
        ValueError: if the data are missing or do not fit.
    """
    if is_compared(tables):
        return read_comparison(tables.folder)
    found = _judge(tables, data.arrays(seed=tables.spec.seed), within)
    if found is not None:
        write_comparison(tables.folder, found)
    return found


def is_compared(tables: StudyTables) -> bool:
    """Return whether the winner of a study has its stored comparison, or there is no winner."""
    stored, best = read_comparison(tables.folder), tables.standings.best
    if best is None:
        return True
    return stored is not None and _is_present(stored, tables)


def _judge(tables: StudyTables, arrays: "ArrayData", within: Within) -> Comparison | None:
    from nas_evidence.baselines.on_test_rows import judge  # imports torch

    steps = judge(tables, arrays)
    found = next(steps, None)
    with suppress(TimeoutError), within():
        for one in steps:
            found = one
    return found


def _is_present(stored: Comparison, tables: StudyTables) -> bool:
    importance, metric = stored.importance, tables.spec.metric
    if stored.lacks or (stored.on == "folds" and stored.corrected is None):
        return False
    same = stored.trial_id == best_trial(tables)
    return same and (importance is None or importance.asked == metric)
