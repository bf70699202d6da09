"""Scikit-learn estimators around a search: `EvidenceClassifier` and `EvidenceRegressor`."""

import io
import shutil
import tempfile
import threading
import weakref
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, overload

import numpy as np
import pandas as pd

from nas_evidence.api.progress import is_watched
from nas_evidence.api.request import own_families
from nas_evidence.api.studies import search
from nas_evidence.data.reading import check_aligned, plain
from nas_evidence.data.targets import lack_target, real_numbers, typed_targets
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.dataset import AskedScale
from nas_evidence.spec.likelihoods import TARGET_KINDS, TargetKind
from nas_evidence.workers.executor import Watcher

if TYPE_CHECKING:
    from nas_evidence.api.results import Study
    from nas_evidence.exporting.predictor import Method, Prediction, Predictor


#: joblib fits in threads inside its processes, and torch exports in one thread at a time. A
#: callback of one fit may do another.
_FITTING = threading.RLock()


def _is_text(X: Any) -> bool:
    """Tell whether data are an array of text or of mixed kinds, which is read as a table."""
    if not isinstance(X, np.ndarray | list | tuple):
        return False
    found = np.asarray(X)
    return found.ndim == 2 and (
        found.dtype.kind in "US" or any(isinstance(cell, str) for cell in found.flat)
    )


def _as_frame(X: Any) -> Any:
    """Return a table of another library, such as pyarrow or polars, as a DataFrame."""
    if isinstance(X, pd.DataFrame | pd.Series | np.ndarray):
        return X
    is_table = hasattr(X, "to_pandas") or hasattr(X, "__arrow_c_stream__")
    return plain(X) if is_table else X


def _are_of_python(y: Any) -> bool:
    """Tell whether labels [n] are neither numbers nor plain text: objects, bytes, dates, ..."""
    if isinstance(y, pd.DataFrame):
        return False
    found = np.asarray(y)
    return found.ndim == 1 and found.dtype.kind not in "biufcU"


def _seed(random_state: Any) -> int:
    """Return the seed that a `random_state` of scikit-learn stands for."""
    from sklearn.utils import check_random_state

    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def packed(export: Path) -> bytes:
    """Return the files of an export folder as a zip archive."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for path in sorted(p for p in export.rglob("*") if p.is_file()):
            archive.write(path, path.relative_to(export))
    return held.getvalue()


def unpacked(export: bytes, *, allow_code: bool = False) -> "Predictor":
    """Return the network of an export that was packed."""
    from nas_evidence.exporting.predictor import Predictor

    with tempfile.TemporaryDirectory(prefix="nas-evidence-") as folder:
        zipfile.ZipFile(io.BytesIO(export)).extractall(folder)
        return Predictor.load(folder, allow_code=allow_code)


if TYPE_CHECKING:  # scikit-learn has no types, and a class of no type takes any argument

    class _Estimator:
        def __getattr__(self, name: str) -> Any: ...
        def __getstate__(self) -> dict[str, Any]: ...
        def __setstate__(self, state: dict[str, Any]) -> None: ...
        def __sklearn_tags__(self) -> Any: ...

    class _Classifier: ...

    class _Regressor: ...
else:
    from sklearn.base import BaseEstimator as _Estimator
    from sklearn.base import ClassifierMixin as _Classifier
    from sklearn.base import RegressorMixin as _Regressor


@dataclass(eq=False, repr=False)
class EvidenceEstimator(_Estimator):
    """What both estimators share.

    Args:
        n_trials: architectures to try.
        settings: keys of a study file, {"plan.epochs": 50}.
        out: study folder; a temporary one by default.
        workers: 1 for this process, more for as many worker processes; "auto" on Ray for as many
            as there is room for.
        method: of class probabilities: "map" (the default), "probit" or "mc"; of real targets
            "map" leaves out the uncertainty of the weights.
        random_state: seed of the study: a number, a RandomState, or None for any.
        time_limit: seconds for the search, or "10m", "2h".
        metric: to show first: "f1", "rmse", ...
        allow_code: run code that `settings` name as module:NAME.
        families: what to search, see `search`; by default those that fit the data.
        callbacks: a list of `Watcher`s that are told what happens. Each estimator that `clone`
            makes, as in a grid search, has copies of its own.
        progress: whether `fit` prints; by default on a terminal and in a notebook.

    Attributes after `fit`: `predictor_`, the best network; `study_`, the study in its folder;
    `n_features_in_`; `feature_names_in_` of DataFrames. A pickle holds the export as bytes, but
    not the folder of the study: a temporary one goes with the estimator that was fitted.
    """

    _kind: ClassVar[TargetKind]
    n_trials: int = 24
    settings: Mapping[str, Any] | None = None
    out: str | None = None
    workers: int | Literal["auto"] = 1
    method: "Method | None" = None
    random_state: Any = 0
    time_limit: float | str | None = None
    metric: str | None = None
    allow_code: bool = False
    families: Sequence[Any] | str | None = None
    callbacks: Sequence[Watcher] | None = None
    progress: bool | None = None

    def __sklearn_tags__(self) -> Any:
        """Say that numbers may be missing."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Self:
        """Search on all rows of X [n, d] with targets y [n]; return self.

        `sample_weight` [n] says how often each row occurs, in whole numbers; rows of one value of
        `groups` [n] are kept together in folds.
        """
        if self.out is None:
            folder = tempfile.mkdtemp(prefix="nas-evidence-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            out = Path(folder) / "study"
        else:
            out = Path(self.out)
        check_aligned(X, {"y": y, "sample_weight": sample_weight, "groups": groups})
        X, y = self._checked_to_fit(X, y)
        if sample_weight is not None:
            from sklearn.utils import check_consistent_length
            from sklearn.utils.validation import column_or_1d

            sample_weight = column_or_1d(sample_weight)
            check_consistent_length(X, sample_weight)
            if not sample_weight.any():
                raise UserError(
                    "sample-weights-all-zero",
                    "Sample weights must contain at least one non-zero number.",
                )
        with _FITTING:
            self.study_: Study = search(
                X,
                y,
                task=self._kind.task,
                weights=sample_weight,
                groups=groups,
                class_weight=getattr(self, "class_weight", None),
                target_scale=getattr(self, "target_scale", None),
                n_trials=self.n_trials,
                settings={**(self.settings or {}), "seed": _seed(self.random_state)},
                time_limit=self.time_limit,
                metric=self.metric,
                out=out,
                workers=self.workers,
                allow_code=self.allow_code,
                families=self.families,
                callbacks=() if self.callbacks is None else self.callbacks,
                progress=is_watched() if self.progress is None else self.progress,
            )
            self.predictor_: Predictor = self.study_.predictor()
            self._export = packed(self.study_.folder / "export")
        if self._kind.classes:
            self.classes_ = np.unique(self.predictor_.classes)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy in another process needs: the export, not the network in memory."""
        state = dict(super().__getstate__())
        state.pop("predictor_", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Load the network again from the bytes of its export."""
        super().__setstate__(state)
        if "_export" in state:
            self.predictor_ = unpacked(
                state["_export"], allow_code=self.allow_code or bool(own_families(self.families))
            )

    def _checked_to_fit(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Return data and targets by the rules of scikit-learn; a DataFrame stays a table."""
        from sklearn.utils.multiclass import check_classification_targets
        from sklearn.utils.validation import check_array, column_or_1d

        if y is None:
            raise UserError(
                "fit-without-y", "fit requires y to be passed, but the target y is None"
            )
        X = self._checked(X, reset=True)
        if self._kind.classes and _are_of_python(y):
            found = y if isinstance(y, pd.Series) else np.asarray(y)
            # scikit-learn cannot sort them, or knows no such type
            return X, found.astype(object) if found.dtype.kind == "S" else found
        if not isinstance(y, pd.Series | pd.DataFrame):
            how = {"ensure_2d": False, "ensure_all_finite": "allow-nan"}
            y = check_array(y, dtype=None, input_name="y", **how)
            y = column_or_1d(y, warn=True) if self._kind.classes else y
        if self._kind.classes:
            check_classification_targets(y[~lack_target(y, "y")])
        return X, y

    def _predicted(self, X: Any) -> "Prediction":
        """Return predictions of new data, which keep the same rules."""
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self, "predictor_")
        return self.predictor_.predict(self._checked(X, reset=False), method=self.method)

    def _checked(self, X: Any, *, reset: bool) -> Any:
        """Return data by the rules of scikit-learn; with `reset` the columns are noted."""
        from sklearn.utils.validation import validate_data

        X = _as_frame(X)
        if isinstance(X, pd.DataFrame):
            validate_data(self, X, skip_check_array=True, reset=reset)
        elif _is_text(X):
            X = np.asarray(X)
            if reset:
                self.n_features_in_ = X.shape[1]
        else:
            X = validate_data(
                self, X, allow_nd=True, reset=reset, ensure_min_samples=2 if reset else 1,
                ensure_all_finite="allow-nan",
            )  # fmt: skip
        return X


class _Scored:
    """Checks what `score` of scikit-learn takes by position, and refuses without a row."""

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy of classes, or R² of real targets, as scikit-learn does.

        Raises:
            ValueError: if y or `sample_weight` has another index than X, or a real target is not
                finite; names the row.
        """
        check_aligned(X, {"y": y, "sample_weight": sample_weight})
        if not self._kind.classes:  # type: ignore[attr-defined]
            real_numbers(typed_targets(y, "y"), "y")
        found: float = super().score(X, y, sample_weight)  # type: ignore[misc]
        return found


@dataclass(eq=False, repr=False)
class EvidenceClassifier(_Scored, _Classifier, EvidenceEstimator):
    """Classification by the best architecture of a search; `classes_` after `fit`.

    Args:
        class_weight: what an error on a class costs, {"rare": 5}, or "balanced"; decides which
            class is predicted, and changes no probability.
    """

    _kind = TARGET_KINDS["classification"]
    class_weight: Mapping[Any, float] | str | None = None

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return class probabilities [n, C] in the order of `classes_`, that of `np.unique`."""
        found = self._predicted(X)
        assert found.probabilities is not None
        # The study has "9" before "10"; scikit-learn takes classes to be sorted as text.
        order = np.unique(self.predictor_.classes, return_index=True)[1]
        return found.probabilities[:, order]

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithms of `predict_proba` [n, C]."""
        with np.errstate(divide="ignore"):  # a probability may round to 0
            found: np.ndarray = np.log(self.predict_proba(X))
        return found

    def predict(self, X: Any) -> np.ndarray:
        """Return the class of each row [n]: by `class_weight`, or of two by that of `metric`.

        With `metric` "f1", "accuracy" or "balanced_accuracy" it is the threshold best by it.
        """
        return self._predicted(X).labels


@dataclass(eq=False, repr=False)
class EvidenceRegressor(_Scored, _Regressor, EvidenceEstimator):
    """Regression by the best architecture of a search.

    Args:
        target_scale: "log", "shifted_log", ...: the scale on which targets have normal noise.
    """

    _kind = TARGET_KINDS["regression"]
    target_scale: AskedScale | None = None

    def __sklearn_tags__(self) -> Any:
        """Say that targets [n, C] are taken."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    @overload
    def predict(self, X: Any, return_std: Literal[False] = False) -> np.ndarray: ...
    @overload
    def predict(self, X: Any, return_std: Literal[True]) -> tuple[np.ndarray, np.ndarray]: ...
    def predict(
        self, X: Any, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Return the predicted mean [n] or [n, C], and with `return_std` its total spread."""
        found = self._predicted(X)
        assert found.mean is not None
        assert found.std is not None
        mean, std = found.mean, found.std
        if mean.shape[1] == 1:
            mean, std = mean[:, 0], std[:, 0]
        return (mean, std) if return_std else mean


for _own in (EvidenceClassifier, EvidenceRegressor):  # help() shows what both share too
    _shared = str(EvidenceEstimator.__doc__).partition("Args:\n")[2]
    _own.__doc__ = f"{str(_own.__doc__).rstrip()}\n{_shared}"
