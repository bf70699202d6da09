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
by `NEAR_MODE` or `CLOSER`: half-way there the evidence misjudges it, and on small images the log
loss of such networks doubled and trebled. Where the first mode is not reached in half the budget,
a settling with labels ends. With real targets it ends where evidence falls on the way to that
mode: by `IN_VAIN`, or in a second round by `FURTHER_FALL` more. Of 64 networks on eight sets the
16 whose settled state is kept in the end never fell so, and the other 48 all did
(docs/experiments/training-length.md). The mode at the scheduled hyperparameters comes first and
is never kept: those were learned at no mode, and there the log loss rose on six of eight sets of
labels. A linear network has a convex loss, unless its noise is an output, and always ends at one
of the two modes, up to the rounding of its weights to float32.

By default networks settle where the targets are real numbers: after 40 epochs the log loss fell by
0.05 to 0.39 nats per datum on five sets, and for no network it rose. With labels no rule helped
on every set (docs/experiments/settling.md), and only linear networks settle.

Work is counted, not timed, so that results do not depend on the machine or on interruptions. A
slice is one round of (a) and (b). The training is not changed before the settling ends.

The networks of folds settle side by side: each takes its own steps, their losses are one program.
"""

import copy
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from nas_evidence.curvature import CurvaturePass
from nas_evidence.curvature.products import PRODUCT_COST, LogJoint
from nas_evidence.data.tensors import TensorData
from nas_evidence.evidence.laplace import laplace_estimate
from nas_evidence.maths.full_precision import full_precision
from nas_evidence.spec.study import Assignment, TrainingPlan
from nas_evidence.training.log_joints import LogJoints
from nas_evidence.training.loop import DivergedError, Training, begin, spread_of
from nas_evidence.training.mode import (
    FULL_BATCH,
    MOST_PRODUCTS,
    gradient_cost,
    log_joint,
    newton_decrement,
    parameters_of,
    pass_cost,
    preconditioner,
    write_parameters,
)
from nas_evidence.training.one_factor import rescaled_precision
from nas_evidence.training.online import passes_of, update_hyperparameters
from nas_evidence.training.quasi_newton import Descent, Pairs, Start, descend

#: Newton decrement per datum, nats, below which parameters count as a mode.
DECREMENT_TOLERANCE = 0.004
#: Largest move of the logarithm of a hyperparameter that counts as none.
MOVE_TOLERANCE = 0.02
#: Newton decrement per datum, nats, up to which a settled state may replace the scheduled one, or
#: as a part of that of the scheduled state. Evidence far from a mode misjudges both.
NEAR_MODE, CLOSER = 0.1, 0.1
#: Nats per datum below the evidence of the scheduled state at which a settling is given up at
#: once; above it where a further round loses more than the second number.
IN_VAIN, FURTHER_FALL = 0.2, 0.02
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
class Settling:
    """Where a settling stands; the last four are its results, once it is `done`.

    working   the training that settles, a copy; its model holds θ rounded to its dtype
    theta     θ [P], float64
    pairs     of the L-BFGS
    cost      of a full-batch gradient, as a fraction of a scheduled epoch's
    budget    work that is allowed, in epochs of the scheduled training
    work      done so far, in the same unit
    rounds    of (a) and (b)
    double    float64 is needed
    held      the hyperparameters stay those of the schedule
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

    working: Training
    theta: Tensor
    pairs: Pairs
    cost: float
    budget: float
    work: float = 0.0
    rounds: int = 0
    double: bool = False
    held: bool = False
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

    def state_dict(self) -> dict[str, Any]:
        """Return all of it as tensors and plain values, for `load_settling`."""
        plain = {name: getattr(self, name) for name in _PLAIN}
        return plain | {
            "theta": self.theta,
            "first": self.first,
            "steps": self.pairs.steps,
            "changes": self.pairs.changes,
            "prior_precision": self.working.prior_precision,
            "noise_std": self.working.noise_std,
            "temperature": self.working.temperature,
        }


_PLAIN = (
    "budget",
    "work",
    "rounds",
    "double",
    "held",
    "reported",
    "moved",
    "scheduled_evidence",
    "first_evidence",
    "scheduled_decrement",
    "evidence",
    "done",
    "converged",
    "kept",
    "decrement_per_datum",
    "seconds",
)


def begin_settling(
    training: Training, data: TensorData, assignment: Assignment, budget: float
) -> Settling:
    """Return the settling of a training before its first slice.

    Args:
        training: after its last epoch; not changed here.
        data: that it was trained on.
        assignment: its plan and seeds.
        budget: work in epochs of the scheduled training, `plan.settle` times the epochs; 0 for
            none. The decrement that is reported in the end comes on top, for a quarter of it, or
            twelve products. A linear network, whose loss is convex, reaches its optimum whatever
            the budget, unless it saw augmented images. Above `FULL_BATCH` the budget is 0.
    """
    working = begin(copy.deepcopy(training.model), assignment.plan)
    working.prior_precision = training.prior_precision.clone()
    working.noise_std, working.temperature = training.noise_std, training.temperature
    working.epoch = training.epoch  # on which the random signs depend
    theta = parameters_of(working)
    cost = gradient_cost(working, data, assignment.plan)
    if _is_convex(assignment) and not assignment.plan.augment:
        budget = max(budget, _CONVEX_GRADIENTS * cost)
    if len(data.x_train) * len(theta) > FULL_BATCH:
        budget = 0.0
    return Settling(working, theta, Pairs.none(theta), cost, budget)


def load_settling(
    training: Training, data: TensorData, assignment: Assignment, state: Mapping[str, Any]
) -> Settling:
    """Return the settling of a training as it was at `state_dict`."""
    settling = begin_settling(training, data, assignment, 0.0)
    for name in _PLAIN:
        setattr(settling, name, state[name])
    device = settling.theta.device
    settling.theta = state["theta"].to(device)
    settling.first = None if state["first"] is None else state["first"].to(device)
    settling.pairs = Pairs(state["steps"].to(device), state["changes"].to(device))
    working = settling.working
    working.prior_precision = state["prior_precision"]
    working.noise_std, working.temperature = state["noise_std"], state["temperature"]
    write_parameters(working, settling.theta)
    return settling


@dataclass(frozen=True)
class Settler:
    """A settling with its training, its data, and its plan and seeds."""

    settling: Settling
    training: Training
    data: TensorData
    assignment: Assignment


class _End(NamedTuple):
    """How a descent ended: the slope became small, or no step lowers the loss any more."""

    at_rest: bool
    stuck: bool


def settle_slice(
    settling: Settling, training: Training, data: TensorData, assignment: Assignment
) -> bool:
    """Do one round, and tell whether the settling is done; the training then has the kept state.

    A round takes about as long as the epochs between two evaluations. A state that is not finite
    ends the settling, and the scheduled one is kept.
    """
    return settle_slices([Settler(settling, training, data, assignment)])[0]


def settle_slices(settlers: Sequence[Settler]) -> list[bool]:
    """Do `settle_slice` for networks of one architecture, with their descents side by side.

    The group determines the last digits of each, so it must be a function of the assignment.
    """
    started = time.perf_counter()
    live: dict[int, Settler] = {}
    for k, one in enumerate(settlers):
        settling = one.settling
        settling.done = settling.done or settling.budget <= 0
        if not settling.done:
            live[k] = one
            if settling.scheduled_evidence is None:
                settling.scheduled_evidence = _evidence(settling.working, one.data, one.assignment)
    ends = _descend(live)
    for k, one in live.items():
        settling, end = one.settling, ends[k]
        try:
            done = True if end is None else _end_round(one, end)
        except _NOT_FINITE:
            done, end = True, None
        if end is None:
            settling.evidence, settling.moved = None, math.inf
        if done:
            _finish(settling, one.training, one.data, one.assignment)
    seconds = time.perf_counter() - started
    for one in live.values():
        one.settling.seconds += seconds / len(live)
    return [one.settling.done for one in settlers]


def _end_round(one: Settler, end: _End) -> bool:
    """Move the hyperparameters after a descent; tell whether that was the last round."""
    settling, training, data, assignment = one.settling, one.training, one.data, one.assignment
    working, plan = settling.working, assignment.plan
    cost, n_data = settling.cost, len(data.x_train)
    if settling.first is None:
        share = 1.0 if settling.held else 0.5  # of the budget
        over = end.at_rest or end.stuck or settling.work >= share * settling.budget
        if over:
            settling.evidence = _evidence(working, data, assignment)
            settling.first, settling.first_evidence = settling.theta, settling.evidence
            settling.work += pass_cost(plan, data) * cost
            settling.moved = 0.0 if settling.held else math.inf
            if settling.held:
                return True
            # Where this is no mode, moving hyperparameters leads to none.
            labels = plan.likelihood == "categorical" and not _is_convex(assignment)
            if labels and not _is_near_mode(settling, working, training, data, assignment):
                return True
        elif _is_in_vain(settling, data, assignment):
            return True
        return settling.work >= settling.budget
    before = _log_hyperparameters(working, plan)
    pass_ = _update(settling, data, assignment)
    settling.work += pass_cost(plan, data) * cost
    settling.evidence = _laplace_value(pass_, working, plan, data.log_jacobian)
    settling.moved = float((_log_hyperparameters(working, plan) - before).abs().max())
    settling.rounds += 1
    if settling.moved < MOVE_TOLERANCE:
        limit = _tolerance(assignment) * n_data
        products = min(_TEST_PRODUCTS, _affordable(settling))
        decrement, n_products = newton_decrement(
            working, data, assignment, theta=settling.theta, max_products=products, enough=limit
        )
        settling.work += PRODUCT_COST * n_products * cost
        if end.stuck or decrement < limit:  # nothing more to be had
            return True
    return settling.work >= settling.budget


def _is_in_vain(settling: Settling, data: TensorData, assignment: Assignment) -> bool:
    """Tell whether the way to a mode of real targets leads to too little evidence."""
    plan, scheduled = assignment.plan, settling.scheduled_evidence
    if (
        plan.likelihood == "categorical"
        or _is_convex(assignment)
        or settling.held
        or scheduled is None
    ):
        return False
    before, evidence = settling.evidence, _evidence(settling.working, data, assignment)
    settling.evidence = evidence
    settling.work += pass_cost(plan, data) * settling.cost
    n_data = len(data.x_train)
    if evidence is None or evidence < scheduled - IN_VAIN * n_data:
        return True
    if before is None or before >= scheduled:
        return False
    return evidence < before - FURTHER_FALL * n_data


def _update(settling: Settling, data: TensorData, assignment: Assignment) -> CurvaturePass:
    """Move the hyperparameters as the plan has it; return the pass at what results."""
    working, plan = settling.working, assignment.plan
    kind = plan.online.curvature
    passes = passes_of(working, data, assignment)
    if not plan.learns:
        return passes.of(kind)[0]
    held = working.prior_precision
    pass_ = update_hyperparameters(working, passes).of(kind)[0]
    if settling.rounds >= FREE_ROUNDS:
        working.prior_precision = rescaled_precision(held, pass_, working, plan)
    return pass_


def _descend(live: Mapping[int, Settler]) -> dict[int, _End | None]:
    """Lower each loss at fixed hyperparameters for about an evaluation interval.

    Returns:
        How each ended; None for those that are not finite.
    """
    ends: dict[int, _End | None] = {}
    starts: dict[int, tuple[LogJoint, Start]] = {}
    for k, one in live.items():
        try:
            begun = _begin_descent(one)
        except _NOT_FINITE:
            ends[k] = None
            continue
        if isinstance(begun, _End):
            ends[k] = begun
        else:
            starts[k] = begun
    # Formed before any descent: one that gets stuck in float32 turns to float64 in its next slice.
    doubles = {k for k in starts if live[k].settling.double}
    for members in (starts.keys() - doubles, doubles):
        group = {k: both for k, both in starts.items() if k in members}
        losses = LogJoints({k: joint for k, (joint, _) in group.items()})
        with full_precision():
            found = descend(losses, {k: start for k, (_, start) in group.items()})
        ends |= {k: _end_descent(live[k], found[k], group[k][1]) for k in group}
    return ends


def _begin_descent(one: Settler) -> tuple[LogJoint, Start] | _End:
    """Return where a descent begins, or how it ended if it is of another kind."""
    settling, data, assignment = one.settling, one.data, one.assignment
    working, plan = settling.working, assignment.plan
    cost = settling.cost
    left = min(plan.interval, settling.budget - settling.work)
    # Far enough below the tolerance, where a preconditioner stands for H.
    small = 0.1 * len(data.x_train) * _tolerance(assignment)
    inverse = preconditioner(working, data, assignment)
    inverse(settling.theta)  # decomposed here, where it may fail
    settling.work += pass_cost(plan, data) * cost
    joint = log_joint(working, data, plan, double=settling.double)
    unit = spread_of(working, plan)
    return joint, Start(
        settling.theta,
        settling.pairs,
        inverse,
        precision=joint.precision,
        likelihood_scale=plan.likelihood_power / unit**2,
        n_gradients=max(_FEWEST_GRADIENTS, round(left / cost)),
        small_slope=small,
    )


def _end_descent(one: Settler, found: Descent, start: Start) -> _End:
    settling = one.settling
    settling.theta, settling.pairs = found.theta, found.pairs
    stuck = found.stuck and settling.double
    settling.double |= found.stuck
    settling.work += found.n_gradients * settling.cost
    write_parameters(settling.working, settling.theta)
    return _End(found.slope <= start.small_slope, stuck)


def _finish(
    settling: Settling, training: Training, data: TensorData, assignment: Assignment
) -> None:
    """Put the state that is kept into the training, and say how far from a mode it is if asked."""
    settling.done = True
    settling.pairs = Pairs.none(settling.theta)  # checkpoints are small again
    any_mode = _is_convex(assignment) or settling.held
    anywhere = any_mode or assignment.plan.likelihood != "categorical"
    for candidate in _candidates(settling, training, any_mode=any_mode):
        candidate.put_into(settling.working)
        if anywhere or _is_near_mode(settling, settling.working, training, data, assignment):
            settling.kept, settling.evidence = "settled", candidate.evidence
            settling.theta = candidate.theta
            candidate.put_into(training)
            break
    if not settling.reported:
        return
    decrement = settling.scheduled_decrement
    if settling.kept == "settled" or decrement is None:
        decrement = _decrement(settling, training, data, assignment)
    if math.isfinite(decrement):
        settling.decrement_per_datum = decrement / len(data.x_train)
        at_rest = assignment.plan.learns and settling.moved < MOVE_TOLERANCE
        settling.converged = (
            settling.kept == "settled"
            and at_rest
            and _is_mode(decrement, settling, training, data, assignment)
        )


@dataclass(frozen=True)
class _Candidate:
    """A state that may be kept: parameters θ [P], hyperparameters, evidence in nats."""

    theta: Tensor
    prior_precision: Tensor
    noise_std: float
    temperature: float
    evidence: float

    def put_into(self, training: Training) -> None:
        training.prior_precision = self.prior_precision.clone()
        training.noise_std, training.temperature = self.noise_std, self.temperature
        write_parameters(training, self.theta)


def _candidates(settling: Settling, training: Training, *, any_mode: bool) -> list[_Candidate]:
    """Return the end of the alternation, if it has more evidence than the scheduled state.

    With `any_mode` also if it has less, and the mode at the scheduled hyperparameters: the state
    of more evidence first.
    """
    working, found = settling.working, []
    if any_mode and settling.first is not None and settling.first_evidence is not None:
        found.append(_Candidate(
            settling.first, training.prior_precision, training.noise_std, training.temperature,
            settling.first_evidence,
        ))  # fmt: skip
    if settling.rounds and settling.evidence is not None:
        found.append(_Candidate(
            settling.theta, working.prior_precision, working.noise_std, working.temperature,
            settling.evidence,
        ))  # fmt: skip
    least = settling.scheduled_evidence
    if least is not None and not any_mode:
        found = [candidate for candidate in found if candidate.evidence > least]
    return sorted(found, key=lambda candidate: -candidate.evidence)


def _is_mode(
    decrement: float,
    settling: Settling,
    training: Training,
    data: TensorData,
    assignment: Assignment,
) -> bool:
    """Tell whether the state that is kept is at a mode, before it was rounded if that is convex.

    With a noise of 3e-7 the rounding of the weights to float32 costs 0.005 to 0.013 nats per datum
    in the decrement, whatever the optimiser does.
    """
    limit = _tolerance(assignment) * len(data.x_train)
    if decrement < limit or not _is_convex(assignment):
        return decrement < limit
    return (
        _decrement(settling, training, data, assignment, theta=settling.theta, enough=limit)
        < limit
    )


def _is_near_mode(
    settling: Settling,
    candidate: Training,
    training: Training,
    data: TensorData,
    assignment: Assignment,
) -> bool:
    """Tell whether a settled state is near enough to a mode to replace the scheduled one."""
    if settling.scheduled_decrement is None:
        settling.scheduled_decrement = _decrement(settling, training, data, assignment)
    limit = max(NEAR_MODE * len(data.x_train), CLOSER * settling.scheduled_decrement)
    return _decrement(settling, candidate, data, assignment, enough=limit) <= limit


def _decrement(
    settling: Settling,
    training: Training,
    data: TensorData,
    assignment: Assignment,
    *,
    theta: Tensor | None = None,
    enough: float = math.inf,
) -> float:
    products = min(MOST_PRODUCTS, max(_FEWEST_PRODUCTS, _affordable(settling)))
    return newton_decrement(
        training, data, assignment, theta=theta, max_products=products, enough=enough
    )[0]


def _evidence(training: Training, data: TensorData, assignment: Assignment) -> float | None:
    """Return the Laplace evidence of the online curvature in nats, or None if not finite."""
    plan = assignment.plan
    passes = passes_of(training, data, assignment)
    pass_ = passes.of(plan.online.curvature)[0]
    return _laplace_value(pass_, training, plan, data.log_jacobian)


def _laplace_value(
    pass_: CurvaturePass, training: Training, plan: TrainingPlan, log_jacobian: float
) -> float | None:
    value = laplace_estimate(
        plan.online.curvature,
        pass_,
        training.model,
        training.prior_precision,
        likelihood_power=plan.likelihood_power,
        log_jacobian=log_jacobian,
    ).value
    return value if math.isfinite(value) else None


def _tolerance(assignment: Assignment) -> float:
    """Return the Newton decrement per datum, nats, of what counts as a mode."""
    return _CONVEX_TOLERANCE if _is_convex(assignment) else DECREMENT_TOLERANCE


def _is_convex(assignment: Assignment) -> bool:
    """Whether the loss is convex in the weights; with a noise of each row the mean is a ratio."""
    of_ratios = assignment.plan.likelihood == "heteroscedastic"
    return assignment.architecture.family == "linear" and not of_ratios


def _affordable(settling: Settling) -> int:
    """Return the number of products that a quarter of the budget pays, five at least."""
    return max(5, int(0.25 * settling.budget / (PRODUCT_COST * settling.cost)))


def _log_hyperparameters(training: Training, plan: TrainingPlan) -> Tensor:
    """Return the logarithms of precisions and of noise or temperature, on the CPU."""
    last = math.log(spread_of(training, plan))
    precision = training.prior_precision.detach().cpu().log()
    return torch.cat([precision, torch.tensor([last], dtype=torch.float64)])
