"""Data of one's own as the user gave them, and as a study keeps them.

A table, images, and arrays in memory are stored once in `data/` of the study folder, so that
`resume`, `export` and another machine find the same rows; .npz files and folders of .npy files
stay where they are. `content` in [dataset] is the SHA-256 of what was given: data that change
under a study are refused.
"""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nas_evidence.data import ArrayData, assembled, images, located, npz, tables
from nas_evidence.data.content import content_of, fingerprint, fingerprint_of
from nas_evidence.data.mapped import Array
from nas_evidence.dataset_spec import OWN_DATA, DatasetSpec
from nas_evidence.files import write_whole

#: Folder of a study that holds its data.
KEPT = "data"


@dataclass(frozen=True)
class Source:
    """Data of one's own, read, and the data set of the study that keeps them.

    spec   as the study stores it; `path` is below the study folder unless the data stay in place
    files  what to write below the study folder, by name; nothing if the data stay in place
    given  the name under which the user gave the data, for messages
    """

    spec: DatasetSpec
    files: Mapping[str, bytes]
    given: str

    def preview(self, *, seed: int) -> ArrayData:
        """Return the data set before anything is written.

        Raises:
            ValueError: as `nas_evidence.data.load`.
        """
        if self.spec.name == "table":
            frames = [
                pd.read_parquet(io.BytesIO(self.files[name]))
                for name in (self.spec.path, self.spec.test_path)
                if name is not None
            ]
            frame, test = frames[0], frames[1] if len(frames) > 1 else None
            raw = tables.arrays_of(frame, test, self.spec, seed=seed, where=self.given)
            return assembled(raw, self.spec, seed=seed)
        if not self.files:
            raw = npz.read(self.spec, seed=seed)
            return assembled(raw, self.spec, seed=seed)
        stored = {Path(name): content for name, content in self.files.items()}
        arrays = {
            path.stem: np.load(io.BytesIO(content), allow_pickle=False)
            for path, content in stored.items()
            if path.suffix == ".npy"
        }
        names = json.loads(self.files.get(f"{KEPT}/{npz.CLASSES}", b"[]"))
        raw = npz.arrays_of(
            arrays, self.spec, seed=seed, path=Path(self.given), classes=tuple(names)
        )
        return assembled(raw, self.spec, seed=seed)

    def with_spec(self, spec: DatasetSpec) -> "Source":
        """Return the same data for another data set: other columns, another task or split."""
        kept = {"name": self.spec.name, "path": self.spec.path, "content": self.spec.content}
        return replace(self, spec=spec.model_copy(update=kept))

    def write(self, folder: Path) -> None:
        """Write the data below the study folder, unless they are there."""
        for name, content in self.files.items():
            if not (folder / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                write_whole(folder / name, content)

    def check_unchanged(self, stored: DatasetSpec, folder: Path) -> None:
        """Check that a study in `folder` was begun with the same data.

        Raises:
            ValueError: if not; names the data and the remedy.
        """
        if stored.content is not None and stored.content != self.spec.content:
            raise ValueError(
                f"{self.given} has changed since {folder} began; restore it, or give another "
                "study folder with --out"
            )


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
        test = None if spec.test_path is None else tables.read_frame(root / spec.test_path)
        frame = tables.read_frame(root / spec.path)
        return table_source(frame, test, spec, given=Path(spec.path).name)
    path = (root / Path(spec.path).expanduser()).resolve()
    if spec.name == "images":
        raw = images.read(spec.model_copy(update={"test_fraction": None}), seed=0,
                          data_root=data_root)  # fmt: skip
        arrays = {"x_train": raw.x_train, "y_train": raw.y_train}
        if len(raw.y_test):
            arrays |= {"x_test": raw.x_test, "y_test": raw.y_test}
        return array_source(arrays, spec, given=path.name, classes=raw.meaning.classes)
    update = {"path": str(path), "content": fingerprint(path, npz.FILES)}
    return Source(spec.model_copy(update=update), {}, str(path))


def table_source(
    frame: pd.DataFrame, test: pd.DataFrame | None, spec: DatasetSpec, *, given: str
) -> Source:
    """Return a table in memory as the source of a study."""
    if frame.columns.has_duplicates:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise ValueError(f"{given} must name each column once, but {twice!r} occurs twice")
    files = {f"{KEPT}/train.parquet": _parquet(frame)}
    if test is not None:
        files[f"{KEPT}/test.parquet"] = _parquet(test)
    content = content_of([pd.read_parquet(io.BytesIO(file)) for file in files.values()])
    names = [*files, None]
    update = {"path": names[0], "test_path": names[1], "content": content}
    return Source(spec.model_copy(update=update), files, given)


def array_source(
    arrays: Mapping[str, Any],
    spec: DatasetSpec,
    *,
    given: str,
    classes: tuple[str | int | bool, ...] = (),
) -> Source:
    """Return arrays in memory as the source of a study."""
    files: dict[str, bytes] = {}
    for name, array in arrays.items():
        array = np.ascontiguousarray(array)
        if array.dtype == object:
            array = _without_objects(array, name, given)
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        files[f"{name}.npy"] = buffer.getvalue()
    files[npz.CLASSES] = json.dumps(list(classes)).encode()
    update = {
        "name": "npz",
        "path": KEPT,
        "image_size": None,
        "task": "classification" if classes else spec.task,
        "content": fingerprint_of(files, npz.FILES),
    }
    kept = {f"{KEPT}/{name}": content for name, content in files.items()}
    return Source(spec.model_copy(update=update), kept, given)


def _without_objects(array: Array, name: str, given: str) -> Array:
    """Return an array of Python objects as text, or as numbers if all are."""
    if all(isinstance(v, int | float | np.number) for v in array.ravel()):
        return array.astype(np.float64)
    if name.startswith("y") and not pd.isna(array).any():
        return array.astype(str)
    raise ValueError(
        f"{name} of {given} is an array of Python objects; give numbers, for example with "
        ".astype('float32'), or a DataFrame for a table with text"
    )


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
