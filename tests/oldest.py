"""The oldest versions that `pyproject.toml` declares, as constraints for pip: `make oldest`.

    python tests/oldest.py [EXTRA ...] > constraints-oldest.txt

One line `name==minimum` for each requirement of the package and of the extras named (`test`).
Needs the standard library alone: it runs before anything is installed.
"""

import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

PROJECT = tomllib.loads(
    (Path(__file__).resolve().parents[1] / "pyproject.toml").read_text(encoding="utf-8")
)["project"]
_MINIMUM = re.compile(r"(?P<name>[\w.-]+)(\[[\w,-]+\])?>=(?P<version>[\w.]+)(,<[\w.]+)?")


def minimum(requirement: str) -> tuple[str, str]:
    """Return name and lowest version of `name[extra]>=version,<bound`.

    Raises:
        ValueError: the requirement has another form, so it says of no version that it is the
            lowest.
    """
    found = _MINIMUM.fullmatch(requirement)
    if found is None:
        raise ValueError(f"'{requirement}' does not read name>=version")
    return found["name"], found["version"]


def minimums(extras: Iterable[str]) -> dict[str, str]:
    """Return the lowest versions by name, of the package and of the extras.

    Raises:
        ValueError: two of them name different versions of one package.
    """
    lowest: dict[str, str] = {}
    for requirements in (
        PROJECT["dependencies"],
        *(PROJECT["optional-dependencies"][extra] for extra in extras),
    ):
        for name, version in map(minimum, requirements):
            if lowest.setdefault(name, version) != version:
                raise ValueError(f"'{name}' has the minimums {lowest[name]} and {version}")
    return lowest


if __name__ == "__main__":
    lowest = minimums(sys.argv[1:] or ["test"])
    sys.stdout.writelines(f"{name}=={version}\n" for name, version in lowest.items())
