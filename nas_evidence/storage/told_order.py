"""The order of architectures as the report of a study tells it, where that is of what is stored.

The estimates that rank architectures are fitted, which needs scipy: half of the time of `status`
and `list`, and a third of that of `predict` beside torch. A finished study has them in its report.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from nas_evidence.plumbing.parsing import parsed_json
from nas_evidence.plumbing.sums import wrong_sums
from nas_evidence.spec.study import StudySpec
from nas_evidence.storage.best import ESTIMATE, Standings
from nas_evidence.storage.trial_row import TrialRow

if TYPE_CHECKING:  # imports pandas
    from nas_evidence.storage.tables import StudyTables

_NAME = "report.json"
#: Relative difference of two means of the same numbers.
_ROUNDING = 1e-9


class ToldRank(NamedTuple):
    """An architecture: the trial that stands for it, all of its trials, its estimate per datum."""

    trial_id: int
    trial_ids: tuple[int, ...]
    estimate: float


def best_trial(tables: "StudyTables") -> int | None:
    """Return the trial that represents the best architecture, None without one."""
    fitted = "standings" in vars(tables)
    if not fitted and (told := told_order(tables.folder, tables.spec, tables.all_rows)):
        return told[0].trial_id
    best = tables.standings.best
    return None if best is None else best.trial_id


def told_order(folder: Path, study: StudySpec, trials: Iterable[TrialRow]) -> list[ToldRank]:
    """Return the architectures that rank, best first, as the report of a study has them.

    Empty if there is no report, if it is not as it was written, or if it is of other trials or
    scores than these, of another study, or has no estimates per datum.

    Args:
        folder: of the study.
        study: as it is now.
        trials: all that ended.
    """
    report = folder / "report"
    try:
        if study.rank_by != ESTIMATE or wrong_sums(report, [_NAME]):
            return []
        told = parsed_json((report / _NAME).read_bytes())["study"]
        known = (study.name, study.objective, ESTIMATE, "nats per datum")
        if (told["name"], told["score"], told["ranked_by"], told["unit"]) != known:
            return []
        ranking = [one for one in told["ranking"] if one["rank"] is not None]
        means = [float(one["objective"]) for one in ranking]
        found = [
            ToldRank(one["trial_id"], tuple(sorted(one["trial_ids"])), float(one["estimate"]))
            for one in ranking
        ]
        in_order = [one["rank"] for one in ranking] == [*range(1, len(ranking) + 1)]
        finite = all(math.isfinite(one.estimate) for one in found)
        return found if in_order and finite and _are_of(found, means, study, trials) else []
    except (OSError, ValueError, TypeError, LookupError, ArithmeticError):
        return []


def _are_of(
    told: list[ToldRank], means: list[float], study: StudySpec, trials: Iterable[TrialRow]
) -> bool:
    """Return whether these are all architectures of the trials, with their mean scores per datum.

    All trials are of as many data.
    """
    rows = {row.trial_id: row for row in trials}
    stored = {tuple(one.values): one for one in Standings(study, rows.values()).unordered}
    if not told or {one.trial_ids: one.trial_id for one in told} != {
        trial_ids: one.trial_id for trial_ids, one in stored.items()
    }:
        return False
    sums = [fmean(rows[i].values[study.objective] for i in one.trial_ids) for one in told]
    per_datum = sum(map(abs, means)) / sum(map(abs, sums))
    return all(
        math.isclose(mean, per_datum * own, rel_tol=_ROUNDING)
        for mean, own in zip(means, sums, strict=True)
    )
