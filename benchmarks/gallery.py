"""Count the cells of the kept results again and make `docs/explanation/gallery.md` from them.

python benchmarks/gallery.py [DIR...]     with new results: `nas-evidence reproduce NAME --to DIR`
"""

import json
import shutil
import sys
from pathlib import Path

from nas_evidence.audit.published import (
    gallery_page,
    judged,
    listed,
    result_text,
    scripts,
    stored_results,
)
from nas_evidence.plumbing.files import write_whole

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "reproduce" / "results"
IMAGES = ROOT / "docs" / "images" / "reproduce"
PAGE = ROOT / "docs" / "explanation" / "gallery.md"


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
