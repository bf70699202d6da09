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
falls on the way to that mode: by `IN_VAIN`, or in a second round by `FURTHER_FALL` more
(docs/experiments/training-length.md). The mode at the scheduled hyperparameters is never kept:
those were learned at no mode. A linear network has a convex loss, unless its noise is an output,
and always ends at one of the two modes, up to the rounding of its weights to float32.

By default networks settle where the targets are real numbers, and linear ones always
(docs/experiments/settling.md).

Work is counted, not timed, so that results do not depend on the machine or on interruptions. A
slice is one round of (a) and (b). The training is not changed before the settling ends.

The networks of folds settle side by side: each takes its own steps, their losses are one program.
"""

import copy
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from nas_evidence.curvature.products import PRODUCT_COST, LogJoint
from nas_evidence.likelihoods import Scale
from nas_evidence.maths.full_precision import full_precision
from nas_evidence.spec.likelihoods import declared
from nas_evidence.spec.schedule import interval, learns
from nas_evidence.spec.study import TrainingPlan
from nas_evidence.training.log_joints import LogJoints
from nas_evidence.training.loop import DivergedError, Member, Training, begin, likelihood_of
from nas_evidence.training.mode import (
    FULL_BATCH,
    MOST_PRODUCTS,
    gradient_cost,
    log_joint,
    newton_decrement,
    parameters_of,
    pass_cost,
    preconditioner,
    update_cost,
    write_parameters,
)
from nas_evidence.training.online import (
    Passes,
    passes_of,
    rescaled_precision,
    update_hyperparameters,
)
from nas_evidence.training.quasi_newton import Descent, Pairs, Start, descend

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
#: Nats per datum where the loss is convex, and no kink is in the way.
_CONVEX_TOLERANCE = 1e-6
#: Rounds in which every precision moves; after them, one factor on all.
FREE_ROUNDS = 1
#: Products of a test, at most.
_TEST_PRODUCTS = 30
#: Products of a reported decrement, at least: three quarters of it on small ResNets.
_FEWEST_PRODUCTS = 12
#: Gradients of a round, at least, where the evaluation interval is short.
_FEWEST_GRADIENTS = 12
#: What is tried beyond the budget where the loss is convex, in gradients.
_CONVEX_GRADIENTS = 2000

Kept = Literal["settled", "scheduled"]
_NOT_FINITE = (DivergedError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]


@dataclass
class Settling(Member):
    """Where a settling stands; the last four are its results, once it is `done`.

    training  does not change before the end
    working   the training that settles, a copy; its model holds θ rounded to its dtype
    theta     θ [P], float64
    pairs     of the L-BFGS
    cost      of a full-batch gradient, as a fraction of a scheduled epoch's
    budget    work that is allowed, in epochs of the scheduled training
    work      done so far, in the same unit
    rounds    of (a) and (b)
    double    float64 is needed
    reported  somebody asks how far from a mode the state is that is kept
    first     θ of the mode at the scheduled hyperparameters [P], once it is found
    moved     largest move of a log hyperparameter in the last round
    scheduled_evidence, first_evidence, evidence  of the three states, nats; None if not finite
    scheduled_decrement  of the scheduled state, nats, once it is asked for
    converged  the hyperparameters moved and came to rest, and the state that is kept is at a mode
    kept      the state that the training has in the end
    decrement_per_datum  of that state, nats; None with no budget
    seconds   spent so far
    """

    working: Member
    theta: Tensor
    pairs: Pairs
    cost: float
    budget: float
    work: float = 0.0
    rounds: int = 0
    double: bool = False
    reported: bool = True
    first: Tensor | None = None
    moved: float = math.inf
    scheduled_evidence: float | None = None
    first_evidence: float | None = None
    scheduled_decrement: float | None = None
    evidence: float | None = None
    done: bool = False
    converged: bool = False
    kept: Kept = "scheduled"
    decrement_per_datum: float | None = None
    seconds: float = 0.0

    @property
    def plan(self) -> TrainingPlan:
        """The plan of the training."""
        return self.assignment.plan

    @property
    def is_convex(self) -> bool:
        """Whether the loss is convex in the weights; with a noise of each row it is not."""
        convex = declared(self.plan.likelihood).convex
        return self.assignment.architecture.family == "linear" and convex

    @property
    def is_judged_far(self) -> bool:
        """Whether the evidence may judge it far from a mode."""
        return self.is_convex or declared(self.plan.likelihood).judged_far

    @property
    def tolerance(self) -> float:
        """The Newton decrement of what counts as a mode, nats."""
        per_datum = _CONVEX_TOLERANCE if self.is_convex else DECREMENT_TOLERANCE
        return per_datum * len(self.data.x_train)

    @property
    def affordable(self) -> int:
        """The number of products that a quarter of the budget pays, five at least."""
        return max(5, int(0.25 * self.budget / (PRODUCT_COST * self.cost)))

    def state_dict(self) -> dict[str, Any]:
        """Return all of it as tensors and plain values, for `load_settling`."""
        return {name: getattr(self, name) for name in _PLAIN} | {
            "theta": self.theta,
            "steps": self.pairs.steps,
            "changes": self.pairs.changes,
            "prior_precision": self.working.training.prior_precision,
            "noise_std": self.working.training.noise_std,
        }


#: Numbers, flags and `first`, written as they are.
_PLAIN = ("budget", *(field.name for field in fields(Settling) if field.default is not MISSING))


def begin_settling(of: Member, budget: float) -> Settling:
    """Return the settling of a training before its first slice.

    Args:
        of: a training after its last epoch; not changed here.
        budget: work in epochs of the scheduled training, `plan.settle` times the epochs; 0 for
            none. The decrement that is reported in the end comes on top, for a quarter of it, or
            twelve products. A linear network, whose loss is convex, reaches its optimum whatever
            the budget, unless it saw augmented images. Above `FULL_BATCH` the budget is 0.
    """
    training, plan = of.training, of.assignment.plan
    working = begin(copy.deepcopy(training.model), plan)
    working.prior_precision = training.prior_precision.clone()
    working.noise_std = training.noise_std
    working.epoch = training.epoch  # on which the random signs depend
    theta, copied = parameters_of(working), Member(working, of.data, of.assignment)
    given = (training, of.data, of.assignment, copied, theta, Pairs.none(theta))
    found = Settling(*given, gradient_cost(copied), budget)
    if found.is_convex and not plan.augment:
        found.budget = max(budget, _CONVEX_GRADIENTS * found.cost)
    if len(of.data.x_train) * len(theta) > FULL_BATCH:
        found.budget = 0.0
    return found


def load_settling(of: Member, state: Mapping[str, Any]) -> Settling:
    """Return the settling of a training as it was at `state_dict`."""
    settling = begin_settling(of, 0.0)
    for name in _PLAIN:
        setattr(settling, name, state[name])
    device = settling.theta.device
    settling.theta = state["theta"].to(device)
    settling.first = None if settling.first is None else settling.first.to(device)
    settling.pairs = Pairs(state["steps"].to(device), state["changes"].to(device))
    working = settling.working.training
    working.prior_precision = state["prior_precision"]
    working.noise_std = state["noise_std"]
    write_parameters(working, settling.theta)
    return settling


class _End(NamedTuple):
    """How a descent ended: the slope became small, or no step lowers the loss any more."""

    at_rest: bool
    stuck: bool


def settle_slice(settling: Settling) -> bool:
    """Do one round, and tell whether the settling is done; the training then has the kept state.

    A round takes about as long as the epochs between two evaluations. A state that is not finite
    ends the settling, and the scheduled one is kept.
    """
    return settle_slices([settling])[0]


def settle_slices(settlings: Sequence[Settling]) -> list[bool]:
    """Do `settle_slice` for networks of one architecture, with their descents side by side.

    The group determines the last digits of each, so it must be a function of the assignment.
    """
    started = time.perf_counter()
    live: dict[int, Settling] = {}
    for k, settling in enumerate(settlings):
        settling.done = settling.done or settling.budget <= 0
        if not settling.done:
            live[k] = settling
            if settling.scheduled_evidence is None:
                settling.scheduled_evidence = _evidence(settling)
    ends = _descend(live)
    for k, settling in live.items():
        end = ends[k]
        try:
            done = True if end is None else _end_round(settling, end)
        except _NOT_FINITE:
            done, end = True, None
        if end is None:
            settling.evidence, settling.moved = None, math.inf
        if done:
            _finish(settling)
    seconds = time.perf_counter() - started
    for settling in live.values():
        settling.seconds += seconds / len(live)
    return [settling.done for settling in settlings]


def _end_round(settling: Settling, end: _End) -> bool:
    """Move the hyperparameters after a descent; tell whether that was the last round."""
    working, plan = settling.working.training, settling.plan
    of_pass = pass_cost(plan, settling.data) * settling.cost
    if settling.first is None:
        if end.at_rest or end.stuck or settling.work >= 0.5 * settling.budget:
            settling.evidence = _evidence(settling)
            settling.first, settling.first_evidence = settling.theta, settling.evidence
            settling.work += of_pass
            # Where this is no mode, moving hyperparameters leads to none.
            if not settling.is_judged_far and not _is_near_mode(settling, settling.working):
                return True
        elif _is_in_vain(settling):
            return True
        return settling.work >= settling.budget
    before = _log_hyperparameters(working, plan)
    settling.evidence = _evidence_of(_update(settling))
    settling.work += update_cost(plan, settling.data) * settling.cost
    settling.moved = float((_log_hyperparameters(working, plan) - before).abs().max())
    settling.rounds += 1
    if settling.moved < MOVE_TOLERANCE:
        decrement, n_products = newton_decrement(
            settling.working, theta=settling.theta,
            max_products=min(_TEST_PRODUCTS, settling.affordable), enough=settling.tolerance,
        )  # fmt: skip
        settling.work += PRODUCT_COST * n_products * settling.cost
        if end.stuck or decrement < settling.tolerance:  # nothing more to be had
            return True
    return settling.work >= settling.budget


def _is_in_vain(settling: Settling) -> bool:
    """Tell whether the way to a mode of real targets leads to too little evidence."""
    plan, scheduled = settling.plan, settling.scheduled_evidence
    if not settling.is_judged_far or settling.is_convex or scheduled is None:
        return False
    before, evidence = settling.evidence, _evidence(settling)
    settling.evidence = evidence
    settling.work += pass_cost(plan, settling.data) * settling.cost
    n_data = len(settling.data.x_train)
    if evidence is None or evidence < scheduled - IN_VAIN * n_data:
        return True
    if before is None or before >= scheduled:
        return False
    return evidence < before - FURTHER_FALL * n_data


def _update(settling: Settling) -> Passes:
    """Move the hyperparameters as the plan has it; return the passes at what results."""
    working = settling.working.training
    passes = passes_of(working, settling.data, settling.assignment)
    if learns(settling.plan):
        held = working.prior_precision
        passes = update_hyperparameters(passes)
        if settling.rounds >= FREE_ROUNDS:
            working.prior_precision = rescaled_precision(held, passes)
    return passes


def _descend(live: Mapping[int, Settling]) -> dict[int, _End | None]:
    """Lower each loss at fixed hyperparameters for about an evaluation interval.

    Returns:
        How each ended; None for those that are not finite.
    """
    ends: dict[int, _End | None] = {}
    starts: dict[int, tuple[LogJoint, Start]] = {}
    for k, settling in live.items():
        try:
            starts[k] = _begin_descent(settling)
        except _NOT_FINITE:
            ends[k] = None
    # Formed before any descent: one that gets stuck in float32 turns to float64 in its next slice.
    doubles = {k for k in starts if live[k].double}
    for members in (starts.keys() - doubles, doubles):
        group = {k: both for k, both in starts.items() if k in members}
        losses = LogJoints({k: joint for k, (joint, _) in group.items()})
        with full_precision():
            found = descend(losses, {k: start for k, (_, start) in group.items()})
        ends |= {k: _end_descent(live[k], found[k], group[k][1]) for k in group}
    return ends


def _begin_descent(settling: Settling) -> tuple[LogJoint, Start]:
    """Return the loss of a descent, and where it begins."""
    working, plan = settling.working, settling.plan
    left = min(interval(plan), settling.budget - settling.work)
    inverse = preconditioner(working)
    inverse(settling.theta)  # decomposed here, where it may fail
    settling.work += pass_cost(plan, settling.data) * settling.cost
    joint = log_joint(working, double=settling.double)
    return joint, Start(
        settling.theta,
        settling.pairs,
        inverse,
        precision=joint.precision,
        likelihood_scale=plan.likelihood_power / joint.likelihood.scale**2,
        n_gradients=max(_FEWEST_GRADIENTS, round(left / settling.cost)),
        # Far enough below the tolerance, where a preconditioner stands for H.
        small_slope=0.1 * settling.tolerance,
    )


def _end_descent(settling: Settling, found: Descent, start: Start) -> _End:
    settling.theta, settling.pairs = found.theta, found.pairs
    stuck = found.stuck and settling.double
    settling.double |= found.stuck
    settling.work += found.n_gradients * settling.cost
    write_parameters(settling.working.training, settling.theta)
    return _End(found.slope <= start.small_slope, stuck)


def _finish(settling: Settling) -> None:
    """Put the state that is kept into the training, and say how far from a mode it is if asked."""
    settling.done = True
    settling.pairs = Pairs.none(settling.theta)  # checkpoints are small again
    for candidate in _candidates(settling):
        candidate.put_into(settling.working.training)
        if settling.is_judged_far or _is_near_mode(settling, settling.working):
            settling.kept, settling.evidence = "settled", candidate.evidence
            settling.theta = candidate.theta
            candidate.put_into(settling.training)
            break
    if not settling.reported:
        return
    decrement = settling.scheduled_decrement
    if settling.kept == "settled" or decrement is None:
        decrement = _decrement(settling, settling)
    if math.isfinite(decrement):
        settling.decrement_per_datum = decrement / len(settling.data.x_train)
        at_rest = learns(settling.plan) and settling.moved < MOVE_TOLERANCE
        settling.converged = (
            settling.kept == "settled" and at_rest and _is_mode(decrement, settling)
        )


class _Candidate(NamedTuple):
    """A state that may be kept: parameters θ [P], hyperparameters, evidence in nats."""

    theta: Tensor
    prior_precision: Tensor
    noise_std: Scale
    evidence: float

    def put_into(self, training: Training) -> None:
        training.prior_precision = self.prior_precision.clone()
        training.noise_std = self.noise_std
        write_parameters(training, self.theta)


def _candidates(settling: Settling) -> list[_Candidate]:
    """Return the end of the alternation, if it has more evidence than the scheduled state.

    Where the loss is convex also if it has less, and the mode at the scheduled hyperparameters:
    the state of more evidence first.
    """
    found = []
    for theta, of, evidence, is_one in (
        (settling.first, settling.training, settling.first_evidence, settling.is_convex),
        (settling.theta, settling.working.training, settling.evidence, bool(settling.rounds)),
    ):
        if is_one and theta is not None and evidence is not None:
            found.append(_Candidate(theta, of.prior_precision, of.noise_std, evidence))
    least = settling.scheduled_evidence
    if least is not None and not settling.is_convex:
        found = [candidate for candidate in found if candidate.evidence > least]
    return sorted(found, key=lambda candidate: -candidate.evidence)


def _is_mode(decrement: float, settling: Settling) -> bool:
    """Tell whether the state that is kept is at a mode, before it was rounded if that is convex.

    With a noise of 3e-7 the rounding of the weights to float32 costs 0.005 to 0.013 nats per datum
    in the decrement, whatever the optimiser does.
    """
    limit = settling.tolerance
    if decrement < limit or not settling.is_convex:
        return decrement < limit
    return _decrement(settling, settling, theta=settling.theta, enough=limit) < limit


def _is_near_mode(settling: Settling, candidate: Member) -> bool:
    """Tell whether a settled state is near enough to a mode to replace the scheduled one."""
    if settling.scheduled_decrement is None:
        settling.scheduled_decrement = _decrement(settling, settling)
    n_data = len(settling.data.x_train)
    limit = max(NEAR_MODE * n_data, CLOSER * settling.scheduled_decrement)
    return _decrement(settling, candidate, enough=limit) <= limit


def _decrement(
    settling: Settling, of: Member, *, theta: Tensor | None = None, enough: float = math.inf
) -> float:
    products = min(MOST_PRODUCTS, max(_FEWEST_PRODUCTS, settling.affordable))
    return newton_decrement(of, theta=theta, max_products=products, enough=enough)[0]


def _evidence(settling: Settling) -> float | None:
    working = settling.working
    return _evidence_of(passes_of(working.training, working.data, working.assignment))


def _evidence_of(passes: Passes) -> float | None:
    """Return the Laplace evidence of the online curvature in nats, or None if not finite."""
    value = passes.followed.value
    return value if math.isfinite(value) else None


def _log_hyperparameters(training: Training, plan: TrainingPlan) -> Tensor:
    """Return the logarithms of precisions and of noise or temperature, on the CPU."""
    scales = likelihood_of(plan, training.noise_std).each_scale
    precision = training.prior_precision.detach().cpu().log()
    return torch.cat([precision, torch.tensor(scales, dtype=torch.float64).log()])
