"""Data sets known by name: scikit-learn's digits and diabetes; MNIST and CIFAR from files.

    digits    1,797 images of 8 x 8 pixels, grey values 0 to 16
    diabetes  442 patients, ten features in their own units; the target measures the progression
              of the disease a year later, from 25 to 346 (Efron et al., 2004)

Neither has a test set. A seeded one is split off: of digits with the proportions of the classes.
The others are in torchvision's folder layout, and torchvision fetches and reads them. It does not
read packed IDX files (.gz) of MNIST, so `read_idx` does. Of the pickles of CIFAR, which can run
code, it first checks the MD5 sums.
"""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np

from nas_evidence.data.array_files import names_the_file
from nas_evidence.data.arrays import RawArrays
from nas_evidence.data.mapped import Array, arranged
from nas_evidence.data.targets import reading_of
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.dataset import DIABETES_TEST_SIZE, DIGITS_TEST_SIZE
from nas_evidence.spec.likelihoods import TARGET_KINDS, Task
from nas_evidence.spec.study import DatasetSpec, derive_seed

#: Class of torchvision, and folder below `data_root`.
_IN_FILES = {
    "mnist": ("MNIST", "MNIST/raw"),
    "fashion_mnist": ("FashionMNIST", "FashionMNIST/raw"),
    "cifar10": ("CIFAR10", "cifar-10-batches-py"),
    "cifar100": ("CIFAR100", "cifar-100-python"),
}
_REMEDY = "correct data_root (--data-root), or add `download`, which fetches missing files"


def read_in_files(
    spec: DatasetSpec, *, seed: int, data_root: str | Path | None = None, download: bool = False
) -> RawArrays:
    """Return MNIST, Fashion-MNIST or CIFAR: images uint8 [n, C, H, W] and labels int64 [n].

    Args:
        spec: its name.
        seed: without effect.
        data_root: the folder that holds those named above.
        download: whether torchvision may fetch what is missing.

    Raises:
        ValueError: if a file is missing or damaged, or is not the published one.
    """
    known, below = _IN_FILES[spec.name]
    if data_root is None:
        raise UserError(
            "data-root-missing",
            f"data set '{spec.name}' is read from a folder, but none is given; name the folder "
            f"that holds {below}/ with data_root (--data-root), and add `download` to fetch the "
            "files",
        )
    root = Path(data_root).expanduser()

    def part(name: str) -> tuple[Array, Array]:
        if below.endswith("raw") and not download:
            files = (
                root / below / f"{name}-{what}-ubyte" for what in ("images-idx3", "labels-idx1")
            )
            x, y = (read_idx(file, f"an IDX file of data set '{spec.name}'") for file in files)
        else:
            import torchvision.datasets  # late: it imports torch

            found = getattr(torchvision.datasets, known)(root, name == "train", download=download)
            x, y = np.asarray(found.data), np.asarray(found.targets)
        if len(x) != len(y):
            raise UserError(
                "images-labels-differ",
                f"{root / below}: {name} has {len(x)} images, but {len(y)} labels; {_REMEDY}",
            )
        return arranged(x), y.astype(np.int64)

    with names_the_file(root / below, f"data set '{spec.name}' as published", _REMEDY):
        return RawArrays(*part("train"), *part("t10k"))


def read_idx(path: Path, what: str = "an IDX file of bytes") -> Array:
    """Return the uint8 array in an IDX file, or in the file with ".gz" added.

    IDX: two bytes 0, the type (8: bytes), the number of axes, a big-endian int32 for each axis,
    the values.

    Raises:
        ValueError: if it is missing or not whole; names it.
    """
    packed = path.with_name(f"{path.name}.gz")
    with names_the_file(path, what, _REMEDY):
        is_packed = packed.is_file() and not path.is_file()
        content = gzip.decompress(packed.read_bytes()) if is_packed else path.read_bytes()
        shape = np.frombuffer(content, ">i4", content[3], offset=4)
        return np.frombuffer(bytearray(content), np.uint8, offset=4 + shape.nbytes).reshape(shape)


def read_bundled(
    spec: DatasetSpec, *, seed: int, data_root: str | Path | None = None, download: bool = False
) -> RawArrays:
    """Return the digits or diabetes of scikit-learn, split; nothing else is read.

    Raises:
        ValueError: if the test set would leave fewer than two rows for training.
    """
    from sklearn import datasets  # late: importing takes a second

    task: Task
    if spec.name == "digits":
        x, y = datasets.load_digits(return_X_y=True)
        x, task, n_test = x.reshape(-1, 1, 8, 8), "classification", DIGITS_TEST_SIZE
    else:
        x, y = datasets.load_diabetes(return_X_y=True, scaled=False)
        y, task, n_test = y[:, None], "regression", DIABETES_TEST_SIZE
    n_test, limit = spec.test_size or n_test, len(y) - 1
    if n_test >= limit:
        raise UserError(
            "test-size-too-large",
            f"`test_size < {limit}` must hold for data set '{spec.name}', which has {len(y)} "
            f"rows, but got {n_test}; lower it: set dataset.test_size=N",
        )
    generator = np.random.default_rng(derive_seed(seed, "split"))
    in_test = np.zeros(len(y), dtype=bool)
    in_test[reading_of(TARGET_KINDS[task]).rows_of(y, n_test, generator)] = True
    x = x.astype(np.float32)
    return RawArrays(x[~in_test], y[~in_test], x[in_test], y[in_test], task=task)


#: Name -> reader, called as `read(spec, seed=, data_root=, download=)`.
NAMED: dict[str, Callable[..., RawArrays]] = {
    "digits": read_bundled,
    "diabetes": read_bundled,
    **dict.fromkeys(_IN_FILES, read_in_files),
}
