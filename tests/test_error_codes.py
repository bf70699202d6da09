"""Errors that users see have codes."""

import ast
import pickle
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import nas_evidence
from nas_evidence.plumbing.seals import DamagedError
from nas_evidence.plumbing.user_error import Mistake, UserError
from nas_evidence.spec.toml import StudyError

PACKAGE = Path(nas_evidence.__file__).parent


def calls() -> Iterator[tuple[Path, ast.Call]]:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                yield path, node


@pytest.mark.slow
def test_an_error_outside_the_mathematics_has_a_code() -> None:
    """An error of ours has one by its signature, which mypy checks."""
    bare = {
        f"{path}:{call.lineno}"
        for path, call in calls()
        if path.parent.name != "maths" and path.name != "encode.py"  # runs without the package
        if ast.unparse(call.func) == "ValueError"
    }
    assert bare == set()


@pytest.mark.slow
def test_a_code_has_one_text() -> None:
    texts = defaultdict[str, set[str]](set)
    for _, call in calls():
        match call:
            case ast.Call(func=ast.Name(id), args=[ast.Constant(str(code)), text, *_]) if (
                id == "Mistake" or id.endswith("Error")
            ):
                texts[code].add(ast.unparse(text))
    assert len(texts) > 500
    assert {code: said for code, said in texts.items() if len(said) > 1} == {}


@pytest.mark.parametrize(
    "error",
    [
        DamagedError("checksum-wrong", "x is damaged", remedy="restore it"),
        StudyError([Mistake("unknown-key", "a:1: b"), Mistake("missing-key", "a: c")]),
    ],
)
def test_a_code_reaches_other_processes(error: UserError) -> None:
    there = pickle.loads(pickle.dumps(error))
    assert type(there) is type(error)
    assert (there.code, there.codes, str(there)) == (error.code, error.codes, str(error))
