"""Settling: optimise to a mode after the scheduled epochs, with its best hyperparameters.

    (a)  θ  <- argmin  −κ log p(y|θ) + ½ θᵀ Δ θ                    at fixed hyperparameters
    (b)  prior precisions and noise  <-  most evidence             at fixed θ, as in training
    until   gᵀ (κ H + Δ)⁻¹ g < 0.004 N nats and no log of a hyperparameter moves by 0.02

    g  gradient of the loss in (a) [P]      H  exact Gauss-Newton matrix, by its products
    N  data                                 Δ  diagonal of prior precisions

Laplace's approximation expands around a mode. After its scheduled epochs a network is not at one:
gᵀ (κ H + Δ)⁻¹ g, the Newton decrement, is 0.1 to 1 nats per datum, and every Laplace value is off
by about half of that.

(a) is full-batch L-BFGS, preconditioned by the online curvature. It runs in the model's float32
until a line search fails, then in float64. ReLU networks can have modes at kinks of the loss,
where the gradient does not vanish. The tolerance is then never met, and the budget ends it.
Above `FULL_BATCH` data x parameters nothing settles.

(b) moves all hyperparameters once, and from then on the noise and one factor on all precisions.
With a precision for each tensor, (a) and (b) contradict each other. A ReLU network is the same
function when the weights of one layer grow by a factor and those of the next one shrink by it, so
a mode has equal δ_l ‖θ_l‖² in both, but the evidence is highest where it is γ_l, the number of
effective parameters of each. Alternating then drifts along the symmetry, by 0.5 in the logarithms
each round, until precisions reach their bounds at e⁻¹² and e¹⁸, and the decrement stays at (γ_1 −
γ_2)² / (γ_1 + γ_2). Held ratios have a fixed point for any network.

The end of the alternation replaces the scheduled state if it has more evidence, by the Laplace
value of the online curvature with the same random signs, and for labels only if it is near a mode,
by `NEAR_MODE` or `CLOSER`: half-way there the evidence misjudges it. Where the first mode is not
reached in half the budget, a settling with labels ends. With real targets it ends where evidence
falls on the way to that mode: by `IN_VAIN`, or in a second round by `FURTHER_FALL` more. The mode
at the scheduled hyperparameters is never kept: those were learned at no mode. A linear network has
a convex loss, unless its noise is an output, and always ends at one of the two modes, up to the
rounding of its weights to float32.

By default networks settle where the targets are real numbers, and linear ones always. Most with
real targets would end with the scheduled state. So these begin with a trial of up to three short
rounds, in which (b) moves all hyperparameters. It ends the settling where evidence falls, by
`TRIAL_FALLS`; else all begins again at the scheduled state. Both rules were measured
(docs/results/few-rows-and-real-targets.md).

Work is counted, not timed, so that results do not depend on the machine or on interruptions. A
slice is one round of (a) and (b). The scheduled state is kept until the settling ends.

The networks of folds settle side by side: each takes its own steps, their losses are one program.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from nas_evidence.curvature.products import PRODUCT_COST, LogJoint
from nas_evidence.maths.block_inverse import BlockInverse
from nas_evidence.maths.full_precision import full_precision
from nas_evidence.spec.likelihoods import declared
from nas_evidence.spec.schedule import interval, learns
from nas_evidence.training.log_joints import LogJoints
from nas_evidence.training.loop import DivergedError
from nas_evidence.training.mode import (
    FULL_BATCH,
    MOST_PRODUCTS,
    gradient_cost,
    log_joint,
    newton_decrement,
    parameters_of,
    pass_cost,
    preconditioners,
    update_cost,
    write_parameters,
)
from nas_evidence.training.network import Network, Settling, Trained
from nas_evidence.training.online import (
    Passes,
    compute,
    passes_of,
    rescaled_precision,
    update_hyperparameters,
)
from nas_evidence.training.quasi_newton import Descent, History, Start, descend

#: Newton decrement per datum, nats, below which parameters count as a mode.
DECREMENT_TOLERANCE = 0.004
#: Largest move of the logarithm of a hyperparameter that counts as none.
MOVE_TOLERANCE = 0.02
#: Newton decrement per datum, nats, up to which a settled state may replace the scheduled one:
#: evidence far from a mode misjudges both.
NEAR_MODE = 0.1
#: The same as a part of the decrement of the scheduled state; one of the two suffices.
CLOSER = 0.1
#: Nats per datum below the evidence of the scheduled state at which settling is given up at once.
IN_VAIN = 0.2
#: Nats per datum that a further round may lose while the evidence is above that.
FURTHER_FALL = 0.02
#: Nats per datum below the evidence of the scheduled state that end the trial, after each round.
TRIAL_FALLS = (0.2, 0.1, 0.02)
#: Part of a round that the first one of the trial is, and gradients at least. The others are as
#: long as all before them.
_SHORT, _FEWEST_OF_TRIAL = 16, 3
#: Nats per datum where the loss is convex, and no kink is in the way.
_CONVEX_TOLERANCE = 1e-6
#: Rounds in which every precision moves; after them, one factor on all.
FREE_ROUNDS = 1
#: Products of a test, at most.
_TEST_PRODUCTS = 30
#: Products of a reported decrement, at least: three quarters of it on small ResNets.
_FEWEST_PRODUCTS = 12
#: Gradients of a round, at least, where the interval of updates is short.
_FEWEST_GRADIENTS = 12
#: What is tried beyond the budget where the loss is convex, in gradients.
_CONVEX_GRADIENTS = 2000

_NOT_FINITE = (DivergedError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]


def begin_settling(network: Network, budget: float) -> Settling:
    """Begin to settle a network after its last epoch; return its settling before the first slice.

    Args:
        network: after its last epoch.
        budget: work in epochs of the scheduled training, `plan.settle` times the epochs; 0 for
            none. The decrement that is reported in the end comes on top, for a quarter of it, or
            twelve products, and so does the trial, about a round. A linear network, whose loss is
            convex, reaches its optimum whatever the budget, unless it saw augmented images. Above
            `FULL_BATCH` the budget is 0.
    """
    theta = parameters_of(network)
    scheduled, cost = Trained(theta, network.hyper), gradient_cost(network)
    found = network.settling = Settling(scheduled, theta, History.none(theta), cost, budget)
    if _is_convex(network) and not network.plan.augment:
        found.budget = max(budget, _CONVEX_GRADIENTS * found.cost)
    if len(network.data.x_train) * len(theta) > FULL_BATCH:
        found.budget = 0.0
    if learns(network.plan) and _is_judged_far(network) and not _is_convex(network):
        found.trial = len(TRIAL_FALLS)
    return found


def _of(network: Network) -> Settling:
    assert network.settling is not None
    return network.settling


def _is_convex(network: Network) -> bool:
    """Tell whether the loss is convex in the weights; with a noise of each row it is not."""
    return network.family == "linear" and declared(network.plan.likelihood).convex


def _is_judged_far(network: Network) -> bool:
    """Tell whether the evidence may judge it far from a mode."""
    return _is_convex(network) or declared(network.plan.likelihood).judged_far


def _affordable(network: Network) -> int:
    """Return the number of products that a quarter of the budget pays, five at least."""
    settling = _of(network)
    return max(5, int(0.25 * settling.budget / (PRODUCT_COST * settling.cost)))


def _tolerance(network: Network) -> float:
    """Return the Newton decrement of what counts as a mode, nats."""
    per_datum = _CONVEX_TOLERANCE if _is_convex(network) else DECREMENT_TOLERANCE
    return per_datum * len(network.data.x_train)


class _End(NamedTuple):
    """How a descent ended: the slope became small, or no step lowers the loss any more."""

    at_rest: bool
    stuck: bool


def settle_slices(networks: Sequence[Network]) -> list[bool]:
    """Do one round for each of some networks, and tell whose settling is done.

    Those have the state that is kept. A round takes about as long as the epochs between two
    updates. A state that is not finite ends the settling, and the scheduled one is kept.

    Args:
        networks: of one architecture, whose descents go side by side. The group determines the
            last digits of each, so it must be a function of the assignment.
    """
    started = time.perf_counter()
    live: dict[int, Network] = {}
    for k, network in enumerate(networks):
        settling = _of(network)
        settling.done = settling.done or settling.budget <= 0
        if not settling.done:
            live[k] = network
    first = [one for one in live.values() if _of(one).scheduled_evidence is None]
    for network, evidence in zip(first, _evidences(first), strict=True):
        if isinstance(evidence, DivergedError):
            raise evidence
        _of(network).scheduled_evidence = evidence
    ends = _descend(live)
    try:
        rounds = _rounds(live, ends)
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        rounds = {k: _Round(DivergedError(str(error))) for k in live}
    for k, network in live.items():
        end, settling = ends[k], _of(network)
        try:
            done = True if end is None else _end_round(network, end, rounds[k])
        except _NOT_FINITE:
            done, end = True, None
        if end is None:
            settling.evidence, settling.moved = None, math.inf
        if done:
            _finish(network)
    seconds = time.perf_counter() - started
    for network in live.values():
        _of(network).seconds += seconds / len(live)
    return [_of(network).done for network in networks]


class _Round(NamedTuple):
    """What is found after a descent, side by side with other networks.

    evidence  nats, None if not finite, or why it diverged; it is at the new hyperparameters if
              these were moved, and None if it is not asked for
    moved     largest move of a log hyperparameter
    """

    evidence: float | DivergedError | None
    moved: float = math.inf


def _rounds(live: Mapping[int, Network], ends: Mapping[int, _End | None]) -> dict[int, _Round]:
    """Move the hyperparameters of those at their first mode; return the evidences of all."""
    going = {k: end for k, end in ends.items() if end is not None}
    moving = [k for k in going if _of(live[k]).first is not None or _of(live[k]).trial]
    judged = [
        k
        for k in going
        if k not in moving and (_is_first_over(live[k], going[k]) or _may_be_in_vain(live[k]))
    ]
    found = {k: _Round(None) for k in going}
    for k, evidence in zip(judged, _evidences([live[k] for k in judged]), strict=True):
        found[k] = _Round(evidence)
    before = {k: _log_hyperparameters(live[k]) for k in moving}
    for k, passes in zip(moving, _updates([live[k] for k in moving]), strict=True):
        if isinstance(passes, DivergedError):
            found[k] = _Round(passes)
        else:
            after = _log_hyperparameters(live[k])
            found[k] = _Round(_evidence_of(passes), float((after - before[k]).abs().max()))
    return found


def _is_first_over(network: Network, end: _End) -> bool:
    """Tell whether the descent at the scheduled hyperparameters ends here."""
    settling = _of(network)
    return end.at_rest or end.stuck or settling.work >= 0.5 * settling.budget


def _end_round(network: Network, end: _End, found: _Round) -> bool:
    """Note what a round has found; tell whether it was the last one."""
    settling, plan = _of(network), network.plan
    of_pass = pass_cost(plan, network.data) * settling.cost
    if isinstance(found.evidence, DivergedError):
        raise found.evidence
    if settling.trial:
        return _is_lost_in_trial(network, found.evidence)
    if settling.first is None:
        if _is_first_over(network, end):
            settling.evidence = found.evidence
            settling.first, settling.first_evidence = settling.theta, settling.evidence
            settling.work += of_pass
            # Where this is no mode, moving hyperparameters leads to none.
            if not _is_judged_far(network) and _decrement_near_a_mode(network) is None:
                return True
        elif _may_be_in_vain(network) and _is_in_vain(network, found.evidence):
            return True
        return settling.work >= settling.budget
    settling.evidence, settling.moved = found.evidence, found.moved
    settling.work += update_cost(plan, network.data) * settling.cost
    settling.rounds += 1
    if settling.moved < MOVE_TOLERANCE:
        decrement, n_products = newton_decrement(
            network, theta=settling.theta,
            max_products=min(_TEST_PRODUCTS, _affordable(network)), enough=_tolerance(network),
        )  # fmt: skip
        settling.work += PRODUCT_COST * n_products * settling.cost
        if end.stuck or decrement < _tolerance(network):  # nothing more to be had
            return True
    return settling.work >= settling.budget


def _is_lost_in_trial(network: Network, evidence: float | None) -> bool:
    """Tell whether a round of the trial ends the settling; after the last one begin again."""
    settling, n_data = _of(network), len(network.data.x_train)
    least = settling.scheduled_evidence
    if least is not None and (
        evidence is None or evidence < least - TRIAL_FALLS[-settling.trial] * n_data
    ):
        return True
    settling.work += update_cost(network.plan, network.data) * settling.cost
    settling.trial -= 1
    if not settling.trial:
        _put(settling.scheduled, network)
        settling.theta = settling.scheduled.theta
        settling.history = History.none(settling.theta)
        settling.double, settling.work = False, 0.0
    return False


def _may_be_in_vain(network: Network) -> bool:
    """Tell whether the evidence on the way to the first mode says whether that is in vain."""
    known = _of(network).scheduled_evidence is not None
    return known and _is_judged_far(network) and not _is_convex(network)


def _is_in_vain(network: Network, evidence: float | None) -> bool:
    """Tell whether the way to a mode of real targets leads to too little evidence."""
    settling, plan = _of(network), network.plan
    scheduled, before = settling.scheduled_evidence, settling.evidence
    assert scheduled is not None
    settling.evidence = evidence
    settling.work += pass_cost(plan, network.data) * settling.cost
    n_data = len(network.data.x_train)
    if evidence is None or evidence < scheduled - IN_VAIN * n_data:
        return True
    if before is None or before >= scheduled:
        return False
    return evidence < before - FURTHER_FALL * n_data


def _updates(networks: Sequence[Network]) -> list[Passes | DivergedError]:
    """Move the hyperparameters as the plan has it; return the passes at what results."""
    if not networks:
        return []
    passes = [passes_of(network) for network in networks]
    if not learns(networks[0].plan):
        errors = compute(passes, networks[0].plan.online.curvature)
        return [error or one for one, error in zip(passes, errors, strict=True)]
    held = [network.hyper.precision for network in networks]
    found = update_hyperparameters(passes)
    for network, one, before in zip(networks, found, held, strict=True):
        if _of(network).rounds >= FREE_ROUNDS and isinstance(one, Passes):
            network.hyper = replace(network.hyper, precision=rescaled_precision(before, one))
    return found


def _descend(live: Mapping[int, Network]) -> dict[int, _End | None]:
    """Lower each loss at fixed hyperparameters for about the interval of updates.

    Returns:
        How each ended; None for those that are not finite.
    """
    ends: dict[int, _End | None] = {}
    starts: dict[int, tuple[LogJoint, Start]] = {}
    inverses = preconditioners(list(live.values())) if live else []
    for (k, network), inverse in zip(live.items(), inverses, strict=True):
        try:
            starts[k] = _begin_descent(network, inverse)
        except _NOT_FINITE:
            ends[k] = None
    # Formed before any descent: one that gets stuck in float32 turns to float64 in its next slice.
    doubles = {k for k in starts if _of(live[k]).double}
    for members in (starts.keys() - doubles, doubles):
        group = {k: both for k, both in starts.items() if k in members}
        losses = LogJoints({k: joint for k, (joint, _) in group.items()})
        with full_precision():
            found = descend(losses, {k: start for k, (_, start) in group.items()})
        ends |= {k: _end_descent(live[k], found[k], group[k][1]) for k in group}
    return ends


def _begin_descent(
    network: Network, inverse: BlockInverse | DivergedError
) -> tuple[LogJoint, Start]:
    """Return the loss of a descent, and where it begins."""
    settling, plan = _of(network), network.plan
    n_gradients = _n_gradients(network)
    if isinstance(inverse, DivergedError):
        raise inverse
    inverse(settling.theta)  # decomposed here, where it may fail
    settling.work += pass_cost(plan, network.data) * settling.cost
    joint = log_joint(network, double=settling.double)
    return joint, Start(
        settling.theta,
        settling.history,
        inverse,
        precision=joint.precision,
        likelihood_scale=plan.likelihood_power / joint.likelihood.scale**2,
        n_gradients=n_gradients,
        # Far enough below the tolerance, where a preconditioner stands for H.
        small_slope=0.1 * _tolerance(network),
    )


def _n_gradients(network: Network) -> int:
    """Return the most gradients of the next round."""
    settling = _of(network)
    left = min(interval(network.plan), settling.budget - settling.work)
    whole = max(_FEWEST_GRADIENTS, round(left / settling.cost))
    if not settling.trial:
        return whole
    before = round(settling.work / settling.cost)
    return min(whole, max(whole // _SHORT, _FEWEST_OF_TRIAL, before))


def _end_descent(network: Network, found: Descent, start: Start) -> _End:
    settling = _of(network)
    settling.theta, settling.history = found.theta, found.history
    stuck = found.stuck and settling.double
    settling.double |= found.stuck
    settling.work += found.n_gradients * settling.cost
    write_parameters(network, settling.theta)
    return _End(found.slope <= start.small_slope, stuck)


def _finish(network: Network) -> None:
    """Give the network the state that is kept, and say how far from a mode it is if asked."""
    settling = _of(network)
    settling.done = True
    settling.history = History.none(settling.theta)  # checkpoints are small again
    anywhere = _is_judged_far(network)
    for candidate, evidence in _candidates(network):
        _put(candidate, network)
        decrement = None if anywhere else _decrement_near_a_mode(network)
        if anywhere or decrement is not None:
            settling.kept, settling.evidence = "settled", evidence
            settling.theta = candidate.theta
            break
    else:
        _put(settling.scheduled, network)
        decrement = settling.scheduled_decrement
    if not settling.reported:
        return
    decrement = _decrement(network) if decrement is None else decrement
    if math.isfinite(decrement):
        settling.decrement_per_datum = decrement / len(network.data.x_train)
        at_rest = learns(network.plan) and settling.moved < MOVE_TOLERANCE
        settling.converged = (
            settling.kept == "settled" and at_rest and _is_mode(decrement, network)
        )


def _put(state: Trained, network: Network) -> None:
    network.hyper = state.hyper
    write_parameters(network, state.theta)


def _candidates(network: Network) -> list[tuple[Trained, float]]:
    """Return the end of the alternation, if it has more evidence than the scheduled state.

    Where the loss is convex also if it has less, and the mode at the scheduled hyperparameters.

    Returns:
        Each with its evidence in nats; that of more evidence first.
    """
    settling, convex = _of(network), _is_convex(network)
    found = []
    for theta, hyper, evidence, is_one in (
        (settling.first, settling.scheduled.hyper, settling.first_evidence, convex),
        (settling.theta, network.hyper, settling.evidence, bool(settling.rounds)),
    ):
        if is_one and theta is not None and evidence is not None:
            found.append((Trained(theta, hyper), evidence))
    least = settling.scheduled_evidence
    if least is not None and not convex:
        found = [one for one in found if one[1] > least]
    return sorted(found, key=lambda one: -one[1])


def _is_mode(decrement: float, network: Network) -> bool:
    """Tell whether the state that is kept is at a mode, before it was rounded if that is convex.

    With a noise of 3e-7 the rounding of the weights to float32 costs 0.005 to 0.013 nats per datum
    in the decrement, whatever the optimiser does.
    """
    limit = _tolerance(network)
    if decrement < limit or not _is_convex(network):
        return decrement < limit
    return _decrement(network, theta=_of(network).theta, enough=limit) < limit


def _decrement_near_a_mode(network: Network) -> float | None:
    """Return the decrement of a settled state, None if it is too far to replace the scheduled."""
    settling = _of(network)
    if settling.scheduled_decrement is None:
        settled = Trained(parameters_of(network), network.hyper)
        _put(settling.scheduled, network)
        settling.scheduled_decrement = _decrement(network)
        _put(settled, network)
    n_data = len(network.data.x_train)
    limit = max(NEAR_MODE * n_data, CLOSER * settling.scheduled_decrement)
    decrement = _decrement(network, enough=limit)
    return decrement if decrement <= limit else None


def _decrement(
    network: Network, *, theta: Tensor | None = None, enough: float = math.inf
) -> float:
    products = min(MOST_PRODUCTS, max(_FEWEST_PRODUCTS, _affordable(network)))
    return newton_decrement(network, theta=theta, max_products=products, enough=enough)[0]


def _evidences(networks: Sequence[Network]) -> list[float | DivergedError | None]:
    """Return the evidence of each in nats, None if it is not finite, or why it diverged."""
    if not networks:
        return []
    passes = [passes_of(network) for network in networks]
    errors = compute(passes, networks[0].plan.online.curvature)
    return [error or _evidence_of(one) for one, error in zip(passes, errors, strict=True)]


def _evidence_of(passes: Passes) -> float | None:
    """Return the Laplace evidence of the online curvature in nats, or None if not finite."""
    value = passes.followed.value
    return value if math.isfinite(value) else None


def _log_hyperparameters(network: Network) -> Tensor:
    """Return the logarithms of precisions and of noise or temperature, on the CPU."""
    scales = network.likelihood.each_scale
    precision = network.hyper.precision.detach().cpu().log()
    return torch.cat([precision, torch.tensor([*map(math.log, scales)], dtype=torch.float64)])
