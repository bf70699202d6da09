"""The pages say what the code says: statuses, events, exit codes, and quoted messages."""

import ast
import functools
import re
from pathlib import Path
from typing import get_args

import pytest

from nas_evidence.spec.record import TrialStatus
from nas_evidence.storage.events import Event

ROOT = Path(__file__).resolve().parents[1]
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
