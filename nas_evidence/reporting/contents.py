"""The contents of a study's report, computed once: tables in, one value out.

The page, its text as Markdown, JSON, CSV and the terminal are written from this value without
further computation.
"""

import math
from dataclasses import dataclass
from pathlib import Path

from nas_evidence.baselines.comparison import Comparison
from nas_evidence.maths.ranking import MIN_PAIRS
from nas_evidence.reporting.along_training import (
    EarlyTrust,
    early_trust,
    settling_sentence,
    speed_sentence,
)
from nas_evidence.reporting.certainty import Certainty, certainty_of
from nas_evidence.reporting.correlations import ALL, Trust, trust, words_of
from nas_evidence.reporting.headline import Headline, headline, usual_metric
from nas_evidence.reporting.importance import (
    ParameterImportance,
    importance_sentence,
    importances,
)
from nas_evidence.reporting.problems import (
    Problem,
    StatusCount,
    flags,
    problems,
    spent_sentence,
    statuses,
)
from nas_evidence.reporting.pruning import pruning_sentence
from nas_evidence.reporting.recommendation import recommendation
from nas_evidence.reporting.study_tables import Study
from nas_evidence.reporting.terms import TermTable, explanation, term_table
from nas_evidence.spec.metric_names import check_metric
from nas_evidence.spec.registry import FREE_SCORES, SCORES, declared


@dataclass(frozen=True)
class Report:
    """The results of a study in tables, statistics and sentences.

    study        the tables and the ranking
    place        its folder, as the reader names it
    headline     the sentences of the first screen
    certainty    how sure the first rank is; None with fewer than two architectures
    comparison    the winner beside simple models, None where that is unknown
    metric       of the winner's predictions, shown after the log loss; None if none was named
    trust        how well each score ranks at the end of training
    verdict      the same in one sentence
    early        the same at each epoch with stored evidence; `settling` is its sentence
    speed        whether training losses give the same order
    importances  of the architecture parameters; `importance` is its sentence
    compared     the parts of each trial's score, None if it has none; `why` says in plain words
                 what the score is and what sets the first two apart
    pruning      the sentence about what pruning saved; empty if the study does not prune
    statuses     how trials ended; `spent` is the sentence about their time
    problems     what went wrong
    flags        warning signs in valid estimates
    """

    study: Study
    place: Path
    headline: Headline
    certainty: Certainty | None
    comparison: Comparison | None
    metric: str | None
    trust: Trust
    verdict: str
    early: tuple[EarlyTrust, ...]
    settling: str
    speed: str
    importances: tuple[ParameterImportance, ...]
    importance: str
    compared: TermTable | None
    why: str
    pruning: str
    statuses: tuple[StatusCount, ...]
    spent: str
    problems: tuple[Problem, ...]
    flags: tuple[Problem, ...]

    @property
    def shown_metric(self) -> str:
        """Return the metric of the first picture: the one that was asked for, or the usual one."""
        return self.metric or usual_metric(self.study)

    def free_scores_ahead(self, target: str) -> dict[str, float]:
        """Return the free scores that rank `target` at least as well as the main one.

        The values are Spearman's rho over all architectures.
        """
        rho = {
            row.score: row.statistics.rho
            for row in self.trust.rows
            if (row.target, row.group) == (target, ALL) and row.statistics.rho is not None
        }
        least = rho.get(self.trust.main, math.inf)
        free = FREE_SCORES
        return {score: own for score, own in rho.items() if score in free and own >= least}


def report_on(
    study: Study,
    comparison: Comparison | None = None,
    *,
    place: Path = Path(),
    metric: str | None = None,
) -> Report:
    """Compute the report of a study, for any number of trials.

    Args:
        study: its tables.
        comparison: the winner beside simple models, if known.
        place: its folder, as the reader names it.
        metric: of the winner's predictions, to say on the first screen; by default the study's.

    Raises:
        ValueError: the metric does not fit the targets; names those that do.
    """
    metric = metric or study.spec.metric
    check_metric(metric, study.spec.plan.likelihood)
    judged = trust(
        study.architectures,
        scores=study.scores,
        targets=study.targets,
        rivals=[name for name in study.scores if _is_rival(name) and name != study.spec.objective],
        group="family",
        seed=study.spec.seed,
    )
    early, matter, sure = early_trust(study), importances(study), certainty_of(study)
    compared = term_table(study)
    return Report(
        study=study,
        place=place,
        headline=headline(
            study, sure, comparison, recommendation(study), place=place, metric=metric
        ),
        certainty=sure,
        comparison=comparison,
        metric=metric,
        trust=judged,
        verdict=trust_verdict(study, judged),
        early=tuple(early),
        settling=settling_sentence(study, early),
        speed=speed_sentence(study),
        importances=tuple(matter),
        importance=importance_sentence(matter),
        compared=compared,
        why=explanation(study, compared),
        pruning=pruning_sentence(study),
        statuses=tuple(statuses(study)),
        spent=spent_sentence(study),
        problems=tuple(problems(study)),
        flags=tuple(flags(study)),
    )


def trust_verdict(study: Study, judged: Trust) -> str:
    """Say in one sentence whether the score that ranks can be trusted in this study.

    Without test rows: what is known instead.
    """
    score, target = study.ranks_by, study.targets[0]
    if not len(study.complete):
        return "Unknown: no trial is complete."
    known = int(study.architectures[target].notna().sum())
    if not known:
        held_out = declared(study.spec.objective).trainings > 0
        instead = (
            f"{score} is itself measured on rows that were not trained on."
            if held_out
            else f"docs/explanation/ranking.md says how {score} ranks on other data."
        )
        return (
            f"There are no test rows to check {score} against. {instead} For a check give "
            "--test-fraction 0.2 or --test FILE."
        )
    if known < MIN_PAIRS:
        noun = "architecture is" if known == 1 else "architectures are"
        return f"{known} {noun} too few to tell whether {score} predicts {words_of(target)}."
    said = judged.sentences[0][1]
    return said[0].upper() + said[1:] if said[0].isdigit() else f"{score} {said}"


def _is_rival(score: str) -> bool:
    """Return whether a score is a baseline, such as a held-out score, which evidence replaces."""
    # A table may hold scores that this version does not know.
    return score in SCORES and SCORES[score].baseline
