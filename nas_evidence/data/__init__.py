"""Data sets as numpy arrays: reading, subsampling, and the scaling of the training set.

Only `tensors` needs torch. There are no worker processes: data sets fit in memory, or are files
whose rows are read as needed (`mapped`).
"""

from collections.abc import Callable

import numpy as np

from nas_evidence.data import diabetes, digits, npz, vision
from nas_evidence.data.arrays import (
    Array,
    ArrayData,
    Inputs,
    RawArrays,
    Task,
    moments,
    random_rows,
    stratified_rows,
)
from nas_evidence.data.mapped import MappedRows
from nas_evidence.spec import DatasetSpec, derive_seed

__all__ = ["DATASETS", "ArrayData", "load"]

#: Name -> reader, called as `read(spec, seed=, data_root=, download=)`.
DATASETS: dict[str, Callable[..., RawArrays]] = {
    "digits": digits.read,
    "diabetes": diabetes.read,
    "mnist": vision.read_mnist_like,
    "fashion_mnist": vision.read_mnist_like,
    "cifar10": vision.read_cifar,
    "cifar100": vision.read_cifar,
    "npz": npz.read,
}


def load(
    spec: DatasetSpec, *, seed: int, data_root: str | None = None, download: bool = False
) -> ArrayData:
    """Return the data set, the same in every process for the same `spec` and `seed`.

    Args:
        spec: Which data, and how much of it.
        seed: Seed of the study; decides the rows of `test_size`, `max_train` and `max_test`.
        data_root: Folder of the named data sets, in torchvision's layout.
        download: Whether missing files may be downloaded into `data_root`.

    Raises:
        ValueError: If files are missing or damaged, or there are fewer examples than requested.
    """
    raw = DATASETS[spec.name](spec, seed=seed, data_root=data_root, download=download)
    x_train, y_train = _subset(raw.x_train, raw.y_train, spec, "train", seed)
    x_test, y_test = _subset(raw.x_test, raw.y_test, spec, "test", seed)
    mean, std = moments(x_train)
    if np.issubdtype(y_train.dtype, np.floating):
        task: Task = "real"
        n_outputs = y_train.shape[1]
        y_mean = y_train.mean(0)
        y_std = np.where(y_train.min(0) == y_train.max(0), 1.0, y_train.std(0))
    else:
        task = "labels"
        n_outputs = int(raw.y_train.max()) + 1
        y_mean, y_std = np.zeros(n_outputs), np.ones(n_outputs)
    return ArrayData(
        spec.name,
        x_train,
        y_train,
        x_test,
        y_test,
        task=task,
        n_outputs=n_outputs,
        input_shape=x_train.shape[1:],
        mean=mean,
        std=std,
        y_mean=y_mean,
        y_std=y_std,
    )


def _subset(x: Inputs, y: Array, spec: DatasetSpec, part: str, seed: int) -> tuple[Inputs, Array]:
    """Return at most `max_<part>` examples; each part has its own random stream."""
    wanted = spec.max_train if part == "train" else spec.max_test
    if wanted is None:
        return x, y
    if wanted > len(y):
        raise ValueError(
            f"`max_{part} <= {len(y)}` must hold for data set '{spec.name}', which has {len(y)} "
            f"{part} examples, but got {wanted}; lower max_{part} in [dataset]"
        )
    generator = np.random.default_rng(derive_seed(seed, "split", part))
    if np.issubdtype(y.dtype, np.floating):
        rows = random_rows(len(y), wanted, generator)
    else:
        rows = stratified_rows(y, wanted, generator)
    return x.subset(rows) if isinstance(x, MappedRows) else x[rows], y[rows]
