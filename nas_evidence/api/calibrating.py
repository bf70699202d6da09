"""How well a network of a study is calibrated: on labelled data, or on its folds."""

from typing import TYPE_CHECKING, Any

import torch

from nas_evidence.data.tensors import to_tensors
from nas_evidence.exporting.unseen import unseen_reliability
from nas_evidence.exporting.winner import load_winner
from nas_evidence.maths.metrics import Reliability

if TYPE_CHECKING:
    from nas_evidence.api.study import Study


def calibration_of(study: "Study", data: Any, trial_id: int | None) -> Reliability:
    """Return accuracy by confidence, or coverage by probability of intervals.

    Args:
        study: of the network.
        data: labelled; None for the training data, predicted by networks that had not seen them.
        trial_id: of another network than the best.

    Raises:
        ValueError: if the data do not hold the target, or no fold predicted the training data.
    """
    if data is not None:
        predictor = study.predictor(trial_id)
        given = predictor.given(data)
        if given.truth is None:
            raise ValueError("calibration compares with the truth, but data has no target column")
        return predictor.predict(given).reliability(given.truth)
    chosen = study.best.trial_id if trial_id is None else trial_id
    rows = study.trials[study.trials["trial_id"] == chosen]
    if rows.empty:
        raise ValueError(f"{study.folder} has no finished trial {chosen}")
    arrays = study.arrays()
    winner = load_winner(study.folder, study.spec, arrays, rows.iloc[0])
    found = unseen_reliability(winner, to_tensors(arrays, torch.device("cpu")))
    if found is None:
        raise ValueError(
            f"trial {chosen} keeps no predictions of data that its network had not seen: "
            "give data with the target, or search with the score two_fold"
        )
    return found
