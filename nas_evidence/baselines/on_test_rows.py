"""The winner and simple models on held-out test rows.

The winner's predictions of the test rows are those of its export, `Predictor.predict`. Without a
test split see `on_folds`.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import cast

import torch

from nas_evidence.baselines.comparison import IMPORTANCE, Comparison
from nas_evidence.baselines.measures import beside, drawn, growing, standard_errors
from nas_evidence.baselines.models import baseline_models, code, predict_test
from nas_evidence.baselines.on_folds import judged_on_folds
from nas_evidence.baselines.permutation import column_importance
from nas_evidence.data import ArrayData
from nas_evidence.data.given import Given
from nas_evidence.data.mapped import Array
from nas_evidence.exporting.candidates import candidates_of, kept_of
from nas_evidence.exporting.folder import predictor_of
from nas_evidence.exporting.predicted import Prediction
from nas_evidence.exporting.winner import load_winner
from nas_evidence.maths.metrics import named
from nas_evidence.storage.tables import StudyTables


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

    tested = len(arrays.x_test) > 0
    of = tables.spec.plan.declared
    uncertain = tested and of.averaged
    winner = load_winner(tables, arrays, chosen)
    predictor = predictor_of([winner], tables.spec.metric, with_posterior=uncertain)
    if tested:
        inputs = cast(Array, arrays.x_test)  # sliced, so that a mapped file is read in parts
        predicted = predictor.predict(Given(inputs))
        steps = _on_test(chosen, replace(predicted, threshold=None), arrays)
    else:
        steps = judged_on_folds(
            chosen, arrays, tables.trials, tables.evidence, partial(kept_of, tables, arrays),
            chosen_among=len(tables.standings.first()), candidates=candidates_of(tables, arrays),
        )  # fmt: skip
    more = {
        "classes": tuple(map(str, arrays.meaning.classes)),
        "class_weight": arrays.meaning.class_weight,
        "thresholds": predictor.meaning["thresholds"],
    }
    if arrays.meaning.preparation is None:
        yield from (one.model_copy(update=more) for one in steps)
        return
    found = None
    for one in steps:
        found = one.model_copy(update=more)
        yield found.model_copy(update={"lacks": (*found.lacks, IMPORTANCE)})
    if found is not None:
        yield found.model_copy(update={"importance": column_importance(predictor, arrays)})


def _on_test(trial_id: int, predicted: Prediction, arrays: ArrayData) -> Iterator[Comparison]:
    y = arrays.y_test
    alone = Comparison(
        trial_id=trial_id,
        task=arrays.task,
        on="test",
        n=len(y),
        metrics=named(predicted.metrics(y)),
        errors=standard_errors(predicted, y),
        **drawn(predicted, y),
    )
    rivals = (
        beside([predicted], name, other, y, code(name, arrays, other))
        for name, other in predict_test(arrays)
    )
    return growing(alone, rivals, list(baseline_models(arrays)))
