"""The headline: what the winner adds to a linear model, and how certain its rank is."""

from nas_evidence.maths.seeds import CONFIDENCE, Certainty
from nas_evidence.reporting.correlations import scale_of
from nas_evidence.reporting.tables import RankedArchitecture, Study

_LISTED = 6  # candidates listed


def yardstick_sentence(study: Study) -> str:
    """Compare the winner with the best linear model on the first target."""
    winner, linear = study.winner, study.yardstick
    if winner is None:
        return ""
    if linear is None:
        return (
            "There is no complete linear model in this study, so the winner has no yardstick; "
            "add [family.linear] to the study to get one."
        )
    if linear is winner:
        return (
            "The winner is the linear model itself, the yardstick: by this score, no network is "
            "worth its weights here."
        )
    named = f"the best linear model (trial {linear.trial_id})"
    accuracy = study.targets[0] == "test_accuracy"
    own, other = ((one.test_accuracy if accuracy else one.test_nll) for one in (winner, linear))
    start = "The linear model is the yardstick: a network has to beat it."
    if own is None or other is None:
        return f"{start} The winner and {named} have no test result to compare."
    words = "test accuracy" if accuracy else "test nll"
    if own == other:
        return f"{start} The winner has the same {words} as {named}."
    better = (own > other) == accuracy
    gap = scale_of(study.targets[0]).text(abs(own - other))
    return (
        f"{start} The winner is {gap} {'better' if better else 'worse'} in {words} than {named}."
    )


def settled_sentence(study: Study) -> str:
    """Say how many networks settled at a mode, and what became of the others; "" if none tried."""
    trials = study.complete
    if "kept" not in trials or trials["kept"].isna().all():
        return ""
    rows = trials[trials["kept"].notna()]
    at_mode = rows["converged"].fillna(False).astype(bool)
    near = rows[~at_mode & (rows["kept"] == "settled")]
    scheduled = int((~at_mode & (rows["kept"] == "scheduled")).sum())
    parts = [f"{int(at_mode.sum())} of {len(rows)} networks settled at a mode"]
    if len(near):
        furthest = float(near["decrement_per_datum"].astype(float).max())
        parts.append(
            f"{len(near)} settled near one (Newton decrement up to {furthest:.2g} nats per datum)"
        )
    if scheduled:
        why = "no better one found" if study.spec.plan.settle else "no settling"
        parts.append(f"{scheduled} kept as scheduled ({why})")
    return "; ".join(parts) + "."


def certainty_sentences(study: Study) -> list[str]:
    """Say how certain the first rank is, or why that is unknown."""
    ranked = [one for one in study.ranking if one.rank is not None]
    if len(ranked) < 2:
        return []
    first, second, sure = ranked[0], ranked[1], study.certainty
    if sure is None:
        lead = (first.objective or 0.0) - (second.objective or 0.0)
        unit = " nats per datum" if study.objective_unit == "nats per datum" else ""
        return [
            "How sure is unknown: every architecture was trained with one seed, so the seed noise "
            f"is unknown. The first leads the second ({second.architecture}) "
            f"by {lead:.4f}{unit}. Set replicates = 3 in the study to measure the seed noise."
        ]
    n = sure.degrees_of_freedom
    repeated = f"{n} repeated {'trial' if n == 1 else 'trials'}"
    return [
        f"The seed noise of {study.spec.objective} is ± "
        f"{sure.spread:.4f} (standard deviation, estimated from {repeated}).",
        f"Given that, the first beats the second ({second.architecture}) with probability "
        f"{100 * sure.beats_second:.0f} %, and {_candidates(ranked, sure)}; the rank of the first "
        f"lies between {sure.rank_low[0]} and {sure.rank_high[0]}.",
    ]


def _candidates(ranked: list[RankedArchitecture], sure: Certainty) -> str:
    confidence = f"{100 * CONFIDENCE:.0f} %"
    if len(sure.candidates) == 1:
        return f"is the best of all with at least {confidence} confidence"
    named = [
        f"{ranked[i].architecture} (rank {ranked[i].rank})" for i in sure.candidates[:_LISTED]
    ]
    more = len(sure.candidates) - len(named)
    rest = f"; and {more} more" if more else ""
    return (
        f"with {confidence} confidence the best is one of these {len(sure.candidates)}: "
        f"{'; '.join(named)}{rest}"
    )
