"""What a study delivers as one: networks that predict together, with equal weights.

    p(y | x) = 1/R Σ_r p_r(y | x)        r: the trials of `storage/delivered.py`

Each network was trained on all data from its own seed. Its folds are its own, too: datum i is
predicted out of fold by R networks that have not seen it, whose mixture is the out-of-fold
prediction of what is delivered. Of one network all of this is that network's.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from nas_evidence.data import ArrayData
from nas_evidence.data.given import Given
from nas_evidence.data.mapped import Array
from nas_evidence.exporting.folder import measures_of, predictor_of
from nas_evidence.exporting.predicted import HeldOut, mixed_of_rows
from nas_evidence.exporting.predictor import Predictor
from nas_evidence.exporting.winner import Winner, load_winner
from nas_evidence.maths.metrics import best_thresholds, named
from nas_evidence.storage.delivered import delivered_trials
from nas_evidence.storage.tables import StudyTables


def load_delivered(tables: StudyTables, arrays: ArrayData) -> list[Winner]:
    """Return the networks that a study delivers, first the one that represents the winner.

    Those whose weights are not kept are trained again.

    Raises:
        ValueError: if one was trained on a kind of device that is not here.
        ArithmeticError: if a training does not come to its end.
    """
    return [load_winner(tables, arrays, i) for i in delivered_trials(tables)]


def held_out_together(winners: Sequence[Winner]) -> HeldOut | None:
    """Return the mixture of the out-of-fold predictions of some networks, and its rows [m].

    See `mixed_of_rows`.
    """
    return mixed_of_rows([winner.held_out for winner in winners])


def measures_together(
    winners: Sequence[Winner], tables: StudyTables | None = None
) -> Mapping[str, Any] | None:
    """Return what `unseen_measures` of the mixture is, None if not all kept predictions.

    Args:
        winners: what a study delivers.
        tables: of the study; without them the measures are not corrected for the choice.
    """
    found = held_out_together(winners)
    if found is None:
        return None
    among = 1 if tables is None else len(tables.standings.first())
    return measures_of(found, winners[0].arrays, tables, among=among, together=True)


def thresholds_together(winners: Sequence[Winner]) -> dict[str, float]:
    """Return what `unseen_thresholds` of the mixture would return."""
    found = held_out_together(winners)
    if found is None:
        return {}
    predicted, rows = found
    if predicted.probabilities is None:
        return {}
    y = winners[0].arrays.y_train[rows]
    return best_thresholds(predicted.probabilities, y, predicted.class_weights)


def predictor_together(
    winners: Sequence[Winner], metric: str | None, *, with_posterior: bool
) -> Predictor:
    """Return networks as their export predicts together; else by "map" alone.

    Args:
        winners: the networks, first the one that represents them.
        metric: of the study.
        with_posterior: fit the posteriors.
    """
    each = [predictor_of(one, metric, with_posterior=with_posterior) for one in winners]
    if len(each) == 1:
        return each[0]
    first = each[0]
    meaning: dict[str, Any] = {**first.meaning, "thresholds": thresholds_together(winners)}
    members = [(1 / len(each), one) for one in each]
    return Predictor(first.exported, first.posterior, meaning, members)


def on_test_rows(winners: Sequence[Winner], *, raw: bool = False) -> dict[str, float]:
    """Return the metrics of networks that predict together on the test rows; empty without any.

    They are those of the report. `raw` is without the factor on the spread.
    """
    arrays = winners[0].arrays
    if not len(arrays.x_test):
        return {}
    averaged = winners[0].assignment.plan.declared.averaged
    predictor = predictor_together(winners, None, with_posterior=averaged)
    inputs = cast(Array, arrays.x_test)  # sliced, so that a mapped file is read in parts
    return named(predictor.predict(Given(inputs), raw=raw).metrics(arrays.y_test))
