"""JSON and TOML to values: the only place of the package that parses them.

Both parsers call themselves for each level. Text that is nested deeper than Python allows ends
them with a `RecursionError`, which no reader of a damaged file expects. Here it is a `ValueError`,
as for any other text that is no JSON or no TOML.
"""

import json
import tomllib
from collections.abc import Callable
from typing import Any, TypeVar

from nas_evidence.plumbing.user_error import UserError

T = TypeVar("T", str, str | bytes)


def parsed_json(text: str | bytes) -> Any:
    """Return the value that JSON stands for.

    Raises:
        ValueError: it is no JSON, or nested too deeply.
    """
    return _parsed(json.loads, text)


def parsed_toml(text: str) -> dict[str, Any]:
    """Return the tables of TOML.

    Raises:
        ValueError: it is no TOML, or nested too deeply.
    """
    tables: dict[str, Any] = _parsed(tomllib.loads, text)
    return tables


def _parsed(parse: Callable[[T], Any], text: T) -> Any:
    try:
        return parse(text)
    except RecursionError:
        raise UserError("the text is nested too deeply to be read").with_code(
            "nested-too-deeply"
        ) from None
