"""Secrets in text: each is replaced by asterisks before a URI is printed, stored or logged.

    scheme://user:SECRET@host      a password, also with a percent-encoded colon
    password=SECRET                also in text that is no URI; so `token`, `secret`, `pwd`
    ?sig=SECRET  &key=SECRET       a signature or a key in the query of a URI
    scheme://host/path#SECRET      a fragment; in a `file://` a `#` is part of a name

`UserError`, the logs and what goes to the terminal's error stream use it. Whoever stores the text
of an error of others uses it too.
"""

import logging
import re

from nas_evidence.plumbing.foreign_text import cut

#: Schemes whose URIs are paths of this machine: their `#` begins no fragment.
_PATHS = ("file", "local", "sqlite")
_PASSWORD = re.compile(r"(://[^\s/:@]*?)(:|%3[aA])[^\n]*@")
_ASSIGNED = re.compile(
    r"(\w*(?:passw|pwd|secret|token)\w*\s*=\s*)(?!\*\*\*)[^&\s'\"]+", re.IGNORECASE
)
#: `sslkey` of PostgreSQL is the path of a file.
_QUERY = re.compile(
    r"([?&;](?:[\w.%-]*[-_.])?(?:sig|signature|sas|auth|jwt|credentials?|(?!ssl)\w*key(?:id)?)=)"
    r"[^&\s'\"<>#]+",
    re.IGNORECASE,
)
_FRAGMENT = re.compile(r"\b([a-z][a-z0-9+.-]*)(://[^\s'\"<>#]*#)[^\s'\"<>]+", re.IGNORECASE)


def masked(text: str) -> str:
    """Return a text with all that looks like a secret in it replaced by asterisks.

    >>> masked("cannot open postgresql://me:secret@host/db")
    'cannot open postgresql://me:***@host/db'
    >>> masked("host=h password=secret"), masked("https://h/c?v=1&sig=abc")
    ('host=h password=***', 'https://h/c?v=1&sig=***')
    """
    text = _PASSWORD.sub(r"\1:***@", text)
    text = _ASSIGNED.sub(r"\1***", text)
    text = _QUERY.sub(r"\1***", text)
    return _FRAGMENT.sub(_without_fragment, text)


def _without_fragment(found: re.Match[str]) -> str:
    return found[0] if found[1].lower() in _PATHS else f"{found[1]}{found[2]}***"


class LogFormatter(logging.Formatter):
    """Writes no secret and no endless text that an error of somebody else's library quotes."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, with its traceback."""
        return masked(cut(super().format(record)))
