"""The winner and simple models on data that none has seen.

The winner's predictions of the test rows are computed from its stored weights. Without a test
split see `on_halves`.
"""

from pathlib import Path

import numpy as np
import torch

from nas_evidence.codec import load_study
from nas_evidence.data import ArrayData
from nas_evidence.exporting.folder import trial_to_export
from nas_evidence.exporting.on_halves import judged_on_halves
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
from nas_evidence.store import read_tables, rows_of
from nas_evidence.yardsticks import Predicted, predict_test

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

    def trial(trial_id: int) -> Winner:
        row = trials[trials["trial_id"] == trial_id].iloc[0]
        return load_winner(folder, study, arrays, row)

    def stored_trial(trial_id: int) -> Winner | None:
        kept = (folder / "models" / f"{trial_id}.safetensors").is_file()
        return trial(trial_id) if kept or trial_id == chosen else None

    if len(arrays.x_test):
        return _on_test(chosen, _predicted(trial(chosen), arrays), arrays)
    return judged_on_halves(chosen, arrays, trials, evidence, stored_trial)


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
