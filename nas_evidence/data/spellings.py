"""Spellings of one word: "yes", "yes " and "Yes" are one category, "a" and "A" are two.

Blanks around a text never tell it apart. Upper case does where a single letter is all there is,
as in labels of handwritten letters, unless these are the letters of yes and no, or true and false.
"""

from collections.abc import Iterable, Mapping

_LETTERS_OF_ANSWERS = frozenset("yntf")
#: Spellings listed in a sentence.
_LISTED = 4


def folded(text: str) -> str:
    """Return what two spellings of a word have in common.

    >>> folded("Yes ") == folded("yes"), folded(" A") == folded("a")
    (True, False)
    """
    bare = text.strip()
    lower = bare.casefold()
    return bare if len(bare) == 1 and lower not in _LETTERS_OF_ANSWERS else lower


def common_spellings(texts: Iterable[str], counts: Mapping[str, int]) -> dict[str, str]:
    """Return the commonest spelling of each text, without blanks around it.

    >>> common_spellings(["yes", "Yes ", "no"], {"yes": 3, "Yes ": 1, "no": 2})
    {'yes': 'yes', 'Yes ': 'yes', 'no': 'no'}
    """
    commonest: dict[str, str] = {}
    texts = sorted(texts, key=lambda text: (-counts[text], text))
    for text in texts:
        commonest.setdefault(folded(text), text.strip())
    return {text: commonest[folded(text)] for text in texts}


def said_spellings(what: str, spelled: Mapping[str, str]) -> str:
    """Return in words which spellings are one; "" if none are."""
    merged = sorted(text for text, kept in spelled.items() if text != kept)
    if not merged:
        return ""
    listed = ", ".join(map(repr, merged[:_LISTED])) + ", ..." * (len(merged) > _LISTED)
    kept = ", ".join(map(repr, dict.fromkeys(spelled[text] for text in merged[:_LISTED])))
    return f"{what}: {listed} {'is' if len(merged) == 1 else 'are'} read as {kept}"
