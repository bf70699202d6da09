"""Predictions with uncertainty from an export folder alone.

    real targets  mean f(x), variance Var f(x) + σ²: closed form
    classes       "probit": mean of softmax(f / T), f ~ N(f, Cov f), in closed form by pairs of
                            classes (MacKay 1992; `maths/gaussian_softmax.py`)
                  "mc":     the same mean over draws
                  "map":    softmax(f / T), without the posterior

    ensemble      Σ_k w_k p_k(y | x) of its members k, with stacked weights (`ensemble.py`)

Var f and Cov f are of the network linearised at its weights (`evidence/posterior.py`), s the
learned noise, of a heteroscedastic network its own for each row, and T the learned temperature.
With a scale of the targets all of it is on that scale, and the density is mapped through its
inverse (`maths/target_scale.py`). One factor on T, or on the whole standard deviation of real
targets, was fitted to data that networks of the architecture had not seen
(`maths/spread_factor.py`); `raw` leaves it out. For real targets the posterior of the linearised
network is this Gaussian. For classes it leans to larger margins than its mode, so a Gaussian at
the mode makes probabilities too even (docs/experiments/tables.md); unless asked, classes are
predicted by "map".
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from nas_evidence.curvature.likelihood import Heteroscedastic
from nas_evidence.data.given import Given, features_of
from nas_evidence.data.preparation import Preparation
from nas_evidence.evidence.posterior import Posterior
from nas_evidence.exporting.program import Exported, load_exported
from nas_evidence.exporting.soundness import ENSEMBLE, MEANING, POSTERIOR, check_files
from nas_evidence.maths.decisions import decided
from nas_evidence.maths.gaussian_softmax import log_sampled_mean, pairwise_mean
from nas_evidence.maths.metrics import (
    Reliability,
    auroc,
    class_metrics,
    coverage_by_level,
    entropy,
    interval_reliability,
    real_metrics,
    reliability,
)
from nas_evidence.maths.normals import Normals
from nas_evidence.maths.target_scale import OnScale, TargetScale, identity
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.metric_names import METRICS, check_metric

Method = Literal["probit", "mc", "map"]
METHODS = ("probit", "mc", "map")
#: Draws of "mc", and rows predicted at once.
N_DRAWS, _ROWS = 256, 1024


@dataclass(frozen=True, repr=False)
class Prediction:
    """Predictions for rows of data.

    classes        the values that columns of `probabilities` stand for; empty for real targets
    targets        names of the columns of real targets
    probabilities  [n, C] for classes, else None
    mean, std      [n, C] for real targets, in their unit: of the predictive distribution
    std_model      [n, C]: the part of `std` that comes from the uncertainty of the weights, and in
                   an ensemble from the differences between its members; with a `target_scale` it
                   is the same share of `std` as on that scale
    density        of real targets: a normal distribution, or a mixture with one per member, of the
                   targets on their scale
    level          probability of the intervals
    quantiles      probabilities whose quantiles `to_frame` has as columns, of real targets
    unit           [C] standard deviations of the real targets in training, for the log loss
    metric         that the model is to be judged by, None if none was named
    threshold      of two classes: probability from which the second is chosen, the best by that
                   metric on data unseen in training; if None, `class_weight` decides
    class_weight   w, by class: the class is argmax_k w_k p_k, and the accuracy is weighted by w;
                   empty for equal weights, see `maths/decisions.py`
    doubts         sentences about columns of the data that are unlike those of the training
    """

    classes: tuple[str | int | bool, ...]
    targets: tuple[str, ...]
    level: float
    probabilities: np.ndarray | None = None
    mean: np.ndarray | None = None
    std: np.ndarray | None = None
    std_model: np.ndarray | None = None
    density: Normals | OnScale | None = None
    quantiles: tuple[float, ...] = ()
    unit: np.ndarray | None = None
    metric: str | None = None
    threshold: float | None = None
    class_weight: Mapping[str, float] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()

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
    def labels(self) -> np.ndarray:
        """The class of each row, as the training labels were [n]: by `threshold`, else by cost."""
        assert self.probabilities is not None, "real targets have no labels"
        weights = self.class_weights
        chosen = decided(self.probabilities, self.threshold, class_weights=weights)
        return np.asarray(np.array(self.classes)[chosen])

    @property
    def low(self) -> np.ndarray:
        """Lower end of the central interval of probability `level` [n, C]."""
        assert self.density is not None, "classes have no intervals"
        return self.density.interval(self.level)[0]

    @property
    def high(self) -> np.ndarray:
        """Upper end of that interval [n, C]."""
        assert self.density is not None, "classes have no intervals"
        return self.density.interval(self.level)[1]

    def quantile(self, probability: float) -> np.ndarray:
        """Return the values that real targets do not exceed with a probability [n, C].

        Raises:
            ValueError: if it is not between 0 and 1, or the targets are classes.
        """
        check_quantiles([probability], classes=self.density is None)
        assert self.density is not None
        return self.density.quantile(probability)

    @property
    def cut(self) -> str:
        """How many intervals are cut off at the least possible value; empty if none is."""
        if self.density is None:
            return ""
        at_end = np.less_equal(self.low, self.density.least).any(axis=1)
        n = int(at_end.sum())
        said = f"{n} of {len(at_end)} intervals {'begins' if n == 1 else 'begin'} at 0"
        return f"{said}: no training target is below" if n else ""

    @property
    def doubt(self) -> str:
        """Which rows have the median in place of the mean; empty if none has."""
        n = self.density.n_medians if isinstance(self.density, OnScale) else 0
        return f"{n} predictions are medians: their means are not finite" if n else ""

    @property
    def uncertainty(self) -> np.ndarray:
        """How unsure each row is: entropy in nats, or the mean standard deviation [n]."""
        if self.probabilities is not None:
            return entropy(self.probabilities)
        assert self.std is not None
        return np.asarray(self.std.mean(1))

    def __repr__(self) -> str:
        return f"{self.to_frame()!r}\n{self.cut}".rstrip("\n")

    def _repr_html_(self) -> str:
        cut = f"<p>{self.cut}</p>" if self.cut else ""
        return f"{self.to_frame()._repr_html_()}{cut}"

    def to_frame(self) -> pd.DataFrame:
        """Return a table: the class and all probabilities, or mean, interval, spreads, quantiles.

        The column of the quantile of probability 0.1 is `q10`, of 0.025 `q2.5`.
        """
        if self.probabilities is not None:
            columns = {f"p({c})": self.probabilities[:, i] for i, c in enumerate(self.classes)}
            return pd.DataFrame({"prediction": self.labels, **columns})
        assert self.mean is not None
        assert self.std is not None
        assert self.std_model is not None
        columns = {}
        for i, name in enumerate(self.targets):
            end = f" of {name}" if len(self.targets) > 1 else ""
            columns |= {
                f"prediction{end}": self.mean[:, i],
                f"low{end}": self.low[:, i],
                f"high{end}": self.high[:, i],
                f"std{end}": self.std[:, i],
                f"std_model{end}": self.std_model[:, i],
                **{f"q{100 * p:g}{end}": self.quantile(p)[:, i] for p in self.quantiles},
            }
        return pd.DataFrame(columns)

    def measures(self, truth: Any) -> dict[str, float]:
        """Return how good the predictions are, given the true labels or targets.

        Names and rules are in `maths/metrics.py`; `metric`, if one was named, comes first.

        Raises:
            ValueError: if a label is not among the classes, or the number of rows differs.
        """
        known = self._known(truth)
        if self.probabilities is not None:
            found = class_metrics(
                self.probabilities,
                known,
                threshold=self.threshold,
                class_weights=self.class_weights,
            )
        else:
            assert self.density is not None
            assert self.unit is not None
            found = real_metrics(self.density, known, unit=self.unit, level=self.level)
            found |= {"level": self.level} | coverage_by_level(self.density, known)
        first = {self.metric: found[self.metric]} if self.metric in found else {}
        return first | found

    def reliability(self, truth: Any) -> Reliability:
        """Return confidence and accuracy by bin, or probability and coverage of intervals.

        Raises:
            ValueError: as `measures`.
        """
        known = self._known(truth)
        if self.probabilities is not None:
            return reliability(self.probabilities, known)
        assert self.density is not None
        return interval_reliability(self.density, known)

    def _known(self, truth: Any) -> np.ndarray:
        """Return true labels as class numbers [n], or targets as numbers [n, C]."""
        truth = np.asarray(truth)
        n = len(self.probabilities if self.probabilities is not None else self.mean)  # type: ignore[arg-type]
        if len(truth) != n:
            raise UserError(f"there are {n} predictions, but {len(truth)} true values").with_code(
                "truth-length"
            )
        if self.probabilities is None:
            assert self.mean is not None
            try:
                values: np.ndarray = truth.astype(np.float64).reshape(self.mean.shape)
            except ValueError:
                named = ", ".join(map(repr, self.targets))
                raise UserError(
                    f"column {named} must hold the true targets as numbers, but is of type "
                    f"{truth.dtype} and shape {list(truth.shape)}; leave it out to predict only"
                ).with_code("truth-not-numbers") from None
            return values
        if truth.ndim == 2 and truth.shape[1] == len(self.classes) > 1:  # one-hot
            truth = np.array(self.classes, dtype=object)[truth.argmax(1)]
        number = {str(value): i for i, value in enumerate(self.classes)}
        found = [number.get(_text(value)) for value in truth.ravel()]
        if None in found:
            unknown = truth.ravel()[found.index(None)]
            raise UserError(
                f"true label {str(unknown)!r} is not among the classes of the model: "
                f"{', '.join(number)}"
            ).with_code("unknown-true-label")
        return np.array(found)


class Metrics(dict[str, float]):
    """Metrics of labelled data by name, as `maths/metrics.py` defines them.

    n            labelled rows
    labels       whether they are of classes
    reliability  confidence and accuracy by bin, or probability and coverage of intervals

    >>> Metrics({"accuracy": 0.912, "log_loss": 0.25}, n=125, labels=True)
    accuracy                            0.9120
    log loss                            0.2500
    of 125 labelled rows
    """

    def __init__(
        self,
        found: Mapping[str, float],
        *,
        n: int,
        labels: bool,
        reliability: Reliability | None = None,
    ) -> None:
        super().__init__(found)
        self.n, self.labels, self.reliability = n, labels, reliability

    def lines(self) -> list[tuple[str, float]]:
        """Return each metric by the words of the report; coverage once for each level."""
        names, asked = METRICS["categorical" if self.labels else "gaussian"], self.get("level")
        lines = []
        for name, value in self.items():
            percent = name.removeprefix("coverage_")
            level = int(percent) / 100 if percent.isdigit() else None
            if name == "coverage" or (level is not None and level != asked):
                share = 100 * (asked if level is None else level)  # type: ignore[operator]
                lines.append((f"{share:g} % intervals cover", value))
            elif level is None and name != "level":
                lines.append((names.get(name, name.replace("_", " ")), value))
        return lines

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
        mean = np.tensordot(weights, each, 1)
        return Prediction(first.classes, first.targets, first.level, probabilities=mean)
    parts = [_on_scale(one) for one in predictions]
    normals = Normals(
        np.concatenate([w * part.weights for w, (part, _) in zip(weights, parts, strict=True)]),
        np.concatenate([part.means for part, _ in parts]),
        np.concatenate([part.stds for part, _ in parts]),
        parts[0][0].least,
    )
    of_weights = np.stack([std_model for _, std_model in parts])
    noise = np.square(normals.stds) - np.square(of_weights)
    variance = np.square(normals.std) - np.tensordot(normals.weights, noise, 1)
    std_model, density = np.sqrt(variance.clip(min=0)), cast(Normals | OnScale, normals)
    if isinstance(first.density, OnScale):
        density = first.density.scale.mixture(normals)
        std_model = density.std * std_model / normals.std
    return Prediction(
        first.classes,
        first.targets,
        first.level,
        mean=density.mean,
        std=density.std,
        std_model=std_model,
        density=density,
        unit=first.unit,
    )


def _on_scale(one: Prediction) -> tuple[Normals, np.ndarray]:
    """Return the density [1, n, C] and `std_model` of a member on the scale of the targets."""
    std_model, density = np.asarray(one.std_model), one.density
    if isinstance(density, OnScale):
        return density.normals, std_model / np.asarray(one.std) * density.normals.stds[0]
    assert density is not None
    return density, std_model


def _in_own_unit(found: Mapping[str, np.ndarray], scale: TargetScale) -> dict[str, Any]:
    """Return mean, std and std_model of targets on their scale as those of the targets."""
    density = scale.density(found["mean"], found["std"])
    if isinstance(density, Normals):
        return {**found, "density": density}
    share = found["std_model"] / found["std"]
    mean, std = density.mean, density.std
    return {"mean": mean, "std": std, "std_model": share * std, "density": density}


def check_quantiles(probabilities: Sequence[float], *, classes: bool) -> None:
    """Check that probabilities of quantiles are between 0 and 1, and the targets real.

    Raises:
        ValueError: if not.
    """
    for p in probabilities:
        if not 0 < p < 1:
            raise UserError(
                f"quantiles must lie between 0 and 1, but got {p:g}; give for example 0.1 and 0.9"
            ).with_code("quantile-out-of-range")
    if len(probabilities) and classes:
        raise UserError(
            "quantiles are of real targets, but these are classes, whose probabilities are "
            "columns anyway; leave them out"
        ).with_code("quantiles-of-classes")


def _text(value: Any) -> str:
    """Return a label as text; a whole float as the integer it is."""
    whole = isinstance(value, float | np.floating) and float(value).is_integer()
    return str(int(value)) if whole else str(value)


def out_of_distribution(inside: Prediction, outside: Prediction) -> float:
    """Return the AUROC of telling other data from known data by the uncertainty."""
    return auroc(inside.uncertainty, outside.uncertainty)


class Predictor:
    """An exported network, or an ensemble of them, that predicts tables, arrays and images.

    exported, posterior, meaning  of the network; in an ensemble of its heaviest member
    members                       of an ensemble, with their weights; else empty
    """

    def __init__(
        self,
        exported: Exported,
        posterior: Posterior | None,
        meaning: dict[str, Any],
        members: "Sequence[tuple[float, Predictor]]" = (),
    ) -> None:
        self.exported, self.posterior, self.meaning = exported, posterior, meaning
        self.members = tuple(members)
        self.classes = tuple(meaning["classes"])
        self.targets = tuple(meaning["targets"])
        prepared = meaning["preparation"]
        self.preparation = None if prepared is None else Preparation.from_json(prepared)

    @property
    def scale(self) -> TargetScale:
        """The scale of real targets."""
        if (fitted := self.meaning.get("target_scale")) is not None:
            return TargetScale.from_json(fitted)
        mean, std = (np.array(self.meaning[key]) for key in ("target_mean", "target_std"))
        least = [-np.inf if v is None else v for v in self.meaning["target_least"]]
        return identity(mean, std, np.array(least))

    @classmethod
    def load(cls, folder: str | Path) -> "Predictor":
        """Return the model of an export folder, of one network or of an ensemble.

        Raises:
            ValueError: if it is not one, or is damaged.
        """
        folder = Path(folder)
        if (folder / ENSEMBLE).is_file() or (folder / "members").is_dir():
            return cls._ensemble(folder)
        exported = load_exported(folder)
        check_files(folder, MEANING, POSTERIOR)
        meaning = json.loads((folder / MEANING).read_text(encoding="utf-8"))
        return cls(exported, Posterior.load(folder / POSTERIOR), meaning)

    @classmethod
    def _ensemble(cls, folder: Path) -> "Predictor":
        check_files(folder, ENSEMBLE)
        whole = json.loads((folder / ENSEMBLE).read_text(encoding="utf-8"))
        described = whole["members"]
        members = [
            (float(one["weight"]), cls.load(folder / "members" / Path(one["folder"]).name))
            for one in described
        ]
        _, first = max(members, key=lambda member: member[0])
        meaning = {**first.meaning, "thresholds": whole.get("thresholds", {})}
        return cls(first.exported, first.posterior, meaning, members)

    def given(self, data: Any, *, target: str | None = None) -> Given:
        """Return data as raw inputs of the network, with the truth if they hold it.

        Raises:
            ValueError: if the data do not have the columns or the shape of the training data.
        """
        name = target or ",".join(self.targets)
        weights = self.meaning.get("weights")
        found = features_of(data, self.preparation, target=name, weights=weights)
        expected = tuple(self.meaning["input_shape"])
        if found.inputs.shape[1:] != expected:
            raise UserError(
                f"an example must have the shape {list(expected)} of the training data, but has "
                f"{list(found.inputs.shape[1:])}"
            ).with_code("example-shape")
        if np.isnan(found.inputs).any():
            mean = self.exported.mean.numpy()
            inputs = np.where(np.isnan(found.inputs), mean, found.inputs)
            return replace(found, inputs=inputs.astype(np.float32))
        return found

    def predict(
        self,
        data: Any,
        *,
        method: Method | None = None,
        level: float = 0.9,
        quantiles: Sequence[float] = (),
        metric: str | None = None,
        seed: int = 0,
        raw: bool = False,
    ) -> Prediction:
        """Return predictions with uncertainty.

        Args:
            data: a DataFrame, array, tensor, or the path of a table, .npz file or image folder.
            method: "map", "probit" or "mc", see above; real targets have the closed form or "map".
                By default "map" for classes, and the closed form for real targets.
            level: probability of the intervals of real targets.
            quantiles: probabilities of quantiles of real targets, to be columns of the table.
            metric: to judge by, by default that of the study; of two classes it decides the
                threshold, see `Prediction`.
            seed: of the draws of "mc".
            raw: leave out the factor on the spread that was fitted to unseen data.

        Raises:
            ValueError: for data of another shape, or an unknown method, level, quantile or metric.

        Warns:
            UserWarning: of each column whose cells are unlike those of the training, and of means
                that are not finite.
        """
        if not isinstance(data, Given):
            found = self.predict(
                self.given(data),
                method=method,
                level=level,
                quantiles=quantiles,
                metric=metric,
                seed=seed,
                raw=raw,
            )
            for sentence in found.warnings:
                warnings.warn(sentence, UserWarning, stacklevel=2)
            return found
        inputs = data.inputs
        method = method or ("map" if self.classes else "probit")
        if method not in METHODS:
            raise UserError(
                f"method must be one of {', '.join(METHODS)}, but got {method!r}"
            ).with_code("unknown-method")
        if not 0 < level < 1:
            raise UserError(f"level must lie between 0 and 1, but got {level:g}").with_code(
                "level-out-of-range"
            )
        check_quantiles(quantiles, classes=bool(self.classes))
        metric = metric or self.meaning.get("metric")
        check_metric(metric, "categorical" if self.classes else "gaussian")
        asked = {
            "quantiles": tuple(dict.fromkeys(map(float, quantiles))),
            "metric": metric,
            "threshold": self.meaning.get("thresholds", {}).get(metric),
            "class_weight": self.meaning.get("class_weight", {}),
            "doubts": data.doubts,
        }
        if self.members:
            each = [
                one.predict(Given(inputs), method=method, level=level, seed=seed, raw=raw)
                for _, one in self.members
            ]
            return replace(mixed(each, np.array([weight for weight, _ in self.members])), **asked)
        if method != "map" and self.posterior is None:
            raise UserError('this export has no posterior; use method = "map"').with_code(
                "export-without-posterior"
            )
        generator = torch.Generator().manual_seed(seed)
        predict = self._classes if self.classes else self._real
        factor = 1.0 if raw else float(self.meaning.get("spread_factor", 1.0))
        parts = [
            predict(torch.from_numpy(np.array(inputs[i : i + _ROWS])), method, factor, generator)
            for i in range(0, len(inputs), _ROWS)
        ]
        joined: dict[str, Any] = {k: np.concatenate([part[k] for part in parts]) for k in parts[0]}
        if not self.classes:
            joined = _in_own_unit(joined, self.scale)
            joined["unit"] = np.array(self.meaning["target_std"])
        return Prediction(self.classes, self.targets, level, **joined, **asked)

    def predict_proba(self, data: Any, *, method: Method | None = None) -> np.ndarray:
        """Return class probabilities [n, C] in the order of `classes`; for `data` see `predict`.

        Raises:
            ValueError: if the network predicts real targets.

        Example:
            predictor.predict_proba(new).argmax(1)  # number of the most probable class of each row
        """
        if not self.classes:
            raise UserError(
                "predict_proba is of classes, but this network predicts the real targets "
                f"{', '.join(self.targets)}; use predict, whose result has mean and std"
            ).with_code("probabilities-of-real-targets")
        found = self.predict(data, method=method).probabilities
        assert found is not None
        return found

    def evaluate(
        self,
        data: Any,
        y: Any = None,
        *,
        method: Method | None = None,
        level: float = 0.9,
        metric: str | None = None,
        raw: bool = False,
        predicted: Prediction | None = None,
    ) -> Metrics:
        """Return metrics of labelled data; rows without a label are left out.

        A column of weights that the training had counts each row as often as it says.

        Args:
            data: as for `predict`, with the target column if `y` is not given.
            y: true labels or targets [n] or [n, C] of arrays, or of a table without them.
            method: see `predict`, as `level` and `raw`.
            level: probability of the intervals of real targets.
            metric: the first of the result, by default that of the study.
            raw: leave out the factor on the spread.
            predicted: the prediction of the same data, if it is there already.

        Raises:
            ValueError: for data without a label, or with one that is not among the classes.

        Example:
            predictor.evaluate("labelled.csv")["accuracy"]
        """
        given = data if isinstance(data, Given) else self.given(data)
        if given is not data:
            for doubt in given.doubts:
                warnings.warn(doubt, UserWarning, stacklevel=2)
        if y is not None:
            truth = np.asarray(y)
            if len(truth) != len(given.inputs):
                raise UserError(
                    f"there are {len(given.inputs)} rows of data, but {len(truth)} true values"
                ).with_code("evaluate-length")
            given = replace(given, truth=truth)
        labelled = given.labelled()
        if labelled is None:
            name = f"the target {', '.join(self.targets)}" if self.targets else "the target"
            raise UserError(
                f"metrics compare with the truth, but the data do not hold {name}; add it, or "
                "give the true values as y"
            ).with_code("evaluate-without-target")
        same = given.weights is None and len(labelled.inputs) == len(given.inputs)
        if predicted is None or not same:
            predicted = self.predict(labelled, method=method, level=level, metric=metric, raw=raw)
        return Metrics(
            predicted.measures(labelled.truth),
            n=len(labelled.inputs),
            labels=bool(self.classes),
            reliability=predicted.reliability(labelled.truth),
        )

    def _outputs(self, raw: Tensor, method: str) -> tuple[Tensor, Tensor]:
        """Return the network's outputs [n, C] and their covariance [n, C, C], float64."""
        model = self.exported
        inputs = (raw.to(model.mean.dtype) - model.mean) / model.std
        with torch.no_grad():
            outputs = model.model(inputs).double()
        if method == "map":
            return outputs, outputs.new_zeros(*outputs.shape, outputs.shape[1])
        assert self.posterior is not None
        return outputs, self.posterior.output_covariance(model.model, inputs)

    def _classes(
        self, raw: Tensor, method: str, factor: float, generator: torch.Generator
    ) -> dict[str, np.ndarray]:
        outputs, covariance = self._outputs(raw, method)
        temperature = factor * float(self.meaning["temperature"])
        if method == "mc":
            found = log_sampled_mean(
                outputs, covariance, temperature, n_draws=N_DRAWS, generator=generator
            ).exp()
        else:  # "map" is without variance
            found = pairwise_mean(outputs, covariance, temperature)
        return {"probabilities": found.numpy()}

    def _real(
        self, raw: Tensor, method: str, factor: float, generator: torch.Generator
    ) -> dict[str, np.ndarray]:
        outputs, covariance = self._outputs(raw, method)
        unit, shift = self.scale.spread, self.scale.centre
        likelihood, most = Heteroscedastic(), self.scale.most_std
        if self.meaning.get("likelihood") == "heteroscedastic":
            noise, means = likelihood.variance(outputs).sqrt().numpy(), likelihood.mean(outputs)
            variance = likelihood.mean_variance(outputs, covariance)
        else:
            noise, means = np.array(self.meaning["noise_std"]), outputs
            variance = covariance.diagonal(dim1=1, dim2=2)
        noise, model = noise * unit, variance.clamp(0, most**2).sqrt().numpy() * unit
        return {
            "mean": means.numpy() * unit + shift,
            "std": factor * np.sqrt(model**2 + noise**2),
            "std_model": factor * model,
        }
