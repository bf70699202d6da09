"""Families of networks from outside the package, by reference `module:NAME`.

Such a family is an object, or a class without arguments, with

    domains                               parameter -> what it may be, as in a study file
    build(values, input_shape, n_outputs) -> torch.nn.Module

It is imported only where the user allows its code to run (`registry.import_outside`).
"""

import sys
from collections.abc import Mapping
from typing import Any, Protocol

from nas_evidence.plumbing.own_modules import ByReference, Code, own_name
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.domains import Domain, ParameterValue, domain_of


class OutsideFamily(Protocol):
    """What a family from outside the package has."""

    domains: Mapping[str, Any]

    def build(
        self, values: Mapping[str, ParameterValue], input_shape: tuple[int, ...], n_outputs: int
    ) -> Any:
        """Return a network for inputs [n, *input_shape] with outputs [n, n_outputs]."""


#: Imported families by reference.
_IMPORTED: ByReference[OutsideFamily] = ByReference()


def is_family(found: object) -> bool:
    """Tell whether an object is a family."""
    return hasattr(found, "domains") and callable(getattr(found, "build", None))


def add_family(reference: str, found: Any) -> None:
    """Make a family known under its reference; a class is called without arguments."""
    _IMPORTED.put(reference, found() if isinstance(found, type) else found)


def has_family(code: Code, reference: str) -> bool:
    """Tell whether a family was imported from a code in this process."""
    return _IMPORTED.has(code, reference)


def outside_family(reference: str) -> OutsideFamily:
    """Return an imported family.

    Raises:
        ValueError: if it has not been imported.
    """
    found = _IMPORTED.get(reference)
    if found is None:
        raise UserError(
            f"family {reference} is code from outside nas-evidence, which has not been imported; "
            "allow it with allow_code (--allow-code)"
        ).with_code("family-not-imported")
    return found


def domains_of(reference: str) -> dict[str, Domain]:
    """Return the domains of an imported family.

    Raises:
        ValueError: if one is not a domain; names it.
    """
    found = {}
    for name, value in outside_family(reference).domains.items():
        try:
            found[name] = domain_of(value)
        except ValueError:
            raise UserError(
                f"`{name}` in the domains of {reference} must be a list of options, or "
                f"{{low = ..., high = ...}}, but is {value!r}"
            ).with_code("family-domains") from None
    return found


def reference_of(family: Any) -> str:
    """Return the reference `module:NAME` of a family given as a class or an object.

    Raises:
        ValueError: if it is no family, or an object that has no name in its module.
    """
    if not is_family(family):
        raise UserError(
            f"a family must have `domains` and `build(values, input_shape, n_outputs)`, but "
            f"{family!r} has not"
        ).with_code("family-incomplete")
    kind = family if isinstance(family, type) else type(family)
    home, _ = own_name(kind.__module__)
    if kind is not family:
        for name, value in vars(sys.modules[kind.__module__]).items():
            if value is family:
                return f"{home}:{name}"
    return f"{home}:{kind.__qualname__}"
