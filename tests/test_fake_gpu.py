"""The invented GPU: what it refuses and what it lets pass is what CUDA would; its counts."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from device_rules import DeviceError
from fake_gpu import FakeGpu
from torch import Tensor, nn
from torch.func import grad, vmap

CUDA = torch.device("cuda", 0)


@pytest.fixture
def gpu() -> Iterator[FakeGpu]:
    with FakeGpu() as found:
        yield found


def there(*shape: int) -> Tensor:
    return torch.ones(shape, device="cuda")


MIXED: dict[str, Callable[[Tensor, Tensor], object]] = {
    "sum": lambda g, c: g + c,
    "in place": lambda g, c: g.add_(c),
    "into the CPU": lambda g, c: c.add_(g),
    "a number of the GPU into the CPU": lambda g, c: c.sum().add_(g.sum()),
    "a number of the GPU with the CPU": lambda g, c: g.sum() * c,
    "product": lambda g, c: g @ c,
    "addcmul": lambda g, c: g.addcmul_(c.sum(), g),
    "where": lambda g, c: torch.where(g > 0, g, c),
    "cat": lambda g, c: torch.cat([g, c]),
    "stack of numbers": lambda g, c: torch.stack([g.sum(), c.sum()]),
    "index of the GPU": lambda g, c: c[g.long()],
    "values of the CPU": lambda g, c: g.index_put_((torch.zeros(2, dtype=torch.long),), c),
    "gather": lambda g, c: g.gather(0, c.long()),
    "out": lambda g, c: torch.add(g, g, out=c),
    "layer": lambda g, c: nn.Linear(2, 2)(g),
    "loss": lambda g, c: nn.functional.mse_loss(g, c),
    "numpy": lambda g, c: g.numpy(),
    "array": lambda g, c: np.asarray(g),
    "numpy function": lambda g, c: np.square(g),
    "list": lambda g, c: torch.from_numpy(np.ones(2)) * g,
    "inside vmap": lambda g, c: vmap(lambda a: a * c)(g),
    "inside grad": lambda g, c: grad(lambda a: (a * c).sum())(g),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixed_devices_are_refused(name: str, gpu: FakeGpu) -> None:
    with pytest.raises(DeviceError):
        MIXED[name](there(2), torch.ones(2))


ALLOWED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "number": lambda g, c: g * c,
    "number first": lambda g, c: c - g,
    "two numbers": lambda g, c: g.sum() + c,
    "in place": lambda g, c: g.mul_(c),
    "power": lambda g, c: g**c,
    "compared": lambda g, c: (g > c).double(),
    "where": lambda g, c: torch.where(g > 0, g, c),
    "filled": lambda g, c: g.masked_fill(g > 0, c),
    "set": lambda g, c: g.index_put_((torch.tensor([0]),), c),
    "index of the CPU": lambda g, c: g[torch.tensor([1, 0])],
    "copy_": lambda g, c: g.copy_(torch.ones(2)),
}

#: Refused here, though not by every version of torch.
STRICTER = ("addcmul",)


@pytest.mark.parametrize("name", ALLOWED)
def test_numbers_and_indices_of_the_cpu_pass(name: str, gpu: FakeGpu) -> None:
    assert ALLOWED[name](there(2), torch.tensor(2.0)).device == CUDA


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_real_gpu_refuses_the_same_and_lets_the_same_pass() -> None:
    passed = []
    for name, mixed in MIXED.items():
        try:
            mixed(there(2), torch.ones(2))
            passed.append(name)
        except (RuntimeError, TypeError):
            pass
    assert set(passed) <= set(STRICTER)
    for allowed in ALLOWED.values():
        assert allowed(there(2), torch.tensor(2.0)).device == CUDA


def test_random_numbers_are_of_the_device_of_their_generator(gpu: FakeGpu) -> None:
    here, far = torch.Generator().manual_seed(3), torch.Generator("cuda").manual_seed(3)
    assert (here.device.type, far.device) == ("cpu", CUDA)
    drawn = torch.randn(4, generator=far, device="cuda")
    assert drawn.device == CUDA
    assert drawn.tolist() == torch.randn(4, generator=here).tolist()
    assert there(3).normal_(generator=far).device == CUDA
    for wrong in (
        lambda: torch.randn(4, generator=far),
        lambda: torch.randn(4, generator=here, device="cuda"),
        lambda: there(3).normal_(generator=here),
        lambda: torch.zeros(3).uniform_(generator=far),
    ):
        with pytest.raises(DeviceError, match="generator"):
            wrong()


def test_reads_are_waits_of_the_host(gpu: FakeGpu) -> None:
    x = there(3)
    reads: list[Callable[[], object]] = [
        lambda: float(x.sum()), lambda: x.sum().item(), lambda: bool((x > 0).all()), x.tolist,
        x.cpu, lambda: x.to("cpu"), lambda: x[x > 0], x.nonzero, lambda: torch.equal(x, x),
        lambda: torch.zeros(3).copy_(x), torch.cuda.synchronize,
        lambda: x.repeat_interleave(there(3).long()),
    ]  # fmt: skip
    for count, read in enumerate(reads, start=1):
        read()
        assert gpu.reads.total() == count
    assert not gpu.copies
    quiet: list[Callable[[], object]] = [
        x.sum, lambda: x + 1, lambda: x.shape, lambda: x.device, lambda: x[1:], x.cuda,
        lambda: x.repeat_interleave(there(3).long(), output_size=3),
    ]  # fmt: skip
    for one in quiet:
        one()
    assert gpu.reads.total() == len(reads)


def test_copies_are_from_the_cpu_to_the_gpu(gpu: FakeGpu) -> None:
    x = there(3)
    assert not gpu.copies
    copies: list[Callable[[], object]] = [
        lambda: torch.ones(2).to("cuda"), torch.ones(2).cuda, lambda: x.copy_(torch.ones(3)),
        lambda: torch.tensor(1.0, device="cuda"), lambda: x.new_tensor([1, 2]),
        lambda: torch.as_tensor(np.ones(2), device="cuda"), lambda: x[torch.tensor([0])],
        lambda: torch.tensor(torch.ones(2).tolist(), device="cuda"),
    ]  # fmt: skip
    for count, copied in enumerate(copies, start=1):
        copied()
        assert gpu.copies.total() == count
    assert not gpu.reads


def test_launches_are_operators_with_a_kernel_backward_passes_included(gpu: FakeGpu) -> None:
    w = there(2, 2).requires_grad_()
    x, here = there(3, 2), torch.ones(3, 2)
    gpu.forget()
    here @ here.mT
    x.mT.unsqueeze(0)[0]
    assert not gpu.launches
    (x @ w).relu().sum().backward()
    assert gpu.launches["mm"] == 2
    assert {"relu", "sum", "threshold_backward"} <= gpu.launches.keys()
    assert w.grad is not None
    assert w.grad.device == CUDA
    with gpu.uncounted():
        x.sum().item()
    assert not gpu.reads
