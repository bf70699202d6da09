"""Your data as the user gave them, and as a study keeps them.

A table, images, and arrays in memory are stored once in `data/` of the study folder, so that
`resume`, `export` and another machine find the same rows; .npz files and folders of .npy files
stay where they are. `content` in [dataset] is the SHA-256 of what was given: data that change
under a study are refused.
"""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nas_evidence.data.array_files import KEYS, read_arrays, rows_of_arrays
from nas_evidence.data.arrays import ArrayData, RawArrays
from nas_evidence.data.assembly import assembled, raw_of
from nas_evidence.data.cells import how_read, with_numbers_read
from nas_evidence.data.digest import ChangedDataError, content_of, fingerprint
from nas_evidence.data.image_reading import STORED, ImageReading, reading_in
from nas_evidence.data.images import are_of_pil, images_in_memory, read_images
from nas_evidence.data.mapped import Array
from nas_evidence.data.named import NAMED
from nas_evidence.data.reading import (
    as_array,
    check_aligned,
    check_words,
    kind_of,
    named,
    plain,
    read_frame,
    rows_of_table,
    texts_as_frame,
)
from nas_evidence.data.said import Said
from nas_evidence.data.table_columns import TEXT
from nas_evidence.data.targets import check_unordered, numbers_of, typed_targets
from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.foreign_text import shell_word
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.dataset import OWN_DATA, DatasetSpec
from nas_evidence.spec.likelihoods import TARGET_KINDS

#: Folder of a study that holds its data.
KEPT = "data"
#: The argument of `search` that holds data in memory; messages call them so.
GIVEN = "data"
#: What some of their types are called; others by the names of the types.
_CALLED = {"ndarray": "array", "Tensor": "tensor"}
_CLASSES = [task for task, kind in TARGET_KINDS.items() if kind.classes]
#: Options that may be arrays with a value for each row, and how they are then stored.
_OF_ROWS = {"groups": "groups", "time_column": "times", "weights": "weights"}


def is_kept(spec: DatasetSpec) -> bool:
    """Return whether a study keeps the data in its own folder, with a hash of them."""
    return spec.content is not None and Path(spec.path or "").parts[:1] == (KEPT,)


@dataclass(frozen=True)
class StoredRows:
    """The user's own data as a study keeps them, before anything is decided about them.

    frame, test     a table, and one of test rows if there is one
    arrays, images  arrays by name, and how files of images became these
    where           their place, for messages; that of arrays which stay on disk
    """

    frame: pd.DataFrame | None = None
    test: pd.DataFrame | None = None
    arrays: Mapping[str, Array] = field(default_factory=dict)
    images: ImageReading | None = None
    where: str = ""

    def raw(self, spec: DatasetSpec, *, seed: int) -> RawArrays:
        """Return all rows as arrays, divided as `spec` asks.

        Raises:
            ValueError: if `spec` does not fit the data, or these cannot be used.
        """
        if self.frame is not None:
            rows = rows_of_table(self.frame, self.test, spec, self.where)
        else:
            rows = rows_of_arrays(self.arrays, spec, Path(self.where), self.images)
        return raw_of(rows, spec, seed=seed)


@dataclass(frozen=True)
class Source:
    """The data of a study: read once, and everything else follows from what was read.

    The preview, the proposed study, the hash of the content, the stored copy and the trials of
    this process are of the same value.

    spec    as the study stores it; `path` is below the study folder unless the data stay in place
    files   what to write below the study folder, by name; nothing if the data stay in place
    given   the name under which the user gave the data, for messages
    raw     returns all rows as arrays, called as `raw(spec, seed=)`
    called  what data in memory are, "a DataFrame"; "" of a file
    """

    spec: DatasetSpec
    files: Mapping[str, bytes]
    given: str
    raw: Callable[..., RawArrays] = field(compare=False, repr=False)
    called: str = ""
    _taken: dict[int, ArrayData] = field(default_factory=dict, compare=False, repr=False)

    @property
    def name(self) -> str:
        """Return what the data are called: the name of their file, or what they are."""
        return self.called or Path(self.given).name

    def arrays(self, *, seed: int) -> ArrayData:
        """Return the data set for a seed of the study, prepared when it is first asked for.

        Raises:
            ValueError: as `nas_evidence.data.load`.
        """
        if seed not in self._taken:
            self._taken.clear()  # of another seed: one copy in memory
            self._taken[seed] = assembled(self.raw(self.spec, seed=seed), self.spec, seed=seed)
        return self._taken[seed]

    def with_spec(self, spec: DatasetSpec) -> "Source":
        """Return the same data for another data set: other columns, another task or split.

        The arrays stay if it only says which task the data have.
        """
        kept = {key: getattr(self.spec, key) for key in ("name", "path", "content")}
        asked = spec.model_copy(update=kept)
        taken = {
            seed: arrays
            if asked.task is None
            else replace(arrays, meaning=arrays.meaning.settled())
            for seed, arrays in self._taken.items()
            if asked == self.spec.model_copy(update={"task": asked.task})
            and asked.task in (self.spec.task, arrays.kind.task)
        }
        return replace(self, spec=asked, _taken=taken)

    def taken(self, *, seed: int) -> "Source":
        """Return the arrays of a seed alone: data that can be pickled, and are not read again."""
        return replace(self, files={}, raw=_taken_alone, _taken={seed: self.arrays(seed=seed)})

    def spoilt(self, folder: Path) -> list[str]:
        """Return the files of a study's copy of these data that a damaged disk left otherwise."""
        there = [name for name in self.files if (folder / name).is_file()]
        try:
            if there:
                stored_rows(self.spec, base=folder.resolve())
        except ChangedDataError:
            return there
        return []

    def write(self, folder: Path) -> None:
        """Write the data below the study folder, unless they are there."""
        for name, content in self.files.items():
            if not (folder / name).is_file():
                (folder / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_whole(folder / name, content, private=True)

    def check_unchanged(self, stored: DatasetSpec, folder: Path, began: str = "") -> None:
        """Check that a study in `folder` was begun with the same data.

        Args:
            stored: the data set of that study.
            folder: of the study.
            began: the data with which it began, in words; "" if that is not known.

        Raises:
            ValueError: if not; names the data and the remedy.
        """
        if stored.content in (None, self.spec.content):
            return
        what, known = "other data", f" ({began})" if began else ""
        if (stored.test_path is None) != (self.spec.test_path is None):
            how = "without" if stored.test_path is None else "with"
            what = f"data {how} a table of test rows"
        again = f"`nas-evidence refit {shell_word(folder)} {shell_word(self.given)}`"
        if self.given == GIVEN:
            again = f"nas_evidence.refit({str(folder)!r}, data)"
        raise UserError(
            "given-data-changed",
            f"{folder} belongs to {what}{known}; give another study folder as `out`, "
            f"or train its best architecture on these: {again}",
        )


def _taken_alone(spec: DatasetSpec, *, seed: int) -> RawArrays:
    raise LookupError(f"only the arrays of another seed than {seed} were taken of {spec.name}")


# --- where data are found


def source_of(
    spec: DatasetSpec, *, base: Path | None = None, data_root: str | None = None
) -> Source | None:
    """Read the data that a study file names; None for a named data set.

    Args:
        spec: the data set of the study file.
        base: folder of the study file.
        data_root: folder that paths are relative to instead.

    Raises:
        ValueError: if files are missing or cannot be read.
    """
    if spec.name not in OWN_DATA:
        return None
    path, spec = _located(spec, base, data_root), spec.model_copy(update={"content": None})
    if spec.name != "npz":
        rows = _rows(spec, path, base, data_root)
        if rows.frame is not None:
            return table_source(rows.frame, rows.test, spec, given=path.name)
        return array_source(rows.arrays, spec, given=path.resolve().name, images=rows.images)
    path = path.resolve()
    update = {"path": str(path), "content": fingerprint(path, _names(spec))}

    def raw(spec: DatasetSpec, *, seed: int) -> RawArrays:  # hashed just now
        return _rows(spec, path, base, data_root).raw(spec, seed=seed)

    return Source(spec.model_copy(update=update), {}, str(path), raw)


def stored_source(
    spec: DatasetSpec,
    *,
    base: Path | None = None,
    data_root: str | Path | None = None,
    download: bool = False,
) -> Source:
    """Return a named data set, or data that a study keeps; read when they are first asked for.

    Args:
        spec: the data set of the study.
        base: folder of the study.
        data_root: folder of the named data sets.
        download: whether missing files may be downloaded into `data_root`.
    """

    def raw(spec: DatasetSpec, *, seed: int) -> RawArrays:
        if spec.name in OWN_DATA:
            return stored_rows(spec, base=base, data_root=data_root).raw(spec, seed=seed)
        return NAMED[spec.name](spec, seed=seed, data_root=data_root, download=download)

    return Source(spec, {}, spec.path or spec.name, raw)


def stored_rows(
    spec: DatasetSpec, *, base: Path | None, data_root: str | Path | None = None
) -> StoredRows:
    """Read the user's own data that a study in `base` keeps, or that lie where it names them.

    Args:
        spec: the data set of the study.
        base: folder of the study, or of the study file.
        data_root: folder that paths are relative to instead.

    Raises:
        ValueError: if they are missing, cannot be read, or are others than at its beginning.
    """
    path = _located(spec, base, data_root)
    try:
        rows = _rows(spec, path, base, data_root)
        if spec.content is not None:
            frames = [one for one in (rows.frame, rows.test) if one is not None]
            found = content_of(frames) if frames else fingerprint(path, _names(spec))
            if found != spec.content:
                raise ChangedDataError(
                    "data-changed",
                    f"{path} is not the data that this study began with (its SHA-256 differs from "
                    "`content` in study.toml; early versions of 0.1.0 hashed only parts of files "
                    "above 1 GB)",
                    remedy="restore it, or start another study with another `out`",
                )
        return rows
    except UserError as error:
        if not is_kept(spec):
            raise
        folder = "its folder" if base is None else shell_word(base)
        raise ChangedDataError(
            "kept-data-lost",
            f"{error.what}; it is the study's own copy of its data: "
            "a search with the same data and settings and "
            f"out={folder} writes it again",
        ) from None


def _rows(
    spec: DatasetSpec, path: Path, base: Path | None, data_root: str | Path | None
) -> StoredRows:
    """Read the user's own data at a path; arrays of a folder that no study keeps stay on disk."""
    if spec.name == "images":
        read = read_images(path, spec.image_size)
        return StoredRows(arrays=read.arrays, images=read.reading, where=str(path))
    if spec.name == "npz":
        also, mapped = spec.columns_of_rows, not is_kept(spec)
        arrays = read_arrays(path, also, mapped=mapped, needed=KEYS[:2])
        return StoredRows(arrays=arrays, images=reading_in(path), where=str(path))
    stored = spec.content is not None
    kept, target = _codes_of(spec.model_dump())
    frame = read_frame(path, stored=stored, kept=kept, target=target)
    test = None
    if spec.test_path is not None:
        test = _test_rows(_place(spec.test_path, base, data_root), frame, spec.target, stored)
    check_words(frame, path, spec.target)
    return StoredRows(frame, test, where=path.name)


def _test_rows(
    path: Path, frame: pd.DataFrame, target: str | None, stored: bool = False
) -> pd.DataFrame:
    test = read_frame(path, how_read(frame)[1], stored=stored)
    check_words(test, path, target)
    return test


def _place(given: str, base: Path | None, data_root: str | Path | None) -> Path:
    """Return where a path is: below `data_root` if given; else beside the study file, or here.

    It is relative to the current folder if it is there alone.
    """
    path = Path(given).expanduser()
    if data_root is not None:
        return Path(data_root).expanduser() / path
    beside = (base or Path()) / path
    return beside if beside.exists() or not path.exists() else path


def _located(spec: DatasetSpec, base: Path | None, data_root: str | Path | None) -> Path:
    assert spec.path is not None  # DatasetSpec checks it
    path = _place(spec.path, base, data_root)
    if path.exists() and (kind := kind_of(path)) not in (None, spec.name):
        raise UserError(
            "data-of-another-kind",
            f'{path} holds data of the kind "{kind}", but [dataset] has name = "{spec.name}"; set '
            f'name = "{kind}"',
        )
    return path


def _codes_of(keys: Mapping[str, Any]) -> tuple[set[str], str | None]:
    """Return the columns whose codes stay text, and the target if it may have classes.

    Args:
        keys: options of [dataset].
    """
    target, task = keys.get("target"), keys.get("task")
    named = [*(keys.get("categorical") or ()), keys.get("groups")]
    named += [target] if task in _CLASSES else []
    return {name for name in named if name}, target if task is None else None


def _names(spec: DatasetSpec) -> tuple[str, ...]:
    """Return the files of a folder in the order of its fingerprint."""
    return tuple(f"{name}.npy" for name in (*KEYS, *spec.columns_of_rows))


# --- a table, or arrays, as a source


def table_source(
    frame: pd.DataFrame, test: pd.DataFrame | None, spec: DatasetSpec, *, given: str
) -> Source:
    """Return a table in memory as the source of a study."""
    if spec.target in frame.columns:
        check_unordered(frame[spec.target], spec.task, f"target {spec.target!r} in {given}")
    tables = {"train": frame, "test": test}
    files = {
        f"{KEPT}/{name}.parquet": one.to_parquet(index=False)
        for name, one in tables.items()
        if one is not None
    }
    # The rows as every later reader of the stored copy finds them.
    frames = [pd.read_parquet(io.BytesIO(file)) for file in files.values()]
    path, test_path = (*files, None)[:2]
    update = {"path": path, "test_path": test_path, "content": content_of(frames)}
    kept, kept_test = (*frames, None)[:2]
    rows = StoredRows(kept, kept_test, where=given)
    return Source(spec.model_copy(update=update), files, given, rows.raw)


def array_source(
    arrays: Mapping[str, Any],
    spec: DatasetSpec,
    *,
    given: str,
    images: ImageReading | None = None,
) -> Source:
    """Return arrays in memory, of files of images if these were read so, as a study's source."""
    files: dict[str, bytes] = {}
    kept: dict[str, Array] = {}
    for name, array in arrays.items():
        own = np.array(array, order="C")  # a copy: the user's own array may change
        kept[name] = _without_objects(own, name, given) if own.dtype == object else own
        buffer = io.BytesIO()
        np.save(buffer, kept[name], allow_pickle=False)
        files[f"{name}.npy"] = buffer.getvalue()
    content = fingerprint(files, _names(spec))
    update = {"name": "npz", "path": KEPT, "image_size": None, "content": content}
    if images is not None:
        files[STORED] = images.to_json().encode()
    files = {f"{KEPT}/{name}": content for name, content in files.items()}
    rows = StoredRows(arrays=kept, images=images, where=given)
    return Source(spec.model_copy(update=update), files, given, rows.raw)


def _without_objects(array: Array, name: str, given: str) -> Array:
    """Return an array of Python objects as numbers if all are, targets also as text."""
    found = typed_targets(array, f"{name} of {given}")
    if found.dtype.kind in "biufM":
        return found
    if name.startswith("y"):
        numbers, known = numbers_of(found), ~pd.isna(found)
        if (numbers[known] == found[known]).all():  # not of integers that float64 merges
            return numbers
        return np.where(known, found.astype(str), "")
    raise UserError(
        "array-of-objects",
        f"{name} of {given} is an array of Python objects; give numbers, for example with "
        ".astype('float32'), or a DataFrame for a table with text",
    )


# --- data in memory


def called(data: Any) -> str:
    """Return what data in memory are, for those who read about them.

    >>> called(np.zeros(3)), called(pd.DataFrame())
    ('an array', 'a DataFrame')
    """
    kind = type(data).__name__.strip("_")
    kind = _CALLED.get(kind, kind)
    return f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"


def source_in_memory(data: Any, y: Any, keys: Mapping[str, Any]) -> Source:
    """Return data in memory as the source of a study.

    Args:
        data: a DataFrame or what converts to one, array, tensor, or torch Dataset of pairs.
        y: labels or targets, unless `data` hold them.
        keys: options of [dataset] that are given; groups, times and weights may be
            arrays [n].

    Raises:
        ValueError: if data and targets do not fit together.
    """
    return replace(_in_memory(data, y, keys), called=called(data))


def _in_memory(data: Any, y: Any, keys: Mapping[str, Any]) -> Source:
    values = {key: keys[key] for key in _OF_ROWS if not isinstance(keys.get(key, ""), str)}
    check_aligned(data, {"y": y, **values})
    of_rows = {key: as_array(plain(one)) for key, one in values.items()}
    keys = {**keys, **{key: _OF_ROWS[key] for key in of_rows}}
    data, y, images = plain(data), plain(y), None
    check_unordered(y, keys.get("task"), "y")
    if isinstance(getattr(y, "dtype", None), pd.CategoricalDtype):
        keys = {"task": "classification", **keys}
    if y is None and not isinstance(data, pd.DataFrame):
        data, y = pairs_of(data)
    if (y is None) == ("target" not in keys):
        raise UserError(
            "target-or-y", "name the column to predict with target=..., or give y, and not both"
        )
    if are_of_pil(data):
        found = images_in_memory(data, keys.pop("image_size", None))
        data, images = found.arrays["x_train"], found.reading
    if isinstance(data, pd.DataFrame):
        return _of_table(data, y, keys, of_rows)
    x = _listed(data, "data")
    if x.dtype.kind in "OUS":
        return _of_table(texts_as_frame(x), y, keys, of_rows)
    spec = DatasetSpec.model_validate({"name": "npz", "path": KEPT, **keys})
    arrays = {
        "x_train": x,
        "y_train": _listed(y, "y", len(x)),
        **{_OF_ROWS[key]: of_rows[key] for key in of_rows},
    }
    return array_source(arrays, spec, given=GIVEN, images=images)


def _listed(values: Any, name: str, n: int | None = None, most_axes: int = 2) -> Array:
    """Return values in memory as an array; as one with a value for each of n rows."""
    found = as_array(values)
    if not found.ndim or (n is not None and (len(found) != n or found.ndim > most_axes)):
        each = "" if n is None else f" with one value for each of the {n} rows"
        own = f"has the shape {list(found.shape)}"
        if not found.ndim:
            own = f"is a {type(values).__name__}; list(...) makes a list of values without order"
        raise UserError(
            "one-value-per-row", f"{name} must be a list, an array or a Series{each}, but {own}"
        )
    return found


def _of_table(
    frame: pd.DataFrame, y: Any, keys: dict[str, Any], of_rows: Mapping[str, Array]
) -> Source:
    frame = named(frame, GIVEN)
    levels = ", ".join(repr(str(name)) for name in frame.index.names if name is not None)
    said = Said(f"the index of the rows ({levels}) is left out", remedy="reset_index() to use it")
    frame = frame.copy(deep=False)  # its columns are renamed
    if keys.get("target") in frame.columns:
        target = keys["target"]
        check_unordered(frame[target], keys.get("task"), f"target {target!r} in {GIVEN}")
    for option, values in of_rows.items():
        values = _listed(values, option, len(frame), most_axes=1)
        if keys[option] in frame.columns:
            keys[option] = f"{keys[option]} (given)"
        frame[keys[option]] = values
    if y is not None:
        name = str(getattr(y, "name", None) or "target")
        columns = np.atleast_2d(_listed(y, "y", len(frame)).T)
        names = [f"{name}{i}" for i in range(len(columns))] if len(columns) > 1 else [name]
        names = [f"{n} (y)" if n in frame.columns else n for n in names]
        frame = frame.reset_index(drop=True).assign(**dict(zip(names, columns, strict=True)))
        keys["target"] = ",".join(names)
    kept, target = _codes_of(keys)
    as_they_are = y is not None and keys.get("task") in _CLASSES
    frame = with_numbers_read(
        frame,
        written={keys["target"]: TEXT} if as_they_are else None,
        said=[said] if levels else [],
        kept={*kept, target or ""},
    )
    test = None
    if "test_path" in keys:
        test = _test_rows(Path(keys["test_path"]), frame, keys["target"])
    spec = DatasetSpec.model_validate({"name": "table", "path": f"{KEPT}/train.parquet", **keys})
    return table_source(frame, test, spec, given=GIVEN)


def pairs_of(dataset: Any) -> tuple[Any, Array]:
    """Return the inputs, an array or a list of images of PIL, and targets of a Dataset of pairs.

    Raises:
        ValueError: if it is none.
    """
    indexed = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    first = dataset[0] if indexed and not isinstance(dataset, Mapping) and len(dataset) else ()
    if not isinstance(first, tuple | list) or len(first) != 2:
        raise UserError(
            "data-type",
            "data must be a DataFrame, an array or tensor with y, or a Dataset of pairs (x, y), "
            f"but got {type(dataset).__name__}",
        )
    items = [dataset[i] for i in range(len(dataset))]
    x, y = [x for x, _ in items], np.stack([as_array(y) for _, y in items])
    return x if are_of_pil(x) else np.stack([as_array(one) for one in x]), y
