"""What SECURITY.md and the page on faults promise, sentence by sentence, and the tests of each.

`tests/promises.toml` has an entry for each sentence of a text and each row of a table, with the
tests that hold it, or with the reason why there is nothing to hold. A row of the table of
promises in SECURITY.md has an entry for each of its sentences.

    python tests/promises.py    prints the file with an empty entry for each new sentence
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w

ROOT = Path(__file__).resolve().parents[1]
LISTED = Path(__file__).with_suffix(".toml")
PAGES = {"security": "SECURITY.md", "faults": "docs/explanation/faults.md"}
#: Where the second cell of each row holds several promises.
_PROMISES = "| to | promise |"
_END = re.compile(r"(?<=[.!?])(?:\*\*)? +(?=[A-Z`(*\[-])")


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a page and the rows of its tables, on one line each.

    Headings, blocks of code and the heads of tables promise nothing.
    """
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for block in re.split(r"\n\s*\n|\n(?=[-|#])", text):
        line = " ".join(block.split())
        if not line or line.startswith("#") or re.fullmatch(r"[|: -]+", line):
            continue
        if not line.startswith("|"):
            yield from _END.split(line.removeprefix("- "))
    for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        head, _, *rows = table.splitlines()
        for row in rows:
            cells = [cell.strip() for cell in row.strip("|").split(" | ")]
            if head.startswith(_PROMISES):
                yield from _END.split(cells[1])
            else:
                yield " | ".join(cell for cell in cells if cell)


def listed() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the entries of each page by sentence."""
    found = tomllib.loads(LISTED.read_text("utf-8")) if LISTED.exists() else {}
    return {page: {one["says"]: one for one in entries} for page, entries in found.items()}


def is_there(test: str) -> bool:
    """Return whether a test exists, named as `faults/test_x.py::test_y` or `soak/x.py`."""
    file, _, name = test.partition("::")
    path = ROOT / "tests" / file
    if not path.is_file() or (not name and path.parent.name != "soak"):
        return False
    return not name or re.search(rf"^ *def {name}\(", path.read_text("utf-8"), re.M) is not None


def main() -> None:
    """Print the file, with what is new at its place."""
    before = listed()
    pages = {
        key: [
            before.get(key, {}).get(one) or {"says": one, "tests": []} for one in sentences(text)
        ]
        for key, text in ((k, (ROOT / p).read_text("utf-8")) for k, p in PAGES.items())
    }
    sys.stdout.write(tomli_w.dumps(pages, multiline_strings=False))


if __name__ == "__main__":
    main()
