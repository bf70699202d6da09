"""The linear models of Lyle et al. 2020, appendix B.1, shared by scripts."""

import gzip
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

N, INFORMATIVE = 30, 15
NOISE = 0.3  # standard deviation of the noise: not stated in the paper
PRIOR_VARIANCE = 0.002  # of a weight: not stated in the paper either


def feature_data(seed: int) -> tuple[Tensor, Tensor]:
    """Return features [30, 30], of which the first 15 carry y, and targets [30]."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.rand(N, dtype=torch.float64, generator=generator)
    noise = torch.randn(N, N, dtype=torch.float64, generator=generator)
    noise[:, :INFORMATIVE] += y[:, None]
    return noise, y


def images(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """Return images in [0, 1], float32 [n, 1, 28, 28], and labels [n]; part "train" or "t10k"."""
    raw = folder / "raw"
    with gzip.open(raw / f"{part}-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28)
    with gzip.open(raw / f"{part}-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)
    return torch.from_numpy(pixels.copy()).float() / 255, torch.from_numpy(labels.copy()).long()


def ranks(values: Tensor) -> Tensor:
    """Return the rank of each value along the last dimension, 1 for the largest."""
    return (-values).argsort(-1).argsort(-1) + 1
