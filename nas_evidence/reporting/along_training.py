"""Scores along training: from which epoch each one ranks as it does at the end."""

from collections.abc import Sequence
from dataclasses import dataclass

from nas_evidence.maths.ranking import Interval, regret, resampling_plan, spearman
from nas_evidence.reporting.correlations import SIZE
from nas_evidence.reporting.study_tables import Study
from nas_evidence.reporting.words import Scale, scale_of
from nas_evidence.spec.registry import SCORES

#: Largest difference from the final rho that counts as equal.
SAME_RHO = 0.05
#: Fewest architectures for a word on training speed, and the agreement from which it has ranked
#: on the committed pools; see docs/experiments/training-speed.md.
FEWEST, AGREES = 8, 0.5
SPEED = "sotl_e"


@dataclass(frozen=True)
class EarlyTrust:
    """How one score at one epoch ranks the final target; `n` architectures have both."""

    score: str
    epoch: int
    n: int
    rho: float
    interval: Interval | None
    regret: float  # at k = 1


def early_trust(study: Study) -> list[EarlyTrust]:
    """Return how the scores that change in training rank the first target at each epoch."""
    target = study.architectures[study.targets[0]]
    changing = [name for name in study.scores if name == SIZE or not _is_constant(name)]
    keys = study.by_epoch["trial_id"].map(study.complete["architecture_key"])
    long = study.by_epoch.assign(key=keys)
    means = long.groupby(["score", "epoch", "key"])["value"].mean()
    plan = resampling_plan(len(target), seed=study.spec.seed)
    found = []
    for score in changing:
        for epoch in study.epochs:
            if score == SIZE:
                values = study.architectures[SIZE]
            elif (score, epoch) in means.index:
                values = means[score, epoch].reindex(target.index)
            else:
                continue
            ranked = spearman(values, target, plan=plan)
            known = values.notna() & target.notna()
            if ranked is not None:
                found.append(
                    EarlyTrust(
                        score,
                        epoch,
                        int(known.sum()),
                        *ranked,
                        regret=regret(values[known], target[known], 1),
                    )
                )
    return found


def _is_constant(score: str) -> bool:
    """Return whether a score is known before training."""
    return score in SCORES and SCORES[score].taken == "before"


def settling_sentence(study: Study, found: Sequence[EarlyTrust]) -> str:
    """Say from which epoch on the main score ranks as it does at the end."""
    objective = str(study.spec.objective)
    own = [one for one in found if one.score == objective]
    if _is_constant(objective):
        return f"{objective} is computed before the training, so no epoch changes its order."
    if len(own) < 2:
        return (
            f"How early {objective} ranks well is unknown: it is stored at fewer than two epochs. "
            "Add --set curves=true to store it at every evaluation."
        )
    final = own[-1]
    settled = final.epoch
    for one in reversed(own):
        if abs(one.rho - final.rho) > SAME_RHO:
            break
        settled = one.epoch
    scale: Scale = scale_of(study.targets[0])
    if settled == final.epoch:
        return (
            f"The order by {objective} still changed at the end of training: rho "
            f"{own[-2].rho:.2f} at epoch {own[-2].epoch}, {final.rho:.2f} at epoch {final.epoch}. "
            "Shorter training would have given another ranking."
        )
    at = next(one for one in own if one.epoch == settled)
    share = 100 * settled / final.epoch
    return (
        f"From epoch {settled} on ({share:.0f} % of the training), {objective} ranks as it does "
        f"at the end: rho {at.rho:.2f} there, {final.rho:.2f} at epoch {final.epoch}; its first "
        f"choice there loses {scale.text(at.regret)}, the final one {scale.text(final.regret)}."
    )


def speed_sentence(study: Study) -> str:
    """Say whether training losses order these architectures as the main score does.

    Where they do not, differences of the generalisation gap are larger than those of the training
    loss, and sums of training losses have ranked against the test loss.
    """
    objective, known = str(study.spec.objective), study.architectures
    if {SPEED, objective} - set(known.columns) or objective == SPEED:
        return ""
    both = known[[SPEED, objective]].dropna()
    if len(both) < FEWEST:
        return f"It takes {FEWEST} architectures to tell whether training speed ranks them."
    plan = resampling_plan(len(both), seed=study.spec.seed)
    ranked = spearman(both[SPEED], both[objective], plan=plan)
    if ranked is None:
        return ""
    rho, interval = ranked
    span = "" if interval is None else f", {interval.low:.2f} to {interval.high:.2f}"
    what = f"training losses ({SPEED}) and {objective} (rho {rho:.2f}{span})"
    if rho >= AGREES:
        return f"Similar orders by {what}: sotl, which is free, can prune here."
    if rho < 0:
        return f"Opposite orders by {what}: fast training is no sign of a good network here."
    return f"Different orders by {what}: do not prune by sotl here."
