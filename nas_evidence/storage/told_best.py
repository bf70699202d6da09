"""The best architecture of a study as its report tells it, where the report is of what is stored.

The estimates that rank architectures are fitted, which needs scipy and the tables: half of the
time of `status` and `list`. A finished study has them in its report.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from nas_evidence.plumbing.parsing import parsed_json
from nas_evidence.plumbing.sums import wrong_sums
from nas_evidence.spec.record import TrialStatus
from nas_evidence.spec.study import StudySpec
from nas_evidence.storage.best import ESTIMATE, ranked_value
from nas_evidence.storage.trial_row import TrialRow

_NAME = "report.json"
#: Relative difference of two means of the same numbers.
_ROUNDING = 1e-9


class ToldBest(NamedTuple):
    """The trial that represents the best architecture, and its estimate in nats per datum."""

    trial_id: int
    estimate: float


def told_best(folder: Path, study: StudySpec, trials: Iterable[TrialRow]) -> ToldBest | None:
    """Return the best architecture of a study as its report has it.

    None if there is no report, if it is not as it was written, or if it is of other trials or
    scores than these, of another study, or has no estimates per datum.

    Args:
        folder: of the study.
        study: as it is now.
        trials: all that ended.
    """
    report = folder / "report"
    try:
        if wrong_sums(report, [_NAME]):
            return None
        told = parsed_json((report / _NAME).read_bytes())["study"]
        same = (told["name"], told["score"], told["ranked_by"], told["unit"]) == (
            study.name, study.objective, ESTIMATE, "nats per datum",
        )  # fmt: skip
        if not (same and study.rank_by == ESTIMATE and _is_of(told["ranking"], study, trials)):
            return None
        first = told["ranking"][0]
        found = ToldBest(first["trial_id"], float(first["estimate"]))
        known = first["rank"] == 1 and found.trial_id in first["trial_ids"]
        return found if known and math.isfinite(found.estimate) else None
    except (OSError, ValueError, TypeError, LookupError, ArithmeticError):
        return None


def _is_of(ranking: list[dict[str, Any]], study: StudySpec, trials: Iterable[TrialRow]) -> bool:
    """Return whether a ranking is of these trials and their scores, all of as many data."""
    told = {tuple(sorted(one["trial_ids"])): one["objective"] for one in ranking if one["rank"]}
    stored = defaultdict[str, dict[int, float]](dict)
    for row in trials:
        if row.status is TrialStatus.COMPLETE and ranked_value(row.values, study) is not None:
            stored[row.architecture.key][row.trial_id] = row.values[study.objective]
    means = {tuple(sorted(own)): fmean(own.values()) for own in stored.values()}
    if not means or told.keys() != means.keys():
        return False
    per_datum = sum(map(abs, told.values())) / sum(map(abs, means.values()))
    return all(math.isclose(told[i], per_datum * means[i], rel_tol=_ROUNDING) for i in means)
