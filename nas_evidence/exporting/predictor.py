"""Predictions with uncertainty from an export folder alone.

    real targets  mean f(x), variance Var f(x) + σ²: closed form
    classes       "probit": mean of softmax(f / T), f ~ N(f, Cov f), in closed form, class
                            against class (MacKay 1992; `maths/gaussian_softmax.py`)
                  "mc":     the same mean over draws
                  "map":    softmax(f / T), without the posterior

    ensemble      Σ_k w_k p_k(y | x) of its members k, with equal weights (`folder.py`); those of
                  earlier versions may have others

Var f and Cov f are of the network linearised at its weights (`evidence/posterior.py`), s the
learned noise, of a heteroscedastic network its own for each row, and T the learned temperature.
With a scale of the targets all of it is on that scale, and the density is mapped through its
inverse (`maths/target_scale.py`). One factor on T, or on the whole standard deviation of real
targets, was fitted to data that networks of the architecture had not seen
(`maths/spread_factor.py`); `raw` leaves it out. For real targets the posterior of the linearised
network is this Gaussian. For classes it leans to larger margins than its mode, so a Gaussian at
the mode makes probabilities too even (docs/results/intervals-and-calibration.md); unless asked,
classes are predicted by "map".
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from nas_evidence.data.given import Given, features_of, unlike_range
from nas_evidence.data.image_reading import ImageReading
from nas_evidence.data.table_columns import Preparation
from nas_evidence.evidence.posterior import Posterior
from nas_evidence.exporting.predicted import Metrics, Prediction, check_quantiles, mixed
from nas_evidence.exporting.program import Exported, load_exported
from nas_evidence.exporting.soundness import (
    ENSEMBLE,
    MEANING,
    POSTERIOR,
    check_files,
    fitting_together,
    read_json,
)
from nas_evidence.likelihoods import Likelihood, likelihood
from nas_evidence.likelihoods.predictive import joined
from nas_evidence.maths.full_precision import full_precision
from nas_evidence.maths.metrics import LEVEL, auroc
from nas_evidence.maths.target_scale import TargetScale, identity
from nas_evidence.plumbing.user_error import UserError, meant
from nas_evidence.spec.likelihoods import declared, default_of
from nas_evidence.spec.metric_names import check_metric

Method = Literal["probit", "mc", "map"]
METHODS = get_args(Method)
#: Draws of "mc", and rows predicted at once.
N_DRAWS, _ROWS = 256, 1024


__all__ = ["METHODS", "Metrics", "Prediction", "Predictor", "mixed", "out_of_distribution"]


def check_method(method: str, level: float) -> None:
    """Check how predictions are made, and the probability of their intervals.

    Raises:
        ValueError: the method is none of `METHODS`, or the level is not between 0 and 1.
    """
    if method not in METHODS:
        raise UserError(
            "unknown-method",
            f"method must be one of {', '.join(METHODS)}, but got {method!r}"
            f"{meant(method, METHODS)}",
        )
    if not isinstance(level, Real) or not 0 < level < 1:
        raise UserError("level-out-of-range", f"level must lie between 0 and 1, but got {level!r}")


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
        read = meaning.get("images")
        self.images = None if read is None else ImageReading.from_json(read)

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood with its learned noise or temperature, without the factor."""
        name = self.meaning.get("likelihood") or default_of(self.meaning["task"])
        key = declared(name).scale
        given = 1.0 if key is None else self.meaning[key]
        return likelihood(name, tuple(given) if isinstance(given, list | tuple) else float(given))

    @property
    def scale(self) -> TargetScale:
        """The scale of real targets."""
        if (fitted := self.meaning.get("target_scale")) is not None:
            return TargetScale.from_json(fitted)
        mean, std = (np.array(self.meaning[key]) for key in ("target_mean", "target_std"))
        least = [-np.inf if v is None else v for v in self.meaning["target_least"]]
        return identity(mean, std, np.array(least))

    @classmethod
    def load(cls, folder: str | Path, *, allow_code: bool = False) -> "Predictor":
        """Return the model of an export folder, of one network or of an ensemble.

        Args:
            folder: of the export.
            allow_code: let code that the export names as module:NAME run, a family of your own.

        Raises:
            ValueError: if it is not one, or is damaged, or for code that is not allowed.
        """
        folder = Path(folder)
        if (folder / ENSEMBLE).is_file() or (folder / "members").is_dir():
            return cls._ensemble(folder, allow_code=allow_code)
        exported = load_exported(folder, allow_code=allow_code)
        check_files(folder, MEANING, POSTERIOR)
        posterior, meaning = Posterior.load(folder / POSTERIOR), read_json(folder, MEANING)
        with fitting_together(folder):
            found = cls(exported, posterior, meaning)
            found._check_meaning()
        return found

    def _check_meaning(self) -> None:
        """Read all that predicting reads, before there are data.

        Raises:
            Exception: something is lacking, or is something else.
        """
        if not all(type(self.meaning[k]) is list for k in ("classes", "targets", "input_shape")):
            raise TypeError("classes, targets or input_shape is no list")
        if not {*map(type, (*self.classes, *self.targets))} <= {str, int, float, bool}:
            raise TypeError("a class or a target has no name")
        if not all(type(n) is int for n in self.meaning["input_shape"]):
            raise TypeError("input_shape is no shape")
        float(self.meaning.get("spread_factor", 1.0))
        thresholds, weights = (self.meaning.get(k, {}) for k in ("thresholds", "class_weight"))
        [float(one) for one in (*thresholds.values(), *weights.values())]
        if not self.classes and self.scale.centre.shape != (len(self.targets),):
            raise LookupError(f"{len(self.targets)} targets have another number of means")

    @classmethod
    def _ensemble(cls, folder: Path, *, allow_code: bool) -> "Predictor":
        check_files(folder, ENSEMBLE)
        whole = read_json(folder, ENSEMBLE)
        homes = {path.name: path for path in (folder / "members").glob("*")}
        with fitting_together(folder):
            named = [(float(one["weight"]), Path(one["folder"]).name) for one in whole["members"]]
            if not named:
                raise LookupError(f"{ENSEMBLE} names no member")
        if lost := [name for _, name in named if name not in homes]:
            raise UserError(
                "export-member-missing",
                f"{folder}/{ENSEMBLE} names the member {lost[0]!r}, which is not in "
                f"{folder}/members; export the ensemble again.",
            )
        members = [
            (weight, cls.load(homes[name], allow_code=allow_code)) for weight, name in named
        ]
        _, first = max(members, key=lambda member: member[0])
        meaning = {**first.meaning, "thresholds": whole.get("thresholds", {})}
        return cls(first.exported, first.posterior, meaning, members)

    def given(self, data: Any, y: Any = None, *, target: str | None = None) -> Given:
        """Return data as raw inputs of the network, with the truth if it is `y`, or they hold it.

        Raises:
            ValueError: if the data do not have the columns or the shape of the training data, or
                `y` is not of their rows.
        """
        name = target or ",".join(self.targets)
        weights = self.meaning.get("weights")
        expected = tuple(self.meaning["input_shape"])
        images = self.images or ImageReading("RGB" if expected[0] == 3 else "grey")
        found = features_of(data, self.preparation, target=name, weights=weights, images=images)
        found = found if y is None else found.with_truth(y)
        if found.inputs.shape[1:] != expected:
            raise UserError(
                "example-shape",
                f"an example must have the shape {list(expected)} of the training data, but has "
                f"{list(found.inputs.shape[1:])}",
            )
        if (known := self.meaning.get("input_range")) is not None:
            found = replace(found, doubts=(*found.doubts, *unlike_range(found.inputs, *known)))
        if np.isnan(found.inputs).any():
            mean = self.exported.mean.cpu().numpy()
            inputs = np.where(np.isnan(found.inputs), mean, found.inputs)
            return replace(found, inputs=inputs.astype(np.float32))
        return found

    def predict(
        self,
        data: Any,
        *,
        method: Method | None = None,
        level: float = LEVEL,
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
        given = data if isinstance(data, Given) else self.given(data)
        name = self.meaning.get("likelihood") or default_of(self.meaning["task"])
        method = method or ("probit" if declared(name).averaged else "map")
        check_method(method, level)
        check_quantiles(quantiles, classes=bool(self.classes))
        metric = metric or self.meaning.get("metric")
        check_metric(metric, name)
        asked = {
            "quantiles": tuple(dict.fromkeys(map(float, quantiles))),
            "metric": metric,
            "threshold": self.meaning.get("thresholds", {}).get(metric),
            "class_weight": self.meaning.get("class_weight", {}),
            "doubts": given.warnings,
            "index": given.index,
        }
        if self.members:
            each = [
                one.predict(Given(given.inputs), method=method, level=level, seed=seed, raw=raw)
                for _, one in self.members
            ]
            found = mixed(each, np.array([weight for weight, _ in self.members]))
        else:
            found = self._alone(given.inputs, method, level, seed, raw)
        found = replace(found, **asked)
        for sentence in found.warnings if given is not data else ():
            warnings.warn(sentence, UserWarning, stacklevel=2)
        return found

    def _alone(
        self, inputs: np.ndarray, method: str, level: float, seed: int, raw: bool
    ) -> Prediction:
        if method != "map" and self.posterior is None:
            raise UserError(
                "export-without-posterior", 'this export has no posterior; use method = "map"'
            )
        generator = torch.Generator().manual_seed(seed) if method == "mc" else None
        factor = 1.0 if raw else float(self.meaning.get("spread_factor", 1.0))
        likelihood, scale, parts = self.likelihood, self.scale, []
        for start in range(0, len(inputs), _ROWS):
            rows = torch.from_numpy(np.array(inputs[start : start + _ROWS]))
            found = likelihood.predictive(*self._outputs(rows, method), scale.most_std)
            parts.append(found.at(factor).averaged(generator))
        unit = np.array(self.meaning["target_std"])
        delivered = joined(parts).delivered(scale)
        return Prediction(self.classes, self.targets, level, unit=unit, **vars(delivered))

    def predict_proba(self, data: Any, *, method: Method | None = None) -> np.ndarray:
        """Return class probabilities [n, C] in the order of `classes`; for `data` see `predict`.

        Raises:
            ValueError: if the network predicts real targets.

        Example:
            predictor.predict_proba(new).argmax(1)  # number of the most probable class of each row
        """
        if not self.classes:
            raise UserError(
                "probabilities-of-real-targets",
                "predict_proba is of classes, but this network predicts the real targets "
                f"{', '.join(self.targets)}; use predict, whose result has mean and std",
            )
        found = self.predict(data, method=method).probabilities
        assert found is not None
        return found

    def evaluate(
        self,
        data: Any,
        y: Any = None,
        *,
        method: Method | None = None,
        level: float = LEVEL,
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
        is_read = isinstance(data, Given) and y is None
        given = data if is_read else self.given(data, y)
        for doubt in given.warnings if given is not data else ():
            warnings.warn(doubt, UserWarning, stacklevel=2)
        labelled = given.labelled()
        if labelled is None:
            name = f"the target {', '.join(self.targets)}" if self.targets else "the target"
            raise UserError(
                "evaluate-without-target",
                f"metrics compare with the truth, but the data do not hold {name}; add it, or "
                "give the true values as y",
            )
        same = given.weights is None and len(labelled.inputs) == len(given.inputs)
        if predicted is None or not same:
            predicted = self.predict(labelled, method=method, level=level, metric=metric, raw=raw)
        return Metrics(
            predicted.measures(labelled.truth),
            n=len(labelled.inputs),
            task=self.meaning["task"],
            reliability=predicted.reliability(labelled.truth),
        )

    def _outputs(self, raw: Tensor, method: str) -> tuple[Tensor, Tensor | None]:
        """Return the network's outputs [n, C] and their covariance [n, C, C], float64.

        They are computed on the device of the network, and lie on the CPU. With "map" there is no
        covariance.
        """
        model = self.exported
        inputs = (raw.to(model.mean.device, model.mean.dtype) - model.mean) / model.std
        with torch.no_grad(), full_precision():
            outputs = model.model(inputs).double().cpu()
        if method == "map":
            return outputs, None
        assert self.posterior is not None
        return outputs, self.posterior.output_covariance(model.model, inputs).cpu()
