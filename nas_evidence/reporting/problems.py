"""Trials by status and cause, what they cost and pruning saved, and doubtful estimates."""

import re
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from nas_evidence.plumbing.durations import duration
from nas_evidence.reporting.study_tables import RankedStudy, last_evaluations
from nas_evidence.spec.record import TrialStatus
from nas_evidence.storage.kept_submission import resume_call, resume_command

_LISTED = 8  # trial ids listed per cause


@dataclass(frozen=True)
class StatusCount:
    """Trials with one final status, and their worker time."""

    status: str
    n: int
    seconds: float


@dataclass(frozen=True)
class Problem:
    """Trials that share one problem."""

    kind: str
    detail: str
    n: int
    trials: str


def statuses(study: RankedStudy) -> list[StatusCount]:
    """Return the number of trials by status, in the order of the statuses."""
    groups = dict(tuple(study.trials.groupby("status")))
    return [
        StatusCount(status.value, len(rows), float(rows["total_seconds"].astype(float).sum()))
        for status in TrialStatus
        if (rows := groups.get(status.value)) is not None
    ]


def pruning_sentence(study: RankedStudy) -> str:
    """Return how much training time pruning saved, estimated from the epochs of each trial.

    Empty if the study does not prune.
    """
    if study.spec.pruning.rule == "none":
        return ""
    pruned = study.trials[study.trials["status"] == TrialStatus.PRUNED.value]
    if not len(pruned):
        return "Pruning was on, but stopped no trial."
    total, done = study.spec.plan.epochs, pruned["epochs"].astype(float)
    seconds = pruned["train_seconds"].astype(float) / done.where(done > 0) * total
    # Pruned at rung 0: its score took one training run on half of the data.
    seconds = seconds.fillna(pruned["evidence_seconds"].astype(float) / 0.5).fillna(0.0)
    spent = float(study.trials["train_seconds"].astype(float).sum())
    saved = float((seconds * (1 - done / total)).sum())
    share = f"{100 * saved / (spent + saved):.0f} %" if spent + saved > 0 else "an unknown part"
    return (
        f"Pruning stopped {len(pruned)} of {len(study.trials)} trials and saved about {share} of "
        f"the training time ({duration(saved)}; {duration(spent)} was spent)."
    )


def problems(study: RankedStudy) -> list[Problem]:
    """Return what went wrong, most frequent first."""
    failed = study.trials[study.trials["status"] != TrialStatus.COMPLETE.value]
    failed = failed.assign(kind=failed["status"], detail=[_cause(row) for row in
                                                          failed.to_dict("records")])  # fmt: skip
    last = last_evaluations(study.evidence)
    last = last[last["trial_id"].isin(study.complete.index)]
    invalid = last[~last["valid"].fillna(False) | last["value"].isna()]
    invalid = invalid.assign(kind="invalid " + invalid["estimator"], detail=invalid["note"])
    found = [
        Problem(str(kind), str(detail), len(rows), _listed(rows["trial_id"].tolist()))
        for frame in (failed, invalid)
        for (kind, detail), rows in frame.groupby(["kind", "detail"], dropna=False)
    ]
    found += [Problem("unreadable file", f"{file.path.name}: {file.reason}", 1, "")
              for file in study.tables.unreadable]  # fmt: skip
    return sorted(found, key=lambda problem: -problem.n)


def unranked_sentence(study: RankedStudy) -> str:
    """Say that no complete trial has a finite score, and why; "" if one has."""
    n = len(study.complete)
    if study.winner is not None or not n:
        return ""
    names = study.spec.ranking_scores
    why = [one.detail for one in problems(study) if one.kind.removeprefix("invalid ") in names]
    because = f", most often because: {why[0]}" if why and why[0] else ""
    return (
        f"Nothing can be ranked: none of the {n} complete trials has a finite "
        f"{' and '.join(names)}{because}. Search again with another score (set objective=...), "
        "or with a smaller learning rate (set plan.learning_rate=...), and another `out`."
    )


def unfinished_sentence(study: RankedStudy, place: Path | str) -> str:
    """Say that no trial is complete, and what goes on; "" if one is complete.

    Args:
        study: the study as it is stored.
        place: of the study, as its user named it.
    """
    if len(study.complete):
        return ""
    none = f"0 of {study.spec.n_trials} trials are complete"
    folder = study.tables.folder
    if study.n_searched < study.spec.n_trials:
        go_on = resume_call(place, folder, study.spec)
        command = resume_command(place, folder, study.spec)
        return f"{none}; {go_on} goes on{f' ({command})' * (command != go_on)}"
    why = next((f", most often because: {one.detail}" for one in problems(study)), "")
    again = resume_call(place, folder, study.spec, ", retry_failed=True")
    return f"{none}{why}; retry_failed=True (--retry-failed) runs them again: {again}"


def _cause(trial: dict[str, object]) -> str:
    cause = "" if pd.isna(trial["cause"]) else str(trial["cause"])
    if trial["status"] == TrialStatus.PRUNED.value:
        return f"stopped at epoch {trial['epochs']}"
    if trial["status"] == TrialStatus.INFEASIBLE.value:
        return re.sub(r"^(\w+) [-+.\de,]+ >", r"\1 >", cause)
    error = "" if pd.isna(trial["error"]) else str(trial["error"])
    return cause or error.strip().split("\n")[-1]


def flags(study: RankedStudy) -> list[Problem]:
    """Return warning signs in valid estimates of complete trials."""
    terms = study.terms[study.terms["trial_id"].isin(study.complete.index)]
    found = []
    for (estimator, term), rows in terms.groupby(["estimator", "term"]):
        if term == "gradient_norm_squared":
            found.append(_not_at_mode(study, str(estimator), rows))
        if term == "clamped_eigenvalues" and (rows["value"] > 0).any():
            clamped = rows[rows["value"] > 0]
            found.append(
                Problem(
                    f"clamped eigenvalues in {estimator}",
                    f"negative eigenvalues of the curvature were set to zero, up to "
                    f"{clamped['value'].max():.0f} in one trial: rounding, unless there are many",
                    clamped["trial_id"].nunique(),
                    _listed(sorted(clamped["trial_id"].unique().tolist())),
                )
            )
    return [flag for flag in found if flag.n]


def _not_at_mode(study: RankedStudy, estimator: str, rows: pd.DataFrame) -> Problem:
    away = rows[rows["value"] > 1]
    trials = study.complete.loc[away["trial_id"]]
    shift = (0.5 * away["value"].to_numpy() / trials["n_data"].astype(float)).median()
    ranked = [one.objective for one in study.ranking if one.objective is not None]
    gap = f"{ranked[0] - ranked[1]:.2g}" if len(ranked) > 1 else "unknown"
    return Problem(
        f"not at a mode, {estimator}",
        "training stopped where the gradient is not zero (gradient norm squared above 1 nat); "
        f"the evidence there is too low, by a median of {shift:.2g} nats per datum; the first two "
        f"of the ranking differ by {gap}. Longer training, or a smaller learning rate at its end, "
        "brings it closer",
        len(away),
        _listed(away["trial_id"].tolist()),
    )


def _listed(trial_ids: list[int]) -> str:
    more = f" and {len(trial_ids) - _LISTED} more" if len(trial_ids) > _LISTED else ""
    return ", ".join(map(str, trial_ids[:_LISTED])) + more
