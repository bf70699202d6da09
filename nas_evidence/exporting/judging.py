"""The winner and simple models on data that none has seen.

The winner's predictions of the test rows are computed from its stored weights. Without a test
split its score by cross-validation is compared, on the same halves.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import torch

from nas_evidence.codec import load_study
from nas_evidence.data import ArrayData
from nas_evidence.exporting.folder import trial_to_export
from nas_evidence.exporting.winner import Winner, load_winner, with_preprocessing
from nas_evidence.judgement import (
    CalibrationPoint,
    Judgement,
    Yardstick,
    read_judgement,
)
from nas_evidence.maths.predictions import (
    calibration,
    class_losses,
    class_metrics,
    confusion,
    coverage,
    named,
    paired_difference,
    real_metrics,
    recall,
)
from nas_evidence.maths.ranking import Floats
from nas_evidence.spec import StudySpec
from nas_evidence.store import read_tables, rows_of
from nas_evidence.yardsticks import Predicted, predict_halves, predict_test

#: Rows predicted at once.
_BATCH = 1024
#: Most pairs of true and predicted values that are kept.
MOST_PAIRS = 500
#: Probabilities of the intervals whose coverage is measured.
_LEVELS = tuple(k / 10 for k in range(1, 10))


def judge(folder: Path, arrays: ArrayData) -> Judgement | None:
    """Return the winner of a study beside its yardsticks; None without a winner.

    What is stored already is returned if it is of the same trial.
    """
    study = load_study(folder / "study.toml")
    tables, _ = read_tables(folder, ["trials", "evidence"])
    trials, evidence = tables["trials"], tables["evidence"]
    try:
        chosen = trial_to_export(study, rows_of(trials, evidence))
    except ValueError:
        return None
    stored = read_judgement(folder)
    if stored is not None and stored.trial_id == chosen:
        return stored
    winner = load_winner(folder, study, arrays, trials[trials["trial_id"] == chosen].iloc[0])
    if len(arrays.x_test):
        predicted = _predicted(winner, arrays)
        return _on_test(chosen, predicted, arrays)
    return _on_halves(chosen, winner, study, arrays, evidence)


def _predicted(winner: Winner, arrays: ArrayData) -> Predicted:
    """Return the winner's predictions of the test rows."""
    model, parts = with_preprocessing(winner, arrays), []
    with torch.no_grad():
        for start in range(0, len(arrays.x_test), _BATCH):
            raw = torch.from_numpy(np.array(arrays.x_test[start : start + _BATCH]))
            outputs = model(raw).double()
            parts.append(outputs.softmax(-1) if arrays.task == "labels" else outputs)
    outputs = torch.cat(parts).numpy()
    noise = None if arrays.task == "labels" else winner.noise_std * arrays.y_std
    return Predicted(outputs, noise)


def _on_test(trial_id: int, predicted: Predicted, arrays: ArrayData) -> Judgement:
    losses, metrics = _measured(predicted, arrays)
    yardsticks = []
    for name, other in predict_test(arrays):
        own_losses, own_metrics = _measured(other, arrays)
        behind, error = paired_difference(own_losses, losses)
        yardsticks.append(
            Yardstick(
                name=name,
                metrics=own_metrics,
                behind=behind,
                error=error if np.isfinite(error) else None,
            )
        )
    more = {}
    if arrays.task == "labels":
        more = {
            "recall": {str(k): v for k, v in recall(predicted.outputs, arrays.y_test).items()},
            "confusion": tuple(
                tuple(map(int, row)) for row in confusion(predicted.outputs, arrays.y_test)
            ),
            "calibration": tuple(
                CalibrationPoint(n=one.n, confidence=one.confidence, accuracy=one.accuracy)
                for one in calibration(predicted.outputs, arrays.y_test)
            ),
        }
    else:
        rows = np.linspace(0, len(arrays.y_test) - 1, min(MOST_PAIRS, len(arrays.y_test)))
        at = rows.astype(int)
        true, guess = arrays.y_test[at].ravel(), predicted.outputs[at].ravel()
        assert predicted.noise is not None
        inside = coverage(predicted.outputs, predicted.noise, arrays.y_test, _LEVELS)
        more = {
            "pairs": tuple(zip(true.tolist(), guess.tolist(), strict=True)),
            "calibration": tuple(
                CalibrationPoint(n=len(arrays.y_test), confidence=level, accuracy=share)
                for level, share in zip(_LEVELS, inside, strict=True)
            ),
        }
    return Judgement(
        trial_id=trial_id,
        task=arrays.task,
        on="test",
        n=len(arrays.y_test),
        metrics=metrics,
        yardsticks=tuple(yardsticks),
        **more,
    )


def _measured(predicted: Predicted, arrays: ArrayData) -> tuple[Floats, dict[str, float]]:
    """Return the loss of each test datum in nats, and the metrics.

    The losses of real targets are those of standardised targets, like the scores.
    """
    if predicted.noise is None:
        return (
            class_losses(predicted.outputs, arrays.y_test),
            named(class_metrics(predicted.outputs, arrays.y_test)),
        )
    error = (arrays.y_test - predicted.outputs) / arrays.y_std
    noise = predicted.noise / arrays.y_std
    losses = (0.5 * (error / noise) ** 2 + np.log(noise) + 0.5 * np.log(2 * np.pi)).sum(1)
    metrics = real_metrics(predicted.outputs, predicted.noise, arrays.y_test)
    return losses, named({**metrics, "log_loss": float(losses.mean())})


def _on_halves(
    trial_id: int, winner: Winner, study: StudySpec, arrays: ArrayData, evidence: pd.DataFrame
) -> Judgement | None:
    """Return the comparison by `two_fold`, None if the study has no such score."""
    own = evidence[(evidence["trial_id"] == trial_id) & (evidence["estimator"] == "two_fold")]
    if own.empty or pd.isna(own["per_datum"].iloc[-1]):
        return None
    value = float(own["per_datum"].iloc[-1])
    metrics = {"log_loss": -value}
    hits = evidence[
        (evidence["trial_id"] == trial_id) & (evidence["estimator"] == "two_fold_accuracy")
    ]
    if len(hits):
        metrics["accuracy"] = float(hits["value"].iloc[-1])
    yardsticks = tuple(
        Yardstick(
            name=name,
            metrics=named({"log_loss": -density, "accuracy": accuracy}),
            behind=value - density,
        )
        for name, density, accuracy in predict_halves(arrays, winner.assignment)
    )
    return Judgement(
        trial_id=trial_id,
        task=arrays.task,
        on="folds",
        n=arrays.n_train,
        metrics=metrics,
        yardsticks=yardsticks,
    )
