"""Your data as the user gave them, and as a study keeps them.

A table, images, and arrays in memory are stored once in `data/` of the study folder, so that
`resume`, `export` and another machine find the same rows; .npz files and folders of .npy files
stay where they are. `content` in [dataset] is the SHA-256 of what was given: data that change
under a study are refused.
"""

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nas_evidence.data import ArrayData, assembled, images, located, npz, read
from nas_evidence.data import table_file as tables
from nas_evidence.data.arrays import RawArrays
from nas_evidence.data.content import content_of, fingerprint, fingerprint_of
from nas_evidence.data.mapped import Array
from nas_evidence.data.targets import check_unordered
from nas_evidence.data.written_numbers import how_read
from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.dataset import OWN_DATA, DatasetSpec

#: Folder of a study that holds its data.
KEPT = "data"


def is_kept(spec: DatasetSpec) -> bool:
    """Return whether a study keeps the data in its own folder, with a hash of them."""
    return spec.content is not None and Path(spec.path or "").parts[:1] == (KEPT,)


@dataclass(frozen=True)
class Source:
    """The data of a study: read once, and everything else follows from what was read.

        file -> frame -> targets -> split -> preparation -> arrays

    The preview, the proposed study, the hash of the content, the stored copy and the trials of
    this process are of the same value.

    spec   as the study stores it; `path` is below the study folder unless the data stay in place
    files  what to write below the study folder, by name; nothing if the data stay in place
    given  the name under which the user gave the data, for messages
    raw    returns all rows as arrays, called as `raw(spec, seed=)`
    """

    spec: DatasetSpec
    files: Mapping[str, bytes]
    given: str
    raw: Callable[..., RawArrays] = field(compare=False, repr=False)
    _taken: dict[int, ArrayData] = field(default_factory=dict, compare=False, repr=False)

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
        kept = {"name": self.spec.name, "path": self.spec.path, "content": self.spec.content}
        asked = spec.model_copy(update=kept)
        taken: dict[int, ArrayData] = {}
        if asked == self.spec:
            taken = self._taken
        elif asked == self.spec.model_copy(update={"task": asked.task}):
            taken = {
                seed: replace(arrays, meaning=arrays.meaning.settled())
                for seed, arrays in self._taken.items()
                if arrays.task_name == asked.task
            }
        return replace(self, spec=asked, _taken=taken)

    def write(self, folder: Path) -> None:
        """Write the data below the study folder, unless they are there."""
        for name, content in self.files.items():
            if not (folder / name).is_file():
                (folder / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_whole(folder / name, content, private=True)

    def check_unchanged(self, stored: DatasetSpec, folder: Path) -> None:
        """Check that a study in `folder` was begun with the same data.

        Raises:
            ValueError: if not; names the data and the remedy.
        """
        if (stored.test_path is None) != (self.spec.test_path is None):
            began = "without" if stored.test_path is None else "with"
            raise UserError(
                f"{folder} began {began} a table of test rows; give the same --test as then, or "
                "another study folder with --out"
            ).with_code("test-table-differs")
        if stored.content is not None and stored.content != self.spec.content:
            raise UserError(
                f"{self.given} has changed since {folder} began; restore it, or give another "
                "study folder with --out"
            ).with_code("given-data-changed")


def source_of(
    spec: DatasetSpec, *, base: Path | None = None, data_root: str | None = None
) -> Source | None:
    """Read the data that a study file names; None for a named data set, or data kept already.

    Args:
        spec: the data set of the study file.
        base: folder of the study file.
        data_root: folder that paths are relative to instead.

    Raises:
        ValueError: if files are missing or cannot be read.
    """
    if spec.name not in OWN_DATA:
        return None
    spec = located(spec, base, data_root)
    assert spec.path is not None
    root = Path(data_root or ".").expanduser()
    if spec.name == "table":
        frame = tables.read_frame(root / spec.path)
        test = None
        if spec.test_path is not None:
            test = tables.read_frame(root / spec.test_path, how_read(frame)[1])
        return table_source(frame, test, spec, given=Path(spec.path).name)
    path = (root / Path(spec.path).expanduser()).resolve()
    if spec.name == "images":
        raw = images.read(spec.model_copy(update={"test_fraction": None}), seed=0,
                          data_root=data_root)  # fmt: skip
        arrays = {"x_train": raw.x_train, "y_train": raw.y_train}
        if len(raw.y_test):
            arrays |= {"x_test": raw.x_test, "y_test": raw.y_test}
        return array_source(arrays, spec, given=path.name, classes=raw.meaning.classes)
    update = {"path": str(path), "content": fingerprint(path, npz.files_of(spec))}
    return Source(spec.model_copy(update=update), {}, str(path), _in_place)


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
    root = None if data_root is None else str(data_root)
    raw = partial(read, data_root=root, download=download, base=base)
    return Source(spec, {}, spec.path or spec.name, raw)


def _in_place(spec: DatasetSpec, *, seed: int) -> RawArrays:
    """Read a file whose content was hashed just now."""
    return npz.read(spec.model_copy(update={"content": None}), seed=seed)


def table_source(
    frame: pd.DataFrame, test: pd.DataFrame | None, spec: DatasetSpec, *, given: str
) -> Source:
    """Return a table in memory as the source of a study."""
    if frame.columns.has_duplicates:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise UserError(
            f"{given} must name each column once, but {twice!r} occurs twice"
        ).with_code("column-twice-given")
    if spec.target in frame.columns:
        check_unordered(frame[spec.target], spec.task, f"target {spec.target!r} in {given}")
    files = {f"{KEPT}/train.parquet": _parquet(frame)}
    if test is not None:
        files[f"{KEPT}/test.parquet"] = _parquet(test)
    # The rows as every later reader of the stored copy finds them.
    frames = [pd.read_parquet(io.BytesIO(file)) for file in files.values()]
    names = [*files, None]
    update = {"path": names[0], "test_path": names[1], "content": content_of(frames)}
    kept, kept_test = (*frames, None)[:2]

    def raw(spec: DatasetSpec, *, seed: int) -> RawArrays:
        return tables.arrays_of(kept, kept_test, spec, seed=seed, where=given)

    return Source(spec.model_copy(update=update), files, given, raw)


def array_source(
    arrays: Mapping[str, Any],
    spec: DatasetSpec,
    *,
    given: str,
    classes: tuple[str | int | bool, ...] = (),
) -> Source:
    """Return arrays in memory as the source of a study."""
    files: dict[str, bytes] = {}
    plain: dict[str, Array] = {}
    for name, array in arrays.items():
        plain[name] = np.array(array, order="C")  # a copy: the user's own array may change
        if plain[name].dtype == object:
            plain[name] = _without_objects(plain[name], name, given)
        buffer = io.BytesIO()
        np.save(buffer, plain[name], allow_pickle=False)
        files[f"{name}.npy"] = buffer.getvalue()
    files[npz.CLASSES] = json.dumps(list(classes)).encode()
    update = {
        "name": "npz",
        "path": KEPT,
        "image_size": None,
        "task": "classification" if classes else spec.task,
        "content": fingerprint_of(files, npz.files_of(spec)),
    }
    kept = {f"{KEPT}/{name}": content for name, content in files.items()}

    def raw(spec: DatasetSpec, *, seed: int) -> RawArrays:
        return npz.arrays_of(plain, spec, seed=seed, path=Path(given), classes=classes)

    return Source(spec.model_copy(update=update), kept, given, raw)


def _without_objects(array: Array, name: str, given: str) -> Array:
    """Return an array of Python objects as text, or as numbers if all are."""
    if all(isinstance(v, int | float | np.number) for v in array.ravel()):
        return array.astype(np.float64)
    if name.startswith("y") and not pd.isna(array).any():
        return array.astype(str)
    raise UserError(
        f"{name} of {given} is an array of Python objects; give numbers, for example with "
        ".astype('float32'), or a DataFrame for a table with text"
    ).with_code("array-of-objects")


def _parquet(frame: pd.DataFrame) -> bytes:
    """Return a table as Parquet; columns of mixed types become text."""
    plain = frame.reset_index(drop=True)
    plain.columns = plain.columns.map(str)
    for name in plain.columns:
        values = plain[name]
        if isinstance(values.dtype, pd.CategoricalDtype):
            values = values.astype(values.cat.categories.dtype)
        if values.dtype == object:
            kinds = {type(v) for v in values.dropna()}
            if len(kinds) > 1 or not kinds <= {str, bool}:
                values = values.map(str, na_action="ignore")
        plain[name] = values
    buffer = io.BytesIO()
    plain.to_parquet(buffer, index=False)
    return buffer.getvalue()
