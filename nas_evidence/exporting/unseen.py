"""Out-of-fold predictions of an architecture, as a study keeps them.

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
    best_thresholds,
    class_metrics,
    coverage_by_level,
)
from nas_evidence.maths.normals import Normals
from nas_evidence.maths.spread_factor import log_densities
from nas_evidence.maths.stacking import Floats
from nas_evidence.scores.folds import OUTPUTS, SCALES, SPREAD, cross_fitted, targets_of_folds


def stored_unseen(winner: Winner, n: int) -> Tensor | None:
    """Return outputs [n, C] and spread [n, 1 or C] as a trial kept them, None without `n` data.

    See `Folds.unseen`; the spread is 0 where a datum was not predicted.
    """
    if OUTPUTS not in winner.kept or len(outputs := winner.kept[OUTPUTS]) != n:
        return None
    spread = winner.kept[SPREAD].reshape(n, -1)
    if winner.assignment.plan.likelihood == "gaussian":
        spread = spread.expand_as(outputs)  # one for all targets in earlier studies
    return torch.cat([outputs, spread], 1)


def delivered_unseen(winner: Winner, data: TensorData) -> Tensor | None:
    """Return `stored_unseen` calibrated as delivered: the factor is fitted on the other folds."""
    table = stored_unseen(winner, len(data.x_train))
    if table is None:
        return None
    return cross_fitted(table, data, winner.assignment)


def densities_at_scales(
    table: Tensor, targets: Tensor, log_jacobian: Floats | None = None
) -> Floats:
    """Return the log predictive density of each datum at each of `SCALES` [M, n], nats.

    Args:
        table: outputs and spread of networks that have not seen the datum.
        targets: labels [n], or standardised real targets [n, C].
        log_jacobian: of the targets [n], nats, see `TargetScale.log_jacobian`.
    """
    n_spread = 1 if targets.ndim == 1 else targets.shape[1]
    outputs, spread = table[:, :-n_spread], table[:, -n_spread:]
    found = [log_densities(outputs, spread * scale, targets) for scale in SCALES]
    densities = np.asarray(torch.stack(found).numpy())
    return densities if log_jacobian is None else densities + log_jacobian


def unseen_measures(winner: Winner, data: TensorData) -> Mapping[str, float] | None:
    """Return how good and how calibrated predictions of unseen data are, None if none are kept.

    See `maths/metrics.py`; of real targets those that do not depend on their unit. `n_data` is
    the number of data predicted. Classes are predicted without a posterior, as by `predict`.
    """
    found = _unseen(winner, data)
    if found is None:
        return None
    predicted, y = found
    count = {"n_data": len(y)}
    if isinstance(predicted, Normals):
        return count | coverage_by_level(predicted, y)
    return count | class_metrics(predicted, y, class_weights=data.class_weights)


def unseen_thresholds(winner: Winner, data: ArrayData) -> dict[str, float]:
    """Return the thresholds of the second of two classes that are best on the same predictions.

    See `maths/metrics.best_thresholds`; empty without such predictions.
    """
    found = _unseen(winner, to_tensors(data, torch.device("cpu"))) if data.n_outputs == 2 else None
    if found is None:
        return {}
    predicted, y = found
    if isinstance(predicted, Normals):
        return {}
    return best_thresholds(predicted, y, data.meaning.class_weights)


def _unseen(winner: Winner, data: TensorData) -> tuple[Floats | Normals, np.ndarray] | None:
    """Return probabilities or densities of the data predicted, and their targets.

    Real targets are standardised, each on the scale of the fold that predicts it.
    """
    table = delivered_unseen(winner, data)
    if table is None or not (known := table[:, -1] > 0).any():
        return None
    found = table[known].double()
    outputs, spread = found[:, : data.n_outputs], found[:, data.n_outputs :]
    y = targets_of_folds(data, winner.assignment).seen[known].numpy()
    if winner.assignment.plan.likelihood == "categorical":
        return (outputs / spread).softmax(1).numpy(), y
    return Normals.single(outputs.numpy(), spread.numpy()), y.astype(np.float64)
