"""K networks of one architecture trained side by side: their data, their parameters, their steps.

    θ, v  parameters and moments of the optimiser, a row of a matrix [K, P] for each network
    g  <-  ∇ Σ_k L_k + d θ,    g_k <- g_k min(1, c / ‖g_k‖),    v <- μ v + g,    θ <- θ − ρ v

    L_k  loss of network k on its own minibatch     d  weight decay [K, P]     c  largest norm
    ρ    learning rates [K, 1] or [K, P]            μ  momentum; or the moments of Adam

One step is one operator for each sign above, for any number of networks and tensors. While a
`Program` is open, the parameters of each network are views of its row, so a network can be read at
any step; when it closes, parameters and optimisers own their memory again.

Networks may have different numbers of steps in an epoch: those that have finished leave, and the
others go on. With one network the same program is the plain training.

A step reads no number from the device and copies nothing to or from it.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import NamedTuple

import torch
from torch import Tensor, nn

from nas_evidence.curvature.layers import is_perceptron
from nas_evidence.data.augmentation import moved
from nas_evidence.data.tensors import TensorData
from nas_evidence.likelihoods import likelihood
from nas_evidence.spec.study import TrainingPlan
from nas_evidence.training.compiled import Forward, in_precision, planned
from nas_evidence.training.optimiser import Optimiser
from nas_evidence.training.perceptrons import LINE, Perceptrons, aligned
from nas_evidence.training.stacked import Stack, can_stack, stacked_outputs

#: Maximum number of trainings side by side.
MOST_TOGETHER = 8
#: Numbers of inputs that are gathered at once, for several minibatches of all networks.
_GATHERED = 1 << 19
#: On a CPU: parameters from which networks without convolutions gain nothing from being stacked,
#: and numbers in the largest layer of all stacked networks beyond which they lose (CNN-16 on 8x8
#: images: three 1.2 times faster, five 0.8 times). Other devices gain from any number.
_WIDE, _LARGEST = 1 << 16, 3 << 18
#: Largest gradient norm of a step; 0 for no limit.
GRADIENT_CLIP = 2.0
#: Added to a norm before a division by it, as in torch.
_TINY = 1e-6


def is_stacked(model: nn.Module, n: int) -> bool:
    """Tell whether a program of `n` such networks uses their stacked form.

    Networks of convolutions gain even alone: by memory layout, and fewer passes over images.
    """
    return can_stack(model) and (n > 1 or has_convolutions(model))


def n_together(model: nn.Module, example: Tensor, batch_size: int, n: int) -> int:
    """Return how many of `n` such networks to train as one program; 1 for one after another.

    Measured with batches of 128 on one CPU core; see `benchmarks/cost_of_training.py`.

    Args:
        model: one of them.
        example: an input [1, ...] on its device.
        batch_size: of each network.
        n: trainings that are to do an epoch.
    """
    if n == 1 or not can_stack(model):
        return 1
    if example.device.type != "cpu":
        return n
    if not has_convolutions(model):
        return n if sum(p.numel() for p in model.parameters()) < _WIDE else 1
    most = max(1, _LARGEST // (batch_size * _largest_layer(model, example)))
    return -(-n // -(-n // most))  # groups of equal size


def has_convolutions(model: nn.Module) -> bool:
    """Tell whether a network has convolutions."""
    return any(parameter.ndim == 4 for parameter in model.parameters())


@torch.no_grad()
def _largest_layer(model: nn.Module, example: Tensor) -> int:
    """Return the most numbers that a layer returns for one example."""
    sizes: list[int] = []

    def note(module: nn.Module, inputs: object, output: Tensor) -> None:
        sizes.append(output.numel())

    handles = [module.register_forward_hook(note) for module in model.modules()]
    try:
        model(example)
    finally:
        for handle in handles:
            handle.remove()
    return max(sizes)


class Batch(NamedTuple):
    """A minibatch for each of K networks.

    step     of the epoch, from 0
    x, y     [K, B, ...]
    sizes    data of each network [K]; fewer than B where a row is padded at its end
    is_real  [K, B], 0 for padding; None if no row is padded

    The networks are the first ones of the program.
    """

    step: int
    x: Tensor
    y: Tensor
    sizes: tuple[int, ...]
    is_real: Tensor | None

    def mean(self, each: Tensor) -> Tensor:
        """Return the means over data [K] of a quantity [K, B]."""
        if self.is_real is None:
            return each.mean(1)
        return (each * self.is_real).sum(1) / self.is_real.sum(1)

    def sums_of(self, means: Tensor) -> "LossSums":
        """Return the sums over data that belong to some means [K]."""
        if self.is_real is None:
            return LossSums(means, self.x.shape[1])
        return LossSums(means * self.is_real.sum(1), 1)


class LossSums(NamedTuple):
    """The sums over data of the losses of the first networks.

    values  [n], to be multiplied by `factor`
    """

    values: Tensor
    factor: int


def totals_of(each: Sequence[LossSums], n: int) -> list[float]:
    """Return the totals of `n` networks; the values are read from the device at once."""
    totals = [0.0] * n
    values = iter(torch.cat([one.values for one in each]).tolist())
    for one in each:
        for k in range(len(one.values)):
            totals[k] += one.factor * next(values)
    return totals


def minibatches(
    data: Sequence[TensorData],
    orders: Sequence[Sequence[Tensor]],
    batch_size: int,
    moves: Sequence[Sequence[Tensor | None]],
) -> Iterator[Iterator[Batch]]:
    """Return the minibatches of some epochs, each step by step; an epoch is taken before the next.

    The data of several steps are gathered at once, and of several epochs if these are short.

    Args:
        data: of each network; those with more data come first.
        orders: of each epoch, a permutation [n] for each network, on the CPU.
        batch_size: B; the last one of a network may be smaller.
        moves: of each epoch, those of the images of each network; None for images as they are.
    """
    counts = [len(order) for order in orders[0]]
    steps = _steps(counts, batch_size, data[0].y_train.device)
    n_inputs = data[0].x_train.shape[1:].numel()
    per_step = batch_size * max(1, n_inputs)
    n_steps = max(1, _GATHERED // (per_step * len(data)))
    at_line = LINE // math.gcd(LINE, per_step)  # after so many steps a minibatch begins at a line
    n_steps = -(-n_steps // at_line) * at_line
    moves_images = any(each is not None for one in moves for each in one)
    n_epochs = 1 if moves_images else max(1, n_steps // (steps[-1].at + 1))
    for first in range(0, len(orders), n_epochs):
        some = orders[first : first + n_epochs]
        of_each = zip(data, zip(*some, strict=True), moves[first], strict=True)
        rows = [_Rows.of(*each) for each in of_each]
        if len(some) == 1:
            yield _of_an_epoch(rows, steps, batch_size, n_steps)
        else:
            x, y = _gathered(rows, len(some), 0, counts[0])
            yield from (_batches(x[:, at], y[:, at], steps, batch_size) for at in range(len(some)))


@dataclass(frozen=True)
class _Step:
    """A step of every epoch: see `Batch`; the networks that have not finished are the first."""

    at: int
    sizes: tuple[int, ...]
    is_real: Tensor | None


def _steps(counts: Sequence[int], size: int, device: torch.device) -> list[_Step]:
    """Return the steps of an epoch, for the numbers of data of the networks, the largest first."""
    found = []
    for at in range(-(-counts[0] // size)):
        sizes = tuple(min(size, count - at * size) for count in counts if count > at * size)
        is_real = None if min(sizes) == max(sizes) else _is_real(sizes, device)
        found.append(_Step(at, sizes, is_real))
    return found


def _of_an_epoch(
    rows: Sequence["_Rows"], steps: Sequence[_Step], size: int, n_steps: int
) -> Iterator[Batch]:
    """Return the minibatches of one epoch, some steps at a time."""
    for start in range(0, steps[-1].at + 1, n_steps):
        some = [step for step in steps if start <= step.at < start + n_steps]
        n_active = max(len(step.sizes) for step in some)
        stop = (some[-1].at + 1) * size
        x, y = _gathered(rows[:n_active], 1, start * size, stop)
        yield from _batches(x[:, 0], y[:, 0], some, size)


def _batches(x: Tensor, y: Tensor, steps: Sequence[_Step], size: int) -> Iterator[Batch]:
    """Return the minibatches of some steps from data [K, n, ...] that begin with the first."""
    for step in steps:
        networks = slice(len(step.sizes))
        begin = (step.at - steps[0].at) * size
        part = slice(begin, begin + max(step.sizes))
        x_part, y_part = x[networks, part], y[networks, part]
        yield Batch(step.at, x_part, y_part, step.sizes, step.is_real)


@dataclass(frozen=True)
class _Rows:
    """The data of one network and their orders in some epochs, where each is indexed."""

    data: TensorData
    order_x: Tensor  # [epochs, n], on the CPU for rows of a file, else on the device
    order_y: Tensor  # [epochs, n], on the device
    moves: Tensor | None  # in the order of a single epoch, on the device

    @classmethod
    def of(cls, data: TensorData, orders: Sequence[Tensor], moves: Tensor | None) -> "_Rows":
        order = torch.stack(list(orders))
        on_device = order.to(data.y_train.device)
        order_x = on_device if isinstance(data.x_train, Tensor) else order
        if moves is not None:
            moves = moves.to(data.y_train.device)
        return cls(data, order_x, on_device, moves)

    def part(self, start: int, stop: int, n: int) -> tuple[Tensor, Tensor]:
        """Return `n` data at some places in the order of each epoch [epochs * n, ...].

        Those at the end of an epoch repeat its first.
        """
        x, y = self.data.x_train, self.data.y_train
        some = _padded(self.order_x[:, start:stop], n).flatten()
        picked = x.index_select(0, some) if isinstance(x, Tensor) else x[some]
        if self.moves is not None:
            places = torch.arange(start, start + n, device=self.order_y.device)
            last = self.order_y.shape[1]
            picked = moved(picked, self.moves[torch.where(places < last, places, start)])
        return picked, y.index_select(0, _padded(self.order_y[:, start:stop], n).flatten())


def _gathered(
    rows: Sequence[_Rows], n_epochs: int, start: int, stop: int
) -> tuple[Tensor, Tensor]:
    """Return the data at some places in the order of each epoch [K, epochs, n, ...]."""
    most = max(row.order_y[:, start:stop].shape[1] for row in rows)
    most = -(-most // LINE) * LINE  # each network's begin at a line of memory
    parts = [row.part(start, stop, most) for row in rows]
    x, y = (
        torch.stack(each).view(len(rows), n_epochs, most, *each[0].shape[1:])
        for each in zip(*parts, strict=True)
    )
    return x, y


def _is_real(sizes: Sequence[int], device: torch.device) -> Tensor:
    found = torch.zeros(len(sizes), max(sizes), device=device)
    for row, size in zip(found, sizes, strict=True):
        row[:size] = 1
    return found


def _padded(x: Tensor, n: int) -> Tensor:
    """Return `n` places of each epoch [epochs, n]; those at the end repeat the first."""
    if x.shape[1] == n:
        return x
    return torch.cat([x, x[:, :1].expand(-1, n - x.shape[1])], 1)


class Program(AbstractContextManager["Program"]):
    """The parameters of K networks as rows of one matrix, and their optimiser.

    theta    [K, P]
    moments  of the optimiser, each [K, P]
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        optimisers: Sequence[Optimiser],
        plan: TrainingPlan,
    ) -> None:
        self.models, self.optimisers, self.plan = models, optimisers, plan
        self._likelihood = likelihood(plan.likelihood)  # at the scale 1; `step` is given others
        self._network = models[0]
        self.parameters: list[list[Tensor]] = [list(model.parameters()) for model in models]
        self.sizes = [parameter.numel() for parameter in self.parameters[0]]
        self.stacks = is_stacked(models[0], len(models))
        assert self.stacks or len(models) == 1
        names = ("exp_avg", "exp_avg_sq") if plan.optimiser == "adam" else ("momentum_buffer",)
        self._names = names if plan.optimiser == "adam" or plan.momentum else ()
        self._leaves: dict[int, list[Tensor]] = {}
        self._views: dict[int, _Views] = {}
        relative = [list(optimiser.relative) for optimiser in optimisers]
        self._relative = relative if any(one != 1 for row in relative for one in row) else None
        self._decay: Tensor | None = None  # [K, P], of the decay as set last
        self._set: Tensor | None = None
        self._rates: Tensor | None = None  # [K, 1] or [K, P]
        self._corrections: dict[tuple[tuple[int, ...], ...], _Corrections] = {}
        self._perceptrons: Perceptrons | None = None

    def __enter__(self) -> "Program":
        self.theta = aligned([_flat([p.detach() for p in row]) for row in self.parameters])
        self.moments = [aligned([_flat(row) for row in self._moment(n)]) for n in self._names]
        self._homes = [[p.data for p in row] for row in self.parameters]
        for row, values in zip(self.parameters, self.theta, strict=True):
            for parameter, value in zip(row, torch.split(values, self.sizes), strict=True):
                parameter.data = value.view_as(parameter)
        compiled = self.plan.compile and self.theta.device.type == "cuda"
        if is_perceptron(self._network) and self.plan.precision == "float32" and not compiled:
            shapes = [parameter.shape for parameter in self.parameters[0]]
            self._perceptrons = Perceptrons(self.theta, shapes, self._likelihood)
        self._decays, self._tiny, self._epsilon, self._clip = (
            torch.tensor(one, dtype=self.theta.dtype)
            for one in (_BETAS[1], _TINY, _EPSILON, GRADIENT_CLIP)
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for row, homes in zip(self.parameters, self._homes, strict=True):
            for parameter, home in zip(row, homes, strict=True):
                parameter.data = home.copy_(parameter.data)
        for name, moments in zip(self._names, self.moments, strict=True):
            for row, values in zip(self._moment(name), moments, strict=True):
                for home, value in zip(row, torch.split(values, self.sizes), strict=True):
                    home.copy_(value.view_as(home))
        self._leaves, self._views, self._perceptrons = {}, {}, None

    def _moment(self, name: str) -> list[list[Tensor]]:
        return [optimiser.moment(name) for optimiser in self.optimisers]

    def set_decay(self, decay: Tensor) -> None:
        """Set the weight decay of each network, one factor per parameter tensor [K, G]."""
        if decay is self._set or (self._set is not None and torch.equal(decay, self._set)):
            return
        self._set, sizes = decay, torch.tensor(self.sizes)
        self._decay = _into(self._decay, decay.repeat_interleave(sizes, 1).to(self.theta))

    def begin_epoch(self, rates: Sequence[float], n_steps: Sequence[int]) -> None:
        """Set what is constant in an epoch.

        Args:
            rates: the learning rate of each network.
            n_steps: of each network.
        """
        found = self.theta.new_tensor(list(rates))[:, None]
        if self._relative is not None:
            each = found * self.theta.new_tensor(self._relative)
            sizes = torch.tensor(self.sizes, device=self.theta.device)
            found = each.repeat_interleave(sizes, 1, output_size=sum(self.sizes))
        self._rates = _into(self._rates, found)
        if self.plan.optimiser == "adam":
            self._correct(n_steps)

    def _correct(self, n_steps: Sequence[int]) -> None:
        """Take Adam's corrections of each step of an epoch, and count its steps."""
        done, n_each = tuple(one.steps for one in self.optimisers), tuple(n_steps)
        for optimiser, n in zip(self.optimisers, n_each, strict=True):
            optimiser.steps += n
        if (done, n_each) not in self._corrections:
            self._corrections = _corrections(done, n_each, self.theta)
        of_epoch = self._corrections[done, n_each]
        self._first, self._second = of_epoch.first.unbind(), of_epoch.second.unbind()

    def outputs(self, x: Tensor) -> Tensor:
        """Return the outputs [K, B, C] of the first K networks on inputs [K, B, ...]."""
        return self._forward(self.leaves(len(x)), x)

    @cached_property
    def _forward(self) -> Forward:
        """The outputs as a function of the leaves and the inputs, run as the plan wants."""
        model, ids = self._network, [id(parameter) for parameter in self.parameters[0]]

        def stacked(leaves: list[Tensor], x: Tensor) -> Tensor:
            return stacked_outputs(model, Stack(len(x), dict(zip(ids, leaves, strict=True))), x)

        def alone(_: list[Tensor], x: Tensor) -> Tensor:
            outputs: Tensor = model(x[0])
            return outputs[None]

        device = self.theta.device
        if self.stacks:
            return planned(stacked, model, self.plan, device)
        return in_precision(alone, self.plan, device)

    def leaves(self, n: int) -> list[Tensor]:
        """Return the parameters of the first networks as tensors [n, *shape], views of θ."""
        if not self.stacks:
            return self.parameters[0]
        if n not in self._leaves:
            parts = torch.split(self.theta[:n], self.sizes, 1)
            self._leaves[n] = [
                part.view(len(part), *p.shape).requires_grad_()
                for part, p in zip(parts, self.parameters[0], strict=True)
            ]
        return self._leaves[n]

    def step(self, batch: Batch, scale: Tensor | None) -> Tensor:
        """Take the step of a minibatch; return the mean nll of each network before it [K], nats.

        Args:
            batch: the data.
            scale: noise standard deviations or softmax temperatures [K, 1], or noises of
                each output [K, C]; None if all are 1.
        """
        if self._perceptrons is not None:
            with torch.no_grad():
                given = batch.x, batch.y, batch.is_real, scale
                nll, gradient = self._perceptrons.descent(*given)
                self._descend(gradient, batch)
            return nll
        outputs = self.outputs(batch.x)
        means = self._likelihood.nll(outputs, batch.y, scale, batch.mean)
        loss = means if scale is None else self._likelihood.common(scale).square() * means
        parts = torch.autograd.grad(loss.sum(), self.leaves(len(means)), materialize_grads=True)
        gradient = torch.cat([part.reshape(len(means), -1) for part in parts], 1)
        with torch.no_grad():
            self._descend(gradient, batch)
        return means.detach()

    def _descend(self, gradient: Tensor, batch: Batch) -> None:
        """Take a step along the gradients [K, P] of the losses, which is overwritten.

        Factors are tensors: a number that becomes one at each call costs as much as the product.
        """
        views = self._views_of(len(batch.sizes))
        gradient.addcmul_(views.theta, views.decay)
        if GRADIENT_CLIP:
            norm = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
            gradient.mul_(torch.div(self._clip, norm.add_(self._tiny)).clamp_(max=1.0))
        if self.plan.optimiser == "adam":
            update = self._adam(gradient, views, batch.step)
        elif views.moments:
            update = views.moments[0].mul_(self.plan.momentum).add_(gradient)
        else:
            update = gradient
        views.theta.addcmul_(update, views.rates, value=-1)

    def _adam(self, gradient: Tensor, views: "_Views", step: int) -> Tensor:
        """Return the direction of Adam (Kingma & Ba 2015), with the defaults of torch."""
        mean, square = views.moments
        first, second = self._first[step], self._second[step]
        if views.rows is not None:
            first, second = first[views.rows], second[views.rows]
        mean.lerp_(gradient, 1 - _BETAS[0])
        square.mul_(self._decays).addcmul_(gradient, gradient, value=1 - _BETAS[1])
        below = square.sqrt().div_(second).add_(self._epsilon)
        return (mean * first).div_(below)

    def _views_of(self, n: int) -> "_Views":
        """Return the views of the first networks, made once: a slice costs half an operator."""
        if (found := self._views.get(n)) is None:
            assert self._decay is not None
            assert self._rates is not None
            rows = slice(n)
            found = self._views[n] = _Views(
                None if n == len(self.theta) else rows,
                self.theta[rows],
                self._decay[rows],
                self._rates[rows],
                [moment[rows] for moment in self.moments],
            )
        return found


@dataclass(frozen=True)
class _Views:
    """What a step of some networks changes and uses: views of the tensors of a `Program`.

    rows     the networks; None for all
    theta    [n, P]
    decay    [n, P]
    rates    [n, 1] or [n, P]
    moments  each [n, P]
    """

    rows: slice | None
    theta: Tensor
    decay: Tensor
    rates: Tensor
    moments: list[Tensor]


class _Corrections(NamedTuple):
    """Of each step of an epoch [steps, K, 1]: see `Program._adam`.

    first   factors on the first moment
    second  divisors of the root of the second
    """

    first: Tensor
    second: Tensor


def _corrections(
    done: tuple[int, ...], n_steps: tuple[int, ...], like: Tensor
) -> dict[tuple[tuple[int, ...], ...], _Corrections]:
    """Return the corrections of some epochs, by the steps taken before and those of an epoch."""
    taken = [
        tuple(before + at * n for before, n in zip(done, n_steps, strict=True))
        for at in range(_AHEAD)
    ]
    steps = torch.arange(1, max(n_steps) + 1, dtype=torch.float64)
    t = torch.tensor(taken, dtype=torch.float64)[:, None] + steps[:, None]
    first = (1 / (1 - _BETAS[0] ** t)).to(like)[..., None]
    second = (1 - _BETAS[1] ** t).sqrt().to(like)[..., None]
    keys = [(before, n_steps) for before in taken]
    return dict(zip(keys, map(_Corrections, first, second), strict=True))


#: Epochs whose corrections are computed at once: on few rows they cost as much as a step.
_AHEAD = 16
#: The moments of Adam decay at these rates; added to its denominator.
_BETAS, _EPSILON = (0.9, 0.999), 1e-8


def _into(held: Tensor | None, values: Tensor) -> Tensor:
    """Return values in the memory that is held, of which there may be views; else themselves."""
    return values if held is None else held.copy_(values)


def _flat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in parts])
