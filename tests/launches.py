"""Launches of a training step and of curvature passes on an invented GPU, counted.

`python tests/launches.py` prints them in the form of `MEASURED`, to replace it after a change of
the code that is meant to change them.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from fake_gpu import FakeGpu
from records import asked

from nas_evidence.curvature import curvature_pass
from nas_evidence.data.tensors import TensorData
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.models import build
from nas_evidence.spec.study import ArchitectureSpec
from nas_evidence.training.loop import train_epochs
from nas_evidence.training.network import Network, begin

#: Network -> what is done with 128 images of CIFAR's size -> launches.
MEASURED: dict[str, dict[str, int]] = {
    "mlp": {"training step": 45, "diag_ef": 64, "kfac_ggn_mc": 65},
    "cnn 3x16": {"training step": 88, "diag_ef": 125, "kfac_ggn_mc": 112},
    "resnet-8 w16": {"training step": 126, "diag_ef": 217, "kfac_ggn_mc": 176},
    "resnet-8 w32": {"training step": 126, "diag_ef": 217, "kfac_ggn_mc": 176},
}
IMAGE, CLASSES, ROWS = (3, 32, 32), 10, 128
NETWORKS: dict[str, tuple[str, dict[str, object]]] = {
    "mlp": ("mlp", {"depth": 3, "width": 50}),
    "cnn 3x16": ("cnn", {"depth": 3, "width": 16}),
    "resnet-8 w16": ("resnet", {"depth": 8, "width": 16}),
    "resnet-8 w32": ("resnet", {"depth": 8, "width": 32}),
}
STEP, KINDS = "training step", ("diag_ef", "kfac_ggn_mc")
#: More than is measured is a fault from a tenth on: an operator more or less is none.
ALLOWED = 1.1


@dataclass(frozen=True)
class Traffic:
    """What was done on the GPU: launches, waits of the host, copies from the CPU."""

    launches: int
    reads: int
    copies: int

    @classmethod
    def of(cls, gpu: FakeGpu) -> "Traffic":
        """Return what was counted since it last forgot."""
        return cls(gpu.launches.total(), gpu.reads.total(), gpu.copies.total())


def data_of(n: int, image: tuple[int, ...], *, seed: int = 0) -> TensorData:
    """Return random images on the GPU, in ten classes."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, *image, generator=draw).to("cuda")
    y = torch.randint(0, CLASSES, (n,), generator=draw).to("cuda")
    ones = torch.ones(CLASSES, dtype=torch.float64)
    return TensorData(x, y, x[:0], y[:0], "labels", CLASSES, image, 0 * ones, ones)


def members_of(
    family: str, values: dict[str, object], sizes: tuple[int, ...], image: tuple[int, ...],
    **plan: object,
) -> list[Network]:  # fmt: skip
    """Return trainings of one architecture on the GPU, of some numbers of images each."""
    members = []
    for k, size in enumerate(sizes):
        architecture = ArchitectureSpec(family=family, values=values)
        given = asked(architecture, seed=k, **({"epochs": 9} | plan))
        draw = torch.Generator().manual_seed(k)
        model = build(given.architecture, image, CLASSES, draw).to("cuda")
        members.append(begin(model, data_of(size, image), given.plan, given.seed))
    return members


def traffic_of_epochs(gpu: FakeGpu, members: list[Network], n_epochs: int) -> list[Traffic]:
    """Return what each of some epochs does, after a first one."""
    assert train_epochs(members) == [None] * len(members)
    found = []
    for _ in range(n_epochs):
        gpu.forget()
        assert train_epochs(members) == [None] * len(members)
        found.append(Traffic.of(gpu))
    return found


def launches_of(
    family: str, values: dict[str, object], *, image: tuple[int, ...] = IMAGE, rows: int = ROWS,
    kinds: Iterable[str] = KINDS,
) -> dict[str, int]:  # fmt: skip
    """Return the launches of a training step and of each pass over so many images."""
    with FakeGpu() as gpu:
        epochs = []
        for n_steps in (1, 2):
            (member,) = members_of(family, values, (n_steps * rows,), image, batch_size=rows)
            epochs.append(traffic_of_epochs(gpu, [member], 1)[0].launches)
        found = {STEP: epochs[1] - epochs[0]}
        model, data = member.model.eval(), data_of(2 * rows, image)
        for kind in kinds:
            passes = [_launches_of_pass(gpu, kind, model, data, n, rows) for n in (1, 2)]
            found[kind] = passes[1] - passes[0]
    return found


def _launches_of_pass(
    gpu: FakeGpu, kind: str, model: torch.nn.Module, data: TensorData, n_batches: int, rows: int
) -> int:
    gpu.forget()
    x, y = (one[: n_batches * rows] for one in (data.x_train, data.y_train))
    draw = torch.Generator().manual_seed(0)
    curvature_pass(kind, model, x, y, Categorical(), batch_size=rows, generator=draw)
    return gpu.launches.total()


def table(found: dict[str, dict[str, int]]) -> str:
    """Return launches as the source of `MEASURED`."""
    lines = []
    for network, of in found.items():
        pairs = ", ".join(f'"{name}": {count}' for name, count in of.items())
        lines.append(f'    "{network}": {{{pairs}}},')
    return "\n".join(["MEASURED: dict[str, dict[str, int]] = {", *lines, "}"])


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(table({network: launches_of(*given) for network, given in NETWORKS.items()}))  # noqa: T201
