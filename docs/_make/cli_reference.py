"""The reference page of the command line: every verb with its arguments and options, from typer.

python docs/_make/cli_reference.py prints it.
"""

import sys
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import groupby
from typing import Any

from typer.main import get_command

from nas_evidence.cli.main import app

_HEAD = """\
# Command line

`nas-evidence VERB --help` prints the same. Exit codes are under
[messages](messages.md#exit-codes), keys for `--set` in the [study file](study-file.md).
Options such as `--set`, `--drop` and `--id` can be given again.
"""
#: In so many verbs an option stands in a table of its own.
_OFTEN = 3


def page() -> str:
    """Return the page, as Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    verbs: dict[str, Any] = dict(get_command(app).commands)  # type: ignore[attr-defined]
    rows = [row for verb in verbs.values() for row in map(_row, _options(verb))]
    shared = [row for row, n in Counter(rows).items() if n >= _OFTEN]
    yield _HEAD
    yield "| verb | what it does |\n|---|---|"
    for name, verb in verbs.items():
        yield f"| [`{name}`](#{name}) | {_cell(_first(verb.help))} |"
    for title, names in groupby(verbs, lambda name: verbs[name].rich_help_panel):
        yield f"\n## {title}"
        for name in names:
            yield from _verb(name, verbs[name], shared)
    yield "\n## Shared options\n\n| option | meaning |\n|---|---|"
    yield from sorted(shared)


def _options(verb: Any) -> list[Any]:
    return [p for p in verb.params if p.opts[0].startswith("-") and "--help" not in p.opts]


def _row(option: Any) -> str:
    value = "" if getattr(option, "is_flag", False) else f" {option.metavar or _kind(option)}"
    words = (f"`{o}{value.replace('|', ' or ')}`" for o in (*option.opts, *option.secondary_opts))
    return f"| {', '.join(words)} | {_cell(option.help)} |"


def _verb(name: str, verb: Any, shared: Collection[str]) -> Iterator[str]:
    """Yield the section of a verb: usage, description, examples, table of its parameters."""
    arguments = [p for p in verb.params if not p.opts[0].startswith("-")]
    options = _options(verb)
    words = [(p.metavar or p.name.upper()).strip("[]").replace("] [", " ") for p in arguments]
    usage = [w if p.required else f"[{w}]" for w, p in zip(words, arguments, strict=True)]
    yield f"\n### {name}\n"
    yield f"`{' '.join(['nas-evidence', name, *usage, '[OPTIONS]' * bool(options)]).strip()}`\n"
    text, examples = _described(verb.help or "")
    yield f"{text}\n"
    if examples:
        yield "".join(f"- `{example}`\n" for example in examples)
    own = [f"| `{w}` | {_cell(p.help)} |" for w, p in zip(words, arguments, strict=True)]
    own += [row for row in map(_row, options) if row not in shared]
    if own:
        yield "| argument or option | meaning |\n|---|---|"
        yield from own
    also = [f"`{p.opts[0]}`" for p in options if _row(p) in shared]
    if also:
        yield f"\n[Shared options](#shared-options): {', '.join(also)}."


def _kind(option: Any) -> str:
    """Return the word for the value of an option that names none."""
    name: str = option.opts[-1].lstrip("-")
    return name.rpartition("-")[2].upper()


def _first(text: str | None) -> str:
    return (text or "").strip().partition("\n\n")[0]


def _described(text: str) -> tuple[str, list[str]]:
    r"""Return a help text without its examples, and the examples.

    >>> _described("Do it.\n\nExample: nas-evidence do a")
    ('Do it.', ['nas-evidence do a'])
    """
    lines = text.strip().splitlines()
    shown = [line for line in lines if not line.startswith("Example:")]
    examples = [line.removeprefix("Example:").strip() for line in lines if line not in shown]
    return "\n".join(shown).strip(), examples


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    sys.stdout.write(page())
