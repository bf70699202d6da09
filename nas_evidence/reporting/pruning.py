"""What pruning saved, or would have saved, and what it would have lost."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from nas_evidence.maths.pruning_rule import Rule
from nas_evidence.maths.replay import cohort, stopping_rungs
from nas_evidence.plumbing.durations import duration
from nas_evidence.reporting.correlations import scale_of
from nas_evidence.reporting.study_tables import Study
from nas_evidence.spec.record import TrialStatus
from nas_evidence.spec.registry import declared
from nas_evidence.spec.study import PruningSpec

#: Rungs of the replay if the study itself did not prune.
_REPLAYED = PruningSpec(rule="halving")


@dataclass(frozen=True)
class Rung:
    """One cut: all trials with a score at one epoch, compared there and nowhere else.

    saved_share   share of their full training time saved by stopping the others
    target_lost   best target of all complete trials minus that of the survivors
    winner_place  the winner's place among the n, or None if its score is unknown
    """

    epoch: int
    n: int
    n_kept: int
    winner_place: int | None
    saved_share: float
    target_lost: float | None

    @property
    def winner_kept(self) -> bool | None:
        """Return whether the winner continues."""
        return None if self.winner_place is None else self.winner_place <= self.n_kept


@dataclass(frozen=True)
class PruningReport:
    """The rungs, and one or two sentences about pruning as a whole."""

    rule: PruningSpec
    score: str
    rungs: tuple[Rung, ...]
    sentences: tuple[str, ...]


def pruning_report(study: Study) -> PruningReport:
    """Return the effect of pruning in this study, or that of a replay."""
    used = study.spec.pruning if study.spec.pruning.rule != "none" else _REPLAYED
    rule: Rule = "median" if used.rule == "median" else "halving"
    score = study.spec.pruning_score
    long = study.by_epoch
    own = long[long["score"] == score].pivot(index="epoch", columns="trial_id", values="value")
    own = own.reindex(columns=sorted(own.columns))
    if declared(score).taken == "before" and len(own):
        # known at epoch 0, but stored with the first evidence
        own.loc[0] = own.bfill().iloc[0]
        own = own.sort_index()
    final = study.spec.plan.epochs
    stored = {0} & set(own.index) | set(study.epochs)
    epochs = [epoch for epoch in sorted(stored) if epoch < final and epoch in own.index]
    rungs = tuple(_rung(study, own.loc[epoch], epoch, rule, used.reduction) for epoch in epochs)
    if study.spec.pruning.rule != "none":
        sentences = [_saved(study), _winner(rungs, study.spec.rungs)]
    else:
        sentences = [_replayed(study, own, used, rule)]
    return PruningReport(used, score, rungs, tuple(filter(None, sentences)))


def _whole_seconds(study: Study, trial_ids: Sequence[int]) -> pd.Series:
    """Return each trial's training time if run to the end, estimated from its epochs.

    For a trial without epochs, estimated from its training runs on parts of the data.
    """
    trials = study.trials.set_index("trial_id").loc[list(trial_ids)]
    plan = study.spec.plan
    epochs = trials["epochs"].astype(float).replace(0.0, float("nan"))
    seconds = trials["train_seconds"].astype(float) / epochs * plan.epochs
    # Pruned at rung 0: its score took one training run on half of the data.
    parts = trials["evidence_seconds"].astype(float) / 0.5
    seconds = seconds.fillna(parts)
    return seconds.fillna(0.0) if seconds.fillna(0.0).sum() > 0 else seconds.fillna(1.0) * 0 + 1


def _rung(study: Study, scores: pd.Series, epoch: int, rule: Rule, reduction: int) -> Rung:
    cut = cohort(scores.to_numpy(float), rule=rule, reduction=reduction)
    place = pd.Series(cut.place, scores.index)
    kept = pd.Series(cut.kept, scores.index)
    whole = _whole_seconds(study, list(scores.index))
    stopped = whole[~kept].sum() * (1 - epoch / study.spec.plan.epochs)
    winner = place.get(study.winner.trial_id) if study.winner else None
    return Rung(
        epoch=epoch,
        n=cut.n,
        n_kept=min(cut.n, cut.n_kept),
        winner_place=int(winner) if winner else None,
        saved_share=float(stopped / whole.sum()) if whole.sum() else 0.0,
        target_lost=_lost(study, [int(trial) for trial in kept.index[kept]]),
    )


def _lost(study: Study, kept: list[int]) -> float | None:
    """Return the best mean target of all architectures minus that of those that survive."""
    known = study.architectures[study.targets[0]].dropna()
    keys = set(study.complete["architecture_key"].reindex(kept).dropna())
    left = known[known.index.isin(keys)]
    return float(known.max() - left.max()) if len(left) else None


def _replayed(study: Study, own: pd.DataFrame, used: PruningSpec, rule: Rule) -> str:
    due = study.spec.model_copy(update={"pruning": used}).rungs
    rungs = [epoch for epoch in due if epoch in own.index]
    done = own.loc[rungs, own.columns.isin(study.complete.index)]
    if study.winner is None or not rungs or done.shape[1] <= used.startup_trials:
        return (
            "Pruning cannot be replayed: too few complete trials, or no score before the end, "
            "which --set curves=true stores."
        )
    stopped = stopping_rungs(
        done.to_numpy(float),
        rule=rule,
        reduction=used.reduction,
        startup_trials=used.startup_trials,
    )
    final = study.spec.plan.epochs
    ends = np.array([*rungs, final])[stopped]
    whole = _whole_seconds(study, list(done.columns)).to_numpy()
    saved = float((whole * (1 - ends / final)).sum() / whole.sum())
    end = dict(zip(done.columns, ends, strict=True)).get(study.winner.trial_id, final)
    fate = (
        "The final winner would have been kept"
        if end == final
        else f"The final winner would have been pruned at epoch {end}"
    )
    lost = _lost(
        study, [int(t) for t, last in zip(done.columns, ends, strict=True) if last == final]
    )
    cost = (
        "" if lost is None
        else "; the survivors include the best target of all." if lost <= 0
        else f"; the best survivor is {scale_of(study.targets[0]).text(lost)} of "
        f"{study.targets[0]} behind the best of all."
    )  # fmt: skip
    return (
        f"This study trained every trial to the end. Replayed in the order of its trials, halving "
        f"by {study.spec.pruning_score} at epoch {_listed(rungs)} (the best 1/{used.reduction} "
        f"continue) would have stopped {int((ends < final).sum())} of {len(ends)} trials, saving "
        f"{100 * saved:.0f} % of the training time. {fate}{cost or '.'}"
    )


def _saved(study: Study) -> str:
    pruned = study.trials[study.trials["status"] == TrialStatus.PRUNED.value]
    if not len(pruned):
        return "Pruning was on, but stopped no trial."
    whole = _whole_seconds(study, list(pruned["trial_id"]))
    spent = float(study.trials["train_seconds"].astype(float).sum())
    done = pruned["epochs"].astype(float).to_numpy() / study.spec.plan.epochs
    saved = float((whole.to_numpy() * (1 - done)).sum())
    share = f"{100 * saved / (spent + saved):.0f} %" if spent + saved > 0 else "an unknown part"
    return (
        f"Pruning stopped {len(pruned)} of {len(study.trials)} trials and saved about {share} of "
        f"the training time ({duration(saved)}; {duration(spent)} was spent)."
    )


def _winner(rungs: Sequence[Rung], at: Sequence[int]) -> str:
    known = [rung for rung in rungs if rung.epoch in at and rung.winner_place is not None]
    if not known:
        return "Whether the winner would have been pruned in another order is unknown."
    stopped = [rung for rung in known if not rung.winner_kept]
    places = "; ".join(
        f"place {rung.winner_place} of {rung.n} at epoch {rung.epoch}, with {rung.n_kept} kept"
        for rung in stopped or known
    )
    if stopped:
        return (
            f"The final winner would have been pruned if all trials had been compared at once: "
            f"{places}. It survived because it ran early; similar ones may have been pruned."
        )
    return f"The final winner would have been kept in any order: {places}."


def _listed(epochs: Sequence[int]) -> str:
    *others, last = map(str, epochs)
    return f"{', '.join(others)} and {last}" if others else last
