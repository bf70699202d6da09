"""Why one architecture scores above another: the score that ranks, part by part.

    log evidence     = fit - 1/2 scatter - 1/2 log det ratio       all in nats per datum
    folds            = sum of the log densities of the folds / number of data

The fit is the log likelihood of the training data; scatter (how far the weights moved from the
prior mean) and the ratio of determinants (how much sharper the posterior is than the prior) are
the cost of complexity. With a scale of the target its log Jacobian is added.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from nas_evidence.reporting.study_tables import (
    Study,
    architecture_text,
    last_evaluations,
)
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


@dataclass(frozen=True)
class Column:
    """One trial of the comparison; `cells` by row name, without missing ones."""

    trial_id: int
    label: str
    cells: Mapping[str, float]


@dataclass(frozen=True)
class TermTable:
    """Trials side by side, first one for each of the `n_ranked` architectures, by rank.

    The first `n_parts` rows add up to the next one.
    """

    n_ranked: int
    rows: tuple[str, ...]
    n_parts: int
    columns: tuple[Column, ...]


def term_table(study: Study) -> TermTable | None:
    """Return the parts of every trial's evidence, or None if no trial has any.

    First the trials that represent the ranked architectures, by rank, then their other seeds,
    then all other trials at their last evaluation. What is compared is the score that ranks; None
    if it has no parts.
    """
    kind = str(study.spec.objective)
    own = study.terms[study.terms["estimator"] == kind]
    for term in ("log_density", "log_predictive"):
        if term in set(own["term"]):
            return _folds(study, own, term)
    sums = own.pivot_table(index="trial_id", columns="term", values="value", aggfunc="sum")
    if "log_likelihood" not in sums:
        return None
    ranks, precisions = _ranks(study), _prior_precisions(own)
    trials = study.trials.set_index("trial_id").to_dict("index")
    columns, of_trial = [], sums.to_dict("index")
    for trial_id in sorted(of_trial, key=lambda one: (*ranks.get(one, (2, 0)), one)):
        own = of_trial[trial_id]
        cells = _cells(trials[trial_id], own, precisions.get(trial_id, ()), kind)
        label = _label(trial_id, trials[trial_id], ranks.get(trial_id))
        columns.append(Column(int(trial_id), label, cells))
    total = f"log evidence ({kind})"
    parts = [name for term, _, name in PARTS if term in sums]
    others = (
        "effective parameters", "parameters", "smallest prior precision",
        "largest prior precision", "noise (standard deviation)", "temperature",
        "gradient norm squared, nats",
    )  # fmt: skip
    present = {name for column in columns for name in column.cells}
    rows = [*parts, total, *(name for name in others if name in present)]
    n_ranked = sum(ranks.get(column.trial_id, (2, 0))[0] == 0 for column in columns)
    return TermTable(n_ranked, tuple(rows), len(parts), tuple(columns))


def _folds(study: Study, own: pd.DataFrame, part: str) -> TermTable:
    """Return what each fold adds per datum, in the term `part`, and its other terms."""
    others = {
        "output_scale": "likeliest scale of the outputs (1 is as trained)",
        "log_predictive_as_trained": "log probability as trained, datum by datum",
    }
    last = last_evaluations(study.evidence)
    last = last[last["estimator"] == study.spec.objective].set_index("trial_id")
    trials, ranks = study.trials.set_index("trial_id").to_dict("index"), _ranks(study)
    folds = sorted(own["group"].unique())
    total = f"{study.spec.objective}, nats per datum"
    columns = []
    for trial_id, mine in own.groupby("trial_id"):
        row = last.loc[trial_id]
        n_folds = int((mine["term"] == part).sum())
        # `value` is the mean over folds of sums, so that this is the number of predicted data.
        n_data = n_folds * row["value"] / row["per_datum"]
        cells = {total: float(row["per_datum"])}
        for term, group, value in zip(mine["term"], mine["group"], mine["value"], strict=True):
            if term == part:
                cells[f"{group}: log probability of its targets"] = float(value / n_data)
            elif term in others:
                unit = 1.0 if term == "output_scale" else n_data
                cells[f"{group}: {others[term]}"] = float(value / unit)
        cells["parameters"] = float(trials[trial_id]["n_parameters"] or math.nan)
        known = {name: value for name, value in cells.items() if not math.isnan(value)}
        label = _label(int(trial_id), trials[trial_id], ranks.get(int(trial_id)))
        columns.append(Column(int(trial_id), label, known))
    columns.sort(key=lambda one: (*ranks.get(one.trial_id, (2, 0)), one.trial_id))
    parts = [f"{fold}: log probability of its targets" for fold in folds]
    beside = [
        f"{fold}: {text}" for t, text in others.items() if t in set(own["term"]) for fold in folds
    ]
    n_ranked = sum(ranks.get(column.trial_id, (2, 0))[0] == 0 for column in columns)
    rows = (*parts, total, *beside, "parameters")
    return TermTable(n_ranked, rows, len(parts), tuple(columns))


def explanation(study: Study, compared: TermTable | None) -> str:
    """Say in plain words what the score that ranks measures, and what sets the first two apart."""
    score, winner = study.spec.objective, study.winner
    if winner is None or winner.objective is None:
        return ""
    if compared is None:
        return f"{score} is {declared(score).summary}; it has no parts to compare."
    if "log evidence" in compared.rows[compared.n_parts]:
        text = "The log evidence is the fit to the training data minus the cost of complexity. "
        return text + gap_sentence(compared)
    ranked = [one for one in study.ranking if one.objective is not None][:2]
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
    if study.spec.plan.likelihood == "categorical":
        chances = [math.exp(one.objective or 0.0) for one in ranked]
        text += f"The first gives the true class a probability of {chances[0]:.3f}"
        text += f", the second {chances[1]:.3f}" if len(chances) > 1 else ""
        return text + " (geometric means over the data)."
    values = [one.objective or 0.0 for one in ranked]
    text += f"The first has a log density of {values[0]:.3f} nats per datum"
    return text + (f", the second {values[1]:.3f}." if len(values) > 1 else ".")


def _ranks(study: Study) -> dict[int, tuple[int, int]]:
    """Return for each ranked trial 0 if it represents its architecture, else 1, and the rank."""
    return {
        trial_id: (int(trial_id != one.trial_id), one.rank)
        for one in study.ranking
        if one.rank is not None
        for trial_id in one.trial_ids
    }


def _label(trial_id: int, trial: Mapping[str, Any], rank: tuple[int, int] | None) -> str:
    where = f"rank {rank[1]}" if rank is not None else "not ranked"
    if trial["status"] != TrialStatus.COMPLETE.value:
        where = f"{trial['status']} at epoch {trial['epochs']}"
    words = architecture_text(str(trial["family"]), architecture_values(trial))
    return f"{where}: {words} (trial {trial_id})"


def _prior_precisions(own: pd.DataFrame) -> dict[int, list[float]]:
    """Return the learned prior precisions of each trial, one for each group of parameters."""
    learned = own[(own["term"] == "prior_precision") & (own["value"] > 0)]
    return learned.groupby("trial_id")["value"].agg(list).to_dict()


def _cells(
    trial: Mapping[str, Any], sums: Mapping[str, float], precisions: Sequence[float], kind: str
) -> dict[str, float]:
    """Return the cells of one trial from its sums over groups, missing ones left out."""
    missing = float("nan")
    parts = {
        name: factor * sums[term] / float(trial["n_data"])
        for term, factor, name in PARTS
        if term in sums
    }
    cells = {
        **parts,
        f"log evidence ({kind})": sum(value for value in parts.values() if not pd.isna(value)),
        "effective parameters": sums.get("effective_parameters", missing),
        "parameters": trial["n_parameters"],
        "smallest prior precision": min(precisions, default=missing),
        "largest prior precision": max(precisions, default=missing),
        "noise (standard deviation)": trial["noise_std"],
        "temperature": trial["temperature"],
        "gradient norm squared, nats": sums.get("gradient_norm_squared", missing),
    }
    return {name: float(value) for name, value in cells.items() if not pd.isna(value)}


def term_rows(compared: TermTable) -> pd.DataFrame:
    """Return the comparison as a table, one row per trial."""
    return pd.DataFrame(
        [{"trial_id": c.trial_id, "trial": c.label, **c.cells} for c in compared.columns],
        columns=["trial_id", "trial", *compared.rows],
    )


def gap_sentence(compared: TermTable) -> str:
    """Say how fit and complexity set the first two apart."""
    if compared.n_ranked < 2:
        return ""
    first, second = compared.columns[:2]
    names = compared.rows[: compared.n_parts]
    gaps = {
        name: first.cells[name] - second.cells[name]
        for name in names
        if name in first.cells and name in second.cells
    }
    if not gaps:
        return ""
    fit = gaps.get(PARTS[0][2], 0.0)
    complexity = sum(gaps.values()) - fit

    def part(gap: float, word: str) -> str:
        return f"{'gains' if gap >= 0 else 'loses'} {abs(gap):.4f} by {word}"

    return (
        "Against the second, the first "
        f"{part(fit, 'its fit')} and {part(complexity, 'its complexity')}, in nats per datum."
    )
