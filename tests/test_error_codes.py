"""Errors that users see have codes."""

import ast
import pickle
from pathlib import Path

import pytest
from messages import refused

import nas_evidence
from nas_evidence.plumbing.seals import DamagedError
from nas_evidence.plumbing.user_error import Mistake, UserError
from nas_evidence.spec.toml import StudyError

PACKAGE = Path(nas_evidence.__file__).parent
#: Rooms whose errors are about calls of their functions, not about what a user asked for.
INSIDE = ("maths",)


def without_code(tree: ast.AST, kinds: set[str]) -> list[int]:
    """The lines of a file that make an error without a code."""
    nodes = [*ast.walk(tree)]
    coded = [n.value for n in nodes if isinstance(n, ast.Attribute) and n.attr == "with_code"]
    return [
        node.lineno
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if node.func.id in kinds and node not in coded
    ]


@pytest.mark.slow
def test_every_error_that_a_user_sees_has_a_code() -> None:
    trees = {path: ast.parse(path.read_text("utf-8")) for path in PACKAGE.rglob("*.py")}
    classes = [n for tree in trees.values() for n in tree.body if isinstance(n, ast.ClassDef)]
    kinds = {"ValueError"}
    while more := {c.name for c in classes if kinds & {*map(ast.unparse, c.bases)}} - kinds:
        kinds |= more
    assert {"UserError", "StoreError", "NotReadyError"} <= kinds
    kinds -= {"StudyError"}  # of mistakes with their codes
    assert without_code(ast.parse("raise ValueError('x')"), kinds) == [1]
    assert without_code(ast.parse("raise UserError('x').with_code('y')"), kinds) == []
    found = {
        f"{path.relative_to(PACKAGE)}:{line}"
        for path, tree in trees.items()
        if path.relative_to(PACKAGE).parts[0] not in INSIDE
        and path.name != "encode.py"  # runs in an export, without the package
        for line in without_code(tree, kinds)
    }
    assert found == set()


@pytest.mark.parametrize(
    "error",
    [
        DamagedError("x is damaged").with_code("checksum-wrong"),
        StudyError([Mistake("unknown-key", "a:1: b"), Mistake("missing-key", "a: c")]),
    ],
)
def test_a_code_reaches_other_processes(error: UserError) -> None:
    there = pickle.loads(pickle.dumps(error))
    assert type(there) is type(error)
    assert (there.code, there.codes, str(there)) == (error.code, error.codes, str(error))


def test_refused_wants_the_code_and_the_values() -> None:
    error = UserError("there is no file x.csv; correct the path.").with_code("no-such-file")
    with refused("no-such-file", "x.csv"):
        raise error
    for code, value in (("no-numbers", "x.csv"), ("no-such-file", "y.csv")):
        with pytest.raises(AssertionError), refused(code, value):
            raise error
