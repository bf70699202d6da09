"""Rows for architectures that are trained again: all rows of an older study, or other ones.

They are read as that study read its own: the same columns as the same kinds, the same classes, the
same targets on the same scale. Numbers of the preparation, such as means, medians and the list of
categories, are fitted again. Where rows do not fit, one sentence says which do not.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nas_evidence.data.array_files import KEYS, read_arrays
from nas_evidence.data.arrays import ArrayData
from nas_evidence.data.cells import MOSTLY, READ, how_read
from nas_evidence.data.image_reading import ImageReading
from nas_evidence.data.images import are_images, are_of_pil, new_images, new_images_in_memory
from nas_evidence.data.mapped import Array
from nas_evidence.data.preparation import in_known_forms, inputs_of, unread
from nas_evidence.data.reading import (
    as_array,
    check_aligned,
    kind_of,
    known_column,
    plain,
    read,
    targets_in,
)
from nas_evidence.data.said import Said, listed
from nas_evidence.data.source import (
    GIVEN,
    KEPT,
    Source,
    StoredRows,
    array_source,
    called,
    table_source,
)
from nas_evidence.data.table_columns import MISSING, OTHER, Preparation
from nas_evidence.plumbing.foreign_text import shortened
from nas_evidence.plumbing.user_error import UserError, no_such_file
from nas_evidence.spec.dataset import DatasetSpec


@dataclass(frozen=True)
class ReadBefore:
    """How a study read its data.

    place        the study, as its user names it
    spec         its data set, with its task
    shape        of an input
    n_outputs    classes or real targets
    classes      what labels 0..C-1 stand for; empty for real targets, or if they are just numbers
    preparation  of the columns of a table; None for images, and vectors on disk
    images       how files of images became inputs
    """

    place: str
    spec: DatasetSpec
    shape: tuple[int, ...]
    n_outputs: int
    classes: tuple[str | int | bool | float, ...] = ()
    preparation: Preparation | None = None
    images: ImageReading | None = None

    @classmethod
    def of(cls, arrays: ArrayData, spec: DatasetSpec, place: str) -> "ReadBefore":
        """Return it of data as a study loads them."""
        spec = spec.model_copy(update={"task": spec.task or arrays.kind.task})
        shape, own = tuple(arrays.input_shape), arrays.meaning
        return cls(place, spec, shape, arrays.n_outputs, own.classes, own.preparation, own.images)


# --- which rows


def all_rows(before: ReadBefore, rows: StoredRows, given: str) -> Source:
    """Return all rows of a study, those of its test among them, in the order in which they lie.

    Args:
        before: how the study read them.
        rows: as it keeps them.
        given: what they are called.

    Raises:
        ValueError: if rows of the test lack what rows of the training have.
    """
    if rows.frame is None:
        return _of_arrays(before, rows.arrays, rows.images, given)
    frame = rows.frame
    if rows.test is not None:
        _check_of_rows(before, rows.test.columns, f"the test rows of {before.place}")
        frame = pd.concat([frame, rows.test], ignore_index=True)
        frame.attrs = rows.frame.attrs
    return _of_table(before, frame, given)


def all_named_rows(before: ReadBefore, arrays: Mapping[str, Array]) -> Source:
    """Return all rows of a named data set as arrays that a study keeps."""
    return _of_arrays(before, arrays, None, before.spec.name)


def other_rows(before: ReadBefore, data: Any, y: Any = None) -> Source:
    """Return other data, read as a study read its own.

    Args:
        before: how the study read its data.
        data: a path, a table of any library, an array or tensor, or images.
        y: targets, if `data` does not hold them.

    Raises:
        ValueError: if they are of another kind, or lack columns, targets or classes.
    """
    if not isinstance(data, str | Path):
        check_aligned(data, {"y": y})
        return replace(_other_rows(before, data, y, GIVEN), called=called(data))
    path = Path(data).expanduser()
    if not path.exists():
        raise no_such_file(path)
    return _other_rows(before, path, y, path.name)


def _other_rows(before: ReadBefore, data: Any, y: Any, given: str) -> Source:
    prepared, reading = before.preparation, None
    if prepared is not None and not prepared.unnamed:
        found = read(data, prepared.written)
        if not isinstance(found, pd.DataFrame):
            raise _other_kind(before, "a table with its columns", given)
        return _of_table(before, found if y is None else _with_targets(before, found, y), given)
    in_files = isinstance(data, Path) and are_images(data)
    if in_files or are_of_pil(data):
        reading = before.images or ImageReading("RGB" if before.shape[0] == 3 else "grey")
        images = new_images(data, reading) if in_files else new_images_in_memory(data, reading)
        arrays, reading = dict(images.arrays), images.reading
    elif isinstance(data, Path):
        if kind_of(data) != "npz":
            raise _other_kind(before, "an .npz file with x_train and y_train", given)
        arrays = read_arrays(data, before.spec.columns_of_rows, needed=KEYS[:2])
    else:
        arrays = {"x_train": as_array(plain(data))}
    if y is not None:
        arrays["y_train"] = as_array(plain(y))
    if "y_train" not in arrays:
        remedy = "put the images of each class into a folder" if in_files else "give y"
        raise UserError("refit-without-y", f"{given} holds no targets of the rows; {remedy}")
    return _of_arrays(before, arrays, reading, given)


def _with_targets(before: ReadBefore, frame: pd.DataFrame, y: Any) -> pd.DataFrame:
    names = [name.strip() for name in str(before.spec.target).split(",")]
    values = as_array(plain(y)).reshape(len(frame), -1)
    if values.shape[1] != len(names):
        raise UserError(
            "refit-y-columns",
            f"y must have {len(names)} columns ({', '.join(names)}), but has {values.shape[1]}",
        )
    return frame.assign(**dict(zip(names, values.T, strict=True)))


def _of_table(before: ReadBefore, frame: pd.DataFrame, given: str) -> Source:
    """Return the columns of a table that a study used, in its order."""
    prepared, spec = before.preparation, before.spec
    assert prepared is not None
    frame = in_known_forms(frame, prepared)
    inputs_of(prepared, frame, given)  # refuses columns that lack, or hold text instead of numbers
    targets = targets_in(frame, spec.target) or (known_column(frame, spec.target, given),)
    others = [*targets, *(known_column(frame, name, given) for name in spec.columns_of_rows)]
    used = [*prepared.places, *others]
    said = [one for one in how_read(frame)[0] if one.column is None or one.column in used]
    _check_columns(before, frame, given)
    if unknown := [str(name) for name in frame.columns if name not in (*prepared.names, *others)]:
        said.append(Said(f"columns that {before.place} has not are left out: {listed(unknown)}"))
    frame = frame[used]
    frame.attrs = {**frame.attrs, READ: said}
    keys = {"name": "table", "path": f"{KEPT}/train.parquet", "target": spec.target}
    spec = DatasetSpec.model_validate(keys | _kept_keys(before))
    return table_source(frame, None, spec, given=given)


def _of_arrays(
    before: ReadBefore, arrays: Mapping[str, Array], images: ImageReading | None, given: str
) -> Source:
    """Return arrays of a study's kind; rows of a test follow those of the training."""
    joined, prepared, keys = dict(arrays), before.preparation, _kept_keys(before)
    if (x_test := joined.pop("x_test", None)) is not None:
        _check_of_rows(before, (), f"the test rows of {given}")
        _check_shape(before, x_test.shape[1:], joined["x_train"].shape[1:], f"x_test of {given}")
        joined["x_train"] = np.concatenate([joined["x_train"], x_test])
        joined["y_train"] = np.concatenate([joined["y_train"], joined.pop("y_test")])
    _check_of_rows(before, joined, given)
    if prepared is not None:
        _check_shape(before, joined["x_train"].shape[1:], (len(prepared.names),), given)
        keys["drop"] = [name for name in prepared.names if name not in prepared.places] or None
    spec = DatasetSpec.model_validate({"name": "npz", "path": KEPT, **keys})
    return array_source(joined, spec, given=given, images=images)


def _kept_keys(before: ReadBefore) -> dict[str, Any]:
    """Return the keys of a study's data set that hold for other rows, too."""
    used = {} if before.preparation is None else before.preparation.places
    kept = ("task", "groups", "time_column", "weights", "class_weight", "target_scale")
    keys = {key: getattr(before.spec, key) for key in kept}
    for key in ("categorical", "numeric"):
        keys[key] = [name for name in getattr(before.spec, key) or () if name in used] or None
    return {key: value for key, value in keys.items() if value is not None}


# --- whether they are read as before


def read_as_before(before: ReadBefore, source: Source, *, seed: int) -> Source:
    """Return rows whose columns, classes and targets are those of a study.

    Raises:
        ValueError: if they are not; names the first difference, and the remedy.
    """
    was, now = _kinds(before.preparation), _kinds(source.arrays(seed=seed).meaning.preparation)
    if others := {name for name, kind in was.items() if now.get(name) != kind}:
        keys = {}
        for key, kind in (("categorical", "categories"), ("numeric", "numbers")):
            own = [name for name in was if name in others and was[name] == kind]
            keys[key] = (*(getattr(source.spec, key) or ()), *own) or None
        source = source.with_spec(source.spec.model_copy(update=keys))
        now = _kinds(source.arrays(seed=seed).meaning.preparation)
    for name, kind in was.items():
        if now.get(name) != kind:
            raise UserError(
                "refit-other-column",
                f"column {name!r} holds {now.get(name, 'nothing that varies')} in {source.name}, "
                f"but {kind} in {before.place}; correct it, or search again",
            )
    arrays = source.arrays(seed=seed)
    if before.preparation is None:
        _check_shape(before, tuple(arrays.input_shape), before.shape, source.name)
    _check_classes(before, arrays, source.name)
    return source


def _kinds(preparation: Preparation | None) -> dict[str, str]:
    return {} if preparation is None else preparation.kinds


def _check_columns(before: ReadBefore, frame: pd.DataFrame, given: str) -> None:
    """Check that numbers hold few words, and categories one that is known."""
    for column in () if before.preparation is None else before.preparation.columns:
        wrong, cells = "", frame[column.name].dropna()
        if column.kind == "category":
            known = {*column.categories} - {OTHER, MISSING}
            there = {*cells.astype(str).str.strip()}
            if there and known and known.isdisjoint(there):
                own = listed(sorted(known))
                wrong = f"none of its categories, {own}, but {listed(sorted(there))}"
        elif not column.part:
            words = unread(frame[column.name], column)
            if len(words) > (1 - MOSTLY) * len(cells):  # fewer a search takes for missing
                wrong = f"{len(words)} words ({shortened(str(words.iloc[0]))!r}) among numbers"
        if wrong:
            raise UserError(
                "refit-column-unlike",
                f"column {column.name!r} of {given} has {wrong}, unlike {before.place}; correct "
                "it, or search again",
            )


def _check_classes(before: ReadBefore, arrays: ArrayData, given: str) -> None:
    what = "classes" if arrays.kind.classes else "targets"
    was = [str(one) for one in before.classes or range(before.n_outputs)]
    now = [str(one) for one in arrays.meaning.classes or range(arrays.n_outputs)]
    if different := sorted({*was} ^ {*now}):
        raise UserError(
            "refit-other-classes",
            f"the {what} of {given} must be those of {before.place} ({listed(was)}), but only one "
            f"of the two has {listed(different)}; give rows of the same {what}, or search again",
        )


def _check_of_rows(before: ReadBefore, there: Container[object], given: str) -> None:
    if lacking := [name for name in before.spec.columns_of_rows if name not in there]:
        raise UserError(
            "refit-lacks-column",
            f"{given} has no {lacking[0]!r}, which the rows of {before.place} have; give a table "
            "or an .npz file of all rows with it",
        )


def _check_shape(
    before: ReadBefore, shape: tuple[int, ...], was: tuple[int, ...], given: str
) -> None:
    if tuple(shape) != tuple(was):
        raise UserError(
            "refit-other-shape",
            f"an example of {given} has the shape {list(shape)}, but one of {before.place} "
            f"{list(was)}; give examples of the same shape",
        )


def _other_kind(before: ReadBefore, needed: str, given: str) -> UserError:
    return UserError(
        "refit-other-kind",
        f"{before.place} was searched on other data; give {needed}, not {given}",
    )
