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
from nas_evidence.data.augmentation import data_of_evidence
from nas_evidence.data.tensors import TensorData, select
from nas_evidence.evidence.joint import (
    LOG_PRECISION_RANGE,
    fit_prior,
    fit_prior_and_noise,
    members_of,
    noise_of,
    tied_precision,
)
from nas_evidence.evidence.laplace import laplace_estimate, squared_norms
from nas_evidence.likelihoods import Likelihood
from nas_evidence.spec.likelihoods import declared
from nas_evidence.spec.record import EvidenceEstimate
from nas_evidence.spec.study import derive_seed
from nas_evidence.training.loop import DivergedError
from nas_evidence.training.network import Hyper, Network


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
    """Return the hyperparameters that maximise the evidence at fixed θ.

    With `highest` [G] no precision is above it, and the noise rises to `constant_noise` at most.
    """
    network, plan, hyper = passes.network, passes.network.plan, passes.network.hyper
    online, power, scale = plan.online, passes.power, hyper.scale
    pass_, of_pass = passes.online, passes.power
    given = (pass_.curvature, squared_norms(network.model), hyper.precision)
    members = members_of(online.prior_groups, len(pass_.curvature.names))
    if declared(plan.likelihood).learned and online.learn_noise:
        noise = noise_of(online.curvature, pass_, scale)
        most = math.inf if highest is None else max(scale, network.constant_noise)
        precision, scale = fit_prior_and_noise(
            *given, members=members, noise=noise, likelihood_power=power, highest=highest,
            least_std=passes.data.least_noise, highest_std=most,
        )  # fmt: skip
        if online.hyper_step == "newton":
            return replace(hyper, precision=precision, scale=scale)
        of_pass *= (noise.pass_std / scale) ** (2 * noise.exponent)
    precision = fit_prior(
        *given, members=members, curvature_scale=of_pass, highest=highest,
        method=online.hyper_step, steps=online.hyper_steps,
        learning_rate=online.hyper_learning_rate,
    )  # fmt: skip
    return replace(hyper, precision=precision, scale=scale)


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
    best = held * math.exp(brentq(slope, low, high, xtol=1e-9))
    return best.clamp(*(math.exp(bound) for bound in LOG_PRECISION_RANGE))
