"""Scores that are followed: sums of losses at no cost, and Laplace scores of a pass each."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nas_evidence.data import load
from nas_evidence.data.tensors import to_tensors
from nas_evidence.driver.plan import plan_trials
from nas_evidence.scores.sotl import prequential_epoch1, sotl, sotl_e, sotl_ema
from nas_evidence.spec.record import TrialRecord
from nas_evidence.spec.study import ArchitectureSpec, DatasetSpec, StudySpec
from tests.lone_trials import mlp_assignment, run

KINDS = ("diag_ef", "kfac_ggn")


def epochs_of(record: TrialRecord, name: str) -> list[int]:
    return [e.epoch for e in record.evaluations if e.estimate.estimator == name]


def study(**keys: object) -> StudySpec:
    return StudySpec.model_validate(
        {"name": "s", "dataset": {"name": "digits"}, "family": {"linear": {}},
         "estimators": ["diag_ef", "kfac_ggn", "two_fold"], **keys}
    )  # fmt: skip


@pytest.mark.slow
def test_laplace_scores_are_taken_at_the_end_and_followed_ones_at_every_evaluation(
    tmp_path: Path,
) -> None:
    arrays = load(DatasetSpec(name="digits", max_train=48, max_test=20), seed=0)
    data = to_tensors(arrays, "cpu")
    plain = mlp_assignment(*KINDS, epochs=5, online={"every": 2})
    records = {
        name: run(plain.model_copy(update={"followed": followed}), data, tmp_path / name)
        for name, followed in {"end": (), "one": ("diag_ef",), "all": KINDS}.items()
    }
    assert epochs_of(records["end"], "diag_ef") == epochs_of(records["end"], "kfac_ggn") == [5]
    assert epochs_of(records["one"], "diag_ef") == [2, 4, 5]
    assert epochs_of(records["one"], "kfac_ggn") == [5]
    assert epochs_of(records["all"], "kfac_ggn") == [2, 4, 5]
    assert epochs_of(records["end"], "sotl") == [2, 4, 5]  # free

    # What is followed changes neither the training, its best epoch, nor the scores at its end.
    ended, followed = records["end"], records["all"]
    assert (ended.best_epoch, ended.best_evidence) == (
        followed.best_epoch,
        followed.best_evidence,
    )
    for kind in KINDS:
        one, other = ended.final_estimate(kind), followed.final_estimate(kind)
        assert one.value == other.value
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("end", "all")]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][name], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("keys", "followed"),
    [
        ({}, ()),
        ({"curves": True}, ("diag_ef", "kfac_ggn", "two_fold")),
        ({"objective": "kfac_ggn"}, ()),
        ({"objective": "kfac_ggn", "pruning": {"rule": "halving"}}, ("kfac_ggn",)),
        ({"pruning": {"rule": "median", "score": "diag_ef"}}, ("diag_ef",)),
        ({"pruning": {"rule": "median", "score": "sotl"}}, ()),
    ],
)
def test_a_study_follows_what_it_prunes_by_or_all_scores_if_it_asks_for_curves(
    keys: dict[str, object], followed: tuple[str, ...]
) -> None:
    asked = study(**keys)
    assert asked.followed == followed
    planned = plan_trials([ArchitectureSpec(family="linear")], set(), asked)
    assert planned[0].followed == followed


LOSSES = [2.0, 1.0, 0.5, 0.25]


def test_hand_example() -> None:
    assert sotl(LOSSES) == 3.75
    assert sotl_e(LOSSES, 1) == 0.25
    assert sotl_e(LOSSES, 3) == 1.75
    assert sotl_ema(LOSSES, 0.5) == 0.25 + 0.5 * 0.5 + 0.25 * 1.0 + 0.125 * 2.0
    assert prequential_epoch1(LOSSES, 10) == 20.0


def test_all_epochs_counted_once_and_with_full_weight_give_sotl() -> None:
    assert sotl_e(LOSSES, len(LOSSES)) == sotl_e(LOSSES, 99) == sotl(LOSSES)
    assert sotl_ema(LOSSES, 1 - 1e-12) == pytest.approx(sotl(LOSSES))


def test_impossible_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="n_epochs >= 1"):
        sotl_e(LOSSES, 0)
    with pytest.raises(ValueError, match="gamma < 1"):
        sotl_ema(LOSSES, 1.0)
    with pytest.raises(ValueError, match="first epoch"):
        prequential_epoch1([], 3)
