"""The architectures among which the winner was chosen, by their out-of-fold predictions.

They judge the winner on other rows than those that chose it: `maths/bias_corrected.py`. A trial
keeps them beside its weights (`scores/folds.py`), so nothing is trained for it. They are there
where a study kept the weights of all its architectures, as it does up to 200 trials and for those
that an estimate ranks, and if they are few enough.

    log loss, CRPS  each row by the choice of the draws that leave it out
    ECE             the winner's, and how much larger it is on rows left out than on as many drawn
    RMSE            root of the mean square over draws of that of the rows left out
    other metrics   mean over draws of that of the rows left out

Where the winner's own value on all rows is worse, it is taken instead: what ranks is no sum over
rows, and may choose worse than the mean.

Where the networks of the best M architectures predict together, a draw chooses the mixture of
those that are best on the rows drawn.

What they leave out: trials were proposed by scores on the same rows, and pruned trials are no
candidates.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from nas_evidence.data import ArrayData
from nas_evidence.data.tensors import to_tensors
from nas_evidence.exporting.device import CPU
from nas_evidence.exporting.predicted import Prediction, mean_metrics, mixed
from nas_evidence.exporting.weights import read_weights
from nas_evidence.exporting.winner import (
    assignment_of_row,
    held_out_of,
    kept_beside,
    load_winner,
)
from nas_evidence.maths.bias_corrected import (
    Counts,
    draws_of_rows,
    factor_of_folds,
    mean_left_out,
)
from nas_evidence.maths.crps import crps
from nas_evidence.maths.metrics import Floats
from nas_evidence.plumbing.seals import DamagedError
from nas_evidence.scores.folds import OUTPUTS, all_folds
from nas_evidence.spec.divisions import kept_division
from nas_evidence.spec.metric_names import LESS_IS_BETTER
from nas_evidence.spec.study import Assignment
from nas_evidence.storage.tables import StudyTables
from nas_evidence.storage.told_order import best_trial
from nas_evidence.training.parts import order_of_data

#: Maximum number of seeds of an architecture that count. More than one counts up to a number of
#: values (inputs times outputs of all data).
MOST_SEEDS, MOST_VALUES = 3, 300_000
#: Maximum number of values read, over all architectures.
MOST_READ = 5_000_000
#: Draws behind a metric that is no mean over rows, and most rows of each.
_N_DRAWS, _MOST_ROWS = 100, 2000

#: Metrics of predictions of some rows, by name.
Measure = Callable[[Sequence[Prediction], NDArray[Any]], Mapping[str, float]]


@dataclass(frozen=True, eq=False)
class Candidates:
    """All architectures that rank, the winner first, and what the folds say of the same rows.

    networks  predictions of each of K architectures, one for each seed that counts
    y         labels [n], or real targets [n, D]
    units     the group of each row [n]; None where each is its own
    factor    c of the folds, see `maths/bias_corrected.py`
    together  M: the networks that represent M architectures predict together; 1: each network
              alone, and the mean over those of an architecture counts
    """

    networks: Sequence[Sequence[Prediction]]
    y: NDArray[Any]
    units: NDArray[np.int64] | None
    factor: float
    together: int = 1

    def predictions(self, choice: int) -> Sequence[Prediction]:
        """Return the predictions of what can be chosen, by its position in `choices`."""
        return self._predictions(self.choices[choice])

    def _predictions(self, architectures: Sequence[int]) -> Sequence[Prediction]:
        own = [one for k in architectures for one in self.networks[k]]
        return own if self.together < 2 else [mixed(own, np.full(len(own), 1 / len(own)))]

    def _log_density(self, architectures: Sequence[int]) -> Floats:
        """Return the log density of each row, the mean over the predictions [n], nats."""
        each = [one.losses(self.y) for one in self._predictions(architectures)]
        return -np.asarray(np.mean(each, axis=0))

    @cached_property
    def _of_each(self) -> Floats:
        """Log density of each row by each architecture [n, K], nats."""
        each = [self._log_density([k]) for k in range(len(self.networks))]
        return np.stack(each, axis=1)

    @cached_property
    def _best(self) -> NDArray[np.int64]:
        """The architectures that each draw chooses [B, M], in the order of their numbers."""
        sums, m = self.draws @ self._of_each, self.together
        return np.sort(np.argsort(-sums, axis=1, kind="stable")[:, :m], axis=1)

    @cached_property
    def choices(self) -> Sequence[Sequence[int]]:
        """What can be chosen: each architecture; or what some draw chooses, the winner first."""
        if self.together < 2:
            return [(k,) for k in range(len(self.networks))]
        winner = tuple(range(min(self.together, len(self.networks))))
        return list(dict.fromkeys([winner, *map(tuple, self._best.tolist())]))

    @cached_property
    def log_densities(self) -> Floats:
        """Log density of each row by each of S choices [n, S], nats."""
        if self.together < 2:
            return self._of_each
        return np.stack([self._log_density(one) for one in self.choices], axis=1)

    @cached_property
    def draws(self) -> Counts:
        """The draws of the rows, see `draws_of_rows`."""
        return draws_of_rows(len(self.y), self.units)

    @cached_property
    def choice(self) -> NDArray[np.int64]:
        """What each draw chooses, by its position in `choices` [B]."""
        at = {tuple(one): k for k, one in enumerate(self.choices)}
        return np.array([at[tuple(one)] for one in self._best.tolist()], dtype=np.int64)

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The metrics of what is chosen like the winner, on rows that did not choose it."""
        own = mean_metrics(self.predictions(0), self.y)
        found = self.corrected(partial(mean_metrics, with_crps=False), own)
        if len(self.choices) == 1:
            return found
        found["log_loss"] = -mean_left_out(self.log_densities, self.choice, self.draws)
        if "crps" in found:
            # Each of many mixtures of many networks takes long.
            some = slice(None) if self.together < 2 else slice(_N_DRAWS)
            each, choice = np.zeros_like(self.log_densities), self.choice[some]
            for k in np.unique(choice):
                densities = [p.real for p in self.predictions(k)]
                each[:, k] = np.mean([crps(d, self.y).mean(1) for d in densities], axis=0)
            found["crps"] = mean_left_out(each, choice, self.draws[some])
        return _worse(found, own)

    def metrics_of_target(self, k: int, apparent: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics of one of several real targets, like `metrics`.

        Args:
            k: its position.
            apparent: its metrics by the winner on all rows.
        """

        def measure(predicted: Sequence[Prediction], y: NDArray[Any]) -> dict[str, float]:
            each = [one.metrics_of_each(y)[k] for one in predicted]
            return {name: float(np.mean([one[name] for one in each])) for name in each[0]}

        return _worse(self.corrected(measure, apparent), apparent)

    def corrected(self, measure: Measure, apparent: Mapping[str, float]) -> dict[str, float]:
        """Return other measures of the same; the winner's own where draws leave one undefined.

        Args:
            measure: of the predictions of some rows by what is chosen.
            apparent: the measures of the winner on all rows.
        """
        found, rng = dict(apparent), np.random.default_rng(0)
        if len(self.choices) == 1:
            return found
        each: dict[str, list[float]] = {}
        for draw, k in zip(self.draws[:_N_DRAWS], self.choice[:_N_DRAWS], strict=True):
            rows = rng.permutation(np.flatnonzero(draw == 0))[:_MOST_ROWS]
            drawn = rng.permutation(np.flatnonzero(draw))[: len(rows)]
            own = measure([p.at(rows) for p in self.predictions(k)], self.y[rows])
            for name, value in own.items():
                each.setdefault(name, []).append(value)
            if "ece" in own and len(drawn) == len(rows):
                inside = measure([p.at(drawn) for p in self.predictions(k)], self.y[drawn])
                each["ece"][-1] -= inside["ece"] - apparent["ece"]
        for name in found.keys() & each.keys():
            values = np.array(each[name])
            if len(values) >= min(_N_DRAWS, len(self.draws)) / 2:
                mean = np.sqrt((values**2).mean()) if name == "rmse" else values.mean()
                found[name] = max(0.0, float(mean)) if name == "ece" else float(mean)
        return found


def _worse(found: Mapping[str, float], own: Mapping[str, float]) -> dict[str, float]:
    """Return the worse of both values of each metric; a coverage as it is found.

    What ranks may choose worse than the mean log density does: then the winner's own count.
    """
    kept = {name: value for name, value in found.items() if name.startswith("coverage")}
    each = {
        name: (max if name in LESS_IS_BETTER else min)(value, own[name])
        for name, value in found.items()
    }
    return each | kept


#: The candidates last read of each study: report and export share them.
_LAST: WeakKeyDictionary[StudyTables, dict[int, Candidates | None]] = WeakKeyDictionary()


def candidates_of(
    tables: StudyTables, arrays: ArrayData, *, together: int = 1
) -> Candidates | None:
    """Return all architectures that rank; None where not all predictions of them are kept.

    Args:
        tables: of the study.
        arrays: its data.
        together: how many architectures predict together, each by the network that represents it.
    """
    held = _LAST.setdefault(tables, {})
    if together not in held:
        held[together] = _read(tables, arrays, together=together)
    return held[together]


def n_seeds(arrays: ArrayData) -> int:
    """Return how many seeds of an architecture count; with 1 the one that represents it."""
    values = arrays.n_train * int(np.prod(arrays.input_shape)) * arrays.n_outputs
    return 1 if values > MOST_VALUES else MOST_SEEDS


def _read(tables: StudyTables, arrays: ArrayData, *, together: int) -> Candidates | None:
    data, most, left = to_tensors(arrays, CPU), n_seeds(arrays), MOST_READ
    found: list[list[Prediction]] = []
    rows: NDArray[np.int64] | None = None
    given: Assignment | None = None
    for standing in tables.standings.first():
        ids = [standing.trial_id] if most == 1 else sorted(standing.values, reverse=True)
        if together > 1:
            ids = [standing.trial_id]
        own: list[Prediction] = []
        for trial_id in ids:
            if (read := kept_of(tables, arrays, trial_id)) is None:
                continue
            kept, assignment = read
            left -= kept[OUTPUTS].numel() if OUTPUTS in kept else 0
            if left < 0:
                return None
            one = held_out_of(kept, assignment, arrays, data)
            if one is None or (rows is not None and not np.array_equal(rows, one[1])):
                continue
            rows, given = one[1], given or assignment
            own.append(one[0])
            if len(own) == most:
                break
        if not own:
            return None
        found.append(own)
    if rows is None or given is None:
        return None
    units = arrays.units
    of_rows = None if units is None or units.in_time else np.asarray(units.of)[rows]
    made = Candidates(found, arrays.y_train[rows], of_rows, factor_of(arrays, given), together)
    return made if len(made.draws) else None


def kept_of(
    tables: StudyTables, arrays: ArrayData, trial_id: int
) -> tuple[Mapping[str, Tensor], Assignment] | None:
    """Return what a trial kept beside its weights, and what trained it; None without its file.

    The winner is trained again in that case, and then has both.
    """
    try:
        tensors, header = read_weights(tables.folder, assignment_of_row(tables, trial_id))
        assignment = Assignment.model_validate_json(header["assignment"])
    except (OSError, DamagedError):
        if trial_id != best_trial(tables):
            return None
        again = load_winner(tables, arrays, trial_id)
        return again.kept, again.assignment
    return kept_beside(tensors), assignment


def factor_of(arrays: ArrayData, given: Assignment) -> float:
    """Return c of the folds of a trial, see `maths/bias_corrected.py`."""
    division = kept_division(given.plan, given.estimators, arrays.n_train)
    order = order_of_data(arrays.n_train, given, arrays.units)
    tasks = all_folds(division, order, arrays.units)
    return factor_of_folds((len(task.predicted), len(task.trained)) for task in tasks)
