"""The seeds of the winner that are compared on folds."""

from dataclasses import dataclass
from typing import cast

import pandas as pd
import pytest

from nas_evidence.baselines.on_folds import _seeds
from nas_evidence.data import load
from nas_evidence.exporting.winner import Winner
from nas_evidence.spec.study import ArchitectureSpec, Assignment, DatasetSpec

pytestmark = pytest.mark.usefixtures("no_shortcuts")


@dataclass(frozen=True)
class _Stored:
    assignment: Assignment
    held_out: None = None


def stored(trial_id: int) -> Winner:
    given = Assignment(
        trial_id=trial_id, attempt=1, replicate=0, seed=trial_id, estimators=("two_fold",),
        architecture=ArchitectureSpec(family="linear", values={}),
        dataset=DatasetSpec(name="diabetes"), plan={"likelihood": "gaussian", "epochs": 2},
    )  # fmt: skip
    return cast(Winner, _Stored(given))


def test_the_latest_seeds_of_the_winner_count_and_not_those_that_chose_it() -> None:
    ids = [3, 7, 11, 12, 13, 20]  # 3 was searched, the race came later; 20 is another architecture
    trials = pd.DataFrame(
        {"trial_id": ids, "status": "complete", "architecture_key": ["a"] * 5 + ["b"]}
    )
    evidence = pd.DataFrame(
        {"trial_id": ids, "estimator": "two_fold", "per_datum": -1.0, "value": -30.0}
    )
    arrays = load(DatasetSpec(name="diabetes", max_train=40), seed=0)
    found = list(_seeds(3, arrays, trials, evidence, stored))
    assert [one.assignment.trial_id for one in found] == [13, 12, 11]
