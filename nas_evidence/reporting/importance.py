"""Importance of the family, and of each family's parameters, for the score."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nas_evidence.maths.ped_anova import Grid, Integers, ordered_cells, pearson_divergence
from nas_evidence.reporting.correlations import ALL
from nas_evidence.reporting.study_tables import RankedArchitecture, RankedStudy
from nas_evidence.spec.domains import Choice, Domain, IntRange, ParameterValue

#: Share of the architectures that counts as the best, and the smallest number that does.
BEST_SHARE = 0.25
MIN_BEST = 4
#: With fewer architectures than this there is no result.
MIN_TRIALS = 10
#: Maximum number of cells of a grid.
MAX_CELLS = 50


@dataclass(frozen=True)
class ParameterImportance:
    """How important one parameter is within a group ("all" or a family) of n architectures.

    divergence  of the best from all, 0 if these are distributed alike; a parameter without
                influence has some, too (`maths/ped_anova.py`)
    share       of the group's summed divergence, None for its only parameter
    of_best     values of the best n_best; of_all those of all n
    """

    group: str
    parameter: str
    n: int
    n_best: int
    divergence: float
    share: float | None
    of_best: str
    of_all: str

    @property
    def name(self) -> str:
        """Return the parameter, with its family if it has one."""
        return self.parameter if self.group == ALL else f"{self.parameter} of {self.group}"


def importances(study: RankedStudy) -> list[ParameterImportance]:
    """Return how much the family, and each parameter within a family, affects the objective."""
    ranked = [one for one in study.ranking if one.objective is not None]
    if len(ranked) < MIN_TRIALS:
        return []
    families = sorted({one.family for one in ranked})
    names: dict[str, list[ParameterValue]] = {"family": [one.family for one in ranked]}
    found = _group(ALL, ranked, names, {"family": Choice(options=tuple(families))})
    for family in families:
        own = [one for one in ranked if one.family == family]
        domains = study.spec.family.get(family, {})
        values = {
            name: [one.values[name] for one in own]
            for name, domain in domains.items()
            if all(name in one.values and _known(one.values[name], domain) for one in own)
        }
        found += _group(family, own, values, domains)
    return found


def importance_sentence(found: Sequence[ParameterImportance]) -> str:
    """Say in which parameter the best architectures differ most from all."""
    if not found:
        return (
            "Which parameters matter is unknown: this takes at least "
            f"{MIN_TRIALS} ranked architectures, or as many of one family."
        )
    one = max(found, key=lambda one: one.divergence)
    return (
        f"The best architectures differ most from all in {one.name} ({one.of_best} among the "
        f"best {one.n_best}, {one.of_all} among all {one.n}). That may be chance."
    )


def _group(
    group: str,
    ranked: Sequence[RankedArchitecture],
    values: Mapping[str, Sequence[ParameterValue]],
    domains: Mapping[str, Domain],
) -> list[ParameterImportance]:
    n = len(ranked)
    if n < MIN_TRIALS:
        return []
    n_best = max(MIN_BEST, math.ceil(BEST_SHARE * n))
    found = {}
    for name, own in values.items():
        axis, cells = _cells(own, domains[name])
        if axis.cells > 1:
            found[name] = pearson_divergence(cells, axis, n_best=n_best)
    total = sum(found.values())
    rows = [
        ParameterImportance(
            group,
            name,
            n,
            n_best,
            divergence,
            (divergence / total if total > 0 else 0.0) if len(found) > 1 else None,
            of_best=_spread(values[name][:n_best]),
            of_all=_spread(values[name]),
        )
        for name, divergence in found.items()
    ]
    return sorted(rows, key=lambda row: -row.divergence)


def _known(value: ParameterValue, domain: Domain) -> bool:
    """Return whether a value is on the grid of its domain; an older study's may not be."""
    return not isinstance(domain, Choice) or str(value) in map(str, domain.options)


def _cells(values: Sequence[ParameterValue], domain: Domain) -> tuple[Grid, Integers]:
    if isinstance(domain, Choice):
        options = list(map(str, domain.options))
        cells = np.array([options.index(str(value)) for value in values])
        return Grid(len(options), ordered=False), cells
    m = MAX_CELLS
    if isinstance(domain, IntRange):
        n = int(domain.size)
        m = min(m, math.ceil(math.log2(n)) + 1 if domain.log and n > 1 else n)
    numbers = [float(value) for value in values]
    cells = ordered_cells(numbers, low=domain.low, high=domain.high, log=domain.log, m=m)
    return Grid(m, ordered=True), cells


def _spread(values: Sequence[ParameterValue]) -> str:
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        low, high = min(values, key=float), max(values, key=float)
        return f"{low:g}" if low == high else f"{low:g} to {high:g}"
    return ", ".join(f"{n} {value}" for value, n in Counter(values).most_common())
