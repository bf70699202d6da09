"""Architectures as points: what a sampler and a posterior see of them.

A parameter with an order is one coordinate that all families share, the quantile of the family's
own domain (docs/decisions/0007-shared-names-in-tpe.md); a choice without order belongs to its
family. An architecture that lacks a parameter is in the middle of it, or at an option of its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nas_evidence.proposing.startup import is_ordered, quantile, searched
from nas_evidence.spec.domains import Choice, Domain, ParameterValue
from nas_evidence.spec.study import StudySpec

#: A quantile, or one of the options of a choice without order, by name.
Parameters = dict[str, Any]
#: The domain of each key of each family.
Domains = Mapping[str, Mapping[str, Domain]]


def parameter_name(family: str, key: str, domain: Domain) -> str:
    """Return what a key of a family is called as a parameter."""
    return key if is_ordered(domain) else f"{family}.{key}"


def domains_of(study: StudySpec) -> Domains:
    """Return the domains of the families that are searched."""
    return {family: study.family[family] for family in searched(study)}


def parameters_of(
    domains: Domains, family: str, values: Mapping[str, ParameterValue]
) -> Parameters:
    """Return the parameters of an architecture of one of these families."""
    found: Parameters = {"family": family} if len(domains) > 1 else {}
    for key, domain in domains[family].items():
        value, name = values[key], parameter_name(family, key, domain)
        found[name] = quantile(domain, value) if is_ordered(domain) else value
    return found


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
