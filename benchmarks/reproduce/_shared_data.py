"""What several scripts share: images, the linear models of Lyle et al. 2020, their combination.

Least-squares weights of a linear combination of models (Lyle et al. 2020, section 3.3):

    w* = argmin E ‖Φ w − y‖² = (MᵀM + diag(V))⁻¹ Mᵀ y        Φ = M + noise
    w*_i = α ‖y‖² / (1 + α² ‖y‖² Σ_j σ_j⁻²) · 1 / σ_i²       if M_i = α y + ε_i, ε_i ⊥ y, ε_j

    M  mean predictions [n, m] of m models       V_i  summed variance of the predictions of model i
    y  targets [n]                               σ_i² = ‖ε_i‖² + V_i

With errors orthogonal to the targets and to each other the largest weight goes to the model of the
smallest expected squared error, which is the one of the largest L (Proposition 3.5). The paper's
constant in front of 1 / σ_i² and the missing square of w_i in its loss are corrected.
"""

import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nas_evidence.data.named import read_idx

# Of the linear models, appendix B.1.
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
    pixels = read_idx(folder / "raw" / f"{part}-images-idx3-ubyte", n_axes=3)
    labels = read_idx(folder / "raw" / f"{part}-labels-idx1-ubyte", n_axes=1)
    return torch.tensor(pixels).float()[:, None] / 255, torch.tensor(labels).long()


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


def combination_weights(means: Tensor, targets: Tensor, variances: Tensor) -> Tensor:
    """Return w* [m] for mean predictions [n, m], targets [n] and summed variances V >= 0 [m]."""
    gram = means.mT @ means + torch.diag(variances)
    weights: Tensor = torch.linalg.solve(gram, means.mT @ targets)
    return weights


def orthogonal_weights(*, alpha: float, squared_norm: float, errors: Tensor) -> Tensor:
    """Return w* [m] for the share α of the targets, ‖y‖² > 0 and σ_i² > 0 [m]."""
    together = float((1 / errors).sum())
    return alpha * squared_norm / (1 + alpha**2 * squared_norm * together) / errors
