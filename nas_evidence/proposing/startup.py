"""Architectures chosen without results: fixed, quasi-random, grid and random.

Each is a pure function of the study (and a seed), so that no random state has to survive a crash.
A scrambled Sobol sequence in [0, 1)^d covers the d parameters of one family evenly (Sobol 1967;
Owen 1998); `Domain.at` maps a coordinate to a value. Families take turns, so that each gets its
share of start-up trials; a family with a single member, the reference model, comes first.
"""

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping

import numpy as np
from scipy.stats import qmc

from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.coordinates import Domains, Space, values_at
from nas_evidence.spec.domains import (
    Choice,
    Domain,
    IntRange,
    ParameterValue,
    described,
    type_of,
)
from nas_evidence.spec.study import (
    FAMILY_DEFAULTS,
    NUMBERS,
    PLAIN,
    ArchitectureSpec,
    StudySpec,
    derive_seed,
    is_plain,
)

#: Quasi-random architectures of each family before the sampler starts.
STARTUP_PER_FAMILY = 6
#: Rows of a Sobol sequence drawn at a time, a power of two; and the number of blocks without a new
#: architecture after which the family counts as exhausted.
_BLOCK, _MAX_OLD_BLOCKS = 64, 256


def startup_points(
    study: StudySpec, known: Collection[ArchitectureSpec] = ()
) -> list[ArchitectureSpec]:
    """Return the architectures tried before the sampler uses results, in order.

    The fixed points of the study, the families with a single member, then
    `STARTUP_PER_FAMILY` quasi-random points of each other family in turn, fewer if some of its
    architectures are `known` already. For a grid, its first `n_trials` architectures.

    Raises:
        ValueError: if a fixed point is not in the space.
    """
    first = first_points(study)
    if study.sampler.name == "grid":
        rest = list(itertools.islice(grid_points(study), study.n_trials))
    else:
        taken = Counter(architecture.family for architecture in known)
        single, others = _split(study)
        left = {family: max(0, STARTUP_PER_FAMILY - taken[family]) for family in others}
        columns = [list(itertools.islice(_sobol(study, f), n)) for f, n in left.items()]
        rest = [_default(f, study) for f in single] + list(_in_turns(columns))
    taken_keys = {architecture.key for architecture in known}
    points = {point.key: point for point in [*first, *rest] if point.key not in taken_keys}
    return list(points.values())


def first_points(study: StudySpec) -> list[ArchitectureSpec]:
    """Return the points of `study.first`, completed by the family's values where not searched.

    Raises:
        ValueError: if one names no family, misses a searched parameter, or is not in the space.
    """
    return [_first_point(study, number) for number in range(len(study.first))]


def misfit(study: StudySpec, architecture: ArchitectureSpec) -> str | None:
    """Return why `architecture` is not in the space of the study, or None if it is."""
    family = architecture.family
    if family not in study.family:
        return f"`family` must be one of {', '.join(study.family)}, but got {family!r}"
    domains, fixed = study.family[family], FAMILY_DEFAULTS.get(family, {})
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


def as_searched(study: StudySpec, architecture: ArchitectureSpec) -> ArchitectureSpec:
    """Return an architecture with `numbers = "plain"` where the study lists it, and only there."""
    family, domains = architecture.family, study.family.get(architecture.family, {})
    values = {k: v for k, v in architecture.values.items() if not is_plain(family, k, v)}
    added = {NUMBERS: PLAIN} if is_plain(family, NUMBERS, PLAIN) and NUMBERS in domains else {}
    return ArchitectureSpec(family=family, values={**values, **added})


def searched(study: StudySpec) -> list[str]:
    """Return the families for the sampler: those with more than one member, or all."""
    return _split(study)[1] or list(study.family)


def searched_domains(study: StudySpec) -> Domains:
    """Return the domains of the families that are searched."""
    return {family: study.family[family] for family in searched(study)}


def quasi_random_points(study: StudySpec) -> Iterator[ArchitectureSpec]:
    """Yield different architectures, one family after another in turn, until none is left."""
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
    """Return a random architecture: a searched family and a point of it."""
    return filled(*Space(searched_domains(study)).random(np.random.default_rng(seed)))


def filled(family: str, values: Mapping[str, ParameterValue]) -> ArchitectureSpec:
    """Return the architecture, with the family's own values for parameters not searched."""
    return ArchitectureSpec(family=family, values={**FAMILY_DEFAULTS.get(family, {}), **values})


def _first_point(study: StudySpec, number: int) -> ArchitectureSpec:
    point = dict(study.first[number])
    place = f"see entry {number + 1} of `first`"
    family = point.pop("family", None)
    if not isinstance(family, str) or family not in study.family:
        raise UserError(
            "first-trial-family",
            f"`family` must be one of {', '.join(study.family)}, but got {family!r}; {place}.",
        )
    for name, value in point.items():
        domain = study.family[family].get(name)
        if type(value) is int and domain is not None and type_of(domain) is float:
            point[name] = float(value)  # as tables and proposals have it
    architecture = as_searched(study, ArchitectureSpec(family=family, values=point))
    if reason := misfit(study, architecture):
        raise UserError("first-trial-outside-space", f"{reason}; {place}.")
    return filled(family, architecture.values)


def _split(study: StudySpec) -> tuple[list[str], list[str]]:
    """Return the families with a single member, and the others."""
    sizes = {f: math.prod(d.size for d in domains.values()) for f, domains in study.family.items()}
    return [f for f in sizes if sizes[f] == 1], [f for f in sizes if sizes[f] > 1]


def _default(family: str, study: StudySpec) -> ArchitectureSpec:
    domains = study.family[family]
    return filled(family, values_at(domains, np.zeros(len(domains))))


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
            point = filled(family, values_at(domains, row))
            if point.key not in seen:
                old_blocks = 0
                seen.add(point.key)
                yield point


def _options(domain: Domain) -> list[ParameterValue]:
    if isinstance(domain, Choice):
        return list(domain.options)
    if isinstance(domain, IntRange):
        return list(range(domain.low, domain.high + 1, domain.step))
    return [domain.low]  # in a grid a FloatRange is a single point: StudySpec checks
