"""The reference page of the files of the package: a table for each room, from first lines.

python docs/_make/file_reference.py prints it.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "nas_evidence"
_HEAD = """\
# Files of the package

What each file of the package is for, room by room. [Architecture](../architecture.md) says what
the rooms are for and which may import which.
"""


def page() -> str:
    """Return the page, as Markdown."""
    return "\n".join(_sections()) + "\n"


def first_line(path: Path) -> str:
    """Return the first line of a file's docstring without its full stop."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0].removesuffix(".")


def _sections() -> Iterator[str]:
    yield _HEAD
    for room in sorted(path.parent for path in PACKAGE.glob("*/__init__.py")):
        yield f"## {room.name}\n\n{first_line(room / '__init__.py')}.\n"
        yield "| file | what for |\n|---|---|"
        for path in sorted(room.glob("[!_]*.py")):
            yield f"| `{path.name}` | {first_line(path)} |"
        yield ""


if __name__ == "__main__":
    sys.stdout.write(page())
