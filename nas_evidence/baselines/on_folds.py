"""The winner beside simple models without a test split: on the folds of the study.

    b = mean_i (1/S sum_s l_si - m_i)     how far the simple model is behind

    l_si  log density of datum i as the network with seed s predicts it, nats
    m_i   the same of the simple model, fitted once for each fold of the latest seed

The folds are those of `conditional_evidence`, in a study without it of `two_fold`; each is
predicted by what was fitted on the others. The densities are those of the predictions as they are,
as on test rows; cross-validation itself marginalises their scale, which hides overconfidence.
Several seeds count, the latest first, because the first was chosen by its score. Each divides the
rows anew; simple models have the division of one, which makes the interval an eighth wider.

The rows chose the architecture, and more seeds do not undo that: the luck is of the rows. So b,
its interval and the metrics are those of bias-corrected cross-validation
(`maths/bias_corrected.py`): all architectures (`exporting/candidates.py`) and simple models are
chosen by their mean log density on rows drawn, and judged on the rows left out. What ranks is no
sum over rows; the mean stands for it, and where the winner's own mean is lower, that counts
(docs/results/intervals-and-calibration.md). The interval is widened, since rows of one training
set share its noise.

Where the predictions of some architectures were not kept, `Comparison.corrected` is False: the
numbers are of the rows that chose the winner. Where those of the winner were not, values of the
cross-validation are compared, without an interval. It is left out that networks and simple models
of all data, not of a part, are used afterwards.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from torch import Tensor

from nas_evidence.baselines.comparison import Baseline, Comparison
from nas_evidence.baselines.measures import (
    beside,
    drawn,
    growing,
    standard_errors,
)
from nas_evidence.baselines.models import (
    OnFolds,
    baseline_models,
    code,
    predict_folds,
    rows_in_folds,
)
from nas_evidence.data import ArrayData
from nas_evidence.data.tensors import to_tensors
from nas_evidence.exporting.candidates import Candidates, factor_of, n_seeds
from nas_evidence.exporting.device import CPU
from nas_evidence.exporting.predicted import Prediction, mean_metrics
from nas_evidence.exporting.winner import held_out_of
from nas_evidence.maths.bias_corrected import chosen, interval_of
from nas_evidence.maths.metrics import Floats, named
from nas_evidence.maths.paired import Paired
from nas_evidence.spec.divisions import kept_division
from nas_evidence.spec.record import TrialStatus
from nas_evidence.spec.study import Assignment

#: Of a trial: what it kept beside its weights, by name, and what trained it.
KeptOf = Callable[[int], tuple[Mapping[str, Tensor], Assignment] | None]


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
    kept_of: KeptOf,
    *,
    chosen_among: int = 1,
    candidates: Candidates | None = None,
) -> Iterator[Comparison]:
    """Yield the comparison on the folds, see `growing`; nothing if the winner has no such score.

    Args:
        trial_id: of the winner.
        arrays: the data of the study.
        trials: the table of trials.
        evidence: the table of evidence.
        kept_of: returns what a trial kept beside its weights, and what trained it; None without.
        chosen_among: architectures that rank.
        candidates: these, the winner first, if all their predictions are kept.
    """
    seeds = list(_seeds(trial_id, arrays, trials, evidence, kept_of))
    if not seeds:
        return
    rows = rows_in_folds(arrays, seeds[0].assignment)
    y = arrays.y_train[rows]
    found = [seed.predicted for seed in seeds if seed.predicted is not None]
    kept = len(found) == len(seeds)
    if not kept or (candidates is not None and len(candidates.y) != len(y)):
        candidates = None
    factor = factor_of(arrays, seeds[0].assignment)
    metrics = (
        mean_metrics(found, y)
        if kept
        else _mean_values([(seed.value, seed.accuracy) for seed in seeds], arrays)
    )
    errors = standard_errors(found[0], y) if kept else {}
    alone = Comparison(
        trial_id=trial_id,
        task=arrays.task,
        on="folds",
        n=len(y),
        seeds=len(seeds),
        chosen_among=chosen_among,
        corrected=candidates is not None or chosen_among == 1,
        metrics=metrics if candidates is None else candidates.metrics,
        errors={name: factor * error for name, error in errors.items()},
        **drawn(found[0], y) if kept else {},
    )
    if candidates is not None:
        each = tuple(
            one.model_copy(update={"metrics": candidates.metrics_of_target(k, one.metrics)})
            for k, one in enumerate(alone.by_target)
        )
        alone = alone.model_copy(update={"by_target": each})
    # The simple models so far: beside the winner, and their log densities of each row [n].
    beside_winner: list[Baseline] = []
    densities: list[Floats] = []

    def rivals() -> Iterator[Baseline]:
        for one in predict_folds(arrays, seeds[0].assignment):
            rival = _compared(seeds, one, arrays)
            if candidates is not None:
                beside_winner.append(rival)
                densities.append(-one.predicted.losses(y))
                rival = _free_of_choice([rival], densities[-1:], candidates)
            elif rival.interval is not None:
                ends = (rival.behind + factor * (end - rival.behind) for end in rival.interval)
                rival = rival.model_copy(update={"interval": tuple(ends)})
            yield rival

    for step in growing(alone, rivals(), list(baseline_models(arrays))):
        if candidates is None or not step.baselines:
            yield step
        else:
            against = _free_of_choice(beside_winner, densities, candidates)
            freed = (against if one.name == against.name else one for one in step.baselines)
            yield step.model_copy(update={"baselines": tuple(freed), "against": against.name})


def _free_of_choice(
    rivals: Sequence[Baseline], densities: Sequence[Floats], candidates: Candidates
) -> Baseline:
    """Return the best of some simple models beside the architectures, all chosen by draws.

    Args:
        rivals: beside the winner, on the rows that chose it.
        densities: log densities of each row by each of them [n], nats.
        candidates: the architectures.
    """
    best = min(rivals, key=lambda one: one.behind)
    rows = candidates.log_densities, np.stack(densities, axis=1), candidates.draws
    found = chosen(*rows, choice=candidates.choice)
    low, high = best.interval or (-math.inf, math.inf)
    winner = Paired(best.behind, low, high)
    return best.model_copy(
        update={
            "behind": found.gap,
            "interval": interval_of(found, winner, candidates.factor),
            "metrics": {**best.metrics, "log_loss": found.gap - found.value},
            "errors": {name: candidates.factor * e for name, e in best.errors.items()},
        }
    )


def _seeds(
    trial_id: int,
    arrays: ArrayData,
    trials: pd.DataFrame,
    evidence: pd.DataFrame,
    kept_of: KeptOf,
) -> Iterator[_Seed]:
    """Yield the seeds that count; of large data the winner alone."""
    complete = trials[trials["status"] == TrialStatus.COMPLETE.value].set_index("trial_id")
    alike = complete["architecture_key"] == complete.loc[trial_id, "architecture_key"]
    ids = sorted(complete.index[alike], reverse=True)
    if n_seeds(arrays) == 1:
        ids = [trial_id]
    if (winner := kept_of(trial_id)) is None:
        return
    given = winner[1]
    division = kept_division(given.plan, given.estimators, arrays.n_train)
    values = evidence[evidence["estimator"] == division].groupby("trial_id")["per_datum"].last()
    right = evidence[evidence["estimator"] == f"{division}_accuracy"]
    hits = right.groupby("trial_id")["value"].last()
    left, n = n_seeds(arrays), int(rows_in_folds(arrays, given).sum())
    data = to_tensors(arrays, CPU)
    for one in ids:
        value = values.get(one)
        if left and value is not None and not pd.isna(value) and (seed := kept_of(int(one))):
            left -= 1
            predicted, rows = held_out_of(*seed, arrays, data) or (None, ())
            yield _Seed(
                assignment=seed[1],
                value=float(value),
                accuracy=float(hits.get(one, float("nan"))),
                predicted=predicted if len(rows) == n else None,
            )


def _compared(seeds: Sequence[_Seed], found: OnFolds, arrays: ArrayData) -> Baseline:
    networks = [seed.predicted for seed in seeds if seed.predicted is not None]
    lines = code(found.name, arrays, found.predicted)
    if len(networks) == len(seeds):
        y = arrays.y_train[rows_in_folds(arrays, seeds[0].assignment)]
        return beside(networks, found.name, found.predicted, y, lines)
    return Baseline(
        name=found.name,
        code=lines,
        metrics=_mean_values([(found.log_predictive, found.accuracy)], arrays),
        behind=float(np.mean([seed.value for seed in seeds])) - found.log_predictive,
    )


def _mean_values(values: Sequence[tuple[float, float]], arrays: ArrayData) -> dict[str, float]:
    """Return log_loss and accuracy from values of cross-validation and accuracies.

    The accuracy of a score has no class weights, so it is left out where there are some.
    """
    value, accuracy = np.mean(values, axis=0)
    weighs = bool(arrays.meaning.class_weight)
    return named({"log_loss": -float(value), "accuracy": math.nan if weighs else float(accuracy)})
