"""Why one architecture scores above another: the evidence of both, term by term.

    log evidence = fit - 1/2 scatter - 1/2 log det ratio        all in nats per datum

The fit is the log likelihood of the training data; scatter (how far the weights moved from the
prior mean) and the ratio of determinants (how much sharper the posterior is than the prior) are
the cost of complexity. By layer: the learned prior precision (large: the weights are held near
zero) and how many of its parameters the data determine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import pandas as pd

from nas_evidence.record import TrialStatus
from nas_evidence.registry import CURVATURES
from nas_evidence.reporting.tables import Study, architecture_text, architecture_values

#: Most layer values on a page; further trials come without their layers.
MAX_LAYER_CELLS = 120_000
#: Parts that add up to the evidence: term, factor and label.
PARTS: Sequence[tuple[str, float, str]] = (
    ("log_likelihood", 1.0, "fit: log likelihood of the training data"),
    ("scatter", -0.5, "complexity: distance of the weights from zero (-1/2 scatter)"),
    ("log_det_ratio", -0.5, "complexity: weights pinned down by the data (-1/2 log det ratio)"),
    ("at_mode_correction", 1.0, "correction for not being at a mode"),
)


@dataclass(frozen=True)
class Layer:
    """One group of parameters: its learned prior precision and effective parameters."""

    group: str
    prior_precision: float
    effective_parameters: float | None


@dataclass(frozen=True)
class Column:
    """One trial of the comparison; `cells` by row name, without missing ones."""

    trial_id: int
    label: str
    cells: Mapping[str, float]
    layers: tuple[Layer, ...]


@dataclass(frozen=True)
class Comparison:
    """Trials side by side, first one for each of the `n_ranked` architectures, by rank.

    The first `n_parts` rows add up to the next one.
    """

    n_ranked: int
    rows: tuple[str, ...]
    n_parts: int
    columns: tuple[Column, ...]


def comparison(study: Study) -> Comparison | None:
    """Return the parts of every trial's evidence, or None if no trial has any.

    First the trials that represent the ranked architectures, by rank, then their other seeds,
    then all other trials at their last evaluation. The evidence compared is the objective or, if
    that is not a Laplace evidence, the first estimator that is.
    """
    kinds = [name for name in study.scores if name in CURVATURES]
    if not kinds:
        return None
    own = study.terms[study.terms["estimator"] == kinds[0]]
    sums = own.pivot_table(index="trial_id", columns="term", values="value", aggfunc="sum")
    if "log_likelihood" not in sums:
        return None
    layers, ranks = _layers(own), _ranks(study)
    trials = study.trials.set_index("trial_id").to_dict("index")
    columns, room = [], MAX_LAYER_CELLS
    for trial_id in sorted(sums.index, key=lambda one: (*ranks.get(one, (2, 0)), one)):
        mine, trial = layers.get(trial_id, ()), trials[trial_id]
        room -= 2 * len(mine)
        label = _label(trial_id, trial, ranks.get(trial_id))
        cells = _cells(trial, sums.loc[trial_id], mine, kinds[0])
        columns.append(Column(int(trial_id), label, cells, mine if room >= 0 else ()))
    total = f"log evidence ({kinds[0]})"
    parts = [name for term, _, name in PARTS if term in sums]
    others = (
        "effective parameters", "parameters", "smallest prior precision",
        "largest prior precision", "noise (standard deviation)", "temperature",
        "gradient norm squared, nats",
    )  # fmt: skip
    present = {name for column in columns for name in column.cells}
    rows = [*parts, total, *(name for name in others if name in present)]
    n_ranked = sum(ranks.get(column.trial_id, (2, 0))[0] == 0 for column in columns)
    return Comparison(n_ranked, tuple(rows), len(parts), tuple(columns))


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


def _layers(own: pd.DataFrame) -> dict[int, tuple[Layer, ...]]:
    """Return the groups with a prior of each trial, in network order."""
    shown = own[own["term"].isin(["prior_precision", "effective_parameters"])]
    found: dict[int, dict[str, dict[str, float]]] = {}
    columns = (shown[name] for name in ("trial_id", "group", "term", "value"))
    for trial_id, group, term, value in zip(*columns, strict=True):
        found.setdefault(int(trial_id), {}).setdefault(str(group), {})[str(term)] = float(value)
    return {
        trial_id: tuple(
            Layer(group, terms["prior_precision"], terms.get("effective_parameters"))
            for group, terms in groups.items()
            if terms.get("prior_precision", 0.0) > 0
        )
        for trial_id, groups in found.items()
    }


def _cells(
    trial: Mapping[str, Any], sums: pd.Series, layers: Sequence[Layer], kind: str
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
        "smallest prior precision": min((one.prior_precision for one in layers), default=missing),
        "largest prior precision": max((one.prior_precision for one in layers), default=missing),
        "noise (standard deviation)": trial["noise_std"],
        "temperature": trial["temperature"],
        "gradient norm squared, nats": sums.get("gradient_norm_squared", missing),
    }
    return {name: float(value) for name, value in cells.items() if not pd.isna(value)}


def term_rows(compared: Comparison) -> pd.DataFrame:
    """Return the comparison as a table, one row per trial."""
    return pd.DataFrame(
        [{"trial_id": c.trial_id, "trial": c.label, **c.cells} for c in compared.columns],
        columns=["trial_id", "trial", *compared.rows],
    )


def layer_rows(compared: Comparison) -> pd.DataFrame:
    """Return the layers as a table, one row per trial and group of parameters."""
    return pd.DataFrame(
        [{"trial_id": c.trial_id, **asdict(one)} for c in compared.columns for one in c.layers],
        columns=["trial_id", *(field.name for field in fields(Layer))],
    )


def page_data(compared: Comparison) -> list[dict[str, object]]:
    """Return the data of each trial for the page's script, with more digits than shown."""
    return [
        {
            "label": column.label,
            "cells": [_rounded(column.cells.get(row)) for row in compared.rows],
            "layers": [
                [one.group, _rounded(one.prior_precision), _rounded(one.effective_parameters)]
                for one in column.layers
            ],
        }
        for column in compared.columns
    ]


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.7g}")


def gap_sentence(compared: Comparison) -> str:
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
