"""How tests name the errors that users see: by their codes and the values that they tell."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pydantic import ValidationError

from nas_evidence.plumbing.user_error import UserError


@contextmanager
def refused(code: str, *values: object) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Assert that the block ends with this error, and names these values, as whole words."""
    with pytest.raises((UserError, ValidationError)) as caught:
        yield caught
    assert code in codes_of(caught.value)
    text = str(caught.value)
    whole = [rf"(?<!\w){re.escape(str(value))}(?!\w)" for value in values]
    assert [value for value in whole if not re.search(value, text)] == [], text


def codes_of(error: UserError | ValidationError) -> list[str]:
    """Return the codes of an error, or of those that a specification was refused with."""
    if isinstance(error, UserError):
        return [*error.codes]
    return [one["ctx"]["error"].code for one in error.errors() if "error" in one.get("ctx", {})]
