"""Rows for architectures that are trained again: all rows of an older study, or other ones.

They are read as that study read its own: the same columns as the same kinds, the same classes, the
same targets on the same scale. Numbers of the preparation, such as means, medians and the list of
categories, are fitted again. Where rows do not fit, one sentence says which do not.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nas_evidence.data.array_files import KEYS, read_arrays
from nas_evidence.data.arrays import ArrayData
from nas_evidence.data.cells import MOSTLY, READ, how_read
from nas_evidence.data.given import check_durations
from nas_evidence.data.image_reading import ImageReading
from nas_evidence.data.images import (
    are_images,
    are_of_pil,
    new_images,
    new_images_in_memory,
)
from nas_evidence.data.mapped import Array
from nas_evidence.data.preparation import MOST_CATEGORIES, in_known_forms, inputs_of, unread
from nas_evidence.data.reading import (
    as_array,
    check_aligned,
    kind_of,
    known_column,
    plain,
    read,
    targets_in,
)
from nas_evidence.data.said import Said
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

#: Names that a sentence lists.
_LISTED = 8


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
        spec = spec.model_copy(update={"task": arrays.kind.task} if spec.task is None else {})
        meaning = arrays.meaning
        return cls(
            place,
            spec,
            tuple(arrays.input_shape),
            arrays.n_outputs,
            meaning.classes,
            meaning.preparation,
            meaning.images,
        )

    @property
    def is_table(self) -> bool:
        """Whether the data have columns with names of the user's."""
        return self.preparation is not None and not self.preparation.unnamed


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
        columns = before.spec.columns_of_rows
        if lacking := [name for name in columns if name not in rows.test.columns]:
            raise _lacks_of_rows(before, lacking[0])
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
    path = Path(data).expanduser() if isinstance(data, str | Path) else None
    if path is None:
        check_aligned(data, {"y": y})
        return replace(_other_rows(before, data, y, None), called=called(data))
    if not path.exists():
        raise no_such_file(path)
    return _other_rows(before, data, y, path)


def _other_rows(before: ReadBefore, data: Any, y: Any, path: Path | None) -> Source:
    given = GIVEN if path is None else str(path)
    if before.is_table:
        return _of_table(before, _table(before, data, y), given if path is None else path.name)
    if path is not None and are_images(path):
        reading = before.images or ImageReading("RGB" if before.shape[0] == 3 else "grey")
        found = new_images(path, reading)
        if "y_train" not in found.arrays:
            raise UserError(
                "refit-images-without-classes",
                f"{given} holds images without classes; put those of each class into a folder",
            )
        return _of_arrays(before, found.arrays, found.reading, given)
    if path is not None:
        if kind_of(path) != "npz":
            raise UserError(
                "refit-needs-arrays",
                f"{before.place} was searched on arrays; give an .npz file with x_train and "
                f"y_train, but not {given}",
            )
        arrays = read_arrays(path, before.spec.columns_of_rows, needed=KEYS[:2])
        return _of_arrays(before, arrays, None, given)
    if y is None:
        raise UserError("refit-without-y", "give y, the targets of the rows, beside the data")
    if are_of_pil(data):
        reading = before.images or ImageReading("RGB" if before.shape[0] == 3 else "grey")
        found = new_images_in_memory(data, reading)
        arrays = {**found.arrays, "y_train": as_array(plain(y))}
        return _of_arrays(before, arrays, found.reading, given)
    arrays = {"x_train": as_array(plain(data)), "y_train": as_array(plain(y))}
    if before.spec.columns_of_rows:
        raise UserError(
            "refit-lacks-column-of-rows",
            f"{before.place} has the column {before.spec.columns_of_rows[0]!r} beside its rows; "
            "give an .npz file with an array of that name",
        )
    return _of_arrays(before, arrays, None, given)


def _table(before: ReadBefore, data: Any, y: Any) -> pd.DataFrame:
    prepared, spec = before.preparation, before.spec
    assert prepared is not None
    found = read(data, prepared.written)
    if not isinstance(found, pd.DataFrame):
        raise UserError(
            "refit-needs-a-table",
            f"{before.place} was searched on a table; give a table with its columns, but not "
            f"{'arrays' if not isinstance(data, str | Path) else data}",
        )
    if y is None:
        return found
    names = [name.strip() for name in str(spec.target).split(",")]
    values = as_array(plain(y)).reshape(len(found), -1)
    if values.shape[1] != len(names):
        raise UserError(
            "refit-y-columns",
            f"y must have {len(names)} columns ({', '.join(names)}), but has {values.shape[1]}",
        )
    attrs = found.attrs
    found = found.assign(**dict(zip(names, values.T, strict=True)))
    found.attrs = attrs
    return found


def _of_table(before: ReadBefore, frame: pd.DataFrame, given: str) -> Source:
    """Return the columns of a table that a study used, in its order."""
    prepared, spec = before.preparation, before.spec
    assert prepared is not None
    frame = in_known_forms(frame, prepared)
    check_durations(how_read(frame)[1], prepared)
    inputs_of(prepared, frame, given)  # refuses columns that lack, or hold text instead of numbers
    targets = targets_in(frame, spec.target) or (known_column(frame, spec.target, given),)
    others = [*targets, *(known_column(frame, name, given) for name in spec.columns_of_rows)]
    _check_numbers(before, frame, given)
    _check_categories(before, frame, given)
    used = [*prepared.places, *others]
    unknown = [str(name) for name in frame.columns if name not in (*prepared.names, *others)]
    told = [
        *_new_categories(before, frame),
        *([Said(f"columns that {before.place} has not are left out: {_listed(unknown)}")]
          if unknown else []),
    ]  # fmt: skip
    earlier = [one for one in how_read(frame)[0] if one.column is None or one.column in used]
    attrs = {**frame.attrs, READ: [*earlier, *told]}
    frame = frame[used]
    frame.attrs = attrs
    keys: dict[str, Any] = {"name": "table", "path": f"{KEPT}/train.parquet"}
    keys |= {"target": spec.target, **_kept_keys(before)}
    return table_source(frame, None, DatasetSpec.model_validate(keys), given=given)


def _of_arrays(
    before: ReadBefore, arrays: Mapping[str, Array], images: ImageReading | None, given: str
) -> Source:
    """Return arrays of a study's kind; rows of a test follow those of the training."""
    joined = dict(arrays)
    if (x_test := joined.pop("x_test", None)) is not None:
        if before.spec.columns_of_rows:
            raise _lacks_of_rows(before, before.spec.columns_of_rows[0])
        if x_test.shape[1:] != joined["x_train"].shape[1:]:
            raise _other_shape(before, x_test.shape[1:], f"x_test of {given}")
        joined["x_train"] = np.concatenate([joined["x_train"], x_test])
        joined["y_train"] = np.concatenate([joined["y_train"], joined.pop("y_test")])
    prepared, keys = before.preparation, _kept_keys(before)
    if prepared is not None:
        n = joined["x_train"].shape[1:]
        if n != (len(prepared.names),):
            raise _other_shape(before, n, given)
        left_out = [name for name in prepared.names if name not in prepared.places]
        keys |= {"drop": left_out or None}
    spec = DatasetSpec.model_validate({"name": "npz", "path": KEPT, **keys})
    return array_source(joined, spec, given=given, images=images)


def _kept_keys(before: ReadBefore) -> dict[str, Any]:
    """Return the keys of a study's data set that hold for other rows, too."""
    spec, prepared = before.spec, before.preparation
    used = {} if prepared is None else prepared.places
    kept = ("task", "groups", "time_column", "weights", "class_weight", "target_scale")
    keys = {key: getattr(spec, key) for key in kept}
    keys |= {
        key: [name for name in getattr(spec, key) or () if name in used] or None
        for key in ("categorical", "numeric")
    }
    return {key: value for key, value in keys.items() if value is not None}


def _lacks_of_rows(before: ReadBefore, name: str) -> UserError:
    return UserError(
        "refit-test-lacks-column",
        f"the test rows of {before.place} have no {name!r}, which its training rows have; give "
        f"a table of all rows with it: `nas-evidence refit {before.place} ALL.csv`",
    )


# --- whether they are read as before


def read_as_before(before: ReadBefore, source: Source, *, seed: int) -> Source:
    """Return rows whose columns, classes and targets are those of a study.

    Raises:
        ValueError: if they are not; names the first difference, and the remedy.
    """
    arrays, prepared = source.arrays(seed=seed), before.preparation
    found = arrays.meaning.preparation
    if prepared is not None and found is not None and (others := _differing(prepared, found)):
        keys: dict[str, tuple[str, ...]] = {}
        for key, kind in (("categorical", "category"), ("numeric", "number")):
            own = [name for name, was in others.items() if was == kind]
            keys[key] = (*(getattr(source.spec, key) or ()), *own)
        update = {key: names or None for key, names in keys.items()}
        source = source.with_spec(source.spec.model_copy(update=update))
        arrays = source.arrays(seed=seed)
        found = arrays.meaning.preparation
        assert found is not None
        for name, was in _differing(prepared, found).items():
            now = _kinds(found).get(name, "nothing that varies")
            raise UserError(
                "refit-other-column",
                f"column {name!r} holds {_PLURAL.get(now, now)} in {source.name}, but "
                f"{_PLURAL[was]} in {before.place}; correct it, or search again",
            )
    if prepared is None and tuple(arrays.input_shape) != before.shape:
        raise _other_shape(before, tuple(arrays.input_shape), source.name)
    _check_classes(before, arrays, source.name)
    return source


_PLURAL = {"number": "numbers", "category": "categories", "date": "dates"}


def _kinds(prepared: Preparation) -> dict[str, str]:
    return {one.name: "date" if one.part else str(one.kind) for one in prepared.columns}


def _differing(before: Preparation, now: Preparation) -> dict[str, str]:
    """Return what columns are no more, by name."""
    found = _kinds(now)
    return {name: was for name, was in _kinds(before).items() if found.get(name) != was}


def _categories(cells: pd.Series) -> set[str]:
    return {*cells.dropna().astype(str).str.strip()}


def _check_numbers(before: ReadBefore, frame: pd.DataFrame, given: str) -> None:
    """Check that columns of numbers hold few words, as few as a search takes for missing."""
    assert before.preparation is not None
    for column in before.preparation.columns:
        if column.kind == "number" and not column.part:
            words = unread(frame[column.name], column)
            if len(words) > (1 - MOSTLY) * frame[column.name].count():
                raise UserError(
                    "refit-column-not-numbers",
                    f"column {column.name!r} of {given} holds words in {len(words)} of "
                    f"{len(frame)} rows, the first is {shortened(str(words.iloc[0]))!r}, but "
                    f"numbers in {before.place}; correct them, or search again",
                )


def _check_categories(before: ReadBefore, frame: pd.DataFrame, given: str) -> None:
    """Check that each column of categories has one that the study knows."""
    assert before.preparation is not None
    for column in before.preparation.columns:
        known = {*column.categories} - {OTHER, MISSING}
        there = _categories(frame[column.name]) if known else set[str]()
        if there and known.isdisjoint(there):
            raise UserError(
                "refit-no-known-category",
                f"column {column.name!r} of {given} has none of the categories of {before.place} "
                f"({_listed(sorted(known))}), but {_listed(sorted(there))}; correct it, or search "
                "again",
            )


def _new_categories(before: ReadBefore, frame: pd.DataFrame) -> Iterator[Said]:
    assert before.preparation is not None
    for column in before.preparation.columns:
        if column.kind == "category" and len(column.categories) < MOST_CATEGORIES:
            new = sorted(_categories(frame[column.name]) - {*column.categories, OTHER})
            if new:
                yield Said(f"has categories that {before.place} has not: {_listed(new)}",
                           column.name)  # fmt: skip


def _check_classes(before: ReadBefore, arrays: ArrayData, given: str) -> None:
    if not arrays.kind.classes:
        if arrays.n_outputs != before.n_outputs:
            raise UserError(
                "refit-other-targets",
                f"{given} has {arrays.n_outputs} targets, but {before.place} has "
                f"{before.n_outputs}; give the same targets",
            )
        return
    was = [str(one) for one in before.classes or range(before.n_outputs)]
    now = [str(one) for one in arrays.meaning.classes or range(arrays.n_outputs)]
    if new := [one for one in now if one not in was]:
        raise UserError(
            "refit-new-class",
            f"{given} has classes that {before.place} does not know: {_listed(new)} (it knows "
            f"{_listed(was)}); leave their rows out, or search again",
        )
    if lost := [one for one in was if one not in now]:
        raise UserError(
            "refit-class-missing",
            f"{given} has no row of the class {_listed(lost)}, which {before.place} knows; give "
            "rows of all classes, the earlier ones among them, or search again",
        )


def _other_shape(before: ReadBefore, shape: tuple[int, ...], given: str) -> UserError:
    was = before.shape if before.preparation is None else (len(before.preparation.names),)
    return UserError(
        "refit-other-shape",
        f"an example of {given} has the shape {list(shape)}, but one of {before.place} "
        f"{list(was)}; give examples of the same shape",
    )


def _listed(names: list[str]) -> str:
    return ", ".join(map(shortened, names[:_LISTED])) + ", ..." * (len(names) > _LISTED)
