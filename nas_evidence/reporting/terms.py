"""Why one architecture scores above another: the score that ranks, part by part.

    log evidence     = fit - 1/2 scatter - 1/2 log det ratio       all in nats per datum
    folds            = sum of the log densities of the folds / number of data

The fit is the log likelihood of the training data; scatter (how far the weights moved from the
prior mean) and the ratio of determinants (how much sharper the posterior is than the prior) are
the cost of complexity. With a scale of the target its log Jacobian is added.
"""

import math
from collections.abc import Sequence

import pandas as pd

from nas_evidence.reporting.study_tables import RankedStudy, last_evaluations
from nas_evidence.reporting.words import chance
from nas_evidence.spec.domains import architecture_text
from nas_evidence.spec.record import TrialStatus
from nas_evidence.spec.registry import declared
from nas_evidence.storage.tables import architecture_values

#: Parts that add up to the evidence: term, factor and label.
PARTS: Sequence[tuple[str, float, str]] = (
    ("log_likelihood", 1.0, "fit: log likelihood of the training data"),
    ("scatter", -0.5, "complexity: distance of the weights from zero (-1/2 scatter)"),
    ("log_det_ratio", -0.5, "complexity: weights pinned down by the data (-1/2 log det ratio)"),
    ("log_jacobian", 1.0, "scale of the target: the log Jacobian"),
    ("at_mode_correction", 1.0, "correction for not being at a mode"),
)


#: Terms of a fold beside its log probability.
OF_FOLDS = {
    "output_scale": "likeliest scale of the outputs (1 is as trained)",
    "log_predictive_as_trained": "log probability as trained, datum by datum",
}


def term_table(study: RankedStudy) -> pd.DataFrame | None:
    """Return the parts of the score that ranks, one row per trial; None if it has no parts.

    First the trials that represent the ranked architectures, by rank, then their other seeds,
    then all other trials at their last evaluation. The column `trial` says which; the next
    `attrs["n_parts"]` columns add up to the one after them.
    """
    own = study.terms[study.terms["estimator"] == study.spec.objective]
    trials = study.trials.drop_duplicates("trial_id").set_index("trial_id")
    part = next((t for t in ("log_density", "log_predictive") if (own["term"] == t).any()), None)
    if part is not None:
        found, n_parts = _folds(study, own, part)
    elif (own["term"] == "log_likelihood").any():
        found, n_parts = _evidence(own, trials, str(study.spec.objective))
    else:
        return None
    found["parameters"] = trials["n_parameters"].astype(float)
    ranks = {
        trial_id: (int(trial_id != one.trial_id), one.rank)
        for one in study.ranking
        if one.rank is not None
        for trial_id in one.trial_ids
    }
    found = found.loc[sorted(found.index, key=lambda one: (*ranks.get(one, (2, 0)), one))]
    labels = []
    for trial_id, trial in trials.loc[found.index].iterrows():
        where = f"rank {ranks[trial_id][1]}" if trial_id in ranks else "not ranked"
        if trial["status"] != TrialStatus.COMPLETE.value:
            where = f"{trial['status']} at epoch {trial['epochs']}"
        words = architecture_text(str(trial["family"]), architecture_values(trial))
        labels.append(f"{where}: {words} (trial {trial_id})")
    found.insert(0, "trial", labels)
    found.attrs["n_parts"] = n_parts
    return found


def _evidence(own: pd.DataFrame, trials: pd.DataFrame, kind: str) -> tuple[pd.DataFrame, int]:
    sums = own.pivot_table(index="trial_id", columns="term", values="value", aggfunc="sum")
    trials = trials.loc[sums.index]
    n_data = trials["n_data"].astype(float)
    found = pd.DataFrame(
        {name: factor * sums[term] / n_data for term, factor, name in PARTS if term in sums}
    )
    n_parts = len(found.columns)
    found[f"log evidence ({kind})"] = found.sum(axis=1)
    learned = own[(own["term"] == "prior_precision") & (own["value"] > 0)].groupby("trial_id")
    others = {
        "effective parameters": sums.get("effective_parameters"),
        "smallest prior precision": learned["value"].min(),
        "largest prior precision": learned["value"].max(),
        "noise (standard deviation)": trials["noise_std"],
        "temperature": trials["temperature"],
        "gradient norm squared, nats": sums.get("gradient_norm_squared"),
    }
    for name, values in others.items():
        if values is not None and values.notna().any():
            found[name] = values.astype(float)
    return found, n_parts


def _folds(study: RankedStudy, own: pd.DataFrame, part: str) -> tuple[pd.DataFrame, int]:
    """Return what each fold adds per datum, in the term `part`, and its other terms."""
    sums = own.pivot_table(index="trial_id", columns=["term", "group"], values="value")
    last = last_evaluations(study.evidence)
    last = last[last["estimator"] == study.spec.objective].set_index("trial_id").loc[sums.index]
    # `value` is the mean over folds of sums, so that this is the number of predicted data.
    n_data = sums[part].notna().sum(axis=1) * last["value"] / last["per_datum"]
    found = sums[part].div(n_data, axis=0).add_suffix(": log probability of its targets")
    found, n_parts = found.rename_axis(columns=None), len(found.columns)
    found[f"{study.spec.objective}, nats per datum"] = last["per_datum"]
    for term, words in OF_FOLDS.items():
        if term in sums:
            unit = n_data if term != "output_scale" else n_data * 0 + 1
            found = found.join(sums[term].div(unit, axis=0).add_suffix(f": {words}"))
    return found, n_parts


def explanation(study: RankedStudy, compared: pd.DataFrame | None) -> str:
    """Say in plain words what the score that ranks measures, and what sets the first two apart."""
    score, winner = study.spec.objective, study.winner
    if winner is None or winner.objective is None:
        return ""
    if compared is None:
        return f"{score} is {declared(score).summary}; it has no parts to compare."
    ranked = [one for one in study.ranking if one.objective is not None][:2]
    if PARTS[0][2] in compared:
        text = "The log evidence is the fit to the training data minus the cost of complexity. "
        return text + gap_sentence(compared, [one.trial_id for one in ranked])
    text = (
        f"{score} asks how well networks of this architecture predict data that they were not "
        "trained on, within the training set; only scaling, medians and lists of categories have "
        "seen them. "
    )
    if score == "conditional_evidence":
        text = (
            f"{score} is the conditional marginal likelihood (last-layer Laplace, "
            f"{study.spec.plan.folds} folds): how probable the targets of each fold are together, "
            "under a Bayesian last layer on the features of a network trained on the other folds. "
        )
    if of := study.spec.plan.declared.kind.chance_of:
        chances = [math.exp(one.objective or 0.0) for one in ranked]
        text += f"The first gives {of} a probability of {chance(chances[0], 1)}"
        text += f", the second {chance(chances[1], 1)}" if len(chances) > 1 else ""
        return text + " (geometric means over the data)."
    values = [one.objective or 0.0 for one in ranked]
    text += f"The first has a log density of {values[0]:.3f} nats per datum"
    return text + (f", the second {values[1]:.3f}." if len(values) > 1 else ".")


def gap_sentence(compared: pd.DataFrame, trial_ids: Sequence[int]) -> str:
    """Say how fit and complexity set the first two apart."""
    if len(trial_ids) < 2 or not {*trial_ids} <= {*compared.index}:  # or their file is damaged
        return ""
    first, second = (
        compared.loc[trial_id].iloc[1 : 1 + compared.attrs["n_parts"]] for trial_id in trial_ids
    )
    gaps = (first - second).astype(float)
    complexity = gaps.iloc[1:].sum()

    def part(gap: float, word: str) -> str:
        return f"{'gains' if gap >= 0 else 'loses'} {abs(gap):.4f} by {word}"

    return (
        "Against the second, the first "
        f"{part(gaps.iloc[0], 'its fit')} and {part(complexity, 'its complexity')}, in nats per "
        "datum."
    )
