"""Claims about the pages: the files, tests, commands and scores that they name exist."""

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from nas_evidence.cli.main import app

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
