"""Thermodynamic integration from a Gaussian around a point.

Frenkel and Ladd 1984; Baldock and Marzari 2019, section 4.3.

    log Z = log Z_0 + ∫_0^1 ⟨J(w) + ½ Σ_i k_i (w_i − c_i)²⟩_β dβ
    π_β   ∝ exp(−(1 − β) ½ Σ_i k_i (w_i − c_i)² + β J(w)),         β = 1 − λ of the paper
    log Z_0 = Σ_i ½ log(2π / k_i) + log ½ [erf(q_i (a_i − c_i)) + erf(q_i (a_i + c_i))]

    J = log p(y|w) + log p(w)  log joint        c  centre [P]      k  stiffness [P]
    a  half width of a uniform prior's box [P]  q = √(k / 2)       all in nats

The Gaussian prior has no box and the last logarithm is 0. The value does not depend on k, but how
well the chains equilibrate does: k_i = 1 / ⟨(w_i − c_i)²⟩ in the posterior. The two directions lag
in opposite senses, so the difference of their means (hysteresis) shows whether the chains are long
enough. The nodes are those of Gauss-Legendre quadrature. More in docs/reference/estimators.md.

Differs from the published code, which centres the box on c, adds a Gaussian prior only in the
accept step, uses Simpson's rule over an odd number of intervals, goes one way, and finds k without
the box, where flat directions have no finite spread.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from nas_evidence.evidence.network_density import (
    estimate_of_runs,
    flat_parameters,
    gaussian_density,
    network_density,
    spread_precision,
)
from nas_evidence.likelihoods import Likelihood
from nas_evidence.maths.hmc import (
    Density,
    Path,
    Tuning,
    hmc_step,
    replicas_at,
    warm_up,
)
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.scores.sampling import sampled_score
from nas_evidence.scores.sampling_plan import SWEEP, SweepPlan
from nas_evidence.spec.record import EvidenceEstimate

_FIRST_STEP = 0.1
_HYSTERESIS_ERRORS = 4.0


@dataclass(frozen=True)
class Reference:
    """The Gaussian at the start of the path, N(centre, diag(stiffness)⁻¹) within the box.

    centre, stiffness  [P]        half_width  [P], None for no box
    """

    centre: Tensor
    stiffness: Tensor
    half_width: Tensor | None = None

    def log_normaliser(self) -> float:
        """Return log Z_0 = log ∫ exp(−½ Σ k (w − c)²) dw over the box, nats."""
        plain = 0.5 * (2 * math.pi / self.stiffness).log().sum()
        if self.half_width is None:
            return float(plain)
        low, high = self._tails(self.half_width)
        return float(plain + (high - low).log().sum())

    def draws(self, n: int, generator: torch.Generator) -> Tensor:
        """Return exact draws [n, P]."""
        shape, like = (n, len(self.centre)), self.centre
        levels = torch.rand(shape, dtype=like.dtype, device=like.device, generator=generator)
        if self.half_width is not None:
            low, high = self._tails(self.half_width)
            levels = low + levels * (high - low)
        # 1e-12 keeps a draw at probability zero finite.
        standard = torch.special.ndtri(levels.clamp(1e-12, 1 - 1e-12))
        positions: Tensor = self.centre + standard * self.stiffness.rsqrt()
        if self.half_width is None:
            return positions
        return positions.clamp(-self.half_width, self.half_width)

    def _tails(self, half_width: Tensor) -> tuple[Tensor, Tensor]:
        """Return the normal distribution function at both walls of the box, [P] each."""
        root = self.stiffness.sqrt()
        walls = torch.stack([-half_width, half_width])
        low, high = torch.special.ndtr(root * (walls - self.centre)).unbind()
        return low, high


@dataclass(frozen=True)
class Sweeps:
    """Log evidences [n_chains] in nats of chains from and to the reference; log Z_0."""

    forward: Tensor
    backward: Tensor
    log_normaliser: float

    @property
    def hysteresis(self) -> float:
        """Return the mean of the forward chains minus that of the backward chains."""
        return float(self.forward.mean() - self.backward.mean())

    @property
    def hysteresis_error(self) -> float:
        """Return the standard error of the hysteresis."""
        variances = self.forward.var() + self.backward.var()
        return float((variances / len(self.forward)).sqrt())


def path_from(log_joint: Density, reference: Reference) -> Path:
    """Return the path from the unnormalised reference to the log joint."""

    def well(positions: Tensor) -> tuple[Tensor, Tensor]:
        pull = reference.stiffness * (reference.centre - positions)
        return 0.5 * (pull * (positions - reference.centre)).sum(1), pull

    def tilt(positions: Tensor) -> tuple[Tensor, Tensor]:
        values, gradients = log_joint(positions)
        depth, pull = well(positions)
        return values - depth, gradients - pull

    return Path(well, tilt, reference.half_width)


def fitted_reference(
    log_joint: Density,
    centre: Tensor,
    *,
    scale: Tensor,
    half_width: Tensor | None,
    plan: SweepPlan,
    generator: torch.Generator,
) -> tuple[Reference, Tensor]:
    """Return a reference with the spread of the posterior around `centre`, and draws [n, P].

    Args:
        log_joint: J.
        centre: c [P], in the box; where the chains start.
        scale: initial guess of the spread [P].
        half_width: of the box [P], or None.
        plan: n_chains, n_burn_in and n_leapfrog are read.
        generator: of random numbers.
    """
    nothing = Reference(centre, torch.zeros_like(centre), half_width)
    path = path_from(log_joint, nothing)
    betas = torch.ones(plan.n_chains, dtype=centre.dtype, device=centre.device)
    start = replicas_at(path, centre.expand(plan.n_chains, -1))
    tuning = Tuning(_FIRST_STEP * betas, scale.expand(plan.n_chains, -1), plan.n_leapfrog)
    state, tuning = warm_up(
        path, start, betas=betas, tuning=tuning, n_trajectories=plan.n_burn_in,
        generator=generator, pools=1,
    )  # fmt: skip
    squares = torch.zeros_like(centre)
    for _ in range(plan.n_burn_in):
        state, _ = hmc_step(path, state, betas=betas, tuning=tuning, generator=generator)
        squares += (state.positions - centre).square().mean(0)
    return Reference(centre, plan.n_burn_in / squares, half_width), state.positions


def swept(
    log_joint: Density,
    reference: Reference,
    posterior: Tensor,
    *,
    plan: SweepPlan,
    generator: torch.Generator,
) -> Sweeps:
    """Return the log evidence of every chain; all chains, in both directions, run together.

    Args:
        log_joint: J.
        reference: start of the path, with any stiffness.
        posterior: positions [n_chains, P] drawn at β = 1, for the backward chains.
        plan: numbers of nodes and samples.
        generator: of random numbers.
    """
    path = path_from(log_joint, reference)
    nodes, weights = _gauss_legendre(plan.n_nodes, reference.centre)
    # Directions alternate, so that warm_up can tune each separately.
    start = torch.stack([reference.draws(plan.n_chains, generator), posterior], 1).flatten(0, 1)
    spread = reference.stiffness.rsqrt().expand(len(start), -1)
    tuning = Tuning(_FIRST_STEP * torch.ones_like(start[:, 0]), spread, plan.n_leapfrog)
    state, totals = replicas_at(path, start), torch.zeros_like(start[:, 0])
    for i in range(plan.n_nodes):
        betas = nodes[[i, -1 - i]].repeat(plan.n_chains)
        state, tuning = warm_up(
            path, state, betas=betas, tuning=tuning, n_trajectories=plan.n_settle,
            generator=generator, pools=2, fixed_scale=True,
        )  # fmt: skip
        tilt = torch.zeros_like(totals)
        for _ in range(plan.n_samples):
            state, _ = hmc_step(path, state, betas=betas, tuning=tuning, generator=generator)
            tilt += state.tilt / plan.n_samples
        totals += weights[[i, -1 - i]].repeat(plan.n_chains) * tilt
    log_normaliser = reference.log_normaliser()
    values = (log_normaliser + totals).view(-1, 2)
    return Sweeps(values[:, 0], values[:, 1], log_normaliser)


def thermodynamic_evidence(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    likelihood: Likelihood,
    generator: torch.Generator,
    prior_precision: float | Tensor | Mapping[str, float] | None = None,
    half_width: float | Tensor | Mapping[str, float] | None = None,
    plan: SweepPlan = SWEEP,
) -> EvidenceEstimate:
    """Return the log evidence of a tiny network in nats, with its standard error.

    The parameters of the model are the centre, so train it first. The prior must be either
    Gaussian or uniform on |w_i| <= half_width_i. The cost is about 2 n_burn_in n_leapfrog
    gradients of n_chains networks and n_nodes (n_settle + n_samples) n_leapfrog of twice as many.

    Args:
        model: any module whose output for a datum does not depend on the rest of the batch.
        inputs: [n, ...].
        targets: int64 [n] or real [n, C].
        likelihood: `Categorical()` or `Gaussian(noise_std)`.
        generator: on the device of the model.
        prior_precision: > 0; one number, or one per parameter tensor [G].
        half_width: > 0; likewise.
        plan: numbers of nodes and samples.

    Raises:
        ValueError: for both priors or none, impossible numbers, a centre outside the box, or
            targets that the likelihood refuses.
    """
    started = time.perf_counter()
    if (prior_precision is None) == (half_width is None):
        raise UserError(
            "prior-or-box", "either `prior_precision` or `half_width` must be given, but not both"
        )
    given = half_width if prior_precision is None else prior_precision
    assert given is not None
    numbers, centre = spread_precision(model, given), flat_parameters(model)
    box = numbers if prior_precision is None else None
    if box is not None and bool((outside := centre.abs() >= box).any()):
        raise UserError(
            "parameters-outside-box",
            f"the parameters of the model must lie within `half_width`, but {int(outside.sum())} "
            f"of {len(box)} do not; train with the box, or widen it",
        )
    log_joint = _joint(network_density(model, inputs, targets, likelihood), numbers, box)
    scale = numbers.rsqrt() if box is None else box
    reference, posterior = fitted_reference(
        log_joint, centre, scale=scale, half_width=box, plan=plan, generator=generator
    )
    sweeps = swept(log_joint, reference, posterior, plan=plan, generator=generator)
    lagging = abs(sweeps.hysteresis) > _HYSTERESIS_ERRORS * sweeps.hysteresis_error
    return estimate_of_runs(
        "thermodynamic",
        torch.cat([sweeps.forward, sweeps.backward]).tolist(),
        {
            "reference_log_normaliser": sweeps.log_normaliser,
            "forward": float(sweeps.forward.mean()),
            "backward": float(sweeps.backward.mean()),
            "hysteresis": sweeps.hysteresis,
            "n_data": float(len(inputs)),
        },
        n_data=len(inputs),
        seconds=time.perf_counter() - started,
        valid=not lagging,
        note=f"hysteresis of {sweeps.hysteresis:.2g} nats: sample longer" if lagging else "",
    )


#: The estimate for the trained network of a study, with the default plan; nats.
score = partial(sampled_score, "thermodynamic", thermodynamic_evidence)


def _joint(log_likelihood: Density, numbers: Tensor, box: Tensor | None) -> Density:
    """Return log likelihood plus normalised log prior, Gaussian or uniform in the box."""
    prior = gaussian_density(numbers)
    log_volume = (2 * numbers).log().sum()

    def density(positions: Tensor) -> tuple[Tensor, Tensor]:
        values, gradients = log_likelihood(positions)
        if box is not None:
            return values - log_volume, gradients
        prior_values, prior_gradients = prior(positions)
        return values + prior_values, gradients + prior_gradients

    return density


def _gauss_legendre(n_nodes: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return nodes and weights of ∫_0^1 [n] each, nodes increasing."""
    nodes, weights = np.polynomial.legendre.leggauss(n_nodes)
    both = torch.tensor(np.stack([0.5 * (nodes + 1), 0.5 * weights]))
    return both[0].to(like), both[1].to(like)
