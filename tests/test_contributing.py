"""The recipes of CONTRIBUTING.md name files, symbols and targets that exist."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: Folders below which a page names files.
HOMES = ("", "nas_evidence", "nas_evidence/reporting", "tests", "docs")
ENDINGS = (".py", ".md", ".toml", ".txt", ".j2", ".yml", ".json")
#: Words in code that stand for what a reader chooses.
PLACEHOLDERS = frozenset({"NAME", "DIR"})


def items(page: str) -> list[str]:
    """Return the items, rows of tables and paragraphs of a page, each as one text."""
    text = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    return [one for one in re.split(r"\n(?=\d+\. |- |\| |#|\n)", text) if one.strip()]


def spans(item: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", item) + re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", item)


def files_of(item: str) -> dict[str, list[Path]]:
    """Return the paths that an item names, each with the files it may be."""
    found = {}
    for span in spans(item):
        path = span.split("::")[0]
        if " " in path or not (path.endswith((*ENDINGS, "/"))):
            continue
        path = path.replace("NAME", "*")
        found[span] = [one for home in HOMES for one in (ROOT / home).glob(path)]
    return found


def symbols_of(item: str) -> list[str]:
    """Return the names of Python in an item: constants, functions, classes and dotted names."""
    found = []
    for span in spans(item):
        name = span.split("(")[0]
        if re.fullmatch(r"[A-Za-z_][\w.]*", name) and not name.endswith(ENDINGS):
            found.append(name.rsplit(".", 1)[-1].rstrip("_"))
    return [name for name in found if name not in PLACEHOLDERS]


@cache
def text_of(path: Path) -> str:
    if path.is_dir():
        return "\n".join(text_of(one) for one in sorted(path.rglob("*.py")))
    return path.read_text(encoding="utf-8")


@cache
def everything() -> str:
    homes = ("nas_evidence", "tests", "pyproject.toml", "Makefile")
    return "\n".join(text_of(ROOT / home) for home in homes)


def wrong_in(page: str) -> list[str]:
    """Return the files that a page names and that are not there, and the symbols not in them.

    A symbol is looked for in the files that its item names, in all files if it names none.
    """
    wrong = []
    for item in items(page):
        files = files_of(item)
        wrong += [name for name, found in files.items() if not found]
        homes = [path for found in files.values() for path in found if "*" not in path.name]
        text = "\n".join(map(text_of, homes)) if homes else everything()
        wrong += [name for name in symbols_of(item) if not re.search(rf"\b{name}", text)]
    return wrong


def recipes() -> str:
    """Return CONTRIBUTING.md, what it links and the table of docs/architecture.md."""
    architecture = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = architecture.partition("## To change something")[2].partition("\n## ")[0]
    assert table.count("\n| ") > 10
    pages = ("CONTRIBUTING.md", "docs/how-to/add-a-likelihood.md")
    return "\n".join((ROOT / page).read_text(encoding="utf-8") for page in pages) + table


@pytest.mark.slow
def test_a_recipe_names_files_and_symbols_that_exist() -> None:
    assert wrong_in(recipes()) == []


def test_a_file_that_went_and_a_symbol_that_moved_are_found() -> None:
    page = "1. `reporting/figure_data.py`: draw.\n2. `KINDS` in `spec/registry.py`."
    assert wrong_in(page) == ["reporting/figure_data.py", "KINDS"]
    assert wrong_in("1. [a](tests/gone.md#x) and `nas_evidence/models/NAME.py`") == [
        "tests/gone.md"
    ]


def test_a_target_of_make_that_a_recipe_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {*re.findall(r"^([a-z]+):", makefile, flags=re.MULTILINE)}
    said = re.findall(r"\bmake ((?:[a-z]+ ?)+)[`#\n]", recipes().replace("    #", "#"))
    named = {word for words in said for word in words.split()}
    assert {"check", "test", "pages", "mutants"} <= named
    assert named <= targets
