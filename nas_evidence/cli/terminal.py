"""Text and tables on the two consoles defined here."""

import json
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nas_evidence.plumbing.foreign_text import on_lines, on_one_line, shell_word
from nas_evidence.plumbing.masking import masked
from nas_evidence.spec.likelihoods import TARGET_KINDS

if TYPE_CHECKING:  # it imports pandas, which slows the start
    from nas_evidence.api.results import Study


class _Literal(Console):
    """Prints names, paths and causes literally: no markup, no emoji, no control characters."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, soft_wrap=True, markup=False, emoji=False)

    def print(self, *objects: Any, **how: Any) -> None:
        """Print what rich prints."""
        clean = masked if self.stderr else str  # what errors and notes quote may be of others
        shown = (on_lines(clean(o)) if isinstance(o, str) else o for o in objects)
        super().print(*shown, **how)


out, err = _Literal(), _Literal(stderr=True)


def say_flaws(study: "Study") -> None:
    """Say what is missing of a study's results, and what was changed by hand in its file."""
    for line in study.missing:
        err.print(f"{line}; `{program()} verify` says more, `resume` runs it again")
    say_edits(study.folder)


def say_edits(folder: Path) -> None:
    """Say what was changed by hand in the study file of a folder, and may change."""
    from nas_evidence.storage.conditions import edits_of

    for edit in edits_of(folder):
        err.print(f"study.toml was edited, which `resume` takes: {edit}")


def program() -> str:
    """Return the command that runs this program: its name if on the path, else its location."""
    if shutil.which("nas-evidence") or not Path(sys.argv[0]).is_file():
        return "nas-evidence"
    if Path(sys.argv[0]).name == "__main__.py":
        return "python -m nas_evidence"
    path = Path(sys.argv[0]).absolute()
    return shell_word(
        str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
    )


def typed(*words: object) -> str:
    """Return a command of this program as it can be typed, its words quoted for a shell."""
    return f"{program()} {' '.join(map(shell_word, words))}"


def here(command: str) -> str:
    """Return a command of `nas-evidence` as it is typed here."""
    return re.sub("^nas-evidence(?= )", lambda _: program(), command)


def print_foreign(text: str) -> None:
    """Print what a log or a job says: without its colours, and nothing that moves the cursor."""
    typer.echo(on_lines(masked(re.sub(r"\x1b\[[0-9;]*m", "", text))), nl=False)


#: Columns that a narrow terminal leaves out, first to go first; a pipe has all.
_DISPENSABLE = (
    "SOTL",
    "error",
    "standard error",
    "valid",
    "parameters",
    "seeds",
    "spread",
    *(f"test {kind.metrics['log_loss']}" for kind in TARGET_KINDS.values()),
)


def print_rows(
    title: str,
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    dispensable: Sequence[str] = (),
) -> None:
    """Print a table on a terminal, or tab-separated text to a pipe.

    On a narrow terminal some columns are left out, so that no cell is cut; after all others those
    that are `dispensable`, the last of them first.
    """
    rows = [[on_one_line(cell) for cell in row] for row in rows]
    header = [on_one_line(name) for name in header]
    if not rows:
        return
    if not out.is_terminal:
        for row in (header, *rows):
            print("\t".join(row))  # noqa: T201
        return
    shown = columns_that_fit(header, rows, out.width, dispensable)
    full = (max(len(header[i]), *(len(row[i]) for row in rows)) + 2 for i in shown)
    wide = sum(full) <= out.width
    table = Table(title=on_one_line(title), title_justify="left", box=None, header_style="bold")
    for i in shown:
        left = header[i] in ("family", "note", "score")
        title = header[i] if wide else header[i].replace(" ", "\n")  # else a word is broken
        table.add_column(title, justify="left" if left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(row[i] for i in shown))
    out.print(table)
    if missing := [name for i, name in enumerate(header) if i not in shown]:
        out.print(f"({', '.join(missing)}: in a wider terminal, or through a pipe)")


def columns_that_fit(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    dispensable: Sequence[str] = (),
) -> list[int]:
    """Return which columns to show in `width` characters; two of space lie between columns.

    A heading may break at a blank.

    >>> columns_that_fit(["rank", "SOTL"], [["1", "0.123456789"]], 12)
    [0]
    """
    needed = [
        max(*(len(word) for word in name.split()), *(len(row[i]) for row in rows))
        for i, name in enumerate(header)
    ]
    shown = list(range(len(header)))
    for name in (*_DISPENSABLE, *reversed(dispensable)):
        if sum(needed[i] + 2 for i in shown) <= width:
            break
        shown = [i for i in shown if header[i] != name]
    return shown


def print_line(name: str, value: object) -> None:
    """Print a name and its value, for a terminal or a pipe."""
    if out.is_terminal:
        out.print(Text(f"{name:20}", "bold"), value)
    else:  # without rich, which turns tabs into spaces
        print(f"{name}\t{on_one_line(value)}")  # noqa: T201


def print_json(value: object) -> None:
    """Print a value as JSON."""
    print(json.dumps(value, indent=1, default=str))  # noqa: T201


def statistic_text(cell: object) -> str:
    """Return a cell of a table of statistics."""
    if cell is None:
        return "undefined"
    return f"{cell:.4f}" if isinstance(cell, float) else str(cell)
