"""What networks of an architecture say of data they have not seen: the folds of the study.

A trial that computes `conditional_evidence` or `two_fold` keeps, beside its weights, the outputs
for each datum of the network trained without its fold. They calibrate the model card and weigh the
members of an ensemble.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from nas_evidence.data import ArrayData
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.exporting.winner import Winner
from nas_evidence.maths.metrics import (
    Reliability,
    best_thresholds,
    class_metrics,
    coverage_by_level,
    interval_reliability,
    reliability,
)
from nas_evidence.maths.normals import Normals
from nas_evidence.maths.stacking import Floats
from nas_evidence.scores.folds import OUTPUTS, SCALES, SPREAD


def stored_unseen(winner: Winner, n: int) -> Tensor | None:
    """Return outputs and spread [n, C + 1] as a trial kept them, None if it kept none of `n` data.

    The spread, the temperature or noise of the network, is 0 where a datum was not predicted.
    """
    if OUTPUTS not in winner.kept or len(winner.kept[OUTPUTS]) != n:
        return None
    return torch.cat([winner.kept[OUTPUTS], winner.kept[SPREAD][:, None]], 1)


def log_densities(outputs: Tensor, spread: Tensor, targets: Tensor, likelihood: str) -> Floats:
    """Return the log predictive density of each datum at each of `SCALES` [M, n], nats.

    Args:
        outputs: [n, C] of networks that have not seen the datum.
        spread: temperature or noise of that network [n].
        targets: labels [n], or standardised real targets [n, C].
        likelihood: "categorical" or "gaussian".
    """
    found = []
    for scale in SCALES:
        at = spread.double()[:, None] * scale
        if likelihood == "categorical":
            logs = (outputs.double() / at).log_softmax(1).gather(1, targets[:, None])[:, 0]
        else:
            z = (targets.double() - outputs.double()) / at
            logs = (-0.5 * z.square() - at.log() - 0.5 * np.log(2 * np.pi)).sum(1)
        found.append(logs)
    return np.asarray(torch.stack(found).numpy())


def unseen_measures(winner: Winner, data: TensorData) -> Mapping[str, float] | None:
    """Return how good and how calibrated predictions of unseen data are, None if none are kept.

    See `maths/metrics.py`; of real targets those that do not depend on their unit. `n_data` is
    the number of data predicted. Networks predict by their modes, without a posterior.
    """
    found = _unseen(winner, data)
    if found is None:
        return None
    predicted, y = found
    count = {"n_data": len(y)}
    if isinstance(predicted, Normals):
        return count | coverage_by_level(predicted, y)
    return count | class_metrics(predicted, y)


def unseen_reliability(winner: Winner, data: TensorData) -> Reliability | None:
    """Return accuracy by confidence, or coverage by probability, on the same predictions."""
    found = _unseen(winner, data)
    if found is None:
        return None
    predicted, y = found
    if isinstance(predicted, Normals):
        return interval_reliability(predicted, y)
    return reliability(predicted, y)


def unseen_thresholds(winner: Winner, data: ArrayData) -> dict[str, float]:
    """Return the thresholds of the second of two classes that are best on the same predictions.

    See `maths/metrics.best_thresholds`; empty without such predictions.
    """
    found = _unseen(winner, to_tensors(data, torch.device("cpu"))) if data.n_outputs == 2 else None
    if found is None:
        return {}
    predicted, y = found
    return {} if isinstance(predicted, Normals) else best_thresholds(predicted, y)


def _unseen(winner: Winner, data: TensorData) -> tuple[Floats | Normals, np.ndarray] | None:
    """Return probabilities or densities of the data predicted, and their targets."""
    table = stored_unseen(winner, len(data.x_train))
    if table is None or not (known := table[:, -1] > 0).any():
        return None
    outputs, spread = table[known, :-1].double(), table[known, -1:].double()
    y = data.y_train[known].numpy()
    if winner.assignment.plan.likelihood == "categorical":
        return (outputs / spread).softmax(1).numpy(), y
    return Normals.single(outputs.numpy(), spread.numpy()), y.astype(np.float64)
