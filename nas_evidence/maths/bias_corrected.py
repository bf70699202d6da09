"""Cross-validation judged on other rows than those that chose: bias-corrected, with an interval.

    a_b = argmax_k mean_{i drawn} l_ik            the architecture that draw b chooses
    s_b = argmax_j mean_{i drawn} m_ij            the simple model that it chooses
    d_b = mean_{i left out} (l_i,a_b - m_i,s_b)   what they have on the rows that it left out

    l  log density of row i by architecture k, trained without its fold, nats    [n, K]
    m  the same of simple model j                                                [n, M]

A draw is a bootstrap sample of the rows, of groups where rows come in groups (Tsamardinos,
Greasidou & Borboudakis 2018, "Bootstrapping the out-of-sample predictions for efficient and
accurate cross-validation"). The mean of the winner of K on the rows that chose it is optimistic by
o = max_k mean l_k - max_j mean m_j - d, where d is the mean of d_b, each row with the same weight.

Rows of one training set share its noise: each trains the networks that predict the others. So sums
over folds vary more than sums of independent rows, by the factor c on the standard error

    c^2 = 1 + sum_f n_f / t_f        n_f rows of fold f, t_f rows that its network learned from

(Nadeau & Bengio 2003, "Inference for the generalization error": 1/J + n/t in place of 1/J for J
parts; their argument is a heuristic; docs/results/intervals-and-calibration.md has what it gives).
Five folds have c = 1.5. Rows left out have trained the networks that chose, too, so d is still
optimistic: for the lower end c o is taken off.

    low = min(q_2.5 of d_b, d - max(0, (c - 1) o) - c w_low) - h
    high = max(q_97.5 of d_b, d + c w_high)

    w  distances of the ends of the paired interval (`paired.py`) of the winner from its mean

What ranks is no mean over rows, so the winner w may be behind what the mean chooses:
h = max(0, v - mean l_w) with v the mean of the l_i,a_b as in d. It is taken off the point, too.
The quantiles of d_b know the spread of the choice, w the skewness of losses and rare mistakes.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nas_evidence.maths.paired import LEVEL, Paired

Floats = NDArray[np.float64]
Counts = NDArray[np.float64]
#: Number of draws of the rows, and maximum number of values of all draws together: of many rows
#: there are fewer draws.
N_DRAWS, MOST_NUMBERS, _FEWEST = 1000, 5_000_000, 100


@dataclass(frozen=True)
class Chosen:
    """What each of B draws chose, and what that has on the rows left out.

    own      architecture [B]; `other` the simple model [B]
    gaps     d_b [B], nats
    gap      d - h, nats
    value    v - h, nats
    behind   h, nats
    optimism o, nats
    """

    own: NDArray[np.int64]
    other: NDArray[np.int64]
    gaps: Floats
    gap: float
    value: float
    behind: float
    optimism: float


def draws_of_rows(n: int, units: NDArray[np.int64] | None = None, *, seed: int = 0) -> Counts:
    """Return how often each of B bootstrap samples has each row [B, n].

    Those that leave out no row are left out themselves.

    Args:
        n: rows.
        units: the group of each row [n], which is drawn whole; None where each is its own.
        seed: of the draws.

    >>> draws = draws_of_rows(4)
    >>> bool((draws.sum(1) == 4).all() and (draws.min(1) == 0).all())
    True
    """
    rng = np.random.default_rng(seed)
    of = np.arange(n) if units is None else np.unique(units, return_inverse=True)[1]
    m = int(of.max()) + 1 if n else 0
    n_draws = int(np.clip(MOST_NUMBERS // max(n, 1), _FEWEST, N_DRAWS))
    cells = rng.integers(m, size=(n_draws, m)) + m * np.arange(n_draws)[:, None]
    drawn = np.bincount(cells.ravel(), minlength=n_draws * m).reshape(n_draws, m)
    found: Counts = drawn[(drawn == 0).any(1)][:, of].astype(np.float64)
    return found


def chosen(
    own: Floats,
    others: Floats,
    draws: Counts,
    *,
    winner: int = 0,
    choice: NDArray[np.int64] | None = None,
) -> Chosen:
    """Return what each draw chooses by the mean, and how good that is on the rows left out.

    Args:
        own: log densities of the architectures [n, K], nats.
        others: of the simple models [n, M]; zeros [n, 1] without any.
        draws: see `draws_of_rows`.
        winner: number of the architecture that is judged.
        choice: what each draw chooses of `own` [B], where that is not the one with the best mean.

    >>> own, none = np.array([[0.0, 1.0], [2.0, 0.0]]), np.zeros((2, 1))
    >>> chosen(own, none, np.array([[2.0, 0.0], [0.0, 2.0]])).gaps  # each draw has one of the rows
    array([0., 0.])
    """
    first = (draws @ own).argmax(1) if choice is None else choice
    second = (draws @ others).argmax(1)
    left_out, each = (draws == 0).astype(np.float64), np.arange(len(draws))
    sums = (left_out @ own)[each, first] - (left_out @ others)[each, second]
    value = mean_left_out(own, first, draws)
    mean = value - mean_left_out(others, second, draws)
    behind = max(0.0, value - float(own[:, winner].mean()))
    apparent = float(own.mean(0).max() - others.mean(0).max())
    return Chosen(
        own=first,
        other=second,
        gaps=sums / left_out.sum(1),
        gap=mean - behind,
        value=value - behind,
        behind=behind,
        optimism=apparent - mean,
    )


def mean_left_out(values: Floats, choice: NDArray[np.int64], draws: Counts) -> float:
    """Return the mean over rows of the mean over the draws that leave a row out.

    Args:
        values: of each row by each model [n, K].
        choice: the model that each draw chose [B].
        draws: see `draws_of_rows`.
    """
    left_out = (draws == 0).astype(np.float64)
    n_left_out = left_out.sum(0)
    times = left_out.T @ (choice[:, None] == np.arange(values.shape[1]))
    known = n_left_out > 0
    return float(((values * times).sum(1)[known] / n_left_out[known]).mean())


def factor_of_folds(folds: Iterable[tuple[int, int]]) -> float:
    """Return c, from the rows predicted and the rows learned from of each fold.

    >>> [round(factor_of_folds([(n, 100 - n)] * (100 // n)), 2) for n in (50, 20, 10)]
    [1.73, 1.5, 1.45]
    """
    return math.sqrt(1 + sum(predicted / learned for predicted, learned in folds))


def interval_of(found: Chosen, winner: Paired, factor: float) -> tuple[float, float]:
    """Return the ends of the interval of `LEVEL`, nats.

    Args:
        found: by all draws.
        winner: the difference of the winner and the best simple model on all rows.
        factor: c.
    """
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(found.gaps, [tail, 1 - tail])
    shared = max(0.0, (factor - 1) * found.optimism)
    return (
        min(float(low) - found.behind, found.gap - shared - factor * (winner.mean - winner.low)),
        max(float(high), found.gap + found.behind + factor * (winner.high - winner.mean)),
    )
