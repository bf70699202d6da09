"""Scores along training: from which epoch each one ranks as it does at the end."""

from dataclasses import dataclass

from nas_evidence.maths.ranking import Interval, regret, resampling_plan, spearman
from nas_evidence.reporting.correlations import SIZE
from nas_evidence.reporting.study_tables import Study
from nas_evidence.spec.registry import SCORES


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
    return score in SCORES and SCORES[score].taken == "before"
