"""Small models with data, one for each kind of layer and wiring; float64 throughout."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from nas_evidence import EvidenceEstimate, estimate_evidence
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.maths.blocks import Diagonal
from nas_evidence.maths.structured import BlockDiagonal, Structured
from nas_evidence.models.fixup import FixupBias, FixupScale


@dataclass
class Case:
    model: nn.Module
    x: Tensor
    y: Tensor
    noise_std: float | None = None
    prior_precision: Tensor | None = None

    def __post_init__(self) -> None:
        if self.prior_precision is None:
            count = sum(1 for _ in self.model.parameters())
            self.prior_precision = torch.logspace(-0.5, 1.0, count, dtype=torch.float64)

    @property
    def likelihood(self) -> Categorical | Gaussian:
        return Categorical() if self.noise_std is None else Gaussian(self.noise_std)

    def estimate(self, kind: str, **more: object) -> EvidenceEstimate:
        """The Laplace evidence of this case, in uneven batches; `more` changes an argument."""
        given = {
            "likelihood": "categorical" if self.noise_std is None else "gaussian",
            "prior_precision": self.prior_precision,
            "noise_std": self.noise_std,
            "batch_size": 4,
        }
        return estimate_evidence(self.model, self.x, self.y, curvature=kind, **(given | more))


class Residual(nn.Module):
    """Branches, sums, in-place and functional operations, Fixup scalars, written in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.before, self.scale, self.after = FixupBias(), FixupScale(), FixupBias()
        self.conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.head = nn.Linear(4, 3)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.4)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu_(self.stem(x))
        branch = self.after(self.scale(self.conv(self.before(x))))
        x = torch.tanh(x + branch)
        x = x[:, :, ::2, ::2] if x.shape[2] > 4 else x
        return self.head(x.mean((2, 3)))


class Sequence(nn.Module):
    """Linear layers on [n, T, d]."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 5)
        self.norm = nn.LayerNorm(5)
        self.mix = nn.Linear(5, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(self.norm(torch.tanh(self.embed(input=x)))).sum(1)


def _images(n: int, channels: int, side: int) -> Tensor:
    return torch.randn(n, channels, side, side)


def _labels(n: int, classes: int = 3) -> Tensor:
    return torch.randint(0, classes, (n,))


def _mlp() -> Case:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 3))
    return Case(model, torch.randn(11, 4), _labels(11))


def _regression() -> Case:
    model = nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 2))
    return Case(model, torch.randn(9, 3), torch.randn(9, 2), noise_std=0.6)


def _sequence() -> Case:
    return Case(Sequence(), torch.randn(6, 3, 4), _labels(6))


def _conv(**arguments: object) -> Callable[[], Case]:
    def make() -> Case:
        conv = nn.Conv2d(2, 4, **arguments)
        features = conv(_images(1, 2, 6)).numel()
        model = nn.Sequential(conv, nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(features, 3))
        return Case(model, _images(7, 2, 6), _labels(7))

    return make


def _pooled() -> Case:
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.MaxPool2d(2),
        nn.GroupNorm(3, 3),
        nn.ELU(),
        nn.Conv2d(3, 4, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )
    nn.init.normal_(model[2].weight)
    return Case(model, _images(8, 1, 6), _labels(8))


def _residual() -> Case:
    return Case(Residual(), _images(7, 2, 6), _labels(7))


_CASES: dict[str, Callable[[], Case]] = {
    "mlp": _mlp,
    "regression": _regression,
    "sequence": _sequence,
    "conv_plain": _conv(kernel_size=3),
    "conv_stride_padding": _conv(kernel_size=3, stride=2, padding=(1, 2)),
    "conv_same_even_kernel": _conv(kernel_size=(2, 4), padding="same", bias=False),
    "conv_dilated_valid": _conv(kernel_size=(3, 2), dilation=(1, 2), padding="valid"),
    "conv_groups": _conv(kernel_size=3, padding=1, groups=2),
    "pooled": _pooled,
    "residual": _residual,
}
CASES = tuple(_CASES)


def case(name: str, seed: int = 0) -> Case:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        previous = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            return _CASES[name]()
        finally:
            torch.set_default_dtype(previous)


def spectral_problem(*, sizes: tuple[int, ...] = (40, 5, 12, 3), seed: int = 0) -> BlockDiagonal:
    """Eigenvalues over many octaves, without a model."""
    generator = torch.Generator().manual_seed(seed)
    spectra = [(4 * torch.randn(s, generator=generator).double() - 1).exp() for s in sizes]
    names = tuple(f"{i // 2}.{'weight' if i % 2 == 0 else 'bias'}" for i in range(len(sizes)))
    return BlockDiagonal(names, tuple(Diagonal(s) for s in spectra))


SPECTRAL_NORMS = torch.tensor([7.0, 0.3, 50.0, 1e-3], dtype=torch.float64)


def laplace_value(
    fit: Tensor | float, curvature: Structured, norms: Tensor, precision: Tensor,
    scale: Tensor | float = 1.0,
) -> Tensor:  # fmt: skip
    """The Laplace evidence in nats, differentiable in fit, precisions and scale of curvature."""
    ratio = curvature.log_det_ratio(precision / scale).sum()
    return fit - 0.5 * ((precision * norms).sum() + ratio)


GOLDEN = ("digits_mlp", "digits_cnn", "diabetes_mlp")
#: Reference values, and the published tables; README.md there says where they are from.
GOLDEN_FOLDER = Path(__file__).with_name("golden")


def golden(name: str) -> tuple[Case, dict[str, float]]:
    """A reference model with its `definition_nats`."""
    meta = json.loads((GOLDEN_FOLDER / f"{name}.json").read_text())
    arrays = np.load(GOLDEN_FOLDER / f"{name}.npz")
    lines = meta["model"].splitlines()[1:-1]
    modules = [_module(re.sub(r"^\s*\(\d+\): ", "", line)) for line in lines]
    model = nn.Sequential(*modules).double()
    prefix = "param."
    state = {k.removeprefix(prefix): torch.tensor(arrays[k]) for k in arrays if prefix in k}
    model.load_state_dict(state)
    noise_std = meta["noise_std"] if meta["likelihood"] == "regression" else None
    precision = torch.tensor(meta["prior_precision_per_tensor"], dtype=torch.float64)
    x, y = torch.tensor(arrays["x"]), torch.tensor(arrays["y"])
    return Case(model, x, y, noise_std, precision), meta["definition_nats"]


def _module(text: str) -> nn.Module:
    """A module from its printed form."""
    return eval(f"nn.{text}", {"nn": nn})
