"""Claims about the documentation site: it builds without a warning, and loads nothing from
elsewhere. `mkdocs build --strict` checks every link, anchor and page of the navigation."""

import os
import re
import subprocess
import sys
import types
from importlib.util import find_spec
from pathlib import Path

import pytest

import nas_evidence

ROOT = Path(__file__).resolve().parents[1]
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


def test_every_public_name_is_in_the_reference_of_the_python_interface() -> None:
    pages = (ROOT / "docs" / "reference").glob("python-*.md")
    described = {
        path for page in pages for path in re.findall(r"^::: ([\w.]+)", page.read_text(), re.M)
    }
    for name in set(nas_evidence.__all__) - {"__version__"}:
        path = f"{nas_evidence._EXPORTS[name]}.{name}"
        assert path in described, f"no docs/reference/python-*.md has the line '::: {path}'"


@pytest.mark.long
@needs_mkdocs
@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_loads_nothing_from_the_network(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    for page in tmp_path.rglob("*.html"):
        loaded = ["".join(pair) for pair in _LOADED.findall(page.read_text(encoding="utf-8"))]
        assert len(loaded) >= 2, page  # its own styles and scripts
        away = [one for one in loaded if re.match(r"(?!data:)[a-z]+:|//", one)]
        assert away == [], page
    for style in tmp_path.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        assert "@import" not in text
        assert not re.search(r"url\([\"']?(?:https?:)?//", text), style
    search = (tmp_path / "reference" / "python-studies.html").read_text(encoding="utf-8")
    assert 'id="nas_evidence.api.studies.search"' in search
    assert "settle_seconds" in (tmp_path / "reference" / "columns.html").read_text("utf-8")


@needs_mkdocs
def test_links_of_the_repository_become_links_of_the_site(
    caplog: pytest.LogCaptureFixture,
) -> None:
    import site_hooks

    def shown(text: str, source: str = "how-to/cluster.md") -> str:
        page = types.SimpleNamespace(file=types.SimpleNamespace(src_uri=source))
        return site_hooks.on_page_markdown(text, page)

    for written, expected in {
        "[a](stores.md#b)": "[a](stores.md#b)",
        "[a](../../SECURITY.md)": "[a](../SECURITY.md)",
        "[a](../../README.md)": "[a](../README.md)",
        "[a](../../benchmarks/results) b": "a b",
        "`[a](../../SECURITY.md)`": "`[a](../../SECURITY.md)`",
        "[a](https://example.org)": "[a](https://example.org)",
        "*Study file*, *other*": "[Study file](../reference/study-file.md), *other*",
        "**bold** *Study\nfile* `*Glossary*`": (
            "**bold** [Study\nfile](../reference/study-file.md) `*Glossary*`"
        ),
    }.items():
        assert shown(written) == expected
    assert shown("[a](docs/architecture.md)", "CONTRIBUTING.md") == "[a](architecture.md)"
    assert shown("[a](study-file.md)", "reference/cli.md") == "[a](study-file.md)"
    assert caplog.messages == []
    shown("[a](none.md) [b](../reference/study-file.md)")  # no clone has the second
    missing = [one.split()[2].removeprefix("docs/") for one in caplog.messages]
    assert missing == ["how-to/none.md,", "reference/study-file.md,"]
