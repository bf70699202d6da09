"""Networks, random data and trainings of the benchmarks; needs the package and torch alone."""

import itertools
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from nas_evidence.curvature import CurvaturePass, curvature_pass
from nas_evidence.curvature.batch_rows import rows_at_once
from nas_evidence.data.tensors import TensorData
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.models import build
from nas_evidence.spec.study import ArchitectureSpec, Assignment, DatasetSpec, TrainingPlan

GREY, COLOUR = (1, 28, 28), (3, 32, 32)
#: Family and values, or one of the networks below.
Network = tuple[str, Mapping[str, int | str]]


def three_conv_three_dense() -> nn.Module:
    """Return the network called 3c3d: 895,210 parameters on 3 x 32 x 32."""
    pool = {"kernel_size": 3, "stride": 2, "ceil_mode": True}
    return nn.Sequential(
        nn.Conv2d(3, 64, 5), nn.ReLU(), nn.MaxPool2d(**pool),
        nn.Conv2d(64, 96, 3), nn.ReLU(), nn.MaxPool2d(**pool),
        nn.Conv2d(96, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(**pool),
        nn.Flatten(), nn.Linear(1152, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(),
        nn.Linear(256, 10),
    )  # fmt: skip


def small_cnn() -> nn.Module:
    """Return three convolutions of 8, 16 and 32 channels on 1 x 28 x 28, then a linear head."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 49, 10),
    )  # fmt: skip


def taper_mlp() -> nn.Module:
    """Return 784-1024-512-256-128-10."""
    sizes = (784, 1024, 512, 256, 128)
    layers = [
        layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())
    ]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(128, 10))


FIXED: Mapping[str, Callable[[], nn.Module]] = {
    "mlp": taper_mlp, "small": small_cnn, "3c3d": three_conv_three_dense,
}  # fmt: skip


def network(given: Network | str, shape: Sequence[int], seed: int = 0) -> nn.Module:
    """Return a network near its initialisation; no weight is at Fixup's zeros."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(given, str):
        torch.manual_seed(seed)
        model = FIXED[given]()
    else:
        spec = ArchitectureSpec(family=given[0], values=dict(given[1]))
        model = build(spec, tuple(shape), 10, generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
    return model


def random_data(
    shape: Sequence[int], n_data: int, device: torch.device | str = "cpu"
) -> TensorData:
    """Return random images of ten classes."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n_data, *shape, generator=generator).to(device)
    y = torch.randint(0, 10, (n_data,), generator=generator).to(device)
    zero = torch.zeros(10, dtype=torch.float64)
    return TensorData(x, y, x[:100], y[:100], "labels", 10, tuple(shape), zero, zero + 1)


def assignment(
    given: Network, plan: TrainingPlan, seed: int = 0, scores: tuple[str, ...] = ()
) -> Assignment:
    """Return the training of a network."""
    return Assignment(
        trial_id=0, attempt=1, replicate=0, seed=seed, plan=plan, estimators=scores,
        architecture=ArchitectureSpec(family=given[0], values=dict(given[1])),
        dataset=DatasetSpec(name="digits"),
    )  # fmt: skip


def plain_epoch(model: nn.Module, x: Tensor, y: Tensor, rate: float = 1e-4) -> None:
    """Train for an epoch as torch alone does it: forward, backward, step of SGD; 128 rows."""
    optimiser = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    model.train()
    for rows in torch.randperm(len(x)).split(128):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimiser.step()


def pass_over(
    kind: str, model: nn.Module, x: Tensor, y: Tensor, rows: int | None = None
) -> Callable[[], CurvaturePass]:
    """Return a curvature pass over labelled data, as many rows at a time as we choose."""
    generator = torch.Generator().manual_seed(0)
    size = rows or rows_at_once(model, x)
    return lambda: curvature_pass(
        kind, model, x, y, Categorical(), batch_size=size, generator=generator
    )
