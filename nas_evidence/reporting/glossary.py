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

    def asked(found: re.Match[str]) -> str:
        word = found.group()
        if word in seen:
            return word
        seen.add(word)
        return str(term(word))

    code = _CODE.sub(r"<code>\1</code>", str(escape(text)))
    words = _TERMS.sub(asked, code)
    return Markup(_OPTION.sub(r'<code class="nowrap">\g<0></code>', words))


def term(word: str) -> Markup:
    """Return a term with its meaning, or the word alone if it has none."""
    meaning = TERMS.get(word) or (SCORES[word].summary if word in SCORES else "")
    if not meaning:
        return escape(word)
    return Markup(
        '<span class="term" tabindex="0">{0}<span role="tooltip"><b>{0}</b>: {1}</span></span>'
    ).format(word, meaning)


#: What is typed, as a sentence for the terminal marks it.
_CODE = re.compile("`([^`]+)`")
#: A key or an option with its value.
_OPTION = re.compile(r"[a-z][\w.]*=[\w.]*\w")
#: Longer terms first: "balanced accuracy" is not "accuracy".
_TERMS = re.compile(
    r"(?<![\w.])(?:"
    + "|".join(map(re.escape, sorted({*TERMS, *SCORES}, key=len, reverse=True)))
    + r")(?!\w)"
)
