"""Families of networks from outside the package, by reference `module:NAME`.

Such a family is an object, or a class without arguments, with

    domains                               parameter -> what it may be, as in a study file
    build(values, input_shape, n_outputs) -> torch.nn.Module

It is imported only where the user allows its code to run (`registry.import_outside`).
"""

from collections.abc import Mapping
from typing import Any, Protocol

from nas_evidence.plumbing.own_modules import ByReference, Code
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
    """Make a family known under its reference; a class is called without arguments.

    Raises:
        ValueError: if the class takes some.
    """
    try:
        _IMPORTED.put(reference, found() if isinstance(found, type) else found)
    except TypeError as error:
        raise without_name(reference, str(error)) from None


def without_name(reference: str, why: str = "it has other values") -> UserError:
    """Return the error for an object that its class does not make again."""
    return UserError(
        "own-object-without-name",
        f"an object of {reference} cannot be made again in another process ({why}); give it a "
        "name at the top level of its module (mine = Mine(3)) and pass that",
    )


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
            "family-not-imported",
            f"family {reference} is code from outside nas-evidence, which has not been imported; "
            "allow it with allow_code (--allow-code)",
        )
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
                "family-domains",
                f"`{name}` in the domains of {reference} must be a list of options, or "
                f"{{low = ..., high = ...}}, but is {value!r}",
            ) from None
    return found
