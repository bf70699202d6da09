"""Simple models of the same rows, to ask whether a network is worth its weights.

    majority class, or mean        the frequencies of the classes; mean and spread of the targets
    logistic or ridge regression   numbers standardised, one-hot columns as they are; the penalty
                                   by cross-validation (`LogisticRegressionCV`, `RidgeCV`)
    gradient boosting              histogram trees with the defaults of scikit-learn, fitted on the
                                   columns that such trees can divide

They are fitted on exactly the rows that the networks are trained on, and without class weights;
these decide afterwards which class is predicted, by the rule of the networks. Without a test split
they predict the folds of a trial, scored as the networks are: by the log predictive density with a
marginalised scale. They are shown and never ranked.

Each of several real targets has a noise of its own: the root mean square of what is left over of
rows by models that have not seen them. The noise of a fold uses neither its rows nor models of it.

    test rows, blocks in time, halves   five folds of the rows fitted on
    three and more folds of a trial     these folds: of fold k, what is left over of each other
                                        fold j by the model fitted without both

`code` is the model as lines of scikit-learn, in the unit of the target: so they are fitted here.

In a study with a target scale every model is fitted on that scale as well, and counts on the one
of larger log density per row by these folds,

    -sum_c log s_c + mean_i log |dz/dy_i|       s_c  noise of target c on the scale z

so no test row chooses.
"""

import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.compose import make_column_transformer
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, RidgeCV
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from nas_evidence.data.arrays import ArrayData, Inputs
from nas_evidence.exporting.predicted import Prediction, prediction_of
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.likelihoods.predictive import Delivered
from nas_evidence.maths.metrics import LEAST, Floats
from nas_evidence.maths.target_scale import OnScale, TargetScale, by_row, fit, unscaled
from nas_evidence.scores.folds import all_folds, log_predictive
from nas_evidence.spec.divisions import kept_division
from nas_evidence.spec.likelihoods import imported
from nas_evidence.spec.study import Assignment
from nas_evidence.training.parts import order_of_data

#: Maximum number of input values [n * d] of a linear model.
MOST_VALUES = 5_000_000
#: Maximum of that number times the classes for boosting.
MOST_BOOSTED = 20_000_000
#: Maximum number of input values [n * d] that are fitted on one thread: several threads cost
#: seconds on a busy machine.
ONE_THREAD = 200_000
#: Penalties that are tried for logistic regression, as scikit-learn's C, and for ridge regression.
PENALTIES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
ALPHAS, _ALPHAS = np.geomspace(1e-3, 1e5, 33), "numpy.geomspace(1e-3, 1e5, 33)"
_FOLDS, _STEPS = 5, 5000


#: Least rows of a leaf of a tree, the default of scikit-learn.
_LEAF = 20
#: Fits on x [n, d], y and predicts x' [m, d]; the last argument is the number of outputs. Returns
#: class probabilities [m, C], or means of real targets [m, D].
Model = Callable[[Floats, NDArray[Any], Floats, int], Floats]


def baseline_models(arrays: ArrayData) -> Mapping[str, Model]:
    """Return the baselines by name that data of this kind and size have."""
    values = arrays.n_train * int(np.prod(arrays.input_shape))
    if not arrays.kind.simple:
        return {}
    simple = _simple(arrays)
    found: dict[str, Model] = {arrays.kind.constant: simple.constant}
    if values <= MOST_VALUES:
        found[simple.linear_name] = simple.linear(_is_number(arrays))
    if values * arrays.n_outputs <= MOST_BOOSTED:
        found["gradient boosting"] = simple.boosted
    if values <= ONE_THREAD:
        found = {name: _in_one_thread(model) for name, model in found.items()}
    return found


def _in_one_thread(model: Model) -> Model:
    def fit(x: Floats, y: NDArray[Any], unseen: Floats, n_outputs: int) -> Floats:
        with threadpool_limits(1):
            return model(x, y, unseen, n_outputs)

    return fit


def predict_test(arrays: ArrayData) -> Iterator[tuple[str, Prediction]]:
    """Yield each baseline's predictions of the test rows, fitted on all training rows."""
    x, x_test = flat(arrays.x_train), flat(arrays.x_test)
    for name, model in baseline_models(arrays).items():
        yield name, _simple(arrays).of_test(name, arrays, model, x, x_test)


def _classes_of_test(
    name: str, arrays: ArrayData, model: Model, x: Floats, x_test: Floats
) -> Prediction:
    found = model(x, arrays.y_train, x_test, arrays.n_outputs)
    return prediction_of(arrays, Delivered(probabilities=found))


def _reals_of_test(
    name: str, arrays: ArrayData, model: Model, x: Floats, x_test: Floats
) -> Prediction:
    everything = [(np.arange(len(x)), np.arange(len(x_test)))]
    [one] = _on_better_scale(name, arrays, model, x, everything, x_test)
    return prediction_of(arrays, Delivered(density=one.scale.density(one.means, one.noise)))


def code(name: str, arrays: ArrayData, predicted: Prediction) -> str:
    """Return five lines that fit a baseline on all training rows; "" for a constant one.

    `{study}` stands for the call that loads the study, `{new}` for new rows. On a scale of the
    target the lines predict medians.

    Args:
        name: of the baseline.
        arrays: the data of the study.
        predicted: by it, on the better of two scales.
    """
    of_classes = bool(arrays.kind.classes)
    of, is_one = "Classifier" if of_classes else "Regressor", of_classes or arrays.n_outputs == 1
    if name == arrays.kind.constant:  # nobody takes it
        return ""
    if name == _simple(arrays).linear_name:
        scaler = "sklearn.preprocessing.StandardScaler()"
        if not _is_number(arrays).all():
            numbers = "study.arrays().meaning.preparation.scaled"
            scaler = (
                f"sklearn.compose.make_column_transformer(({scaler}, {numbers}), "
                'remainder="passthrough")'
            )
        linear = _logistic_code(arrays) if of_classes else f"RidgeCV({_ALPHAS})"
        model = f"sklearn.pipeline.make_pipeline({scaler}, sklearn.linear_model.{linear})"
    else:
        model = f"sklearn.ensemble.HistGradientBoosting{of}(random_state=0)"
        model = model if is_one else f"sklearn.multioutput.MultiOutputRegressor({model})"
    y = "study.arrays().y_train" + "[:, 0]" * (is_one and not of_classes)
    given, values = "x, y", f"study.features(), {y}"
    if isinstance(predicted.density, OnScale):
        given, values = f"{given}, scale", f"{values}, study.arrays().scale"
        model = (
            f"sklearn.compose.TransformedTargetRegressor({model}, func=scale.standardised, "
            "inverse_func=scale.restored, check_inverse=False)"
        )
    modules = sorted({*re.findall(r"sklearn\.\w+|numpy", model)})
    return "\n".join(
        [
            f"import {', '.join(['nas_evidence', *modules])}",
            "study = {study}",
            f"{given} = {values}",
            f"model = {model}.fit(x, y)",
            f"model.predict{'_proba' * of_classes}(study.features({{new}}))",
        ]
    )


def _logistic_code(arrays: ArrayData) -> str:
    """Return its code; a fold that would divide copies of a row is scikit-learn's own there."""
    n = _n_folds(flat(arrays.x_train), arrays.y_train)
    if n < 2:
        return f"LogisticRegression(max_iter={_STEPS})"
    folds = f"sklearn.model_selection.StratifiedKFold({n}, shuffle=True, random_state=0)"
    return (
        f"LogisticRegressionCV(Cs={list(PENALTIES)}, cv={folds}, "
        f'scoring="neg_log_loss", max_iter={_STEPS})'
    )


@dataclass(frozen=True)
class OnFolds:
    """A baseline that predicts each fold from the others.

    log_predictive  density per datum, nats, scored as that of a network
    accuracy        NaN for real targets
    predicted       of the data that folds predict, in their order
    """

    name: str
    log_predictive: float
    accuracy: float
    predicted: Prediction


def predict_folds(arrays: ArrayData, assignment: Assignment) -> Iterator[OnFolds]:
    """Yield each baseline on the folds whose predictions a trial keeps, all of them.

    The constant model has the frequencies of all rows, unless they come in time.
    """
    division = kept_division(assignment.plan, assignment.estimators, arrays.n_train)
    order = order_of_data(arrays.n_train, assignment, arrays.units)
    tasks = all_folds(division, order, arrays.units)
    rows = np.flatnonzero(rows_in_folds(arrays, assignment))
    in_time = arrays.units is not None and arrays.units.in_time
    for name, model in baseline_models(arrays).items():
        parts = [(task.trained.numpy(), task.predicted.numpy()) for task in tasks]
        if name == arrays.kind.constant and not in_time:
            # The majority of the other folds is the rarer class of the fold itself.
            parts = [(np.arange(arrays.n_train), unseen) for _, unseen in parts]
        yield _simple(arrays).of_folds(name, arrays, model, parts, rows)


#: Rows that a model is fitted on, and rows that it predicts.
_Part = tuple[NDArray[np.int64], NDArray[np.int64]]


def _classes_of_folds(
    name: str, arrays: ArrayData, model: Model, parts: Sequence[_Part], rows: NDArray[np.int64]
) -> OnFolds:
    x, y = flat(arrays.x_train), arrays.y_train
    total, hits, table = 0.0, 0, np.zeros((len(x), arrays.n_outputs))
    for seen, unseen in parts:
        table[unseen] = model(x[seen], y[seen], x[unseen], arrays.n_outputs)
        scored = log_predictive(
            torch.from_numpy(np.log(table[unseen].clip(LEAST, 1))),
            torch.from_numpy(y[unseen]),
            Categorical(),
        )
        hits += scored.hits or 0
        total += scored.log_predictive
    predicted = prediction_of(arrays, Delivered(probabilities=table[rows]))
    return OnFolds(name, total / len(rows), hits / len(rows), predicted)


def _reals_of_folds(
    name: str, arrays: ArrayData, model: Model, parts: Sequence[_Part], rows: NDArray[np.int64]
) -> OnFolds:
    x, y = flat(arrays.x_train), arrays.y_train
    found, n = _on_better_scale(name, arrays, model, x, parts, x), len(x)
    table, noises = np.zeros((n, arrays.n_outputs)), np.ones((n, arrays.n_outputs))
    total, scales = 0.0, []
    for (_, unseen), one in zip(parts, found, strict=True):
        table[unseen], noises[unseen] = one.means, one.noise
        scales.append((unseen, one.scale))
        if not one.scale.holds(y[unseen]).all():
            total = -math.inf
            continue
        own = (one.noise / one.scale.spread)[None]  # targets with a noise of 1 each
        scored = log_predictive(
            torch.from_numpy((one.means - one.scale.centre) / one.scale.spread / own),
            torch.from_numpy(one.scale.standardised(y[unseen]) / own),
            Gaussian(1.0),
            float(one.scale.log_jacobian(y[unseen], arrays.y_std).sum())
            - len(unseen) * float(np.log(own).sum()),
        )
        total += scored.log_predictive
    on_own = scales[0][1].name != "identity"  # else one scale serves all parts
    scale = by_row(scales, n).at(rows) if on_own else arrays.standardisation
    density = scale.density(table[rows], noises[rows])
    predicted = prediction_of(arrays, Delivered(density=density))
    return OnFolds(name, total / len(rows), float("nan"), predicted)


@dataclass(frozen=True)
class _Reals:
    """A model of real targets on a scale g.

    means  of g(y) [m, D]
    noise  standard deviations of these [D]
    merit  log density of the targets by folds of the rows fitted on, nats, less a constant
    """

    scale: TargetScale
    means: Floats
    noise: Floats
    merit: float


def _on_better_scale(
    name: str,
    arrays: ArrayData,
    model: Model,
    x: Floats,
    parts: Sequence[_Part],
    unseen: Floats,
) -> list[_Reals]:
    """Return a model of each part on the better of two scales: identity, and the study's own.

    Args:
        name: of the model.
        arrays: with real targets.
        model: to fit.
        x: all training rows [n, d].
        parts: rows of `x` to fit on, and rows of `unseen` to predict.
        unseen: [m, d].
    """
    own = [] if arrays.fitted_scale is None else [arrays.fitted_scale.name]
    each, unit = [], unscaled(arrays.n_outputs)
    for scale_name in ["identity", *own]:
        scales = [
            unit if scale_name == "identity" else fit(scale_name, y)
            for y in (arrays.y_train[seen] for seen, _ in parts)
        ]
        noises = _noises(name, arrays, model, x, parts, scales)
        found = []
        for (seen, predicted), scale, noise in zip(parts, scales, noises, strict=True):
            y = arrays.y_train[seen]
            means = model(x[seen], scale.standardised(y), unseen[predicted], y.shape[1])
            merit = scale.log_jacobian(y, np.ones(y.shape[1])).sum()
            merit -= len(y) * np.log(noise).sum()
            found.append(
                _Reals(
                    scale, means * scale.spread + scale.centre, noise * scale.spread, float(merit)
                )
            )
        each.append(found)
    return max(each, key=lambda found: sum(one.merit for one in found))


def _noises(
    name: str,
    arrays: ArrayData,
    model: Model,
    x: Floats,
    parts: Sequence[_Part],
    scales: Sequence[TargetScale],
) -> list[Floats]:
    """Return the noise of the standardised targets of each part [D], see the module."""
    y = arrays.y_train
    in_time = arrays.units is not None and arrays.units.in_time
    if name == arrays.kind.constant:
        found = [
            scale.standardised(y[seen]).std(0)
            for (seen, _), scale in zip(parts, scales, strict=True)
        ]
    elif len(parts) > 2 and not in_time:
        found = _of_other_folds(model, x, y, parts, scales)
    else:
        found = [
            _of_inner_folds(model, x[seen], scale.standardised(y[seen]))
            for (seen, _), scale in zip(parts, scales, strict=True)
        ]
    least = 1e-9 * (arrays.y_std if scales[0].name == "identity" else 1.0)
    return [np.maximum(noise, least) for noise in found]


def _of_other_folds(
    model: Model, x: Floats, y: Floats, parts: Sequence[_Part], scales: Sequence[TargetScale]
) -> list[Floats]:
    """Return the noise of the model of each fold from the other folds [D].

        s_kc^2 = mean of (z_ic - m_ic)^2 over the rows i of the other folds

    m_ic  predicted by the model fitted without fold k and without the fold of row i

    On one scale the model without two folds serves both: 10 fits for five folds.
    """
    squares: list[list[Floats]] = [[] for _ in parts]
    is_one = all(scale is scales[0] for scale in scales)
    for k, (seen, own) in enumerate(parts):
        for j, (_, other) in enumerate(parts):
            if j == k or (is_one and j > k):
                continue
            rest, scale = np.setdiff1d(seen, other), scales[k]
            told = np.concatenate([other, own]) if is_one else other
            means = model(x[rest], scale.standardised(y[rest]), x[told], y.shape[1])
            left = (scale.standardised(y[told]) - means) ** 2
            squares[k].append(left[: len(other)])
            if is_one:
                squares[j].append(left[len(other) :])
    return [np.sqrt(np.concatenate(left).mean(0)) for left in squares]


def _of_inner_folds(model: Model, x: Floats, y: Floats) -> Floats:
    """Return the noise from five folds of the rows themselves [D]."""
    n = min(_FOLDS, len(_distinct(x, y)[0]))
    left = np.empty_like(y)
    for seen, own in _folds(x, y, KFold(n, shuffle=True, random_state=0)):
        left[own] = y[own] - model(x[seen], y[seen], x[own], y.shape[1])
    found: Floats = np.sqrt((left**2).mean(0))
    return found


def rows_in_folds(arrays: ArrayData, assignment: Assignment) -> NDArray[np.bool_]:
    """Return which data the folds of a trial predict [n]: not the first of the blocks in time."""
    division = kept_division(assignment.plan, assignment.estimators, arrays.n_train)
    order = order_of_data(arrays.n_train, assignment, arrays.units)
    found = np.zeros(arrays.n_train, dtype=bool)
    for task in all_folds(division, order, arrays.units):
        found[task.predicted.numpy()] = True
    return found


def flat(x: Inputs) -> Floats:
    """Return inputs as rows of numbers [n, d]."""
    return np.asarray(x[: len(x)], np.float64).reshape(len(x), -1)


def _majority(x: Floats, y: NDArray[Any], unseen: Floats, n_outputs: int) -> Floats:
    return _of_classes(DummyClassifier(strategy="prior"), x, y, unseen, n_outputs)


def _mean(x: Floats, y: NDArray[Any], unseen: Floats, n_outputs: int) -> Floats:
    return np.tile(y.mean(0), (len(unseen), 1))


def _is_number(arrays: ArrayData) -> NDArray[np.bool_]:
    preparation = arrays.meaning.preparation
    if preparation is None:
        return np.ones(int(np.prod(arrays.input_shape)), dtype=bool)
    return np.asarray(preparation.scaled)


def _scaled(is_number: NDArray[np.bool_]) -> Any:
    return make_column_transformer((StandardScaler(), is_number), remainder="passthrough")


def _logistic(is_number: NDArray[np.bool_]) -> Model:
    def fit(x: Floats, y: NDArray[Any], unseen: Floats, n_outputs: int) -> Floats:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            # Defaults that change; naming the new ones would need the newest scikit-learn.
            warnings.simplefilter("ignore", FutureWarning)
            model = make_pipeline(_scaled(is_number), _cross_validated(x, y))
            return _of_classes(model, x, y, unseen, n_outputs)

    return fit


def _cross_validated(x: Floats, y: NDArray[Any]) -> Any:
    """Return logistic regression; with the default penalty where a class has a single datum."""
    n = _n_folds(x, y)
    if n < 2:
        return LogisticRegression(max_iter=_STEPS)
    folds = _folds(x, y, StratifiedKFold(n, shuffle=True, random_state=0))
    return LogisticRegressionCV(Cs=PENALTIES, cv=folds, scoring=_mean_log_p, max_iter=_STEPS)


def _n_folds(x: Floats, y: NDArray[Any]) -> int:
    """Return as many folds as each class has data for."""
    return min(_FOLDS, int(np.unique(y[_distinct(x, y)[0]], return_counts=True)[1].min()))


def _mean_log_p(model: Any, x: Floats, y: NDArray[Any]) -> float:
    """Return scikit-learn's "neg_log_loss", of which half the time is checks of its arguments."""
    p = model.predict_proba(x)[np.arange(len(y)), np.searchsorted(model.classes_, y)]
    return float(np.log(np.maximum(p, np.finfo(p.dtype).eps)).mean())


def _distinct(x: Floats, y: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first row of each kind, and the kind of each row; copies of a row are of one."""
    _, first, kinds = np.unique(
        np.column_stack([x, y]), axis=0, return_index=True, return_inverse=True
    )
    order = np.argsort(first)
    return first[order], np.argsort(order)[kinds.ravel()]


def _folds(x: Floats, y: NDArray[Any], division: Any) -> list[tuple[Any, Any]]:
    """Return the folds of the distinct rows: no copy of a weighted row is in another fold."""
    first, kinds = _distinct(x, y)
    tested = [np.isin(kinds, test) for _, test in division.split(x[first], y[first])]
    return [(np.flatnonzero(~test), np.flatnonzero(test)) for test in tested]


def _boosted_classes(x: Floats, y: NDArray[Any], unseen: Floats, n_outputs: int) -> Floats:
    own = _divided(x)
    model = HistGradientBoostingClassifier(min_samples_leaf=_LEAF, random_state=0)
    return _of_classes(model, x[:, own], y, unseen[:, own], n_outputs)


def _divided(x: Floats) -> NDArray[np.bool_]:
    """Return the columns of x [n, d] that a tree can divide, at least the first.

    No threshold of another column leaves `_LEAF` rows on both sides. So trees without it are the
    same trees, bit by bit. Of one-hot columns these are the rare levels.
    """
    n, found = len(x), np.zeros(x.shape[1], dtype=bool)
    if n >= 2 * _LEAF:
        places = _LEAF - 1, n - _LEAF
        low, high = np.partition(x, places, axis=0)[list(places)]
        found = low < high
    found[0] |= not found.any()
    return found


def _of_classes(model: Any, x: Floats, y: NDArray[Any], unseen: Floats, n_outputs: int) -> Floats:
    """Return probabilities of all classes; one that was not seen counts as seen half a time."""
    if len(np.unique(y)) < 2:
        model = DummyClassifier(strategy="prior")
    with warnings.catch_warnings():
        # Of few rows for each class; they are known to be classes.
        warnings.filterwarnings("ignore", "The number of unique classes")
        model.fit(x, y)
    found = np.zeros((len(unseen), n_outputs))
    found[:, model.classes_] = model.predict_proba(unseen)
    missing = np.setdiff1d(np.arange(n_outputs), model.classes_)
    found[:, missing] = 0.5 / len(y)
    return np.asarray(found / found.sum(1, keepdims=True))


def _ridge(is_number: NDArray[np.bool_]) -> Model:
    def fit(x: Floats, y: NDArray[Any], unseen: Floats, n_outputs: int) -> Floats:
        model = make_pipeline(_scaled(is_number), RidgeCV(ALPHAS)).fit(x, y)
        return np.reshape(model.predict(unseen), (len(unseen), y.shape[1]))

    return fit


def _boosted_reals(x: Floats, y: NDArray[Any], unseen: Floats, n_outputs: int) -> Floats:
    model, own = HistGradientBoostingRegressor(min_samples_leaf=_LEAF, random_state=0), _divided(x)
    fitted = MultiOutputRegressor(model).fit(x[:, own], y)
    return np.asarray(fitted.predict(unseen[:, own]))


@dataclass(frozen=True)
class Simple:
    """The simple models of a kind of target, and how they predict.

    constant  predicts one value for all rows; `TargetKind.constant` is its name
    linear    made from which columns are numbers
    of_test   predicts test rows
    of_folds  predicts the folds of a trial
    """

    constant: Model
    linear_name: str
    linear: Callable[[NDArray[np.bool_]], Model]
    boosted: Model
    of_test: Callable[[str, ArrayData, Model, Floats, Floats], Prediction]
    of_folds: Callable[[str, ArrayData, Model, Sequence[_Part], NDArray[np.int64]], OnFolds]


OF_CLASSES = Simple(
    _majority, "logistic regression", _logistic, _boosted_classes, _classes_of_test,
    _classes_of_folds,
)  # fmt: skip
OF_REALS = Simple(
    _mean, "ridge regression", _ridge, _boosted_reals, _reals_of_test, _reals_of_folds
)


def _simple(arrays: ArrayData) -> Simple:
    """Return the simple models of data whose kind of target has some."""
    found: Simple = imported(arrays.kind.simple)
    return found
