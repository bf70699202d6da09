"""The data sets of the benchmarks: inputs and targets by name, and one split of them.

The folder of the data holds `uci/`, `uci-classification/`, `FashionMNIST/raw` and `cifar10/`.
"""

import io
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from sklearn import datasets

from nas_evidence.data.arrays import Array, ArrayData, moments
from nas_evidence.data.vision import read_idx

Pair = tuple[Array, Array]


def raw(name: str, root: Path) -> Pair:
    """Return inputs, and labels [n] or real targets [n, 1], of a set."""
    make = MADE.get(name)
    x, y = make() if make else _stored(name, root)
    if name == "digits":
        x = x.reshape(-1, 1, 8, 8)
    labels = np.issubdtype(y.dtype, np.integer)
    return x.astype(np.float32), y.astype(np.int64) if labels else y.reshape(-1, 1)


def split(name: str, x: Array, y: Array, train: Array | slice, test: Array | slice) -> ArrayData:
    """Return a set with the given training and test rows."""
    mean, std = moments(x[train])
    real = np.issubdtype(y.dtype, np.floating)
    width = y.shape[1] if real else int(y.max()) + 1
    return ArrayData(
        name, x[train], y[train], x[test], y[test],
        task="real" if real else "labels", n_outputs=width, input_shape=x.shape[1:],
        mean=mean, std=std,
        y_mean=y[train].mean(0) if real else np.zeros(width),
        y_std=y[train].std(0) if real else np.ones(width),
    )  # fmt: skip


def _linear_with_noise() -> Pair:
    random = np.random.default_rng(3)
    x = random.normal(size=(3000, 20))
    return x, x @ random.normal(size=20) + 3 * random.normal(size=3000)


#: Sets that come with scikit-learn or are generated.
MADE: dict[str, Callable[[], Pair]] = {
    "wine": partial(datasets.load_wine, return_X_y=True),
    "iris": partial(datasets.load_iris, return_X_y=True),
    "breast": partial(datasets.load_breast_cancer, return_X_y=True),
    "diabetes": partial(datasets.load_diabetes, return_X_y=True),
    "digits": partial(datasets.load_digits, return_X_y=True),
    "digits_table": partial(datasets.load_digits, return_X_y=True),
    "moons": partial(datasets.make_moons, 3000, noise=0.3, random_state=1),
    "synth5": partial(
        datasets.make_classification, 3000, n_features=15, n_informative=8, n_classes=5,
        flip_y=0.05, random_state=2,
    ),
    "friedman": partial(datasets.make_friedman1, 3000, noise=1.0, random_state=1),
    "friedman2": partial(datasets.make_friedman2, 3000, noise=0.0, random_state=1),
    "friedman3": partial(datasets.make_friedman3, 3000, noise=0.0, random_state=1),
    "linnoise": _linear_with_noise,
}  # fmt: skip


def _stored(name: str, root: Path) -> Pair:
    """Return a set of a file; of images the first ones, as many as are compared."""
    if name == "fashion_mnist":
        folder = root / "FashionMNIST" / "raw"
        x, y = (read_idx(folder / f"train-{part}-ubyte", n_axes=n) for part, n in _IDX)
        return x[:5000, None], y[:5000]
    if name == "cifar10":
        return _cifar10(root)
    folder = root / "uci-classification" / name
    if name in ("cancer", "australian"):
        parts = [np.loadtxt(folder / f"{n}_{p}.txt") for n in "Xy" for p in ("train", "test")]
        x, y = np.concatenate(parts[:2]), np.concatenate([p.reshape(-1) for p in parts[2:]])
        return x, np.unique(y, return_inverse=True)[1]
    if folder.is_dir():
        return np.loadtxt(folder / "X.txt"), np.loadtxt(folder / "Y.txt").astype(np.int64)
    folder = root / "uci" / name
    table = np.loadtxt(folder / "data.txt")
    columns = np.loadtxt(folder / "index_features.txt").astype(int)
    return table[:, columns], table[:, int(np.loadtxt(folder / "index_target.txt"))]


_IDX = (("images-idx3", 3), ("labels-idx1", 1))


def _cifar10(root: Path) -> Pair:
    """Return the training images, in 0 to 1."""
    from PIL import Image

    with np.load(root / "cifar10" / "cifar10_jpeg.npz") as file:
        stream, ends, y = file["train_jpeg"].tobytes(), file["train_offsets"], file["y_train"]
    images = [Image.open(io.BytesIO(stream[a:b])) for a, b in pairwise(ends)]
    return np.stack(images).transpose(0, 3, 1, 2) / np.float32(255), y
