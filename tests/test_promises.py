"""Every promise of SECURITY.md and of the page on faults is held by tests that exist."""

import attacks
import pytest
from promises import PAGES, ROOT, is_there, listed, sentences


@pytest.mark.parametrize("page", PAGES)
def test_every_sentence_has_tests_or_promises_nothing(page: str) -> None:
    said = [*sentences((ROOT / PAGES[page]).read_text("utf-8"))]
    entries = listed()[page]
    assert [one for one in said if one not in entries] == [], "run python tests/promises.py"
    assert [one for one in entries if one not in said] == []
    empty = [one for one, entry in entries.items() if not entry.get("tests", entry.get("why"))]
    assert empty == []


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_holds_a_promise_exists(page: str) -> None:
    tests = [test for entry in listed()[page].values() for test in entry.get("tests", ())]
    assert [test for test in tests if not is_there(test)] == []
    assert len(tests) > 50


def test_sentences_and_rows_are_told_apart() -> None:
    text = (
        "# Head\n\nOne is held. Two, of `x.y`, is\nheld too.\n\n- An item.\n\n"
        "```\nNo code.\n```\n\n"
        "| a | b |\n|---|---|\n| one | It is so. It stays. |\n\n"
        "| to | promise | how |\n|---|---|---|\n| you | It is so. It stays | `x` |\n"
    )
    prose = ["One is held.", "Two, of `x.y`, is held too.", "An item."]
    assert [*sentences(text)] == [*prose, "one | It is so. It stays.", "It is so.", "It stays"]


@pytest.mark.parametrize(
    "test", ["faults/test_rot.py::test_no", "faults/none.py::test_x", "cli/x"]
)
def test_a_test_that_is_gone_is_found_out(test: str) -> None:
    assert not is_there(test)
    assert is_there("test_promises.py::test_a_test_that_is_gone_is_found_out")
    assert is_there("soak/damage.py")


def test_the_page_of_attacks_names_tests_that_exist() -> None:
    assert attacks.PAGE.read_text("utf-8") == attacks.page(), "run python tests/attacks.py"
    assert len(attacks.rows()) >= 23
    for row in attacks.rows():
        assert row["tests"], row["attack"]
        assert [test for test in row["tests"] if not is_there(test)] == []
