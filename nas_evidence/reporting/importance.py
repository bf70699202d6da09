"""Importance of the family, and of each family's parameters, for the score."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nas_evidence.maths.ped_anova import (
    BEST_SHARE,
    MIN_BEST,
    MIN_TRIALS,
    N_SHUFFLES,
    Axis,
    holm,
    ordered_cells,
    ped_anova,
)
from nas_evidence.reporting.correlations import ALL
from nas_evidence.reporting.study_tables import RankedArchitecture, Study
from nas_evidence.spec.domains import Choice, FloatRange, IntRange, ParameterValue

#: Most cells of a grid.
MAX_CELLS = 50
#: A parameter counts as important if, after the correction for testing many, at most this share
#: of random choices looks as important.
BY_CHANCE = 0.05
#: These choose trials by the scores so far, near lucky ones: chance alone makes the best alike.
_ADAPTIVE = ("posterior", "tpe")


@dataclass(frozen=True)
class ParameterImportance:
    """How important one parameter is within a group ("all" or a family) of n architectures.

    share    share of the group's summed divergence, None for its only parameter
    chance   how often the best of as many parameters without influence would look as different
             (see `maths/ped_anova.py`; corrected by Holm 1979 over all rows); None where the
             sampler chose the trials by their scores
    of_best  values of the best n_best; of_all those of all n
    """

    group: str
    parameter: str
    n: int
    n_best: int
    divergence: float
    share: float | None
    chance: float | None
    of_best: str
    of_all: str


def importances(study: Study) -> list[ParameterImportance]:
    """Return how much the family, and each parameter within a family, affects the objective."""
    ranked = [one for one in study.ranking if one.objective is not None]
    families = sorted({one.family for one in ranked})
    found = []
    # Enough that each of so many tests can still fall below BY_CHANCE.
    n_tests = 1 + sum(map(len, study.spec.family.values()))
    n_shuffles = max(N_SHUFFLES, math.ceil(2 * n_tests / BY_CHANCE))
    if study.spec.sampler.name in _ADAPTIVE:
        n_shuffles = 0
    how = {"seed": study.spec.seed, "n_shuffles": n_shuffles}
    if len(families) > 1:
        axis = Axis(len(families), ordered=False)
        cells = {"family": [families.index(one.family) for one in ranked]}
        names: dict[str, list[ParameterValue]] = {"family": [one.family for one in ranked]}
        found += _group(ALL, ranked, {"family": axis}, cells, names, **how)
    for family in families:
        own = [one for one in ranked if one.family == family]
        domains = study.spec.family.get(family, {})
        axes, cells, values = {}, {}, {}
        for name, domain in domains.items():
            if all(name in one.values and _known(one.values[name], domain) for one in own):
                values[name] = [one.values[name] for one in own]
                axes[name], cells[name] = _cells(values[name], domain)
        axes = {name: axis for name, axis in axes.items() if axis.cells > 1}
        found += _group(family, own, axes, cells, values, **how)
    if not n_shuffles:
        return [replace(one, chance=None) for one in found]
    adjusted = holm([one.chance for one in found if one.chance is not None])
    return [replace(one, chance=p) for one, p in zip(found, adjusted, strict=True)]


def importance_sentence(found: Sequence[ParameterImportance]) -> str:
    """Say which parameters matter, beyond chance where the sampler allows to tell."""
    if not found:
        return (
            "Which parameters matter is unknown: this takes at least "
            f"{MIN_TRIALS} ranked architectures, or as many of one family."
        )
    by_scores = found[0].chance is None
    sure = [one for one in found if one.chance is not None and one.chance <= BY_CHANCE]
    if by_scores:
        sure = [max(found, key=lambda one: one.divergence)]
    if not sure:
        return (
            "No parameter stands out: the best architectures are no more alike than as many "
            "random ones."
        )
    named = [
        f"{one.parameter}{'' if one.group == ALL else f' of {one.group}'} "
        f"({one.of_best} among the best {one.n_best}, {one.of_all} among all {one.n})"
        for one in sorted(sure, key=lambda one: -one.divergence)
    ]
    if by_scores:
        return (
            f"Of these trials the best differ most from all in {named[0]}. That may be chance: "
            "the sampler chose the trials by the scores so far."
        )
    return f"What sets the best apart beyond chance: {'; '.join(named)}."


def _group(
    group: str,
    ranked: Sequence[RankedArchitecture],
    axes: Mapping[str, Axis],
    cells: Mapping[str, Sequence[int]],
    values: Mapping[str, Sequence[ParameterValue]],
    *,
    seed: int,
    n_shuffles: int,
) -> list[ParameterImportance]:
    scores = [one.objective or 0.0 for one in ranked]  # best first
    n_best = max(MIN_BEST, math.ceil(BEST_SHARE * len(scores)))
    found = ped_anova(cells, scores, axes=axes, seed=seed, n_best=n_best, n_shuffles=n_shuffles)
    rows = [
        ParameterImportance(
            group,
            name,
            len(scores),
            n_best,
            one.divergence,
            one.share if len(found) > 1 else None,
            one.chance,
            of_best=_spread(values[name][:n_best]),
            of_all=_spread(values[name]),
        )
        for name, one in found.items()
    ]
    return sorted(rows, key=lambda row: -row.divergence)


def _known(value: ParameterValue, domain: IntRange | FloatRange | Choice) -> bool:
    """Return whether a value is on the grid of its domain; an older study's may not be."""
    return not isinstance(domain, Choice) or str(value) in map(str, domain.options)


def _cells(
    values: Sequence[ParameterValue], domain: IntRange | FloatRange | Choice
) -> tuple[Axis, list[int]]:
    """Return the grid of a domain and the cell of each value."""
    if isinstance(domain, Choice):
        options = list(map(str, domain.options))
        return Axis(len(options), ordered=False), [options.index(str(value)) for value in values]
    m = MAX_CELLS
    if isinstance(domain, IntRange):
        n = int(domain.size)
        m = min(m, math.ceil(math.log2(n)) + 1 if domain.log and n > 1 else n)
    numbers = [float(value) for value in values]
    cells = ordered_cells(numbers, low=domain.low, high=domain.high, log=domain.log, m=m)
    return Axis(m, ordered=True), cells.tolist()


def _spread(values: Sequence[ParameterValue]) -> str:
    """Return values in a few words: a range of numbers, or the counts of each value."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        low, high = min(values, key=float), max(values, key=float)
        return f"{low:g}" if low == high else f"{low:g} to {high:g}"
    return ", ".join(f"{n} {value}" for value, n in Counter(values).most_common())
