"""Names and labels of others are text wherever they land: card, report, page, notebook, CSV."""

import csv
import html
import io
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
import yaml
from faulty import call, quiet_call
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

import nas_evidence
from nas_evidence.plumbing.foreign_text import csv_cell, markdown, on_one_line, python_text
from nas_evidence.reporting.templating import row

#: Any characters that a file can hold, and those that mean something somewhere.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.text(
    "=+-@;,\t\r\n\"' a1|<>&`*_[]()#!~$\\\x1b＝", max_size=20
)
NAME = "</title><script>alert(6)</script> | `x` [a](javascript:b)"
LABEL = "<img src=x onerror=alert(1)>|;=1+1"
COLUMN = "<b>a</b>;@SUM(A1)|\x1b[2J"


class Tags(HTMLParser):
    """The tags of a page, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data: str) -> None:
        self.words += data


def rendered(text: str) -> Tags:
    """Markdown as a hub shows it: HTML in it is HTML, and tables are tables."""
    return Tags(MarkdownIt("commonmark", {"html": True}).enable("table").render(text))


@pytest.mark.slow
@given(text=TEXT)
def test_markdown_shows_a_name_as_it_is_and_makes_nothing_of_it(text: str) -> None:
    shown = on_one_line(" ".join(text.split()))
    found = rendered(f"the study '{markdown(text)}' ends")
    assert found.tags == ["p"]
    assert found.words == f"the study '{shown}' ends\n"
    table = rendered(f"| a | b |\n|---|---|\n{row([text, 1])}\n")
    assert table.tags.count("td") == 2
    assert not {"a", "img", "script"} & {*table.tags}


@given(text=TEXT)
def test_a_literal_of_python_is_the_text_on_one_line(text: str) -> None:
    literal = python_text(text)
    assert literal.isprintable()
    assert eval(literal) == text


def cells_of(content: str, separator: str) -> list[str]:
    """Cells as a spreadsheet that splits at this separator finds them, quotes or not."""
    content = content.replace("\r", "\n")
    cells = [one for line in csv.reader(io.StringIO(content), delimiter=separator) for one in line]
    split = content.replace(separator, "\n").split("\n")
    return cells + split


def is_formula(cell: str) -> bool:
    bare = cell.lstrip(' \t\r\n"')
    if not bare.startswith(("=", "+", "-", "@", "＝", "＋", "－", "＠")):
        return False
    try:
        float(bare.rstrip('" '))
    except ValueError:
        return True
    return False


@pytest.mark.slow
@given(first=TEXT, second=TEXT)
def test_no_cell_is_a_formula_whether_cells_end_at_commas_or_semicolons(
    first: str, second: str
) -> None:
    frame = pd.DataFrame({"n": [1], "x": [first], "y": [second]}).map(csv_cell)
    content = frame.to_csv(index=False, lineterminator="\n")
    assert not [one for one in cells_of(content, ";") if is_formula(one)]
    commas = csv.reader(io.StringIO(content.replace("\r", "\n")))
    assert not [one for line in commas for one in line if is_formula(one)]
    assert csv_cell(csv_cell(first)) == csv_cell(first)


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("x;=1+1", "x;'=1+1"),
        ("x; +A1;-2;@B", "x;' +A1;-2;'@B"),
        ("\tx", "'\tx"),
        ("\rx", "'\rx"),
        ("a\n=1+1", "a\n'=1+1"),
        ('x;"=1+1"', 'x;\'"=1+1"'),
        ("＝1+1", "'＝1+1"),
        ("a-b;c=d", "a-b;c=d"),
        ("-1.5", "-1.5"),
    ],
)
def test_what_a_spreadsheet_would_run_gets_an_apostrophe(text: str, cell: str) -> None:
    assert csv_cell(text) == cell


@pytest.mark.long
def test_names_and_labels_of_a_study_are_text_wherever_they_land(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{COLUMN: i % 7, "b": i % 5, "y": LABEL if i % 2 else "plain"} for i in range(60)]
    data, folder = tmp_path / "t.csv", tmp_path / "s"
    pd.DataFrame(rows).to_csv(data, index=False)
    search = ["search", data, "--target", "y", "--trials", 2, "--out", folder]
    sets = [f'name="{NAME}"', "finalists=0", "plan.epochs=2"]
    words = [word for one in sets for word in ("--set", one)]
    assert quiet_call(*search, *words, "--executor", "inline") == 0

    card = (folder / "export" / "README.md").read_text()
    _, front, body = card.split("---\n", 2)
    assert not {"<", ">"} & {*front}
    assert yaml.safe_load(front)["model-index"][0]["name"] == NAME
    for text in (body, (folder / "report" / "report.md").read_text()):
        found = rendered(text)
        assert not {"script", "img", "title", "b", "a"} & {*found.tags}
        assert NAME in found.words
        assert "\x1b" not in text
    page = Tags((folder / "report" / "index.html").read_text())
    assert "onerror" not in page.attributes
    assert "alert(6)" not in html.unescape("".join(page.tags))
    for path in (folder / "report").glob("*.csv"):
        assert not [one for one in cells_of(path.read_text(), ";") if is_formula(one)]

    study = nas_evidence.load(folder)
    predicted = study.predict(pd.DataFrame(rows).drop(columns="y"))
    for shown in (study._repr_html_(), predicted._repr_html_()):
        assert not {"script", "img", "b"} & {*Tags(shown).tags}
    assert "\x1b" not in repr(predicted) + repr(study)
    code, out, err = call(capsys, "predict", folder, data, "--to", tmp_path / "p.csv")
    assert code == 0
    assert "\x1b" not in out + err
    content = (tmp_path / "p.csv").read_text()
    assert "=1+1" in content
    assert not [one for one in cells_of(content, ";") if is_formula(one)]
