"""What the sampler is told of a finished proposal, and finalists of their folds; kept weights.

Failures, infinities and pruned trials are never told as values; a limit is told as a constraint,
value / limit - 1, which is at most 0 where the limit holds.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from nas_evidence.maths.pareto import Point, is_matched, on_front
from nas_evidence.proposing.proposer import ProposalResult
from nas_evidence.spec.divisions import predicted_folds, reported_division
from nas_evidence.spec.record import WHOLE_IDS, TrialStatus
from nas_evidence.spec.study import LimitSpec, StudySpec
from nas_evidence.storage.best import Standings, ranked_value
from nas_evidence.storage.state import State
from nas_evidence.storage.study_names import TableName, remove
from nas_evidence.storage.tables import cells_of
from nas_evidence.storage.trial_row import TrialRow

#: Up to this many trials all weights are kept; then those of this many best architectures.
KEEP_ALL_MODELS, KEEP_BEST_MODELS = 200, 20
_TABLES: tuple[TableName, ...] = ("trials", "evidence")


def result_of(trials: Collection[TrialRow], study: StudySpec) -> ProposalResult:
    """Return the result of a proposal: means over its complete replicates.

    The first is of the value that ranks. No values if no complete replicate has it and all costs.
    """
    constraints: dict[str, float] = {}
    for trial in trials:
        for name, excess in excesses(trial, study.limits).items():
            constraints[name] = max(excess, constraints.get(name, -math.inf))
    complete = [t for t in trials if t.status is TrialStatus.COMPLETE]
    means = [_mean(ranked_value(t.values, study) for t in complete)]
    means += [_mean(t.costs.get(name) for t in complete) for name in study.minimise]
    values = tuple(mean for mean in means if mean is not None)
    pruned = not complete and any(t.status is TrialStatus.PRUNED for t in trials)
    return ProposalResult(values if len(values) == len(means) else None, constraints, pruned)


def found_by_folds(
    folder: Path, state: State, row: TrialRow, study: StudySpec
) -> tuple[float | None, float | None]:
    """Return what the network of all rows of a trial needs of its folds; None for what is lost.

    Args:
        folder: of the study.
        state: of its log.
        row: of a trial that has trained its folds alone.
        study: what was asked.

    Returns:
        The factor on the spread of predictions; and the largest training loss per datum that is
        no divergence. It is the mean of the folds and their standard deviation, or the loss of
        held-out rows if that is larger: more rows are fitted less closely.
    """
    trials, evidence = (cells_of(folder, state, row, table) for table in _TABLES)
    factor = trials[-1].get("spread_factor") if trials else None
    last = {one["estimator"]: one for one in evidence}
    loss = last.get("train_nll_per_datum", {})
    if loss.get("value") is None or loss.get("standard_error") is None:
        return factor, None
    in_time, asked = study.dataset.time_column is not None, (study.plan, study.estimators, 0)
    n_networks = predicted_folds(*asked, in_time=in_time)[reported_division(*asked)]
    spread = loss["standard_error"] * math.sqrt(n_networks)
    return factor, max(-loss["value"] + spread, -last[study.objective]["per_datum"])


def excesses(trial: TrialRow, limits: LimitSpec) -> dict[str, float]:
    """Return by how much a trial exceeds each limit, relative to the limit."""
    there = limits.given.items()
    found = {name: trial.costs[name] / limit - 1 for name, limit in there if name in trial.costs}
    if trial.status is TrialStatus.INFEASIBLE and not any(e > 0 for e in found.values()):
        found["architecture"] = 1.0  # cannot be built for this data
    return found


def _mean(values: Iterable[float | None]) -> float | None:
    valid = [value for value in values if value is not None and math.isfinite(value)]
    return math.fsum(valid) / len(valid) if valid else None


class KeptModels:
    """The weights in `models/`: all of a small study, the best few of a large one.

    A large study keeps those of the trials that represent the best architectures (see
    `storage/best.py`) and all that race or may race, hence always the winner's. With several
    objectives it also keeps those of all architectures on the Pareto front of the means.
    """

    def __init__(self, folder: Path, study: StudySpec, done: Mapping[int, TrialRow]) -> None:
        self._folder, self._study = folder / "models", study
        self._standings = Standings(study)
        self._costs: dict[str, dict[int, list[float]]] = {}  # by architecture and trial
        self._points: dict[str, Point] = {}  # every coordinate larger-is-better
        self._front: set[str] = set()
        self._limited = False
        for row in done.values():
            self._rank(row)

    def add(self, row: TrialRow, n_done: int) -> None:
        """Add a finished trial; delete the weights that are no longer kept."""
        before = self._wanted() if self._limited else set()
        self._rank(row)
        if self._limited:
            for trial_id in (before | {row.trial_id}) - self._wanted():
                self._remove(self._path(trial_id))
        self.limit(n_done)

    def take(self, weights: Path, trial_id: int) -> None:
        """Move a trial's weights here; if it wrote none, delete those of a killed attempt."""
        if weights.exists():
            self._folder.mkdir(exist_ok=True)
            weights.replace(self._path(trial_id))
        else:
            self._remove(self._path(trial_id))

    def limit(self, n_done: int) -> None:
        """Delete the weights that a study of so many finished trials does not keep."""
        if not self._limited and n_done > KEEP_ALL_MODELS:
            self._limited = True
            keep = {self._path(trial_id).name for trial_id in self._wanted()}
            for path in self._folder.glob("*.safetensors"):
                if path.name not in keep:
                    self._remove(path)

    def _rank(self, row: TrialRow) -> None:
        standing = self._standings.add(row)
        if standing is None or not self._study.minimise:
            return
        costs = self._costs.setdefault(standing.key, {})
        costs[row.trial_id] = [row.costs.get(name, math.inf) for name in self._study.minimise]
        means = (math.fsum(own) / len(own) for own in zip(*costs.values(), strict=True))
        point = (standing.mean, *(-mean for mean in means))
        front = [self._points[key] for key in self._front]
        self._points[standing.key] = point
        if standing.key in self._front:  # points that it dominated so far may join the front
            keys = list(self._points)
        elif is_matched(point, front) and point not in front:
            return
        else:
            keys = [*self._front, standing.key]
        found = on_front([self._points[key] for key in keys])
        self._front = {key for key, is_best in zip(keys, found, strict=True) if is_best}

    def _wanted(self) -> set[int]:
        front = (self._standings.of(key) for key in self._front)
        # Those that raced come first, then the next finalists: any of them may win.
        in_race = self._standings.n_raced + self._study.n_finalists
        n = None if self._standings.is_estimated else max(KEEP_BEST_MODELS, in_race)
        best = (*self._standings.first(n), *front)
        kept = {standing.trial_id for standing in best}
        return kept | {WHOLE_IDS + i for i in kept}

    def _remove(self, weights: Path) -> None:
        remove(self._folder.parent, f"{self._folder.name}/{weights.name}")

    def _path(self, trial_id: int) -> Path:
        return self._folder / f"{trial_id}.safetensors"
