"""What predictions of unseen data are worth: losses, metrics, and what figures draw of them.

Losses of real targets are those of standardised targets, like the scores; RMSE, MAE and the pairs
are in the unit of the targets.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nas_evidence.judgement import CalibrationPoint
from nas_evidence.maths.predictions import (
    calibration,
    class_losses,
    class_metrics,
    confusion,
    coverage,
    named,
    real_metrics,
    recall,
)
from nas_evidence.maths.ranking import Floats
from nas_evidence.yardsticks import Predicted

#: Most pairs of true and predicted values that are kept.
MOST_PAIRS = 500
#: Probabilities of the intervals whose coverage is measured.
_LEVELS = tuple(k / 10 for k in range(1, 10))


def measured(
    predicted: Predicted, y: NDArray[Any], y_std: Floats
) -> tuple[Floats, dict[str, float]]:
    """Return the loss of each datum in nats, and the metrics that are defined.

    Args:
        predicted: of n data.
        y: their labels [n], or real targets [n, D].
        y_std: standard deviations of the real training targets [D].
    """
    if predicted.noise is None:
        return class_losses(predicted.outputs, y), named(class_metrics(predicted.outputs, y))
    error = (y - predicted.outputs) / y_std
    noise = predicted.noise / y_std
    losses = (0.5 * (error / noise) ** 2 + np.log(noise) + 0.5 * np.log(2 * np.pi)).sum(1)
    metrics = real_metrics(predicted.outputs, predicted.noise, y)
    return losses, named({**metrics, "log_loss": float(losses.mean())})


def drawn(predicted: Predicted, y: NDArray[Any]) -> dict[str, Any]:
    """Return the fields of `Judgement` that figures show.

    Args:
        predicted: of n data.
        y: their labels [n], or real targets [n, D].
    """
    if predicted.noise is None:
        bins = calibration(predicted.outputs, y)
        return {
            "recall": {str(k): v for k, v in recall(predicted.outputs, y).items()},
            "confusion": tuple(tuple(map(int, row)) for row in confusion(predicted.outputs, y)),
            "calibration": tuple(
                CalibrationPoint(n=one.n, confidence=one.confidence, accuracy=one.accuracy)
                for one in bins
            ),
        }
    at = np.linspace(0, len(y) - 1, min(MOST_PAIRS, len(y))).astype(int)
    inside = coverage(predicted.outputs, predicted.noise, y, _LEVELS)
    return {
        "pairs": tuple(
            zip(y[at].ravel().tolist(), predicted.outputs[at].ravel().tolist(), strict=True)
        ),
        "calibration": tuple(
            CalibrationPoint(n=len(y), confidence=level, accuracy=share)
            for level, share in zip(_LEVELS, inside, strict=True)
        ),
    }
