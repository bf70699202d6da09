"""A study without a complete trial can be looked at, and says what goes on."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from commands import run
from messages import refused

import nas_evidence
from nas_evidence.spec.record import TrialRecord

X = np.random.default_rng(0).normal(size=(40, 2))
Y = (X[:, 0] > 0).astype(int)


class Interrupts(nas_evidence.Watcher):
    """Stands for Ctrl-C after so many trials have ended."""

    def __init__(self, after: int) -> None:
        self.left = after

    def launched(self, assignment: object) -> None:
        if not self.left:
            raise KeyboardInterrupt

    def ended(self, record: TrialRecord) -> None:
        self.left -= 1


def interrupted(folder: Path, *, after: int) -> str:
    """Search until an interrupt, with the scores of few rows; return what it says."""
    with pytest.raises(KeyboardInterrupt) as raised:
        nas_evidence.search(
            X, Y, families="linear", n_trials=4, out=folder, callbacks=[Interrupts(after)],
            settings={"plan.epochs": 2, "plan.folds": 2, "finalists": 0, "replicates": 4},
        )  # fmt: skip
    return str(raised.value)


@pytest.mark.slow
def test_a_study_interrupted_in_its_first_trial_loads_and_says_what_goes_on(
    tmp_path: Path,
) -> None:
    place = tmp_path / "intr"
    goes_on = f"nas_evidence.resume('{place}') goes on"
    assert interrupted(place, after=0) == (
        f"stopped; nothing is lost, and 0 of 4 trials are stored; {goes_on}"
    )
    study, said = nas_evidence.load(place), f"0 of 4 trials are complete; {goes_on}"
    assert said in repr(study)
    assert said.replace("'", "&#x27;") in study._repr_html_()
    with pytest.warns(UserWarning, match="0 of 4 trials are complete") as warned:
        board = study.leaderboard()
    assert goes_on in str(warned[0].message)
    assert not len(board)
    assert warned[0].filename == __file__
    assert said in study.summary().headline.answer
    page = study.report()
    assert said in page.with_name("report.md").read_text().replace("\\", "")
    assert "0 of 4 trials are complete" in page.read_text()
    asked: list[Any] = [
        lambda: study.best, study.export, study.refit, lambda: study.predict(X),
        lambda: study.evaluate(X, Y), study.importance,
    ]  # fmt: skip
    for ask in asked:
        with refused("study-without-complete-trial", goes_on):
            ask()
    told = run("report", str(place), folder=tmp_path).stdout
    assert f"continue: nas-evidence resume {place}" in told


@pytest.mark.slow
def test_a_study_interrupted_later_says_what_goes_on_beside_its_ranking(tmp_path: Path) -> None:
    place = tmp_path / "intr"
    assert "1 of 4 trials are stored" in interrupted(place, after=1)
    study = nas_evidence.load(place)
    assert repr(study).endswith(f"; nas_evidence.resume('{place}') goes on)")
    assert study.leaderboard()["rank"].tolist() == [1]
    again = nas_evidence.resume(place)
    assert "goes on" not in repr(again)


@pytest.mark.slow
def test_a_study_whose_trials_all_failed_says_how_they_run_again(tmp_path: Path) -> None:
    frame = pd.DataFrame(X).assign(y=Y)
    with pytest.raises(RuntimeError):
        nas_evidence.search(
            frame, target="y", families="linear", n_trials=1, out=tmp_path / "s",
            settings={"limits.n_parameters": 1, "plan.epochs": 2, "finalists": 0},
        )  # fmt: skip
    said = repr(nas_evidence.load(tmp_path / "s"))
    assert "0 of 1 trials are complete, most often because: " in said
    assert f"runs them again: nas_evidence.resume('{tmp_path}/s', retry_failed=True)" in said
