"""Architectures as points: the one map between the values of parameters and coordinates.

A parameter with an order is one coordinate that all families share, the quantile of the family's
own domain (docs/decisions/0007-shared-names-in-tpe.md); a choice without order belongs to its
family. An architecture that lacks a parameter is in the middle of it, or at an option of its own.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from nas_evidence.spec.domains import Choice, Domain, IntRange, ParameterValue

#: A quantile, or one of the options of a choice without order, by name.
Coordinates = dict[str, Any]
#: The domain of each key of each family.
Domains = Mapping[str, Mapping[str, Domain]]


def is_ordered(domain: Domain) -> bool:
    """Return whether the values are numbers that increase with the quantile."""
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
    if isinstance(domain, IntRange):  # each member covers half a unit on either side
        low, high = low - 0.5, high + 0.5
    return math.log(number / low) / math.log(high / low)


def values_at(domains: Mapping[str, Domain], row: Iterable[float]) -> dict[str, ParameterValue]:
    """Return the values of one family at the quantiles of a row, one for each key."""
    return {key: d.at(float(u)) for (key, d), u in zip(domains.items(), row, strict=True)}


class Named(Protocol):
    """An architecture, whatever else is known of it."""

    @property
    def family(self) -> str:
        """Return its family."""

    @property
    def values(self) -> Mapping[str, ParameterValue]:
        """Return the values of its parameters."""


class Candidate(NamedTuple):
    """An architecture by its searched parameters alone."""

    family: str
    values: Mapping[str, ParameterValue]


class Space:
    """The architectures of some families, and their coordinates.

    options    by name of a coordinate: its options, or None for a quantile
    ordered    whether each is a quantile [d]

    >>> space = Space({"mlp": {"depth": IntRange(low=1, high=4)}, "linear": {}})
    >>> space.coordinates(Candidate("mlp", {"depth": 3}))
    {'family': 'mlp', 'depth': 0.625}
    >>> space.values({"family": "mlp", "depth": 0.625})
    Candidate(family='mlp', values={'depth': 3})
    """

    def __init__(self, domains: Domains) -> None:
        self.domains, self.families = domains, list(domains)
        self.options: dict[str, Sequence[ParameterValue] | None] = {}
        if len(domains) > 1:
            self.options["family"] = self.families
        self._names = {
            family: {key: key if is_ordered(d) else f"{family}.{key}" for key, d in own.items()}
            for family, own in domains.items()
        }
        for family, own in domains.items():
            for key, domain in own.items():
                name = self._names[family][key]
                self.options[name] = None
                if isinstance(domain, Choice) and not is_ordered(domain):
                    self.options[name] = domain.options
        self.ordered = [one is None for one in self.options.values()]

    def __contains__(self, one: Named) -> bool:
        own = self.domains.get(one.family)
        return own is not None and all(
            key in one.values and domain.contains(one.values[key]) for key, domain in own.items()
        )

    def names(self, family: str) -> list[str]:
        """Return the coordinates that a family has, beside `family`."""
        return list(self._names[family].values())

    def coordinates(self, one: Named) -> Coordinates:
        """Return the coordinates of an architecture of one of the families."""
        found: Coordinates = {"family": one.family} if len(self.families) > 1 else {}
        for key, name in self._names[one.family].items():
            value = one.values[key]
            ordered = self.options[name] is None
            found[name] = quantile(self.domains[one.family][key], value) if ordered else value
        return found

    def values(self, coordinates: Coordinates) -> Candidate:
        """Return the architecture at coordinates."""
        family = str(coordinates.get("family", self.families[0]))
        own = self.domains[family]
        return Candidate(
            family,
            {
                key: own[key].at(coordinates[name])
                if self.options[name] is None
                else coordinates[name]
                for key, name in self._names[family].items()
            },
        )

    def points(self, architectures: Iterable[Named]) -> NDArray[np.float64]:
        """Return the coordinates of architectures [n, d], options as their positions."""
        rows = [self.coordinates(one) for one in architectures]
        found = np.empty((len(rows), len(self.options)))
        for k, (name, options) in enumerate(self.options.items()):
            for i, row in enumerate(rows):
                if options is None:
                    found[i, k] = row.get(name, 0.5)
                else:
                    found[i, k] = options.index(row[name]) if name in row else -1
        return found

    def random(self, rng: np.random.Generator) -> Candidate:
        """Return a random architecture: a family, and a point of it."""
        family = self.families[int(rng.integers(len(self.families)))]
        own = self.domains[family]
        return Candidate(family, values_at(own, rng.random(len(own))))

    def varied(self, one: Named, rng: np.random.Generator) -> Candidate:
        """Return an architecture that differs in one parameter of its family at most."""
        own = self.domains[one.family]
        values = {key: one.values[key] for key in own}
        if own:
            key = str(rng.choice(list(own)))
            values[key] = own[key].at(float(rng.random()))
        return Candidate(one.family, values)
