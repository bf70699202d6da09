"""The winner beside simple models without a test split: on the halves of `two_fold`.

    b    =  1/S sum_s (l_s - m_s)                     how far the simple model is behind
    e^2  =  var_i(1/S sum_s (l_si - m_si)) / n        its standard error over the data

    l_s   log predictive density per datum of the network with seed s, nats: its `two_fold`
    m_s   the same of the simple model on the halves of that seed
    l_si  log density of datum i at the likeliest scale of its half; m_si likewise

Each half is predicted by what was fitted on the other one. The first seed of an architecture is
good partly by luck, in its split too, since it was chosen by its score; those that were trained
later were not. So several seeds count, the latest first. The error leaves out that the fits on
the two halves share no data and that only few splits were tried.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from nas_evidence.data import ArrayData
from nas_evidence.exporting.unseen import log_densities, stored_unseen
from nas_evidence.exporting.winner import Winner
from nas_evidence.judgement import Judgement, Yardstick
from nas_evidence.maths.predictions import named
from nas_evidence.maths.ranking import Floats
from nas_evidence.record import TrialStatus
from nas_evidence.spec import Assignment
from nas_evidence.yardsticks import OnHalves, halves_of, predict_halves

#: Most seeds that count, and most values (inputs times outputs of all data) for more than one:
#: all simple models are fitted twice for each.
MOST_SEEDS, MOST_VALUES = 3, 300_000


@dataclass(frozen=True)
class _Seed:
    """A network of the winner's architecture.

    value     its `two_fold` per datum, nats
    accuracy  of the same predictions, NaN for real targets
    table     outputs and spread [n, C + 1], see `stored_unseen`; None if they were not kept
    """

    assignment: Assignment
    value: float
    accuracy: float
    table: Tensor | None


def judged_on_halves(
    trial_id: int,
    arrays: ArrayData,
    trials: pd.DataFrame,
    evidence: pd.DataFrame,
    stored: Callable[[int], Winner | None],
) -> Judgement | None:
    """Return the comparison by `two_fold`, None if the winner has no such score.

    Args:
        trial_id: of the winner.
        arrays: the data of the study.
        trials: the table of trials.
        evidence: the table of evidence.
        stored: returns a trial whose weights were kept, else None.
    """
    seeds = list(_seeds(trial_id, arrays, trials, evidence, stored))
    if not seeds:
        return None
    by_seed = [list(predict_halves(arrays, seed.assignment)) for seed in seeds]
    metrics = {
        "log_loss": -float(np.mean([seed.value for seed in seeds])),
        "accuracy": float(np.mean([seed.accuracy for seed in seeds])),
    }
    return Judgement(
        trial_id=trial_id,
        task=arrays.task,
        on="folds",
        n=arrays.n_train,
        seeds=len(seeds),
        metrics=named(metrics),
        yardsticks=tuple(_compared(seeds, own, arrays) for own in zip(*by_seed, strict=True)),
    )


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
    values = evidence[evidence["estimator"] == "two_fold"].groupby("trial_id")["per_datum"].last()
    right = evidence[evidence["estimator"] == "two_fold_accuracy"]
    hits = right.groupby("trial_id")["value"].last()
    left = MOST_SEEDS
    for one in ids:
        value = values.get(one)
        if left and value is not None and not pd.isna(value) and (seed := stored(int(one))):
            left -= 1
            yield _Seed(
                assignment=seed.assignment,
                value=float(value),
                accuracy=float(hits.get(one, float("nan"))),
                table=stored_unseen(seed, arrays.n_train),
            )


def _compared(seeds: Sequence[_Seed], found: Sequence[OnHalves], arrays: ArrayData) -> Yardstick:
    """Return a simple model beside the network, seed by seed."""
    gaps = [seed.value - own.log_predictive for seed, own in zip(seeds, found, strict=True)]
    by_datum = [_gaps_by_datum(seed, own, arrays) for seed, own in zip(seeds, found, strict=True)]
    known = [gap for gap in by_datum if gap is not None]
    error = None
    if len(known) == len(seeds) and arrays.n_train > 1:
        error = float(np.mean(known, axis=0).std(ddof=1) / np.sqrt(arrays.n_train))
    metrics = {
        "log_loss": -float(np.mean([own.log_predictive for own in found])),
        "accuracy": float(np.mean([own.accuracy for own in found])),
    }
    behind = float(np.mean(gaps))
    return Yardstick(name=found[0].name, metrics=named(metrics), behind=behind, error=error)


def _gaps_by_datum(seed: _Seed, own: OnHalves, arrays: ArrayData) -> Floats | None:
    """Return by how much the network beats a simple model on each datum [n], nats.

    None if its predictions were not kept, or are of one half alone.
    """
    if seed.table is None or not (seed.table[:, -1] > 0).all():
        return None
    halves = halves_of(arrays, seed.assignment)
    return by_datum(seed.table, arrays, halves) - by_datum(own.table, arrays, halves)


def by_datum(table: Tensor, arrays: ArrayData, halves: Sequence[Floats]) -> Floats:
    """Return the log density of each datum [n], nats, at the likeliest scale of its half.

    Args:
        table: outputs and spread [n, C + 1], see `stored_unseen`.
        arrays: the data of the study.
        halves: rows of each half.
    """
    labels = arrays.task == "labels"
    y = arrays.y_train if labels else (arrays.y_train - arrays.y_mean) / arrays.y_std
    densities = log_densities(
        table[:, :-1], table[:, -1], torch.from_numpy(y), "categorical" if labels else "gaussian"
    )
    found = np.empty(len(table))
    for half in halves:
        at = densities[:, half]
        found[half] = at[at.sum(1).argmax()]
    return found
