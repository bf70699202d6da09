"""Pages of the site that are not in docs/, and links between the two; read by mkdocs.yml.

The Markdown is written for a repository, where `../CONTRIBUTING.md` leads out of docs/. On the
site everything lies in one tree: docs/X becomes X, other files keep their path.
"""

import importlib.util
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
#: Pages that are built with the site: the script, and its function that returns the page.
BUILT = {
    "reference/files.md": ("docs/file_reference.py", "page"),
    "results/papers-in-full.md": ("benchmarks/gallery.py", "written_in_full"),
}
#: The title of the last one, as results/five-papers.md names it.
FULL = "Published figures in full"
#: An entry of reference/api.md, which mkdocstrings renders from the comment before its text.
_ENTRY = re.compile(r"<!-- (::: .*?)\s*-->.*?<!-- /::: -->", re.DOTALL)
#: The first of a block of code, a link or picture (its text may hold code), and a span of code.
_PARTS = re.compile(
    r"```.*?```|(!?)\[((?:`[^`]*`|[^\]`])*)\]\(([^)\s#]+)((?:#[^)\s]*)?)\)|`[^`\n]*`", re.DOTALL
)


def outside() -> list[str]:
    """Return the paths of the files outside docs/ that the site shows, from the root."""
    found = {path for pattern in OUTSIDE for path in ROOT.glob(pattern) if path.is_file()}
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def on_files(files: Files, config: Any) -> Files:
    """Add the files outside docs/, and the pages that are built."""
    for path in outside():
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    for page, (script, function) in BUILT.items():
        files.append(File.generated(config, page, content=_built(script, function)))
    return files


def _built(script: str, function: str) -> str:
    spec = importlib.util.spec_from_file_location("_", ROOT / script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(getattr(module, function)())


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links of the repository into links of the site; of what is not there, keep the text.

    A page that is built is no link in the repository; there its title stands in italics.
    """
    markdown = _ENTRY.sub(r"\1", markdown)
    markdown = markdown.replace(f"*{FULL}*", f"[{FULL}](papers-in-full.md)")

    def shown(part: re.Match[str]) -> str:
        if part[3] is None:  # code
            return part[0]
        link = site_link(part[3], page.file.src_uri)
        return part[2] if link is None else f"{part[1]}[{part[2]}]({link}{part[4]})"

    return _PARTS.sub(shown, markdown)


def site_link(link: str, source: str) -> str | None:
    """Return a link of a page as the site has it, or None if its target is not there.

    Args:
        link: as written, without its anchor.
        source: the page that it is on, as the site names it.
    """
    if re.match(r"[a-z]+:", link):
        return link
    outer = outside()
    folder = PurePosixPath(source if source in outer else f"docs/{source}").parent
    target = PurePosixPath(os.path.normpath(folder / link))
    if (ROOT / target).is_dir():
        pages = sorted((ROOT / target).glob("*.md"), key=lambda p: (p.name != "README.md", p.name))
        target = target / pages[0].name if pages else target
    path = target.as_posix()
    if path == "README.md":  # the front page of the site says what that of the repository says
        path = "docs/README.md"
    if not path.startswith("docs/") and path not in outer:
        return None
    return os.path.relpath(path.removeprefix("docs/"), PurePosixPath(source).parent)
