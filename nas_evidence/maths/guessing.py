"""Whether the best of many scores is told apart from guessing.

    s  the largest of K held-out log predictive densities of n data, nats per datum
    g  that of a prediction that is the same for all data: the shares of the classes, or the mean
    z  normal quantile of 1 - 0.05 / K (Bonferroni): the largest of K is partly lucky

    guessing:  s - g <= 2 z^2 / n

A calibrated prediction that gains e nats per datum over a constant one, e small, has log ratios of
variance 2 e: they are the log likelihood ratios of distributions that lie close together
(Kullback 1959, ch. 2.6). So (s - g) sqrt(n / (2 (s - g))) standard errors lie above 0, which is
more than z exactly beyond that margin. It needs no predictions, and n, K and s alone.
"""

from scipy.special import ndtri

#: Probability that one of K scores of guesses is told apart from guessing.
ALPHA = 0.05


def least_gain(n: int, k: int) -> float:
    """Return what the best of k scores of n data must gain over guessing, nats per datum.

    >>> round(least_gain(240, 8), 3), round(least_gain(1000, 24), 3)
    (0.052, 0.016)
    """
    z = float(ndtri(1 - ALPHA / max(k, 1)))
    return 2 * z**2 / n


def is_guessing(best: float, guess: float, *, n: int, k: int) -> bool:
    """Return whether the best of k scores is not told apart from guessing.

    Args:
        best: the largest score, nats per datum.
        guess: that of the constant prediction.
        n: data that are predicted.
        k: scores.
    """
    return best - guess <= least_gain(n, k)
