"""The report of a study as one value: tables in, each fact computed once, when first asked for.

The page, its text as Markdown, JSON, CSV, the figures and the terminal are views of it.
"""

import math
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TypeVar

from nas_evidence.baselines.comparison import Comparison
from nas_evidence.maths.ranking import MIN_PAIRS
from nas_evidence.reporting.about import about
from nas_evidence.reporting.certainty import certainty_of
from nas_evidence.reporting.correlations import ALL, Trust, early_trust, trust
from nas_evidence.reporting.headline import Headline, Rival, headline, rival_of
from nas_evidence.reporting.importance import (
    importance_sentence,
    importances,
)
from nas_evidence.reporting.next_step import NextStep, load_call, next_step
from nas_evidence.reporting.problems import (
    flags,
    problems,
    pruning_sentence,
    statuses,
)
from nas_evidence.reporting.recommendation import recommendation
from nas_evidence.reporting.study_tables import RankedStudy
from nas_evidence.reporting.terms import explanation, term_table
from nas_evidence.reporting.words import CALIBRATED, Calibrated, named, words_of
from nas_evidence.spec.how_read import HowRead
from nas_evidence.spec.likelihoods import TargetKind
from nas_evidence.spec.metric_names import check_metric
from nas_evidence.spec.origin import Origin
from nas_evidence.spec.registry import FREE_SCORES, SCORES, declared

Fact = TypeVar("Fact")
#: Width of the first screen in words, lines of each of its sentences, and warnings on it.
_ACROSS, _MOST_LINES, _MOST_ADVICE = 100, 3, 3


def trust_of(study: RankedStudy) -> Trust:
    """Compare every score of a study with every test result."""
    # Evidence replaces baselines, such as held-out scores. A table may hold scores that this
    # version does not know.
    known = [name for name in study.scores if name in SCORES and SCORES[name].baseline]
    return trust(
        study.architectures,
        scores=study.scores,
        targets=study.targets,
        rivals=[name for name in known if name != study.spec.objective],
        group="family",
        seed=study.spec.seed,
    )


class StoredFact(cached_property[Fact]):
    """A fact of a report that report.json has, too."""


def _fact(function: Callable[[RankedStudy], Fact]) -> StoredFact[Fact]:
    return StoredFact(lambda report: function(report.study))


@dataclass(frozen=True, eq=False, repr=False)
class Report:
    """The results of a study in tables, statistics and sentences.

    study       the tables and the ranking
    comparison  the winner beside simple models, None where that is unknown
    place       the folder of the study, as the reader names it
    metric      of the winner's predictions, shown after the log loss; None if none was named
    how_read    how the data were read; None where that is unknown
    refit_of    the study that found its architectures; None for a search
    data_root   the folder of the data sets, None if none was named
    """

    study: RankedStudy
    comparison: Comparison | None = None
    place: Path = field(default_factory=Path)
    metric: str | None = None
    how_read: HowRead | None = None
    refit_of: Origin | None = None
    data_root: Path | None = None

    #: How sure the first rank is; None with fewer than two architectures.
    certainty = _fact(certainty_of)
    #: How well each score ranks at the end of training.
    trust = _fact(trust_of)
    #: How well each score ranks at each epoch with stored evidence.
    early = _fact(early_trust)
    #: How much each parameter of the architecture decides.
    importances = _fact(importances)
    #: The parts of each trial's score, None if it has none.
    compared = _fact(term_table)
    #: What pruning saved; empty if the study does not prune.
    pruning = _fact(pruning_sentence)
    #: How trials ended.
    statuses = _fact(statuses)
    #: What went wrong.
    problems = _fact(problems)
    #: Warning signs in valid estimates.
    flags = _fact(flags)

    def __repr__(self) -> str:
        """Return the first screen in words."""
        lines = [self._title]
        wide = 1 + max((len(word) for word, _ in self.screen), default=0)
        for word, sentence in self.screen:
            own = textwrap.wrap(sentence, _ACROSS, initial_indent=word.ljust(wide),
                                subsequent_indent=" " * wide)  # fmt: skip
            lines += own if len(own) <= _MOST_LINES else [*own[:_MOST_LINES], " " * wide + "..."]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        said = "".join(
            f"<dt><b>{escape(word)}</b></dt><dd>{escape(sentence)}</dd>"
            for word, sentence in self.screen
        )
        return f"<p>{escape(self._title)}</p><dl>{said}</dl>"

    @property
    def _title(self) -> str:
        study = self.study
        done = f"{study.n_searched} of {study.spec.n_trials} trials"
        return f"Report of {self.name}: {done}, ranked by {study.ranks_by}"

    @property
    def screen(self) -> tuple[tuple[str, str], ...]:
        """The first screen: what each sentence is about, and the sentence."""
        said = self.headline
        further = len(said.advice) - _MOST_ADVICE
        found = (
            ("Answer", said.answer), ("Worth it?", said.worth), ("How sure", said.sure),
            ("If wrong", said.cost), ("Search more?", said.together), ("Measured", said.measured),
            ("Intervals", said.intervals), ("Trust", self.verdict),
            *(("Note", sentence) for sentence in said.advice[:_MOST_ADVICE]),
            ("Note", f"{further} more: see headline.advice" if further > 0 else ""),
            ("Values", "headline, metrics, trust, importances, how_read, problems, ... of this "
                       "object; study.report() writes the page"),
        )  # fmt: skip
        return tuple((word, sentence) for word, sentence in found if sentence)

    @property
    def name(self) -> str:
        """What the study is called."""
        return named(self.study.spec.name, self.place)

    @property
    def where(self) -> str:
        """The folder or URI of the study, as it is typed; a `Path` joins the slashes of a URI."""
        return re.sub(r"^(\w{2,}):/(?!/)", r"\1://", str(self.place))

    @property
    def about(self) -> Mapping[str, str]:
        """Its data, rows, dates, versions, and the command that repeats it, by name."""
        return about(self.study, self.how_read, self.where, self.data_root)

    @property
    def loads(self) -> str:
        """The call in Python that loads the study."""
        return load_call(self.study, self.where)

    def next_step(self, *, is_running: bool = False) -> NextStep:
        """Return what to do next; `is_running` says whether a process runs the study now."""
        return next_step(
            self.study, self.headline, self.where, is_running=is_running,
            is_refit=self.refit_of is not None, data_root=self.data_root,
        )  # fmt: skip

    @property
    def kind(self) -> TargetKind:
        """The kind of target."""
        return self.study.spec.plan.declared.kind

    @property
    def calibrated(self) -> Calibrated:
        """What calibration is called."""
        return CALIBRATED[self.kind.confidence]

    @property
    def tested(self) -> str:
        """The column of test results that the page shows beside the log loss."""
        return self.kind.tests[-1]

    @cached_property
    def judged(self) -> Comparison | None:
        """The comparison, if it is of the winner."""
        judged, winner = self.comparison, self.study.winner
        return judged if judged and winner and judged.trial_id == winner.trial_id else None

    @StoredFact
    def rival(self) -> Rival | None:
        """The simple model that the winner is judged by; None without any."""
        return rival_of(self.judged)

    @StoredFact
    def headline(self) -> Headline:
        """The sentences of the first screen."""
        return headline(
            self.study, self.certainty, self.judged, recommendation(self.study),
            metric=self.metric, trust=self.trust, place=self.place,
            shape=() if self.how_read is None else self.how_read.shape,
        )  # fmt: skip

    @StoredFact
    def verdict(self) -> str:
        """The same in one sentence."""
        return trust_verdict(self.study, self.trust, self.refit_of)

    @StoredFact
    def importance(self) -> str:
        """The same in one sentence."""
        return importance_sentence(self.importances)

    @StoredFact
    def why(self) -> str:
        """What the score is and what sets the first two apart."""
        return explanation(self.study, self.compared)

    @property
    def ranked_by(self) -> str:
        """What the score that ranks is, with its name."""
        study = self.study
        if study.spec.rank_by == "estimate":
            return study.order.partition("Ranked by ")[2].rstrip(".")
        score, folds = study.spec.objective, study.spec.plan.folds
        words = declared(score).summary.replace("K-fold", f"{folds}-fold")
        if score == "conditional_evidence":
            words = f"the {words.replace('K folds', f'{folds} folds')}"
        return f"{words}: {score}"

    @property
    def measured_on(self) -> str:
        """What predictions the metrics are of, and how those of folds allow for the choice."""
        judged = self.judged
        if judged is None or judged.on == "test":
            return "on the test data"
        if judged.chosen_among == 1 and judged.corrected:
            return "out-of-fold predictions"
        how = "corrected for the choice" if judged.corrected else "chosen on these rows"
        return f"out-of-fold predictions, {how}"

    @cached_property
    def metrics(self) -> Mapping[str, Mapping[str, float | None]]:
        """The metrics, by their words, of the winner and of each simple model; empty without any.

        The order is: log loss, the metric that was asked for, all others that the winner has. Of a
        winner with several seeds its name says whether they are of one or of all.
        """
        judged, winner = self.judged, self.study.winner
        if judged is None or winner is None:
            return {}
        name = "winner"
        if len(winner.trial_ids) > 1:
            seeds = judged.seeds
            name += f", mean of {seeds} seeds" if seeds > 1 else f", trial {judged.trial_id}"
        first = ["log_loss", *([self.metric] if self.metric else [])]
        words = {
            one: self.kind.metrics[one]
            for one in dict.fromkeys([*first, *self.kind.metrics])
            if one in judged.metrics
        }
        models = {name: judged.metrics} | {one.name: one.metrics for one in judged.baselines}
        return {
            name: {said: own.get(metric) for metric, said in words.items()}
            for name, own in models.items()
        }

    @property
    def by_target(self) -> Mapping[str, Mapping[str, Mapping[str, float | None]]]:
        """The metrics of each of several real targets, like `metrics`; empty for one."""
        judged = self.judged
        if judged is None or self.study.winner is None:
            return {}
        found = {}
        for k, one in enumerate(judged.by_target):
            words = {name: said for name, said in self.kind.metrics.items() if name in one.metrics}
            models = {"winner": one.metrics}
            models |= {b.name: b.by_target[k] for b in judged.baselines if b.by_target}
            found[one.name] = {
                model: {said: own.get(metric) for metric, said in words.items()}
                for model, own in models.items()
            }
        return found

    def free_scores_ahead(self, target: str) -> Mapping[str, float]:
        """Return the free scores that rank `target` at least as well as the main one.

        The values are Spearman's rho over all architectures.
        """
        rho = {
            row.score: row.statistics.rho
            for row in self.trust.rows
            if (row.target, row.group) == (target, ALL) and row.statistics.rho is not None
        }
        least = rho.get(self.trust.main, math.inf)
        return {score: own for score, own in rho.items() if score in FREE_SCORES and own >= least}


def report_on(
    study: RankedStudy,
    comparison: Comparison | None = None,
    *,
    place: Path = Path(),
    metric: str | None = None,
    how_read: HowRead | None = None,
    refit_of: Origin | None = None,
    data_root: Path | None = None,
) -> Report:
    """Return the report of a study, for any number of trials.

    Args:
        study: its tables.
        comparison: the winner beside simple models, if known.
        place: its folder, as the reader names it.
        metric: of the winner's predictions, to say on the first screen; by default the study's.
        how_read: how its data were read, if known.
        refit_of: the study that found its architectures, if one did.
        data_root: the folder of the data sets, if one was named.

    Raises:
        ValueError: the metric does not fit the targets; names those that do.
    """
    metric = metric or study.spec.metric
    check_metric(metric, study.spec.plan.likelihood)
    return Report(study, comparison, place, metric, how_read, refit_of, data_root)


def trust_verdict(study: RankedStudy, judged: Trust, refit_of: Origin | None) -> str:
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
            "It is itself measured on rows that were not trained on."
            if held_out
            else f"docs/explanation/ranking.md says how {score} ranks on other data."
        )
        check = "For a check give test_fraction=0.2 (--test-fraction) or test=FILE."
        if refit_of is not None:
            of_it = f"What test rows said of the architecture is in {refit_of.place}."
            check = of_it if refit_of.n_tested else ""
        return f"There are no test rows to check {score} against. {instead} {check}".rstrip()
    if known < MIN_PAIRS:
        noun = "architecture is" if known == 1 else "architectures are"
        return f"{known} {noun} too few to tell whether {score} predicts {words_of(target)}."
    said = judged.sentences[0][1]
    return said[0].upper() + said[1:] if said[0].isdigit() else f"{score} {said}"
