"""Networks at finite temperature, and the one of least test error (Baldock and Marzari 2019).

    p_T(w) ∝ p(w) exp(U(w) / T),   U = log p(D|w)         T_i = T_1 (T_n / T_1)^((i − 1) / (n − 1))

T = 1 is the posterior, T → 0 the best fit within the prior, T → ∞ the prior. Replicas at all
temperatures move together and swap with neighbours (maths/hmc.py). The temperature of least mean
test loss tells what the posterior lacks: above 1 the likelihood counts the data too much, below 1
the prior does. Choosing T on test data makes their loss at that T optimistic.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nas_evidence.maths.hmc import Path, Replicas, Tuning, exchange, hmc_step, replicas_at, warm_up

_N_BLOCKS = 8  # of successive samples, whose spread gives errors
_FIRST_STEP = 0.1


@dataclass(frozen=True)
class HeatPlan:
    """Replica exchange at a geometric series of temperatures (Baldock and Marzari 2019)."""

    n_temperatures: int
    lowest: float
    highest: float
    n_burn_in: int  # trajectories
    n_samples: int  # trajectories, 8 or more
    n_leapfrog: int  # gradients per trajectory


@dataclass(frozen=True)
class Tempered:
    """What n samples at K temperatures had.

    temperatures  [K], rising            energies     −U [n, K], nats summed over the data
    losses        on test data [n, K]    acceptance   of trajectories [K]
    swap_probability  of neighbours, smallest
    """

    temperatures: Tensor
    energies: Tensor
    losses: Tensor
    acceptance: Tensor
    swap_probability: float

    def mean_energy(self) -> tuple[Tensor, Tensor]:
        """Return ⟨E⟩ at each temperature with its standard error, both [K]."""
        return _mean(self.energies)

    def mean_loss(self) -> tuple[Tensor, Tensor]:
        """Return the mean test loss at each temperature with its standard error, both [K]."""
        return _mean(self.losses)

    def best(self) -> tuple[float, float, float]:
        """Return the temperature of least mean test loss, and the range not clearly worse.

        The range has all temperatures whose mean loss is within two standard errors of the
        difference from the least.
        """
        mean, error = self.mean_loss()
        k = int(mean.argmin())
        near = mean - mean[k] <= 2 * (error.square() + error[k].square()).sqrt()
        close = self.temperatures[near]
        return float(self.temperatures[k]), float(close.min()), float(close.max())


def temperatures(plan: HeatPlan) -> Tensor:
    """Return the geometric series, float64 [K], rising.

    Raises:
        ValueError: if the highest is not above the lowest.

    >>> temperatures(HeatPlan(3, 0.01, 1.0, 8, 8, 8)).tolist()
    [0.01, 0.1, 1.0]
    """
    if plan.highest <= plan.lowest:
        raise ValueError(
            f"`highest` must be above `lowest`, but got {plan.highest} and {plan.lowest}"
        )
    steps = torch.linspace(0, 1, plan.n_temperatures, dtype=torch.float64)
    return plan.lowest * (plan.highest / plan.lowest) ** steps


def at_finite_temperature(
    path: Path,
    start: Tensor,
    *,
    test_loss: Callable[[Tensor], Tensor],
    plan: HeatPlan,
    generator: torch.Generator,
    scale: Tensor | None = None,
) -> Tempered:
    """Return samples of training energy and test loss at every temperature.

    Args:
        path: `base` the log prior, up to a constant, with a box if it has one; `tilt` U.
        start: one position per temperature [K, P], coldest first.
        test_loss: of positions [K, P], mean over test data [K].
        plan: of temperatures and lengths.
        generator: of random numbers.
        scale: relative size of steps of each parameter [P]; None for 1.
    """
    kelvin = temperatures(plan).to(start)
    betas = 1 / kelvin
    swaps = []

    def swap(state: Replicas, n: int) -> Replicas:
        after, probability = exchange(
            state, betas=betas, n_nodes=len(betas), odd=n % 2 == 1, generator=generator
        )
        if len(probability):
            swaps.append(probability.min())
        return after

    scales = torch.ones_like(start) if scale is None else scale.expand_as(start)
    state, tuning = warm_up(
        path,
        replicas_at(path, start),
        betas=betas,
        tuning=Tuning(_FIRST_STEP * kelvin.sqrt().clamp(max=1), scales, plan.n_leapfrog),
        n_trajectories=plan.n_burn_in,
        generator=generator,
        pools=len(betas),
        fixed_scale=True,
        between=swap,
    )
    swaps.clear()
    energies, losses, accepted = [], [], []
    for n in range(plan.n_samples):
        state, probability = hmc_step(path, state, betas=betas, tuning=tuning, generator=generator)
        state = swap(state, n)
        energies.append(-state.tilt)
        losses.append(test_loss(state.positions))
        accepted.append(probability)
    lowest = float(torch.stack(swaps).mean()) if swaps else 0.0
    return Tempered(
        kelvin, torch.stack(energies), torch.stack(losses), torch.stack(accepted).mean(0), lowest
    )


def _mean(samples: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard error [K] of correlated samples [n, K], from blocks in order."""
    n = len(samples) // _N_BLOCKS * _N_BLOCKS
    blocks = samples[-n:].view(_N_BLOCKS, -1, samples.shape[1]).mean(1)
    return blocks.mean(0), blocks.std(0) / _N_BLOCKS**0.5
