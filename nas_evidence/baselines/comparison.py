"""The stored comparison of the winner with its baselines on held-out data.

The file `report/comparison.json` of a study folder, sealed. The numbers never rank anything.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from nas_evidence.maths.conditional_coverage import Quarter
from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.seals import DamagedError, read_sealed_json, sealed_json
from nas_evidence.spec.domains import Frozen
from nas_evidence.spec.likelihoods import Stored, TargetKind, stored_kind
from nas_evidence.storage import COMPARISON

#: What of a comparison is no simple model, and is left out first where time is short.
IMPORTANCE = "importance of the columns"
#: Scores of the winner and of each baseline, by name; losses in nats per datum.
Metrics = Mapping[str, float]


class Baseline(Frozen):
    """A simple model beside the winner.

    metrics   as of the winner, on the same data; errors are their standard errors
    behind    mean of its loss minus the winner's per datum, nats; above 0 the network is better
    interval  95 % interval of `behind` (maths/paired.py); None where it is unknown
    by_target metrics of each of several real targets, in their order
    """

    name: str
    metrics: Metrics
    behind: float
    interval: tuple[float, float] | None = None
    errors: Metrics = Field(default_factory=dict)
    by_target: tuple[Metrics, ...] = ()


class CalibrationPoint(Frozen):
    """Test data of similar confidence: how many, mean confidence, and share that is right.

    For real targets: the probability of an interval, and the share of targets inside.
    """

    n: int
    confidence: float
    accuracy: float


class OneTarget(Frozen):
    """One of several real targets, as the winner predicts it.

    metrics      of `maths/metrics.py`, and coverage_50, coverage_90 and coverage_95
    calibration  probabilities of intervals, and the shares inside
    quarters     coverage by quartile of its prediction; empty for few rows
    pit          how many of its values have their PIT in each of ten bins of equal width
    """

    name: str
    metrics: Metrics
    calibration: tuple[CalibrationPoint, ...] = ()
    quarters: tuple[Quarter, ...] = ()
    pit: tuple[int, ...] = ()


class ColumnImportance(Frozen):
    """How much worse predictions are without the order of a column: mean and std of repeats."""

    column: str
    mean: float
    std: float


class Importance(Frozen):
    """Permutation importance of the columns of a table, the most important first.

    metric    whose change is shown, in its own unit; above 0 predictions become worse
    asked     metric that was asked for; the rows may not define it
    on        "test": rows of the test split. "training": without one, rows trained on
    n         rows; `repeats` permutations of each column
    left_out  columns that were not permuted, since there are too many
    """

    metric: str
    asked: str | None = None
    on: Literal["test", "training"]
    n: int
    repeats: int
    left_out: int = 0
    columns: tuple[ColumnImportance, ...]


class Comparison(Frozen):
    """The winner and the baselines.

    on         "test": the test split. "folds": without one, the folds of the study
    n          data that are predicted
    seeds      networks of the winner's architecture over which metrics and differences are means
    chosen_among  architectures among which these rows chose the winner; 1 for test rows
    corrected  whether metrics and differences are free of that choice, see
               `exporting/candidates.py`; None where an earlier version did not say
    against    on folds: the name of the simple model that each draw of rows chooses with the
               winner; its numbers in `baselines` are of that choice
    errors     standard errors of the metrics over the data, where they are known
    classes    names of the labels; empty for numbered classes and real targets
    class_weight  what an error on each class costs, by name; empty without class weights
    recall     share of each class present that is recognised, by label; empty for real targets
    confusion  counts, rows are true classes; empty for real targets
    pairs      (true, predicted) of some real targets, in their own unit
    quarters   coverage by quartile of the prediction of a real target; empty for few rows, and
               for several targets
    pit        how many of its values have their PIT in each of ten bins of equal width
    by_target  of several real targets each alone; empty for one
    lowest     least real target, of training and test rows; None for classes
    thresholds probability of the second of two classes from which `predict` chooses it, by the
               metric that it maximises on predictions of the folds
    importance of the columns of a table to the winner; None for arrays and images
    lacks      simple models, and `IMPORTANCE`, for which there was no time
    """

    trial_id: int
    task: Stored
    on: Literal["test", "folds"]
    n: int
    seeds: int = 1
    chosen_among: int = 1
    corrected: bool | None = None
    against: str | None = None
    metrics: Metrics
    errors: Metrics = Field(default_factory=dict)
    baselines: tuple[Baseline, ...] = ()
    classes: tuple[str, ...] = ()
    class_weight: Metrics = Field(default_factory=dict)
    recall: Mapping[str, float] = {}
    confusion: tuple[tuple[int, ...], ...] = ()
    calibration: tuple[CalibrationPoint, ...] = ()
    pairs: tuple[tuple[float, float], ...] = ()
    quarters: tuple[Quarter, ...] = ()
    pit: tuple[int, ...] = ()
    by_target: tuple[OneTarget, ...] = ()
    lowest: float | None = None
    thresholds: Metrics = Field(default_factory=dict)
    importance: Importance | None = None
    lacks: tuple[str, ...] = ()

    @property
    def kind(self) -> TargetKind:
        """The kind of target."""
        return stored_kind(self.task)


def is_free_of_choice(one: Comparison) -> bool:
    """Return whether a comparison does not owe anything to the choice of the winner."""
    return one.on == "test" or bool(one.corrected)


def write_comparison(folder: Path, comparison: Comparison) -> None:
    """Write a comparison into a study folder."""
    (folder / COMPARISON).parent.mkdir(exist_ok=True)
    write_whole(folder / COMPARISON, sealed_json(comparison.model_dump(mode="json")))


def read_comparison(folder: Path) -> Comparison | None:
    """Return the comparison of a study; None if there is none, or it is not as written."""
    path = folder / COMPARISON
    try:
        found = read_sealed_json(path.read_bytes(), path)
        if found.pop("trials", ()):  # of earlier versions: of several networks together
            return None
        return Comparison.model_validate(found)
    except (OSError, DamagedError, ValidationError):
        return None
