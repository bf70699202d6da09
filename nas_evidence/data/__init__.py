"""Data sets, as numpy arrays: read, subsampled, with the scaling of the training part.

No module here but `tensors` needs torch. No worker processes: the sets fit in memory.
"""

from collections.abc import Callable

import numpy as np

from nas_evidence.data import digits, npz, vision
from nas_evidence.data.arrays import Array, ArrayData, RawArrays, moments, stratified_rows
from nas_evidence.spec import DatasetSpec, derive_seed

__all__ = ["DATASETS", "ArrayData", "load"]

#: Name -> reader, called as `read(spec, seed=, data_root=, download=)`.
DATASETS: dict[str, Callable[..., RawArrays]] = {
    "digits": digits.read,
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
        download: Whether missing files may be fetched into `data_root`.

    Raises:
        ValueError: When files are missing or damaged, or fewer examples exist than asked for.
    """
    raw = DATASETS[spec.name](spec, seed=seed, data_root=data_root, download=download)
    n_classes = int(raw.y_train.max()) + 1
    x_train, y_train = _subset(raw.x_train, raw.y_train, spec, "train", seed)
    x_test, y_test = _subset(raw.x_test, raw.y_test, spec, "test", seed)
    mean, std = moments(x_train)
    return ArrayData(
        spec.name,
        x_train,
        y_train,
        x_test,
        y_test,
        n_classes=n_classes,
        input_shape=x_train.shape[1:],
        mean=mean,
        std=std,
    )


def _subset(x: Array, y: Array, spec: DatasetSpec, part: str, seed: int) -> tuple[Array, Array]:
    """Return at most `max_<part>` examples; each part draws from a stream of its own."""
    wanted = spec.max_train if part == "train" else spec.max_test
    if wanted is None:
        return x, y
    if wanted > len(y):
        raise ValueError(
            f"`max_{part} <= {len(y)}` must hold for data set '{spec.name}', which has {len(y)} "
            f"{part} examples, but got {wanted}; lower max_{part} in [dataset]"
        )
    generator = np.random.default_rng(derive_seed(seed, "split", part))
    rows = stratified_rows(y, wanted, generator)
    return x[rows], y[rows]
