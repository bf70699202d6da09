"""The winner beside simple models without a test split: on the halves of `two_fold`.

    b    =  1/S sum_s mean_i (l_si - m_si)            how far the simple model is behind
    e^2  =  1/n max(var_i(1/S sum_s (l_si - m_si)), v)  its standard error over the data
    v    =  1/(nS) sum_si var_y (l_si(y) - m_si(y))   expected for y drawn from both predictions

    l_si  log density of datum i as the network with seed s predicts it, nats; m_si of the model

Each half is predicted by what was fitted on the other one. The densities are those of the
predictions as they are, as on test rows; `two_fold` itself marginalises their scale, which helps
an overconfident model that nobody would scale. The first seed of an architecture is good partly
by luck, in its split too, since it was chosen by its score; those that were trained later were
not. So several seeds count, the latest first.

v counts losses that are too rare to be among the data: of 120 data, none may be of the one in a
hundred that costs a confident model most. The error leaves out that few splits were tried, and
that networks and simple models of all data, not of a half, are used afterwards. Where predictions
were not kept, values of `two_fold` are compared, without an error.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from nas_evidence.data import ArrayData
from nas_evidence.exporting.measuring import drawn, measured
from nas_evidence.exporting.unseen import log_densities, stored_unseen
from nas_evidence.exporting.winner import Winner
from nas_evidence.judgement import Judgement, Yardstick
from nas_evidence.maths.predictions import (
    gap_variance_of_classes,
    gap_variance_of_reals,
    named,
)
from nas_evidence.maths.ranking import Floats
from nas_evidence.record import TrialStatus
from nas_evidence.scores.folds import SCALES
from nas_evidence.spec import Assignment
from nas_evidence.yardsticks import OnHalves, Predicted, predict_halves

#: Most seeds that count, and most values (inputs times outputs of all data) for more than one:
#: all simple models are fitted twice for each.
MOST_SEEDS, MOST_VALUES = 3, 300_000


@dataclass(frozen=True)
class _Seed:
    """A network of the winner's architecture.

    value     its `two_fold` per datum, nats
    accuracy  of the same predictions, NaN for real targets
    table     outputs and spread [n, C + 1], see `stored_unseen`; None if they were not kept of all
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
    own = [by_datum(seed.table, arrays) for seed in seeds if seed.table is not None]
    kept = len(own) == len(seeds)
    found = [predicted_of(seed.table, arrays) for seed in seeds if seed.table is not None]
    metrics = {
        "log_loss": -float(np.mean(own if kept else [seed.value for seed in seeds])),
        "accuracy": float(np.mean([seed.accuracy for seed in seeds])),
    }
    return Judgement(
        trial_id=trial_id,
        task=arrays.task,
        on="folds",
        n=arrays.n_train,
        seeds=len(seeds),
        metrics=_mean_metrics(found, arrays) | named(metrics) if kept else named(metrics),
        yardsticks=tuple(_compared(seeds, one, arrays) for one in zip(*by_seed, strict=True)),
        **drawn(found[0], arrays.y_train) if kept else {},
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
            table = stored_unseen(seed, arrays.n_train)
            yield _Seed(
                assignment=seed.assignment,
                value=float(value),
                accuracy=float(hits.get(one, float("nan"))),
                table=table if table is not None and (table[:, -1] > 0).all() else None,
            )


def _compared(seeds: Sequence[_Seed], found: Sequence[OnHalves], arrays: ArrayData) -> Yardstick:
    """Return a simple model beside the network, seed by seed."""
    pairs = list(zip(seeds, found, strict=True))
    accuracy = float(np.mean([own.accuracy for own in found]))
    known = [_gaps(seed.table, own.table, arrays) for seed, own in pairs if seed.table is not None]
    if len(known) < len(seeds) or arrays.n_train < 2:
        loss = -float(np.mean([own.log_predictive for own in found]))
        behind = float(np.mean([seed.value - own.log_predictive for seed, own in pairs]))
        error = None
    else:
        loss = -float(np.mean([by_datum(own.table, arrays) for own in found]))
        behind = float(np.mean([gaps for gaps, _ in known]))
        seen = float(np.mean([gaps for gaps, _ in known], axis=0).var(ddof=1))
        expected = float(np.mean([variance for _, variance in known]))
        error = float(np.sqrt(max(seen, expected) / arrays.n_train))
    predicted = [predicted_of(own.table, arrays) for own in found]
    metrics = _mean_metrics(predicted, arrays) | named({"log_loss": loss, "accuracy": accuracy})
    return Yardstick(name=found[0].name, metrics=metrics, behind=behind, error=error)


def predicted_of(table: Tensor, arrays: ArrayData) -> Predicted:
    """Return a table of outputs and spread [n, C + 1] in the unit of the targets."""
    outputs, spread = table[:, :-1].double(), table[:, -1:].double()
    if arrays.task == "labels":
        return Predicted((outputs / spread).softmax(1).numpy())
    means = outputs.numpy() * arrays.y_std + arrays.y_mean
    return Predicted(means, spread.numpy() * arrays.y_std)


def _mean_metrics(found: Sequence[Predicted], arrays: ArrayData) -> dict[str, float]:
    """Return the metrics that are defined for all of some predictions of the data, averaged."""
    each = [measured(one, arrays.y_train, arrays.y_std)[1] for one in found]
    known = [name for name in each[0] if all(name in one for one in each)]
    return {name: float(np.mean([one[name] for one in each])) for name in known}


def _gaps(table: Tensor, other: Tensor, arrays: ArrayData) -> tuple[Floats, Floats]:
    """Return by how much a table is better than the other on each datum, and its variance.

    The gaps in nats and the variances expected in nats^2, [n] each.
    """
    gaps = by_datum(table, arrays) - by_datum(other, arrays)
    outputs = [one[:, :-1].double() for one in (table, other)]
    spreads = [one[:, -1:].double() for one in (table, other)]
    if arrays.task == "labels":
        logs = [(f / s).log_softmax(1).numpy() for f, s in zip(outputs, spreads, strict=True)]
        return gaps, gap_variance_of_classes(logs[0], logs[1])
    normals = [(f.numpy(), s.expand_as(f).numpy()) for f, s in zip(outputs, spreads, strict=True)]
    return gaps, gap_variance_of_reals(normals[0], normals[1])


def by_datum(table: Tensor, arrays: ArrayData) -> Floats:
    """Return the log density of each datum [n], nats, of a table of outputs and spread."""
    labels = arrays.task == "labels"
    y = arrays.y_train if labels else (arrays.y_train - arrays.y_mean) / arrays.y_std
    likelihood = "categorical" if labels else "gaussian"
    at_scales = log_densities(table[:, :-1], table[:, -1], torch.from_numpy(y), likelihood)
    found: Floats = at_scales[SCALES.index(1.0)]
    return found
