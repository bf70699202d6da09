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


@pytest.mark.slow
def test_an_error_outside_the_mathematics_has_a_code() -> None:
    """An error of ours has one by its signature, which mypy checks."""
    bare = {
        f"{path}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        if path.parent.name != "maths" and path.name != "encode.py"  # runs without the package
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "ValueError"
    }
    assert bare == set()


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


def test_refused_wants_the_code_and_the_values() -> None:
    error = UserError("no-such-file", "there is no file x.csv; correct the path.")
    with refused("no-such-file", "x.csv"):
        raise error
    for code, value in (("no-numbers", "x.csv"), ("no-such-file", "y.csv")):
        with pytest.raises(AssertionError), refused(code, value):
            raise error
