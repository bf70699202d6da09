"""Prequential evidence: blocks of data predicted by the network trained on the data before them.

    log p(D_late | D_early)  ~  Σ_k log (1/M) Σ_m Π_{n in block k} p(y_n | f_n, T_m)

    f_n  outputs for datum n of the network trained on all blocks before block k   [C]
    T_m  M softmax temperatures, or factors of the learned noise, even in the logarithm

The chain rule makes a product of predictions of unseen data an evidence, conditional on the first
data (Dawid 1984; Lyle et al. 2020, section 3; Lotfi et al. 2022), and blocks that double make it
cheap (Blier & Ollivier 2018). Each prediction here is that of one network, with the
scale of its outputs marginalised over a uniform prior in log T: overconfidence costs at most log M
nats a block. No datum is predicted by a network that has seen it, and every datum is trained on in
the end.

The exact evidence is the same whatever the order of the data. With two orders, one the reverse of
the other, `value` is the mean of both: twice the data judge, with blocks from one half on all.

`hit_rate` is the fraction of the same data whose class has the largest output. It orders as the
evidence of the coarser forecast does that gives the named class 1 - e, every other class
e / (C - 1), with one error rate e.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from nas_evidence.domains import Frozen
from nas_evidence.likelihood import Categorical, Gaussian, Likelihood
from nas_evidence.record import EvidenceEstimate, Term

#: T_m / T, M of them: an eighth to eight times, even in the logarithm.
SCALES = tuple(2.0 ** (m / 4) for m in range(-12, 13))


class Block(Frozen):
    """How well one block was predicted by the network trained on the data before it.

    begin, end    the block, in the order of the blocks; `begin` data were trained on
    order         of the data: 0, or 1 for its reverse
    log_evidence  of the block in nats, the scale marginalised; None if the training diverged
    scale         the likeliest of `SCALES`
    hits          data whose class has the largest output; None for real targets
    """

    begin: int
    end: int
    order: int = 0
    log_evidence: float | None
    scale: float
    hits: int | None
    seconds: float


@dataclass(frozen=True)
class Forecast:
    """The evidence of one block in nats, the likeliest scale, and the hits."""

    log_evidence: float
    scale: float
    hits: int | None


def forecast(outputs: Tensor, targets: Tensor, likelihood: Likelihood) -> Forecast:
    """Return how well outputs [n, C] foretell targets, over a uniform prior on `SCALES`.

    >>> even = forecast(torch.zeros(3, 2), torch.tensor([0, 1, 1]), Categorical())
    >>> round(even.log_evidence, 6) == round(3 * math.log(0.5), 6)
    True
    """
    scaled = [float(_at(likelihood, s).log_likelihood(outputs, targets)) for s in SCALES]
    values = torch.tensor(scaled, dtype=torch.float64)
    hits = None
    if isinstance(likelihood, Categorical):
        hits = int((outputs.argmax(-1) == targets).sum())
    return Forecast(
        log_evidence=float(values.logsumexp(0)) - math.log(len(SCALES)),
        scale=SCALES[int(values.argmax())],
        hits=hits,
    )


def block_bounds(fractions: Sequence[float], n: int) -> list[tuple[int, int]]:
    """Return (begin, end) of each block of `n` data; the first begins after the early data.

    Raises:
        ValueError: the data are too few for a block to hold any.

    >>> block_bounds([0.25, 0.5], 10)
    [(2, 5), (5, 10)]
    """
    cuts = [int(fraction * n) for fraction in fractions] + [n]
    if cuts[0] < 1 or any(a >= b for a, b in pairwise(cuts)):
        raise ValueError(
            f"every block must hold at least one datum, but fractions {list(fractions)} cut "
            f"{n} data at {cuts}; give more data or fewer fractions"
        )
    return list(pairwise(cuts))


def prequential_estimates(
    blocks: Sequence[Block], evidence: str, hit_rate: str
) -> list[EvidenceEstimate]:
    """Return the estimate named `evidence`, and that named `hit_rate` where there are classes.

    `value` of the first in nats summed over the blocks of an order, mean over orders; `per_datum`
    that over the data of an order; of the second a fraction. Not valid where a training diverged.
    """
    orders = len({b.order for b in blocks})
    seconds, n = sum(b.seconds for b in blocks), sum(b.end - b.begin for b in blocks)
    failed = [b.begin for b in blocks if b.log_evidence is None]
    if failed:
        note = f"the training on the first {failed[0]} data diverged"
        names = [evidence, hit_rate]
        return [EvidenceEstimate(estimator=n, value=-math.inf, valid=False, note=note)
                for n in names]  # fmt: skip
    terms = [
        Term(term=term, group=_name(b), value=value)
        for b in blocks
        for term, value in (("log_predictive", b.log_evidence), ("output_scale", b.scale))
        if value is not None
    ]
    value = sum(b.log_evidence for b in blocks if b.log_evidence is not None) / orders
    times = " in each of two orders" if orders > 1 else ""
    estimates = [
        EvidenceEstimate(
            estimator=evidence,
            value=value,
            per_datum=value * orders / n,
            terms=tuple(terms),
            seconds=seconds,
            note=f"{n // orders} data predicted after {blocks[0].begin}{times}",
        )
    ]
    hits = [Term(term="hits", group=_name(b), value=b.hits) for b in blocks if b.hits is not None]
    if len(hits) == len(blocks):
        rate = sum(term.value for term in hits) / n
        estimates.append(
            EvidenceEstimate(
                estimator=hit_rate, value=rate, terms=tuple(hits), note=estimates[0].note
            )
        )
    return estimates


def _name(block: Block) -> str:
    return f"{block.begin}-{block.end}" + " reversed" * block.order


def _at(likelihood: Likelihood, scale: float) -> Likelihood:
    if isinstance(likelihood, Categorical):
        return Categorical(likelihood.temperature * scale)
    assert isinstance(likelihood, Gaussian)
    return Gaussian(likelihood.noise_std * scale)
