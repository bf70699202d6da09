"""The winner beside simple models without a test split: on the folds of the study.

    b = 1/S sum_s mean_i (l_si - m_si)     how far the simple model is behind

    l_si  log density of datum i as the network with seed s predicts it, nats; m_si of the model

The folds are those of `conditional_evidence`, in a study without it of `two_fold`; each is
predicted by what was fitted on the others. The densities are those of the predictions as they are,
as on test rows; cross-validation itself marginalises their scale, which hides overconfidence. The
first seed of an architecture was chosen by its score, so it is partly lucky (winner's curse);
later seeds were not. So several seeds count, the latest first.

The interval of b is that of `maths/paired.py` over the data, for the differences averaged over
seeds. It leaves out that few splits were tried, and that networks and simple models of all data,
not of a part, are used afterwards. Where predictions were not kept, values of the cross-validation
are compared, without an interval.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from nas_evidence.baselines.comparison import Baseline, Comparison
from nas_evidence.baselines.measures import (
    beside,
    drawn,
    growing,
    mean_metrics,
    standard_errors,
)
from nas_evidence.baselines.models import (
    OnFolds,
    baseline_models,
    predict_folds,
    rows_in_folds,
)
from nas_evidence.data import ArrayData
from nas_evidence.exporting.predicted import Prediction
from nas_evidence.exporting.winner import Winner
from nas_evidence.maths.metrics import named
from nas_evidence.spec.divisions import kept_division
from nas_evidence.spec.record import TrialStatus
from nas_evidence.spec.study import Assignment

#: Most seeds that count, and most values (inputs times outputs of all data) for more than one:
#: all simple models are fitted twice for each.
MOST_SEEDS, MOST_VALUES = 3, 300_000


@dataclass(frozen=True)
class _Seed:
    """A network of the winner's architecture.

    value     its cross-validation per datum, nats
    accuracy  of the same predictions, NaN for real targets
    predicted of the data that folds predict, see `Winner.held_out`; None if they were not kept of
              all
    """

    assignment: Assignment
    value: float
    accuracy: float
    predicted: Prediction | None


def judged_on_folds(
    trial_id: int,
    arrays: ArrayData,
    trials: pd.DataFrame,
    evidence: pd.DataFrame,
    stored: Callable[[int], Winner | None],
) -> Iterator[Comparison]:
    """Yield the comparison on the folds, see `growing`; nothing if the winner has no such score.

    Args:
        trial_id: of the winner.
        arrays: the data of the study.
        trials: the table of trials.
        evidence: the table of evidence.
        stored: returns a trial whose weights were kept, else None.
    """
    seeds = list(_seeds(trial_id, arrays, trials, evidence, stored))
    if not seeds:
        return
    by_seed = [predict_folds(arrays, seed.assignment) for seed in seeds]
    rows = rows_in_folds(arrays, seeds[0].assignment)
    y = arrays.y_train[rows]
    found = [seed.predicted for seed in seeds if seed.predicted is not None]
    kept = len(found) == len(seeds)
    metrics = (
        mean_metrics(found, y)
        if kept
        else _mean_values([(seed.value, seed.accuracy) for seed in seeds], arrays)
    )
    alone = Comparison(
        trial_id=trial_id,
        task=arrays.task,
        on="folds",
        n=len(y),
        seeds=len(seeds),
        metrics=metrics,
        errors=standard_errors(found[0], y) if kept else {},
        **drawn(found[0], y) if kept else {},
    )
    rivals = (_compared(seeds, one, arrays) for one in zip(*by_seed, strict=True))
    yield from growing(alone, rivals, list(baseline_models(arrays)))


def _seeds(
    trial_id: int,
    arrays: ArrayData,
    trials: pd.DataFrame,
    evidence: pd.DataFrame,
    stored: Callable[[int], Winner | None],
) -> Iterator[_Seed]:
    """Yield the seeds that count; the winner alone where simple models take long."""
    complete = trials[trials["status"] == TrialStatus.COMPLETE.value].set_index("trial_id")
    alike = complete["architecture_key"] == complete.loc[trial_id, "architecture_key"]
    ids = sorted(complete.index[alike], reverse=True)
    if arrays.n_train * int(np.prod(arrays.input_shape)) * arrays.n_outputs > MOST_VALUES:
        ids = [trial_id]
    winner = stored(trial_id)
    if winner is None:
        return
    given = winner.assignment
    division = kept_division(given.plan, given.estimators, arrays.n_train)
    values = evidence[evidence["estimator"] == division].groupby("trial_id")["per_datum"].last()
    right = evidence[evidence["estimator"] == f"{division}_accuracy"]
    hits = right.groupby("trial_id")["value"].last()
    left, n = MOST_SEEDS, int(rows_in_folds(arrays, given).sum())
    for one in ids:
        value = values.get(one)
        if left and value is not None and not pd.isna(value) and (seed := stored(int(one))):
            left -= 1
            predicted, rows = seed.held_out or (None, ())
            yield _Seed(
                assignment=seed.assignment,
                value=float(value),
                accuracy=float(hits.get(one, float("nan"))),
                predicted=predicted if len(rows) == n else None,
            )


def _compared(seeds: Sequence[_Seed], found: Sequence[OnFolds], arrays: ArrayData) -> Baseline:
    networks = [seed.predicted for seed in seeds if seed.predicted is not None]
    if len(networks) == len(seeds):
        y = arrays.y_train[rows_in_folds(arrays, seeds[0].assignment)]
        return beside(networks, found[0].name, [own.predicted for own in found], y)
    pairs = zip(seeds, found, strict=True)
    return Baseline(
        name=found[0].name,
        metrics=_mean_values([(own.log_predictive, own.accuracy) for own in found], arrays),
        behind=float(np.mean([seed.value - own.log_predictive for seed, own in pairs])),
    )


def _mean_values(values: Sequence[tuple[float, float]], arrays: ArrayData) -> dict[str, float]:
    """Return log_loss and accuracy from values of cross-validation and accuracies.

    The accuracy of a score has no class weights, so it is left out where there are some.
    """
    value, accuracy = np.mean(values, axis=0)
    weighs = bool(arrays.meaning.class_weight)
    return named({"log_loss": -float(value), "accuracy": math.nan if weighs else float(accuracy)})
