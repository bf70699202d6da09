"""JSON and TOML to values: the only place of the package that parses them.

Both parsers call themselves for each level. Text that is nested deeper than Python allows ends
them with a `RecursionError`, which no reader of a damaged file expects. Here it is a `ValueError`,
as for any other text that is no JSON or no TOML.
"""

import json
import tomllib
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from nas_evidence.plumbing.foreign_text import shortened
from nas_evidence.plumbing.user_error import UserError

T = TypeVar("T", str, str | bytes)


def parsed_json(text: str | bytes, *, once: bool = False) -> Any:
    """Return the value that JSON stands for.

    Args:
        text: of it.
        once: refuse an object with a key twice, of which the last value would count.

    Raises:
        ValueError: it is no JSON, nested too deeply, or has a key twice.
    """
    return _parsed(partial(json.loads, object_pairs_hook=_once if once else None), text)


def _once(items: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(items)
    if len(found) < len(items):
        twice = next(key for key, times in Counter(key for key, _ in items).items() if times > 1)
        raise UserError(
            "json-key-twice",
            f"an object has the key {shortened(repr(twice))} twice; rename or remove one",
        )
    return found


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
        raise UserError("nested-too-deeply", "the text is nested too deeply to be read") from None
