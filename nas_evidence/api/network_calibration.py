"""How well a network of a study is calibrated: on labelled data, or on its folds."""

from typing import Any

import torch

from nas_evidence.data import ArrayData
from nas_evidence.data.tensors import to_tensors
from nas_evidence.exporting.predictor import Predictor
from nas_evidence.exporting.unseen import unseen_reliability
from nas_evidence.exporting.winner import Winner
from nas_evidence.maths.metrics import Reliability


def calibration_on(predictor: Predictor, data: Any) -> Reliability:
    """Return accuracy by confidence, or coverage by probability of intervals, on labelled data.

    Raises:
        ValueError: if the data do not hold the target.
    """
    given = predictor.given(data).labelled()
    if given is None or given.truth is None:
        raise ValueError("calibration compares with the truth, but data has no target")
    return predictor.predict(given).reliability(given.truth)


def calibration_on_folds(trial: Winner, arrays: ArrayData) -> Reliability:
    """Return the same on the training data, each predicted by a network that had not seen it.

    Raises:
        ValueError: if no fold of the trial predicted them.
    """
    found = unseen_reliability(trial, to_tensors(arrays, torch.device("cpu")))
    if found is None:
        raise ValueError(
            f"trial {trial.assignment.trial_id} keeps no predictions of data that its network had "
            "not seen: give data with the target, or search with the score conditional_evidence"
        )
    return found
