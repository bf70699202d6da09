"""Hashes of data: of what was given, to notice that it has changed; and of arrays as loaded."""

import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pandas as pd

from nas_evidence.data.arrays import ArrayData, slices
from nas_evidence.plumbing.user_error import UserError

#: A larger file is hashed by its size and `_PARTS` parts, evenly spaced, of `_PART_BYTES` each.
_WHOLE_BYTES, _PARTS, _PART_BYTES = 1 << 30, 64, 1 << 20


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
    digest = hashlib.sha256()
    if isinstance(place, Path):
        files = [place] if place.is_file() else [place / name for name in names]
        for file in filter(Path.is_file, files):
            with file.open("rb") as opened:
                digest.update(_one(opened, file.stat().st_size))
    else:
        for content in (place[name] for name in names if name in place):
            digest.update(_one(io.BytesIO(content), len(content)))
    return digest.hexdigest()


def check_content(found: str, expected: str | None, what: str) -> None:
    """Check that data are those that a study was begun with.

    Raises:
        ValueError: if not; names the data and the remedy.
    """
    if expected is not None and found != expected:
        raise ChangedDataError(
            "data-changed",
            f"{what} is not the data that this study began with (its SHA-256 differs from "
            "`content` in study.toml)",
            remedy="restore it, or start another study with another `out`",
        )


def _one(file: BinaryIO, size: int) -> bytes:
    digest, last = hashlib.sha256(str(size).encode()), size - _PART_BYTES
    places = range(0, size, _PART_BYTES)
    for at in (
        places if size <= _WHOLE_BYTES else (i * last // (_PARTS - 1) for i in range(_PARTS))
    ):
        file.seek(at)
        digest.update(file.read(_PART_BYTES))
    return digest.digest()


def data_digest(arrays: ArrayData) -> str:
    """Return 16 hexadecimal digits of a hash of all values, types and shapes of a data set.

    Equal arrays give equal hashes on every machine. Inputs are read slice by slice, so that files
    larger than memory can be hashed.
    """
    digest = hashlib.blake2b(digest_size=8)
    digest.update(f"{arrays.task} {arrays.n_outputs}".encode())
    for x in (arrays.x_train, arrays.x_test):
        digest.update(f"{x.dtype} {x.shape}".encode())
        for part in slices(x):
            digest.update(np.ascontiguousarray(part).data)
    for y in (arrays.y_train, arrays.y_test):
        digest.update(f"{y.dtype} {y.shape}".encode() + np.ascontiguousarray(y).data)
    if arrays.units is not None:
        digest.update(f"in time: {arrays.units.in_time}".encode() + arrays.units.of.tobytes())
    return digest.hexdigest()
