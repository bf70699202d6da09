"""The errors that users see: their codes and texts, and how tests name them.

`python tests/messages.py > tests/messages.txt` lists all of them from the source.
"""

import ast
import functools
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from nas_evidence.plumbing.user_error import UserError

PACKAGE = Path(__file__).resolve().parents[1] / "nas_evidence"
LISTED = Path(__file__).with_suffix(".txt")


def texts() -> Iterator[tuple[str, str]]:
    """Code and text of each error in the source, with what is filled in as {expression}."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")]
    constants = {name: value for tree in trees for _, name, value in named_texts(tree.body)}
    for nodes in ([*ast.walk(tree)] for tree in trees):
        named = sorted(named_texts(nodes), key=lambda text: text[0])
        for node in nodes:
            match node:
                case ast.Call(
                    func=ast.Attribute(
                        attr="with_code", value=ast.Call(args=[text, *_], keywords=also)
                    ),
                    args=[ast.Constant(value=code)],
                ):
                    pass
                case ast.Call(func=ast.Name(id="Mistake"), args=[ast.Constant(value=code), text]):
                    also = []
                case _:
                    continue
            if isinstance(text, ast.Name):  # of the lines before
                before = {name: value for line, name, value in named if line < node.lineno}
                text = before.get(text.id, text)
            remedy = [template(one.value, constants) for one in also if one.arg == "remedy"]
            yield code, "; ".join([template(text, constants), *remedy])


def named_texts(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str, ast.expr]]:
    """Line, name and text of each assignment of a text."""
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if is_text(value):
                yield node.lineno, name, value


def is_text(value: ast.expr) -> bool:
    """Whether an expression is a text in quotes."""
    return isinstance(value, ast.JoinedStr) or isinstance(getattr(value, "value", None), str)


def template(text: ast.expr, constants: dict[str, ast.expr]) -> str:
    """A text with what is filled in as {expression}; texts that are constants are written out."""
    match text:
        case ast.Constant(value=str(words)):
            return words
        case ast.JoinedStr(values=parts):
            return "".join(template(part, constants) for part in parts)
        case ast.BinOp(left=left, right=right) if is_text(left) or is_text(right):
            return template(left, constants) + template(right, constants)
        case ast.FormattedValue(value=value):
            return template(value, constants)
        case ast.Name(id=name) if name in constants:
            return template(constants[name], constants)
    return "{" + re.sub(r"[{}]", "", ast.unparse(text)).replace('"', "'") + "}"


def page() -> str:
    """The content of messages.txt."""
    return "".join(f"{code}: {text}\n" for code, text in sorted(set(texts())))


@functools.cache
def listed() -> dict[str, str]:
    """The texts by their codes, from messages.txt."""
    return dict(line.split(": ", 1) for line in LISTED.read_text("utf-8").splitlines())


def said(code: str) -> str:
    """A regular expression for the text of an error."""
    return ".*".join(map(re.escape, re.split(r"\{[^}]*\}", listed()[code])))


@contextmanager
def refused(code: str, *values: object) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """Assert that the block ends with this error, and names these values, as whole words."""
    with pytest.raises(UserError) as caught:
        yield caught
    assert code in caught.value.codes
    text = str(caught.value)
    whole = [rf"(?<!\w){re.escape(str(value))}(?!\w)" for value in values]
    assert [value for value in whole if not re.search(value, text)] == [], text


if __name__ == "__main__":
    sys.stdout.write(page())
