"""The data, networks, priors and first positions of Baldock and Marzari (2019).

    M(h)    256-40-...-10, h hidden layers of logistic units, linear outputs     c = 50
    M(3*)   the same with logistic units before the softmax too                  c = 1000

D_n has n digits of MNIST, shrunk to 16 x 16; the prior is uniform in |w_i| < c / √k_i.
"""

import gzip
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from nas_evidence.maths.hmc import Density
from nas_evidence.maths.hmc import Path as Densities
from nas_evidence_reproduce._finite_temperature import HeatPlan, Tempered, at_finite_temperature
from nas_evidence_reproduce._rmin import rmin

MEAN, SPREAD = 0.1307, 0.3081  # of all pixels of MNIST
UNIFORM = math.log(10)  # loss of equal probabilities


@dataclass(frozen=True)
class Digits:
    """Training and test digits [n, 256] with labels [n]."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor


def digits(data: Path, per_class: int, *, n_test: int = 2000) -> Digits:
    """Return D_50, D_500 or D_5000 (5, 50 or 500 per class) and random digits of the test set."""
    rows = np.loadtxt(data / "baldock" / f"data{per_class}.txt").astype(int)
    some = np.random.default_rng(0).permutation(10_000)[:n_test]
    x, y = _read(data, "train", rows)
    x_test, y_test = _read(data, "t10k", some)
    return Digits(x, y, x_test, y_test)


def _read(data: Path, part: str, rows: np.ndarray) -> tuple[Tensor, Tensor]:
    folder = data / "MNIST" / "raw"
    with gzip.open(folder / f"{part}-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 28, 28)[rows]
    with gzip.open(folder / f"{part}-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)[rows]
    small = [
        np.asarray(Image.fromarray(one).resize((16, 16), Image.Resampling.BILINEAR))
        for one in images
    ]
    x = (torch.tensor(np.stack(small)).float() / 255 - MEAN) / SPREAD
    return x.flatten(1), torch.tensor(labels).long()


@dataclass(frozen=True)
class Network:
    """M(h) or M(3*), evaluated for many flat parameter vectors at once.

    sizes     of the layers, inputs first       logistic  also before the softmax
    box       half widths of the prior [P]
    """

    sizes: tuple[int, ...]
    logistic: bool
    box: Tensor

    @property
    def n_parameters(self) -> int:
        """Number of parameters."""
        return len(self.box)

    def outputs(self, w: Tensor, x: Tensor) -> Tensor:
        """Return the values before the softmax [R, n, 10] for parameters [R, P]."""
        at, here = 0, x.expand(len(w), -1, -1)
        for i, (n_in, n_out) in enumerate(itertools.pairwise(self.sizes)):
            weight = w[:, at : at + n_in * n_out].view(-1, n_out, n_in)
            at += n_in * n_out
            here = torch.baddbmm(w[:, None, at : at + n_out], here, weight.mT)
            at += n_out
            if i < len(self.sizes) - 2 or self.logistic:
                here = here.sigmoid()
        return here

    def log_likelihood(self, x: Tensor, y: Tensor) -> Density:
        """Return −E [R] and its gradient [R, P]: the summed log likelihood of labels."""

        def density(w: Tensor) -> tuple[Tensor, Tensor]:
            leaves = w.detach().requires_grad_(True)
            values = -self._losses(leaves, x, y).sum(1)
            (gradient,) = torch.autograd.grad(values.sum(), leaves)
            return values.detach(), gradient

        return density

    @torch.no_grad()
    def mean_loss(self, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss per digit [R]."""
        return self._losses(w, x, y).mean(1)

    def _losses(self, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        outputs = self.outputs(w, x)
        each = cross_entropy(
            outputs.flatten(0, 1), y.repeat(len(w)), reduction="none"
        )  # fmt: skip
        return each.view(len(w), -1)

    def starts(self, count: int, generator: torch.Generator) -> Tensor:
        """Return common first positions, uniform in ±1 / √k [R, P]."""
        unit = 2 * torch.rand(count, self.n_parameters, generator=generator).to(self.box) - 1
        return unit * self.box / self._factor()

    def _factor(self) -> float:
        return float(self.box[0]) * math.sqrt(self.sizes[0] + 1)


def half_widths(model: nn.Module, width: float) -> Tensor:
    """Return σ_i / 2 = c / √k_i of each parameter of linear layers [P] (eq. 6 and 11).

    k_i is the number of inputs, with the bias, of the unit that parameter i leads to; c = `width`.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    return torch.cat(
        [
            torch.full((p.numel(),), width / math.sqrt(layer.in_features + 1), dtype=torch.float64)
            for layer in layers
            for p in layer.parameters()
        ]
    )


def network(n_hidden: int, *, logistic: bool = False) -> Network:
    """Return M(n_hidden), or M(3*) with logistic outputs."""
    sizes = (256, *(40,) * n_hidden, 10)
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    box = half_widths(nn.Sequential(*layers), 1000.0 if logistic else 50.0).float()
    return Network(sizes, logistic, box)


def minimised(
    net: Network, rows: Digits, count: int, generator: torch.Generator, n_steps: int
) -> tuple[Tensor, Tensor]:
    """Return minima by RMin from common first positions [R, P], and their energies [R]."""
    found = rmin(
        net.log_likelihood(rows.x, rows.y), net.starts(count, generator), n_steps=n_steps,
        first_step=0.05, half_width=net.box, tolerance=1e-3,
    )  # fmt: skip
    return found.positions, found.energies


def heated(
    net: Network,
    rows: Digits,
    plan: HeatPlan,
    *,
    generator: torch.Generator,
    say: Callable[[str], None],
    reflects: bool = True,
    sizes: list[Tensor] | None = None,
    start: Tensor | None = None,
) -> Tempered:
    """Return samples at all temperatures.

    Args:
        net: the network.
        rows: the digits.
        plan: of temperatures and lengths.
        generator: of random numbers.
        say: told about the result.
        reflects: whether trajectories turn at the walls; else those that leave are rejected.
        sizes: receives for each sample the root mean square of weight over half width [K].
        start: of every replica [P]; None for a minimum of its own for each.
    """
    if start is None:
        first, energies = minimised(net, rows, plan.n_temperatures, generator, 400)
        say(f"minima: E from {float(energies.min()):.2g} to {float(energies.max()):.2g}")
    else:
        first = start.expand(plan.n_temperatures, -1).contiguous()

    def flat(w: Tensor) -> tuple[Tensor, Tensor]:
        return w.new_zeros(len(w)), torch.zeros_like(w)

    def test_loss(w: Tensor) -> Tensor:
        if sizes is not None:
            sizes.append((w / net.box).square().mean(1).sqrt())
        return net.mean_loss(w, rows.x_test, rows.y_test)

    path = Densities(flat, net.log_likelihood(rows.x, rows.y), net.box, reflects)
    found = at_finite_temperature(
        path, first, test_loss=test_loss, plan=plan, generator=generator,
        scale=net.box / net.box.mean(),
    )  # fmt: skip
    best, low, high = found.best()
    say(
        f"{len(rows.x)} digits: least test loss at T = {best:.2g} ({low:.2g} to {high:.2g}); "
        f"acceptance {float(found.acceptance.min()):.2f} to {float(found.acceptance.max()):.2f}, "
        f"swaps at least {found.swap_probability:.2g}"
    )
    return found
