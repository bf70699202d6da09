"""Takes the pictures of reports in README and docs from the studies of the tutorials.

    python docs/_make/tutorial_output.py FOLDER && python docs/_make/page_pictures.py FOLDER

Needs Chromium. Each picture is the top of a page as a reader sees it: `digits` for the README,
`patients` for "Read the report", there on a desk and on a telephone. With 256 colours each takes
less than 0.3 MB.
"""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from browser import browser  # noqa: E402


class Picture(NamedTuple):
    """The top of the page of a study, to a height, in pixels; 0 is up to `Details`."""

    study: str
    width: int
    height: int


PICTURES = {
    "report": Picture("digits", 1280, 800),
    "reading-top": Picture("patients", 1280, 0),
    "reading-phone": Picture("patients", 390, 1500),
}
_END = "document.querySelector('h2.quiet').getBoundingClientRect().top + scrollY"


def main(folder: str) -> None:
    """Write the pictures of the studies below a folder in which the tutorials have run."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("page_pictures.py needs chromium")
    with tempfile.TemporaryDirectory() as place, browser(chromium, Path(place) / "p") as tab:
        for name, picture in PICTURES.items():
            page = Path(folder).absolute() / "runs" / picture.study / "report" / "index.html"
            tab.open(page, width=picture.width, height=picture.height or 800)
            height = picture.height or round(tab.evaluate(_END))
            whole = Path(place) / f"{name}.png"
            tab.screenshot(whole)
            with Image.open(whole) as shot:
                top = shot.convert("RGB").crop((0, 0, picture.width, min(height, shot.height)))
            top.quantize(256).save(ROOT / "docs" / "images" / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
