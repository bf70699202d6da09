"""What several scripts share: images, and dense layers."""

import io
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from nas_evidence.data.named import read_idx

Examples = tuple[Tensor, Tensor]  # inputs and targets


@dataclass(frozen=True)
class Images:
    """Training and test images, flat [n, d], with their labels [n]."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor


def pixels(folder: Path, part: str) -> Examples:
    """Return images, uint8 [n, 28, 28], and labels [n]; the part is "train" or "t10k"."""
    x = read_idx(folder / "raw" / f"{part}-images-idx3-ubyte")
    y = read_idx(folder / "raw" / f"{part}-labels-idx1-ubyte")
    return torch.tensor(x), torch.tensor(y).long()


def images(folder: Path, part: str) -> Examples:
    """Return images in [0, 1], float32 [n, 1, 28, 28], and labels [n]."""
    x, y = pixels(folder, part)
    return x.float()[:, None] / 255, y


def cifar(folder: Path, part: str, n: int) -> Examples:
    """Return the first n images of a part ("train" or "test"), [n, 32, 32, 3] in [0, 1]."""
    with np.load(folder / "cifar10_jpeg.npz") as z:
        stream, ends = z[f"{part}_jpeg"].tobytes(), z[f"{part}_offsets"]
        labels = z[f"y_{part}"][:n].astype(np.int64)
    x = [np.asarray(Image.open(io.BytesIO(stream[ends[i] : ends[i + 1]]))) for i in range(n)]
    return torch.from_numpy(np.stack(x)).float() / 255, torch.from_numpy(labels)


def subset(data: Path, name: str, n_train: int, n_test: int) -> tuple[Examples, Examples]:
    """Return the first training and test images, standardised by the training images."""
    if name == "CIFAR-10":
        read = (cifar(data / "cifar10", "train", n_train), cifar(data / "cifar10", "test", n_test))
        train, test = ((x.permute(0, 3, 1, 2).contiguous(), y) for x, y in read)
    else:
        folder = data / {"MNIST": "MNIST", "FMNIST": "FashionMNIST"}[name]
        train, test = images(folder, "train"), images(folder, "t10k")
    mean, spread = train[0][:n_train].mean(), train[0][:n_train].std()
    first = ((train[0][:n_train] - mean) / spread, train[1][:n_train])
    return first, ((test[0][:n_test] - mean) / spread, test[1][:n_test])


def dense(sizes: list[int], unit: type[nn.Module]) -> list[nn.Module]:
    """Return linear layers with a unit between them, freshly initialised by torch."""
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), unit()]
    return layers[:-1]
