"""How good predictions with uncertainty are: accuracy, log loss, calibration, coverage.

Probabilities are [n, C] with rows that sum to 1; labels are 0..C-1.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from nas_evidence.maths.normals import Normals

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
#: Bins of the reliability diagram.
N_BINS = 15
#: Probabilities of the intervals whose coverage is always said.
LEVELS = (0.5, 0.9, 0.95)
_LEAST = 1e-15


@dataclass(frozen=True)
class Reliability:
    """Confidence and accuracy by bin of confidence; empty bins are left out.

    confidence  mean of the largest probability
    accuracy    fraction of correct predictions
    count       predictions
    """

    confidence: Floats
    accuracy: Floats
    count: NDArray[np.int64]

    @property
    def error(self) -> float:
        """Expected calibration error Σ_b n_b |accuracy_b − confidence_b| / n (Guo et al. 2017)."""
        gaps = np.abs(self.accuracy - self.confidence)
        return float((self.count * gaps).sum() / self.count.sum())


def reliability(probabilities: Floats, labels: Labels, *, n_bins: int = N_BINS) -> Reliability:
    """Return confidence and accuracy in bins of equal width."""
    confidence = probabilities.max(1)
    correct = probabilities.argmax(1) == labels
    bins = np.minimum((confidence * n_bins).astype(int), n_bins - 1)
    counts = np.bincount(bins, minlength=n_bins)
    some = counts > 0
    sums = [np.bincount(bins, values, minlength=n_bins)[some] for values in (confidence, correct)]
    return Reliability(sums[0] / counts[some], sums[1] / counts[some], counts[some])


def classification_measures(probabilities: Floats, labels: Labels) -> dict[str, float]:
    """Return accuracy, balanced accuracy, log loss in nats per datum, and calibration error.

    Balanced accuracy is the mean of the accuracies of the classes that occur.
    """
    correct = probabilities.argmax(1) == labels
    by_class = [correct[labels == label].mean() for label in np.unique(labels)]
    likely = probabilities[np.arange(len(labels)), labels].clip(_LEAST, 1)
    return {
        "accuracy": float(correct.mean()),
        "balanced_accuracy": float(np.mean(by_class)),
        "log_loss": float(-np.log(likely).mean()),
        "calibration_error": reliability(probabilities, labels).error,
    }


def regression_measures(
    predictive: Normals, targets: Floats, *, level: float = 0.9
) -> dict[str, float]:
    """Return measures of normal predictions of targets [n, C], in the unit of the targets.

    coverage     fraction of targets inside the central interval of probability `level`
    coverage_50  and so on: of probabilities 50, 90 and 95 %
    nll          mean over data of minus the joint log density of all outputs, nats
    """
    mean = predictive.mean
    residual = targets - mean
    spread = np.square(targets - targets.mean(0)).sum()
    percent = {f"coverage_{100 * p:.0f}": _covered(predictive, targets, p) for p in LEVELS}
    return {
        "rmse": float(np.sqrt(np.square(residual).mean())),
        "mae": float(np.abs(residual).mean()),
        "r2": float(1 - np.square(residual).sum() / spread) if spread > 0 else float("nan"),
        "nll": float(-predictive.log_density(targets).mean()),
        "coverage": _covered(predictive, targets, level),
        "level": level,
        **percent,
    }


def interval_reliability(predictive: Normals, targets: Floats) -> Reliability:
    """Return the probability of central intervals, 5 to 95 %, and the share of targets inside."""
    levels = np.arange(1, 20) / 20
    inside = np.array([_covered(predictive, targets, float(p)) for p in levels])
    return Reliability(levels, inside, np.full(len(levels), targets.size))


def _covered(predictive: Normals, targets: Floats, level: float) -> float:
    low, high = predictive.interval(level)
    return float(((low <= targets) & (targets <= high)).mean())


def auroc(inside: NDArray[Any], outside: NDArray[Any]) -> float:
    """Return the probability that a score of `outside` exceeds one of `inside`; ties count half.

    >>> auroc(np.array([0.1, 0.2]), np.array([0.2, 0.9]))
    0.875
    """
    ranks = stats.rankdata(np.concatenate([inside, outside]))[len(inside) :]
    n_in, n_out = len(inside), len(outside)
    return float((ranks.sum() - n_out * (n_out + 1) / 2) / (n_in * n_out))


def entropy(probabilities: Floats) -> Floats:
    """Return the entropy of each row in nats [n]."""
    found: Floats = -(probabilities * np.log(probabilities.clip(_LEAST, 1))).sum(1)
    return found
