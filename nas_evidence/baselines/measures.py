"""Measures of held-out predictions: losses, metrics, comparisons, and the data of figures.

Losses of real targets are those of standardised targets, like the scores; RMSE, MAE, CRPS and the
values of figures are in the unit of the targets.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nas_evidence.baselines.comparison import (
    Baseline,
    CalibrationPoint,
    Comparison,
    OneTarget,
)
from nas_evidence.exporting.predicted import Prediction
from nas_evidence.maths.conditional_coverage import by_quartile, n_pit
from nas_evidence.maths.crps import crps
from nas_evidence.maths.metrics import (
    Reliability,
    confusion,
    interval_reliability,
    named,
    recall,
    reliability,
)
from nas_evidence.maths.paired import expected_variance_of_classes, paired_interval

#: Maximum number of rows whose true and predicted values are kept.
MOST_PAIRS = 500
#: Maximum number of rows of a resample: an error bar needs no more.
MOST_DRAWN = 2000
#: Resamples.
_N_DRAWS = 100
#: Intervals whose coverage is drawn: of probability 0.1, 0.2, ..., 0.9.
_N_LEVELS = 9


def standard_errors(predicted: Prediction, y: NDArray[Any]) -> dict[str, float]:
    """Return the standard error of each metric over the data, by the bootstrap.

        sqrt(m/n) std_b metric(m data drawn with replacement)        m = min(n, MOST_DRAWN)

    Metrics that a resample may leave undefined have none. The CRPS is a mean of data, so its error
    is std / sqrt(n) and needs no resample.
    """
    n, rng = len(y), np.random.default_rng(0)
    if n < 2:
        return {}
    m, found = min(n, MOST_DRAWN), []
    for _ in range(_N_DRAWS):
        rows = rng.integers(n, size=m)
        found.append(named(predicted.at(rows).metrics(y[rows], with_crps=False)))
    known = set.intersection(*map(set, found))
    spreads = {name: np.std([one[name] for one in found], ddof=1) for name in known}
    errors = {name: float(spread * np.sqrt(m / n)) for name, spread in sorted(spreads.items())}
    if predicted.density is not None:
        each = crps(predicted.density, y).mean(1)
        errors["crps"] = float(np.std(each, ddof=1) / np.sqrt(n))
    return named(errors)


def beside(
    predicted: Sequence[Prediction],
    name: str,
    other: Prediction,
    y: NDArray[Any],
    code: str = "",
) -> Baseline:
    """Return a simple model beside the network, in means over its seeds.

    Args:
        predicted: by the network, one for each seed.
        name: of the simple model.
        other: predicted by it.
        y: labels [n], or real targets [n, D].
        code: that fits it.
    """
    gaps = other.losses(y) - np.mean([own.losses(y) for own in predicted], axis=0)
    expected = [
        0.0
        if own.probabilities is None or other.probabilities is None
        else expected_variance_of_classes(own.probabilities, other.probabilities, y)
        for own in predicted
    ]
    found = paired_interval(gaps, expected_variance=float(np.mean(expected)))
    return Baseline(
        name=name,
        metrics=named(other.metrics(y)),
        errors=standard_errors(other, y),
        behind=found.mean,
        interval=(found.low, found.high) if len(y) > 1 else None,
        by_target=tuple(named(one) for one in other.metrics_of_each(y)),
        code=code,
    )


def growing(
    alone: Comparison, rivals: Iterable[Baseline], names: Sequence[str]
) -> Iterator[Comparison]:
    """Yield a comparison without simple models, then with one more each time.

    Args:
        alone: the winner alone.
        rivals: the simple models, each computed when it is asked for.
        names: of all of them, in this order.
    """
    found = alone.model_copy(update={"lacks": tuple(names)})
    yield found
    for one in rivals:
        found = found.model_copy(
            update={"baselines": (*found.baselines, one), "lacks": found.lacks[1:]}
        )
        yield found


def drawn(predicted: Prediction, y: NDArray[Any]) -> dict[str, Any]:
    """Return the fields of `Comparison` that figures show; arguments as of `standard_errors`."""
    if predicted.probabilities is not None:
        chosen, p = predicted.chosen, predicted.probabilities
        return {
            "recall": {str(k): v for k, v in recall(chosen, y).items()},
            "confusion": tuple(tuple(map(int, row)) for row in confusion(chosen, y, p.shape[1])),
            "calibration": points_of(reliability(p, y)),
        }
    at = np.linspace(0, len(y) - 1, min(MOST_PAIRS, len(y))).astype(int)
    density = predicted.real
    return {
        "pairs": tuple(
            zip(y[at].ravel().tolist(), density.mean[at].ravel().tolist(), strict=True)
        ),
        **_intervals(predicted, y),
    }


def _intervals(predicted: Prediction, y: NDArray[Any]) -> dict[str, Any]:
    """Return the calibration, quarters and PIT of a real target; of several `by_target`."""
    each = []
    for k in range(y.shape[1]):
        own, truth = predicted.real.column(k), y[:, [k]]
        each.append(
            {
                "calibration": points_of(interval_reliability(own, truth, n=_N_LEVELS)),
                "quarters": tuple(by_quartile(own, truth)),
                "pit": tuple(n_pit(own, truth)),
            }
        )
    if len(each) == 1:
        return each[0]
    metrics = map(named, predicted.metrics_of_each(y))
    names = predicted.target_names
    return {
        "by_target": tuple(
            OneTarget(name=name, metrics=of, **found)
            for name, of, found in zip(names, metrics, each, strict=True)
        )
    }


def points_of(found: Reliability) -> tuple[CalibrationPoint, ...]:
    """Return bins of confidence, or intervals, as the points of a figure."""
    return tuple(
        CalibrationPoint(n=int(n), confidence=float(confidence), accuracy=float(accuracy))
        for n, confidence, accuracy in zip(
            found.count, found.confidence, found.accuracy, strict=True
        )
    )
