"""Why one architecture scores above another: the evidence of both, term by term.

    log evidence = fit - 1/2 scatter - 1/2 log det ratio        all in nats per datum

The fit is the log likelihood of the training data; scatter (how far the weights went from the
prior mean) and the ratio of determinants (how much sharper the posterior is than the prior) are
what the complexity costs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from nas_evidence.report.tables import RankedArchitecture, Study
from nas_evidence.spec import LAPLACE_KINDS

#: Architectures that can be put side by side, best first.
MAX_COMPARED = 200
#: Parts that add up to the evidence: term, its factor and what it is called.
PARTS: Sequence[tuple[str, float, str]] = (
    ("log_likelihood", 1.0, "fit: log likelihood of the training data"),
    ("scatter", -0.5, "complexity: distance of the weights from zero (-1/2 scatter)"),
    ("log_det_ratio", -0.5, "complexity: weights pinned down by the data (-1/2 log det ratio)"),
    ("at_mode_correction", 1.0, "correction for not being at a mode"),
)


@dataclass(frozen=True)
class Column:
    """One architecture of the comparison; `cells` by row name, missing ones absent."""

    label: str
    cells: Mapping[str, float]


@dataclass(frozen=True)
class Comparison:
    """Architectures side by side; the first `n_parts` rows add up to the next one."""

    rows: tuple[str, ...]
    n_parts: int
    columns: tuple[Column, ...]


def comparison(study: Study) -> Comparison | None:
    """Return the evidence of the ranked architectures in parts, or None where it has none.

    Each is shown by the trial that stands for it. The evidence compared is the objective, or where
    that is no Laplace evidence the first estimator that is one.
    """
    kinds = [name for name in study.scores if name in LAPLACE_KINDS]
    ranked = [one for one in study.ranking if one.rank is not None][:MAX_COMPARED]
    if not kinds or not ranked:
        return None
    own = study.terms[study.terms["estimator"] == kinds[0]]
    sums = own.pivot_table(index="trial_id", columns="term", values="value", aggfunc="sum")
    prior = own[(own["term"] == "prior_precision") & (own["value"] > 0)]
    precision = prior.groupby("trial_id")["value"].agg(["min", "max"])
    if "log_likelihood" not in sums:
        return None
    columns = [_column(study, one, sums, precision, kinds[0]) for one in ranked]
    total = f"log evidence ({kinds[0]})"
    parts = [name for term, _, name in PARTS if term in sums]
    others = (
        "effective parameters", "parameters", "smallest prior precision",
        "largest prior precision", "noise (standard deviation)", "temperature",
        "gradient norm squared, nats",
    )  # fmt: skip
    present = {name for column in columns for name in column.cells}
    rows = [*parts, total, *(name for name in others if name in present)]
    return Comparison(tuple(rows), len(parts), tuple(columns))


def _column(
    study: Study,
    one: RankedArchitecture,
    sums: pd.DataFrame,
    precision: pd.DataFrame,
    kind: str,
) -> Column:
    trial = study.complete.loc[one.trial_id]
    label = f"rank {one.rank}: {one.architecture} (trial {one.trial_id})"
    cells: dict[str, float] = {"parameters": one.costs.get("n_parameters", float("nan"))}
    cells["noise (standard deviation)"] = float(trial["noise_std"])
    cells["temperature"] = float(trial["temperature"])
    if one.trial_id in sums.index:
        terms = sums.loc[one.trial_id]
        n_data = float(trial["n_data"])
        parts = {
            name: factor * terms[term] / n_data for term, factor, name in PARTS if term in terms
        }
        cells |= parts
        cells[f"log evidence ({kind})"] = sum(v for v in parts.values() if not pd.isna(v))
        cells["effective parameters"] = float(terms.get("effective_parameters", float("nan")))
        cells["gradient norm squared, nats"] = float(
            terms.get("gradient_norm_squared", float("nan"))
        )
    if one.trial_id in precision.index:
        cells["smallest prior precision"] = float(precision.loc[one.trial_id, "min"])
        cells["largest prior precision"] = float(precision.loc[one.trial_id, "max"])
    return Column(label, {name: value for name, value in cells.items() if not pd.isna(value)})


def term_rows(compared: Comparison) -> pd.DataFrame:
    """Return the comparison as a table, one row an architecture."""
    return pd.DataFrame(
        [{"architecture": column.label, **column.cells} for column in compared.columns],
        columns=["architecture", *compared.rows],
    )


def gap_sentence(compared: Comparison) -> str:
    """Say which part of the evidence sets the first two apart most."""
    if len(compared.columns) < 2:
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
