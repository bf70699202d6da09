"""How good predictions are: of class probabilities, and of real numbers with an error.

    log loss            -1/n sum_i log p_i(y_i)
    balanced accuracy   mean over the classes present of the share that is recognised (recall)
    ECE                 sum_b n_b / n |accuracy_b - confidence_b|  over 15 bins of equal width
    ROC AUC             share of pairs (positive, negative) in which the positive has the larger
                        probability; ties count half
    R2                  1 - sum (y - f)^2 / sum (y - mean y)^2
    coverage            share of the targets in the central 90 % interval of the prediction

    p probabilities [n, C]     y labels [n], or targets [n, D]     f predictions [n, D]

(Guo et al. 2017 for the ECE; Hand and Till 2001 for the AUC.)
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, rankdata

from nas_evidence.maths.ranking import Floats

Labels = NDArray[np.int64]

N_BINS = 15
#: Probability of the intervals whose coverage is measured.
LEVEL = 0.9
#: Gauss-Hermite quadrature for a standard normal: exact for the fourth powers that are needed.
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(5)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_SMALLEST = 1e-300  # probabilities below cost no more than this


@dataclass(frozen=True)
class CalibrationBin:
    """Predictions of similar confidence: how many, their mean confidence, and how many are right.

    The last is a share.
    """

    n: int
    confidence: float
    accuracy: float


def class_metrics(probabilities: Floats, labels: Labels) -> dict[str, float]:
    """Return log_loss (nats), accuracy, balanced_accuracy, ece and, for two classes, roc_auc.

    >>> p = np.array([[0.8, 0.2], [0.4, 0.6], [0.7, 0.3], [0.1, 0.9]])
    >>> found = class_metrics(p, np.array([0, 1, 1, 1]))
    >>> found["accuracy"], round(found["balanced_accuracy"], 4), found["roc_auc"]
    (0.75, 0.8333, 1.0)
    """
    own = probabilities[np.arange(len(labels)), labels]
    found = {
        "log_loss": float(-np.log(np.maximum(own, _SMALLEST)).mean()),
        "accuracy": float((probabilities.argmax(1) == labels).mean()),
        "balanced_accuracy": float(np.mean(list(recall(probabilities, labels).values()))),
        "ece": sum(
            one.n * abs(one.accuracy - one.confidence)
            for one in calibration(probabilities, labels)
        )
        / len(labels),
    }
    if probabilities.shape[1] == 2 and 0 < labels.sum() < len(labels):
        found["roc_auc"] = _roc_auc(probabilities[:, 1], labels)
    return found


def recall(probabilities: Floats, labels: Labels) -> dict[int, float]:
    """Return the share of each class present that is recognised."""
    right = probabilities.argmax(1) == labels
    return {int(label): float(right[labels == label].mean()) for label in np.unique(labels)}


def confusion(probabilities: Floats, labels: Labels) -> NDArray[np.int64]:
    """Return counts [C, C]: rows are true classes, columns predicted ones."""
    n_classes = probabilities.shape[1]
    cells = labels * n_classes + probabilities.argmax(1)
    return np.bincount(cells, minlength=n_classes**2).reshape(n_classes, n_classes)


def calibration(probabilities: Floats, labels: Labels) -> list[CalibrationBin]:
    """Return the bins of confidence that have predictions, least confident first."""
    confidence = probabilities.max(1)
    right = probabilities.argmax(1) == labels
    bins = np.minimum((confidence * N_BINS).astype(int), N_BINS - 1)
    return [
        CalibrationBin(int(own.sum()), float(confidence[own].mean()), float(right[own].mean()))
        for own in (bins == b for b in np.unique(bins))
    ]


def real_metrics(predictions: Floats, noise: Floats, targets: Floats) -> dict[str, float]:
    """Return rmse, mae, r2, coverage and log_loss of normal predictions.

    Args:
        predictions: means [n, D].
        noise: standard deviations [D], or [n, D].
        targets: [n, D]; rmse and mae are in their unit, log_loss in nats per datum.
    """
    error = targets - predictions
    around = ((targets - targets.mean(0)) ** 2).sum()
    half = norm.ppf((1 + LEVEL) / 2) * noise
    density = -0.5 * (error / noise) ** 2 - np.log(noise) - 0.5 * math.log(2 * math.pi)
    return {
        "rmse": float(np.sqrt((error**2).mean())),
        "mae": float(np.abs(error).mean()),
        "r2": float(1 - (error**2).sum() / around) if around > 0 else math.nan,
        "coverage": float((np.abs(error) <= half).mean()),
        "log_loss": float(-density.sum(1).mean()),
    }


def coverage(
    predictions: Floats, noise: Floats, targets: Floats, levels: Sequence[float]
) -> list[float]:
    """Return the share of the targets inside the central interval of each probability.

    >>> coverage(np.zeros((2, 1)), np.ones(1), np.array([[0.5], [3.0]]), [0.9])
    [0.5]
    """
    away = np.abs(targets - predictions) / noise
    return [float((away <= norm.ppf((1 + level) / 2)).mean()) for level in levels]


def gap_variance_of_classes(one: Floats, other: Floats) -> Floats:
    """Return the variance of the difference of two models' losses for each datum [n], nats^2.

    Over the label, drawn from the mean of the two predictions: what to expect if each model is
    as likely to be right. It holds losses that are too rare to be among the data.

    Args:
        one: log probabilities [n, C].
        other: the same of the other model.

    >>> even, sure = np.log([[0.5, 0.5]]), np.log([[0.9, 0.1]])
    >>> float(gap_variance_of_classes(even, even)[0])
    0.0
    >>> float(gap_variance_of_classes(even, sure)[0].round(3))  # 0.7 * 0.3 * log(9)^2
    1.014
    """
    share, gap = (np.exp(one) + np.exp(other)) / 2, one - other
    return _variance(share, gap)


def gap_variance_of_reals(one: tuple[Floats, Floats], other: tuple[Floats, Floats]) -> Floats:
    """Return the same for normal predictions of targets, drawn from either with equal chance.

    Args:
        one: means and standard deviations [n, D] each.
        other: the same of the other model.
    """
    first, second = [], []
    for mean, std in (one, other):
        y = mean[..., None] + std[..., None] * _NODES  # [n, D, 5]
        gap = _log_normal(y, *one) - _log_normal(y, *other)
        at = (gap * _WEIGHTS).sum(-1)
        first.append(at.sum(-1))
        second.append(((gap**2 * _WEIGHTS).sum(-1) - at**2).sum(-1))  # columns are independent
    variance: Floats = np.mean(second, axis=0) + np.var(first, axis=0)
    return variance


def _variance(share: Floats, values: Floats) -> Floats:
    mean = (share * values).sum(-1, keepdims=True)
    variance: Floats = (share * (values - mean) ** 2).sum(-1)
    return variance


def _log_normal(y: Floats, mean: Floats, std: Floats) -> Floats:
    density: Floats = -0.5 * ((y - mean[..., None]) / std[..., None]) ** 2 - np.log(std)[..., None]
    return density


def paired_difference(losses: Floats, others: Floats) -> tuple[float, float]:
    """Return mean and standard error of `losses` - `others` [n] over the same data."""
    gap = losses - others
    n = len(gap)
    return float(gap.mean()), float(gap.std(ddof=1) / math.sqrt(n)) if n > 1 else math.inf


def class_losses(probabilities: Floats, labels: Labels) -> Floats:
    """Return -log p of each label [n], nats."""
    losses: Floats = -np.log(np.maximum(probabilities[np.arange(len(labels)), labels], _SMALLEST))
    return losses


def _roc_auc(scores: Floats, labels: Labels) -> float:
    ranks = rankdata(scores)
    n_positive = int(labels.sum())
    n_negative = len(labels) - n_positive
    above = ranks[labels == 1].sum() - n_positive * (n_positive + 1) / 2
    return float(above / (n_positive * n_negative))


def named(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that are numbers: an undefined one is left out."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}
