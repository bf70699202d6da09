"""Hashes of data: of what was given, to notice that it has changed; and of arrays as loaded."""

import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from nas_evidence.data.arrays import ArrayData, slices
from nas_evidence.plumbing.user_error import UserError


class ChangedDataError(UserError):
    """The data at the place of a study's data are others."""


def content_of(frames: Iterable[pd.DataFrame]) -> str:
    """Return the SHA-256 of tables: names and values, however they are stored."""
    digest = hashlib.sha256()
    for frame in frames:
        digest.update(json.dumps([len(frame), *map(str, frame.columns)]).encode())
        digest.update(pd.util.hash_pandas_object(frame, index=False).to_numpy().tobytes())
    return digest.hexdigest()


def fingerprint(place: Path | Mapping[str, bytes], names: Sequence[str]) -> str:
    """Return the SHA-256 of a file; of a folder, or of files by name, those of `names` in it."""
    files: list[io.BufferedIOBase]
    if isinstance(place, Path):
        paths = [place] if place.is_file() else [place / name for name in names]
        files = [path.open("rb") for path in paths if path.is_file()]
    else:
        files = [io.BytesIO(place[name]) for name in names if name in place]
    digest = hashlib.sha256()
    for file in files:
        with file:
            size = str(file.seek(0, io.SEEK_END)).encode()
            file.seek(0)
            digest.update(hashlib.file_digest(file, partial(hashlib.sha256, size)).digest())
    return digest.hexdigest()


def data_digest(arrays: ArrayData) -> str:
    """Return 16 hexadecimal digits of a hash of all values, types and shapes of a data set.

    Equal arrays give equal hashes on every machine. Inputs are read slice by slice, so that files
    larger than memory can be hashed.
    """
    digest = hashlib.blake2b(digest_size=8)
    digest.update(f"{arrays.task} {arrays.n_outputs}".encode())
    for values in (arrays.x_train, arrays.x_test, arrays.y_train, arrays.y_test):
        digest.update(f"{values.dtype} {values.shape}".encode())
        for part in slices(values):
            digest.update(np.ascontiguousarray(part).data)
    if arrays.units is not None:
        digest.update(f"in time: {arrays.units.in_time}".encode() + arrays.units.of.tobytes())
    return digest.hexdigest()
