"""What is predicted is declared once: other code looks it up and asks for no name."""

import re
from pathlib import Path
from typing import get_args

from nas_evidence.data.targets import Reading, reading_of
from nas_evidence.reporting.words import CALIBRATED, WORDS
from nas_evidence.spec.likelihoods import (
    LIKELIHOODS,
    TARGET_KINDS,
    Confidence,
    LikelihoodName,
    Stored,
    Task,
    default_of,
    stored_kind,
)
from nas_evidence.spec.record import TrialRecord
from nas_evidence.spec.registry import SCORES

PACKAGE = Path(__file__).resolve().parents[1] / "nas_evidence"
#: Asks which kind of target there is: by class, by name, by what the other has not, or by shape.
QUESTION = re.compile(
    r"isinstance\([^()]*?(?:\([^()]*\))?[^()]*\b(?:Categorical|Gaussian|Heteroscedastic)\b"
    r"|\blikelihood\s*(?:==|!=|in\b|not in\b)|\btask\s*(?:==|!=)|squared_error is (?:not )?None"
    r"|\bif (?:not )?labels\b|\.ndim\s*(?:==|!=)\s*[12]\b|\bpairs\b"
)
#: How many there are outside the likelihoods. It may fall, and not rise.
MOST_QUESTIONS = 247


def questions() -> int:
    found = 0
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE)
        if place.parts[0] != "likelihoods" and place != Path("spec/likelihoods.py"):
            lines = path.read_text(encoding="utf-8").splitlines()
            found += sum(len(QUESTION.findall(line)) for line in lines)
    return found


def test_questions_about_the_kind_of_target_become_no_more() -> None:
    assert questions() <= MOST_QUESTIONS, "look it up in spec/likelihoods.py"


def test_names_in_types_are_those_that_are_declared() -> None:
    assert set(get_args(LikelihoodName)) == set(LIKELIHOODS)
    assert set(get_args(Task)) == set(TARGET_KINDS)
    assert set(get_args(Stored)) == {kind.stored for kind in TARGET_KINDS.values()}
    assert set(get_args(Confidence)) == set(CALIBRATED)


def test_declarations_name_what_there_is() -> None:
    for task, kind in TARGET_KINDS.items():
        assert kind.task == task
        assert stored_kind(kind.stored) is kind
        assert default_of(task) in LIKELIHOODS
        assert kind.usual in kind.metrics
        assert set(kind.tests) <= set(TrialRecord.model_fields) & set(WORDS)
        for name in ("read", "rows_of", "tested", "outputs", "seen", "leak"):
            assert hasattr(Reading, name)
            assert callable(getattr(reading_of(kind), name))
    for likelihood in LIKELIHOODS.values():
        assert set(likelihood.without) <= set(SCORES)
        assert likelihood.by_row in ("", *LIKELIHOODS)
        assert likelihood.kind.task == likelihood.task
