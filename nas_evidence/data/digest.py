"""A hash of a data set as it was loaded: equal arrays give equal hashes, on every machine."""

import hashlib

import numpy as np

from nas_evidence.data.arrays import ArrayData, Inputs, slices
from nas_evidence.data.mapped import Array


def data_digest(arrays: ArrayData) -> str:
    """Return 16 hexadecimal digits of a hash of all values, types and shapes of a data set.

    Inputs are read slice by slice, so that files larger than memory can be hashed.
    """
    digest = hashlib.blake2b(digest_size=8)
    digest.update(f"{arrays.task} {arrays.n_outputs}".encode())
    for x in (arrays.x_train, arrays.x_test):
        _add(digest, x)
    for y in (arrays.y_train, arrays.y_test):
        digest.update(_head(y) + np.ascontiguousarray(y).data)
    if arrays.units is not None:
        digest.update(f"in time: {arrays.units.in_time}".encode() + arrays.units.of.tobytes())
    return digest.hexdigest()


def _add(digest: "hashlib.blake2b", x: Inputs) -> None:
    digest.update(f"{x.dtype} {x.shape}".encode())
    for part in slices(x):
        digest.update(np.ascontiguousarray(part).data)


def _head(y: Array) -> bytes:
    return f"{y.dtype} {y.shape}".encode()
