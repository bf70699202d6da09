"""How good predictions are: the one place that computes metrics, by scikit-learn's rules.

    log loss            -1/n sum_i log p_i(y_i), p clipped to [2.2e-16, 1 - 2.2e-16]
    balanced accuracy   mean over the classes present of the share that is recognised (recall)
    ECE                 sum_b n_b / n |accuracy_b - confidence_b|  over 15 bins of equal width
    ROC AUC             share of pairs (positive, negative) in which the positive has the larger
                        probability; ties count half
    R2                  1 - sum (y - f)^2 / sum (y - mean y)^2, mean over columns
    coverage            share of the targets in the central interval of the prediction
    nll                 -1/n sum_i log p_i(y_i) of real targets, in their own unit

    p probabilities [n, C]     y labels [n], or targets [n, D]     f predictions [n, D]

A probability of 0 for what happened costs 36 nats, not infinity (as `sklearn.metrics.log_loss`).
The log loss that reports show for real targets is that of standardised targets, as the scores: it
is the nll minus sum_d log std_d. (Guo et al. 2017 for the ECE; Hand and Till 2001 for the AUC.)
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from nas_evidence.maths.normals import Normals

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

#: Bins of confidence.
N_BINS = 15
#: Probability of the intervals whose coverage is measured, unless told.
LEVEL = 0.9
#: Probabilities of the intervals whose coverage is always said.
LEVELS = (0.5, 0.9, 0.95)
#: Probabilities below count as this, and those as near to 1 as this less than 1.
LEAST = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Reliability:
    """Confidence and accuracy by bin of confidence; empty bins are left out.

    For real targets: the probability of intervals, and the share of targets inside.

    confidence  mean of the largest probability
    accuracy    fraction of correct predictions
    count       predictions
    """

    confidence: Floats
    accuracy: Floats
    count: NDArray[np.int64]

    @property
    def error(self) -> float:
        """Expected calibration error sum_b n_b |accuracy_b - confidence_b| / n."""
        gaps = np.abs(self.accuracy - self.confidence)
        return float((self.count * gaps).sum() / self.count.sum())


def class_metrics(probabilities: Floats, labels: Labels) -> dict[str, float]:
    """Return log_loss (nats), accuracy, balanced_accuracy, ece and, for two classes, roc_auc.

    >>> p = np.array([[0.8, 0.2], [0.4, 0.6], [0.7, 0.3], [0.1, 0.9]])
    >>> found = class_metrics(p, np.array([0, 1, 1, 1]))
    >>> found["accuracy"], round(found["balanced_accuracy"], 4), found["roc_auc"]
    (0.75, 0.8333, 1.0)
    """
    found = {
        "log_loss": float(log_losses(probabilities, labels).mean()),
        "accuracy": float((probabilities.argmax(1) == labels).mean()),
        "balanced_accuracy": float(np.mean(list(recall(probabilities, labels).values()))),
        "ece": reliability(probabilities, labels).error,
    }
    if probabilities.shape[1] == 2 and 0 < labels.sum() < len(labels):
        positive = probabilities[:, 1]
        found["roc_auc"] = auroc(positive[labels == 0], positive[labels == 1])
    return found


def log_losses(probabilities: Floats, labels: Labels) -> Floats:
    """Return the log loss of each datum [n], nats.

    >>> float(log_losses(np.array([[0.0, 1.0]]), np.array([0]))[0].round(2))
    36.04
    """
    own = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    losses: Floats = -np.log(own.clip(LEAST, 1 - LEAST))
    return losses


def recall(probabilities: Floats, labels: Labels) -> dict[int, float]:
    """Return the share of each class present that is recognised."""
    right = probabilities.argmax(1) == labels
    return {int(label): float(right[labels == label].mean()) for label in np.unique(labels)}


def confusion(probabilities: Floats, labels: Labels) -> NDArray[np.int64]:
    """Return counts [C, C]: rows are true classes, columns predicted ones."""
    n_classes = probabilities.shape[1]
    cells = labels * n_classes + probabilities.argmax(1)
    return np.bincount(cells, minlength=n_classes**2).reshape(n_classes, n_classes)


def reliability(probabilities: Floats, labels: Labels, *, n_bins: int = N_BINS) -> Reliability:
    """Return confidence and accuracy in bins of equal width, least confident first."""
    confidence = probabilities.max(1)
    correct = probabilities.argmax(1) == labels
    bins = np.minimum((confidence * n_bins).astype(int), n_bins - 1)
    counts = np.bincount(bins, minlength=n_bins)
    some = counts > 0
    sums = [np.bincount(bins, values, minlength=n_bins)[some] for values in (confidence, correct)]
    return Reliability(sums[0] / counts[some], sums[1] / counts[some], counts[some])


def real_metrics(
    predictive: Normals, targets: Floats, *, level: float = LEVEL
) -> dict[str, float]:
    """Return rmse, mae, r2, nll and coverage of predictions of real targets.

    Args:
        predictive: densities of n data and D columns, in the unit of the targets.
        targets: [n, D].
        level: probability of the intervals whose coverage is measured.
    """
    error = targets - predictive.mean
    around = ((targets - targets.mean(0)) ** 2).sum(0)
    explained = 1 - (error**2).sum(0) / around if (around > 0).all() else math.nan
    return {
        "rmse": float(np.sqrt((error**2).mean())),
        "mae": float(np.abs(error).mean()),
        "r2": float(np.mean(explained)),
        "nll": float(-predictive.log_density(targets).mean()),
        "coverage": covered(predictive, targets, level),
    }


def covered(predictive: Normals, targets: Floats, level: float) -> float:
    """Return the share of the targets inside the central interval of a probability.

    >>> covered(Normals.single(np.zeros((2, 1)), np.ones(1)), np.array([[0.5], [3.0]]), 0.9)
    0.5
    """
    low, high = predictive.interval(level)
    return float(((low <= targets) & (targets <= high)).mean())


def coverage_by_level(predictive: Normals, targets: Floats) -> dict[str, float]:
    """Return the coverage of the intervals of `LEVELS`, as coverage_50 and so on."""
    return {f"coverage_{100 * p:.0f}": covered(predictive, targets, p) for p in LEVELS}


def interval_reliability(predictive: Normals, targets: Floats, *, n: int = 19) -> Reliability:
    """Return n probabilities of central intervals, evenly spaced, and the shares inside."""
    levels = np.arange(1, n + 1) / (n + 1)
    inside = np.array([covered(predictive, targets, float(p)) for p in levels])
    return Reliability(levels, inside, np.full(n, targets.size))


def auroc(inside: NDArray[Any], outside: NDArray[Any]) -> float:
    """Return the probability that a score of `outside` exceeds one of `inside`; ties count half.

    >>> auroc(np.array([0.1, 0.2]), np.array([0.2, 0.9]))
    0.875
    """
    ranks = rankdata(np.concatenate([inside, outside]))[len(inside) :]
    n_in, n_out = len(inside), len(outside)
    return float((ranks.sum() - n_out * (n_out + 1) / 2) / (n_in * n_out))


def entropy(probabilities: Floats) -> Floats:
    """Return the entropy of each row in nats [n]."""
    found: Floats = -(probabilities * np.log(probabilities.clip(LEAST, 1))).sum(1)
    return found


def named(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that are numbers: an undefined one is left out."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}
