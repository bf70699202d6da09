"""The first screen in sentences.

The answer, how sure, what it costs to be wrong, and whether a network is worth its weights. Each
sentence is a fact, or says what to do.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
from scipy.special import stdtrit

from nas_evidence.baselines.comparison import (
    IMPORTANCE,
    Baseline,
    Comparison,
    is_free_of_choice,
)
from nas_evidence.data.proposed import proposed_domains
from nas_evidence.data.targets import listed_weights
from nas_evidence.maths.finalists import MIN_REPEATS
from nas_evidence.maths.guessing import is_guessing
from nas_evidence.maths.metrics import LEVEL
from nas_evidence.maths.ranking import resampling_plan, share_at_least_as_good
from nas_evidence.proposing.further import FURTHER
from nas_evidence.reporting.certainty import Certainty
from nas_evidence.reporting.correlations import ALL, Trust
from nas_evidence.reporting.intervals import coverage_warning, intervals_sentence
from nas_evidence.reporting.problems import unfinished_sentence, unranked_sentence
from nas_evidence.reporting.recommendation import Recommendation
from nas_evidence.reporting.study_tables import RankedArchitecture, RankedStudy
from nas_evidence.reporting.words import NATS, chance, counted, loss_text, metric_value
from nas_evidence.spec.domains import FloatRange, IntRange
from nas_evidence.spec.metric_names import LESS_IS_BETTER
from nas_evidence.spec.pooling import CELLS, shortage
from nas_evidence.spec.record import TrialStatus, is_race, trial_of
from nas_evidence.spec.registry import declared
from nas_evidence.spec.study import FAMILY_PARAMETERS

#: Standard deviation, over data, of the difference of the losses of two good models, nats; where
#: only means are stored (of many data without a test split). Measured were 0.36 to 0.74.
SPREAD = 0.5
#: Differences below this, nats per datum, are no more than rounding to a reader.
LEAST = 1e-4
#: Share of trials that are neither complete nor pruned, from which it is worth a warning.
_MANY_FAILED = 0.2
#: rho with the test log loss of the default ranking, one seed: means over the pools of up to 1,000
#: rows that chose nothing, by kind of target (benchmarks/claims_sentences.py).
USUAL_RHO = {"classification": 0.63, "regression": 0.47}
#: By how much more the upper end of rho's interval is below that: of few architectures it is a
#: little low.
_CLEARLY = 0.1
#: Scores that rank by rows that were not trained on, of which another one may be advised, and of
#: how many architectures at least.
_ALTERNATIVES, _ADVISE = ("conditional_evidence", "elpd", "five_fold", "two_fold"), 10


@dataclass(frozen=True)
class Headline:
    """The sentences of the first screen, each "" or empty where there is nothing to say.

    answer    which architecture to take, or which simple model
    code      lines that fit the simple model to take, `{study}` and `{new}` left open
    sure      how sure that is by the score, or why nothing is said
    cost      what it costs if another one is the best
    together  what all scores together recommend, and what further trials would gain
    worth     whether a network is worth its weights
    measured  the metric that was asked for, else the usual one: of the winner, of the best simple
              model, and of the majority class or the mean
    intervals what the intervals of real targets cover, for small and for large predictions
    advice    warnings that change what to do, and what
    """

    answer: str = ""
    code: str = ""
    sure: str = ""
    cost: str = ""
    together: str = ""
    worth: str = ""
    measured: str = ""
    intervals: str = ""
    advice: tuple[str, ...] = ()


def headline(
    study: RankedStudy,
    sure: Certainty | None,
    comparison: Comparison | None,
    recommended: Recommendation | None = None,
    *,
    metric: str | None = None,
    trust: Trust | None = None,
    place: Path | str = "",
    shape: tuple[int, ...] = (),
) -> Headline:
    """Return the first screen of a study at a place, with the named metric.

    Args:
        study: with its ranking.
        sure: how sure the first is.
        comparison: the winner beside simple models.
        recommended: what to do next.
        metric: that is shown; the usual one where it is None.
        trust: how far the scores can be trusted.
        place: where the study lies, for the command that goes on.
        shape: of an input.
    """
    winner = study.winner
    if winner is None:
        return Headline(answer=unranked_sentence(study) or unfinished_sentence(study, place))
    usual = study.spec.plan.declared.kind.usual
    measured = metric_sentence(comparison, metric or usual, study, asked=metric is not None)
    instead = _to_take(study, comparison)
    guesses = guessing_sentence(study, comparison)
    return Headline(
        answer=_answer(study, winner, instead, guesses),
        code=instead.code if instead else "",
        sure="" if guesses else certainty_sentence(study, sure),
        cost="" if guesses else cost_sentence(study, sure),
        together="" if guesses else together_sentence(study, recommended),
        worth=worth_sentence(study, comparison),
        measured=f"{measured} {class_weights_sentence(study, comparison)}".strip(),
        intervals=intervals_sentence(comparison),
        advice=tuple(advice(study, comparison, trust, shape, sure)),
    )


def _to_take(study: RankedStudy, comparison: Comparison | None) -> Baseline | None:
    """Return the simple model where no network is clearly better; a linear one is as simple."""
    found = rival_of(comparison)
    if found is None or found.interval[0] > 0:
        return None
    return found.model if found.is_ahead or study.baseline is not study.winner else None


def _answer(
    study: RankedStudy, winner: RankedArchitecture, instead: Baseline | None, guesses: str
) -> str:
    network = f"{winner.architecture} (trial {winner.trial_id}"
    take, named = f"Take {network}", "Choose none yet"
    if instead is not None:
        if instead.name != study.spec.plan.declared.kind.constant:
            named = f"Take {instead.name}"
        take = f"{named}: no network is clearly better. The best network is {network}"
    if guesses:
        return f"{named}: {guesses} First by chance is {network})."
    ranked = [one for one in study.ranking if one.rank is not None]
    score, raced = study.ranks_by, sum(one.raced for one in ranked)
    of = f"the best of {len(ranked)} architectures by {score}"
    if len(ranked) == 1:
        of = f"the only architecture with {score}"
    elif 1 < raced < len(ranked):
        of = (
            f"the best by {score} of the {raced} that were trained several times, out of "
            f"{len(ranked)} tried"
        )
    so_far, done = "", ""
    if study.n_searched < study.spec.n_trials:
        so_far, done = " so far", f", with {study.n_searched} of {study.spec.n_trials} trials done"
    more = "" if instead is None else " `predict` and `export` use it."
    again = ", a retraining" if is_race(winner.trial_id) else ""
    return f"{take}{again}){so_far}: {of}{done}.{_given_way(study, winner)}{more}"


def _given_way(study: RankedStudy, winner: RankedArchitecture) -> str:
    """Say which trials rank no lower, but have no network of all rows: the winner stands in."""
    values = {i: study.value(one) for one in study.ranking for i in one.trial_ids}
    least, rows = study.value(winner), study.tables.whole_rows
    failed = [trial_of(one.trial_id) for one in rows if one.status is not TrialStatus.COMPLETE]
    before = [i for i in failed if least is not None and (values.get(i) or -math.inf) >= least]
    if not before:
        return ""
    trials = ", ".join(map(str, before))
    return f" It stands in for trial {trials}, whose network of all rows failed."


def guessing_sentence(study: RankedStudy, comparison: Comparison | None) -> str:
    """Say that no network predicts better than a guess; "" if one does.

    Of scores of held-out rows in nats per datum alone, and where the simple models are known.
    More epochs are not advised: four times the usual steps gained 0.014 nats at most
    (docs/results/few-rows-and-real-targets.md).
    """
    guess = _guess(study, comparison)
    values = [value for one in study.ranking if (value := study.value(one)) is not None]
    n = study.tables.n_rows
    if guess is None or not values or not n:
        return ""
    best = max(values)
    if not is_guessing(best, guess, n=n, k=len(values)):
        return ""
    return (
        f"no network predicts the {n:,} rows that it was not trained on clearly better than "
        f"{study.spec.plan.declared.kind.guess} alone. The best {study.ranks_by} is {best:.3f} "
        f"nats per datum, a guess has {guess:.3f}. So this ranking is arbitrary, and more rows "
        "help most."
    )


def _guess(study: RankedStudy, comparison: Comparison | None) -> float | None:
    """Return the score of a guess, nats per datum; None where it is unknown.

    On test rows the mean is as good as their spread happens to be, so only its folds count.
    """
    held_out = all(declared(name).trainings > 0 for name in study.spec.ranking_scores)
    if comparison is None or study.objective_unit != "nats per datum" or not held_out:
        return None
    if comparison.on == "test" and comparison.kind.confidence == "intervals":
        return None
    constant = comparison.kind.constant
    plain = [one.metrics.get("log_loss") for one in comparison.baselines if one.name == constant]
    known = [-loss for loss in plain if loss is not None]
    return max(known) if known else None


def certainty_sentence(study: RankedStudy, sure: Certainty | None) -> str:
    """Say how sure the first rank is by the score, or why that is unknown and what to do."""
    if sure is None:
        return ""
    score, repeats = study.ranks_by, sure.repeats[: sure.finalists]
    few, most = min(repeats), max(repeats)
    if sure.best is None and few >= MIN_REPEATS:
        return f"Unknown: {score} does not differ between seeds, so its noise cannot be measured."
    if sure.best is None:
        who, times = "Each architecture", {1: "once", 2: "twice"}[few]
        if few != most:
            who, times = "Not every leading architecture", f"{MIN_REPEATS} times"
        first, second = (
            fmean(study.values(one)) if one.estimate is None else one.estimate
            for one in study.ranking[:2]
        )
        lead = _about(study, first - second).removeprefix("about ")
        return (
            f"Unknown. {who} was trained {times}; set finalists={sure.finalists} and resume "
            f"to train the best again. The first leads the second by {lead}."
        )
    seeds = str(few) if few == most else f"{few} to {most}"
    from_seeds = f"from {seeds} seeds of each of the first {sure.finalists}"
    noise = _about(study, sure.noise or 0.0)
    if sure.tied:
        return (
            f"{_tied(study, sure)} by {score}: they differ by less than one seed does, "
            f"{noise}. The best of all tried is among them with a probability of "
            f"{chance(sure.together)}, {from_seeds}."
        )
    text = (
        f"{chance(sure.best[0]).capitalize()} likely to be the best of all tried by {score}, "
        f"{from_seeds}. One seed differs from the next by {noise}."
    )
    rival = max(range(1, len(sure.best)), key=lambda i: sure.best[i] if sure.best else 0.0)
    if sure.best[0] < 0.9 and sure.best[rival] >= 0.05:
        other = study.ranking[rival]
        text += (
            f" Next is {other.architecture} (rank {other.rank}, "
            f"{counted(sure.repeats[rival], 'seed')}), {chance(sure.best[rival])}."
        )
    return text


def _tied(study: RankedStudy, sure: Certainty) -> str:
    n = 1 + len(sure.tied)
    if sure.tied[-1] == n - 1:
        return f"The first {n} are tied"
    *others, last = (str(study.ranking[i].rank) for i in sure.tied)
    ranks = f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"
    return f"The first is tied with {ranks}"


def cost_sentence(study: RankedStudy, sure: Certainty | None) -> str:
    """Say what is lost if another is the best by the score, and in hindsight on test data."""
    parts = []
    if sure is not None and sure.expected_loss is not None and sure.best is not None:
        wrong = 1 - sure.best[0]
        lost = sure.expected_loss / wrong if wrong > 0 else 0.0
        parts.append(f"If another is truly best, you lose {_about(study, lost)}.")
    known, winner = study.architectures[study.targets[0]].dropna(), study.winner
    if winner is not None and winner.test_nll_per_datum is not None and len(known) > 1:
        above = max(0.0, float(known.max()) + winner.test_nll_per_datum)
        its = f"its log loss{study.spec.of_folds} is"
        parts.append(
            f"On the test rows another is better: {its} {NATS.text(above)} lower." if above
            else f"On the test rows, too, {its} the lowest of all tried."
        )  # fmt: skip
    return " ".join(parts)


def together_sentence(study: RankedStudy, found: Recommendation | None) -> str:
    """Say which architecture all scores together recommend, and what further trials would gain."""
    if study.is_estimated:
        return f"{_lucky_sentence(study)} {_gain_sentence(study, found)}".strip()
    if found is None:
        return ""
    one = found.architecture
    gain = _gain_sentence(study, found)
    if one is None:
        return gain
    if one is study.winner:
        return f"A model of all scores also prefers it. {gain}".rstrip()
    return (
        f"A model of all scores prefers {one.architecture} (trial {one.trial_id}): its own score "
        f"is {_in_unit(study, found.behind)} lower, but similar architectures score well. "
        f"To take it, export it with trial_id={one.trial_id} (--trial). {gain}"
    ).rstrip()


def _gain_sentence(study: RankedStudy, found: Recommendation | None) -> str:
    """Say what further trials would gain: a mean over studies, and no bound."""
    if found is None or found.gain is None:
        return ""
    if found.gain <= 0:
        return f"{FURTHER} further trials would gain nothing, by a model of all scores."
    return f"{FURTHER} further trials would gain {_about(study, found.gain)} on average."


def _lucky_sentence(study: RankedStudy) -> str:
    """Say which other architecture has the best score alone, without a cause.

    Which of the two is better, no score tells: in other seeds of 99 such pairs of committed pools
    it was either as often (benchmarks/claims_sentences.py).
    """
    winner = study.ranking[0]
    rivals = [one for one in study.ranking if one.estimate_error is not None]
    best = max(rivals, key=lambda one: fmean(study.values(one)))
    if best is winner:
        return ""
    lead = fmean(study.values(best)) - fmean(study.values(winner))
    return (
        f"The best score alone is {_in_unit(study, lead)} higher, that of {best.architecture} "
        f"(trial {best.trial_id}). Which of the two is better is open."
    )


def worth_sentence(study: RankedStudy, comparison: Comparison | None) -> str:
    """Answer in one sentence: is a network worth its weights here?"""
    winner, linear = study.winner, study.baseline
    if winner is None:
        return ""
    judged = rival_of(comparison)
    if comparison is None or judged is None:
        if linear is winner:
            return f"No: the linear model itself comes first by {study.ranks_by}."
        kind = study.spec.plan.declared.kind
        if not kind.simple:
            return f"Unknown: there are no simple models of {kind.targets} to compare with."
        return (
            "Unknown: the simple models have not been computed. `nas-evidence report` does so "
            "where it finds the data."
        )
    best, (low, high) = judged.model, judged.interval
    rows, losses = _rows(comparison), _losses(comparison, best) + _choice(comparison)
    lacks = [name for name in comparison.lacks if name != IMPORTANCE]
    if low > 0 and linear is winner:
        return (
            f"No: the linear model itself comes first by {study.ranks_by}, so no deeper network "
            f"is worth its weights (beside {best.name} on {rows}: {losses})."
        )
    if low > 0 and lacks:
        return (
            f"Unknown: clearly better than {best.name} on {rows}, but there was no time for "
            f"{' and '.join(lacks)}. `nas-evidence report` adds it."
        )
    if low > 0 and not is_free_of_choice(comparison):
        return (
            f"Unknown: ahead of {best.name} by {loss_text(best.behind)} on {rows} ({losses}). "
            "Search again with test_fraction=0.2 (--test-fraction) and another `out` to know."
        )
    if low > 0:
        return f"Yes: clearly better than {best.name} on {rows} ({losses}{_within(low, high)})."
    (least, most), n = judged.as_best, judged.best_of
    if judged.is_ahead:
        within = _within(-most, -least) + f", corrected for {n} simple models" * (n > 1)
        return f"No: clearly worse than {best.name} on {rows} ({losses}{within})."
    how = "ahead" if best.behind > 0 else "behind"
    return (
        f"No clear gain over {best.name}. The winner is {how} by {loss_text(abs(best.behind))} "
        f"({losses}), but {rows.removeprefix('these ')} cannot rule out chance."
    )


def _losses(comparison: Comparison, best: Baseline) -> str:
    own, other = comparison.metrics.get("log_loss"), best.metrics.get("log_loss")
    words = comparison.kind.metrics["log_loss"]
    if own is None or other is None:
        return words
    return f"{words} {loss_text(own)} and {loss_text(other)}"


def _choice(comparison: Comparison) -> str:
    """Say how numbers of folds allow for the choice of the winner on the same rows."""
    n = comparison.chosen_among
    if comparison.on == "test" or (n == 1 and comparison.corrected):
        return ""
    of = f" among {n:,} architectures" if n > 1 else ""
    if is_free_of_choice(comparison):
        return f"; corrected for the choice{of}"
    return f"; chosen on these rows{of}, so optimistic"


def _within(low: float, high: float) -> str:
    return f"; 95 % interval of the difference {loss_text(low)} to {loss_text(high)}"


def _rows(comparison: Comparison) -> str:
    return f"these {comparison.n:,} {'test ' * (comparison.on == 'test')}rows"


def metric_sentence(
    comparison: Comparison | None, metric: str, study: RankedStudy, *, asked: bool = True
) -> str:
    """Say a metric of the winner, of the simple model that is best by it, and of no model at all.

    The winner is chosen by the score alone, so this sentence never changes the choice. One that
    nobody `asked` for is left out where it is unknown.
    """
    words = study.spec.plan.declared.kind.metrics[metric]
    if not asked and (comparison is None or metric not in comparison.metrics):
        return ""
    if comparison is None:
        return f"{words[0].upper()}{words[1:]} unknown: the winner's predictions are missing."
    if metric not in comparison.metrics:
        why = (
            "there is no test split, and the study kept no out-of-fold predictions"
            if comparison.on == "folds"
            else "it is not defined for these data"
        )
        return f"{words[0].upper()}{words[1:]} unknown: {why}."
    where = f"{comparison.n:,} test rows" if comparison.on == "test" else "rows not trained on"
    value = comparison.metrics[metric]
    said = f"On {where}, {words} {metric_value(value)}"
    if metric in comparison.errors:
        said += f" ± {metric_value(comparison.errors[metric])}"
    notes = [f"mean of {counted(comparison.seeds, 'seed')}"] if comparison.seeds > 1 else []
    notes += filter(None, [_choice(comparison).removeprefix("; ")])
    if notes:
        said += f" ({'; '.join(notes)})"
    if rivals := [one for one in comparison.baselines if metric in one.metrics]:
        best = max(rivals, key=lambda one: _merit(metric, one.metrics[metric]))
        of = "computed so far" if comparison.lacks else "by it"
        said += f"; {best.name}, the best simple model {of}, {metric_value(best.metrics[metric])}"
        constant = comparison.kind.constant
        plain = [one for one in rivals if one.name == constant and one is not best]
        alone = (f"; the {one.name} alone {metric_value(one.metrics[metric])}" for one in plain)
        said += "".join(alone)
    if asked and metric in comparison.thresholds:
        second = repr(comparison.classes[1]) if comparison.classes else "the second class"
        usual = "the more probable class is predicted"
        rule = "class weights decide" if comparison.class_weight else usual
        said += (
            f". Here {rule}; `predict` says {second} from a "
            f"probability of {comparison.thresholds[metric]:.3f} on, which is best by {words} on "
            "rows not trained on"
        )
    return f"{said}."


def class_weights_sentence(study: RankedStudy, comparison: Comparison | None) -> str:
    """Say what class weights decide and which metric they weight, nothing without any."""
    asked = study.spec.dataset.class_weight
    if asked is None:
        return ""
    known = comparison.class_weight if comparison is not None else {}
    listed = asked if isinstance(asked, str) else listed_weights(asked)
    return (
        f"Class weights ({listed_weights(known) or listed}) decide in this report, for the simple "
        "models too: the class with the largest weight times probability is predicted. Accuracy "
        "is weighted by class; scores, log loss and the other metrics are not."
    )


def _merit(metric: str, value: float) -> float:
    if metric == "coverage":
        return -abs(value - LEVEL)
    return -value if metric in LESS_IS_BETTER else value


@dataclass(frozen=True)
class Rival:
    """The best simple model, beside which the winner is judged.

    interval  95 % interval of how far it is behind, nats: by it the winner is better. Where none
              is stored it is that of a usual spread
    best_of   of how many it is the best on these rows; 1 where each draw of them chooses again
    as_best   its interval at 1 - 0.05 / best_of (Bonferroni): by it the winner is worse, since the
              best of several owes a part of its lead to that choice
    """

    model: Baseline
    interval: tuple[float, float]
    best_of: int
    as_best: tuple[float, float]

    @property
    def is_ahead(self) -> bool:
        """Whether it is clearly better than the winner."""
        return self.as_best[1] < 0


def rival_of(comparison: Comparison | None) -> Rival | None:
    """Return the simple model that `worth_sentence` names; None without any."""
    if comparison is None or not comparison.baselines:
        return None
    n, chosen = comparison.n, comparison.against
    known = [one for one in comparison.baselines if chosen in (None, one.name)]
    best, best_of = min(known, key=lambda one: one.behind), len(known)
    usual = 1.96 * SPREAD / math.sqrt(n)
    interval = best.interval or (best.behind - usual, best.behind + usual)
    single, several = stdtrit(max(n - 1, 1), 1 - 0.025 / np.array([1, best_of]))
    low, high = (float(best.behind + several / single * (end - best.behind)) for end in interval)
    return Rival(best, interval, best_of, (low, high))


def advice(
    study: RankedStudy,
    judged: Comparison | None,
    trust: Trust | None = None,
    shape: tuple[int, ...] = (),
    sure: Certainty | None = None,
) -> list[str]:
    """Return warnings that change what to do, each with the remedy.

    Args:
        study: with a winner.
        judged: the winner beside simple models, if known.
        trust: how well scores rank the test results, if known.
        shape: of an input, if known.
        sure: how sure the first rank is, if known.
    """
    found = [*filter(None, [coverage_warning(study, judged)]), *_at_edges(study, shape, sure)]
    n_failed = len(study.trials) - int(study.trials["status"].isin(["complete", "pruned"]).sum())
    if len(study.trials) and n_failed / len(study.trials) > _MANY_FAILED:
        found.append(
            f"{n_failed} of {len(study.trials)} trials failed, so the search saw only part of the "
            "space. The section “What went wrong” has the causes."
        )
    rejected = _misranked(study, trust)
    return found + ([rejected] if rejected else [])


def _at_edges(study: RankedStudy, shape: tuple[int, ...], sure: Certainty | None) -> Iterator[str]:
    """Yield what is said of each parameter of the winner that is at an end of its range.

    Nothing where another of its family, tied with it, is not at that end: then the score does not
    ask for more.
    """
    winner = study.winner
    if winner is None or winner.family not in FAMILY_PARAMETERS:  # its author knows its ranges
        return
    usual = proposed_domains(n) if (n := study.tables.n_rows) else {}
    tied = [study.ranking[i] for i in (sure.tied if sure is not None else ())]
    for name, domain in study.spec.family.get(winner.family, {}).items():
        value = winner.values.get(name)
        if domain == usual.get(winner.family, {}).get(name):
            continue
        if isinstance(domain, IntRange | FloatRange) and isinstance(value, int | float):
            end = _end(domain, value)
            others = [one.values.get(name) for one in tied if one.family == winner.family]
            ends = [_end(domain, one) for one in others if isinstance(one, int | float)]
            if end and not {*ends} - {end}:
                yield from _at_edge(winner.family, name, domain, value, shape)


def _end(domain: IntRange | FloatRange, value: float) -> str:
    """Return at which end of a range a value is, "" if at none.

    >>> [_end(IntRange(low=4, high=16), value) for value in (4, 15, 16)]
    ['low', '', 'high']
    """
    low, high = domain.low, domain.high
    step = domain.step if isinstance(domain, IntRange) else 0.01 * (high - low)
    if value + step > high:
        return "high" if low < high else ""
    return "low" if value - step < low and (low > 0 or value > 0) else ""


def _at_edge(
    family: str, name: str, domain: IntRange | FloatRange, value: float, shape: tuple[int, ...]
) -> Iterator[str]:
    """Say that a parameter is at an end of its range, where a study may ask for more.

    A convolutional network is no deeper than the images of that shape carry.
    """
    low, high, end = domain.low, domain.high, _end(domain, value)
    whole = int if isinstance(domain, IntRange) else float
    widest = FAMILY_PARAMETERS[family].get(name)
    if end == "high":
        most = getattr(widest, "high", math.inf)
        if (family, name) == ("cnn", "depth") and len(shape) == 3:
            height, width = shape[1:]
            most = max((d for d in CELLS if not shortage(d, height, width)), default=0)
        word, beyond = "largest", whole(min(2 * high, most))
    else:
        word, beyond = "smallest", whole(max(low / 2, getattr(widest, "low", 0)))
    if low <= beyond <= high or (end == "high" and beyond < high):
        return
    yield (
        f"The winner has the {word} {name} that was allowed, {value:g}, so a better one may lie "
        f"beyond. Set family.{family}.{name}.{end}={beyond:g} and search again with another "
        "`out`."
    )


def _misranked(study: RankedStudy, trust: Trust | None) -> str:
    """Say that the ranking orders the test results worse than usual, and which score does better.

    What is usual is known of the default ranking alone. Another score of the study is advised
    where, of ten architectures or more, the 95 % interval of the difference of rho is above 0.
    """
    if trust is None:
        return ""
    target, said, better = study.targets[0], "", list[tuple[float, str, float]]()
    pooled = (row for row in trust.rows if (row.target, row.group) == (target, ALL))
    rows = {row.score: row.statistics for row in pooled}
    own = rows[trust.main]
    if own.rho is None or own.rho_interval is None:
        return ""
    low, high = own.rho_interval.low, own.rho_interval.high
    found = f"rho {own.rho:.2f} (95 % interval {low:.2f} to {high:.2f})"
    worse = f"On the test data {study.ranks_by} ranks these architectures worse than"
    if study.is_estimated:
        usual = USUAL_RHO.get(study.spec.plan.declared.task)
        if usual is None or high >= usual - _CLEARLY:
            return ""
        said = f"{worse} it usually does: {found}, usually about {usual:.2f}. "
    elif high < 0:
        said = f"{worse} chance would: {found}. "
    for score in {*_ALTERNATIVES} & {*study.spec.estimators} & {*rows} - {trust.main}:
        known = study.architectures[[trust.main, score, target]].dropna()
        plan = resampling_plan(len(known), seed=study.spec.seed)
        share = share_at_least_as_good(*(known[name] for name in known), plan=plan)
        if len(known) >= _ADVISE and share is not None and share < 0.025:
            better.append((rows[score].rho or 0.0, score, 1 - share))
    rho, other, ahead = max(better, default=(0.0, "", 0.0))
    if rho <= 0:
        no_other = "No other score of the study is clearly better. More rows help most."
        return said and said + no_other
    keys = ["rank_by=score"] * (study.spec.rank_by == "estimate") + [f"objective={other}"]
    return (
        f"{said}{other} ranks these architectures better than {study.ranks_by} on the test data: "
        f"rho {rho:.2f} beside {own.rho:.2f}, ahead in {chance(ahead)} of resamples. Set "
        f"{' and '.join(keys)}, search again with another `out`, and judge it on other test rows."
    )


def _in_unit(study: RankedStudy, difference: float) -> str:
    if study.objective_unit == "nats per datum":
        return NATS.text(difference)
    return f"{difference:.3g}" if math.isfinite(difference) else "an unknown amount"


def _about(study: RankedStudy, difference: float) -> str:
    """Return a positive difference with its leading digits, or what it is less than."""
    if study.objective_unit == "nats per datum" and math.isfinite(difference):
        if difference < LEAST:
            return f"less than {LEAST:g} nats per datum"
        return f"about {loss_text(difference)} nats per datum"
    return f"about {_in_unit(study, difference)}"
