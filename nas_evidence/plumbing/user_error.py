"""Errors that a user can mend: a text for people, and a code for programs and tests."""

import difflib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nas_evidence.plumbing.foreign_text import cut
from nas_evidence.plumbing.masking import masked


class Mistake(NamedTuple):
    """One mistake in a study file: its code, and a line for the user."""

    code: str
    text: str


class UserError(ValueError):
    """What was asked cannot be done. The text says why, where, and what to do.

    `code` says which error it is, and stays when the words change. `what` is the text without the
    remedy, if that was given apart: for who knows a better one.

    >>> error = UserError("no-such-file", "there is no file x.csv", remedy="correct the path")
    >>> error.code, str(error)
    ('no-such-file', 'there is no file x.csv; correct the path')
    """

    def __init__(self, code: str, text: str, *, remedy: str = "") -> None:
        """Make the error; secrets in a URI of the text are masked, and an endless one is cut."""
        self.code = code
        self.what = masked(cut(text))
        super().__init__(f"{self.what}; {masked(remedy)}" if remedy else self.what)

    @property
    def codes(self) -> tuple[str, ...]:
        """Return the codes of all mistakes; a study file may have several."""
        return (self.code,)

    def __reduce__(self) -> tuple[Any, ...]:  # to another process
        return type(self), (self.code, str(self)), self.__dict__


class StudyError(UserError):
    """A study file with mistakes; `messages` has one line each, `codes` the code of each."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = tuple(
            Mistake(code, masked(" ".join(text.splitlines())))  # they quote the input
            for code, text in mistakes
        )
        super().__init__(mistakes[0].code, "\n".join(self.messages))

    @property
    def messages(self) -> tuple[str, ...]:
        """Return one line for each mistake."""
        return tuple(mistake.text for mistake in self.mistakes)

    @property
    def codes(self) -> tuple[str, ...]:
        """Return the code of each mistake."""
        return tuple(mistake.code for mistake in self.mistakes)

    def __reduce__(self) -> tuple[Any, ...]:  # to another process
        return type(self), (self.mistakes,)


def meant(given: object, known: Iterable[str]) -> str:
    """Return a hint at the name that is nearest to a wrong one, "" if none is near.

    >>> meant("kfac_gnn", ["diag_ef", "kfac_ggn"]), meant("x", ["diag_ef"]), meant(3, ["diag_ef"])
    ("; did you mean 'kfac_ggn'?", '', '')
    """
    plain = {_plain(name): name for name in known}
    near = difflib.get_close_matches(_plain(str(given)), plain, n=1)
    return f"; did you mean {plain[near[0]]!r}?" if near else ""


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def no_such_file(path: str | Path) -> UserError:
    """Return the error for a file that is not there; suggests a near name in its folder."""
    if "://" in str(path):
        return UserError(
            "address-for-a-file", f"{path} is an address, not a file; download it first"
        )
    folder, name = os.path.split(os.path.expanduser(path))
    try:
        near = difflib.get_close_matches(name, os.listdir(folder or "."), n=1)
    except OSError:
        near = []
    others = [os.path.join(os.path.dirname(path), other) for other in near]
    remedy = f"did you mean {others[0]}?" if others else "correct the path."
    return UserError("no-such-file", f"there is no file {path}; {remedy}")
