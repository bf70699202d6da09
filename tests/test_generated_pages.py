"""Pages and tables that are made: each is what the code or the committed results give."""

import doctest
import re
from collections.abc import Callable
from pathlib import Path

import api_reference
import cli_reference
import first_hour_reference
import gallery
import glossary_reference
import mutants
import pytest
import result_tables
import study_reference
import table_reference

ROOT = Path(__file__).resolve().parents[1]
#: Each page, the command that makes it, and what it gives of the page as it stands.
PAGES: dict[str, tuple[str, Callable[[str], str]]] = {
    "docs/reference/columns.md": ("docs/table_reference.py", lambda _: table_reference.page()),
    "docs/reference/cli.md": ("docs/cli_reference.py", lambda _: cli_reference.page()),
    "docs/reference/api.md": ("docs/api_reference.py", api_reference.written),
    "docs/reference/glossary.md": (
        "docs/glossary_reference.py",
        lambda _: glossary_reference.page(),
    ),
    "docs/reference/study-file.md": ("docs/study_reference.py", lambda _: study_reference.page()),
    "docs/reference/mutants.md": ("benchmarks/mutants.py page", lambda _: mutants.page()),
    **{
        page.relative_to(ROOT).as_posix(): ("benchmarks/result_tables.py", result_tables.written)
        for page in result_tables.pages()
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_or_the_committed_results_give(name: str) -> None:
    command, made = PAGES[name]
    text = (ROOT / name).read_text(encoding="utf-8")
    assert text == made(text), f"run make pages, or python {command}"


@pytest.mark.slow
def test_the_page_of_small_files_is_what_a_search_says_of_them(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "reference" / "first-hour.md").read_text(encoding="utf-8")
    assert text == first_hour_reference.page(tmp_path), (
        "run python docs/first_hour_reference.py > docs/reference/first-hour.md"
    )
    assert len(list(first_hour_reference.cases())) >= 40


def test_make_pages_runs_every_script_that_makes_a_page() -> None:
    target = re.search(
        r"^pages:.*?\n\n", (ROOT / "Makefile").read_text(), re.MULTILINE | re.DOTALL
    )
    assert target is not None
    scripts = {command.split("/", 1)[1].removesuffix(".py") for command, _ in PAGES.values()}
    for script in scripts | {"first_hour_reference"}:
        assert script in target[0], script


def test_an_entry_of_the_python_interface_is_read_without_the_site() -> None:
    text = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    search = text.partition("### search\n")[2].partition("<!-- /::: -->")[0]
    assert "search(\n    data: Any,\n    y: Any = None," in search
    assert "- `y`: labels or targets, if `data` does not hold them." in search
    assert "| `test_fraction` | " in text.partition("### SearchOptions\n")[2]
    assert doctest.testmod(api_reference).failed == 0


def test_every_table_stands_on_one_page() -> None:
    texts = [page.read_text(encoding="utf-8") for page in result_tables.pages()]
    assert sorted(n for text in texts for n in result_tables.placed(text)) == sorted(
        result_tables.TABLES
    )


def test_the_page_in_full_has_every_value_of_every_kept_result() -> None:
    text = gallery.written_in_full()
    for result in gallery.stored_results().values():
        assert f"### {result['figure']}: {result['title']}" in text
        for row in result["rows"]:
            assert f"| {' '.join(row['what'].split())} |" in text
