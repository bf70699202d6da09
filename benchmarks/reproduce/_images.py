"""Subsets of image data sets as tensors, for scripts."""

import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ._lyle import images


def cifar(folder: Path, part: str, n: int) -> tuple[Tensor, Tensor]:
    """Return the first n images of a part ("train" or "test"), [n, 3, 32, 32] in [0, 1]."""
    with np.load(folder / "cifar10_jpeg.npz") as z:
        stream, ends = z[f"{part}_jpeg"].tobytes(), z[f"{part}_offsets"]
        labels = z[f"y_{part}"][:n].astype(np.int64)
    pixels = [np.asarray(Image.open(io.BytesIO(stream[ends[i] : ends[i + 1]]))) for i in range(n)]
    x = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() / 255
    return x.contiguous(), torch.from_numpy(labels)


def subset(
    data: Path, name: str, n_train: int, n_test: int
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return the first training and test images, standardised by the training images."""
    if name == "CIFAR-10":
        train = cifar(data / "cifar10", "train", n_train)
        test = cifar(data / "cifar10", "test", n_test)
    else:
        folder = data / {"MNIST": "MNIST", "FMNIST": "FashionMNIST"}[name]
        train, test = images(folder, "train"), images(folder, "t10k")
    mean, spread = train[0][:n_train].mean(), train[0][:n_train].std()
    first = ((train[0][:n_train] - mean) / spread, train[1][:n_train])
    return first, ((test[0][:n_test] - mean) / spread, test[1][:n_test])
