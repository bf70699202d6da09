"""How good predictions are: the one place that computes metrics, by scikit-learn's rules.

    log loss            -1/n sum_i log p_i(y_i), p clipped to [2.2e-16, 1 - 2.2e-16]
    balanced accuracy   mean over the classes present of the share that is recognised (recall)
    ECE                 sum_b n_b / n |accuracy_b - confidence_b|  over 15 bins of equal width
    F1                  2 TP / (2 TP + FP + FN)
    ROC AUC             chance that a positive datum has a larger probability than a negative one;
                        ties count half
    average precision   sum_k (R_k - R_k-1) P_k, recall and precision at each probability
    RMSE                sqrt(1/n sum_i (y_i - f_i)^2) of each column, mean over columns
    R2                  1 - sum (y - f)^2 / sum (y - mean y)^2, mean over columns; of a column
                        that is constant 0, or 1 if it is predicted exactly
    coverage            share of the targets in the central interval of the prediction
    CRPS                of `maths/crps.py`, mean over data and columns
    log loss            -1/n sum_i log p_i(y_i) - sum_d log u_d of real targets divided by u

    p probabilities [n, C]     y labels [n], or targets [n, D]     f predictions [n, D]

Of two classes the second is the positive one. Of more, F1, ROC AUC and average precision are means
over the classes, each against the rest.
The class of a datum is that of `decisions.py`: with class weights they decide, and the accuracy is
weighted by them. All else counts each datum once.

Columns may have different units: `metrics_of_each` has every metric of each column alone.

A probability of 0 for what happened costs 36 nats, not infinity (as `sklearn.metrics.log_loss`).
The log loss of real targets is everywhere that of targets divided by u, their standard deviations
in training, as the scores are. (Guo et al. 2017 for the ECE.)
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nas_evidence.maths.crps import crps
from nas_evidence.maths.decisions import NONE, accuracy, decided
from nas_evidence.maths.density import Density

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


def class_metrics(
    probabilities: Floats,
    labels: Labels,
    *,
    threshold: float | None = None,
    class_weights: Floats | None = None,
) -> dict[str, float]:
    """Return all metrics of classes; those that no data define are left out.

    >>> p = np.array([[0.8, 0.2], [0.4, 0.6], [0.7, 0.3], [0.1, 0.9]])
    >>> found = class_metrics(p, np.array([0, 1, 1, 1]))
    >>> found["accuracy"], round(found["balanced_accuracy"], 4), found["roc_auc"]
    (0.75, 0.8333, 1.0)
    >>> class_metrics(p, np.array([0, 1, 1, 1]), threshold=0.25)["f1"]
    1.0

    Args:
        probabilities: [n, C].
        labels: [n].
        threshold: of the second of two classes.
        class_weights: w [C].
    """
    chosen = decided(probabilities, threshold, class_weights=class_weights)
    found = {
        "log_loss": float(log_losses(probabilities, labels).mean()),
        "accuracy": accuracy(chosen, labels, class_weights),
        "balanced_accuracy": float(np.mean([(chosen[labels == k] == k).mean()
                                            for k in np.unique(labels)])),
        "f1": _f1(chosen, labels, probabilities.shape[1]),
        "ece": reliability(probabilities, labels).error,
    }  # fmt: skip
    classes = [1] if probabilities.shape[1] == 2 else range(probabilities.shape[1])
    against_rest = [(labels == k, probabilities[:, k]) for k in classes]
    defined = [one for one in against_rest if one[0].any() and not one[0].all()]
    if defined:
        found["roc_auc"] = float(np.mean([auroc(score[~is_k], score[is_k])
                                          for is_k, score in defined]))  # fmt: skip
        found["average_precision"] = float(np.mean([_average_precision(*one) for one in defined]))
    return found


def _f1(chosen: Labels, labels: Labels, n_classes: int) -> float:
    """Return F1 of the second of two classes, or the mean over those present or chosen."""
    classes = [1] if n_classes == 2 else np.union1d(chosen, labels)
    right = [2 * ((chosen == k) & (labels == k)).sum() for k in classes]
    either = [(chosen == k).sum() + (labels == k).sum() for k in classes]
    return float(np.mean([a / b if b else 0.0 for a, b in zip(right, either, strict=True)]))


def _average_precision(positive: NDArray[np.bool_], score: Floats) -> float:
    hits, _, n_chosen, _ = _by_threshold(positive, score)
    gained = np.diff(hits, prepend=0)
    return float((gained * hits / n_chosen).sum() / positive.sum())


def _by_threshold(
    positive: NDArray[np.bool_], score: Floats
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], Floats]:
    """Return right and wrong positives, all positives, and the score, at each distinct score."""
    order = np.argsort(-score, kind="stable")
    ordered = score[order]
    last = np.append(np.flatnonzero(np.diff(ordered)), len(ordered) - 1)
    hits = np.cumsum(positive[order])[last]
    return hits, last + 1 - hits, last + 1, ordered[last]


def best_thresholds(
    probabilities: Floats, labels: Labels, class_weights: Floats | None = None
) -> dict[str, float]:
    """Return the threshold of the second of two classes that maximises each metric of decisions.

    It lies halfway between two probabilities; of equally good ones it is the nearest to 1/2. More
    classes, or data of a single one, have none.

    >>> p = np.array([0.1, 0.2, 0.4, 0.9])
    >>> best_thresholds(np.stack([1 - p, p], 1), np.array([0, 0, 1, 1]))["f1"].__round__(3)
    0.3
    """
    positive = labels == 1
    if probabilities.shape[1] != 2 or not positive.any() or positive.all():
        return {}
    hits, false, _, scores = _by_threshold(positive, probabilities[:, 1])
    hits, false = np.append(0, hits), np.append(0, false)  # the first: nothing is positive
    edges = np.concatenate([[1.0], scores, [0.0]])
    cuts = (edges[:-1] + edges[1:]) / 2
    cuts[0] = np.nextafter(1.0, 2.0) if scores[0] == 1 else cuts[0]
    n_positive, n_negative = int(positive.sum()), int((~positive).sum())
    w0, w1 = (1.0, 1.0) if class_weights is None else class_weights
    of = {
        "accuracy": (w1 * hits + w0 * (n_negative - false)) / (w1 * n_positive + w0 * n_negative),
        "balanced_accuracy": (hits / n_positive + 1 - false / n_negative) / 2,
        "f1": 2 * hits / (hits + false + n_positive),
    }
    return {name: _nearest_to_half(cuts[values >= values.max() - 1e-12])
            for name, values in of.items()}  # fmt: skip


def _nearest_to_half(cuts: Floats) -> float:
    return float(cuts[np.abs(cuts - 0.5).argmin()])


def log_losses(probabilities: Floats, labels: Labels) -> Floats:
    """Return the log loss of each datum [n], nats.

    >>> float(log_losses(np.array([[0.0, 1.0]]), np.array([0]))[0].round(2))
    36.04
    """
    own = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    losses: Floats = -np.log(own.clip(LEAST, 1 - LEAST))
    return losses


def recall(chosen: Labels, labels: Labels) -> dict[int, float]:
    """Return the share of each class present that is recognised."""
    right = chosen == labels
    return {int(label): float(right[labels == label].mean()) for label in np.unique(labels)}


def confusion(chosen: Labels, labels: Labels, n_classes: int) -> NDArray[np.int64]:
    """Return counts [C, C]: rows are true classes, columns chosen ones; without rows of `NONE`."""
    some = chosen != NONE
    cells = labels[some] * n_classes + chosen[some]
    return np.bincount(cells, minlength=n_classes**2).reshape(n_classes, n_classes)


def reliability(probabilities: Floats, labels: Labels) -> Reliability:
    """Return confidence and accuracy in bins of equal width, least confident first."""
    confidence = probabilities.max(1)
    correct = probabilities.argmax(1) == labels
    bins = np.minimum((confidence * N_BINS).astype(int), N_BINS - 1)
    counts = np.bincount(bins, minlength=N_BINS)
    some = counts > 0
    sums = [np.bincount(bins, values, minlength=N_BINS)[some] for values in (confidence, correct)]
    return Reliability(sums[0] / counts[some], sums[1] / counts[some], counts[some])


def real_metrics(
    predictive: Density,
    targets: Floats,
    *,
    unit: Floats,
    level: float = LEVEL,
    with_crps: bool = True,
) -> dict[str, float]:
    """Return rmse, mae, r2, log_loss, coverage and crps of predictions of real targets.

    Args:
        predictive: densities of n data and D columns, in the unit of the targets.
        targets: [n, D].
        unit: standard deviations of the targets in training [D], for the log loss.
        level: probability of the intervals whose coverage is measured.
        with_crps: it takes a hundred times as long as all others.
    """
    error = targets - predictive.mean
    found = {
        "rmse": rmse(error),
        "mae": float(np.abs(error).mean()),
        "r2": _r2(error, targets),
        "log_loss": float(real_losses(predictive, targets, unit).mean()),
        "coverage": covered(predictive, targets, level),
    }
    return found | {"crps": float(crps(predictive, targets).mean())} if with_crps else found


def rmse(error: Floats) -> float:
    """Return the root mean square of each column of errors [n, D], the mean over columns."""
    return float(np.sqrt((error**2).mean(0)).mean())


def metrics_of_each(
    predictive: Density, targets: Floats, *, unit: Floats, level: float = LEVEL
) -> list[dict[str, float]]:
    """Return the metrics of each of D targets alone, and the coverage of `LEVELS`.

    Arguments are as of `real_metrics`.

    >>> from nas_evidence.maths.normals import Normals
    >>> both = Normals.single(np.zeros((2, 2)), np.array([1.0, 10.0]))
    >>> found = metrics_of_each(both, np.array([[1.0, 10.0], [-1.0, -10.0]]), unit=np.ones(2))
    >>> [one["rmse"] for one in found]
    [1.0, 10.0]
    """
    found = []
    for k in range(targets.shape[1]):
        own, y = predictive.column(k), targets[:, [k]]
        metrics = real_metrics(own, y, unit=unit[[k]], level=level)
        found.append(metrics | coverage_by_level(own, y))
    return found


def _r2(error: Floats, targets: Floats) -> float:
    """Return R2 as `sklearn.metrics.r2_score`; NaN for less than two data."""
    if len(targets) < 2:
        return math.nan
    left, around = (error**2).sum(0), ((targets - targets.mean(0)) ** 2).sum(0)
    varies = around > 0
    of_constant = np.where(left > 0, 0.0, 1.0)
    each = np.where(varies, 1 - left / np.where(varies, around, 1.0), of_constant)
    return float(each.mean())


def real_losses(predictive: Density, targets: Floats, unit: Floats) -> Floats:
    """Return the log loss of each datum [n] of targets [n, D] divided by `unit` [D], nats."""
    losses: Floats = -predictive.log_density(targets) - np.log(unit).sum()
    return losses


def covered(predictive: Density, targets: Floats, level: float) -> float:
    """Return the share of the targets inside the central interval of a probability.

    >>> from nas_evidence.maths.normals import Normals
    >>> covered(Normals.single(np.zeros((2, 1)), np.ones(1)), np.array([[0.5], [3.0]]), 0.9)
    0.5
    """
    low, high = predictive.interval(level)
    return float(((low <= targets) & (targets <= high)).mean())


def coverage_by_level(predictive: Density, targets: Floats) -> dict[str, float]:
    """Return the coverage of the intervals of `LEVELS`, as coverage_50 and so on."""
    return {f"coverage_{100 * p:.0f}": covered(predictive, targets, p) for p in LEVELS}


def interval_reliability(predictive: Density, targets: Floats, *, n: int = 19) -> Reliability:
    """Return n probabilities of central intervals, evenly spaced, and the shares inside."""
    levels = np.arange(1, n + 1) / (n + 1)
    inside = np.array([covered(predictive, targets, float(p)) for p in levels])
    return Reliability(levels, inside, np.full(n, targets.size))


def auroc(inside: NDArray[Any], outside: NDArray[Any]) -> float:
    """Return the probability that a score of `outside` exceeds one of `inside`; ties count half.

    >>> auroc(np.array([0.1, 0.2]), np.array([0.2, 0.9]))
    0.875
    """
    if np.isnan(inside).any() or np.isnan(outside).any():
        return math.nan
    ordered = np.sort(inside)
    below = np.searchsorted(ordered, outside)
    upto = np.searchsorted(ordered, outside, "right")
    return float((below + upto).sum() / 2 / (len(inside) * len(outside)))


def entropy(probabilities: Floats) -> Floats:
    """Return the entropy of each row in nats [n]."""
    found: Floats = -(probabilities * np.log(probabilities.clip(LEAST, 1))).sum(1)
    return found


def named(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that are numbers: an undefined one is left out."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}
