"""Data sets known by name: scikit-learn's digits and diabetes; MNIST and CIFAR from files.

    digits    1,797 images of 8 x 8 pixels, grey values 0 to 16
    diabetes  442 patients, ten features in their own units; the target measures the progression
              of the disease a year later, from 25 to 346 (Efron et al., 2004)

Neither has a test set. A seeded one is split off: of digits with the proportions of the classes.
The others are in torchvision's folder layout:

    MNIST/raw/  FashionMNIST/raw/    IDX files, plain or .gz; read here without unpacking
    cifar-10-batches-py/  cifar-100-python/    pickles; read by torchvision, which first checks
                                               their MD5 sums, since a pickle can run code

IDX: big-endian int32 magic 0x0800 + number of axes, one int32 per axis, then unsigned bytes.
torchvision is imported only for CIFAR and for downloads.
"""

import gzip
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nas_evidence.data.arrays import RawArrays
from nas_evidence.data.mapped import Array
from nas_evidence.data.targets import reading_of
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.dataset import DIABETES_TEST_SIZE, DIGITS_TEST_SIZE
from nas_evidence.spec.likelihoods import TARGET_KINDS, Task
from nas_evidence.spec.study import DatasetSpec, derive_seed

FOLDERS = {
    "mnist": "MNIST/raw",
    "fashion_mnist": "FashionMNIST/raw",
    "cifar10": "cifar-10-batches-py",
    "cifar100": "cifar-100-python",
}
IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
FILES: dict[str, tuple[str, ...]] = {
    "mnist": IDX_FILES,
    "fashion_mnist": IDX_FILES,
    "cifar10": (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"),
    "cifar100": ("train", "test", "meta"),
}
TORCHVISION_CLASSES = {
    "mnist": "MNIST",
    "fashion_mnist": "FashionMNIST",
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
}


def read_mnist_like(
    spec: DatasetSpec, *, seed: int, data_root: str | None = None, download: bool = False
) -> RawArrays:
    """Return MNIST or Fashion-MNIST: uint8 [60000, 1, 28, 28] and [10000, 1, 28, 28].

    Raises:
        ValueError: If a file is missing, damaged, or does not match its labels.
    """
    folder = _folder_with_files(spec.name, data_root, download)
    parts = []
    for images, labels in (IDX_FILES[:2], IDX_FILES[2:]):
        x, y = read_idx(folder / images, n_axes=3), read_idx(folder / labels, n_axes=1)
        if len(x) != len(y):
            raise UserError(
                "images-labels-differ",
                f"images and labels must match in number, but {images} has {len(x)} and {labels} "
                f"{len(y)} in {folder}; download both files again",
            )
        parts += [x[:, None], y.astype(np.int64)]
    x_train, y_train, x_test, y_test = parts
    return RawArrays(x_train, y_train, x_test, y_test)


def read_cifar(
    spec: DatasetSpec, *, seed: int, data_root: str | None = None, download: bool = False
) -> RawArrays:
    """Return CIFAR-10 or CIFAR-100: uint8 [50000, 3, 32, 32] and [10000, 3, 32, 32].

    Raises:
        ValueError: If a file is missing or its MD5 sum is not the published one.
    """
    folder = _folder_with_files(spec.name, data_root, download)
    parts = []
    for train in (True, False):
        try:
            source = _torchvision_class(spec.name)(folder.parent, train=train)
        except RuntimeError as error:
            raise UserError(
                "md5-differs",
                f"the files of data set '{spec.name}' must be the published ones, but an MD5 sum "
                f"in {folder} differs; fetch them again with `download`",
            ) from error
        parts += [
            np.ascontiguousarray(source.data.transpose(0, 3, 1, 2)),
            np.array(source.targets, dtype=np.int64),
        ]
    x_train, y_train, x_test, y_test = parts
    return RawArrays(x_train, y_train, x_test, y_test)


def read_idx(path: Path, *, n_axes: int) -> Array:
    """Return the uint8 array in an IDX file, or in the file with ".gz" added.

    Raises:
        ValueError: If the file is not an IDX file of bytes with `n_axes` axes, or is truncated.
    """
    if path.exists():
        content = bytearray(path.read_bytes())
    else:
        path = path.with_name(path.name + ".gz")
        try:
            content = bytearray(gzip.decompress(path.read_bytes()))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise UserError(
                "gzip-damaged", f"{path} is not a whole gzip file ({error}); fetch it again"
            ) from error
    start = 4 * (n_axes + 1)
    header = [int.from_bytes(content[at : at + 4], "big") for at in range(0, start, 4)]
    shape = tuple(header[1:])
    if header[0] != 0x0800 + n_axes or min(shape) < 1:
        raise UserError(
            "not-idx", f"{path} is not an IDX file of bytes with {n_axes} axes; fetch it again"
        )
    if len(content) - start != math.prod(shape):
        raise UserError(
            "idx-size",
            f"{path} must hold {math.prod(shape)} bytes after its header, but has "
            f"{len(content) - start}; fetch it again",
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def _folder_with_files(name: str, data_root: str | None, download: bool) -> Path:
    if data_root is None:
        raise UserError(
            "data-root-missing",
            f"data set '{name}' is read from a folder, but none is given; name the folder that "
            f"holds {FOLDERS[name]}/ with data_root (--data-root), and add `download` to "
            "fetch the files",
        )
    root = Path(data_root).expanduser()
    folder = root / FOLDERS[name]
    # torchvision checks the MD5 sums of CIFAR files itself, and keeps correct files.
    if download and (_missing(name, folder) or name.startswith("cifar")):
        try:
            _torchvision_class(name)(root, download=True)
        except (OSError, RuntimeError) as error:
            raise UserError(
                "fetch-failed", f"data set '{name}' could not be fetched to {root}: {error}"
            ) from error
    missing = _missing(name, folder)
    if missing:
        raise UserError(
            "image-file-missing",
            f"data set '{name}' needs the file {missing[0]} in {folder}, but it does not exist; "
            "correct data_root (--data-root), or add `download` to fetch the files",
        )
    return folder


def _missing(name: str, folder: Path) -> list[str]:
    endings = ("", ".gz") if FILES[name] is IDX_FILES else ("",)
    return [
        file
        for file in FILES[name]
        if not any((folder / f"{file}{ending}").is_file() for ending in endings)
    ]


def _torchvision_class(name: str) -> Any:
    import torchvision.datasets  # late: it imports torch

    return getattr(torchvision.datasets, TORCHVISION_CLASSES[name])


def read_bundled(
    spec: DatasetSpec, *, seed: int, data_root: str | None = None, download: bool = False
) -> RawArrays:
    """Return the data, split; nothing is read from `data_root` or downloaded.

    Raises:
        ValueError: If the test set would leave no image, or fewer than two patients, for training.
    """
    bundled = _BUNDLED[spec.name]
    x, y = bundled.load()
    n_test = spec.test_size or bundled.test_size
    limit = len(y) + 1 - bundled.fewest
    if n_test >= limit:
        raise UserError(
            "test-size-too-large",
            f"`test_size < {limit}` must hold for data set '{spec.name}', which has {len(y)} "
            f"{bundled.rows}, but got {n_test}; lower it: set "
            "dataset.test_size=N",
        )
    generator = np.random.default_rng(derive_seed(seed, "split"))
    in_test = np.zeros(len(y), dtype=bool)
    in_test[reading_of(TARGET_KINDS[bundled.task]).rows_of(y, n_test, generator)] = True
    x = x.astype(np.float32)
    parts = x[~in_test], y[~in_test], x[in_test], y[in_test]
    return RawArrays(*parts, task=bundled.task)


def _digits() -> tuple[Array, Array]:
    from sklearn.datasets import load_digits  # late: importing takes a second

    x, y = load_digits(return_X_y=True)
    return x.reshape(-1, 1, 8, 8), y.astype(np.int64)


def _diabetes() -> tuple[Array, Array]:
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True, scaled=False)
    return x, y.astype(np.float64)[:, None]


@dataclass(frozen=True)
class _Bundled:
    """A data set that comes with scikit-learn: its rows, and fewest of them for training."""

    load: Callable[[], tuple[Array, Array]]
    task: Task
    test_size: int
    rows: str
    fewest: int


_BUNDLED = {
    "digits": _Bundled(_digits, "classification", DIGITS_TEST_SIZE, "images", 1),
    "diabetes": _Bundled(_diabetes, "regression", DIABETES_TEST_SIZE, "patients", 2),
}


#: Name -> reader, called as `read(spec, seed=, data_root=, download=)`.
NAMED: dict[str, Callable[..., RawArrays]] = {
    "digits": read_bundled,
    "diabetes": read_bundled,
    "mnist": read_mnist_like,
    "fashion_mnist": read_mnist_like,
    "cifar10": read_cifar,
    "cifar100": read_cifar,
}
