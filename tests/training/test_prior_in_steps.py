"""The prior of your own loop: whatever the optimiser does, the weights are those of ridge."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from messages import refused
from torch import Tensor, nn
from torch.testing import assert_close

import nas_evidence

NOISE, PRIOR = 0.7, 100.0
#: A loop: takes the model, its optimiser, the loss of a batch, the data and the number of steps.
Loop = Callable[[nn.Module, Any, Callable[[Tensor, Tensor], Tensor], Tensor, Tensor, int], None]


def problem() -> tuple[Tensor, Tensor, Tensor]:
    """Inputs [60, 3], targets [60, 1], and the ridge solution [3] for PRIOR and NOISE."""
    random = torch.Generator().manual_seed(3)
    x = torch.randn(60, 3, generator=random).double()
    y = x @ torch.tensor([[-0.7], [1.5], [2.0]]).double()
    y += NOISE * torch.randn(60, 1, generator=random).double()
    ridge = torch.linalg.solve(x.T @ x + NOISE**2 * PRIOR * torch.eye(3).double(), x.T @ y)[:, 0]
    return x, y, ridge


def plain(model: Any, optimiser: Any, loss: Any, x: Tensor, y: Tensor, steps: int) -> None:
    for _ in settling(optimiser, steps):
        optimiser.zero_grad()
        loss(model(x), y).backward()
        optimiser.step()


def settling(optimiser: torch.optim.Optimizer, steps: int) -> Iterator[int]:
    """Steps with a learning rate that falls to nothing, for optimisers that never stand still."""
    rates = [float(group["lr"]) for group in optimiser.param_groups]
    for step in range(steps):
        for group, rate in zip(optimiser.param_groups, rates, strict=True):
            now = rate * (1 - step / steps) ** 2
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(now)
            else:
                group["lr"] = now
        yield step


def closure_of(
    model: Any, optimiser: Any, loss: Any, x: Tensor, y: Tensor
) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        optimiser.zero_grad()
        found = loss(model(x), y)
        found.backward()
        return found

    return closure


def by_closure(model: Any, optimiser: Any, loss: Any, x: Tensor, y: Tensor, steps: int) -> None:
    for _ in settling(optimiser, steps):
        optimiser.step(closure_of(model, optimiser, loss, x, y))


def by_keyword(model: Any, optimiser: Any, loss: Any, x: Tensor, y: Tensor, steps: int) -> None:
    for _ in settling(optimiser, steps):
        optimiser.step(closure=closure_of(model, optimiser, loss, x, y))


def zeros_kept(model: Any, optimiser: Any, loss: Any, x: Tensor, y: Tensor, steps: int) -> None:
    for _ in settling(optimiser, steps):
        optimiser.zero_grad(set_to_none=False)
        optimiser.step(lambda: loss(model(x), y).backward())


def accumulated(model: Any, optimiser: Any, loss: Any, x: Tensor, y: Tensor, steps: int) -> None:
    for _ in settling(optimiser, steps):
        model.zero_grad()
        for rows in torch.arange(len(x)).split(20):
            (loss(model(x[rows]), y[rows]) / 3).backward()
        optimiser.step()


def scaled(model: Any, optimiser: Any, loss: Any, x: Tensor, y: Tensor, steps: int) -> None:
    scaler = torch.amp.GradScaler("cpu", growth_interval=50)
    for _ in settling(optimiser, steps):
        optimiser.zero_grad()
        scaler.scale(loss(model(x), y)).backward()
        scaler.step(optimiser)
        scaler.update()


def unscaled(model: Any, optimiser: Any, loss: Any, x: Tensor, y: Tensor, steps: int) -> None:
    scaler = torch.amp.GradScaler("cpu", growth_interval=50)
    for _ in settling(optimiser, steps):
        optimiser.zero_grad()
        scaler.scale(loss(model(x), y)).backward()
        scaler.unscale_(optimiser)
        nn.utils.clip_grad_norm_(model.parameters(), 1e6)
        scaler.step(optimiser)
        scaler.update()


def ascending(model: Any, optimiser: Any, loss: Any, x: Tensor, y: Tensor, steps: int) -> None:
    plain(model, optimiser, lambda f, target: -loss(f, target), x, y, steps)


def retaken(model: Any, optimiser: Any, loss: Any, x: Tensor, y: Tensor, steps: int) -> None:
    """Each step is tried, taken back and taken again with the same gradients."""
    for _ in settling(optimiser, steps):
        optimiser.zero_grad()
        loss(model(x), y).backward()
        before = copy.deepcopy(model.state_dict())
        optimiser.step()
        model.load_state_dict(before)
        optimiser.step()


def weights(loop: Loop, make: Callable[[nn.Module], Any], steps: int) -> Tensor:
    x, y, _ = problem()
    torch.manual_seed(0)
    model = nn.Linear(3, 1, bias=False).double()
    optimiser = make(model)
    laplace = nas_evidence.online_laplace(
        model, optimiser, (x, y), likelihood="gaussian", curvature="full_ggn", every=10**6,
        prior_precision=PRIOR, noise_std=NOISE, learn_noise=False,
    )  # fmt: skip
    loop(model, optimiser, laplace.loss, x, y, steps)
    laplace.after_epoch()
    return model.weight.detach()[0]


class Twice(torch.optim.SGD):
    """Calls its closure twice in each step, as methods with an inner step do."""

    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            closure()
        return super().step(closure)


class Child(torch.optim.SGD):
    """Calls the step of its parent, which runs the hooks a second time."""

    def step(self, closure: Any = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        super().step()
        return loss


def _sgd(model: nn.Module, **more: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), **({"lr": 0.3} | more))


def _child(model: nn.Module) -> torch.optim.Optimizer:
    _sgd(model)  # from the first one on the step of the parent runs hooks, too
    return Child(model.parameters(), lr=0.3)


def _groups(model: nn.Module) -> torch.optim.Optimizer:
    optimiser = torch.optim.SGD([{"params": [], "lr": 0.01}], lr=0.2)
    optimiser.add_param_group({"params": list(model.parameters()), "lr": 0.3})
    return optimiser


QUICK: dict[str, tuple[Loop, Callable[[nn.Module], Any], int]] = {
    "plain": (plain, _sgd, 150),
    "closure": (by_closure, _sgd, 150),
    "closure by keyword": (by_keyword, _sgd, 150),
    "closure twice": (by_closure, lambda m: Twice(m.parameters(), lr=0.3), 150),
    "subclass": (plain, _child, 150),
    "subclass, closure": (by_closure, _child, 150),
    "zeros kept": (zeros_kept, _sgd, 150),
    "accumulated": (accumulated, _sgd, 150),
    "maximize": (ascending, lambda m: _sgd(m, maximize=True), 150),
    "maximize, closure": (
        lambda m, o, loss, *rest: by_closure(m, o, lambda f, t: -loss(f, t), *rest),
        lambda m: _sgd(m, maximize=True),
        150,
    ),
    "scaled": (scaled, _sgd, 150),
    "fused and scaled": (scaled, lambda m: _sgd(m, fused=True), 150),
    "fused and unscaled": (unscaled, lambda m: _sgd(m, fused=True), 150),
    "fused, scaled, maximize": (
        lambda m, o, loss, *rest: scaled(m, o, lambda f, t: -loss(f, t), *rest),
        lambda m: _sgd(m, fused=True, maximize=True),
        150,
    ),
    "fused": (plain, lambda m: _sgd(m, fused=True), 150),
    "foreach": (plain, lambda m: _sgd(m, foreach=True), 150),
    "one by one": (plain, lambda m: _sgd(m, foreach=False), 150),
    "momentum": (plain, lambda m: _sgd(m, lr=0.1, momentum=0.8, nesterov=True), 200),
    "groups": (by_closure, _groups, 150),
    "rate is a tensor": (plain, lambda m: _sgd(m, lr=torch.tensor(0.3)), 150),
    "retaken": (retaken, _sgd, 150),
    "asgd": (by_closure, lambda m: torch.optim.ASGD(m.parameters(), lr=0.3, lambd=0.0), 200),
}  # fmt: skip


@pytest.mark.parametrize("name", QUICK)
def test_the_weights_are_the_ridge_solution(name: str) -> None:
    assert_close(weights(*QUICK[name]), problem()[2], rtol=0, atol=1e-4)


#: Optimisers of torch that find the mode in 1,500 steps.
MAKERS: dict[str, Callable[[nn.Module], Any]] = {
    "Adam": lambda m: torch.optim.Adam(m.parameters(), lr=0.05),
    "amsgrad": lambda m: torch.optim.Adam(m.parameters(), lr=0.05, amsgrad=True),
    "AdamW": lambda m: torch.optim.AdamW(m.parameters(), lr=0.05, weight_decay=0),
    "NAdam": lambda m: torch.optim.NAdam(m.parameters(), lr=0.05),
    "RAdam": lambda m: torch.optim.RAdam(m.parameters(), lr=0.05),
    "Adamax": lambda m: torch.optim.Adamax(m.parameters(), lr=0.05),
    "RMSprop": lambda m: torch.optim.RMSprop(m.parameters(), lr=0.05),
    "Rprop": lambda m: torch.optim.Rprop(m.parameters(), lr=0.05),
    "Adagrad": lambda m: torch.optim.Adagrad(m.parameters(), lr=0.4),
    "Adafactor": lambda m: torch.optim.Adafactor(m.parameters(), lr=0.3),
    "fused Adam": lambda m: torch.optim.Adam(m.parameters(), lr=0.05, fused=True),
    "fused AdamW": lambda m: torch.optim.AdamW(
        m.parameters(), lr=0.05, weight_decay=0, fused=True
    ),
    "fused Adagrad": lambda m: torch.optim.Adagrad(m.parameters(), lr=0.4, fused=True),
}


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("loop", [plain, by_closure, scaled], ids=lambda loop: loop.__name__)
@pytest.mark.parametrize("name", MAKERS)
def test_every_optimiser_of_torch_finds_the_ridge_solution(loop: Loop, name: str) -> None:
    assert_close(weights(loop, MAKERS[name], 1500), problem()[2], rtol=0, atol=1e-4)


def test_gradients_are_left_as_backward_wrote_them() -> None:
    x, y, _ = problem()
    model = nn.Linear(3, 1).double()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    laplace = nas_evidence.online_laplace(model, optimiser, (x, y), likelihood="gaussian")
    laplace.loss(model(x), y).backward()
    written = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    optimiser.step()
    assert_close([p.grad for p in model.parameters()], written, rtol=0, atol=0)


def test_a_second_call_on_one_optimiser_takes_the_place_of_the_first() -> None:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        optimiser = _sgd(model)
        x, y, _ = problem()
        nas_evidence.online_laplace(
            model, optimiser, (x, y), likelihood="gaussian", prior_precision=50.0
        )
        return optimiser

    assert_close(weights(plain, make, 150), problem()[2], rtol=0, atol=1e-4)


class Ignores(torch.optim.SGD):
    """Takes a closure and does not call it."""

    def step(self, closure: Any = None) -> Any:
        return super().step()


class Wrapper(torch.optim.Optimizer):
    """Holds another optimiser, without what torch sets up in an optimiser."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.param_groups, self.defaults = inner, inner.param_groups, inner.defaults

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


@pytest.mark.parametrize(
    ("make", "code", "values"),
    [
        (torch.optim.ASGD, "own-loop-weight-decay", ["lambd", "0.0001"]),
        (lambda p: torch.optim.Muon(p), "own-loop-weight-decay", ["weight_decay", "0.1"]),
        (torch.optim.LBFGS, "own-loop-lbfgs", ["LBFGS"]),
        (lambda p: torch.optim.SGD(p, differentiable=True), "own-loop-differentiable", []),
        (lambda p: Wrapper(torch.optim.SGD(p)), "own-loop-optimiser", ["Wrapper"]),
        (lambda p: object(), "own-loop-optimiser", ["object"]),
        (lambda p: torch.optim.SGD(p, lr=0.7), "own-loop-prior-and-rate", ["weight", "0.612"]),
    ],
)
def test_an_optimiser_with_another_prior_or_without_ours_is_refused_before_training(
    make: Callable[[Any], Any], code: str, values: list[str]
) -> None:
    x, y, _ = problem()
    model = nn.Linear(3, 1, bias=False).double()
    with refused(code, *values):
        nas_evidence.online_laplace(
            model, make(list(model.parameters())), (x, y), likelihood="gaussian",
            prior_precision=PRIOR, noise_std=NOISE,
        )  # fmt: skip


def _decaying(model: nn.Module, optimiser: Any) -> None:
    optimiser.param_groups[0]["weight_decay"] = 0.01


def _replaced(model: nn.Module, optimiser: Any) -> None:
    model.weight = nn.Parameter(model.weight.detach().clone())
    model.weight.grad = torch.ones_like(model.weight)


def _sparse(model: nn.Module, optimiser: Any) -> None:
    assert isinstance(model.weight, Tensor)
    model.weight.grad = torch.ones_like(model.weight).to_sparse()


@pytest.mark.parametrize(
    ("change", "code", "values"),
    [
        (_decaying, "own-loop-weight-decay", ["weight_decay", "0.01"]),
        (_replaced, "own-loop-parameter-missing", ["weight"]),
        (_sparse, "own-loop-sparse-gradient", ["weight"]),
    ],
)
def test_what_changes_after_the_start_is_refused_at_the_next_step(
    change: Callable[[Any, Any], None], code: str, values: list[str]
) -> None:
    x, y, _ = problem()
    model = nn.Linear(3, 1, bias=False).double()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    laplace = nas_evidence.online_laplace(model, optimiser, (x, y), likelihood="gaussian")
    laplace.loss(model(x), y).backward()
    change(model, optimiser)
    before = model.weight.detach().clone()
    with refused(code, *values):
        optimiser.step()
    assert_close(model.weight.detach(), before, rtol=0, atol=0)


def test_a_closure_that_is_not_called_is_said() -> None:
    x, y, _ = problem()
    model = nn.Linear(3, 1).double()
    optimiser = Ignores(model.parameters(), lr=0.1)
    laplace = nas_evidence.online_laplace(model, optimiser, (x, y), likelihood="gaussian")
    with refused("own-loop-closure-unused", "Ignores"):
        optimiser.step(closure_of(model, optimiser, laplace.loss, x, y))


@pytest.mark.parametrize("how", ["another optimiser", "a copy", "by hand"])
def test_an_epoch_without_the_optimisers_steps_is_refused(how: str) -> None:
    x, y, _ = problem()
    model = nn.Linear(3, 1).double()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    laplace = nas_evidence.online_laplace(model, optimiser, (x, y), likelihood="gaussian", every=1)
    laplace.after_epoch()  # nothing was trained, and nothing changed
    laplace.loss(model(x), y).backward()
    if how == "another optimiser":
        torch.optim.Adam(model.parameters()).step()
    elif how == "a copy":
        other = copy.copy(optimiser)
        other.__dict__["_optimizer_step_pre_hooks"] = {}
        other.__dict__["_optimizer_step_post_hooks"] = {}
        other.step()
    else:
        with torch.no_grad():
            model.weight -= 0.1
    with refused("own-loop-no-step"):
        laplace.after_epoch()


@pytest.mark.long
@pytest.mark.slow
def test_a_step_that_is_compiled_has_the_prior() -> None:
    x, y, ridge = problem()
    model = nn.Linear(3, 1, bias=False).double()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.3)
    laplace = nas_evidence.online_laplace(
        model, optimiser, (x, y), likelihood="gaussian", curvature="full_ggn", every=10**6,
        prior_precision=PRIOR, noise_std=NOISE,
    )  # fmt: skip
    step = torch.compile(optimiser.step, backend="eager")
    for _ in range(100):
        optimiser.zero_grad()
        laplace.loss(model(x), y).backward()
        step()
    laplace.after_epoch()
    assert_close(model.weight.detach()[0], ridge, rtol=0, atol=1e-4)
