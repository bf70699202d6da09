"""Text that somebody else wrote (labels, names of columns), where it enters ours.

a terminal, a comment, a sentence    no control characters: they move cursors and end lines
a cell of CSV                        no formula: a spreadsheet runs what begins with = + - @
"""

from typing import Any

_FORMULA = ("=", "+", "-", "@")


def on_one_line(text: object) -> str:
    r"""Return text in which what cannot be printed is escaped as in Python.

    >>> on_one_line("a\nreplicates = 9\x1b[2J")
    'a\\nreplicates = 9\\x1b[2J'
    """
    return "".join(_printable(c) for c in str(text))


def shortened(text: object, most: int = 60) -> str:
    """Return text on one line, cut after so many characters.

    >>> shortened("a" * 100, most=10)
    'aaaaaaa...'
    """
    line = on_one_line(str(text)[: most + 1])
    return line if len(line) <= most else f"{line[: most - 3]}..."


def cut(text: str, most: int = 20_000) -> str:
    """Return text of at most about so many characters: the middle of a longer one is left out.

    Of a traceback the first lines say where it began, the last ones what went wrong.

    >>> cut("abcdefgh", most=4)
    'ab ... 4 characters left out ... gh'
    """
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} ... {len(text) - 2 * half} characters left out ... {text[-half:]}"


def on_lines(text: str) -> str:
    """Return the same, but with its line ends and tabs."""
    return "".join(c if c in "\n\t" else _printable(c) for c in text)


def csv_cell(value: Any) -> Any:
    """Return a cell for CSV: text that a spreadsheet would run gets an apostrophe before it.

    >>> csv_cell("=1+1"), csv_cell("-1"), csv_cell(-1.5), csv_cell("@SUM(A1)")
    ("'=1+1", '-1', -1.5, "'@SUM(A1)")
    """
    if not isinstance(value, str) or not value.lstrip("\t\r\n ").startswith(_FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value  # a number


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape", errors="backslashreplace").decode("ascii")
