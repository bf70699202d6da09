"""Count the cells of the kept results again and make `docs/experiments/papers.md` from them.

python benchmarks/gallery.py [DIR...]     with new results: `nas-evidence reproduce NAME --to DIR`
"""

import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nas_evidence.cli.reproduce import make_importable, scripts_folder
from nas_evidence.plumbing.files import write_whole

make_importable(scripts_folder())

from nas_evidence_reproduce._published import (  # noqa: E402
    PAPERS,
    ListRow,
    body,
    how_made,
    judged,
    listed,
    result_text,
    scripts,
    stored_results,
    where_measured,
)

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "reproduce" / "results"
IMAGES = ROOT / "docs" / "images" / "reproduce"
PAGE = ROOT / "docs" / "experiments" / "papers.md"


_GALLERY = [
    "# Which share of the published figures and tables agrees?",
    "",
    "**Verdict.** {verdict}",
    "",
    "**Rule written before.** In each script of `benchmarks/reproduce/`, applied to all cells;",
    "that it was fixed before each run is not recorded.",
    "",
    "Every figure and table of the papers whose methods this package implements, made by",
    "`nas-evidence reproduce NAME` in the short version. The numbers are in",
    "[benchmarks/reproduce/results](../../benchmarks/reproduce/results);",
    "`python benchmarks/gallery.py` counts them again and makes this page from them.",
    "",
    "A cell is one published number, or one comparison that the paper states, in one setting. The",
    "rule by which a cell agrees is fixed in each script and applied to all cells that ran;",
    'settings that the paper does not state count as well as the one that is drawn. "reproduced":',
    'all agree; "in part": some; "differs": none. Short versions run fewer cells than the paper',
    "has, and where they are far smaller than the published experiment the rule compares orders,",
    "not numbers.",
    "",
]


def gallery_page(results: Iterable[Mapping[str, Any]], rows: Sequence[ListRow]) -> str:
    """Return the gallery as Markdown: an overview of all rows, then each result with its figure.

    Args:
        results: as kept in `results/`.
        rows: of `listed`.
    """
    by_name = {result["name"]: result for result in results}
    places = Counter(where_measured(result) for result in by_name.values())
    usual = places.most_common(1)[0][0] if places else ""
    head = [line.format(verdict=_verdict(rows)) for line in _GALLERY]
    lines = [*head, *([usual, ""] if usual else [])]
    lines += ["| paper | figure | script | status | agree |", "|---|---|---|---|---|"]
    for row in rows:
        name = f"`{row.name}`" if row.name else ""
        lines.append(f"| {row.paper} | {row.figure} | {name} | {row.status} | {row.agree} |")
    for paper, (title, _) in PAPERS.items():
        names = dict.fromkeys(r.name for r in rows if r.paper == paper and r.name in by_name)
        if not names:
            continue
        lines += ["", f"## {title}"]
        for name in names:
            one = by_name[name]
            lines += ["", f"### {one['figure']}: {one['title']}", ""]
            lines += body(one, f"../images/reproduce/{name}.png")
            elsewhere = where_measured(one)
            lines += ["", how_made(one) + (f" {elsewhere}" if elsewhere != usual else "")]
    return "\n".join(lines) + "\n"


def _verdict(rows: Sequence[ListRow]) -> str:
    """Return how many rows agree in all cells, in some, in none, and how many were not run."""
    found = Counter(row.status for row in rows)
    full, part, none = (found[status] for status in ("reproduced", "in part", "differs"))
    agree = (
        f"Of {len(rows)} figures and tables, {full} agree in full, {part} in part and {none} not"
    )
    other = len(rows) - full - part - none
    return f"{agree} at all; {other} need a GPU and were not run."


def written() -> str:
    """Return the page as it follows from the kept results."""
    folder = ROOT / "benchmarks" / "reproduce"
    return gallery_page(stored_results(folder).values(), listed(folder))


def take_in(folder: Path) -> None:
    """Copy the results in a folder, and their figures, into the repository."""
    for name in scripts():
        path = folder / f"{name}.json"
        if not path.is_file():
            continue
        if folder.resolve() != RESULTS:
            shutil.copy(path, RESULTS)
        figure = path.with_suffix(".png")
        if figure.is_file():
            shutil.copy(figure, IMAGES)


def count_again() -> None:
    """Write the kept results with cells and status as they follow from their numbers."""
    for name, script in scripts().items():
        path = RESULTS / f"{name}.json"
        if path.is_file():
            write_whole(path, result_text(judged(json.loads(path.read_text("utf-8")), script)))


if __name__ == "__main__":
    take_in(RESULTS)  # figures that a script has written there belong to the images
    for written_beside in (*RESULTS.glob("*.png"), *RESULTS.glob("*.md")):
        written_beside.unlink()
    for argument in sys.argv[1:]:
        if Path(argument).is_dir():
            take_in(Path(argument))
    count_again()
    PAGE.write_text(written(), encoding="utf-8")
    print(PAGE)
