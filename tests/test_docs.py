"""Claims about the documentation: links lead somewhere, and pages keep their form."""

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from nas_evidence.cli.main import app

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "cluster").rglob("*.md"),
    ]
)
KINDS = ("tutorial", "how-to", "reference", "explanation")
#: Folders with an index of their own.
INDEXED = ("decisions",)


def without_code(text: str) -> str:
    """Return Markdown without code blocks and code spans, where `](` is no link."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        is_page = target.suffix == ".md" and target.is_file()
        if not target.exists() or (anchor and is_page and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_relative_link_of_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert broken_links(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One\n[a](#one) [b](#two) [c](none.md) [d](https://x.org/y) `[e](f)`\n")
    assert broken_links(page) == ["#two", "none.md"]


def test_the_readme_has_at_most_100_lines() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 100


def test_every_page_is_in_the_index() -> None:
    docs = ROOT / "docs"
    index = (docs / "README.md").read_text(encoding="utf-8")
    pages = [p.relative_to(docs) for kind in KINDS for p in (docs / kind).glob("*.md")]
    missing = [str(p) for p in pages if f"({p.as_posix()})" not in index]
    assert missing == []
    for folder in INDEXED:
        assert f"({folder}/README.md)" in index
        listed = (docs / folder / "README.md").read_text(encoding="utf-8")
        pages = [p for p in (docs / folder).glob("*.md") if p.name != "README.md"]
        assert [p.name for p in pages if f"({p.name})" not in listed] == []


def test_pages_that_a_user_reads_speak_of_the_present() -> None:
    past = re.compile(r"earlier (?:version|rule|run)|until november|a day later", re.IGNORECASE)
    others = ("CHANGELOG.md", "api.md")  # docstrings speak of earlier runs of a study
    pages = [p for p in PAGES if p.parent.name not in INDEXED and p.name not in others]
    found = {p.name: past.findall(p.read_text(encoding="utf-8")) for p in pages}
    assert {name: words for name, words in found.items() if words} == {}


def test_each_reader_of_the_index_has_at_most_five_steps() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    steps = [
        len(re.findall(r"^\d\. ", part, flags=re.MULTILINE))
        for part in index.split("\n## ")
        if part.startswith("You ")
    ]
    assert len(steps) == 3
    assert max(steps) <= 5


def test_a_decision_has_a_status_and_at_most_25_lines() -> None:
    for page in sorted((ROOT / "docs" / "decisions").glob("0*.md")):
        lines = page.read_text(encoding="utf-8").splitlines()
        assert lines[2].startswith("**Status**: "), page.name
        assert len(lines) <= 25, page.name


def test_the_list_of_benchmarks_has_every_script_and_every_page_that_it_names_exists() -> None:
    folder = ROOT / "benchmarks"
    text = (folder / "README.md").read_text(encoding="utf-8")
    paths = [*folder.glob("*.py"), *folder.glob("ranking/*.py"), *folder.glob("gpu/*.py")]
    names = {
        path.relative_to(folder).with_suffix("").as_posix()
        for path in paths
        if not path.name.startswith("_")
    }
    listed = {*re.findall(r"^\| `([a-z_/]+)` \|", text, flags=re.M)}
    assert names == listed
    pages = re.findall(r"docs/[\w/-]+\.md", text)
    assert [page for page in pages if not (ROOT / page).is_file()] == []


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
    blocks = re.findall(r"```(?:bash|console|sh)\n(.*?)```", text, flags=re.DOTALL)
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


def test_commands_are_found_in_pages() -> None:
    found = commands(ROOT / "docs" / "tutorial" / "first-study.md")
    assert ["search", "digits", "--trials", "8"] in found
    assert len(found) >= 6


def test_the_limits_of_settling_stand_on_its_page() -> None:
    from nas_evidence.training.settling import FURTHER_FALL, IN_VAIN

    page = (ROOT / "docs" / "explanation" / "training.md").read_text(encoding="utf-8")
    [rule] = re.findall(r"a settling is given up where.*?\. [A-Z]", page, flags=re.DOTALL)
    assert re.findall(r"\d\.\d+", rule) == [f"{IN_VAIN:g}", f"{FURTHER_FALL:g}"]


def test_no_shipped_study_and_no_example_ranks_by_a_score_that_the_pages_advise_against() -> None:
    advised = {"conditional_evidence", "two_fold", "five_fold"}
    texts = [
        *(ROOT / "search_spaces").glob("*.toml"), *(ROOT / "notebooks").glob("*.py"),
        ROOT / "README.md", ROOT / "docs" / "reference" / "study-file.md",
        *(ROOT / "docs" / "tutorial").glob("*.md"), *(ROOT / "docs" / "how-to").glob("*.md"),
    ]  # fmt: skip
    for file in texts:
        named = re.findall(r'^objective = "(\w+)"', file.read_text("utf-8"), flags=re.MULTILINE)
        assert {*named} <= advised, file


def test_a_superseded_decision_says_so_on_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text(encoding="utf-8").splitlines()
    for page in sorted(folder.glob("0*.md")):
        head = page.read_text(encoding="utf-8").split("\n\n")[1]
        by = re.search(r"superseded\s+by \[decision (\d+)\]", head, flags=re.IGNORECASE)
        [line] = [line for line in index if f"({page.name})" in line]
        assert line.startswith(f"| {int(page.name[:4])} |"), page.name
        assert ("superseded" in line) == (by is not None), page.name
        assert by is None or line.endswith(f"superseded by {by[1]} |")
