"""Names and categories of new data that differ from those of training in their Unicode form alone.

"é" is one character or two, an e and an accent (Unicode Standard Annex 15). Both look alike, and
which one a file has depends on the system that wrote it. What is equal after normalisation is the
same here, unless training had both forms.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterable

import pandas as pd

from nas_evidence.data.table_columns import Preparation
from nas_evidence.plumbing.foreign_text import shortened


def in_known_forms(
    frame: pd.DataFrame, preparation: Preparation
) -> tuple[pd.DataFrame, list[str]]:
    """Return a table with names and categories in the form of training, and what was changed.

    Args:
        frame: new data; names of columns as text.
        preparation: of the training rows.
    """
    known = _by_form(name for name in preparation.places if name not in frame.columns)
    names = {name: known[form] for name in frame.columns if (form := _form(name)) in known}
    frame = frame.rename(columns=names) if names else frame
    said = [
        f"column {shortened(name)!r} is named in another Unicode form than in training, taken as "
        "the same"
        for name in names.values()
    ]
    for column in preparation.columns:
        forms = _by_form(column.categories)
        if not forms or column.name not in frame.columns:
            continue
        cells = frame[column.name]
        texts = {one for one in cells.dropna().unique() if isinstance(one, str)}
        others = {
            one: forms[form]
            for one in texts
            if one.strip() not in column.categories and (form := _form(one.strip())) in forms
        }
        if others:
            frame = frame.assign(**{column.name: cells.replace(others)})
            shown = shortened(next(iter(others)))
            said.append(
                f"column {column.name!r}: cells in another Unicode form than in training "
                f"({shown!r}, {int(cells.isin(others).sum())} in all) are taken as the same"
            )
    return frame, said


def _by_form(texts: Iterable[str]) -> dict[str, str]:
    """Return the texts beyond ASCII by their normal form, those with a form of their own."""
    found = [text for text in texts if not text.isascii()]
    counts = Counter(map(_form, found))
    return {form: text for text in found if counts[form := _form(text)] == 1}


def _form(text: object) -> str:
    return unicodedata.normalize("NFC", str(text))
