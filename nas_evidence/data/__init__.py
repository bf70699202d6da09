"""Data sets as numpy arrays: reading, subsampling, and the scaling of the training set.

Only `tensors` needs torch. There are no worker processes: data sets fit in memory, or are files
whose rows are read as needed (`mapped`).
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from nas_evidence.data import bundled, images, npz, vision
from nas_evidence.data import table_file as tables
from nas_evidence.data.arrays import (
    ArrayData,
    Inputs,
    RawArrays,
    Task,
    moments,
    random_rows,
    stratified_rows,
)
from nas_evidence.data.mapped import Array, MappedRows
from nas_evidence.data.targets import said_scale
from nas_evidence.data.units import Units
from nas_evidence.data.weights import class_weights, said_class_weights
from nas_evidence.maths.target_scale import fit
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.study import DatasetSpec, derive_seed

__all__ = ["DATASETS", "ArrayData", "assembled", "load", "located", "read"]

#: Name -> reader, called as `read(spec, seed=, data_root=, download=)`.
DATASETS: dict[str, Callable[..., RawArrays]] = {
    "digits": bundled.read,
    "diabetes": bundled.read,
    "mnist": vision.read_mnist_like,
    "fashion_mnist": vision.read_mnist_like,
    "cifar10": vision.read_cifar,
    "cifar100": vision.read_cifar,
    "table": tables.read,
    "npz": npz.read,
    "images": images.read,
}


def load(
    spec: DatasetSpec,
    *,
    seed: int,
    data_root: str | None = None,
    download: bool = False,
    base: Path | None = None,
) -> ArrayData:
    """Return the data set, the same in every process for the same `spec` and `seed`.

    Args:
        spec: Which data, and how much of it.
        seed: Seed of the study; decides the rows of `test_size`, `max_train` and `max_test`.
        data_root: Folder of the named data sets, in torchvision's layout.
        download: Whether missing files may be downloaded into `data_root`.
        base: Folder of the study file, which relative paths in it are relative to.

    Raises:
        ValueError: If files are missing or damaged, or there are fewer examples than requested.
    """
    raw = read(spec, seed=seed, data_root=data_root, download=download, base=base)
    return assembled(raw, spec, seed=seed)


def read(
    spec: DatasetSpec,
    *,
    seed: int,
    data_root: str | None = None,
    download: bool = False,
    base: Path | None = None,
) -> RawArrays:
    """Return all rows of a data set, see `load`."""
    spec = located(spec, base, data_root)
    return DATASETS[spec.name](spec, seed=seed, data_root=data_root, download=download)


def assembled(raw: RawArrays, spec: DatasetSpec, *, seed: int) -> ArrayData:
    """Return the rows of a data set that `spec` asks for, with the scaling of the training rows.

    Raises:
        ValueError: If there are fewer examples than requested.
    """
    x_train, y_train, units = _subset(raw.x_train, raw.y_train, raw.units, spec, "train", seed)
    x_test, y_test, _ = _subset(raw.x_test, raw.y_test, None, spec, "test", seed)
    mean, std = moments(x_train)
    if raw.meaning.preparation is not None:
        scaled = raw.meaning.preparation.scaled
        mean, std = np.where(scaled, mean, 0), np.where(scaled, std, 1)
        mean, std = mean.astype(np.float32), std.astype(np.float32)
    if np.issubdtype(y_train.dtype, np.floating):
        task: Task = "real"
        n_outputs = y_train.shape[1]
        y_mean = y_train.mean(0)
        y_std = np.where(y_train.min(0) == y_train.max(0), 1.0, y_train.std(0))
    else:
        task = "labels"
        n_outputs = len(raw.meaning.classes) or int(raw.y_train.max()) + 1
        y_mean, y_std = np.zeros(n_outputs), np.ones(n_outputs)
    meaning = raw.meaning
    scale = None
    if spec.scale != "identity":
        scale = fit(spec.scale, y_train)
        meaning = replace(meaning, said=(*meaning.said, said_scale(scale)))
    if spec.class_weight is not None:
        names = [str(name) for name in meaning.classes or range(n_outputs)]
        found = class_weights(y_train, names, spec.class_weight)
        meaning = replace(meaning, class_weight=dict(zip(names, found.tolist(), strict=True)))
        meaning = replace(meaning, said=(*meaning.said, said_class_weights(meaning)))
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
        meaning=meaning,
        units=units,
        fitted_scale=scale,
    )


def located(spec: DatasetSpec, base: Path | None, data_root: str | None = None) -> DatasetSpec:
    """Return the data set with paths that do not depend on the study file.

    A relative path is relative to `data_root` if given; else to `base`, the folder of the study
    file; or to the current folder, if it is there alone.
    """
    changed = {}
    for key in ("path", "test_path"):
        given = getattr(spec, key)
        if given is None or base is None or data_root is not None:
            continue
        path = Path(given).expanduser()
        if not path.is_absolute() and ((base / path).exists() or not path.exists()):
            changed[key] = str(base / path)
    return spec.model_copy(update=changed)


def _subset(
    x: Inputs, y: Array, units: Units | None, spec: DatasetSpec, part: str, seed: int
) -> tuple[Inputs, Array, Units | None]:
    """Return at most `max_<part>` examples; each part has its own random stream."""
    wanted = spec.max_train if part == "train" else spec.max_test
    if wanted is None or not len(y):
        return x, y, units
    if wanted > len(y):
        raise UserError(
            f"`max_{part} <= {len(y)}` must hold for data set '{spec.name}', which has {len(y)} "
            f"{part} examples, but got {wanted}; lower it with --set dataset.max_{part}=N"
        ).with_code("max-examples-too-large")
    generator = np.random.default_rng(derive_seed(seed, "split", part))
    if np.issubdtype(y.dtype, np.floating):
        rows = random_rows(len(y), wanted, generator)
    else:
        rows = stratified_rows(y, wanted, generator)
    taken = x.subset(rows) if isinstance(x, MappedRows) else x[rows]
    return taken, y[rows], None if units is None else units.at(rows)
