"""The status of a study, from what is on disk."""

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from nas_evidence.driver.race import is_finished
from nas_evidence.plumbing.collector import uncollected
from nas_evidence.spec.record import is_race, ranks
from nas_evidence.spec.study import ArchitectureSpec, StudySpec
from nas_evidence.storage.best import ESTIMATE, Standings
from nas_evidence.storage.holding import Holder
from nas_evidence.storage.log import read_log
from nas_evidence.storage.state import State
from nas_evidence.storage.study_folder import holder_of, is_locked, read_study
from nas_evidence.storage.told_order import told_order
from nas_evidence.storage.trial_row import TrialRow

#: Units of an objective.
_PER_DATUM, _PLAIN = "nats per datum", "larger is better"


@dataclass(frozen=True)
class StudyStatus:
    """The status of a study.

    state   "running", "stopped", "budget spent" or "finished"
    running architectures of the trials under way, by trial id
    best    the trial that represents the best architecture (see `best.py`), None while none ranks
    value   what ranks that architecture, in `unit`: its estimate, or the mean over its trials
    column  where the ranking has this value, and `ranks_by` what it is, as the report says it
    n_raced finished trials of the race of the finalists, which come on top of `n_trials`
    holder  which process works on it, if one does
    """

    name: str
    state: str
    n_trials: int
    by_status: dict[str, int]
    running: dict[int, ArchitectureSpec]
    best: TrialRow | None
    value: float
    unit: str
    column: str
    ranks_by: str
    n_raced: int = 0
    holder: Holder | None = None

    @property
    def waits_for(self) -> str:
        """Return what it waits for without a trial that can run, in words; "" otherwise."""
        return "" if self.holder is None else self.holder.waits_for

    @property
    def n_finished(self) -> int:
        """Return the number of trials of the search with a final status."""
        return sum(self.by_status.values()) - self.n_raced


@uncollected()
def study_status(folder: Path) -> StudyStatus:
    """Return the status of the study in `folder`.

    Raises:
        ValueError: if `folder` is not a study folder.
    """
    study, alive = read_study(folder), is_locked(folder)
    known = read_log(folder).state
    done = known.rows
    if alive:
        state = "running"
    elif is_finished(study, known.race, done):
        state = "finished"
    else:
        state = "budget spent" if known.spent.exceeds(study.budget) else "stopped"

    best, value, unit, ranks_by = _best(folder, study, known)
    return StudyStatus(
        name=study.name,
        state=state,
        n_trials=study.n_trials,
        by_status=dict(Counter(str(row.status) for i, row in done.items() if ranks(i))),
        running={i: known.architecture(i, study.replicates) for i in sorted(known.under_way)}
        if alive
        else {},
        best=best,
        value=value,
        unit=unit,
        column=ESTIMATE if study.rank_by == ESTIMATE else study.objective,
        ranks_by=ranks_by,
        n_raced=sum(map(is_race, done)),
        holder=holder_of(folder) if alive else None,
    )


def _best(folder: Path, study: StudySpec, known: State) -> tuple[TrialRow | None, float, str, str]:
    """Return the trial of the best architecture, its value, the unit, and what ranks."""
    done = known.rows
    if told := told_order(folder, study, done.values()):
        return done[told[0].trial_id], told[0].estimate, _PER_DATUM, ESTIMATE
    standings = Standings(study, done.values())
    first, best, value, unit = standings.best, None, math.nan, ""
    if first is not None:
        from nas_evidence.storage.tables import per_datum_of  # late: it imports pyarrow

        best, objective = done[first.trial_id], study.objective
        value, unit = first.ranked, _PLAIN
        per_datum = per_datum_of(folder, known, best, objective)
        if per_datum is not None:  # of as many data in every trial
            of_best = best.values[objective]
            value, unit = value * per_datum / of_best if of_best else per_datum, _PER_DATUM
    return best, value, unit, standings.ranks_by
