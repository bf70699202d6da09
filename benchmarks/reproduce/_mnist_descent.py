"""MNIST by plain descent with its entropy, one draw, for Figs. 4 and 5 of Duvenaud et al. 2016.

    784-h-10 of tanh units, 50,000 images, gradients of N/M Σ_batch nll, steps of α = rate / N
    L_t = log p(D, θ_t) + S_t          S by one Hessian product per step (scores/sgd_entropy.py)

float32 on as many threads as torch has; sums over the data in float64.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from nas_evidence.maths.largest_eigenvalue import largest_eigenvalue
from nas_evidence.scores.sgd_entropy import one_product_bound

from ._shared_data import Images, images

N_TRAIN = 50_000


def mnist(data: Path) -> Images:
    """Return the first 50,000 training images and all test images."""
    (x, y), (x_test, y_test) = (images(data / "MNIST", part) for part in ("train", "t10k"))
    return Images(x[:N_TRAIN].flatten(1), y[:N_TRAIN], x_test.flatten(1), y_test)


@dataclass
class Descent:
    """What a descent had at its checkpoints, all per training datum but `error`, in nats.

    largest  upper limit of the largest eigenvalue of α H
    """

    n_parameters: int
    steps: list[int] = field(default_factory=list)
    bound: list[float] = field(default_factory=list)
    train: list[float] = field(default_factory=list)
    test: list[float] = field(default_factory=list)
    error: list[float] = field(default_factory=list)
    largest: float = 0.0


def at_end(runs: Mapping[Any, Descent], what: str) -> list[float]:
    """Return what each descent has at its last checkpoint."""
    return [getattr(one, what)[-1] for one in runs.values()]


def descended(
    images: Images,
    width: int,
    *,
    spreads: tuple[float, float],
    rate: float,
    n_steps: int,
    batch_size: int,
    threshold: float = 0.0,
) -> Descent:
    """Return the bound, likelihoods and test error along one descent.

    Args:
        images: the data.
        width: hidden units.
        spreads: standard deviation of first weights and biases in the first and second layer.
        rate: α N.
        n_steps: of descent.
        batch_size: M.
        threshold: g0 of the entropy-friendly step, in units of the summed gradient; 0 for none.
    """
    generator = torch.Generator().manual_seed(0)
    shapes = [(784, width), (width,), (width, 10), (10,)]
    scale = [spreads[0], spreads[0], spreads[1], spreads[1]]
    theta = [
        s * torch.randn(shape, generator=generator) for shape, s in zip(shapes, scale, strict=True)
    ]
    sizes, n = [p.numel() for p in theta], len(images.x)
    entropy = sum(
        size * (0.5 * (1 + math.log(2 * math.pi)) + math.log(s))
        for size, s in zip(sizes, scale, strict=True)
    )
    found, alpha = Descent(sum(sizes)), rate / n
    checkpoints = {round(n_steps * f) for f in (0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1)}
    for t in range(n_steps + 1):
        rows = torch.randint(0, n, (batch_size,), generator=generator)
        gradient, product = _local(theta, images.x[rows], images.y[rows], n / batch_size)
        flat = torch.cat([g.detach().flatten() for g in gradient])
        squash = (flat / threshold).tanh() if threshold else torch.ones_like(flat)
        root = squash.abs()
        if t in checkpoints:
            _note(found, t, theta, scale, images, entropy)
        if t in (0, n_steps // 10, n_steps):
            upper = largest_eigenvalue(
                lambda v: (alpha * root * product(root * v[0]))[None],  # noqa: B023
                flat[None], generator=generator,
            )[1]  # fmt: skip
            found.largest = max(found.largest, float(upper))
        if t == n_steps:
            break
        probe = torch.randint(0, 2, flat.shape, generator=generator).float() * 2 - 1
        entropy += float(one_product_bound(lambda u: alpha * product(u), probe, root)[0])  # noqa: B023
        kept = flat - threshold * squash if threshold else flat
        theta = [p - alpha * g.view_as(p) for p, g in zip(theta, kept.split(sizes), strict=True)]
    return found


def _outputs(theta: list[Tensor], x: Tensor) -> Tensor:
    return torch.tanh(x @ theta[0] + theta[1]) @ theta[2] + theta[3]


def _local(
    theta: list[Tensor], x: Tensor, y: Tensor, factor: float
) -> tuple[Sequence[Tensor], Callable[[Tensor], Tensor]]:
    """Return the gradient of the scaled loss and its Hessian product of flat vectors."""
    leaves = [p.detach().requires_grad_(True) for p in theta]
    loss = factor * cross_entropy(_outputs(leaves, x), y, reduction="sum")
    gradient = torch.autograd.grad(loss, leaves, create_graph=True)

    def product(u: Tensor) -> Tensor:
        pairs = zip(gradient, u.split([p.numel() for p in leaves]), strict=True)
        inner = torch.stack([(g * v.view_as(g)).sum() for g, v in pairs]).sum()
        image = torch.autograd.grad(inner, leaves, retain_graph=True)
        return torch.cat([g.flatten() for g in image])

    return gradient, product


@torch.no_grad()
def _note(
    found: Descent, t: int, theta: list[Tensor], scale: list[float], images: Images, entropy: float
) -> None:
    n = len(images.x)
    nll = cross_entropy(_outputs(theta, images.x), images.y, reduction="none").double().sum()
    outputs = _outputs(theta, images.x_test)
    log_prior = sum(
        float(-0.5 * (p.double() / s).square().sum())
        - p.numel() * (0.5 * math.log(2 * math.pi) + math.log(s))
        for p, s in zip(theta, scale, strict=True)
    )
    found.steps.append(t)
    found.bound.append((float(-nll) + log_prior + entropy) / n)
    found.train.append(float(-nll) / n)
    found.test.append(-float(cross_entropy(outputs, images.y_test)))
    found.error.append(float((outputs.argmax(1) != images.y_test).double().mean()))
