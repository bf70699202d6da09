"""Which data a study asks for: `[dataset]` of a study file.

`spec/study.py` has the other tables and re-exports the names of this file.
"""

import math
from collections.abc import Mapping
from numbers import Real
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.domains import Count, Frozen, NoKey, Unit
from nas_evidence.spec.likelihoods import LIKELIHOODS, TARGET_KINDS, TargetKind, Task, default_of

#: Test examples split off the bundled data sets if a study gives no `test_size`.
DIGITS_TEST_SIZE = 500
DIABETES_TEST_SIZE = 142
#: Data sets of the user's own: a table, arrays, and a folder of images by class.
OWN_DATA = ("table", "npz", "images")
DATASET_NAMES = ("digits", "diabetes", "mnist", "fashion_mnist", "cifar10", "cifar100", *OWN_DATA)
#: Scales on which real targets are modelled, see `maths/target_scale.py`.
TargetScaleName = Literal["identity", "log", "shifted_log", "yeo_johnson", "sinh_arcsinh"]
#: The same names and "auto", which has one of them chosen. Written out: typer takes no union.
AskedScale = Literal["identity", "log", "shifted_log", "yeo_johnson", "sinh_arcsinh", "auto"]


def scale_of_others(scale: str, kind: TargetKind, what: str = "the targets") -> UserError:
    """Return the error of a scale of targets that are not modelled on one."""
    return UserError(
        "target-scale-of-classes",
        f"`target_scale` {scale!r} is for real targets, but {what} are {kind.targets}; leave it "
        "out, or give task = regression",
    )


def weights_of_others(kind: TargetKind) -> UserError:
    """Return the error of class weights of targets that are no classes."""
    return UserError(
        "class-weight-of-numbers",
        f"`class_weight` needs classes, but the targets are {kind.values}; leave it out, or give "
        "task = classification",
    )


def _class_weight(value: object) -> object:
    """Return class weights given as text, or with classes that are no text, by class."""
    wrong = UserError(
        "class-weight-form",
        f'`class_weight` must be "balanced" or weights by class, but got {value!r}; give for '
        "example rare=5",
    )
    if value is None or value == "balanced":
        return value
    if isinstance(value, str):
        parts = [part.rpartition("=") for part in value.split(",")]
        value = {name.strip(): _number(weight) for name, _, weight in parts}
        if "" in value or len(value) < len(parts):
            raise wrong
    if not isinstance(value, Mapping) or not value:
        raise wrong
    for name, weight in value.items():
        number = float(weight) if isinstance(weight, Real) else math.nan
        if not 0 < number < math.inf:
            raise UserError(
                "class-weight-not-positive",
                "each `class_weight`, the cost of an error on the class, must be a number above "
                f"0, but that of {_class_name(name)!r} is {weight}; correct it, or leave the "
                "class out to give it 1",
            )
    return {_class_name(name): float(weight) for name, weight in value.items()}


def _class_name(label: object) -> str:
    """Return a class as its name in the data: a whole float as the integer it is."""
    if isinstance(label, Real) and not isinstance(label, bool) and float(label).is_integer():
        return str(int(float(label)))
    return str(label)


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text.strip()


class DatasetSpec(Frozen):
    """Which data, and how much of it; only the report reads the test part."""

    name: Literal[*DATASET_NAMES]  # type: ignore[valid-type]
    """Name of a data set; "table", "npz" (arrays) or "images" (a folder) for your data."""
    test_size: Annotated[Count, Unit("examples")] | None = None
    """Examples split off for testing: of `digits` (by default 500) or `diabetes` (142)."""
    max_train: Annotated[Count, Unit("examples")] | None = None
    """Maximum number of training examples, a seeded subset stratified by class; if absent, all."""
    max_test: Annotated[Count, Unit("examples")] | None = None
    """Maximum number of test examples, chosen in the same way; if absent, all."""
    path: str | None = None
    """File or folder of your data, relative to the study file: CSV or Parquet for "table",
    .npz or a folder of .npy files for "npz", a folder of folders for "images"."""
    test_path: str | None = None
    """Another file with the test rows; used with `name = "table"`."""
    test_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of the rows split off for testing, seeded and stratified by class; for data of your
    own that come without test rows."""
    target: str | None = None
    """Column to predict, or several of real numbers separated by commas; used with
    `name = "table"`."""
    task: Task | None = None
    """What the targets of your data are; if absent, as `likelihood` says if that is given,
    else inferred from the values."""
    drop: tuple[str, ...] | None = None
    """Columns of a table to leave out; of vectors x0, x1, ..."""
    categorical: tuple[str, ...] | None = None
    """Columns of a table to read as categories though they hold numbers or many texts."""
    numeric: tuple[str, ...] | None = None
    """Columns of a table to read as numbers; what is not a number counts as missing."""
    groups: str | None = None
    """Column whose rows with one value stay together in folds and test split, such as a patient;
    no feature. Of arrays: the name of another array."""
    time_column: str | None = None
    """Column of times, dates or numbers: each block of rows is predicted from the earlier ones
    alone, and split-off test rows are the latest; no feature. Of arrays: the name of another
    array."""
    weights: str | None = None
    """Column that says how often each row occurs, a whole number: 2 is the row twice in the same
    fold, 0 no row; no feature. Of arrays: the name of another array."""
    class_weight: Annotated[
        Literal["balanced"] | Mapping[str, float] | None, BeforeValidator(_class_weight)
    ] = None
    """What an error on a row of a class costs, {rare = 5} or "rare=5", above 0, and 1 for classes
    that are not named; "balanced" is n / (K n_k). The class with the largest weight times
    probability is predicted, and accuracy is weighted; training and scores do not change."""
    target_scale: AskedScale | None = None
    """Scale on which real targets have normal noise; if absent, "identity". "auto" takes that of
    most conditional evidence for one network, before the study begins. Prices, durations and
    concentrations often need "log" (all above 0), "shifted_log" or "yeo_johnson" (any sign).
    Scores are log densities of the targets themselves, so they compare between scales."""
    image_size: Annotated[Count, Unit("pixels")] | None = None
    """Height and width that every image of a folder is resized to; if absent, all must agree."""
    content: Annotated[str | None, NoKey()] = None
    """SHA-256 of the data; written by `search`, so that data that changed are refused."""

    @property
    def kind(self) -> TargetKind | None:
        """The kind of target, None until the data say it."""
        return None if self.task is None else TARGET_KINDS[self.task]

    @property
    def scale(self) -> TargetScaleName:
        """The scale of real targets; "identity" until "auto" has been decided."""
        asked = self.target_scale
        return "identity" if asked is None or asked == "auto" else asked

    def rows(self, seed: int) -> tuple[Any, ...]:
        """Return what decides the rows that are trained on and tested, and their targets.

        Two studies of equal values have the same rows and split: the content of the data, where
        that is kept, and the keys that choose among them. All other keys say how rows are read.

        Args:
            seed: of the study.
        """
        split = {"digits": DIGITS_TEST_SIZE, "diabetes": DIABETES_TEST_SIZE}.get(self.name)
        size = self.test_size or split
        drawn = (size, self.test_fraction, self.max_train, self.max_test)
        return (
            self.name,
            self.content or (self.path, self.test_path),
            drawn,
            seed if any(drawn) else None,
            (self.target, self.task),
            (self.groups, self.time_column, self.weights),
        )

    @property
    def units_column(self) -> str | None:
        """The column of groups or times, None if there is none."""
        return self.groups or self.time_column

    @property
    def columns_of_rows(self) -> tuple[str, ...]:
        """The columns that say something of each row and are no features."""
        return tuple(name for name in (self.units_column, self.weights) if name is not None)

    @field_validator("task", mode="before")
    @classmethod
    def _no_other_likelihood(cls, value: object) -> object:
        if isinstance(value, str) and value not in TARGET_KINDS:
            missing = [kind for kind in ("counts", "grades") if kind not in TARGET_KINDS]
            raise UserError(
                "unknown-task",
                f"`task` must be one of {', '.join(TARGET_KINDS)}, but got {value!r}; "
                f"{' and '.join(missing)} have no likelihood of their own: give regression, "
                "perhaps of the logarithm",
            )
        return value

    @model_validator(mode="after")
    def _path(self) -> "DatasetSpec":
        own = self.name in OWN_DATA
        if own and self.path is None:
            what = {"table": "CSV or Parquet", "npz": ".npz"}.get(self.name)
            what = f"the {what} file" if what else "the folder of images"
            raise UserError(
                "dataset-path-missing", f'`path` must name {what} when name = "{self.name}"'
            )
        if self.name == "table" and self.target is None:
            raise UserError(
                "dataset-target-missing",
                '`target` must name the column to predict when name = "table"',
            )
        kind = self.kind
        if self.class_weight is not None and kind is not None and not kind.classes:
            raise weights_of_others(kind)
        if self.target_scale not in (None, "identity") and (
            (kind is not None and not kind.scaled) or self.name not in (*OWN_DATA, "diabetes")
        ):
            classes = TARGET_KINDS["classification"]  # of the other sets of data
            raise scale_of_others(self.target_scale, kind or classes)
        if self.target_scale == "auto" and self.name not in OWN_DATA:
            raise UserError(
                "target-scale-auto-of-named-data",
                f'`target_scale = "auto"` is for data of your own, but name = "{self.name}"; '
                "name a scale",
            )
        if self.test_path is not None and self.test_fraction is not None:
            raise UserError(
                "test-fraction-and-test-path",
                "`test_fraction` splits off test rows, but test_path names some already; "
                "give one of the two",
            )
        if self.groups is not None and self.time_column is not None:
            raise UserError(
                "groups-and-times",
                "`groups` and `time_column` divide the rows in two ways, but only one is "
                "possible; leave one out",
            )
        named = [n for n in (self.target, *self.columns_of_rows) if n is not None]
        if len({*named}) < len(named):
            raise UserError(
                "columns-must-differ",
                "the target and the columns of groups, times and weights must differ, but are "
                f"{named}; name other columns",
            )
        if self.name not in ("digits", "diabetes") and self.test_size is not None:
            remedy = "test_fraction" if own else "max_test"
            raise UserError(
                "test-size-of-data-set",
                f'`test_size` is for digits and diabetes, but name = "{self.name}"; use {remedy}',
            )
        self._check_used()
        return self

    def _check_used(self) -> None:
        """Refuse keys that this kind of data does not use."""
        of_columns = ("drop", "categorical", "numeric", "groups", "time_column", "weights")
        users = {
            **dict.fromkeys(("target", "test_path"), ("table",)),
            "image_size": ("images",),
            **dict.fromkeys(of_columns, ("table", "npz")),
            **dict.fromkeys(
                ("path", "test_fraction", "task", "class_weight", "content"), OWN_DATA
            ),
        }
        for key, names in users.items():
            if getattr(self, key) is not None and self.name not in names:
                listed = " or ".join(f'"{name}"' for name in names)
                raise UserError(
                    "key-of-another-data-set",
                    f'`{key}` is used only with name = {listed}, but name = "{self.name}"',
                )


def with_task(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a study's tables in which [dataset] task and [plan] likelihood follow each other.

    Either may be absent: the one that is given decides. Only your data have a task.

    >>> with_task({"dataset": {"name": "npz", "task": "regression"}})["plan"]
    {'likelihood': 'gaussian'}
    """
    dataset, plan = data.get("dataset"), data.get("plan", {})
    if not isinstance(dataset, Mapping) or not isinstance(plan, Mapping):
        return data  # a mistake, which validation reports
    task, likelihood = dataset.get("task"), plan.get("likelihood")
    if likelihood is None and isinstance(task, str) and task in TARGET_KINDS:
        return {**data, "plan": {**plan, "likelihood": default_of(task)}}
    known = LIKELIHOODS.get(likelihood) if isinstance(likelihood, str) else None
    if task is None and dataset.get("name") in OWN_DATA and known is not None:
        return {**data, "dataset": {**dataset, "task": known.task}}
    return data
