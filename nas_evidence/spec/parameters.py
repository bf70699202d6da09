"""The parameters of a space of architectures: each is one column of the tables, over all families.

A column holds values of one type, in every file of a study, so that any reader of Parquet takes a
folder of files as one table.
"""

from collections.abc import Collection, Iterable, Mapping

from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.domains import type_of
from nas_evidence.spec.registry import is_outside
from nas_evidence.spec.study import StudySpec, domains_of_family

#: Before the name of a parameter where the name alone is another column.
ARCHITECTURE = "arch_"
#: Keys of an architecture, or of a family's table, in a study file.
_KEYS = ("family", "module")
#: The parameters that a reader expects first.
_USUAL = ("depth", "width")
_WORDS = {bool: "true or false", int: "whole numbers", float: "numbers", str: "texts"}


def types_of(study: StudySpec) -> dict[str, type | None]:
    """Return the type of each parameter, in the order of the study; None if it has several.

    Parameters that a study leaves at their defaults are among them.
    """
    return {
        name: types.pop() if len(types := {*found.values()}) == 1 else None
        for name, found in _types(study).items()
    }


def check_parameters(study: StudySpec) -> None:
    """Check that each parameter can be a column.

    Raises:
        ValueError: if one has values of several types, or the name of a key of study files.
    """
    for name, found in _types(study).items():
        if name in _KEYS or not name.strip() or not name.isprintable():
            raise UserError(
                "parameter-name",
                f"a parameter of {next(iter(found))} is called {name!r}, which study files and "
                "tables cannot hold; give it another name",
            )
        for family, kind in found.items():
            if kind is None:
                raise UserError(
                    "option-types-differ",
                    f"`{name}` of {family} has options of several types, and one column holds "
                    "them all; write all of them as texts, or as numbers",
                )
        if len({*found.values()}) > 1:
            told = " and ".join(f"{_WORDS[kind]} in {family}" for family, kind in found.items())  # type: ignore[index]
            raise UserError(
                "parameter-types-differ",
                f"`{name}` has {told}, and one column of the tables holds both; give it another "
                "name in one of them, or values of one type (1.0 for 1)",
            )


def columns_of(parameters: Iterable[str], others: Collection[str]) -> dict[str, str]:
    """Return the column of each parameter in a table that has other columns, too.

    It is the parameter's name, or the column of the files: `arch_` and the name. The latter if the
    name is another column, or the column of the files of a parameter for which that holds. So no
    column stands for one parameter here and for another one in the files.

    >>> columns_of(["width", "score", "arch_score"], {"rank", "score"})
    {'width': 'width', 'score': 'arch_score', 'arch_score': 'arch_arch_score'}
    """
    names = [*parameters]

    def is_taken(name: str) -> bool:
        rest = name.removeprefix(ARCHITECTURE)
        return name in others or (rest != name and rest in names and is_taken(rest))

    return {name: ARCHITECTURE * is_taken(name) + name for name in names}


def searched_in(study: StudySpec) -> list[str]:
    """Return the parameters that a table of architectures shows: `depth`, `width`, then others.

    Those that have one value in every family, such as a default, are left out of the others.
    """
    space = types_of(study)
    usual = [name for name in _USUAL if name in space]
    varied = {
        name
        for domains in study.family.values()
        for name, domain in domains.items()
        if domain.size > 1
    }
    return usual + [name for name in space if name in varied and name not in usual]


def _types(study: StudySpec) -> Mapping[str, dict[str, type | None]]:
    """Return the types of each parameter by family."""
    found: dict[str, dict[str, type | None]] = {}
    for family, domains in study.family.items():
        known = {} if is_outside(family) else domains_of_family(family)
        for name, domain in {**known, **domains}.items():
            found.setdefault(name, {})[family] = type_of(known.get(name, domain))
    return found
