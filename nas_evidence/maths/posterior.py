"""The posterior over models from their log evidences, and Bayes factors in words.

    w_i = exp(e_i / T) / sum_j exp(e_j / T)       e log evidence [n], nats summed over the data

T = 1 is Bayes' rule with equal prior probabilities. Log evidences of networks differ by tens to
thousands of nats, so these weights are nearly one-hot, mostly with more confidence than the
approximations justify. T = N, the number of data, tempers them: the ratio of two weights is then
the ratio of the geometric mean probabilities that the two models give to one label, whatever N.

    2 ln B    0 to 2            2 to 6      6 to 10    above 10      (Kass and Raftery 1995, 3.2)
              hardly worth      positive    strong     very strong
              a mention
"""

import numpy as np
from numpy.typing import ArrayLike

from nas_evidence.maths.ranking import Floats


def posterior_weights(log_evidence: ArrayLike, *, temperature: float = 1.0) -> Floats:
    """Return the weights [n] of models with equal prior probabilities; they sum to one.

    >>> posterior_weights([-1200.3, -1201.0, -1190.2]).round(5).tolist()
    [4e-05, 2e-05, 0.99994]
    """
    values = np.asarray(log_evidence, np.float64) / temperature
    weights: Floats = np.exp(values - values.max())
    weights /= weights.sum()
    return weights


def bayes_factor_words(log_bayes_factor: float) -> str:
    """Return in words how strong the evidence of a log Bayes factor >= 0 is.

    >>> [bayes_factor_words(b) for b in (0.5, 2.0, 4.0, 40.0)]
    ['hardly worth a mention', 'positive', 'strong', 'very strong']
    """
    for end, words in ((2.0, "hardly worth a mention"), (6.0, "positive"), (10.0, "strong")):
        if 2 * log_bayes_factor <= end:
            return words
    return "very strong"
