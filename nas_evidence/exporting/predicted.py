"""What a model says of rows of data: the one value of predictions, with metrics and intervals.

Networks, ensembles, simple models and held-out folds return it; report, `predict`, `evaluate` and
model card measure it by the same functions (`maths/metrics.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from html import escape
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nas_evidence.data import ArrayData
from nas_evidence.data.exact_text import as_numbers
from nas_evidence.data.reading import check_aligned
from nas_evidence.data.targets import labels_of, typed_targets
from nas_evidence.likelihoods.predictive import Delivered
from nas_evidence.maths.decisions import NONE, decided
from nas_evidence.maths.density import Density
from nas_evidence.maths.metrics import (
    LEVEL,
    Floats,
    Labels,
    Reliability,
    class_metrics,
    coverage_by_level,
    entropy,
    interval_reliability,
    log_losses,
    metrics_of_each,
    named,
    real_losses,
    real_metrics,
    reliability,
)
from nas_evidence.maths.mixed_density import mixed_apart, on_different_scales
from nas_evidence.plumbing.foreign_text import on_lines, shortened
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.likelihoods import TARGET_KINDS


@dataclass(frozen=True, repr=False)
class Prediction:
    """Predictions for rows of data.

    classes        the values that columns of `probabilities` stand for; empty for real targets
    targets        names of the columns of real targets
    level          probability of the intervals
    probabilities  [n, C] for classes, else None
    density        of real targets, in an ensemble the mixture of its members'
    std_model      [n, C]: the part of `std` that comes from the uncertainty of the weights, and in
                   an ensemble from the differences between its members; with a `target_scale` it
                   is the same share of `std` as on that scale
    quantiles      probabilities whose quantiles `to_frame` has as columns, of real targets
    unit           [C] standard deviations of the real targets in training, for the log loss
    metric         that the model is to be judged by, None if none was named
    threshold      of two classes: probability from which the second is chosen, the best by that
                   metric on data unseen in training; if None, `class_weight` decides
    class_weight   w, by class: the class is argmax_k w_k p_k, and the accuracy is weighted by w;
                   empty for equal weights, see `maths/decisions.py`
    doubts         sentences about columns of the data that are unlike those of the training
    index          of the rows as they were given, for `to_frame`; None for 0, 1, ...
    """

    classes: tuple[str | int | bool, ...] = ()
    targets: tuple[str, ...] = ()
    level: float = LEVEL
    probabilities: np.ndarray | None = None
    density: Density | None = None
    std_model: np.ndarray | None = None
    quantiles: tuple[float, ...] = ()
    unit: np.ndarray | None = None
    metric: str | None = None
    threshold: float | None = None
    class_weight: Mapping[str, float] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()
    index: pd.Index | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What `predict` warns of, on the command line too: `doubts` and `doubt`."""
        return (*self.doubts, *filter(None, [self.doubt]))

    @property
    def class_weights(self) -> np.ndarray | None:
        """Class weights in the order of `classes` [C], None without any."""
        given = self.class_weight
        return np.array([given.get(str(c), 1.0) for c in self.classes]) if given else None

    @property
    def chosen(self) -> Labels:
        """The number of the class of each row [n]: by `threshold`, else by cost.

        Raises:
            UserError: for real targets, which have no classes.
        """
        if self.probabilities is None:
            raise UserError(
                "labels-of-real-targets",
                f"{', '.join(self.target_names)}: real targets have no labels; take `mean`, or "
                "`low` and `high`",
            )
        return decided(self.probabilities, self.threshold, class_weights=self.class_weights)

    @property
    def labels(self) -> np.ndarray:
        """The same as the training labels were [n].

        Raises:
            UserError: for real targets, or if a row has no class, since its probabilities are not
                numbers.
        """
        chosen = self.chosen
        if without := int((chosen == NONE).sum()):
            raise UserError(
                "probability-not-a-number",
                f"{without} of {len(chosen)} rows have no class: their probabilities are not "
                "numbers, so the network has diverged; export another trial, with trial_id "
                "(--trial).",
            )
        return np.asarray(np.array(self.classes)[chosen])

    @property
    def real(self) -> Density:
        """The density of real targets, in their unit.

        Raises:
            UserError: for classes, which have no density.
        """
        if self.density is None:
            raise UserError(
                "density-of-classes",
                f"classes have no density: {shortened(', '.join(map(str, self.classes)))}; take "
                "`probabilities` or `labels`",
            )
        return self.density

    @property
    def mean(self) -> np.ndarray | None:
        """Means of real targets [n, C], like intervals not below the least possible value."""
        return None if self.density is None else self.density.mean

    @property
    def std(self) -> np.ndarray | None:
        """Standard deviations of real targets [n, C]."""
        return None if self.density is None else self.density.std

    @property
    def low(self) -> np.ndarray:
        """Lower end of the central interval of probability `level` [n, C]."""
        return self.real.interval(self.level)[0]

    @property
    def high(self) -> np.ndarray:
        """Upper end of that interval [n, C]."""
        return self.real.interval(self.level)[1]

    @property
    def target_names(self) -> tuple[str, ...]:
        """Names of the real targets: y0, y1, ... where the data have none; empty for classes."""
        if self.density is None:
            return ()
        return self.targets or tuple(f"y{k}" for k in range(self.real.mean.shape[1]))

    def quantile(self, probability: float) -> np.ndarray:
        """Return the values that real targets do not exceed with a probability [n, C].

        Raises:
            ValueError: if it is not between 0 and 1, or the targets are classes.
        """
        check_quantiles([probability], classes=self.density is None)
        return self.real.quantile(probability)

    @property
    def cut(self) -> str:
        """How many intervals are cut off at the least possible value; empty if none is."""
        if self.density is None:
            return ""
        at_end = np.less_equal(self.low, self.density.least).any(axis=1)
        n = int(at_end.sum())
        where = f"the lower end was set to 0 in {n} of {len(at_end)} rows"
        return f"{where}, since no training target is negative" if n else ""

    @property
    def doubt(self) -> str:
        """Which rows have the median in place of the mean; empty if none has."""
        n = 0 if self.density is None else self.density.n_medians
        return f"{n} predictions are medians: their means are not finite" if n else ""

    @property
    def uncertainty(self) -> np.ndarray:
        """How unsure each row is: entropy in nats, or the mean standard deviation [n]."""
        if self.probabilities is not None:
            return entropy(self.probabilities)
        return np.asarray(self.real.std.mean(1))

    def at(self, rows: NDArray[np.int64]) -> "Prediction":
        """Return the predictions of some rows."""
        p, density, spread = self.probabilities, self.density, self.std_model
        return replace(
            self,
            index=None if self.index is None else self.index[rows],
            probabilities=None if p is None else p[rows],
            density=None if density is None else density.at(rows),
            std_model=None if spread is None else spread[rows],
        )

    def __repr__(self) -> str:
        return on_lines(f"{self.to_frame()!r}\n{self.cut}".rstrip("\n"))

    def _repr_html_(self) -> str:
        cut = f"<p>{escape(self.cut)}</p>" if self.cut else ""
        return f"{self.to_frame()._repr_html_()}{cut}"

    def to_frame(self) -> pd.DataFrame:
        """Return a table: the class and all probabilities, or mean, interval, spreads, quantiles.

        It has the index of the data that were given, so that it can be joined with them.
        The column of the quantile of probability 0.1 is `q10`, of 0.025 `q2.5`.
        """
        if self.probabilities is not None:
            columns = {f"p({c})": self.probabilities[:, i] for i, c in enumerate(self.classes)}
            return pd.DataFrame({"prediction": self.labels, **columns}, self.index)
        assert self.std_model is not None
        mean, std, columns = self.real.mean, self.real.std, {}
        low, high = self.real.interval(self.level)
        for i, name in enumerate(self.targets):
            end = f" of {name}" if len(self.targets) > 1 else ""
            columns |= {
                f"prediction{end}": mean[:, i],
                f"low{end}": low[:, i],
                f"high{end}": high[:, i],
                f"std{end}": std[:, i],
                f"std_model{end}": self.std_model[:, i],
                **{f"q{100 * p:g}{end}": self.quantile(p)[:, i] for p in self.quantiles},
            }
        return pd.DataFrame(columns, self.index)

    def losses(self, y: NDArray[Any]) -> Floats:
        """Return the log loss of each row [n], nats; of real targets divided by `unit`.

        Args:
            y: numbers of the true classes [n], or real targets [n, C].
        """
        if self.probabilities is not None:
            return log_losses(self.probabilities, y)
        assert self.unit is not None
        return real_losses(self.real, y, self.unit)

    def metrics(self, y: NDArray[Any], *, with_crps: bool = True) -> dict[str, float]:
        """Return the metrics of `maths/metrics.py`; for `y` see `losses`."""
        if self.probabilities is not None:
            weights = self.class_weights
            return class_metrics(self.probabilities, y, threshold=self.threshold,
                                 class_weights=weights)  # fmt: skip
        assert self.unit is not None
        return real_metrics(self.real, y, unit=self.unit, level=self.level, with_crps=with_crps)

    def metrics_of_each(self, y: NDArray[Any]) -> list[dict[str, float]]:
        """Return the metrics of each of several real targets [n, C]; nothing for one, or classes.

        Of one target `metrics` are its own.
        """
        if self.probabilities is not None or y.shape[1] < 2:
            return []
        assert self.unit is not None
        return metrics_of_each(self.real, y, unit=self.unit, level=self.level)

    def measures(self, truth: Any) -> dict[str, float]:
        """Return how good the predictions are, given the true labels or targets.

        Names and rules are in `maths/metrics.py`; `metric`, if one was named, comes first. Of
        several real targets each follows alone, as "rmse of NAME".

        Raises:
            ValueError: if a label is not among the classes, or the number of rows differs.
        """
        known = self._known(truth)
        found = self.metrics(known)
        if self.density is not None:
            found |= {"level": self.level} | coverage_by_level(self.density, known)
        first = {self.metric: found[self.metric]} if self.metric in found else {}
        each = zip(self.target_names, self.metrics_of_each(known), strict=False)
        return first | found | {f"{k} of {name}": v for name, own in each for k, v in own.items()}

    def reliability(self, truth: Any) -> Reliability:
        """Return confidence and accuracy by bin, or probability and coverage of intervals.

        Raises:
            ValueError: as `measures`.
        """
        known = self._known(truth)
        if self.probabilities is not None:
            return reliability(self.probabilities, known)
        return interval_reliability(self.real, known)

    def _known(self, truth: Any) -> np.ndarray:
        """Return true labels as class numbers [n], or targets as numbers [n, C]."""
        check_aligned(self.index, {"truth": truth})
        truth = typed_targets(truth, "the true values")
        n = len(self.real.mean if self.probabilities is None else self.probabilities)
        if len(truth) != n:
            raise UserError(
                "truth-length", f"there are {n} predictions, but {len(truth)} true values"
            )
        if self.probabilities is None:
            return self._known_numbers(truth)
        if truth.ndim == 2 and truth.shape[1] == len(self.classes) > 1:  # one-hot
            truth = np.array(self.classes, dtype=object)[truth.argmax(1)]
        found = labels_of(truth, self.classes)
        if None in found:
            unknown = truth.ravel()[found.index(None)]
            raise UserError(
                "unknown-true-label",
                f"true label {str(unknown)!r} is not among the classes of the model: "
                f"{', '.join(map(str, self.classes))}",
            )
        return np.array(found)

    def _known_numbers(self, truth: np.ndarray) -> np.ndarray:
        """Return true targets as numbers [n, C]."""
        shape, named = self.real.mean.shape, ", ".join(map(repr, self.targets)) or "y"
        if truth.size != np.prod(shape):
            raise UserError(
                "truth-shape",
                f"column {named} must hold the true targets {list(shape)}, but has the shape "
                f"{list(truth.shape)}; leave it out to predict only",
            )
        try:
            found = np.asarray(truth.astype(np.float64).reshape(shape))
        except (ValueError, TypeError):
            found = as_numbers(pd.Series([*truth.ravel()], dtype=object)).reshape(shape)
        if np.isfinite(found).all():
            return found
        row, column = np.argwhere(~np.isfinite(found))[0]
        raise UserError(
            "truth-not-numbers",
            f"column {named} must hold the true targets as finite numbers, but row "
            f"{row if self.index is None else shortened(self.index[row])} has "
            f"{shortened(truth.reshape(shape)[row, column])!r}; correct it, or leave the column "
            "out to predict only",
        )


#: Predictions of rows out of fold, and the rows [m].
HeldOut = tuple[Prediction, NDArray[np.int64]]


class Metrics(dict[str, float]):
    """Metrics of labelled data by name, as `maths/metrics.py` defines them.

    n            labelled rows
    task         what the targets are, as in a study file
    reliability  confidence and accuracy by bin, or probability and coverage of intervals

    >>> Metrics({"accuracy": 0.912, "log_loss": 0.25}, n=125, task="classification")
    accuracy                            0.9120
    log loss                            0.2500
    of 125 labelled rows
    """

    def __init__(
        self,
        found: Mapping[str, float],
        *,
        n: int,
        task: str,
        reliability: Reliability | None = None,
    ) -> None:
        super().__init__(found)
        self.n, self.task, self.reliability = n, task, reliability

    def lines(self) -> list[tuple[str, float]]:
        """Return each metric by the words of the report, coverage last, once for each level."""
        names, asked = TARGET_KINDS[self.task].metrics, self.get("level")
        lines = []
        for key, value in self.items():
            name, of, target = key.partition(" of ")
            percent = name.removeprefix("coverage_")
            level = int(percent) / 100 if percent.isdigit() else None
            if name == "coverage" or (level is not None and level != asked):
                share = 100 * (asked if level is None else level)  # type: ignore[operator]
                lines.append((f"{share:g} % intervals cover{of}{target}", value))
            elif level is None and name != "level":
                words = names.get(name, name.replace("_", " "))
                lines.append((f"{words}{of}{target}", value))
        return sorted(lines, key=lambda line: "% intervals cover" in line[0])

    def __repr__(self) -> str:
        lines = [f"{words:34}  {value:.4f}" for words, value in self.lines()]
        return "\n".join([*lines, f"of {self.n} labelled rows"])

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Metrics, **self.__dict__), (dict(self),)


def mixed(predictions: Sequence[Prediction], weights: np.ndarray) -> Prediction:
    """Return the prediction of an ensemble: the mixture of its members' distributions.

    Args:
        predictions: of each member for the same rows.
        weights: [K], sum 1.
    """
    first = predictions[0]
    if first.probabilities is not None:
        each = np.stack([np.asarray(one.probabilities) for one in predictions])
        return replace(first, probabilities=np.tensordot(weights, each, 1))
    parts = [one.real for one in predictions]
    # Predictions out of fold do not say which part of their spread is of the weights.
    known = first.std_model is not None
    of_weights = [
        np.zeros_like(one.real.mean) if one.std_model is None else one.std_model
        for one in predictions
    ]
    density: Density
    if apart := on_different_scales(parts):
        density, spread = mixed_apart(weights, apart, of_weights)
    else:
        density, spread = parts[0].mixed(weights, parts[1:], of_weights)
    return replace(first, density=density, std_model=spread if known else None)


def mixed_of_rows(each: Sequence[HeldOut | None]) -> HeldOut | None:
    """Return the mixture of predictions out of fold with equal weights, and its rows [m].

    The rows are those that all predict. None if one is missing, or if no row is predicted by all.
    """
    known = [one for one in each if one is not None]
    if not known or len(known) < len(each):
        return None
    if len(known) == 1:
        return known[0]
    common = reduce(np.intersect1d, [rows for _, rows in known])
    if not len(common):
        return None
    parts = [found.at(np.searchsorted(rows, common)) for found, rows in known]
    return mixed(parts, np.full(len(parts), 1 / len(parts))), common


def mean_metrics(
    predicted: Sequence[Prediction], y: NDArray[Any], *, with_crps: bool = True
) -> dict[str, float]:
    """Return the metrics that are defined for all of some predictions of the data, averaged."""
    each = [named(one.metrics(y, with_crps=with_crps)) for one in predicted]
    known = set.intersection(*(set(one) for one in each))
    return {name: float(np.mean([one[name] for one in each])) for name in known}


def check_quantiles(probabilities: Sequence[float], *, classes: bool) -> None:
    """Check that probabilities of quantiles are between 0 and 1, and the targets real.

    Raises:
        ValueError: if not.
    """
    for p in probabilities:
        if not 0 < p < 1:
            raise UserError(
                "quantile-out-of-range",
                f"quantiles must lie between 0 and 1, but got {p:g}; give for example 0.1 and 0.9",
            )
    if len(probabilities) and classes:
        raise UserError(
            "quantiles-of-classes",
            "quantiles are of real targets, but these are classes, whose probabilities are "
            "columns anyway; leave them out",
        )


def prediction_of(arrays: ArrayData, delivered: Delivered) -> Prediction:
    """Return what is said of rows of a study, with the meaning of its targets."""
    meaning, found = arrays.meaning, vars(delivered)
    if delivered.density is not None:
        return Prediction(targets=meaning.targets, unit=arrays.y_std, **found)
    classes = tuple(meaning.classes or range(arrays.n_outputs))
    return Prediction(classes, class_weight=meaning.class_weight, **found)
