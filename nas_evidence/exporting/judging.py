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
from nas_evidence.exporting.measuring import beside, drawn, measured
from nas_evidence.exporting.on_halves import judged_on_halves
from nas_evidence.exporting.winner import Winner, load_winner, with_preprocessing
from nas_evidence.judgement import Judgement, read_judgement
from nas_evidence.store import read_tables, rows_of
from nas_evidence.yardsticks import Predicted, predict_test

#: Rows predicted at once.
_BATCH = 1024


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
    return Judgement(
        trial_id=trial_id,
        task=arrays.task,
        on="test",
        n=len(arrays.y_test),
        metrics=measured(predicted, arrays.y_test, arrays.y_std)[1],
        yardsticks=tuple(
            beside([predicted], name, [other], arrays.y_test, arrays.y_std)
            for name, other in predict_test(arrays)
        ),
        **drawn(predicted, arrays.y_test),
    )
