"""The reference page of the Python interface: signatures and docstrings, as Markdown.

python docs/api_reference.py

The page is written by hand around the blocks; a block begins with a comment that names its object
as mkdocstrings does. On the site mkdocstrings renders that comment, in the repository the text
below it is read.
"""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints, is_typeddict

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "api.md"
#: A block: the comment with the name and its options, and the text that is made.
BLOCK = re.compile(r"<!-- ::: ([\w.]+)\n?(.*?)-->.*?<!-- /::: -->", re.DOTALL)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def written(text: str) -> str:
    """Return the page with each block as the code has it."""

    def made(block: re.Match[str]) -> str:
        options = block[2].rstrip()
        head = f"<!-- ::: {block[1]}" + (f"\n{options}\n-->" if options else " -->")
        body = "\n\n".join(_described(block[1], options))
        return f"{head}\n\n{body}\n\n<!-- /::: -->"

    return BLOCK.sub(made, text)


def _described(path: str, options: str) -> Iterator[str]:
    """Yield the paragraphs of an object: heading, signature, docstring, members."""
    module, _, name = path.rpartition(".")
    found = getattr(import_module(module), name)
    tree = ast.parse(Path(import_module(found.__module__).__file__ or "").read_text("utf-8"))
    [node] = [one for one in tree.body if getattr(one, "name", None) == name]
    yield f"### {name}"
    if isinstance(node, _Function):
        yield from _function(node, "")
        return
    assert isinstance(node, ast.ClassDef)
    methods = [one for one in node.body if isinstance(one, _Function)]
    made = [one for one in methods if one.name == "__init__"]
    for one in made:
        yield _signature(one, name)
    yield from _docstring(node)
    for one in made:
        yield from _docstring(one)
    if is_typeddict(found):
        yield _options(found)
    if "members: false" in options:
        return
    asked = re.search(r"members: \[(.*?)\]", options)
    names = asked[1].split(", ") if asked else None
    for one in methods:
        if one.name in names if names else not one.name.startswith("_") or one.name == "__call__":
            yield f"#### {name}.{one.name}"
            yield from _function(one, "")


def _function(node: _Function, name: str) -> Iterator[str]:
    decorators = {ast.unparse(one) for one in node.decorator_list}
    if not decorators & {"property", "cached_property", "functools.cached_property"}:
        yield _signature(node, name or node.name)
    elif node.returns:
        yield f"`{_type(node.returns)}`"
    yield from _docstring(node)


def _signature(node: _Function, name: str) -> str:
    """Return a signature without `self`, on one line if it fits, else an argument a line."""
    given = ast.parse(ast.unparse(node)).body[0].args  # type: ignore[attr-defined]
    if given.args and given.args[0].arg in ("self", "cls"):
        del given.args[0]
    returns = f" -> {_type(node.returns)}" if node.returns and node.name != "__init__" else ""
    for one in [*given.posonlyargs, *given.args, *given.kwonlyargs]:
        if isinstance(one.annotation, ast.Constant) and isinstance(one.annotation.value, str):
            one.annotation = ast.parse(one.annotation.value, mode="eval").body
    parts = [re.sub(r"^(\w+: [^=]+)=", r"\1 = ", part) for part in _parts(ast.unparse(given))]
    line = f"{name}({', '.join(parts)}){returns}"
    if len(line) > 99:
        line = "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){returns}"])
    return f"```text\n{line}\n```"


def _type(annotation: ast.expr) -> str:
    return ast.unparse(annotation).strip("'")


def _parts(words: str) -> list[str]:
    """Split the arguments of a signature at the commas that are in no bracket.

    >>> _parts("a: dict[str, int], b=(1, 2)")
    ['a: dict[str, int]', 'b=(1, 2)']
    """
    parts, depth = [""], 0
    for sign in words:
        depth += (sign in "[({") - (sign in "])}")
        if sign == "," and not depth:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts if part.strip()]


def _docstring(node: Any) -> Iterator[str]:
    """Yield the paragraphs of a docstring: titles bold, examples and aligned lists as code."""
    for paragraph in filter(None, re.split(r"\n\n(?=\S)", ast.get_docstring(node) or "")):
        title, _, rest = paragraph.partition(":\n")
        if title in ("Example", "Examples"):
            yield f"**{title}**"
            yield f"```text\n{_outdented(rest)}\n```"
        elif re.fullmatch(r"[A-Z]\w+", title) and rest:
            yield f"**{title}**"
            yield _shown(_items(rest) if title != "Returns" else " ".join(rest.split()))
        elif re.search(r"^ {4}|^>>>|^\w+(?:, \w+)*  +\S", paragraph, re.MULTILINE):
            yield f"```text\n{paragraph}\n```"
        else:
            yield _shown(paragraph)


def _shown(text: str) -> str:
    """Return prose with its `<name>` as Markdown shows it."""
    return re.sub(r"<(?=\w)", "&lt;", text)


def _outdented(text: str) -> str:
    return "\n".join(line.removeprefix("    ") for line in text.splitlines()).strip("\n")


def _items(text: str) -> str:
    """Return `name: meaning` lines, with their continuations, as a list."""
    items = re.split(r"\n(?=\S)", _outdented(text))
    named = (" ".join(item.split()).partition(": ") for item in items)
    return "\n".join(f"- `{name}`: {rest}" if rest else f"- {name}" for name, _, rest in named)


def _options(found: type) -> str:
    """Return the table of options that functions share."""
    rows = ["| option | meaning |", "|---|---|"]
    for name, hint in get_type_hints(found, include_extras=True).items():
        meant = get_args(hint)[1] if get_origin(hint) is Annotated else None
        text = f"{meant.text} {meant.more}".strip() if meant else ""
        rows.append(f"| `{name}` | {_shown(' '.join(text.split())).replace('|', chr(92) + '|')} |")
    return "\n".join(rows)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
