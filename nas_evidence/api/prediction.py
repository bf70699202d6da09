"""Predictions of new data by a study or an export, with all that is to be said of them."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

from nas_evidence.api.control import warn_user
from nas_evidence.api.request import check_one
from nas_evidence.api.results import Study, seen_in_training
from nas_evidence.api.runs import NEEDS_ALLOW_CODE
from nas_evidence.api.shared_options import JudgeOptions, PredictOptions, with_options
from nas_evidence.plumbing.foreign_text import shortened
from nas_evidence.plumbing.user_error import UserError

if TYPE_CHECKING:  # these import pandas and torch
    from nas_evidence.data.given import Given
    from nas_evidence.exporting.predictor import Metrics, Prediction

#: Columns in a list.
_LISTED = 8


@dataclass(frozen=True)
class Predicted:
    """Predictions of new data, and how good they are where the data hold the target.

    rows       the prediction of each row
    metrics    empty without the target
    given      the data as the network reads them
    notes      what to know about them, a sentence each
    weights    the column of weights in training, None without one
    """

    rows: "Prediction"
    metrics: "Metrics"
    given: "Given"
    notes: tuple[str, ...] = ()
    weights: str | None = None


def study_at(
    place: str | Path, *, chosen: bool, data_root: str | Path | None, allow_code: bool
) -> Study | None:
    """Return the study at a place, None if an export is there.

    Args:
        place: folder or URI.
        chosen: whether a trial or an ensemble of the study is asked for.
        data_root: folder of the named data sets.
        allow_code: import the code that the study names.

    Raises:
        ValueError: if there is neither, or if something is chosen of an export.
    """
    from nas_evidence.exporting.soundness import is_export

    if not is_export(Path(place)):
        return Study(place, data_root, allow_code=allow_code)
    if chosen:
        alone = Path(place) / "members" / "1"
        instead = f" Predict by {alone}, one of its networks." if alone.is_dir() else ""
        raise UserError(
            "trial-of-an-export",
            f"trial_id (--trial) and top choose among the trials of a study, but {place} is an "
            f"export.{instead}",
        )
    return None


@with_options(PredictOptions)
def predict(
    place: str | Path | Study,
    data: Any,
    *,
    trial_id: int | None = None,
    top: int | None = None,
    ood: Any = None,
    data_root: str | Path | None = None,
    allow_code: bool = False,
    warn: Callable[[str], None] = warn_user,
    **options: Unpack[PredictOptions],
) -> Predicted:
    """Predict new data by a study or an export; if they hold the target, judge the predictions.

    Args:
        place: a study, its folder or the URI of its store, or an export folder.
        data: a DataFrame, array, tensor, or the path of a table, .npz file or image folder.
        trial_id: of one network of the study, that of this trial.
        top: of an ensemble of so many best networks of the study, with equal weights.
        ood: out-of-distribution data, for the metric `ood_auroc`: how well the network tells
            them apart.
        data_root: folder of the named data sets.
        allow_code: import the code that is named as module:NAME.
        warn: called with a sentence on doubtful cells, rows of the training data, or metrics that
            cannot be computed; by default it warns.
        options: see `nas_evidence.api.shared_options.PredictOptions`.

    Raises:
        ValueError: for data unlike the training data, or without a complete trial.

    Example:
        found = nas_evidence.predict("runs/mine", "labelled.csv")
        found.rows.to_frame()  # a DataFrame, one row each
        found.metrics["accuracy"]
    """
    trial_id, top = check_one(trial_id, top)
    if isinstance(place, Study):
        study: Study | None = place
    else:
        study = study_at(
            place, chosen=(trial_id, top) != (None, None), data_root=data_root,
            allow_code=allow_code,
        )  # fmt: skip

    # Only now, since it imports torch, which takes seconds.
    from nas_evidence.exporting.predictor import Metrics, Predictor, out_of_distribution

    if study is not None:
        predictor = study.predictor(trial_id, top=top)
    else:
        assert not isinstance(place, Study)
        try:
            predictor = Predictor.load(place, allow_code=allow_code)
        except UserError as error:
            if error.code != "export-code-not-allowed":
                raise
            raise UserError(
                "predict-needs-allow-code",
                f"{place} has a family of your own: {NEEDS_ALLOW_CODE}",
            ) from None
    given = predictor.given(data)
    rows = predictor.predict(given, **options)
    options.pop("quantiles", None)
    for doubt in rows.warnings:
        warn(doubt)
    metrics = Metrics({}, n=0, task=predictor.meaning["task"])
    if given.truth is not None:
        try:
            metrics = predictor.evaluate(given, predicted=rows, **cast("JudgeOptions", options))
        except ValueError as error:  # a class that training has not seen, ...
            warn(f"metrics are left out: {error}")
    if metrics:
        with suppress(ValueError, OSError):  # an export lies in its study, or alone
            home = study or Study(Path(str(place)).resolve().parent)
            if seen := seen_in_training(given, home):
                warn(seen)
    if ood is not None:
        # What tells other data apart is the posterior, unless a method is asked for.
        options["method"] = options.get("method") or "probit"
        known, other = (predictor.predict(o, **options) for o in (given, predictor.given(ood)))
        metrics["ood_auroc"] = out_of_distribution(known, other)
    notes = [rows.cut] * bool(rows.cut)
    if given.unused:
        more = f" and {len(given.unused) - _LISTED} more" * (len(given.unused) > _LISTED)
        listed = ", ".join(map(shortened, given.unused[:_LISTED]))
        notes.append(f"columns that the network does not use: {listed}{more}")
    return Predicted(rows, metrics, given, tuple(notes), predictor.meaning.get("weights"))
