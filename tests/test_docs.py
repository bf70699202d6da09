"""Claims about the pages: the files, tests, commands and scores that they name exist."""

import ast
import functools
import os
import re
import shlex
import subprocess
import sys
import types
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import duckdb
import pytest
from fakes import FakeExecutor, Silent
from records import plain_study
from typer.main import get_command

import nas_evidence
from nas_evidence.cli.main import app
from nas_evidence.cli.verbs import VERBS
from nas_evidence.driver.driver import Driver
from nas_evidence.spec.record import TrialStatus
from nas_evidence.spec.toml import shipped_studies
from nas_evidence.storage.events import Event

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_every_path_in_the_documentation_folder_that_the_code_names_exists() -> None:
    files = [
        p
        for folder in ("nas_evidence", "benchmarks", "notebooks", "search_spaces", "tests")
        for p in (ROOT / folder).rglob("*")
        if p.suffix in (".py", ".toml", ".ipynb", ".j2")
    ]
    named = {
        (str(p.relative_to(ROOT)), path)
        for p in files
        for path in re.findall(r"\bdocs/[\w./-]+\.md", p.read_text(encoding="utf-8"))
    }
    assert [(where, path) for where, path in sorted(named) if not (ROOT / path).is_file()] == []


def test_every_test_that_a_difference_or_a_mutant_names_exists() -> None:
    pages = ("docs/reference/differences.md", "benchmarks/results/mutants.json")
    named = {
        name
        for page in pages
        for name in re.findall(r"(?:`|::)(test_\w+)", (ROOT / page).read_text(encoding="utf-8"))
    }
    tests = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "tests").rglob("test_*.py"))
    assert named - {*re.findall(r"^ *def (test_\w+)", tests, re.MULTILINE)} == set()


def commands(page: Path) -> list[list[str]]:
    """Return the `nas-evidence ...` lines of the code blocks of a page, as words."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"```(?:bash|console|sh)[^\n]*\n(.*?)```", text, flags=re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    found = (re.search(r"(?:^|[\s'])nas-evidence ([a-z-][^'\n]*)", line) for line in lines)
    return [shlex.split(one[1].replace("...", ""), comments=True) for one in found if one]


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if commands(p)], ids=lambda p: p.stem)
def test_every_command_and_option_that_a_page_shows_exists(page: Path) -> None:
    verbs = get_command(app).commands
    for verb, *words in commands(page):
        if verb.startswith("-"):
            assert verb == "--version"
            continue
        known = {option for p in verbs[verb].params for option in (*p.opts, *p.secondary_opts)}
        used = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert used <= known, f"nas-evidence {verb} {' '.join(words)}"


def test_no_shipped_study_and_no_example_ranks_by_a_score_that_the_pages_advise_against() -> None:
    advised = {"conditional_evidence", "two_fold", "five_fold"}
    files = [*(ROOT / "search_spaces").glob("*.toml"), *(ROOT / "notebooks").iterdir(), *PAGES]
    for file in files:
        text = file.read_text("utf-8")
        assert {*re.findall(r'objective = \\?"(\w+)\\?"', text)} <= advised, file


# --- the pages say what the code says: statuses, events, exit codes, and quoted messages


DOCS = ROOT / "docs"
MESSAGES = DOCS / "reference" / "messages.md"
TROUBLE = DOCS / "how-to" / "troubleshooting.md"


def spoken(node: ast.AST) -> str | None:
    """Return a string of the code, with "…" for what is filled in; None for other nodes."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = (p.value if isinstance(p, ast.Constant) else "…" for p in node.values)
        return "".join(map(str, parts))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = spoken(node.left), spoken(node.right)
        return None if left is right is None else (left or "…") + (right or "…")
    return None


@functools.cache
def strings() -> tuple[str, ...]:
    """Return every string of the package."""
    files = sorted((ROOT / "nas_evidence").rglob("*.py"))
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text("utf-8"))))
    return tuple({text for node in nodes if (text := spoken(node))})


def is_said(quote: str) -> bool:
    """Tell whether the code has a string with the words of a quote, in their order."""
    words = [re.escape(part) for part in re.split("…+", quote) if part.strip()]
    pattern = re.compile(".*".join(words), re.DOTALL)
    return any(pattern.search(text) for text in strings())


def quotes(page: Path) -> list[str]:
    """Return the messages that a page quotes: in the first column of its tables, with a blank."""
    rows = re.findall(r"^\| `([^`\n]+)` \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [row for row in rows if " " in row]


@pytest.mark.slow
@pytest.mark.parametrize("page", [MESSAGES, TROUBLE], ids=lambda p: p.stem)
def test_every_message_that_a_page_quotes_is_said_by_the_code(page: Path) -> None:
    assert len(quotes(page)) >= 8
    assert [quote for quote in quotes(page) if not is_said(quote)] == []


def test_every_final_status_is_explained() -> None:
    text = MESSAGES.read_text(encoding="utf-8")
    for status in TrialStatus:
        assert f"| `{status}` |" in text or (not status.is_final and f"`{status}`" in text)


def test_every_event_of_the_log_is_explained_and_no_other() -> None:
    found = {kind.model_fields["event"].default for kind in get_args(Event)}
    section = MESSAGES.read_text(encoding="utf-8").partition("## Events")[2]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == found


def test_every_exit_code_is_explained() -> None:
    text = MESSAGES.read_text(encoding="utf-8")
    assert re.findall(r"^\| (\d+) \|", text, re.MULTILINE) == ["0", "1", "2", "130"]


# --- what the README and the page of a study folder show is executed, so that it stays true


README = (ROOT / "README.md").read_text(encoding="utf-8")
FOLDER = (ROOT / "docs" / "reference" / "study-folder.md").read_text(encoding="utf-8")


def snippets(language: str, page: str) -> list[str]:
    return re.findall(rf"```{language}[^\n]*\n(.*?)```", page, flags=re.DOTALL)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a finished study in runs/digits."""
    study = plain_study(name="digits", n_trials=6, sampler={"name": "random"}, plan={"epochs": 4})
    Driver(study, tmp_path / "runs" / "digits", FakeExecutor(), Silent()).run()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("here")
def test_the_pandas_snippet_reads_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    code = next(s for s in snippets("python", FOLDER) if "read_parquet" in s)
    exec(code, {})
    assert "kfac_ggn" in capsys.readouterr().out


@pytest.mark.usefixtures("here")
def test_the_duckdb_snippet_reads_the_results() -> None:
    (query,) = snippets("sql", FOLDER)
    rows = duckdb.sql(query).fetchall()
    assert len(rows) == 6
    assert all(row[0] == "mlp" for row in rows)


def test_every_verb_and_option_of_the_readme_exists() -> None:
    lines = [line for block in snippets("console", README) for line in block.splitlines()]
    used = [line for line in lines if line.startswith("nas-evidence ")]
    assert 4 <= len(used) <= 6
    assert len(lines) <= 6  # with `make demo` and `make test`
    for line in used:
        assert line.split()[1] in VERBS, line
    makefile = (ROOT / "Makefile").read_text()
    for line in lines:
        if line.startswith("make "):
            assert re.search(rf"^{line.split()[1]}:", makefile, flags=re.MULTILINE), line


def test_the_demo_ends_with_where_its_page_is_and_how_to_search_a_table() -> None:
    makefile = (ROOT / "Makefile").read_text()
    demo = re.search(r"^demo:.*\n((?:\t.*\n)+)", makefile, flags=re.MULTILINE)[1]
    assert demo.count("search search_spaces/digits.toml") == 1
    said = re.findall(r"@echo '(.*)'", demo)
    assert "runs/digits/report/index.html" in said[0]
    assert said[-2:] == [
        "  source $(VENV)/bin/activate",
        "  nas-evidence search YOUR.csv --target COLUMN",
    ]


def test_every_shipped_study_and_every_link_of_the_readme_exists() -> None:
    for name in shipped_studies():
        assert f"`{name}`" in README
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


# --- claims about the documentation site: it builds without a warning, and loads nothing from


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
