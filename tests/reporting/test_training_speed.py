"""Whether training losses order the architectures as the study's score does."""

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from nas_evidence.reporting.along_training import speed_sentence

SPEED = list(range(10))


def said(sotl_e: list[float], objective: list[float]) -> str:
    table = pd.DataFrame({"sotl_e": sotl_e, "two_fold": objective})
    study: Any = SimpleNamespace(
        architectures=table, spec=SimpleNamespace(objective="two_fold", seed=0)
    )
    return speed_sentence(study)


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ([0, 1, 2, 4, 3, 5, 6, 7, 9, 8], "Similar orders"),
        ([5, 1, 7, 0, 9, 2, 8, 4, 6, 3], "Different orders"),
        ([9, 8, 7, 6, 5, 4, 3, 2, 1, 0], "Opposite orders"),
    ],
)
def test_the_report_says_on_which_side_training_speed_is(order: list[int], words: str) -> None:
    sentence = said([float(v) for v in SPEED], [float(v) for v in order])
    assert sentence.startswith(words)
    assert "two_fold (rho " in sentence


def test_seven_architectures_are_too_few_to_tell() -> None:
    missing = [float("nan")] * 3
    sentence = said([0.0, 1, 2, 3, 4, 5, 6, *missing], [float(v) for v in SPEED])
    assert sentence == "It takes 8 architectures to tell whether training speed ranks them."


def test_a_study_ranked_by_training_speed_itself_says_nothing() -> None:
    table = pd.DataFrame({"sotl_e": [1.0, 2.0]})
    spec = SimpleNamespace(objective="sotl_e", seed=0)
    assert speed_sentence(SimpleNamespace(architectures=table, spec=spec)) == ""  # type: ignore[arg-type]
