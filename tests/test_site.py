"""Claims about the documentation site: it builds without a warning, loads nothing from elsewhere,
and its navigation leads to every page or to its index."""

import importlib.util
import os
import re
import subprocess
import sys
import types
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

import nas_evidence

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
API = DOCS / "reference" / "api.md"
#: Folders whose pages stand on an index of their own, and pages that only the site has.
INDEXED = ("decisions/",)
BUILT = {"reference/files.md", "results/papers-in-full.md"}
#: What a browser fetches by itself when it opens a page.
_LOADED = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\bsrc=\"?([^\s\">]+)"
    r"|<link\b(?=[^>]*\brel=\"?(?:stylesheet|icon|preload|preconnect|dns-prefetch|modulepreload))"
    r"[^>]*?\bhref=\"?([^\s\">]+)"
)
needs_mkdocs = pytest.mark.skipif(
    not all(find_spec(name) for name in ("mkdocs", "material", "mkdocstrings")),
    reason="the extra `docs` (mkdocs-material, mkdocstrings) is not installed",
)


def navigation() -> list[str]:
    """Return the pages of the navigation in mkdocs.yml."""
    tree = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    found, left = [], [tree]
    while left:
        part = left.pop(0)
        if isinstance(part, str):
            found.append(part)
        else:
            left += part.values() if isinstance(part, dict) else part
    return found


def test_every_page_of_the_documentation_is_in_the_navigation_or_an_index_once() -> None:
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    own_index = {page for page in pages if page.startswith(INDEXED)}
    shown = navigation()
    linked = {*re.findall(r"\]\(([^)#]+)", (DOCS / "README.md").read_text(encoding="utf-8"))}
    left_out = pages - own_index - {*shown}
    assert left_out <= linked, "add the page to `nav` or to docs/README.md"
    assert {"../CHANGELOG.md", "../SECURITY.md", "../cluster/README.md"} <= linked
    assert {*shown} & own_index == {f"{folder}README.md" for folder in INDEXED}
    assert len(shown) == len({*shown})
    for other in {*shown} - pages - BUILT:
        assert (ROOT / other).is_file(), other


def test_every_public_name_is_in_the_reference_of_the_python_interface() -> None:
    text = API.read_text(encoding="utf-8")
    described = re.findall(r"^<!-- ::: ([\w.]+)", text, flags=re.MULTILINE)
    for name in set(nas_evidence.__all__) - {"__version__"}:
        path = f"{nas_evidence._EXPORTS[name]}.{name}"
        assert path in described, f"docs/reference/api.md lacks the line '<!-- ::: {path} -->'"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does; a warning stops it."""
    folder = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.long
@needs_mkdocs
@pytest.mark.slow
def test_the_site_builds_and_shows_every_page(site: Path) -> None:
    for page in navigation():
        stem = page.removesuffix(".md").removesuffix("README")
        name = f"{stem}index.html" if page.endswith("README.md") else f"{stem}.html"
        assert (site / name).is_file(), page
    for page in BUILT:
        assert (site / page).with_suffix(".html").is_file(), page
    text = (site / "reference" / "api.html").read_text(encoding="utf-8")
    for name in ("nas_evidence.api.studies.search", "nas_evidence.api.results.Study.predict"):
        assert f'id="{name}"' in text


@pytest.mark.long
@needs_mkdocs
@pytest.mark.slow
def test_a_page_of_the_site_loads_nothing_from_the_network(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = ["".join(pair) for pair in _LOADED.findall(page.read_text(encoding="utf-8"))]
        assert len(loaded) >= 2, page  # its own styles and scripts
        for target in loaded:
            assert not re.match(r"[a-z]+:|//", target) or target.startswith("data:"), (
                page,
                target,
            )
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        assert "@import" not in text
        assert not re.search(r"url\([\"']?(?:https?:)?//", text), style


@pytest.mark.parametrize(
    "tag",
    [
        '<script src="https://cdn.example/x.js">',
        '<link rel="stylesheet" href="//fonts.example/css">',
        '<link href="https://fonts.example" rel="preconnect">',
        '<img alt="" src="http://example.org/a.png">',
    ],
)
def test_what_would_be_loaded_from_elsewhere_is_found(tag: str) -> None:
    (found,) = ["".join(pair) for pair in _LOADED.findall(tag)]
    assert "//" in found


@needs_mkdocs
def test_the_site_renders_the_entries_of_the_python_interface_itself() -> None:
    spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "site_hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    page = types.SimpleNamespace(file=types.SimpleNamespace(src_uri="reference/api.md"))
    text = API.read_text(encoding="utf-8")
    shown = hooks.on_page_markdown(text, page)
    assert shown.count("\n::: ") == text.count("<!-- ::: ") >= 40
    assert "::: nas_evidence.spec.study.StudySpec\n    options:\n      members: false\n" in shown
    assert "<!--" not in shown
    assert "### " not in shown


@needs_mkdocs
def test_links_of_the_repository_become_links_of_the_site() -> None:
    spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "site_hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    page = types.SimpleNamespace(file=types.SimpleNamespace(src_uri="how-to/cluster.md"))
    for written, shown in {
        "[a](stores.md#b)": "[a](stores.md#b)",
        "[a](../../SECURITY.md)": "[a](../SECURITY.md)",
        "[`a`](../../cluster)": "[`a`](../cluster/README.md)",
        "[a](../../README.md)": "[a](../README.md)",
        "[a](../../benchmarks/results) b": "a b",
        "`[a](../../SECURITY.md)`": "`[a](../../SECURITY.md)`",
        "[a](https://example.org)": "[a](https://example.org)",
    }.items():
        assert hooks.on_page_markdown(written, page) == shown
    outer = types.SimpleNamespace(file=types.SimpleNamespace(src_uri="CONTRIBUTING.md"))
    assert hooks.on_page_markdown("[a](docs/architecture.md)", outer) == "[a](architecture.md)"
