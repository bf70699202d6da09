"""The invented GPU: what it refuses and what it lets pass is what CUDA would; its counts."""

import copy
import io
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


def test_what_is_made_or_moved_there_says_so_and_what_it_gives_is_there(gpu: FakeGpu) -> None:
    x = torch.arange(6.0).view(2, 3).to("cuda")
    assert (x.device, x.is_cuda, x.is_cpu) == (CUDA, True, False)
    made = (
        x + 1, x[0], x.mT @ x, x.sum(), torch.zeros_like(x), x.new_ones(2), x.double(),
        torch.eye(2, device=x.device), x.cuda(), x.clone().detach(), torch.empty(2, device=0),
        torch.linalg.eigvalsh(x.mT @ x), torch.as_tensor(np.ones(2), device="cuda"),
        torch.tensor([1.0], device="cuda"), torch.ones(2).to(x), torch.ones(2).type_as(x),
        torch.as_tensor(x), x.new_tensor([1.0]), torch.nonzero(x), *x.unbind(), *x.max(1),
    )  # fmt: skip
    assert [one.device for one in made] == [CUDA] * len(made)
    here = (
        x.cpu(), x.to("cpu"), torch.zeros(2), torch.zeros_like(x, device="cpu"),
        torch.tensor(x.tolist()), torch.arange(2), torch.ones(2).to(torch.float64),
    )  # fmt: skip
    assert {one.device.type for one in here} == {"cpu"}
    assert (x.cpu() + 1).flatten().tolist() == [1, 2, 3, 4, 5, 6]


def test_a_copy_shares_nothing_and_a_view_shares_all(gpu: FakeGpu) -> None:
    x = torch.zeros(3)
    y = x.to("cuda")
    y[0] = 1
    assert x.tolist() == [0, 0, 0]
    y.view(3, 1)[1] = 2
    assert y.tolist() == [1, 2, 0]
    assert y.to("cuda") is y


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


def test_the_refusal_names_operator_shapes_and_places(gpu: FakeGpu) -> None:
    with pytest.raises(DeviceError, match=r"aten\.mul: .* got gpu \(2, 3\), cpu \(3,\)"):
        there(2, 3) * torch.ones(3)


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


def test_hooks_of_a_backward_pass_see_where_tensors_are(gpu: FakeGpu) -> None:
    seen = []

    def look(g: Tensor) -> None:
        seen.append((g.device, (g * torch.zeros(2, device=g.device)).device))

    x = there(2).requires_grad_()
    for run in (lambda y: y.sum().backward(), lambda y: torch.autograd.grad(y.sum(), x)):
        y = x * 2
        y.register_hook(look)
        run(y)
    assert seen == [(CUDA, CUDA)] * 2


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx, g):  # type: ignore[no-untyped-def]
        return 2 * ctx.saved_tensors[0] * g * torch.ones(2)  # on the CPU


def test_a_formula_for_gradients_that_mixes_devices_is_refused(gpu: FakeGpu) -> None:
    total = Squared.apply(there(2).requires_grad_()).sum()
    with pytest.raises(DeviceError, match=r"aten\.mul"):
        total.backward()


def test_modules_move_with_their_gradients_buffers_and_copies(gpu: FakeGpu) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).to("cuda")
    again = copy.deepcopy(model)
    for one in (model, again):
        tensors = [*one.parameters(), *one.buffers()]
        assert [t.device for t in tensors] == [CUDA] * len(tensors)
        one(there(5, 3)).sum().backward()
        assert {p.grad.device for p in one.parameters() if p.grad is not None} == {CUDA}
    assert copy.deepcopy(there(2)).device == CUDA
    assert not gpu.reads
    assert {t.device.type for t in model.cpu().state_dict().values()} == {"cpu"}
    assert {t.device for t in again.state_dict().values()} == {CUDA}


@pytest.mark.slow
@pytest.mark.parametrize("adam", [False, True])
def test_optimisers_step_there_and_continue_from_a_stored_state(adam: bool, gpu: FakeGpu) -> None:
    def trained(device: str) -> Tensor:
        w = torch.ones(3, device=device, requires_grad=True)
        make = torch.optim.Adam if adam else torch.optim.SGD
        how = {"lr": 0.1} if adam else {"lr": 0.1, "momentum": 0.9}
        optimiser = make([w], **how)
        for step in range(4):
            if step == 2:
                file = io.BytesIO()
                state = optimiser.state_dict()
                torch.save(state, file)
                file.seek(0)
                optimiser = make([w], **how)
                optimiser.load_state_dict(torch.load(file, map_location="cpu"))
            optimiser.zero_grad()
            w.pow(3).sum().backward()
            optimiser.step()
        assert w.device.type == device
        return w.detach().cpu()

    assert trained("cuda").tolist() == pytest.approx(trained("cpu").tolist(), rel=1e-6)


def test_stored_tensors_come_back_on_the_cpu(gpu: FakeGpu) -> None:
    file = io.BytesIO()
    torch.save({"x": there(2).cpu()}, file)
    file.seek(0)
    loaded = torch.load(file, map_location="cpu")["x"]
    assert loaded.device.type == "cpu"
    with pytest.raises(DeviceError):
        there(2) + loaded


@pytest.mark.slow
def test_vmap_and_grad_run_there_with_their_values(gpu: FakeGpu) -> None:
    def value(w: Tensor, x: Tensor) -> Tensor:
        return (w * x).sum() ** 2

    x = torch.arange(6.0, device="cuda").view(3, 2)
    found = vmap(grad(value), (None, 0))(there(2), x)
    assert found.device == CUDA
    truth = vmap(grad(value), (None, 0))(torch.ones(2), x.cpu())
    assert found.tolist() == truth.tolist()


@pytest.mark.slow
def test_meta_stays_meta(gpu: FakeGpu) -> None:
    x = there(2).to("meta")
    assert (x + x).is_meta
    assert torch.zeros(2, device="meta").is_meta


def test_without_it_all_is_as_before() -> None:
    before = torch.Generator, torch.cuda.is_available()
    with FakeGpu():
        assert torch.cuda.is_available()
        x = there(2)
    assert (torch.Generator, torch.cuda.is_available()) == before
    assert x.device.type == "cpu"
    with FakeGpu():
        assert x.device == CUDA
