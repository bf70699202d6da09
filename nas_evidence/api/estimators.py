"""Scikit-learn estimators around a search: `EvidenceClassifier` and `EvidenceRegressor`."""

import shutil
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from nas_evidence.api.studies import search

if TYPE_CHECKING:
    from nas_evidence.api.studies import Study
    from nas_evidence.exporting.predictor import Predictor


def _base() -> tuple[type, type, type]:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

    return BaseEstimator, ClassifierMixin, RegressorMixin


_Estimator, _Classifier, _Regressor = _base()


class _Evidence(_Estimator):  # type: ignore[misc, valid-type]
    """What both estimators share.

    Attributes after `fit`: `study_`, `n_features_in_`, `feature_names_in_` of DataFrames.
    """

    _task: str

    def __init__(
        self,
        n_trials: int = 24,
        settings: Mapping[str, Any] | None = None,
        out: str | None = None,
        workers: int = 1,
        method: str | None = None,
        random_state: int = 0,
    ) -> None:
        """Keep the arguments.

        Args:
            n_trials: architectures to try.
            settings: keys of a study file, {"plan.epochs": 50}.
            out: study folder; a temporary one by default.
            workers: 1 for this process, more for as many worker processes.
            method: of class probabilities: "map" (the default), "probit" or "mc".
            random_state: seed of the study.
        """
        self.n_trials = n_trials
        self.settings = settings
        self.out = out
        self.workers = workers
        self.method = method
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> "_Evidence":
        """Search on all rows of X [n, d] with targets y [n]; return self."""
        if self.out is None:
            folder = tempfile.mkdtemp(prefix="nas-evidence-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            out = Path(folder) / "study"
        else:
            out = Path(self.out)
        if not isinstance(X, pd.DataFrame):
            X = np.asarray(X)
        else:
            self.feature_names_in_ = np.array(X.columns, dtype=object)
        self.n_features_in_ = X.shape[1]
        self.study_: Study = search(
            X,
            y,
            task=self._task,  # type: ignore[arg-type]
            n_trials=self.n_trials,
            settings={**(self.settings or {}), "seed": self.random_state},
            out=out,
            workers=self.workers,
            progress=False,
        )
        self._set_outputs(self._predictor())
        return self

    def _predictor(self) -> "Predictor":
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self, "study_")
        return self.study_.predictor()

    def _set_outputs(self, predictor: "Predictor") -> None:
        """Keep what the fitted outputs stand for."""


class EvidenceClassifier(_Classifier, _Evidence):  # type: ignore[misc, valid-type]
    """Classification by the best architecture of a search; `classes_` after `fit`."""

    _task = "classification"

    def _set_outputs(self, predictor: "Predictor") -> None:
        self.classes_ = np.array(predictor.classes)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return class probabilities [n, C] in the order of `classes_`."""
        found = self._predictor().predict(X, method=self.method)  # type: ignore[arg-type]
        assert found.probabilities is not None
        return found.probabilities

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each row [n]."""
        return np.asarray(self.classes_[self.predict_proba(X).argmax(1)])


class EvidenceRegressor(_Regressor, _Evidence):  # type: ignore[misc, valid-type]
    """Regression by the best architecture of a search."""

    _task = "regression"

    def predict(
        self,
        X: Any,
        return_std: bool = False,
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Return the predicted mean [n] or [n, C], and with `return_std` its total spread."""
        found = self._predictor().predict(X)
        assert found.mean is not None
        assert found.std is not None
        mean, std = found.mean, found.std
        if mean.shape[1] == 1:
            mean, std = mean[:, 0], std[:, 0]
        return (mean, std) if return_std else mean
