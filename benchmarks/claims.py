"""Writes the page of the sentences that a user acts on: what each promises, and how often it errs.

    python benchmarks/claims.py page

`docs/experiments/claims.md` is made from `results/claims/*.json`, one file for each topic; the
scripts `claims_TOPIC.py` write them. A file has `hardware`, `versions`, `date` and

    rows    claim, place, promise, before, after, n, spread, script
    tables  title, header, rows, and a `note` if there is something to say of the table

`place` is where a user reads the claim: first screen, report, page, card or Python. `before` and
`after` are the measured errors with the code before and after it was mended.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from _common import HERE, RESULTS, filled

CLAIMS = RESULTS / "claims"
PAGE = HERE.parent / "docs" / "experiments" / "claims.md"
#: Columns of the table of all claims, and their headings.
COLUMNS: Mapping[str, str] = {
    "claim": "sentence",
    "place": "where",
    "promise": "promise",
    "before": "erred before",
    "after": "errs now",
    "n": "studies",
    "spread": "spread",
    "script": "script",
}


def stored(folder: Path = CLAIMS) -> dict[str, dict[str, Any]]:
    """Return the results by topic, in the order of their names.

    Raises:
        ValueError: if a row lacks a column of the table.
    """
    found = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("*.json"))
    }
    for topic, one in found.items():
        for row in one["rows"]:
            if lacks := set(COLUMNS) - set(row):
                raise ValueError(f"a row of {topic}.json lacks {sorted(lacks)}: {row}")
    return found


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table in Markdown; a bar in a cell is escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def of_claims(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return all claims in one table."""
    rows = [
        [f"`{row[name]}`" if name == "script" else row[name] for name in COLUMNS]
        for one in found.values()
        for row in one["rows"]
    ]
    return table([*COLUMNS.values()], rows)


def of_tables(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the tables behind the claims, and where they were measured."""
    parts = []
    for topic, one in found.items():
        with_versions = ", ".join(f"{name} {own}" for name, own in one["versions"].items())
        for own in one["tables"]:
            parts += [f"### {own['title']}", *filter(None, [own.get("note")])]
            parts.append(table(own["header"], own["rows"]))
        parts.append(f"`results/claims/{topic}.json`: {one['date']}, {one['hardware']}; "
                     f"{with_versions}.")  # fmt: skip
    return "\n\n".join(parts)


def written(page: str) -> str:
    """Return the page with its tables as the committed results give them."""
    found = stored()
    return filled(page, {"claims": of_claims(found), "tables": of_tables(found)})


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("page",))
    parser.parse_args()
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
