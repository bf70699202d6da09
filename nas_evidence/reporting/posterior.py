"""Posterior over architectures: their weights, and Bayes factors in words."""

from dataclasses import dataclass

from nas_evidence.maths.posterior import bayes_factor_words, posterior_weights
from nas_evidence.reporting.tables import Study

#: Architectures shown, best first; all of them are in posterior.csv.
SHOWN = 12


@dataclass(frozen=True)
class Belief:
    """One architecture; log evidences are in nats, summed over the data.

    raw       posterior weight, with equal prior probabilities for all architectures tried
    tempered  the same for the evidence per datum
    best      probability of being the best, given the spread over seeds; None without replicates
    """

    rank: int
    family: str
    architecture: str
    log_evidence: float
    behind: float  # the first minus this one: log Bayes factor
    words: str
    raw: float
    tempered: float
    best: float | None


def posterior(study: Study) -> list[Belief]:
    """Return the weights of the ranked architectures; empty if the objective is not in nats."""
    ranked = [one for one in study.ranking if one.objective is not None]
    if study.objective_unit != "nats per datum" or not ranked:
        return []
    n_data = float(study.complete["n_data"].astype(float).max())
    values = [n_data * (one.objective or 0.0) for one in ranked]
    raw, tempered = posterior_weights(values), posterior_weights(values, temperature=n_data)
    sure = study.certainty
    return [
        Belief(
            rank=one.rank or 0,
            family=one.family,
            architecture=one.architecture,
            log_evidence=value,
            behind=values[0] - value,
            words=bayes_factor_words(values[0] - value) if position else "",
            raw=float(raw[position]),
            tempered=float(tempered[position]),
            best=sure.best[position] if sure else None,
        )
        for position, (one, value) in enumerate(zip(ranked, values, strict=True))
    ]


def posterior_sentences(study: Study, beliefs: list[Belief]) -> list[str]:
    """Compare the first with the second, and say how far to trust the weights."""
    if len(beliefs) < 2:
        return []
    first, second = beliefs[:2]
    n_data = round(float(study.complete["n_data"].astype(float).max()))
    return [
        f"At face value, the evidence for the first against the second is {second.words}: a "
        f"log Bayes factor of {second.behind:.1f} nats (scale of Kass and Raftery, 1995). "
        f"{_one_hot(first)} Do not take these raw weights at face value: they hold only for exact "
        "evidences, and a Laplace approximation is often wrong by more than the gaps between "
        "neighbours.",
        f"The tempered weights raise the evidences to the power 1/N, N = {n_data:,}: the ratio of "
        "two of them is the ratio of the geometric mean probabilities that the architectures give "
        "to one datum. They say how much the choice matters, not how certain it is"
        + (
            "; the last column gives that, from the seed noise."
            if first.best is not None
            else ", which needs replicates."
        ),
    ]


def _one_hot(first: Belief) -> str:
    if first.raw >= 0.99:
        return (
            "The raw weights are nearly one-hot, as almost always: sums over all data "
            f"differ by many nats, so that the first takes {100 * first.raw:.1f} %."
        )
    return f"The first takes {100 * first.raw:.0f} % of the raw weights."
