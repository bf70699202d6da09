"""The data, networks, priors and first positions of Baldock and Marzari (2019).

    M(h)    256-40-...-10, h hidden layers of logistic units, linear outputs     c = 50
    M(3*)   the same with logistic units before the softmax too                  c = 1000

D_n has n digits of MNIST, shrunk to 16 x 16; the prior is uniform in |w_i| < c / √k_i.
"""

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import cross_entropy

from nas_evidence.maths.hmc import Density
from nas_evidence.maths.hmc import Path as Densities

from ._finite_temperature import HeatPlan, Tempered, at_finite_temperature
from ._published import Row, Run
from ._rmin import rmin
from ._shared_data import Images, pixels

MEAN, SPREAD = 0.1307, 0.3081  # of all pixels of MNIST
UNIFORM = math.log(10)  # loss of equal probabilities


def digits(data: Path, per_class: int, *, n_test: int) -> Images:
    """Return D_50, D_500 or D_5000 (5, 50 or 500 per class) and random digits of the test set."""
    rows = np.loadtxt(data / "baldock" / f"data{per_class}.txt").astype(int)
    some = np.random.default_rng(0).permutation(10_000)[:n_test]
    return Images(*_read(data, "train", rows), *_read(data, "t10k", some))


def _read(data: Path, part: str, rows: np.ndarray) -> tuple[Tensor, Tensor]:
    x, y = pixels(data / "MNIST", part)
    small = [
        np.asarray(Image.fromarray(one).resize((16, 16), Image.Resampling.BILINEAR))
        for one in x.numpy()[rows]
    ]
    x = (torch.tensor(np.stack(small)).float() / 255 - MEAN) / SPREAD
    return x.flatten(1), y[rows]


def digits_and_plans(at: Run, plan: HeatPlan) -> dict[int, tuple[Images, HeatPlan]]:
    """Return each D_n with its plan by the number per class: a short one has fewer for D_500."""
    found = {}
    for per_class in at.sized((5, 50), (5, 50, 500)):
        fewer = at.quick and per_class > 5
        given = replace(plan, n_burn_in=24, n_samples=24) if fewer else plan
        found[per_class] = digits(at.data, per_class, n_test=at.sized(1000, 10_000)), given
    return found


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
        for i, (n_in, n_out) in enumerate(pairwise(self.sizes)):
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
        outputs = self.outputs(w, x).flatten(0, 1)
        return cross_entropy(outputs, y.repeat(len(w)), reduction="none").view(len(w), -1)

    def starts(self, count: int, generator: torch.Generator) -> Tensor:
        """Return common first positions, uniform in ±1 / √k [R, P]."""
        unit = 2 * torch.rand(count, self.n_parameters, generator=generator).to(self.box) - 1
        return unit * self.box / (float(self.box[0]) * math.sqrt(self.sizes[0] + 1))


def network(n_hidden: int, *, logistic: bool = False) -> Network:
    """Return M(n_hidden), or M(3*) with logistic outputs.

    The box has σ_i / 2 = c / √k_i of each parameter (eq. 6 and 11); k_i is the number of inputs,
    with the bias, of the unit that parameter i leads to.
    """
    sizes, c = (256, *(40,) * n_hidden, 10), 1000.0 if logistic else 50.0
    box = [torch.full((n_out * (k + 1),), c / math.sqrt(k + 1)) for k, n_out in pairwise(sizes)]
    return Network(sizes, logistic, torch.cat(box))


def minimised(
    net: Network, rows: Images, count: int, generator: torch.Generator, n_steps: int
) -> Tensor:
    """Return minima by RMin from common first positions [R, P]."""
    found = rmin(
        net.log_likelihood(rows.x, rows.y), net.starts(count, generator), n_steps=n_steps,
        first_step=0.05, half_width=net.box, tolerance=1e-3,
    )  # fmt: skip
    return found.positions


def heated(
    net: Network,
    rows: Images,
    plan: HeatPlan,
    generator: torch.Generator,
    *,
    reflects: bool = True,
    start: Tensor | None = None,
) -> tuple[Tempered, Tensor]:
    """Return samples at all temperatures, and the root mean square of weight over half width.

    Args:
        net: the network.
        rows: the digits.
        plan: of temperatures and lengths.
        generator: of random numbers.
        reflects: whether trajectories turn at the walls; else those that leave are rejected.
        start: of every replica [P]; None for a minimum of its own for each.
    """
    sizes = []
    if start is None:
        first = minimised(net, rows, plan.n_temperatures, generator, 400)
    else:
        first = start.expand(plan.n_temperatures, -1).contiguous()

    def flat(w: Tensor) -> tuple[Tensor, Tensor]:
        return w.new_zeros(len(w)), torch.zeros_like(w)

    def test_loss(w: Tensor) -> Tensor:
        sizes.append((w / net.box).square().mean(1).sqrt())
        return net.mean_loss(w, rows.x_test, rows.y_test)

    found = at_finite_temperature(
        Densities(flat, net.log_likelihood(rows.x, rows.y), net.box, reflects), first,
        test_loss=test_loss, plan=plan, generator=generator, scale=net.box / net.box.mean(),
    )  # fmt: skip
    return found, torch.stack(sizes)


def kept(one: Tempered) -> dict[str, object]:
    """Return the means over samples with their errors, for JSON."""
    return {
        "temperatures": one.temperatures,
        "energy": one.mean_energy(),
        "test_loss": one.mean_loss(),
    }


def least_row(n: int, one: Tempered, published: str) -> Row:
    """Return the temperature of the least test loss of D_n beside the published one."""
    best, low, high = one.best()
    spread = f"{low:.2g} to {high:.2g} within two errors, n = {len(one.losses)}"
    return Row(f"D_{n}: temperature of least test loss", published, f"{best:.2g}", spread)
