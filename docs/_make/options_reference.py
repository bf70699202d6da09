"""The reference page of the options that functions share, from their declarations.

python docs/_make/options_reference.py prints it.
"""

import sys
from typing import get_type_hints

from nas_evidence.api import shared_options as declared

_HEAD = """\
# Options in Python

| option | meaning | taken by |
|---|---|---|
"""
TAKEN = {
    "search": declared.SearchOptions,
    "resume": declared.RunOptions,
    "refit": declared.RefitOptions,
    "submit": declared.SubmitOptions,
    "resubmit": declared.ResubmitOptions,
    "predict": declared.PredictOptions,
    "Study.evaluate": declared.JudgeOptions,
}


def page() -> str:
    """Return the page, as Markdown."""
    hints = {taker: get_type_hints(kind, include_extras=True) for taker, kind in TAKEN.items()}
    meant = {name: hint.__metadata__[0] for one in hints.values() for name, hint in one.items()}
    rows = []
    for name, option in sorted(meant.items()):
        takers = ", ".join(f"`{taker}`" for taker, taken in hints.items() if name in taken)
        text = " ".join(f"{option.text} {option.more}".split())
        rows.append(f"| `{name}` | {text.replace('|', chr(92) + '|')} | {takers} |\n")
    return _HEAD + "".join(rows)


if __name__ == "__main__":
    sys.stdout.write(page())
