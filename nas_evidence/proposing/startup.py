"""Architectures chosen without looking at results: fixed, quasi-random, grid, and by chance.

Each is a pure function of the study (and of a seed), so that no random state has to survive a
crash. A scrambled Sobol sequence in [0, 1)^d fills the d parameters of one family evenly
(Sobol 1967; Owen 1998); `Domain.at` maps a coordinate to a value. Families take turns, so that
none is judged by an accident of sampling, and a family with a single member, the yardstick,
comes before them.
"""

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping

import numpy as np
from scipy.stats import qmc

from nas_evidence.domains import Choice, Domain, IntRange, ParameterValue, described
from nas_evidence.spec import FAMILY_DEFAULTS, ArchitectureSpec, StudySpec, derive_seed

#: Rows of a Sobol sequence drawn at a time, a power of two; and how many such blocks without a
#: new architecture say that there is none left.
_BLOCK, _MAX_OLD_BLOCKS = 64, 256


def startup_points(
    study: StudySpec, known: Collection[ArchitectureSpec] = ()
) -> list[ArchitectureSpec]:
    """Return the architectures tried before a sampler looks at results, in order.

    The fixed points of the study, the families with a single member, and of the others
    `startup_per_family` quasi-random points in turns, fewer for families of which some
    architectures are `known` already. For a grid, all of it that `n_trials` can hold.

    Raises:
        ValueError: if a fixed point is not in the space.
    """
    first = first_points(study)
    if study.sampler.name == "grid":
        rest = list(itertools.islice(grid_points(study), study.n_trials))
    else:
        taken = Counter(architecture.family for architecture in known)
        single, others = _split(study)
        columns = [
            list(itertools.islice(_sobol(study, f), _left(study, taken[f]))) for f in others
        ]
        rest = [_default(f, study) for f in single] + list(_in_turns(columns))
    taken_keys = {architecture.key for architecture in known}
    points = {point.key: point for point in [*first, *rest] if point.key not in taken_keys}
    return list(points.values())


def first_points(study: StudySpec) -> list[ArchitectureSpec]:
    """Return the fixed points of `study.first`, with the family's values for what is not searched.

    Raises:
        ValueError: if one names no family, misses a searched parameter, or is not in the space.
    """
    return [_first_point(study, number) for number in range(len(study.first))]


def misfit(study: StudySpec, architecture: ArchitectureSpec) -> str | None:
    """Return why `architecture` is not in the space of the study, or None where it is."""
    family = architecture.family
    if family not in study.family:
        return f"`family` must be one of {', '.join(study.family)}, but got {family!r}"
    domains, fixed = study.family[family], FAMILY_DEFAULTS[family]
    for name, value in architecture.values.items():
        if name in domains and not domains[name].contains(value):
            allowed = described(domains[name])
            return f"`{name}` of family {family!r} must be in {allowed}, but got {value!r}"
        if name not in domains and (name not in fixed or fixed[name] != value):
            known = f"stays {fixed[name]!r}" if name in fixed else "does not exist"
            return f"`{name}` of family {family!r} is not searched and {known}, but got {value!r}"
    if missing := [name for name in domains if name not in architecture.values]:
        return f"`{missing[0]}` of family {family!r} is searched and needs a value"
    return None


def searched(study: StudySpec) -> list[str]:
    """Return the families left to a sampler: those with more than one member, or all."""
    return _split(study)[1] or list(study.family)


def quasi_random_points(study: StudySpec) -> Iterator[ArchitectureSpec]:
    """Yield different architectures, the families in turns, until none is left."""
    single, others = _split(study)
    yield from (_default(family, study) for family in single)
    yield from _in_turns([_sobol(study, family) for family in others])


def grid_points(study: StudySpec) -> Iterator[ArchitectureSpec]:
    """Yield every architecture of a finite space once, the families with one member first."""
    single, others = _split(study)
    for family in [*single, *others]:
        domains = study.family[family]
        for values in itertools.product(*map(_options, domains.values())):
            yield filled(family, dict(zip(domains, values, strict=True)))


def random_point(study: StudySpec, seed: int) -> ArchitectureSpec:
    """Return an architecture by chance: a searched family, and a point of it."""
    generator = np.random.default_rng(seed)
    families = searched(study)
    family = families[int(generator.integers(len(families)))]
    domains = study.family[family]
    return filled(family, _at(domains, generator.random(len(domains))))


def filled(family: str, values: Mapping[str, ParameterValue]) -> ArchitectureSpec:
    """Return the architecture with the family's own values for parameters not searched over."""
    return ArchitectureSpec(family=family, values={**FAMILY_DEFAULTS[family], **values})


def is_ordered(domain: Domain) -> bool:
    """Tell whether the values are numbers that grow with the quantile."""
    if not isinstance(domain, Choice):
        return True
    numbers = [o for o in domain.options if isinstance(o, int | float) and not isinstance(o, bool)]
    return numbers == sorted(set(numbers)) and len(numbers) == len(domain.options)


def quantile(domain: Domain, value: ParameterValue) -> float:
    """Return the middle of the quantiles that `domain.at` maps to a member of an ordered domain.

    >>> quantile(IntRange(low=1, high=4), 3)
    0.625
    """
    if isinstance(domain, Choice):
        return (domain.options.index(value) + 0.5) / len(domain.options)
    number = float(value)
    if isinstance(domain, IntRange) and not domain.log:
        return ((number - domain.low) / domain.step + 0.5) / domain.size
    if domain.low == domain.high:
        return 0.5
    if not domain.log:
        return (number - domain.low) / (domain.high - domain.low)
    low, high = float(domain.low), float(domain.high)
    if isinstance(domain, IntRange):  # each member has the half unit on either side of it
        low, high = low - 0.5, high + 0.5
    return math.log(number / low) / math.log(high / low)


def _first_point(study: StudySpec, number: int) -> ArchitectureSpec:
    point = dict(study.first[number])
    place = f"see entry {number + 1} of `first`"
    family = point.pop("family", None)
    if not isinstance(family, str) or family not in study.family:
        raise ValueError(
            f"`family` must be one of {', '.join(study.family)}, but got {family!r}; {place}."
        )
    architecture = ArchitectureSpec(family=family, values=point)
    if reason := misfit(study, architecture):
        raise ValueError(f"{reason}; {place}.")
    return filled(family, point)


def _split(study: StudySpec) -> tuple[list[str], list[str]]:
    """Return the families with a single member, and the others."""
    sizes = {f: math.prod(d.size for d in domains.values()) for f, domains in study.family.items()}
    return [f for f in sizes if sizes[f] == 1], [f for f in sizes if sizes[f] > 1]


def _left(study: StudySpec, taken: int) -> int:
    return max(0, study.sampler.startup_per_family - taken)


def _default(family: str, study: StudySpec) -> ArchitectureSpec:
    domains = study.family[family]
    return filled(family, _at(domains, np.zeros(len(domains))))


def _in_turns(
    columns: list[list[ArchitectureSpec]] | list[Iterator[ArchitectureSpec]],
) -> Iterator[ArchitectureSpec]:
    for turn in itertools.zip_longest(*columns):
        yield from (point for point in turn if point is not None)


def _sobol(study: StudySpec, family: str) -> Iterator[ArchitectureSpec]:
    """Yield different architectures of one family with more than one member."""
    domains = study.family[family]
    members = math.prod(domain.size for domain in domains.values())
    seed = derive_seed(study.seed, "startup", family) % 2**32
    sobol = qmc.Sobol(len(domains), scramble=True, seed=seed)
    seen: set[str] = set()
    old_blocks = 0
    while len(seen) < members and old_blocks < _MAX_OLD_BLOCKS:
        old_blocks += 1
        for row in sobol.random(_BLOCK):
            point = filled(family, _at(domains, row))
            if point.key not in seen:
                old_blocks = 0
                seen.add(point.key)
                yield point


def _at(domains: Mapping[str, Domain], row: np.ndarray) -> dict[str, ParameterValue]:
    return {name: d.at(float(u)) for (name, d), u in zip(domains.items(), row, strict=True)}


def _options(domain: Domain) -> list[ParameterValue]:
    if isinstance(domain, Choice):
        return list(domain.options)
    if isinstance(domain, IntRange):
        return list(range(domain.low, domain.high + 1, domain.step))
    return [domain.low]  # a FloatRange is in a grid only if it is a point: checked by StudySpec
