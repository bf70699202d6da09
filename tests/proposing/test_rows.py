"""Trials written in one transaction are, to Optuna, the trials that it would have written."""

from pathlib import Path

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from nas_evidence.proposing.rows import Rows

DIRECTIONS = [StudyDirection.MAXIMIZE, StudyDirection.MINIMIZE]
SPACE = {"family": CategoricalDistribution(["mlp", "cnn"]), "mlp.width": FloatDistribution(0, 1)}
PARAMS = {"family": "mlp", "mlp.width": 0.25}


def asked(number: int) -> FrozenTrial:
    facts = {"architecture": {"family": "mlp"}, "number": number}
    return create_trial(
        state=TrialState.RUNNING, params=PARAMS, distributions=SPACE, user_attrs=facts
    )


RESULTS = [
    create_trial(values=[1.5, 2.0], constraints={"flops": -0.5}),
    create_trial(state=TrialState.PRUNED, constraints={"flops": 0.5}),
    create_trial(state=TrialState.FAIL),
]


def facts(storage: RDBStorage, study_id: int) -> list[object]:
    return [
        (t.number, t.state, t.params, t.distributions, t.values, t.user_attrs, t.system_attrs,
         t.constraints, t.datetime_start is None, t.datetime_complete is None)
        for t in storage.get_all_trials(study_id)
    ]  # fmt: skip


def test_trials_are_stored_as_optuna_stores_them(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    ours = Rows(url)
    own, other = (ours.create_new_study(DIRECTIONS, name) for name in ("ours", "optuna"))
    theirs = RDBStorage(url)
    for number, result in enumerate(RESULTS):
        trial_id = ours.create_new_trial(own, asked(number))
        ours.finish_trial(trial_id, result)
        ours.finish_trial(trial_id, RESULTS[0])  # told again: ignored
        trial_id = theirs.create_new_trial(other, asked(number))
        for key, value in result.system_attrs.items():
            theirs.set_trial_system_attr(trial_id, key, value)
        theirs.set_trial_state_values(trial_id, result.state, result.values)
    ours.create_new_trial(own, RESULTS[0])  # as a warm start
    theirs.create_new_trial(other, RESULTS[0])
    ours.create_new_trial(own, asked(4))
    theirs.create_new_trial(other, asked(4))
    assert facts(theirs, own) == facts(theirs, other)
    assert len(facts(theirs, own)) == 5
    began, ended = (
        [getattr(t, name) for t in theirs.get_all_trials(own)[:3]]
        for name in ("datetime_start", "datetime_complete")
    )
    assert all(0 <= (b - a).total_seconds() < 600 for a, b in zip(began, ended, strict=True))


def test_optuna_reads_the_best_trials(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    ours = Rows(url)
    own = ours.create_new_study([StudyDirection.MAXIMIZE], "ours")
    for value in (1.0, 3.0, 2.0):
        ours.finish_trial(ours.create_new_trial(own, asked(0)), create_trial(value=value))
    study = optuna.load_study(study_name="ours", storage=url)
    assert study.best_value == pytest.approx(3.0)
    assert study.best_params == PARAMS
