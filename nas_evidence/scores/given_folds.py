"""Conditional evidence of linear models made from the networks that are trained without a fold.

    log p(D_k | D_without_k)  ~  log q(D) − log q(D_without_k)

    q  evidence of a linearised network at its own optimum (evidence/linearised.py, last_layer.py)

The network is trained on D_without_k as for cross-validation, once for all scores of a division.
Features, prior mean, precisions, noise or temperature have seen D_without_k alone and are the same
in both terms. So nothing is plugged in: the density is joint over the fold, averaged over the
posterior of the linear model given the other folds, and exact for linear networks with Gaussian
noise.

    conditional_evidence    E_K = (1/N) Σ_k log q(D_k | D_without_k) with K = `plan.folds` folds:
                            the last layer, on the features of a network that has not seen D_k
    last_layer_conditional  the same with K = 2
    tangent_conditional     K = 2, features are the Jacobian of all parameters; exact while
                            min(data x outputs, parameters) is at most `LIMIT`

`value` is the mean over the folds predicted, `per_datum` their sum by their number of data. It is
the conditional marginal likelihood of Lotfi et al. (2022), averaged over folds. For an exact p and
by Fong & Holmes (2020, Proposition 2),

    log p(D) = Σ_{p=1..N} (mean over data and hold-out sets of p of the log score of one of them)

and the mean of log p(D_k | D_without_k) over folds of N/K data estimates the terms p <= N/K: those
in which most has been learned; the terms with fewer data, where priors of networks mislead, are
left out. Here q is a Laplace approximation over the last layer, so this holds exactly only where
features and hyperparameters are fixed. The folds' densities estimate different numbers, which
agree in expectation over random divisions.

With `time_column` in [dataset] the folds are blocks in time, each given the earlier ones alone,
and `value` is the sum: a prequential log evidence of the data after the first block, given it.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nas_evidence.curvature.likelihood import Likelihood
from nas_evidence.data.tensors import select
from nas_evidence.evidence import last_layer
from nas_evidence.evidence.jacobian import head_of, jacobian
from nas_evidence.evidence.linearised import LIMIT, conditional_log_evidence, tangent_of
from nas_evidence.evidence.softmax_layer import LogDensity
from nas_evidence.maths.precisions import Precisions
from nas_evidence.scores.protocol import Context
from nas_evidence.spec.divisions import division_of
from nas_evidence.spec.domains import Frozen
from nas_evidence.spec.record import EvidenceEstimate, Term
from nas_evidence.spec.registry import SCORES
from nas_evidence.training.loop import Training, likelihood_of

NAMES = ("conditional_evidence", "tangent_conditional", "last_layer_conditional")


@dataclass(frozen=True)
class FoldTask:
    """A fold to predict.

    score               its division
    trained, predicted  rows [n]
    purpose             of the seed of its training
    """

    score: str
    number: int
    trained: Tensor
    predicted: Tensor
    purpose: str


class Given(Frozen):
    """log q of a fold given the others, nats; None if there is no network.

    standard_error  of it where log determinants are estimated
    as_trained      Σ log p(y_n | f_n) of the fold by the network itself, nats
    """

    score: str
    number: int
    n_early: int
    n_late: int
    log_density: float | None
    standard_error: float | None = None
    as_trained: float | None = None
    seconds: float = 0.0
    note: str = ""


class GivenFolds:
    """The scores computed from the finished trainings without a fold.

    Raises:
        ValueError: if the data and the network are both too large for a requested score, or the
            network has no last linear layer.
    """

    def __init__(self, names: Sequence[str], context: Context) -> None:
        self.context = context
        self.names = [name for name in NAMES if name in names]
        self.orders: list[Given] = []
        if "tangent_conditional" in names:
            _check_size(context)
        if {"conditional_evidence", "last_layer_conditional"} & {*names}:
            head_of(context.model)

    def finished(
        self, task: FoldTask, training: Training | None, as_trained: float | None
    ) -> None:
        """Take the network trained without a fold; None if its training diverged."""
        plan, n = self.context.assignment.plan, len(self.context.data.x_train)
        found: dict[bool, Given] = {}  # by whether it is the last layer
        for name in self.names:
            if division_of(name, plan, n) == task.score:
                is_last = name != "tangent_conditional"
                if is_last not in found:
                    found[is_last] = self._given(name, task, training, as_trained)
                self.orders.append(found[is_last].model_copy(update={"score": name}))

    def estimates(self) -> list[EvidenceEstimate]:
        """Return the estimates from the folds so far."""
        by_name = {n: [o for o in self.orders if o.score == n] for n in self.names}
        in_time = self.context.data.units is not None and self.context.data.units.in_time
        return [_estimate(name, orders, in_time) for name, orders in by_name.items() if orders]

    def state_dict(self) -> list[str]:
        """Return the folds so far."""
        return [order.model_dump_json() for order in self.orders]

    def load_state_dict(self, state: Sequence[str]) -> None:
        """Continue from that state."""
        self.orders = [Given.model_validate_json(text) for text in state]

    def _given(
        self, name: str, task: FoldTask, training: Training | None, as_trained: float | None
    ) -> Given:
        started = time.perf_counter()
        found, note = None, f"the training on {len(task.trained)} data diverged"
        if training is not None:
            try:
                found, note = self._density(name, task, training)
            except (ValueError, torch.linalg.LinAlgError) as error:  # type: ignore[attr-defined]
                note = str(error)
        seconds = time.perf_counter() - started
        self.context.training.evidence_seconds += seconds
        return Given(
            score=name, number=task.number,
            n_early=len(task.trained), n_late=len(task.predicted),
            log_density=None if found is None else found.value,
            standard_error=None if found is None else found.standard_error,
            as_trained=as_trained, seconds=seconds, note=note,
        )  # fmt: skip

    def _density(
        self, name: str, task: FoldTask, training: Training
    ) -> tuple[LogDensity | None, str]:
        """Return log q of the fold given the others, and the reason if there is none."""
        data, given = self.context.data, self.context.assignment
        rows, plan = torch.cat([task.trained, task.predicted]), given.plan
        found = late_given_early(
            name,
            training.model,
            select(data.x_train, rows),
            data.y_train[rows.to(data.y_train.device)],
            n_early=len(task.trained),
            likelihood=likelihood_of(plan, training.noise_std, training.temperature),
            prior_precision=training.prior_precision,
            power=plan.likelihood_power,
            seed=given.derived_seed(f"probes:{task.purpose}"),
        )
        if not math.isfinite(found.value):
            return None, f"the log density of {len(task.predicted)} data is {found.value}"
        if data.task == "labels" and found.value > 3 * (found.standard_error or 0.0):
            return None, f"{found.value:.6g} nats is above 0, impossible for labels"
        return found, ""


def late_given_early(
    name: str,
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    n_early: int,
    likelihood: Likelihood,
    prior_precision: Tensor,
    power: float = 1.0,
    seed: int = 0,
) -> LogDensity:
    """Return log q(late data | early data) in nats, by the linearised network or its last layer.

    Args:
        name: of the score.
        model: trained on the first `n_early` data.
        inputs: of all data, the early ones first.
        targets: likewise.
        n_early: number of early data.
        likelihood: with the noise or temperature of that training.
        prior_precision: of that training, one per tensor [G] or per parameter [P].
        power: of the likelihood.
        seed: of random signs, where the last layer is too large for dense matrices.

    Raises:
        TooLargeError: if data and network are both too large; not for a last layer that returns
            the outputs.
    """
    only = None
    if name != "tangent_conditional":
        layer = last_layer.last_layer_of(model, inputs, prior_precision)
        if layer is not None:
            return last_layer.late_given_early(
                layer, targets, n_early, likelihood, power=power, seed=seed
            )
        only = head_of(model)
    linear = jacobian(model, inputs, only=only)
    free = [i for i, (n, _) in enumerate(model.named_parameters()) if n in linear.names]
    parameters = [p.detach().flatten() for p in model.parameters()]
    parts = Precisions(prior_precision, [len(p) for p in parameters]).by_tensor()
    value = conditional_log_evidence(
        tangent_of(linear, targets, torch.cat([parameters[i] for i in free])),
        n_early,
        likelihood,
        torch.cat([parts[i].reshape(-1) for i in free]),
        power=power,
    )
    return LogDensity(value)


def _check_size(context: Context) -> None:
    n_rows = len(context.data.x_train) * context.data.n_outputs
    n_parameters = sum(p.numel() for p in context.model.parameters())
    if min(n_rows, n_parameters) > LIMIT:
        raise ValueError(
            f"tangent_conditional needs at most {LIMIT} data x outputs, or parameters, but got "
            f"{n_rows} data x outputs and {n_parameters} parameters; use two_fold, or "
            "last_layer_conditional, in `estimators`"
        )


def _estimate(name: str, orders: Sequence[Given], in_time: bool) -> EvidenceEstimate:
    relation, seconds = SCORES[name].relation, sum(order.seconds for order in orders)
    if failed := [order for order in orders if order.log_density is None]:
        return EvidenceEstimate(
            estimator=name, value=-math.inf, relation=relation, seconds=seconds, valid=False,
            note=failed[0].note,
        )  # fmt: skip
    orders = sorted(orders, key=lambda order: order.number)
    total = sum(order.log_density or 0.0 for order in orders)
    n_late = sum(order.n_late for order in orders)
    errors = [order.standard_error for order in orders if order.standard_error is not None]
    return EvidenceEstimate(
        estimator=name,
        value=total if in_time else total / len(orders),
        per_datum=total / n_late,
        standard_error=math.hypot(*errors) / (1 if in_time else len(orders)) if errors else None,
        relation=relation,
        terms=tuple(
            Term(term=term, group=f"fold {order.number}", value=value)
            for order in orders
            for term, value in (
                ("log_density", order.log_density),
                ("log_density_error", order.standard_error),
                ("log_predictive_as_trained", order.as_trained),
            )
            if value is not None
        ),
        seconds=seconds,
        note=_note(n_late, len(orders), in_time=in_time),
    )


def _note(n_late: int, n_parts: int, *, in_time: bool) -> str:
    if in_time:
        return f"{n_late} data given the earlier ones, in {said_parts(n_parts, in_time)}"
    return f"{n_late} data given the others, in {said_parts(n_parts, in_time)}"


def said_parts(n: int, in_time: bool) -> str:
    """Return the number of folds, or of blocks in time, in words."""
    return f"{n} {'block' if in_time else 'fold'}{'s' * (n > 1)}{' in time' * in_time}"


def orders_from(state: Mapping[str, Any]) -> Sequence[str]:
    """Return the part of a fold state that belongs to these scores; older states have none."""
    orders: Sequence[str] = state.get("on_halves", ())
    return orders
