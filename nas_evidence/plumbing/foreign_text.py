"""Text that somebody else wrote (labels, names of columns), where it enters ours.

a terminal, a comment, a sentence    no control characters: they move cursors and end lines
a command                            quoted, so that each word stays one
a cell of CSV                        no formula: a spreadsheet runs what begins with = + - @
Markdown                             no markup, no HTML, no end of a cell of a table
"""

import json
import os
import re
import shlex
from typing import Any

#: What begins a formula, also in its wide form, and what may stand before it.
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_BLANKS = ' \t\r\n"'
#: Where a cell begins: at a semicolon or a line end before it, which belong to the text before.
_CELL_ENDS = re.compile(r"(?<=[;\r\n])")


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

    Of a traceback the first lines say where it began, the last ones what went wrong. No word is
    cut in two: half of a URI does not show where in it a secret is.

    >>> cut("one two three four", most=10)
    'one ... 11 characters left out ... four'
    """
    if len(text) <= most:
        return text
    head, tail = text[: most // 2], text[-(most // 2) :]
    last = max(map(head.rfind, " \n\t"))
    first = min((at for at in map(tail.find, " \n\t") if at >= 0), default=len(tail))
    head = head[:last] if last >= 0 else head.partition("://")[0]
    tail = tail[first + 1 :]
    return f"{head} ... {len(text) - len(head) - len(tail)} characters left out ... {tail}"


def on_lines(text: str) -> str:
    """Return the same, but with its line ends and tabs."""
    return "".join(c if c in "\n\t" else _printable(c) for c in text)


def csv_cell(value: Any) -> Any:
    """Return a cell for CSV: text that a spreadsheet would run gets an apostrophe before it.

    A spreadsheet may separate cells at semicolons, and then takes a quote within a line for a
    letter: what follows a semicolon or a line end is a cell of its own there.

    >>> csv_cell("=1+1"), csv_cell("-1"), csv_cell(-1.5), csv_cell("x;@SUM(A1)")
    ("'=1+1", '-1', -1.5, "x;'@SUM(A1)")
    """
    if not isinstance(value, str):
        return value
    cell = "".join(f"'{one}" if _is_run(one) else one for one in _CELL_ENDS.split(value))
    hidden = cell.startswith(("\t", "\r", "\n")) and bool(cell.strip()) and not _is_number(cell)
    return f"'{cell}" if hidden else cell


def _is_run(cell: str) -> bool:
    return cell.lstrip(_BLANKS).startswith(_FORMULA) and not _is_number(cell.rstrip(";"))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def markdown(text: object) -> str:
    r"""Return text that Markdown and HTML show literally, on one line.

    >>> print(markdown("a|b <i>_x_"))
    a\|b &lt;i&gt;\_x\_
    """
    one_line = on_one_line(" ".join(str(text).split()))
    html = re.sub(r"([\\`*_\[\]|#~$])", r"\\\1", one_line)
    return html.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def shell_word(word: object) -> str:
    r"""Return a word as a shell takes it: also one that is no text, or with control characters.

    Such a word is written as $'...', which bash, zsh and POSIX shells of 2024 know.

    >>> print(shell_word("my study"), shell_word("a\n"), shell_word("\udcff"))
    'my study' $'a\x0a' $'\xff'
    """
    text = str(word)
    if not text or text.isprintable():
        return shlex.quote(text)
    plain = {byte: chr(byte) for byte in range(0x20, 0x7F) if chr(byte) not in "'\\"}
    return "$'" + "".join(plain.get(b, f"\\x{b:02x}") for b in os.fsencode(text)) + "'"


def python_text(text: object) -> str:
    r"""Return text as a literal of Python on one line, in double quotes.

    >>> print(python_text('runs/"a"'))
    "runs/\"a\""
    """
    return on_one_line(json.dumps(str(text), ensure_ascii=False))


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape", errors="backslashreplace").decode("ascii")
