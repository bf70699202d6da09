"""The first screen in sentences.

The answer, how sure, what it costs to be wrong, and whether a network is worth its weights. Each
sentence is a fact, or says what to do.
"""

import math
from dataclasses import dataclass
from pathlib import Path

from nas_evidence.baselines.comparison import METRICS, Baseline, Comparison
from nas_evidence.data.proposed import proposed_domains
from nas_evidence.maths.metrics import LEVEL
from nas_evidence.reporting.certainty import Certainty
from nas_evidence.reporting.correlations import scale_of
from nas_evidence.reporting.recommendation import FURTHER, Recommendation
from nas_evidence.reporting.study_tables import LOSSES, RankedArchitecture, Study
from nas_evidence.reporting.templating import percent
from nas_evidence.spec.domains import FloatRange, IntRange

#: Standard deviation, over data, of the difference of the losses of two good models, nats; where
#: only means are stored (of many data without a test split).
#: benchmarks/first_screen.py finds 0.36 to 0.74.
SPREAD = 0.5
#: Share of trials that are neither complete nor pruned, from which it is worth a warning.
_MANY_FAILED = 0.2
_PLAIN = ("majority class", "mean")
#: Metrics of which less is better; `coverage` is best at its level, of the others more is better.
_LESS = frozenset({"ece", "rmse", "mae"})


@dataclass(frozen=True)
class Headline:
    """The sentences of the first screen, each "" or empty where there is nothing to say.

    answer    which architecture to take
    sure      how sure that is by the score, or why nothing is said
    cost      what it costs if another one is the best
    together  what all scores together recommend, and what further trials would gain
    worth     whether a network is worth its weights
    measured  the metric that was asked for, of the winner and of the best simple model
    advice    warnings that change what to do, and what
    settled   how many networks are at a mode
    load      three lines of Python that load and use the model
    settings  how the winner was trained
    """

    answer: str
    sure: str
    cost: str
    together: str
    worth: str
    measured: str
    advice: tuple[str, ...]
    settled: str
    load: tuple[str, ...]
    settings: str


def headline(
    study: Study,
    sure: Certainty | None,
    comparison: Comparison | None,
    recommended: Recommendation | None = None,
    *,
    place: Path,
    metric: str | None = None,
) -> Headline:
    """Return the first screen of a study whose folder is `place`, with the named metric."""
    winner = study.winner
    if winner is None:
        return Headline("", "", "", "", "", "", (), settled_sentence(study), (), "")
    judged = comparison if comparison and comparison.trial_id == winner.trial_id else None
    return Headline(
        answer=_answer(study, winner),
        sure=certainty_sentence(study, sure),
        cost=cost_sentence(study, sure),
        together=together_sentence(study, recommended),
        worth=worth_sentence(study, judged),
        measured="" if metric is None else metric_sentence(judged, metric, study),
        advice=tuple(advice(study, sure)),
        settled=settled_sentence(study),
        load=_load(study, place),
        settings=_settings(study, winner),
    )


def _answer(study: Study, winner: RankedArchitecture) -> str:
    ranked = [one for one in study.ranking if one.rank is not None]
    n, score = len(ranked), study.spec.objective
    of = f"the best of {n} architectures by {score}" if n > 1 else f"the only one with {score}"
    if raced := ranked_by_race(study):
        of = f"the best by {score} of the {raced} that were trained again, of {n} architectures"
    return f"Take {winner.architecture} (trial {winner.trial_id}): {of}."


def ranked_by_race(study: Study) -> int:
    """Return how many architectures rank first since they were trained again; 0 without a race."""
    return sum(one.raced for one in study.ranking)


def order_sentence(study: Study) -> str:
    """Say what orders the ranking if that is not the score alone, "" if it is."""
    raced = ranked_by_race(study)
    if not raced:
        return ""
    return (
        f"The first {raced} were trained again and rank before the others, by the mean of their "
        "seeds: a good value from one seed is partly luck."
    )


def certainty_sentence(study: Study, sure: Certainty | None) -> str:
    """Say how sure the first rank is by the score, or why that is unknown and what to do."""
    if sure is None:
        return ""
    score = study.spec.objective
    if sure.best is None:
        n, repeats = sure.finalists, sure.repeats[: sure.finalists]
        which = "Each architecture" if len(set(repeats)) == 1 else f"One of the first {n}"
        lead = (study.ranking[0].objective or 0.0) - (study.ranking[1].objective or 0.0)
        return (
            f"{which} was trained {_times(min(repeats))}, so how much of the lead of "
            f"{_in_unit(study, lead)} is chance is not known; add --set finalists={n}."
        )
    low, high = min(sure.repeats[: sure.finalists]), max(sure.repeats[: sure.finalists])
    seeds = str(low) if low == high else f"{low} to {high}"
    text = (
        f"It is the best of all tried by {score} with probability {percent(sure.best[0])}, from "
        f"{seeds} seeds of each of the first {sure.finalists}; the noise of one seed is "
        f"± {_in_unit(study, sure.noise or 0.0)}."
    )
    rival = max(range(1, len(sure.best)), key=lambda i: sure.best[i] if sure.best else 0.0)
    if sure.best[0] < 0.9 and sure.best[rival] >= 0.05:
        other = study.ranking[rival]
        text += (
            f" The likeliest alternative is {other.architecture} (rank {other.rank}, "
            f"{_seeds(sure.repeats[rival])}), {percent(sure.best[rival])}."
        )
    return text


def cost_sentence(study: Study, sure: Certainty | None) -> str:
    """Say what is lost if another is the best by the score, and in hindsight on test data."""
    parts = []
    if sure is not None and sure.expected_loss is not None and sure.best is not None:
        wrong = 1 - sure.best[0]
        lost = sure.expected_loss / wrong if wrong > 0 else 0.0
        parts.append(f"If another is truly best, you lose about {_in_unit(study, lost)}.")
    target, winner = study.targets[0], study.winner
    known = study.architectures[target].dropna()
    if winner is not None and len(known) > 1:
        own = -winner.test_nll if target in LOSSES and winner.test_nll is not None else None
        if own is not None:
            above = max(0.0, float(known.max()) - own)
            words = "also has the lowest" if above == 0 else f"is {_nats(above)} above the lowest"
            parts.append(f"It {words} test loss of all tried.")
    return " ".join(parts)


def together_sentence(study: Study, found: Recommendation | None) -> str:
    """Say which architecture all scores together recommend, and what further trials would gain."""
    if found is None:
        return ""
    one = found.architecture
    gain = f"{FURTHER} further trials: expected gain {_in_unit(study, found.gain)}."
    if one is None:
        return gain
    if one is study.winner:
        return f"All scores together recommend it, too. {gain}"
    return (
        f"All scores together recommend {one.architecture} (trial {one.trial_id}): its own score "
        f"is {_in_unit(study, found.behind)} lower, its neighbours say otherwise. Give --trial "
        f"{one.trial_id} to `nas-evidence export` to take it. {gain}"
    )


def worth_sentence(study: Study, comparison: Comparison | None) -> str:
    """Answer in one sentence: is a network worth its weights here?"""
    question = "Is a network worth its weights here?"
    winner, linear = study.winner, study.baseline
    if winner is None:
        return ""
    if comparison is None or not comparison.baselines:
        if linear is winner:
            return f"{question} No: the linear model itself comes first by {study.spec.objective}."
        return (
            f"{question} Unknown: the simple models have not been computed; "
            "`nas-evidence report` does so where it finds the data."
        )
    if linear is winner:
        question = "The winner is the linear model of the study. Is it better than simple models?"
    best = min(comparison.baselines, key=lambda one: one.behind)
    where = (
        f"on {comparison.n:,} test rows"
        if comparison.on == "test"
        else "on the folds of the training data that each model had not seen"
    )
    amount = f"{_short(abs(best.behind))} nats per datum"
    low, high = limits_of(best, comparison.n)
    if low > 0:
        return (
            f"{question} Yes: its log loss is {amount} below that of {best.name}, the best "
            f"simple model, {where} (95 % interval {_short(low)} to {_short(high)})."
        )
    if high < 0:
        rest = "Do not use it." if best.name in _PLAIN else "Take the simple model."
        return (
            f"{question} No: {best.name} has a log loss that is {amount} lower {where} "
            f"(95 % interval {_short(-high)} to {_short(-low)}). {rest}"
        )
    side = "below" if best.behind >= 0 else "above"
    return (
        f"{question} Not clearly: its log loss is {amount} {side} that of {best.name}, which is "
        f"within chance {where} (95 % interval from {_short(-low)} above to {_short(high)} below)."
        f"{'' if linear is winner else ' The simple model is cheaper.'}"
    )


def _times(n: int) -> str:
    return "once" if n == 1 else "twice" if n == 2 else f"{n} times"


def _short(nats: float) -> str:
    """Return a loss with three decimals, and one digit of one that these round to nothing.

    >>> _short(0.1234), _short(0.00012), _short(0.0)
    ('0.123', '0.0001', '0.000')
    """
    return f"{nats:.3f}" if nats == 0 or abs(nats) >= 5e-4 else f"{nats:.1g}"


def metric_sentence(comparison: Comparison | None, metric: str, study: Study) -> str:
    """Say a metric of the winner and of the simple model that is best by it.

    The winner is chosen by the score alone, so this sentence never changes the choice.
    """
    words = METRICS[study.spec.plan.likelihood][metric]
    if comparison is None:
        return f"The {words} is unknown: the predictions of the winner have not been computed."
    if metric not in comparison.metrics:
        why = (
            "without a test split it takes the predictions of the folds, which were not kept"
            if comparison.on == "folds"
            else "it is not defined for these data"
        )
        return f"The {words} is not known: {why}."
    where = (
        f"{comparison.n:,} test rows" if comparison.on == "test" else "the other half of the data"
    )
    value = comparison.metrics[metric]
    said = f"On {where}, {words}: {value:.3f}"
    if metric == "accuracy":
        said += f" ± {math.sqrt(value * (1 - value) / comparison.n):.3f}"
    if comparison.seeds > 1:
        said += f" (mean of {_seeds(comparison.seeds)})"
    rivals = [one for one in comparison.baselines if metric in one.metrics]
    if not rivals:
        return f"{said}."
    best = max(rivals, key=lambda one: _merit(metric, one.metrics[metric]))
    return f"{said}; {best.name}, the best simple model by it, {best.metrics[metric]:.3f}."


def _merit(metric: str, value: float) -> float:
    """Return a metric as a number of which more is better."""
    if metric == "coverage":
        return -abs(value - LEVEL)
    return -value if metric in _LESS else value


def limits_of(one: Baseline, n: int) -> tuple[float, float]:
    """Return the 95 % interval of how far a simple model is behind over n data, nats.

    Where none is stored it is that of a usual spread.
    """
    if one.interval is not None:
        return one.interval
    usual = 1.96 * SPREAD / math.sqrt(n)
    return one.behind - usual, one.behind + usual


def advice(study: Study, sure: Certainty | None) -> list[str]:
    """Return warnings that change what to do, each with the remedy."""
    found = [*_at_edges(study)]
    n_failed = len(study.trials) - int(study.trials["status"].isin(["complete", "pruned"]).sum())
    if len(study.trials) and n_failed / len(study.trials) > _MANY_FAILED:
        found.append(
            f"{n_failed} of {len(study.trials)} trials are not complete, so the search saw only "
            "part of the space. See “What went wrong” for the causes, and remove them."
        )
    rejected = _reversed_by_tests(study)
    return found + ([rejected] if rejected else [])


def _at_edges(study: Study) -> list[str]:
    """Name the parameters of the winner that lie at an end of their range, if a user chose it."""
    winner = study.winner
    assert winner is not None
    n_data = study.complete["n_data"].dropna()
    usual = proposed_domains(int(n_data.max())) if len(n_data) else {}
    found = []
    for name, domain in study.spec.family.get(winner.family, {}).items():
        value = winner.values.get(name)
        if domain == usual.get(winner.family, {}).get(name):
            continue
        if isinstance(domain, IntRange | FloatRange) and isinstance(value, int | float):
            step = domain.step if isinstance(domain, IntRange) else 0
            if domain.low < domain.high and value + step > domain.high:
                found.append(
                    f"The {name} of the winner, {value:g}, is the largest that was allowed. "
                    f"A better one may lie beyond: --set family.{winner.family}.{name}.high="
                    f"{2 * domain.high:g}."
                )
    return found


def _reversed_by_tests(study: Study) -> str:
    """Say if the winner is clearly worse on the test data than the worst half of the ranking."""
    target = study.targets[0]
    known = study.architectures[target].dropna()
    winner = study.winner
    if winner is None or winner.test_nll is None or len(known) < 10 or target not in LOSSES:
        return ""
    if -winner.test_nll >= float(known.median()):
        return ""
    return (
        f"The winner is in the worse half of the architectures on the test data: "
        f"{study.spec.objective} does not rank them well here. Set another `objective`, for "
        "example five_fold, and search again."
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


def _load(study: Study, place: Path) -> tuple[str, ...]:
    what = "with its class probabilities"
    if study.spec.plan.likelihood == "gaussian":
        what = "with its 90 % intervals"
    return (
        "import nas_evidence",
        f'study = nas_evidence.load("{place}")',
        f"study.predict(X)  # the winner's prediction of each row, {what}",
    )


def _settings(study: Study, winner: RankedArchitecture) -> str:
    plan = study.spec.plan
    n_data = study.complete["n_data"].dropna()
    rows = f"{int(n_data.max()):,} rows, " if len(n_data) else ""
    settling = f"settling up to {plan.settle:g} times as long" if plan.settle else "no settling"
    return (
        f"{rows}{plan.epochs} epochs, batches of {plan.batch_size}, {plan.optimiser} at "
        f"{plan.learning_rate:g} ({plan.schedule}), {settling}; "
        f"{_seeds(len(winner.trial_ids))}."
    )


def _seeds(n: int) -> str:
    return f"{n} seed{'s' * (n != 1)}"


def _in_unit(study: Study, difference: float) -> str:
    if study.objective_unit == "nats per datum":
        return _nats(difference)
    return f"{difference:.3g}" if math.isfinite(difference) else "an unknown amount"


def _nats(difference: float) -> str:
    return scale_of("test_nll_per_datum").text(difference)
