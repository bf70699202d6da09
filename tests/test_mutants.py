"""The wrong formulas still fit the code, and the tests see each."""

import ast
from pathlib import Path

import mutants
import pytest


@pytest.mark.slow
def test_every_wrong_formula_applies_to_one_place_and_is_code() -> None:
    every = mutants.mutants()
    assert len(every) >= 45
    for mutant in every:
        text = mutant.file(mutants.ROOT).read_text("utf-8")
        wrong = mutant.patched(text)
        assert ast.dump(ast.parse(wrong)) != ast.dump(ast.parse(text)), mutant.name


def test_a_text_that_is_gone_or_there_twice_is_an_error() -> None:
    one = mutants.Mutant("m", "nas_evidence.plumbing.files", "x = 1\n", "x = 2\n", "claim")
    assert one.patched("x = 1\n") == "x = 2\n"
    for text in ("y = 1\n", "x = 1\nx = 1\n"):
        with pytest.raises(LookupError, match=r"must be in nas_evidence.plumbing.files once"):
            one.patched(text)
    with pytest.raises(LookupError, match=r"m: no module nas_evidence\.gone"):
        mutants.Mutant("m", "nas_evidence.gone", "x", "y", "c").file(mutants.ROOT)


def test_the_lines_of_a_patch_are_those_of_its_statement() -> None:
    text = "def f(a):\n    b = (\n        a\n        + 1\n    )\n    return b\n"
    assert mutants.Mutant("m", "m", "+ 1", "- 1", "c").lines(text) == {2, 3, 4, 5}
    assert mutants.Mutant("m", "m", "return b", "return a", "c").lines(text) == {6}


def test_a_copy_has_the_wrong_formula_for_a_while_and_the_checkout_never(tmp_path: Path) -> None:
    module = tmp_path / "package" / "module.py"
    module.parent.mkdir()
    module.write_text("x = 1\n")
    mutant = mutants.Mutant("m", "package.module", "1", "2", "c")
    with mutants.applied(mutant, tmp_path):
        assert module.read_text() == "x = 2\n"
    assert module.read_text() == "x = 1\n"


def test_no_wrong_formula_passes_everything() -> None:
    """By the committed results; the tests see all, the audit all of its own."""
    seen = {one.name: one for one in mutants.read_results()}
    known = [(mutant, seen[mutant.name]) for mutant in mutants.mutants() if mutant.name in seen]
    assert len(known) >= 60
    assert [mutant.name for mutant, one in known if not one.test] == []
    assert all(one.audit for mutant, one in known if mutant.audited)
