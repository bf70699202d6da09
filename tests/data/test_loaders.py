"""A loader is read as it is: the evidence is of the rows that are trained on, or a sentence."""

import random
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import reference
import torch
from messages import refused
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

import nas_evidence
from nas_evidence.data.loaders import visited_rows

N = 60
X = torch.randn(N, 4, generator=torch.Generator().manual_seed(0)).double()
Y = torch.sin(X[:, :2]) + 0.1
ALL = TensorDataset(X, Y)
Pair = namedtuple("Pair", "x y")


class Rows(Dataset[Any]):
    def __init__(self, of: Callable[[int], Any], n: int = N) -> None:
        self.of, self.n = of, n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, row: int) -> Any:
        return self.of(row)


class Stream(IterableDataset[Any]):
    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        return self.make()


class Of(Sampler[int]):
    """A sampler of the user; counts its epochs."""

    def __init__(self, draw: Callable[[int], list[int]]) -> None:
        self.draw, self.epoch = draw, 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        return iter(self.draw(self.epoch))

    def __len__(self) -> int:
        return len(self.draw(0))


def centred(items: list[Any]) -> Any:
    x, y = default_collate(items)
    return (x - 5) / 2, y


HALF = list(range(0, N, 2))
HALF_X, HALF_Y = X[HALF], Y[HALF]
AS_IT_IS: dict[str, tuple[Any, Tensor, Tensor]] = {
    "shuffled": (DataLoader(ALL, 7, shuffle=True), X, Y),
    "subset sampler": (
        DataLoader(ALL, 7, sampler=SubsetRandomSampler(HALF[::-1])), HALF_X, HALF_Y,
    ),
    "subset": (DataLoader(Subset(ALL, HALF), 7, shuffle=True), HALF_X, HALF_Y),
    "list as sampler": (DataLoader(ALL, 7, sampler=HALF), HALF_X, HALF_Y),
    "own sampler": (DataLoader(ALL, 7, sampler=Of(lambda _: HALF[::-1])), HALF_X, HALF_Y),
    "own sampler that shuffles": (
        DataLoader(ALL, 7, sampler=Of(lambda _: random.sample(HALF, len(HALF)))), HALF_X, HALF_Y,
    ),
    "rows that are drawn twice": (
        DataLoader(ALL, 7, sampler=Of(lambda _: [0, 0, 1])), X[[0, 0, 1]], Y[[0, 0, 1]],
    ),
    "batch sampler": (
        DataLoader(ALL, batch_sampler=BatchSampler(SequentialSampler(HALF), 8, drop_last=True)),
        X[:24], Y[:24],
    ),
    "list as batch sampler": (DataLoader(ALL, batch_sampler=[[3, 1], [8, 5]]), X[[1, 3, 5, 8]],
                              Y[[1, 3, 5, 8]]),
    "drop_last in order": (DataLoader(ALL, 7, drop_last=True), X[:56], Y[:56]),
    "drop_last shuffled": (DataLoader(ALL, 7, drop_last=True, shuffle=True), X, Y),
    "shares of processes": (
        DataLoader(ALL, 7, sampler=DistributedSampler(ALL, num_replicas=2, rank=1)), X, Y,
    ),
    "collate_fn": (DataLoader(ALL, 7, collate_fn=centred), (X - 5) / 2, Y),
    "batches of the data set": (
        DataLoader(Rows(lambda i: (X[6 * i : 6 * i + 6], Y[6 * i : 6 * i + 6]), 10),
                   batch_size=None), X, Y,
    ),
    "list of pairs": (list(zip(X, Y, strict=True)), X, Y),
    "list of two pairs": ([(X[0], Y[0]), (X[1], Y[1])], X[:2], Y[:2]),
    "loader of a list of pairs": (DataLoader(list(zip(X, Y, strict=True)), 7), X, Y),
    "lists": (DataLoader(Rows(lambda i: [X[i], Y[i]]), 7), X, Y),
    "named tuples": (DataLoader(Rows(lambda i: Pair(X[i], Y[i])), 7), X, Y),
    "mappings": (DataLoader(Rows(lambda i: {"labels": Y[i], "pixels": X[i]}), 7), X, Y),
    "mapping of tensors": ({"x": X, "y": Y}, X, Y),
    "arrays": ((X.numpy(), Y.numpy()), X, Y),
    "rows of arrays": (Rows(lambda i: (X[i].numpy(), Y[i].numpy())), X, Y),
    "stream": (DataLoader(Stream(lambda: iter(list(zip(X, Y, strict=True)))), 7), X, Y),
    "stream, drop_last": (
        DataLoader(Stream(lambda: iter(list(zip(X, Y, strict=True)))), 7, drop_last=True),
        X[:56], Y[:56],
    ),
    "stream alone": (Stream(lambda: iter(list(zip(X, Y, strict=True)))), X, Y),
}  # fmt: skip


def linear() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(4, 2).double()


@pytest.mark.parametrize("name", AS_IT_IS)
def test_the_evidence_is_that_of_the_rows_that_are_trained_on(name: str) -> None:
    """Against dense matrices, by brute force."""
    data, x, y = AS_IT_IS[name]
    model = linear()
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    found = nas_evidence.estimate_evidence(
        model, data, likelihood="gaussian", curvature="full_ggn", prior_precision=1.3,
        noise_std=0.7,
    )  # fmt: skip
    full = reference.full_ggn(model, x, 0.7)
    expected = reference.log_evidence(model, x, y, 0.7, [1.3, 1.3], [full])
    assert found.value == pytest.approx(expected, rel=1e-10)
    laplace = nas_evidence.online_laplace(
        model, torch.optim.SGD(model.parameters(), lr=0.1), data, likelihood="gaussian",
        curvature="full_ggn", prior_precision=1.3, noise_std=0.7,
    )  # fmt: skip
    assert laplace.log_evidence() == pytest.approx(expected, rel=1e-10)
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def test_generators_of_the_loader_stay_as_they_were() -> None:
    generator = torch.Generator().manual_seed(5)
    state = generator.get_state()
    for sampler in (RandomSampler, SubsetRandomSampler):
        visited_rows(DataLoader(ALL, 7, sampler=sampler(HALF, generator=generator)))
    assert torch.equal(generator.get_state(), state)


def test_a_shuffled_loader_gives_its_rows_in_the_order_of_the_data() -> None:
    x, y = visited_rows(DataLoader(ALL, 7, shuffle=True, drop_last=True))
    assert torch.equal(x, X)
    assert torch.equal(y, Y)


def endless() -> Iterator[Any]:
    while True:
        yield torch.zeros(100_000, 1), torch.zeros(100_000)


ONCE = iter(list(zip(X, Y, strict=True)))
REFUSED: dict[str, tuple[Any, str, list[Any]]] = {
    "weights": (DataLoader(ALL, 7, sampler=WeightedRandomSampler(range(1, N + 1), N)),
                "loader-rows-vary", ["DataLoader"]),
    "with replacement": (DataLoader(ALL, 7, sampler=RandomSampler(ALL, replacement=True)),
                         "loader-rows-vary", ["Subset"]),
    "own sampler that shuffles, drop_last": (
        DataLoader(ALL, 7, drop_last=True, sampler=Of(lambda _: random.sample(HALF, len(HALF)))),
        "loader-rows-vary", [],
    ),
    "other rows": (DataLoader(ALL, 7, sampler=Of(lambda _: random.sample(range(N), 9))),
                   "loader-rows-vary", []),
    "augmentation": (Rows(lambda i: (X[i] + torch.randn(4), Y[i])), "loader-rows-vary", ["Rows"]),
    "augmentation that keeps the sum": (
        Rows(lambda i: (X[i][torch.randperm(4)], Y[i])), "loader-rows-vary", ["Rows"],
    ),
    "augmentation by numpy": (
        DataLoader(Rows(lambda i: (X[i] + np.random.normal(), Y[i])), 7), "loader-rows-vary", [],
    ),
    "mixed in collate_fn": (
        DataLoader(ALL, 7, shuffle=True,
                   collate_fn=lambda items: (default_collate(items)[0].cumsum(0),
                                             default_collate(items)[1])),
        "loader-rows-vary", [],
    ),
    "drawn in collate_fn": (
        DataLoader(ALL, 7, collate_fn=lambda items: (torch.randn(len(items), 4),
                                                     default_collate(items)[1])),
        "loader-rows-vary", [],
    ),
    "ragged": (DataLoader(Rows(lambda i: (X[i, : 1 + i % 3], Y[i])), 7), "loader-rows-differ", []),
    "three parts": (TensorDataset(X, Y, Y), "own-loop-pairs", [3]),
    "many parts": ([(X[0], Y[0], 1.0)] * 50, "own-loop-pairs", [3]),
    "two inputs": (Rows(lambda i: ((X[i], X[i]), Y[i])), "own-loop-pairs", []),
    "mapping without targets": (Rows(lambda i: {"a": X[i], "b": Y[i]}), "own-loop-pairs",
                                ["`a`", "`b`"]),
    "no rows": (DataLoader(ALL, 100, shuffle=True, drop_last=True), "own-loop-rows", [0]),
    "an iterator": (DataLoader(ALL, 7, sampler=iter(HALF)), "own-loop-rows", [0]),
    "a stream that ends for ever": (Stream(lambda: ONCE), "own-loop-rows", [0]),
    "a stream that draws": (
        Stream(lambda: iter([(torch.randn(4), Y[0]) for _ in range(5)])), "loader-rows-vary", [],
    ),
    "an endless stream": (DataLoader(Stream(endless), batch_size=None), "loader-stream-endless",
                          ["1,000,000"]),
    "a generator": ((pair for pair in zip(X, Y, strict=True)), "own-loop-data", ["generator"]),
    "inputs alone": (X, "targets-missing", []),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_rows_without_an_evidence_are_refused_with_the_reason(name: str) -> None:
    data, code, values = REFUSED[name]
    model = linear()
    with refused(code, *values):
        nas_evidence.estimate_evidence(
            model, data, likelihood="gaussian", curvature="full_ggn", prior_precision=1.3,
            noise_std=0.7,
        )  # fmt: skip
    if code == "targets-missing":
        return
    with refused(code):
        nas_evidence.online_laplace(
            model, torch.optim.SGD(model.parameters(), lr=0.1), data, likelihood="gaussian"
        )


def padded(items: list[Any]) -> Any:
    x = nn.utils.rnn.pad_sequence([x for x, _ in items], batch_first=True)
    return x, torch.stack([y for _, y in items])


def test_sequences_that_batches_pad_to_different_lengths_are_refused() -> None:
    rows = [(torch.arange(1 + i % 5), torch.tensor(i % 2)) for i in range(18)]
    with refused("loader-shapes-differ", "padded to one length"):
        visited_rows(DataLoader(rows, 3, collate_fn=padded, shuffle=True))
