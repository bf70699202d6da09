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
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from nas_evidence.curvature import CurvaturePass, curvature_passes
from nas_evidence.curvature.batch_rows import rows_at_once
from nas_evidence.curvature.side_by_side import KIND, Member, can_join, kroneckers_side_by_side
from nas_evidence.data.augmentation import data_of_evidence
from nas_evidence.data.tensors import TensorData, select
from nas_evidence.evidence.joint import (
    LOG_PRECISION_RANGE,
    LOG_VARIANCE_RANGE,
    NO_NOISE,
    Noise,
    Objective,
    fit_priors,
    fit_priors_and_noises,
    members_of,
    noise_of,
    tied_precision,
)
from nas_evidence.evidence.laplace import laplace_estimate, squared_norms
from nas_evidence.likelihoods import Likelihood
from nas_evidence.likelihoods.gaussian import gaussian
from nas_evidence.maths.constants import free_parameters
from nas_evidence.maths.root_finding import root
from nas_evidence.spec.likelihoods import declared
from nas_evidence.spec.record import EvidenceEstimate
from nas_evidence.spec.study import TrainingPlan, derive_seed
from nas_evidence.training.loop import DivergedError
from nas_evidence.training.network import Hyper, Network

#: Maximum number of groups of outputs whose noises an update moves apart.
MOST_GROUPS = 4
#: Parameters of networks that are updated side by side, so that their spectra take 4 MB. Larger
#: networks gain nothing: what they take is arithmetic.
_AT_ONCE = 1 << 19
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
    (found,) = updated([network]) if due else [passes_of_sample(network)]
    if isinstance(found, DivergedError):
        raise found
    return followed(found, follow=due or follow)


def updated(networks: Sequence[Network]) -> "list[Passes | DivergedError]":
    """Update the hyperparameters of networks of one architecture and plan, side by side.

    Args:
        networks: any number.

    Returns:
        For each the passes of its sample at the new hyperparameters, or why it diverged.
    """
    if not networks:
        return []
    started, first = time.perf_counter(), networks[0]
    passes = [passes_of_sample(network) for network in networks]
    if not n_noise_passes(first.plan, first.data.n_outputs):
        compute(passes, first.plan.online.curvature)
    found = update_hyperparameters(passes)
    share = (time.perf_counter() - started) / len(networks)
    for network in networks:
        network.evidence_seconds += share
    return found


def followed(sample: "Passes", *, follow: bool) -> "Passes":
    """Return the passes over all data; record the evidence of the online curvature if asked.

    Args:
        sample: the passes of the data that updates see.
        follow: record the evidence.

    Raises:
        DivergedError: if the log likelihood or the curvature is not finite.
    """
    network, started = sample.network, time.perf_counter()
    if follow:
        value = sample.followed.value
        if network.best_evidence is None or value > network.best_evidence:
            network.best_epoch, network.best_evidence = network.epoch, value
    network.evidence_seconds += time.perf_counter() - started
    n_data = len(network.data.x_train)
    if n_data <= network.plan.update_rows(n_data):
        return sample
    return passes_of(network)


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
    n = network.plan.update_rows(len(network.data.x_train))
    return passes_of(network, sample_of(network.data, n))


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
    _errors: dict[str, DivergedError] = field(default_factory=dict)
    _random: dict[str, torch.Generator] = field(default_factory=dict)

    def of(self, kind: str, n_draws: int = 1) -> list[CurvaturePass]:
        """Return independent passes of a kind; the first does not depend on `n_draws`.

        Raises:
            DivergedError: if a log likelihood or a curvature is not finite.
        """
        (error,) = compute([self], kind, n_draws)
        if error is not None:
            raise error
        return self._done[kind][:n_draws]

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

    def _random_of(self, kind: str) -> torch.Generator:
        """Return the random numbers of a kind."""
        if kind not in self._random:
            seed = self.network.derived_seed(f"curvature:{kind}", self.network.epoch)
            # On the CPU: the same draws on every device.
            self._random[kind] = torch.Generator().manual_seed(seed)
        return self._random[kind]

    def _kept(self) -> dict[Any, Any]:
        """Return the factors of the inputs, which belong to the data."""
        found: dict[Any, Any] = self.data.made.setdefault("input factors", {})
        return found


def compute(passes: Sequence[Passes], kind: str, n_draws: int = 1) -> list[DivergedError | None]:
    """Compute passes of a kind that are missing, side by side where the networks can be.

    Args:
        passes: of networks of one architecture and plan.
        kind: of curvature.
        n_draws: how many each is to have.

    Returns:
        For each why it diverged, if it did.
    """
    missing = [one for one in passes if len(one._done.get(kind, ())) < n_draws]
    for some in _side_by_side(missing):
        n_new = n_draws - min(len(one._done.get(kind, ())) for one in some)
        for one, found in zip(some, _found(some, kind, n_new), strict=True):
            one._done.setdefault(kind, []).extend(found)
            if error := _divergence(one.network, kind, found):
                one._errors[kind] = error
    return [one._errors.get(kind) for one in passes]


def _side_by_side(passes: Sequence[Passes]) -> list[Sequence[Passes]]:
    """Return groups of networks that are small enough to be taken side by side."""
    if not passes:
        return []
    size = sum(p.numel() for p in passes[0].network.model.parameters())
    n = max(1, _AT_ONCE // size)
    return [passes[start : start + n] for start in range(0, len(passes), n)]


def _found(passes: Sequence[Passes], kind: str, n_draws: int) -> list[list[CurvaturePass]]:
    """Return further draws of a kind of each network."""
    first = passes[0]
    model, n_rows = first.network.model, max(len(one.data.x_train) for one in passes)
    batch_size = rows_at_once(model, first.data.x_train)
    # A network of the user's may be anything: its pass checks what it does.
    if kind == KIND and first.network.family and can_join(model, n_rows):
        members = [_member(one, kind) for one in passes]
        return kroneckers_side_by_side(members, batch_size=batch_size, n_draws=n_draws)
    return [
        curvature_passes(
            kind,
            one.network.model,
            one.data.x_train,
            one.data.y_train,
            one.likelihood,
            batch_size=batch_size,
            n_draws=n_draws,
            generator=one._random_of(kind),
            kept=one._kept(),
        )
        for one in passes
    ]


def _member(one: Passes, kind: str) -> Member:
    """Return a network as one of those side by side."""
    given = one.data.y_train, one.likelihood, one._random_of(kind), one._kept()
    return Member(one.network.model, one.data.x_train, *given)


def _divergence(
    network: Network, kind: str, found: Sequence[CurvaturePass]
) -> DivergedError | None:
    """Return the error of a network with a log likelihood or curvature that is not finite."""
    for one in found:
        traces = one.curvature.trace()
        if not (math.isfinite(one.log_likelihood) and bool(traces.isfinite().all())):
            return DivergedError(
                f"log likelihood {one.log_likelihood} or {kind} not finite after epoch "
                f"{network.epoch}"
            )
    return None


def update_hyperparameters(passes: Sequence[Passes]) -> list[Passes | DivergedError]:
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

    Args:
        passes: of networks of one architecture and plan, which move side by side.

    Returns:
        For each the passes at the new likelihood, or why it diverged.
    """
    return [one for some in _side_by_side(passes) for one in _updated(some)]


def _updated(passes: Sequence[Passes]) -> list[Passes | DivergedError]:
    """Return `update_hyperparameters` of a group."""
    norms = _squared_norms(passes)
    found = _most_evidence(passes, norms, [None] * len(passes))
    held = [
        k
        for k, hyper in enumerate(found)
        if isinstance(hyper, Hyper) and not _may_rise(passes[k], hyper, norms[k])
    ]
    if held:
        below = [passes[k] for k in held]
        again = _most_evidence(below, norms[held], [_tied(one) for one in below])
        for k, hyper in zip(held, again, strict=True):
            found[k] = hyper
    return [_moved(one, hyper) for one, hyper in zip(passes, found, strict=True)]


def _squared_norms(passes: Sequence[Passes]) -> Tensor:
    """Return θ_lᵀθ_l of each tensor of each network [K, G], float64, on the CPU."""
    networks = [free_parameters(one.network.model).values() for one in passes]
    found = [
        torch.stack([p.detach() for p in same]).double().square().flatten(1).sum(1)
        for same in zip(*networks, strict=True)
    ]
    return torch.stack(found, 1).cpu()


def _may_rise(passes: Passes, found: Hyper, squared_norms: Tensor) -> bool:
    """Tell whether a network has learned enough for hyperparameters to rise to those found."""
    learned = passes.network.plan.online.learn_noise
    gain = passes.likelihood.gain(passes.online, passes.data.y_train, learned=learned)
    return passes.power * gain > 0.5 * float((found.precision * squared_norms).sum())


def _tied(passes: Passes) -> Tensor:
    """Return the current precisions, tied by group [G]."""
    held = passes.network.hyper.precision
    return tied_precision(held, members_of(passes.network.plan.online.prior_groups, len(held)))


def _moved(passes: Passes, found: Hyper | DivergedError) -> Passes | DivergedError:
    """Give a network its hyperparameters; return the passes at the new likelihood."""
    if isinstance(found, DivergedError):
        return found
    passes.network.hyper = found
    likelihood = passes.network.likelihood
    if likelihood == passes.likelihood:
        return passes
    return Passes(passes.network, passes.data, likelihood, passes.power)


def _most_evidence(
    passes: Sequence[Passes], norms: Tensor, highest: Sequence[Tensor | None]
) -> list[Hyper | DivergedError]:
    """Return hyperparameters of more evidence at fixed θ for each, or why it diverged.

    They are the maximum over the precisions and a factor on all noises. Then the noise of each of
    several outputs takes a step of its own, see `_noise_of_each`. With `highest` [G] no precision
    is above it, and a noise rises to `constant_noise` at most.

    Args:
        passes: of networks of one architecture and plan.
        norms: θ_lᵀθ_l [K, G].
        highest: upper bounds [G] of each, or None.
    """
    errors = compute(passes, passes[0].network.plan.online.curvature)
    fine = [k for k, error in enumerate(errors) if error is None]
    found: list[Hyper | DivergedError] = [error for error in errors if error is not None]
    if fine:
        some = [passes[k] for k in fine], norms[fine], [highest[k] for k in fine]
        hypers = iter(_maxima(*some))
        found = [next(hypers) if error is None else error for error in errors]
    return found


def _maxima(
    passes: Sequence[Passes], norms: Tensor, highest: Sequence[Tensor | None]
) -> list[Hyper | DivergedError]:
    """Return `_most_evidence` of networks whose passes are finite."""
    plan, before = passes[0].network.plan, [one.network.hyper for one in passes]
    online, starts = plan.online, [hyper.precision for hyper in before]
    scales, of_pass = [hyper.scale for hyper in before], [one.power for one in passes]
    members = members_of(online.prior_groups, len(starts[0]))
    learns_noise = declared(plan.likelihood).learned and online.learn_noise

    def objectives(noises: Sequence[Noise], powers: Sequence[float]) -> list[Objective]:
        return [
            Objective(one.online.curvature, of_one, members, noise, power)
            for one, of_one, noise, power in zip(passes, norms, noises, powers, strict=True)
        ]

    precisions: list[Tensor] | None = None
    if learns_noise:
        noises = [
            noise_of(online.curvature, one.online, scale)
            for one, scale in zip(passes, scales, strict=True)
        ]
        most = [
            math.inf if bound is None else max(scale, _geometric_mean(one.network.constant_noise))
            for one, scale, bound in zip(passes, scales, highest, strict=True)
        ]
        both = fit_priors_and_noises(
            objectives(noises, of_pass), starts, highest=highest,
            least_std=[one.data.least_noise for one in passes], highest_std=most,
        )  # fmt: skip
        precisions, scales = [precision for precision, _ in both], [scale for _, scale in both]
        of_pass = [
            power * (noise.pass_std / scale) ** (2 * noise.exponent)
            for power, noise, scale in zip(of_pass, noises, scales, strict=True)
        ]
    if precisions is None or online.hyper_step != "newton":
        precisions = fit_priors(
            objectives([NO_NOISE] * len(passes), of_pass), starts, highest=highest,
            method=online.hyper_step, steps=online.hyper_steps,
            learning_rate=online.hyper_learning_rate,
        )  # fmt: skip
    if not (learns_noise and n_noise_passes(plan, passes[0].online.n_outputs)):
        return [
            replace(hyper, precision=precision, scale=scale)
            for hyper, precision, scale in zip(before, precisions, scales, strict=True)
        ]
    found: list[Hyper | DivergedError] = []
    stds = _noise_of_each(passes, precisions, of_pass, scales)
    for one, each, precision, bound in zip(passes, stds, precisions, highest, strict=True):
        if isinstance(each, DivergedError):
            found.append(each)
            continue
        if bound is not None:
            own = _for_each(one.likelihood.each_scale, len(each))
            bounds = _for_each(one.network.constant_noise, len(each))
            each = tuple(min(std, max(most)) for std, *most in zip(each, own, bounds, strict=True))
        noise = gaussian([max(std, one.data.least_noise) for std in each])
        found.append(Hyper(precision, noise.noise_std, noise.unit))
    return found


def n_noise_passes(plan: TrainingPlan, n_outputs: int) -> int:
    """Return how many curvature passes an update takes for the noises, beside the usual one.

    >>> [n_noise_passes(TrainingPlan(likelihood="gaussian"), n) for n in (1, 2, 4, 100)]
    [0, 1, 3, 3]
    """
    learns_noise = declared(plan.likelihood).learned and plan.online.learn_noise
    return min(n_outputs, MOST_GROUPS) - 1 if learns_noise else 0


def _noise_of_each(
    passes: Sequence[Passes],
    precisions: Sequence[Tensor],
    of_pass: Sequence[float],
    common: Sequence[float],
) -> list[tuple[float, ...] | DivergedError]:
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
        passes: of each network, at the noises before.
        precisions: δ of each tensor [G].
        of_pass: factor on the curvature of the pass, for `common`.
        common: geometric mean of the noises from which the step goes.
    """
    kind = passes[0].network.plan.online.curvature
    groups = [_groups(_noises(one)) for one in passes]
    relative = [delta / power for delta, power in zip(precisions, of_pass, strict=True)]
    shifts: list[list[float]] = [[] for _ in passes]  # differences of log determinants by group
    errors: list[DivergedError | None] = [None] * len(passes)
    for at in range(len(groups[0]) - 1):
        others = [
            _with_more_noise(one, of_one[at]) for one, of_one in zip(passes, groups, strict=True)
        ]
        failed = compute(others, kind)
        errors = [error or other for error, other in zip(errors, failed, strict=True)]
        for k, (one, other) in enumerate(zip(passes, others, strict=True)):
            if errors[k] is None:
                here, there = (
                    float(each.online.curvature.log_det_ratio(relative[k]).sum())
                    for each in (one, other)
                )
                shifts[k].append((here - there) / _DIFFERENCE)
    return [
        error or _one_step(one, of_one, relative=delta, slopes=slopes, common=std)
        for one, of_one, delta, slopes, std, error in zip(
            passes, groups, relative, shifts, common, errors, strict=True
        )
    ]


def _noises(passes: Passes) -> tuple[float, ...]:
    return _for_each(passes.likelihood.each_scale, passes.online.n_outputs)


def _with_more_noise(passes: Passes, group: Sequence[int]) -> Passes:
    """Return passes with the same random signs and slightly more noise of some outputs."""
    more = math.exp(0.5 * _DIFFERENCE)
    noises = tuple(std * (more if c in group else 1.0) for c, std in enumerate(_noises(passes)))
    likelihood = passes.likelihood.of_scale(noises)
    return Passes(passes.network, passes.data, likelihood, passes.power)


def _one_step(
    passes: Passes,
    groups: Sequence[Sequence[int]],
    *,
    relative: Tensor,
    slopes: Sequence[float],
    common: float,
) -> tuple[float, ...]:
    """Return the noises after the step of `_noise_of_each`, for g of all groups but the last."""
    pass_, plan, before = passes.online, passes.network.plan, passes.likelihood
    noise, stds = noise_of(plan.online.curvature, pass_, before.scale), _noises(passes)
    effective = float(pass_.curvature.effective_parameters(relative).sum())
    shares = [0.0] * len(stds)
    for group, slope in zip(
        groups, [*slopes, noise.exponent * effective - sum(slopes)], strict=True
    ):
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


def rescaled_precision(held: Tensor, passes: Passes) -> Tensor:
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
