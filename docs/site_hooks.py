"""Pages of the site that lie outside docs/, and links between the two; read by mkdocs.yml.

The Markdown is written for a repository, where `../CONTRIBUTING.md` leads out of docs/. On the
site everything lies in one tree: docs/X becomes X, other files keep their path.
"""

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
#: Files outside docs/ that the site shows.
OUTSIDE = (
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "cluster/**/*.*",
    "cluster/**/Dockerfile",
)
_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
_CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)


def outside() -> list[str]:
    """Return the paths of the files outside docs/ that the site shows, from the root."""
    found = {path for pattern in OUTSIDE for path in ROOT.glob(pattern) if path.is_file()}
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def on_files(files: Files, config: Any) -> Files:
    """Add the files outside docs/."""
    for path in outside():
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links of the repository into links of the site."""
    source = page.file.src_uri
    pieces = _CODE.split(markdown)
    pieces[::2] = [
        _LINK.sub(lambda m: m[1] + site_link(m[2], source) + m[3], p) for p in pieces[::2]
    ]
    return "".join(pieces)


def site_link(link: str, source: str) -> str:
    """Return a link of a page as the site has it; links to elsewhere stay as they are."""
    if re.match(r"[a-z]+:", link):
        return link
    folder = PurePosixPath(source if source in outside() else f"docs/{source}").parent
    target = PurePosixPath(os.path.normpath(folder / link))
    if (ROOT / target).is_dir():
        pages = sorted((ROOT / target).glob("*.md"), key=lambda p: (p.name != "README.md", p.name))
        target = target / pages[0].name if pages else target
    path = target.as_posix()
    if path == "README.md":  # the front page of the site says what that of the repository says
        path = "docs/README.md"
    shown = path.removeprefix("docs/")
    return os.path.relpath(shown, PurePosixPath(source).parent)
