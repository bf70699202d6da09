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

from nas_evidence.curvature import CurvaturePass, curvature_passes
from nas_evidence.curvature.batch_rows import rows_at_once
from nas_evidence.data.augmentation import data_of_evidence
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
from nas_evidence.likelihoods import Likelihood
from nas_evidence.likelihoods.gaussian import gaussian
from nas_evidence.maths.root_finding import root
from nas_evidence.spec.likelihoods import declared
from nas_evidence.spec.record import EvidenceEstimate
from nas_evidence.spec.study import TrainingPlan, derive_seed
from nas_evidence.training.loop import DivergedError
from nas_evidence.training.network import Hyper, Network

#: Maximum number of groups of outputs whose noises an update moves apart.
MOST_GROUPS = 4
#: Step of log σ² in a difference of log determinants.
_DIFFERENCE = 1e-3


def update_and_follow(network: Network, *, due: bool = True, follow: bool = False) -> "Passes":
    """Update the hyperparameters if due, and record the evidence of the online curvature.

    Args:
        network: after an epoch.
        due: whether an update is due.
        follow: record the evidence even if no update is due.

    Returns:
        The curvature passes at the new hyperparameters, over all data.

    Raises:
        DivergedError: if the log likelihood or a curvature is not finite.
    """
    started = time.perf_counter()
    sample = passes_of_sample(network)
    if due:
        sample = update_hyperparameters(sample)
    if due or follow:
        followed = sample.followed
        if network.best_evidence is None or followed.value > network.best_evidence:
            network.best_epoch, network.best_evidence = network.epoch, followed.value
    network.evidence_seconds += time.perf_counter() - started
    if len(network.data.x_train) <= network.plan.online.rows:
        return sample
    return passes_of(network)


def update(network: Network) -> None:
    """Update the hyperparameters; the evidence is not recorded.

    Raises:
        DivergedError: if the log likelihood or a curvature is not finite.
    """
    started = time.perf_counter()
    update_hyperparameters(passes_of_sample(network))
    network.evidence_seconds += time.perf_counter() - started


def sample_of(data: TensorData, n: int) -> TensorData:
    """Return the data that updates see, at most `n` rows.

        κ N/n (l_n − ...) − ½ log|κ N/n H_n + Δ|      l_n, H_n of the n drawn of N data

    estimates the evidence of all data. The draw depends on N and n alone, so that the evidences of
    a training can be compared, and the networks of a study are treated alike.
    """
    n_all = len(data.x_train)
    if n_all <= n:
        return data
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
    found: TensorData = sample
    return found


def passes_of_sample(network: Network) -> "Passes":
    """Return the curvature passes over the data that updates see, see `sample_of`."""
    return passes_of(network, sample_of(network.data, network.plan.online.rows))


def passes_of(network: Network, data: TensorData | None = None) -> "Passes":
    """Return the curvature passes of a network, computed on demand.

    Args:
        network: at its current parameters.
        data: a sample of its data that stands for all of them; all of them if not given.
    """
    power, n_all = network.plan.likelihood_power, len(network.data.x_train)
    if data is None:
        data = network.data
    elif len(data.x_train) < n_all:
        power = power * n_all / len(data.x_train)
    return Passes(network, data_of_evidence(data, network), network.likelihood, power)


@dataclass
class Passes:
    """Curvature at the current parameters; every draw of a kind is computed once.

    data   as the evidence sees them
    power  κ of each datum: of a sample the plan's times N/n, see `sample_of`
    """

    network: Network
    data: TensorData
    likelihood: Likelihood
    power: float
    _done: dict[str, list[CurvaturePass]] = field(default_factory=dict)
    _random: dict[str, torch.Generator] = field(default_factory=dict)

    def of(self, kind: str, n_draws: int = 1) -> list[CurvaturePass]:
        """Return independent passes of a kind; the first does not depend on `n_draws`."""
        if kind not in self._random:
            seed = self.network.derived_seed(f"curvature:{kind}", self.network.epoch)
            # On the CPU: the same draws on every device.
            self._random[kind] = torch.Generator().manual_seed(seed)
        done = self._done.setdefault(kind, [])
        if len(done) < n_draws:
            done += self._passes(kind, n_draws - len(done))
        return done[:n_draws]

    def estimate(self, kind: str, pass_: CurvaturePass) -> EvidenceEstimate:
        """Return the Laplace evidence from one pass, at the current hyperparameters."""
        return laplace_estimate(
            kind,
            pass_,
            self.network.model,
            self.network.hyper.precision,
            likelihood_power=self.power,
            log_jacobian=self.data.log_jacobian,
        )

    @property
    def followed(self) -> EvidenceEstimate:
        """Return the Laplace evidence of the online curvature."""
        return self.estimate(self.network.plan.online.curvature, self.online)

    @property
    def online(self) -> CurvaturePass:
        """Return the pass of the online curvature."""
        return self.of(self.network.plan.online.curvature)[0]

    def _passes(self, kind: str, n_draws: int) -> list[CurvaturePass]:
        model = self.network.model
        found = curvature_passes(
            kind,
            model,
            self.data.x_train,
            self.data.y_train,
            self.likelihood,
            batch_size=rows_at_once(model, self.data.x_train),
            n_draws=n_draws,
            generator=self._random[kind],
            kept=self.data.made.setdefault("input factors", {}),
        )
        for one in found:
            trace = one.curvature.trace()
            if not (math.isfinite(one.log_likelihood) and bool(trace.isfinite().all())):
                raise DivergedError(
                    f"log likelihood {one.log_likelihood} or {kind} not finite after epoch "
                    f"{self.network.epoch}"
                )
        return found


def update_hyperparameters(passes: Passes) -> Passes:
    """Move prior precisions and noise to the maximum of the evidence at fixed θ.

    A prior as narrow as the initial weights would prune a network that has not learned yet, since
    evidence at fixed θ does not see that θ is not a mode. Descent cannot end at zero weights while
    the log joint is higher at θ. Precisions therefore rise only if, with the new ones,

        κ (l(θ) − l₀) > ½ θᵀΔθ          l₀ of the best constant prediction

    For real targets with learned noise, each side uses its own best noise,
    max_s l = −½ N Σ_c log RSS_c plus a constant, so that

        κ (l(θ) − l₀) = ½ κ N Σ_c log(RSS₀_c / RSS_c)          RSS₀ about the mean of the targets

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
    network, plan, held = passes.network, passes.network.plan, passes.network.hyper
    found, pass_ = _most_evidence(passes), passes.online
    learned = plan.online.learn_noise
    gain = passes.power * passes.likelihood.gain(pass_, passes.data.y_train, learned=learned)
    if gain <= 0.5 * float((found.precision * squared_norms(network.model)).sum()):
        members = members_of(plan.online.prior_groups, len(held.precision))
        found = _most_evidence(passes, tied_precision(held.precision, members))
    network.hyper = found
    likelihood = network.likelihood
    if likelihood == passes.likelihood:
        return passes
    return Passes(network, passes.data, likelihood, passes.power)


def _most_evidence(passes: Passes, highest: torch.Tensor | None = None) -> Hyper:
    """Return hyperparameters of more evidence at fixed θ.

    They are the maximum over the precisions and a factor on all noises. Then the noise of each of
    several outputs takes a step of its own, see `_noise_of_each`. With `highest` [G] no precision
    is above it, and a noise rises to `constant_noise` at most.
    """
    network, plan, hyper = passes.network, passes.network.plan, passes.network.hyper
    online, power, scale = plan.online, passes.power, hyper.scale
    pass_, of_pass = passes.online, passes.power
    given = (pass_.curvature, squared_norms(network.model), hyper.precision)
    members = members_of(online.prior_groups, len(pass_.curvature.names))
    learns_noise = declared(plan.likelihood).learned and online.learn_noise
    precision: torch.Tensor | None = None
    if learns_noise:
        noise = noise_of(online.curvature, pass_, scale)
        most = max(scale, _geometric_mean(network.constant_noise))
        precision, scale = fit_prior_and_noise(
            *given, members=members, noise=noise, likelihood_power=power, highest=highest,
            least_std=passes.data.least_noise, highest_std=math.inf if highest is None else most,
        )  # fmt: skip
        of_pass *= (noise.pass_std / scale) ** (2 * noise.exponent)
    if precision is None or online.hyper_step != "newton":
        precision = fit_prior(
            *given, members=members, curvature_scale=of_pass, highest=highest,
            method=online.hyper_step, steps=online.hyper_steps,
            learning_rate=online.hyper_learning_rate,
        )  # fmt: skip
    if not (learns_noise and n_noise_passes(plan, pass_.n_outputs)):
        return replace(hyper, precision=precision, scale=scale)
    each = _noise_of_each(passes, precision, of_pass, scale)
    if highest is not None:
        before = _for_each(passes.likelihood.each_scale, len(each))
        bounds = _for_each(network.constant_noise, len(each))
        each = tuple(min(one, max(most)) for one, *most in zip(each, before, bounds, strict=True))
    found = gaussian([max(one, passes.data.least_noise) for one in each])
    return Hyper(precision, found.noise_std, found.unit)


def n_noise_passes(plan: TrainingPlan, n_outputs: int) -> int:
    """Return how many curvature passes an update takes for the noises, beside the usual one.

    >>> [n_noise_passes(TrainingPlan(likelihood="gaussian"), n) for n in (1, 2, 4, 100)]
    [0, 1, 3, 3]
    """
    learns_noise = declared(plan.likelihood).learned and plan.online.learn_noise
    return min(n_outputs, MOST_GROUPS) - 1 if learns_noise else 0


def _noise_of_each(
    passes: Passes, precision: torch.Tensor, of_pass: float, common: float
) -> tuple[float, ...]:
    """Return a noise of each output at which the evidence is no lower, at fixed θ and precisions.

        σ_c² <- (RSS_c + g_c σ_c² / κ) / N        g_c = −∂ log|κ H + Δ| / ∂ log σ_c²

    H = Σ_c H_c / σ_c² is linear in the precisions β_c of the noises, so log|κ H + Δ| is concave in
    them and lies below its tangent; the step is the maximum of the evidence with that tangent (an
    EM step, Dempster et al. 1977). In log β the evidence is concave: |κ H + Δ| is a polynomial in
    β and δ with coefficients >= 0. So a point where neither this step nor that of the precisions
    moves is the one maximum. An empirical Fisher is no such sum; its fixed point is the same.

    g_c are differences of log determinants of passes with the same random signs; the last follows
    from Σ_c g_c = a γ. More outputs than `MOST_GROUPS` are put in as many groups of like noises,
    and each has the mean g of its group. The evidence may then fall, and ends below the maximum.

    Args:
        passes: at the noises before.
        precision: δ of each tensor [G].
        of_pass: factor on the curvature of the pass, for `common`.
        common: geometric mean of the noises from which the step goes.
    """
    pass_, plan, before = passes.online, passes.network.plan, passes.likelihood
    noise = noise_of(plan.online.curvature, pass_, before.scale)
    stds = _for_each(before.each_scale, pass_.n_outputs)
    relative, curvature = precision / of_pass, pass_.curvature
    here = float(curvature.log_det_ratio(relative).sum())
    left = noise.exponent * float(curvature.effective_parameters(relative).sum())
    shares = [0.0] * len(stds)
    groups = _groups(stds)
    for group in groups:
        slope = left
        if group is not groups[-1]:
            moved = math.exp(0.5 * _DIFFERENCE)
            noises = tuple(std * (moved if c in group else 1.0) for c, std in enumerate(stds))
            other = replace(passes, likelihood=before.of_scale(noises), _done={}, _random={})
            there = float(other.online.curvature.log_det_ratio(relative).sum())
            slope = (here - there) / _DIFFERENCE
        left -= slope
        for c in group:
            shares[c] = slope / len(group)
    least, most = (math.exp(0.5 * bound) for bound in LOG_VARIANCE_RANGE)
    found = []
    for std, squares, share in zip(stds, pass_.squared_errors, shares, strict=True):
        # The errors are in units of the noises before.
        variance = squares + max(share, 0.0) * common**2 / passes.power
        one = std / before.scale * math.sqrt(variance / pass_.n_data)
        found.append(min(max(one, least), most))
    return tuple(found)


def _groups(stds: tuple[float, ...]) -> list[list[int]]:
    """Return the outputs in at most `MOST_GROUPS` groups of about equal size and like noise.

    >>> _groups((3.0, 1.0, 2.0))
    [[1], [2], [0]]
    """
    order = sorted(range(len(stds)), key=stds.__getitem__)
    n = min(len(order), MOST_GROUPS)
    return [order[k * len(order) // n : (k + 1) * len(order) // n] for k in range(n)]


def _for_each(scale: tuple[float, ...], n: int) -> tuple[float, ...]:
    """Return the scales of `n` outputs, of which one number may stand for all."""
    return scale * (n // len(scale))


def _geometric_mean(values: tuple[float, ...]) -> float:
    if len(values) == 1:
        return values[0]  # to the bit
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
    curvature, power = passes.online.curvature, passes.power
    scatter = float((held * squared_norms(passes.network.model)).sum())

    def slope(x: float) -> float:
        factor = math.exp(x)
        return (
            float(curvature.effective_parameters(factor * held / power).sum()) - factor * scatter
        )

    low, high = (bound - float(held.log().mean()) for bound in LOG_PRECISION_RANGE)
    if slope(high) > 0 or slope(low) < 0:
        return held
    best = held * math.exp(root(slope, low, high, xtol=1e-9))
    return best.clamp(*(math.exp(bound) for bound in LOG_PRECISION_RANGE))
