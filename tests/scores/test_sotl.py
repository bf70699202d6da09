import pytest

from nas_evidence.scores.sotl import prequential_epoch1, sotl, sotl_e, sotl_ema

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
