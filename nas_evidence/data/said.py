"""What was decided about data, to be said: words, the column, and the option that changes it."""

from collections.abc import Sequence
from typing import NamedTuple

from nas_evidence.plumbing.foreign_text import shortened

#: Names that a sentence lists.
_LISTED = 8


class Said(NamedTuple):
    """A sentence for the user.

    words   all of it, or of a sentence about a column what follows its name
    column  that it is about; None if it is about no single one
    about   what was decided: a key of `decided.KINDS`, "not read" of a column that has two
            notations or several units, or "" where nothing asks
    remedy  the option that changes it, and to what

    >>> str(Said("is left out: it is empty", "a"))
    "column 'a' is left out: it is empty"
    >>> str(Said("images: 8 of 2 x 2 values", remedy="image_size=N to resize"))
    'images: 8 of 2 x 2 values; image_size=N to resize'
    """

    words: str
    column: str | None = None
    about: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        """Return the sentence."""
        words = self.words if self.column is None else f"column {self.column!r} {self.words}"
        return f"{words}; {self.remedy}" if self.remedy else words


def listed(names: Sequence[object]) -> str:
    """Return the first names of a list for a sentence, with "..." for the others."""
    return ", ".join(shortened(str(one)) for one in names[:_LISTED]) + ", ..." * (
        len(names) > _LISTED
    )
