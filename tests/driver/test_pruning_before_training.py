"""Scores known before the first epoch prune there: one half of the data is enough to judge by."""

from contextlib import closing
from pathlib import Path

import pytest
from fakes import Silent

from nas_evidence.data import load
from nas_evidence.driver.driver import Driver
from nas_evidence.driver.rungs import Rungs
from nas_evidence.reporting.problems import pruning_sentence
from nas_evidence.reporting.study_tables import load_study_tables
from nas_evidence.spec.record import SliceReport, TrialStatus
from nas_evidence.spec.schedule import rungs
from nas_evidence.spec.study import StudySpec
from nas_evidence.spec.toml import dump_study
from nas_evidence.storage.log import Log
from nas_evidence.storage.tables import read_table
from nas_evidence.workers.inline import InlineExecutor

PRUNING = {"rule": "halving", "reduction": 2, "startup_trials": 2, "first_epoch": 4}


def study(**changes: object) -> StudySpec:
    given: dict[str, object] = {
        "name": "s",
        "n_trials": 6,
        "estimators": ["diag_ef", "two_fold"],
        "dataset": {"name": "digits", "max_train": 120, "max_test": 60},
        "family": {
            "mlp": {"width": {"options": [4, 6, 8, 12, 16, 24]}, "depth": {"options": [1]}}
        },
        "plan": {"epochs": 6, "batch_size": 16, "learning_rate": 0.03, "online": {"every": 2}},
        "sampler": {"name": "grid"},
        "pruning": PRUNING,
    }
    return StudySpec.model_validate({**given, **changes})


def run(spec: StudySpec, folder: Path) -> Path:
    folder.mkdir()
    (folder / "study.toml").write_text(dump_study(spec))
    executor = InlineExecutor(load(spec.dataset, seed=spec.seed), spec.resources)
    Driver(spec, folder, executor, Silent()).run()
    return folder


def test_a_score_known_before_the_first_epoch_has_a_rung_there() -> None:
    assert rungs(study()) == (0, 4)
    assert (
        rungs(study(estimators=["conditional_evidence"], objective="conditional_evidence"))[0] == 0
    )
    assert rungs(study(pruning={**PRUNING, "score": "sotl"})) == (4,)
    assert rungs(study(pruning={"rule": "none"})) == ()


def report(epoch: int, **scores: float) -> SliceReport:
    return SliceReport(
        trial_id=3, attempt=1, epoch=epoch, epochs=6, done=False, scores=scores
    )  # fmt: skip


def test_a_trial_is_not_at_the_first_rung_before_it_has_a_score(tmp_path: Path) -> None:
    log = Log(tmp_path)
    rungs = Rungs(study(), log)
    assert not rungs.note(report(0))
    assert not rungs.reached(3, 0)
    assert rungs.note(report(0, two_fold=-0.4))
    assert rungs.reached(3, 0)
    assert not rungs.note(report(0, two_fold=-0.5))  # of both folds: not judged
    log.close()
    assert rungs.rivals(3, 0, done=()) == {3: (-0.4,)}
    again = Rungs(study(), Log(tmp_path))
    assert again.rivals(3, 0, done=()) == {3: (-0.4,)}


def test_who_has_passed_a_rung_is_not_judged_again_by_those_that_come_later(
    tmp_path: Path,
) -> None:
    log = Log(tmp_path)
    rungs = Rungs(study(), log)
    rungs.note(report(0, two_fold=-0.4))
    rivals = rungs.rivals(3, 0, done=())
    assert rivals is not None
    mine = report(0, two_fold=-0.4)
    assert rungs.decide(mine, rivals) is None
    for trial_id in (4, 5, 6, 7):
        better = report(0, two_fold=-0.1).model_copy(update={"trial_id": trial_id})
        rungs.note(better)
    assert not rungs.reached(3, 0)
    assert rungs.reached(4, 0)
    later = rungs.rivals(3, 0, done=()) or {}
    assert rungs.decide(mine, later) is None  # if it were asked again
    with closing(Log(tmp_path / "fresh")) as other:
        fresh = Rungs(study(), other)
        fresh.note(mine)
        assert fresh.decide(mine, later) is not None  # had it come last
    log.close()


def test_a_trial_without_a_score_passes_the_first_rung_and_counts_for_nobody(
    tmp_path: Path,
) -> None:
    log = Log(tmp_path)
    rungs = Rungs(study(), log)
    assert rungs.note(report(2))
    log.close()
    assert rungs.rivals(3, 0, done=()) == {3: None}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study in which every trial runs to its end."""
    return run(study(pruning={"rule": "none"}), tmp_path_factory.mktemp("study") / "whole")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("scheduling", ["async", "batch"])
def test_pruned_before_training_are_the_worse_by_one_half_and_the_others_are_as_ever(
    scheduling: str, whole: Path, tmp_path: Path
) -> None:
    folder = run(study(scheduling=scheduling), tmp_path / "pruned")
    trials = read_table(folder, "trials").set_index("trial_id")
    pruned = trials[trials["status"] == TrialStatus.PRUNED]
    early = pruned[pruned["cause"].str.startswith("rung 0: two_fold -")]
    assert len(early) == {"async": 1, "batch": 3}[scheduling]
    assert (early["epochs"] == 0).all()
    assert (early["train_seconds"] == 0).all()

    terms = read_table(whole, "terms")
    half = terms[(terms["estimator"] == "two_fold") & (terms["group"] == "fold 1")]
    half = half[(half["term"] == "log_predictive") & (half["epoch"] == 6)]
    by_half = half.set_index("trial_id")["value"]
    evidence = read_table(folder, "evidence")
    own = evidence[evidence["estimator"] == "two_fold"]
    at_zero = own[own["epoch"] == 0].set_index("trial_id")["value"]
    assert set(at_zero.index) == set(early.index)
    for trial_id, value in at_zero.items():
        # Beside the other half the same training differs by rounding.
        assert value == pytest.approx(by_half[trial_id], rel=1e-3)
    if scheduling == "batch":
        assert set(early.index) == set(by_half.sort_values().index[:3])

    final = read_table(whole, "evidence")
    final = final[(final["estimator"] == "two_fold") & (final["epoch"] == 6)]
    final_value = final.set_index("trial_id")["value"]
    complete = trials.index[trials["status"] == TrialStatus.COMPLETE]
    assert len(complete)
    last = own[own["epoch"] == 6].set_index("trial_id")["value"]
    for trial_id in complete:
        assert last[trial_id] == pytest.approx(final_value[trial_id], rel=1e-3)

    assert "Pruning stopped" in pruning_sentence(load_study_tables(folder))
