"""The glossary of the report: each term is explained where it first appears.

A term in a sentence becomes a word that a mouse, a finger or the keyboard can ask: the
explanation is part of the page and is shown by its style sheet, without a script.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from markupsafe import Markup, escape

from nas_evidence.plumbing.parsing import parsed_toml
from nas_evidence.spec.registry import SCORES

_WORDS = parsed_toml(
    (Path(__file__).parent / "templates" / "glossary.toml").read_text(encoding="utf-8")
)
TERMS: Mapping[str, str] = _WORDS["terms"]
#: The same for one line of a terminal.
BRIEF: Mapping[str, str] = _WORDS["brief"]


def brief(text: str) -> str:
    """Return the terms that a screen uses in a few words each, "" if it uses none.

    >>> brief("SOTL")
    'SOTL: training losses of all epochs, summed'
    """
    return "; ".join(f"{word}: {words}" for word, words in BRIEF.items() if word in text)


def explained(text: object) -> Markup:
    """Return escaped text; the first use of each term can be asked for its meaning.

    >>> print(explained("tau < rho")[:54])
    tau &lt; <span class="term" tabindex="0">rho<span role
    """
    seen: set[str] = set()

    def shown(found: re.Match[str]) -> str:
        code, option, word = found["code"], found["option"], found["word"]
        if code:
            return f"<code>{escape(code)}</code>"
        if option:  # whole, also where its value is a term
            return f'<code class="nowrap">{escape(option)}</code>'
        if word in seen:
            return str(escape(word))
        seen.add(word)
        return str(term(word))

    parts, at = [], 0
    for found in _SHOWN.finditer(given := str(text)):
        parts += [str(escape(given[at : found.start()])), shown(found)]
        at = found.end()
    return Markup("".join([*parts, str(escape(given[at:]))]))


def term(word: str) -> Markup:
    """Return a term with its meaning, or the word alone if it has none."""
    meaning = TERMS.get(word) or (SCORES[word].summary if word in SCORES else "")
    if not meaning:
        return escape(word)
    said = Markup(_CODE.sub(r"<code>\1</code>", str(escape(meaning))))
    return Markup(
        '<span class="term" tabindex="0">{0}<span role="tooltip"><b>{0}</b>: {1}</span></span>'
    ).format(word, said)


#: What is typed, as a sentence for the terminal marks it.
_CODE = re.compile("`([^`]+)`")
#: The same; a key with its value, or an option; and a term, longer ones first, since "balanced
#: accuracy" is not "accuracy".
_SHOWN = re.compile(
    "`(?P<code>[^`]+)`"
    r"|(?P<option>\b[a-z][\w.]*=[\w.]*\w|(?<!\S|\w)--[a-z][a-z-]*[a-z]|(?<=\()--[a-z][a-z-]*[a-z])"
    r"|(?<![\w.])(?P<word>"
    + "|".join(map(re.escape, sorted({*TERMS, *SCORES}, key=len, reverse=True)))
    + r")(?!\w)"
)
