"""Architectures as points: what a sampler and a posterior see of them.

A parameter with an order is one coordinate that all families share, the quantile of the family's
own domain (docs/decisions/0007-shared-names-in-tpe.md); a choice without order belongs to its
family. An architecture that lacks a parameter is in the middle of it, or at an option of its own.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nas_evidence.spec.domains import Choice, Domain, IntRange, ParameterValue

#: A quantile, or one of the options of a choice without order, by name.
Parameters = dict[str, Any]
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


def parameter_name(family: str, key: str, domain: Domain) -> str:
    """Return what a key of a family is called as a parameter."""
    return key if is_ordered(domain) else f"{family}.{key}"


def parameters_of(
    domains: Domains, family: str, values: Mapping[str, ParameterValue]
) -> Parameters:
    """Return the parameters of an architecture of one of these families."""
    found: Parameters = {"family": family} if len(domains) > 1 else {}
    for key, domain in domains[family].items():
        value, name = values[key], parameter_name(family, key, domain)
        found[name] = quantile(domain, value) if is_ordered(domain) else value
    return found


def is_within(domains: Domains, family: str, values: Mapping[str, ParameterValue]) -> bool:
    """Return whether an architecture has a place in a space."""
    return family in domains and all(
        key in values and domain.contains(values[key]) for key, domain in domains[family].items()
    )


class Named(Protocol):
    """An architecture, whatever else is known of it."""

    @property
    def family(self) -> str:
        """Return its family."""

    @property
    def values(self) -> Mapping[str, ParameterValue]:
        """Return the values of its parameters."""


def points_of(domains: Domains, architectures: Iterable[Named]) -> NDArray[np.float64]:
    """Return the coordinates of architectures of a space [n, d]; see `axes_of`."""
    return axes_of(domains).points(
        [parameters_of(domains, one.family, one.values) for one in architectures]
    )


def random_parameters(domains: Domains, rng: np.random.Generator) -> Parameters:
    """Return a random architecture: a family, and a point of it."""
    family = list(domains)[int(rng.integers(len(domains)))]
    values = {key: domain.at(float(rng.random())) for key, domain in domains[family].items()}
    return parameters_of(domains, family, values)


def axes_of(domains: Domains) -> "Axes":
    """Return the coordinates of a space."""
    options: dict[str, Sequence[ParameterValue] | None] = {}
    if len(domains) > 1:
        options["family"] = list(domains)
    for family, own in domains.items():
        for key, domain in own.items():
            free = isinstance(domain, Choice) and not is_ordered(domain)
            name = parameter_name(family, key, domain)
            options[name] = domain.options if free and isinstance(domain, Choice) else None
    return Axes(options)


class Axes:
    """The coordinates of a space.

    Args:
        options: of each parameter by name, None if it is a quantile.
    """

    def __init__(self, options: Mapping[str, Sequence[ParameterValue] | None]) -> None:
        self._options = options
        self.ordered = [one is None for one in options.values()]

    def points(self, architectures: Sequence[Parameters]) -> NDArray[np.float64]:
        """Return the coordinates of architectures [n, d], options as their positions."""
        found = np.empty((len(architectures), len(self._options)))
        for k, (name, options) in enumerate(self._options.items()):
            for i, one in enumerate(architectures):
                if options is None:
                    found[i, k] = one.get(name, 0.5)
                else:
                    found[i, k] = options.index(one[name]) if name in one else -1
        return found
