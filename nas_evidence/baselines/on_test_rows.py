"""The winner and simple models on held-out test rows.

The winner's predictions of the test rows are computed from its stored weights. Without a test
split see `on_folds`.
"""

from collections.abc import Iterator

import numpy as np
import torch

from nas_evidence.baselines.comparison import IMPORTANCE, Comparison
from nas_evidence.baselines.measures import beside, drawn, growing, measured, standard_errors
from nas_evidence.baselines.models import Predicted, baseline_models, predict_test
from nas_evidence.baselines.on_folds import judged_on_folds
from nas_evidence.baselines.permutation import column_importance, predictor_of
from nas_evidence.data import ArrayData
from nas_evidence.exporting.folder import laplace_posterior
from nas_evidence.exporting.unseen import unseen_thresholds
from nas_evidence.exporting.winner import Winner, load_winner, with_preprocessing
from nas_evidence.storage.tables import StudyTables
from nas_evidence.training.loop import likelihood_of
from nas_evidence.training.predictive import variances

#: Rows predicted at once.
_BATCH = 1024


def judge(tables: StudyTables, arrays: ArrayData) -> Iterator[Comparison]:
    """Yield the winner of a study, then beside more and more baselines, at last with all.

    The first costs little: the metrics of the winner, without simple models. Nothing without a
    winner.
    """
    best = tables.standings.best
    if best is None:
        return
    torch.set_num_threads(tables.spec.resources.cpus)
    chosen = best.trial_id

    def stored_trial(trial_id: int) -> Winner | None:
        kept = (tables.folder / "models" / f"{trial_id}.safetensors").is_file()
        return load_winner(tables, arrays, trial_id) if kept or trial_id == chosen else None

    winner = load_winner(tables, arrays, chosen)
    if len(arrays.x_test):
        steps = _on_test(chosen, _predicted(winner, arrays), arrays)
    else:
        steps = judged_on_folds(chosen, arrays, tables.trials, tables.evidence, stored_trial)
    more = {
        "classes": tuple(map(str, arrays.meaning.classes)),
        "class_weight": arrays.meaning.class_weight,
        "thresholds": unseen_thresholds(winner, arrays),
        "lowest": None if arrays.task == "labels" else _lowest(arrays),
    }
    if arrays.meaning.preparation is None:
        yield from (one.model_copy(update=more) for one in steps)
        return
    found = None
    for one in steps:
        found = one.model_copy(update=more)
        yield found.model_copy(update={"lacks": (*found.lacks, IMPORTANCE)})
    if found is not None:
        predictor = predictor_of(winner, arrays, tables.spec.metric)
        yield found.model_copy(update={"importance": column_importance(predictor, arrays)})


def _lowest(arrays: ArrayData) -> float:
    return float(min(y.min() for y in (arrays.y_train, arrays.y_test) if len(y)))


def _predicted(winner: Winner, arrays: ArrayData) -> Predicted:
    """Return what the export of the winner predicts of the test rows.

    Real targets with the uncertainty of the weights, so that report and `predict` say one thing.
    """
    model, means, total = with_preprocessing(winner, arrays), [], []
    likelihood = likelihood_of(winner.assignment.plan, winner.noise_std, winner.temperature)
    posterior = None if arrays.task == "labels" else laplace_posterior(winner, arrays)
    for start in range(0, len(arrays.x_test), _BATCH):
        raw = torch.from_numpy(np.array(arrays.x_test[start : start + _BATCH]))
        with torch.no_grad():
            found = model.on_scale(raw).double()
        means.append(found.softmax(-1) if posterior is None else found)
        if posterior is not None:
            inputs = (raw.to(model.mean.dtype) - model.mean) / model.std
            spread = posterior.output_covariance(model.model, inputs)
            noise, of_mean = variances(likelihood, model.model, inputs, spread)
            total.append(of_mean + noise)
    outputs = torch.cat(means).numpy()
    if posterior is None:
        return Predicted(outputs)
    scale, std = arrays.scale, torch.cat(total).sqrt().numpy()
    return Predicted(outputs, winner.spread_factor * std * scale.spread, scale)


def _on_test(trial_id: int, predicted: Predicted, arrays: ArrayData) -> Iterator[Comparison]:
    y, weights = arrays.y_test, arrays.meaning.class_weights
    alone = Comparison(
        trial_id=trial_id,
        task=arrays.task,
        on="test",
        n=len(y),
        metrics=measured(predicted, y, arrays.y_std, weights)[1],
        errors=standard_errors(predicted, y, arrays.y_std, weights),
        **drawn(predicted, y, weights),
    )
    rivals = (
        beside([predicted], name, [other], y, arrays.y_std, weights)
        for name, other in predict_test(arrays)
    )
    return growing(alone, rivals, list(baseline_models(arrays)))
