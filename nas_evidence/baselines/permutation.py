"""Which columns of a table a network uses: permutation importance (Breiman, 2001).

    I_j = 1/R sum_r  L(x with column j in random order) - L(x)

    L  loss of predictions of n rows: a metric, negated if more of it is better
    j  column of the table: all its features (one-hot, missing, parts of a date) move together
    R  permutations

An I_j near 0 says that this network predicts as well without the column: it carries nothing, or
other columns carry the same. Values and standard deviation over the permutations are those of
`sklearn.inspection.permutation_importance`. Permuted rows may be unlike any in the data.

Networks of the folds are not kept. Without test rows the rows are those that the network was
trained on: a column that it has memorised counts as important there, so the values are optimistic.

Real targets are predicted without the uncertainty of the weights, which differs from row to row:
with noise σ of standardised targets the log loss then rises by the squared error over 2 σ².
"""

from collections.abc import Callable, Sequence

import numpy as np

from nas_evidence.baselines.comparison import ColumnImportance, Importance
from nas_evidence.data import ArrayData
from nas_evidence.data.given import Given
from nas_evidence.data.mapped import Array, random_rows
from nas_evidence.exporting.predictor import Predictor
from nas_evidence.maths.metrics import LEVEL, Floats, named
from nas_evidence.spec.metric_names import LESS_IS_BETTER

#: Permutations of each column, most rows and most columns: at most a million rows are predicted.
N_REPEATS, MOST_ROWS, MOST_COLUMNS = 5, 1000, 200


def column_importance(
    predictor: Predictor, arrays: ArrayData, *, metric: str | None = None, seed: int = 0
) -> Importance | None:
    """Return the importance of each column, on test rows if there are any; None without a table.

    Args:
        predictor: of the export, or as it would be.
        arrays: the data of the study.
        metric: by default that of the study, else the log loss; the log loss too where these
            rows do not define it.
        seed: of the permutations and of the rows.

    Raises:
        ValueError: if the metric is unknown, or not for these targets.
    """
    if predictor.preparation is None:
        return None
    rng, tested = np.random.default_rng(seed), len(arrays.x_test) > 0
    x, y = (arrays.x_test, arrays.y_test) if tested else (arrays.x_train, arrays.y_train)
    rows = random_rows(len(y), MOST_ROWS, rng)
    x, y = np.array(x[rows]), y[rows]

    asked = metric or predictor.meaning.get("metric")

    def measured(inputs: Array) -> dict[str, float]:
        found = predictor.predict(Given(inputs), method="map", metric=metric)
        return named(found.metrics(y, with_crps=asked == "crps"))

    shown = asked if asked in measured(x) else "log_loss"
    places = predictor.preparation.places
    names = list(places)[:MOST_COLUMNS]
    found = loss_increases(
        lambda inputs: _loss(measured(inputs), shown), x, [places[name] for name in names], rng=rng
    )
    columns = [
        ColumnImportance(column=name, mean=float(own.mean()), std=float(own.std()))
        for name, own in zip(names, found, strict=True)
    ]
    return Importance(
        metric=shown,
        asked=asked,
        on="test" if tested else "training",
        n=len(rows),
        repeats=N_REPEATS,
        left_out=len(places) - len(names),
        columns=tuple(sorted(columns, key=lambda one: -one.mean)),
    )


def loss_increases(
    loss: Callable[[Array], float],
    x: Array,
    groups: Sequence[Sequence[int]],
    *,
    rng: np.random.Generator,
    repeats: int = N_REPEATS,
) -> Floats:
    """Return how much the loss rises when features are permuted over the rows [groups, repeats].

    >>> x = np.array([[0.0, 5.0], [1.0, 5.0]])
    >>> rng = np.random.default_rng(0)
    >>> loss_increases(lambda z: float(((z - x) ** 2).sum()), x, [[1]], rng=rng, repeats=2)
    array([[0., 0.]])

    Args:
        loss: of inputs like x.
        x: inputs [n, d].
        groups: features that move together.
        rng: draws the permutations.
        repeats: permutations of each group.
    """
    before, found = loss(x), np.empty((len(groups), repeats))
    for i, group in enumerate(groups):
        for r in range(repeats):
            permuted = x.copy()
            permuted[:, group] = x[rng.permutation(len(x))][:, group]
            found[i, r] = loss(permuted) - before
    return found


def _loss(metrics: dict[str, float], name: str) -> float:
    """Return a metric so that less is better; coverage by its distance from the level."""
    if name == "coverage":
        return abs(metrics[name] - LEVEL)
    return metrics[name] if name in LESS_IS_BETTER else -metrics[name]
