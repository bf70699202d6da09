"""Count the cells of the kept results again and make `docs/experiments/papers.md` from them.

python benchmarks/gallery.py [DIR...]     with new results: `nas-evidence reproduce NAME --to DIR`

The site also has every value: `full_page`, which docs/site_hooks.py builds.
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
    agreement,
    body,
    how_made,
    judged,
    kept_cells,
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
PAGE = ROOT / "docs" / "experiments" / "papers.md"


_HEAD = """\
# Which share of the published figures and tables agrees?

**Verdict.** {verdict}

**Rule written before.** In each script of `benchmarks/reproduce/`; that it was fixed before each
run is not recorded.
**Script and results.** `nas-evidence reproduce NAME`, in the short version;
[benchmarks/reproduce/results](../../benchmarks/reproduce/results) has every number. The site
(`make docs`) shows each beside the published one, with the rule of its script.

A cell is one published number, or one comparison that the paper states, in one setting. Where a
paper only draws, the cells are our own checks of its picture, and the count says so. The rule
of a script says when a cell agrees, also in settings that the paper does not state. Short versions
run fewer cells than the paper has. Where they are far smaller than the published experiment, the
rule compares orders, not numbers.

{usual}

Cells that agree, of those that ran:

"""


def gallery_page(results: Iterable[Mapping[str, Any]], rows: Sequence[ListRow]) -> str:
    """Return the gallery as Markdown: all rows, then claim and finding of each result.

    Args:
        results: as kept in `results/`.
        rows: of `listed`.
    """
    by_name = {result["name"]: result for result in results}
    usual = _usual_place(by_name.values())
    lines = [_HEAD.format(verdict=_verdict(rows), usual=usual).rstrip(), ""]
    lines += ["| paper | all | some | none, or not run |", "|---|---|---|---|"]
    for paper in dict.fromkeys(row.paper for row in rows):
        cells = {"reproduced": "", "in part": "", "other": ""}
        for row in (row for row in rows if row.paper == paper):
            kind = row.status if row.status in cells else "other"
            said = f"{row.figure} ({row.agree or row.status})"
            cells[kind] += f", {said}" if cells[kind] else said
        lines.append(f"| {paper} | {' | '.join(cells.values())} |")
    for title, of_paper in _papers(by_name, rows):
        lines += ["", f"## {title}", ""]
        for one in of_paper:
            picture = f"[{one['figure']}](../images/reproduce/{one['name']}.png)"
            figure = picture if one["has_figure"] else one["figure"]
            agree = f"{one['status']}, {agreement(one, kept_cells(one))}"
            lines.append(f"- **{figure}** ({agree}). Claim: {one['claim']} Ours: {one['why']}.")
    return "\n".join(lines) + "\n"


def full_page(results: Iterable[Mapping[str, Any]], rows: Sequence[ListRow]) -> str:
    """Return the page with every value beside the published one; arguments of `gallery_page`."""
    by_name = {result["name"]: result for result in results}
    usual = _usual_place(by_name.values())
    lines = ["# Published figures in full", "", "[Overview](papers.md). " + usual]
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
    return gallery_page(stored_results().values(), listed())


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
    PAGE.write_text(written(), encoding="utf-8")
    print(PAGE)
