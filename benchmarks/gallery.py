"""Count the cells of the kept results of `nas-evidence reproduce` again.

python benchmarks/gallery.py [DIR...]     with new results: `nas-evidence reproduce NAME --to DIR`

`of_papers` is the table of docs/results/five-papers.md (`result_tables.py`). `full_page` has every
value; docs/_make/site_hooks.py builds it.
"""

import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    names,
    result_text,
    script,
    stored_results,
    where_measured,
)

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "reproduce" / "results"
IMAGES = ROOT / "docs" / "images" / "reproduce"


def of_papers() -> str:
    """Return which figures and tables agree in all cells, in some, or were not run, by paper."""
    rows = listed()
    lines = [["paper", "all cells agree", "some of them", "none, or not run"], ["---"] * 4]
    total: Counter[str] = Counter()
    for paper in dict.fromkeys(row.paper for row in rows):
        cells: dict[str, list[str]] = {"reproduced": [], "in part": [], "other": []}
        for row in (row for row in rows if row.paper == paper):
            kind = row.status if row.status in cells else "other"
            agree = row.agree.removesuffix(" checks of a picture")
            cells[kind].append(f"{row.figure} ({agree or row.status})")
            total[kind] += 1
        lines.append([paper, *map(", ".join, cells.values())])
    counts = [str(total[kind]) for kind in ("reproduced", "in part", "other")]
    lines.append([f"number of {len(rows)}", *counts])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def full_page(results: Iterable[Mapping[str, Any]], rows: Sequence[ListRow]) -> str:
    """Return the page with every value beside the published one.

    Args:
        results: as kept in `results/`.
        rows: of `listed`.
    """
    by_name = {result["name"]: result for result in results}
    usual = _usual_place(by_name.values())
    lines = ["# Published figures in full", "", "[Overview](five-papers.md). " + usual]
    for title, of_paper in _papers(by_name, rows):
        lines += ["", f"## {title}"]
        for one in of_paper:
            lines += ["", f"### {one['figure']}: {one['title']}", ""]
            lines += body(one, f"../images/reproduce/{one['name']}.png")
            elsewhere = where_measured(one)
            lines += ["", how_made(one) + (f" {elsewhere}" if elsewhere != usual else "")]
    return "\n".join(lines) + "\n"


def _usual_place(results: Iterable[Mapping[str, Any]]) -> str:
    places = Counter(where_measured(result) for result in results)
    return places.most_common(1)[0][0] if places else ""


def _papers(
    by_name: Mapping[str, Mapping[str, Any]], rows: Sequence[ListRow]
) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Yield the title of each paper and its results, in the order of the rows."""
    for paper, title, _ in PAPERS.values():
        names = dict.fromkeys(r.name for r in rows if r.paper == paper and r.name in by_name)
        if names:
            yield title, [by_name[name] for name in names]


def written_in_full() -> str:
    """Return the page with every value, as it follows from the kept results."""
    return full_page(stored_results().values(), listed())


def take_in(folder: Path) -> None:
    """Copy the results in a folder, and their figures, into the repository."""
    for name in names():
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
    for name, result in stored_results().items():
        write_whole(RESULTS / f"{name}.json", result_text(judged(result, script(name))))


if __name__ == "__main__":
    take_in(RESULTS)  # figures that a script has written there belong to the images
    for written_beside in (*RESULTS.glob("*.png"), *RESULTS.glob("*.md")):
        written_beside.unlink()
    for argument in sys.argv[1:]:
        if Path(argument).is_dir():
            take_in(Path(argument))
    count_again()
