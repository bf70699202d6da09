"""Pages of the site that no file holds, and links between docs/ and the rest; see mkdocs.yml.

The Markdown is written for a repository, where `../CONTRIBUTING.md` leads out of docs/. On the
site everything lies in one tree: docs/X becomes X, other files keep their path. A page that is
built has no file to link: pages name it by its title in italics, which is a link on the site.
"""

import logging
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import cli_reference
import file_reference
import glossary_reference
import options_reference
import study_reference
import table_reference
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
#: Files outside docs/ that the site shows.
OUTSIDE = (
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "cluster/**/*.*",
    "cluster/**/Dockerfile",
    "notebooks/*.*",
)


def _in_full() -> str:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import gallery

    return str(gallery.written_in_full())


#: Title of each page that is built, its place, and what makes it.
BUILT: Mapping[str, tuple[str, Callable[[], str]]] = {
    "Command line": ("reference/cli.md", cli_reference.page),
    "Options in Python": ("reference/python-options.md", options_reference.page),
    "Study file": ("reference/study-file.md", study_reference.page),
    "Columns of the tables": ("reference/columns.md", table_reference.page),
    "Glossary": ("reference/glossary.md", glossary_reference.page),
    "Files of the package": ("reference/files.md", file_reference.page),
    "Published figures in full": ("results/papers-in-full.md", _in_full),
}
#: The first of a block of code, a link or picture (its text may hold code), a page that is built,
#: and a span of code.
_TITLES = "|".join(title.replace(" ", r"\s") for title in BUILT)
_PARTS = re.compile(
    r"```.*?```|(!?)\[((?:`[^`]*`|[^\]`])*)\]\(([^)\s#]+)((?:#[^)\s]*)?)\)"
    rf"|\*({_TITLES})\*|`[^`\n]*`",
    re.DOTALL,
)
_LOG = logging.getLogger("mkdocs.hooks")


def outside() -> list[str]:
    """Return the paths of the files outside docs/ that the site shows, from the root."""
    found = {path for pattern in OUTSIDE for path in ROOT.glob(pattern) if path.is_file()}
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def on_files(files: Files, config: Any) -> Files:
    """Add the files outside docs/, and the pages that are built."""
    for path in outside():
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    for page, made in BUILT.values():
        files.append(File.generated(config, page, content=made()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links of the repository into links of the site; of what is not there, keep the text."""
    source = page.file.src_uri

    def shown(part: re.Match[str]) -> str:
        if part[5]:
            built, _ = BUILT[" ".join(part[5].split())]
            return f"[{part[5]}]({os.path.relpath(built, PurePosixPath(source).parent)})"
        if part[3] is None:  # code
            return part[0]
        link = site_link(part[3], source)
        return part[2] if link is None else f"{part[1]}[{part[2]}]({link}{part[4]})"

    return _PARTS.sub(shown, markdown)


def site_link(link: str, source: str) -> str | None:
    """Return a link of a page as the site has it, or None if its target is not there.

    What is not in the repository either is a warning, which `--strict` makes an error.

    Args:
        link: as written, without its anchor.
        source: the page that it is on, as the site names it.
    """
    if re.match(r"[a-z]+:", link):
        return link
    outer = outside()
    folder = PurePosixPath(source if source in outer else f"docs/{source}").parent
    target = PurePosixPath(os.path.normpath(folder / link))
    built = {f"docs/{page}" for page, _ in BUILT.values()}
    is_built = {f"docs/{source}", str(target)} <= built
    if not is_built and not (ROOT / target).exists():
        _LOG.warning("%s links %s, which does not exist", source, target)
    if (ROOT / target).is_dir():
        pages = sorted((ROOT / target).glob("*.md"), key=lambda p: (p.name != "README.md", p.name))
        target = target / pages[0].name if pages else target
    path = target.as_posix()
    if path == "README.md":  # the front page of the site says what that of the repository says
        path = "docs/README.md"
    if not path.startswith("docs/") and path not in outer:
        return None
    return os.path.relpath(path.removeprefix("docs/"), PurePosixPath(source).parent)
