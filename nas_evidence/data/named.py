"""Data sets known by name: scikit-learn's digits and diabetes; MNIST and CIFAR from files.

    digits    1,797 images of 8 x 8 pixels, grey values 0 to 16
    diabetes  442 patients, ten features in their own units; the target measures the progression
              of the disease a year later, from 25 to 346 (Efron et al., 2004)

Neither has a test set. A seeded one is split off: of digits with the proportions of the classes.
The others are in torchvision's folder layout:

    MNIST/raw/  FashionMNIST/raw/    IDX files, plain or .gz, which torchvision cannot read packed
    cifar-10-batches-py/  cifar-100-python/    pickles; read by torchvision, which first checks
                                               their MD5 sums, since a pickle can run code
"""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from nas_evidence.data.array_files import names_the_file
from nas_evidence.data.arrays import RawArrays
from nas_evidence.data.mapped import Array
from nas_evidence.data.targets import reading_of
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.dataset import DIABETES_TEST_SIZE, DIGITS_TEST_SIZE
from nas_evidence.spec.likelihoods import TARGET_KINDS
from nas_evidence.spec.study import DatasetSpec, derive_seed

#: Class of torchvision, and folder below `data_root`.
_IN_FILES = {
    "mnist": ("MNIST", "MNIST/raw"),
    "fashion_mnist": ("FashionMNIST", "FashionMNIST/raw"),
    "cifar10": ("CIFAR10", "cifar-10-batches-py"),
    "cifar100": ("CIFAR100", "cifar-100-python"),
}
_IDX_FILES = tuple(
    f"{part}-{what}-ubyte" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1")
)


def read_in_files(
    spec: DatasetSpec, *, seed: int, data_root: str | None = None, download: bool = False
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
    below = _IN_FILES[spec.name][1]
    if data_root is None:
        raise UserError(
            "data-root-missing",
            f"data set '{spec.name}' is read from a folder, but none is given; name the folder "
            f"that holds {below}/ with data_root (--data-root), and add `download` to fetch the "
            "files",
        )
    folder = Path(data_root).expanduser() / below
    if spec.name.startswith("cifar"):
        return _of_cifar(spec.name, folder, download)
    missing = [name for name in _IDX_FILES if not _file(folder, name).is_file()]
    if missing and download:
        _fetched(spec.name, folder.parents[1], download=True)
        missing = [name for name in _IDX_FILES if not _file(folder, name).is_file()]
    if missing:
        raise _not_there(spec.name, folder, f"needs the file {missing[0]}")
    x, y, x_test, y_test = (read_idx(folder / name) for name in _IDX_FILES)
    for images, labels, part in ((x, y, "train"), (x_test, y_test, "t10k")):
        if len(images) != len(labels) or (images.ndim, labels.ndim) != (3, 1):
            raise UserError(
                "images-labels-differ",
                f"images [n, H, W] and labels [n] must match, but those of {part} have the shapes "
                f"{list(images.shape)} and {list(labels.shape)} in {folder}; download both files "
                "again",
            )
    return RawArrays(x[:, None], y.astype(np.int64), x_test[:, None], y_test.astype(np.int64))


def _of_cifar(name: str, folder: Path, download: bool) -> RawArrays:
    def part(train: bool) -> tuple[Array, Array]:
        found = _fetched(name, folder.parent, download=download, train=train)
        x = np.ascontiguousarray(found.data.transpose(0, 3, 1, 2))
        return x, np.array(found.targets, dtype=np.int64)

    return RawArrays(*part(True), *part(False))


def _fetched(name: str, root: Path, *, download: bool, train: bool = True) -> Any:
    """Return a data set of torchvision, fetched to `root` if files lack and it may."""
    import torchvision.datasets  # late: it imports torch

    try:
        known = getattr(torchvision.datasets, _IN_FILES[name][0])
        return known(root, train=train, download=download)
    except (OSError, RuntimeError) as error:
        if not download:
            raise _not_there(
                name, root, "needs the published files, whose MD5 sums it checks,"
            ) from error
        raise UserError(
            "fetch-failed", f"data set '{name}' could not be fetched to {root}: {error}"
        ) from error


def _not_there(name: str, folder: Path, needs: str) -> UserError:
    return UserError(
        "image-file-missing",
        f"data set '{name}' {needs} in {folder}, but finds another or none; correct data_root "
        "(--data-root), or add `download` to fetch the files",
    )


def _file(folder: Path, name: str) -> Path:
    """Return an IDX file, or the packed one if that alone is there."""
    packed = folder / f"{name}.gz"
    return packed if packed.is_file() and not (folder / name).is_file() else folder / name


def read_idx(path: Path) -> Array:
    """Return the uint8 array in an IDX file, or in the file with ".gz" added.

    IDX: two bytes 0, the type (8: bytes), the number of axes, a big-endian int32 for each axis,
    the values.

    Raises:
        ValueError: if it is not a whole IDX file of bytes; names it.
    """
    path = _file(path.parent, path.name)
    with names_the_file(path, "an IDX file of bytes", "fetch it again"):
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        if content[:3] != b"\0\0\x08":
            raise UserError("not-idx", f"{path} is not an IDX file of bytes; fetch it again")
        shape = np.frombuffer(content, ">i4", content[3], offset=4)
        return np.frombuffer(bytearray(content), np.uint8, offset=4 + shape.nbytes).reshape(shape)


def read_bundled(
    spec: DatasetSpec, *, seed: int, data_root: str | None = None, download: bool = False
) -> RawArrays:
    """Return the digits or diabetes of scikit-learn, split; nothing else is read.

    Raises:
        ValueError: If the test set would leave no image, or fewer than two patients, for training.
    """
    from sklearn import datasets  # late: importing takes a second

    if spec.name == "digits":
        x, y = datasets.load_digits(return_X_y=True)
        x, y = x.reshape(-1, 1, 8, 8), y.astype(np.int64)
        kind, n_test, fewest = TARGET_KINDS["classification"], DIGITS_TEST_SIZE, 1
    else:
        x, y = datasets.load_diabetes(return_X_y=True, scaled=False)
        y = y.astype(np.float64)[:, None]
        kind, n_test, fewest = TARGET_KINDS["regression"], DIABETES_TEST_SIZE, 2
    n_test, limit = spec.test_size or n_test, len(y) + 1 - fewest
    if n_test >= limit:
        raise UserError(
            "test-size-too-large",
            f"`test_size < {limit}` must hold for data set '{spec.name}', which has {len(y)} "
            f"rows, but got {n_test}; lower it: set dataset.test_size=N",
        )
    generator = np.random.default_rng(derive_seed(seed, "split"))
    in_test = np.zeros(len(y), dtype=bool)
    in_test[reading_of(kind).rows_of(y, n_test, generator)] = True
    x = x.astype(np.float32)
    return RawArrays(x[~in_test], y[~in_test], x[in_test], y[in_test], task=kind.task)


#: Name -> reader, called as `read(spec, seed=, data_root=, download=)`.
NAMED: dict[str, Callable[..., RawArrays]] = {
    "digits": read_bundled,
    "diabetes": read_bundled,
    **dict.fromkeys(_IN_FILES, read_in_files),
}
