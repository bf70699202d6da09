"""Rendering of the page and its text: templates with the names and formats of `words.py`.

Everything is escaped unless a template says otherwise; in Markdown also its own markup. The page
contains its scripts and styles, and its content security policy forbids all requests.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from nas_evidence.plumbing import foreign_text
from nas_evidence.plumbing.durations import duration
from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.foreign_text import csv_cell, on_one_line
from nas_evidence.reporting.glossary import explained
from nas_evidence.reporting.words import (
    MISSING,
    MOST,
    OF_FOLDS,
    SCALES,
    WORDS,
    amount,
    chance,
    clock,
    count,
    metric_value,
    number,
    short,
    words_of,
)
from nas_evidence.spec.domains import value_text
from nas_evidence.spec.metric_names import LESS_IS_BETTER

_TEMPLATES = Path(__file__).parent / "templates"
#: A flag of the command line within a sentence.
_FLAG = re.compile(r"(?<=\()(--[a-z][a-z-]*[a-z])(?=\))")
#: What a sentence for the terminal marks as typed, where Markdown may show it as it is.
_TYPED = re.compile(r"`([\w .,:=/+-]+)`")
#: A word of the glossary that the keyboard stops at.
_STOP = re.compile('<span class="term" tabindex="0">([^<]*)<')


def compile_templates() -> None:
    """Compile the templates, which takes a third of the time of a page; pages use them then."""
    for name in environment().list_templates(extensions=["j2"]):
        environment().get_template(name)


def write_page(path: Path, values: Mapping[str, object]) -> None:
    """Write a self-contained HTML page; the keyboard stops at each term once."""
    _write(path, _stopped_at_once(environment().get_template("study.html.j2").render(values)))


def _stopped_at_once(page: str) -> str:
    """Return a page on which Tab skips terms that it has stopped at; a tap still asks them."""
    seen: set[str] = set()

    def stop(found: re.Match[str]) -> str:
        word = found[1]
        if word in seen:
            return found[0].replace('"0"', '"-1"')
        seen.add(word)
        return found[0]

    return _STOP.sub(stop, page)


def write_markdown(path: Path, values: Mapping[str, object]) -> None:
    """Write a Markdown document."""
    text = environment().get_template("study.md.j2").render(values)
    _write(path, re.sub(r"\n{3,}", "\n\n", text).strip() + "\n")


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write a table as CSV whose cells no spreadsheet takes for formulas."""
    cells = table.rename(columns=csv_cell).map(csv_cell)
    write_whole(path, cells.to_csv(index=False, lineterminator="\n"))


def caption(name: str, *given: object) -> str:
    """Return how to read a figure; `given` is what its words depend on."""
    found = getattr(environment().get_template("captions.html.j2").module, name)
    return str(found(*given) if given else found)


def _write(path: Path, text: str) -> None:
    write_whole(path, text.encode(errors="backslashreplace"))  # a path may not be UTF-8


def markdown(text: object) -> Markup:
    r"""Return text that Markdown and HTML show literally.

    >>> print(markdown("a|b <i>_x_"))
    a\|b &lt;i&gt;\_x\_
    """
    return Markup(foreign_text.markdown(text))


def said_in_markdown(sentence: object) -> Markup:
    r"""Return a sentence for the terminal in Markdown, what is typed as code.

    >>> print(said_in_markdown("`report DIR` shows a_b, `<b>` too"))
    `report DIR` shows a\_b, \`&lt;b&gt;\` too
    """
    parts = _TYPED.split(" ".join(str(sentence).split()))
    return Markup("").join(
        Markup(f"`{part}`") if i % 2 else _spaced(part) for i, part in enumerate(parts)
    )


def _spaced(part: str) -> Markup:
    """Return a part of a sentence in Markdown, with the spaces at its ends."""
    before, after = " " * part.startswith(" "), " " * part.endswith(" ")
    return Markup(before) + markdown(part) + Markup(after) if part.strip() else Markup(part)


def flags_marked(sentence: str) -> Markup:
    """Return a sentence with the flags of the command line marked, so that none is divided.

    >>> print(flags_marked("a < b; image_size=N (--image-size) to resize"))
    a &lt; b; image_size=N (<code>--image-size</code>) to resize
    """
    parts = _FLAG.split(sentence)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if i % 2 else part for i, part in enumerate(parts)
    )


def row(cells: Iterable[object]) -> Markup:
    r"""Return a row of a Markdown table.

    >>> print(row(["a|b", 1, None]))
    | a\|b | 1 | – |
    """
    shown = (markdown(MISSING if cell is None else cell) for cell in cells)
    return Markup(f"| {' | '.join(shown)} |")


def head(text: Sequence[str], numbers: Sequence[str]) -> Markup:
    """Return the head of a Markdown table: columns of text, then columns of numbers.

    >>> print(head(["name"], ["n"]))
    | name | n |
    |---|---:|
    """
    return Markup(f"{row([*text, *numbers])}\n|{'---|' * len(text)}{'---:|' * len(numbers)}")


@cache
def environment() -> Environment:
    """Return the templates, each compiled once, with the filters and values that they use."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "count": count, "md": markdown}
    environment.filters["parameter"] = lambda value: None if value is None else value_text(value)
    environment.filters |= {"short": short, "duration": duration, "amount": amount}
    environment.filters |= {"metric": metric_value, "said": said_in_markdown}
    environment.filters["code_line"] = lambda text: Markup(
        "\n".join(map(on_one_line, text.split("\n")))
    )
    environment.filters["flags_marked"] = flags_marked
    environment.filters |= {"chance": chance, "explained": explained, "clock": clock}
    environment.filters["words"] = words_of
    environment.globals |= {"row": row, "head": head, "scales": SCALES, "target_names": WORDS}
    environment.globals |= {"most": MOST, "of_folds": OF_FOLDS, "less_is_better": LESS_IS_BETTER}
    environment.globals["cells"] = lambda names, of: [of.get(name) for name in names]
    environment.globals["include_raw"] = lambda name: Markup(
        (_TEMPLATES / name).read_text(encoding="utf-8")
    )
    return environment
