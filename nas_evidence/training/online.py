"""Online updates of the hyperparameters during training.

    every F epochs   log q(y) = κ l − ½ θᵀΔθ − ½ log|κ H + Δ| / |Δ|
                     maximised over log δ, and over log σ of real targets, at fixed θ

    l  log likelihood, nats      H  curvature of its negative [P, P]      κ  likelihood power
    Δ  = diag(δ), prior precisions                                        σ  noise of real targets

Differs from the published code (Immer et al. 2021): the pass sees a fixed training set, with
`augment` the images after one draw for the whole trial, in evaluation mode and leaves the mode as
it was; N counts the points visited; precisions are clamped; of many data it sees a sample.

The evidence of the online curvature is recorded at each evaluation, estimated from that sample.
"""

import math
import time
from dataclasses import dataclass, field, replace

import torch
from scipy.optimize import brentq

from nas_evidence.curvature import CurvaturePass, curvature_passes
from nas_evidence.curvature.batch_rows import rows_at_once
from nas_evidence.data.augmentation import Planned, data_of_evidence
from nas_evidence.data.tensors import TensorData, select
from nas_evidence.evidence.joint import (
    LOG_PRECISION_RANGE,
    LOG_VARIANCE_RANGE,
    fit_prior,
    fit_prior_and_noise,
    members_of,
    noise_of,
    tied_precision,
)
from nas_evidence.evidence.laplace import laplace_estimate, squared_norms
from nas_evidence.likelihoods import Likelihood, Scale
from nas_evidence.spec.likelihoods import declared
from nas_evidence.spec.record import EvidenceEstimate
from nas_evidence.spec.study import TrainingPlan, derive_seed
from nas_evidence.training.loop import DivergedError, Training, likelihood_of

#: Step of log σ² in a difference of log determinants.
_DIFFERENCE = 1e-3


def update_and_follow(
    state: Training,
    data: TensorData,
    assignment: Planned,
    *,
    due: bool = True,
    follow: bool = False,
) -> "Passes":
    """Update the hyperparameters if due, and record the evidence of the online curvature.

    Args:
        state: the training, after an epoch.
        data: its training data.
        assignment: its plan and seeds.
        due: whether an update is due.
        follow: record the evidence even if no update is due.

    Returns:
        The curvature passes at the new hyperparameters, over all data.

    Raises:
        DivergedError: if the log likelihood or a curvature is not finite.
    """
    started = time.perf_counter()
    sample = passes_of(state, *sample_of(data, assignment))
    if due:
        sample = update_hyperparameters(sample)
    if due or follow:
        followed = sample.followed
        if state.best_evidence is None or followed.value > state.best_evidence:
            state.best_epoch, state.best_evidence = state.epoch, followed.value
    state.evidence_seconds += time.perf_counter() - started
    if len(data.x_train) <= assignment.plan.online.rows:
        return sample
    return passes_of(state, data, assignment)


def update(state: Training, data: TensorData, assignment: Planned) -> None:
    """Update the hyperparameters; the evidence is not recorded.

    Raises:
        DivergedError: if the log likelihood or a curvature is not finite.
    """
    started = time.perf_counter()
    update_hyperparameters(passes_of(state, *sample_of(data, assignment)))
    state.evidence_seconds += time.perf_counter() - started


@dataclass(frozen=True)
class Seeded:
    """What updates need of an `Assignment`: the plan, and the seed of all random streams.

    constant_noise  up to which the noise, or that of each output, may rise while the network is no
                    better than a constant; 0 for targets of unit variance, whose noise starts at 1
    """

    plan: TrainingPlan
    seed: int
    constant_noise: Scale = 0.0

    def derived_seed(self, purpose: str, counter: int = 0) -> int:
        """Return the seed of one random stream."""
        return derive_seed(self.seed, purpose, counter)


def sample_of(data: TensorData, assignment: Planned) -> tuple[TensorData, Planned]:
    """Return the data that updates see, at most `plan.online.rows`, with a plan for them.

        κ N/n (l_n − ...) − ½ log|κ N/n H_n + Δ|      l_n, H_n of the n drawn of N data

    estimates the evidence of all data. The draw depends on N and n alone, so that the evidences of
    a training can be compared, and the networks of a study are treated alike.
    """
    plan, n_all = assignment.plan, len(data.x_train)
    n = plan.online.rows
    if n_all <= n:
        return data, assignment
    if (sample := data.made.get(("rows of updates", n))) is None:
        generator = torch.Generator().manual_seed(derive_seed("rows of updates", n_all, n))
        rows = torch.randperm(n_all, generator=generator)[:n].sort().values
        sample = replace(
            data,
            x_train=select(data.x_train, rows),
            y_train=data.y_train[rows.to(data.y_train.device)],
            own=None if data.own is None else data.own.at(rows.numpy()),
        )
        data.made["rows of updates", n] = sample
    power = plan.likelihood_power * n_all / n
    scaled = plan.model_copy(update={"likelihood_power": power})
    return sample, Seeded(scaled, assignment.seed, _constant_noise(assignment))


def _constant_noise(assignment: Planned) -> Scale:
    return assignment.constant_noise if isinstance(assignment, Seeded) else 0.0


def passes_of(state: Training, data: TensorData, assignment: Planned) -> "Passes":
    """Return the curvature passes of the current training, computed on demand."""
    seen = data_of_evidence(data, assignment)
    return Passes(state, seen, assignment, likelihood_of(assignment.plan, state.noise_std))


@dataclass
class Passes:
    """Curvature at the current parameters; every draw of a kind is computed once."""

    state: Training
    data: TensorData
    assignment: Planned
    likelihood: Likelihood
    _done: dict[str, list[CurvaturePass]] = field(default_factory=dict)
    _random: dict[str, torch.Generator] = field(default_factory=dict)

    def of(self, kind: str, n_draws: int = 1) -> list[CurvaturePass]:
        """Return independent passes of a kind; the first does not depend on `n_draws`."""
        if kind not in self._random:
            seed = self.assignment.derived_seed(f"curvature:{kind}", self.state.epoch)
            # On the CPU: the same draws on every device.
            self._random[kind] = torch.Generator().manual_seed(seed)
        done = self._done.setdefault(kind, [])
        if len(done) < n_draws:
            done += self._passes(kind, n_draws - len(done))
        return done[:n_draws]

    def estimate(self, kind: str, pass_: CurvaturePass) -> EvidenceEstimate:
        """Return the Laplace evidence from one pass, at the current hyperparameters."""
        power = self.assignment.plan.likelihood_power
        return laplace_estimate(
            kind,
            pass_,
            self.state.model,
            self.state.prior_precision,
            likelihood_power=power,
            log_jacobian=self.data.log_jacobian,
        )

    @property
    def followed(self) -> EvidenceEstimate:
        """Return the Laplace evidence of the online curvature."""
        kind = self.assignment.plan.online.curvature
        return self.estimate(kind, self.of(kind)[0])

    def _passes(self, kind: str, n_draws: int) -> list[CurvaturePass]:
        found = curvature_passes(
            kind,
            self.state.model,
            self.data.x_train,
            self.data.y_train,
            self.likelihood,
            batch_size=rows_at_once(self.state.model, self.data.x_train),
            n_draws=n_draws,
            generator=self._random[kind],
            kept=self.data.made.setdefault("input factors", {}),
        )
        for one in found:
            trace = one.curvature.trace()
            if not (math.isfinite(one.log_likelihood) and bool(trace.isfinite().all())):
                raise DivergedError(
                    f"log likelihood {one.log_likelihood} or {kind} not finite after epoch "
                    f"{self.state.epoch}"
                )
        return found


def update_hyperparameters(passes: Passes) -> Passes:
    """Move prior precisions and noise to the maximum of the evidence at fixed θ.

    A prior as narrow as the initial weights would prune a network that has not learned yet, since
    evidence at fixed θ does not see that θ is not a mode. Descent cannot end at zero weights while
    the log joint is higher at θ. Precisions therefore rise only if, with the new ones,

        κ (l(θ) − l₀) > ½ θᵀΔθ          l₀ of the best constant prediction

    For real targets with learned noise, each side uses its own best noise,
    max_s l = −½ N C log RSS plus a constant, so that

        κ (l(θ) − l₀) = ½ κ N C log(RSS₀ / RSS)          RSS₀ about the mean of the targets

    With one noise for both the gain would be κ (RSS₀ − RSS) / 2 σ². The noise that maximises the
    evidence, σ² = RSS / (N C − γ/κ), grows without bound as the effective parameters γ approach
    the number of targets; wide networks would then permanently seem to have learned nothing.

    Where the rule forbids a rise, the evidence is maximised with no hyperparameter above its
    current value, noise included: δ σ² is what holds a network back. In one's own loop, where the
    noise may start far below that of the targets, it rises to `constant_noise`.

    Either way the evidence at θ does not fall, with "newton", unless values outside the clamps are
    brought inside, or precisions of a group start untied and become tied.

    Returns the passes at the new likelihood.
    """
    state, plan = passes.state, passes.assignment.plan
    precision, noise_std = _most_evidence(passes)
    pass_ = passes.of(plan.online.curvature)[0]
    learned = plan.online.learn_noise
    gain = passes.likelihood.gain(pass_, passes.data.y_train, learned=learned)
    if plan.likelihood_power * gain <= 0.5 * float((precision * squared_norms(state.model)).sum()):
        members = members_of(plan.online.prior_groups, len(state.prior_precision))
        highest = tied_precision(state.prior_precision, members)
        precision, noise_std = _most_evidence(passes, highest)
    state.prior_precision, state.noise_std = precision, noise_std
    likelihood = likelihood_of(plan, state.noise_std)
    if likelihood == passes.likelihood:
        return passes
    return Passes(state, passes.data, passes.assignment, likelihood)


def _most_evidence(
    passes: Passes, highest: torch.Tensor | None = None
) -> tuple[torch.Tensor, Scale]:
    """Return prior precisions [G] and a noise of more evidence at fixed θ.

    It is the maximum over the precisions and a factor on all noises. Then the noise of each of
    several outputs takes a step of its own, see `_noise_of_each`. With `highest` [G] no precision
    is above it, and a noise rises to `constant_noise` at most.
    """
    state, plan = passes.state, passes.assignment.plan
    online, power, common = plan.online, plan.likelihood_power, passes.likelihood.scale
    pass_ = passes.of(online.curvature)[0]
    given = (pass_.curvature, squared_norms(state.model), state.prior_precision)
    members = members_of(online.prior_groups, len(pass_.curvature.names))
    n, is_learned = len(pass_.squared_errors), online.learn_noise
    is_learned = is_learned and declared(plan.likelihood).learned
    precision, scale = None, power
    if is_learned:
        bounds = _for_each(_constant_noise(passes.assignment), n)
        noise = noise_of(online.curvature, pass_, common)
        free = highest is None
        precision, common = fit_prior_and_noise(
            *given, members=members, noise=noise, likelihood_power=power, highest=highest,
            least_std=passes.data.least_noise,
            highest_std=math.inf if free else max(common, _geometric_mean(bounds)),
        )  # fmt: skip
        scale = power * (noise.pass_std / common) ** (2 * noise.exponent)
    if precision is None or online.hyper_step != "newton":
        precision = fit_prior(
            *given, members=members, curvature_scale=scale, highest=highest,
            method=online.hyper_step, steps=online.hyper_steps,
            learning_rate=online.hyper_learning_rate,
        )  # fmt: skip
    if not is_learned or n == 1:
        return precision, common if is_learned else state.noise_std
    each = _noise_of_each(passes, precision, scale, common)
    if highest is not None:
        before = _for_each(state.noise_std, n)
        each = tuple(min(one, max(most)) for one, *most in zip(each, before, bounds, strict=True))
    return precision, tuple(max(one, passes.data.least_noise) for one in each)


def _noise_of_each(
    passes: Passes, precision: torch.Tensor, scale: float, common: float
) -> tuple[float, ...]:
    """Return a noise of each output at which the evidence is no lower, at fixed θ and precisions.

        σ_c² <- (RSS_c + g_c σ_c² / κ) / N        g_c = −∂ log|κ H + Δ| / ∂ log σ_c²

    H = Σ_c H_c / σ_c² is linear in the precisions β_c of the noises, so log|κ H + Δ| is concave in
    them and lies below its tangent; the step is the maximum of the evidence with that tangent (an
    EM step, Dempster et al. 1977). In log β the evidence is concave: |κ H + Δ| is a polynomial in
    β and δ with coefficients >= 0. So a point where neither this step nor that of the precisions
    moves is the one maximum. An empirical Fisher is no such sum; its fixed point is the same.

    g_c are differences of log determinants of passes with the same random signs, one for each
    output.

    Args:
        passes: at the noises before.
        precision: δ of each tensor [G].
        scale: factor on the curvature of the pass at `common`.
        common: geometric mean of the noises from which the step goes.
    """
    plan, kind = passes.assignment.plan, passes.assignment.plan.online.curvature
    pass_, power = passes.of(kind)[0], plan.likelihood_power
    before = passes.likelihood.scale
    stds = _for_each(passes.likelihood.each_scale, len(pass_.squared_errors))
    moved = math.exp(0.5 * _DIFFERENCE)
    here, found = float(pass_.curvature.log_det_ratio(precision / scale).sum()), []
    for c, (std, squares) in enumerate(zip(stds, pass_.squared_errors, strict=True)):
        noises = (*stds[:c], std * moved, *stds[c + 1 :])
        other = replace(passes, likelihood=likelihood_of(plan, noises), _done={}, _random={})
        there = float(other.of(kind)[0].curvature.log_det_ratio(precision / scale).sum())
        slope = (here - there) / _DIFFERENCE
        # The errors are in units of the noises before, whose geometric mean is `before`.
        variance = squares * (std / before) ** 2 + slope * (std * common / before) ** 2 / power
        low, high = map(math.exp, LOG_VARIANCE_RANGE)
        found.append(math.sqrt(min(max(variance / pass_.n_data, low), high)))
    return tuple(found)


def _for_each(scale: Scale, n: int) -> tuple[float, ...]:
    """Return the scales of `n` outputs."""
    given = scale if isinstance(scale, tuple) else (scale,)
    return given * (n // len(given))


def _geometric_mean(values: tuple[float, ...]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if all(values) else 0.0


def rescaled_precision(held: torch.Tensor, passes: Passes) -> torch.Tensor:
    """Return the precisions `held` times the factor that maximises the evidence, within bounds.

        F(x) = −½ eˣ Σ_l δ_l ‖θ_l‖² − ½ Σ_l Σ log1p(λ e⁻ˣ / δ_l)
        F′   = ½ (γ(eˣ δ) − eˣ Σ_l δ_l ‖θ_l‖²)

    with λ the eigenvalues of tensor l and γ the effective parameters of all. F is concave, so its
    slope has one root. The ratios of the precisions stay fixed.

    Args:
        held: δ of each tensor [G].
        passes: at the parameters.
    """
    plan = passes.assignment.plan
    curvature, power = passes.of(plan.online.curvature)[0].curvature, plan.likelihood_power
    scatter = float((held * squared_norms(passes.state.model)).sum())

    def slope(x: float) -> float:
        factor = math.exp(x)
        return (
            float(curvature.effective_parameters(factor * held / power).sum()) - factor * scatter
        )

    low, high = (bound - float(held.log().mean()) for bound in LOG_PRECISION_RANGE)
    if slope(high) > 0 or slope(low) < 0:
        return held
    best = held * math.exp(brentq(slope, low, high, xtol=1e-9))
    return best.clamp(*(math.exp(bound) for bound in LOG_PRECISION_RANGE))
