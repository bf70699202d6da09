"""The calibration factor c on the spread of predictions, fitted out of fold.

`Predictive.factor` of `likelihoods/predictive.py` asks for the one of its distributions.

    c = argmax  Σ_n log p(y_n | f_n, c σ_n) + (m/N) Σ_n E[log p(y | f_n, c σ_n)]

    y    of the expectation: as the predictor says, p(y | f_n, σ_n)
    σ_n  softmax temperature, or standard deviation of the predictive distribution of real targets
    m    rows that are as the predictor says: they shrink c to 1 (docs/decisions/0020)

Real targets: c² = (Σ z² + m D) / (N D + m D), z the standardised residuals [N, D]. For classes
the sum is concave in 1/c, and Brent's method finds where its slope is 0. Where c = 1 is the
likeliest, it stays.
"""

import math

from torch import Tensor

from nas_evidence.maths.root_finding import root

#: m by kind of target.
ROWS_OF_CLASSES, ROWS_OF_REALS = 160, 10
#: c lies between 1 / MOST and MOST.
MOST = 20.0


def class_factor(logits: Tensor, labels: Tensor, *, rows: float = ROWS_OF_CLASSES) -> float:
    """Return c for class probabilities softmax(logits / c).

    Args:
        logits: divided by the temperature σ_n [N, C].
        labels: [N].
        rows: the weight m.

    Raises:
        ValueError: if a logit is not finite.

    >>> import torch
    >>> even = torch.tensor([[2.0, 0.0], [2.0, 0.0]])
    >>> class_factor(even, torch.tensor([0, 1]), rows=0) == MOST  # as often wrong as right
    True
    """
    if not len(labels):
        return 1.0
    logits, weight = logits.double(), rows / len(labels)
    _check_numbers(logits)
    logits = logits - logits.amax(1, keepdim=True)  # equal ones are 0 exactly
    own = logits.softmax(1)
    seen = logits.gather(1, labels[:, None]).sum() + weight * (own * logits).sum()

    def slope(inverse: float) -> float:
        mean = ((inverse * logits).softmax(1) * logits).sum()
        return float(seen - (1 + weight) * mean)

    # The slope decreases. It is 0 at c = 1 also where it is 0 everywhere.
    if slope(1.0) == 0:
        return 1.0
    if slope(MOST) >= 0:
        return 1 / MOST
    if slope(1 / MOST) <= 0:
        return MOST
    return 1 / root(slope, 1 / MOST, MOST, xtol=1e-13)


def real_factor(residuals: Tensor, *, rows: float = ROWS_OF_REALS) -> float:
    """Return c for normal distributions, from standardised residuals [N, D].

    Raises:
        ValueError: if a residual is not finite.

    >>> import torch
    >>> real_factor(torch.tensor([[2.0], [-2.0]]), rows=0)
    2.0
    """
    n_outputs = residuals.shape[1]
    n = residuals.numel() + rows * n_outputs
    if not n:
        return 1.0
    _check_numbers(residuals)
    total = float(residuals.double().square().sum()) + rows * n_outputs
    return min(MOST, max(1 / MOST, math.sqrt(total / n)))


def _check_numbers(values: Tensor) -> None:
    finite = values.isfinite()
    if not finite.all():
        rows = int((~finite).any(1).sum())
        raise ValueError(
            f"the spread of predictions is fitted to finite numbers, but {rows} of {len(values)} "
            "predictions are NaN or infinite: their network has diverged"
        )
