"""Conditional evidence of linear models made from the networks that `two_fold` trains.

    log p(D_late | D_early)  ~  log q(D_early, D_late) − log q(D_early)

    q  evidence of a linearised network at its own optimum (evidence/linearised.py)

The network is trained on D_early as for `two_fold`, once for all of these scores. Features, prior
mean, precisions, noise or temperature have seen D_early alone and are the same in both terms. So
nothing is plugged in: the density is joint over D_late, averaged over the posterior of the linear
model given D_early, and exact for linear networks with Gaussian noise.

    tangent_conditional     features are the Jacobian of all parameters; exact while
                            min(data x outputs, parameters) is at most `LIMIT`
    last_layer_conditional  the parameters of the last layer only, which a linear head makes a
                            Bayesian linear or logistic regression on the learned features

`value` is the mean over both orders of the data, as in `two_fold`; with `plan.folds = 1` it is one
order. The two orders estimate different numbers, which agree in expectation over random splits.
"""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nas_evidence.curvature.likelihood import Likelihood
from nas_evidence.curvature.memory import DoesNotFitError
from nas_evidence.data.tensors import select
from nas_evidence.evidence.jacobian import head_of, jacobian
from nas_evidence.evidence.linearised import (
    LIMIT,
    TooLargeError,
    conditional_log_evidence,
    tangent_of,
)
from nas_evidence.maths.precisions import Precisions
from nas_evidence.scores.protocol import Context
from nas_evidence.spec.domains import Frozen
from nas_evidence.spec.record import EvidenceEstimate, Term
from nas_evidence.spec.registry import SCORES
from nas_evidence.training.loop import Training, likelihood_of

NAMES = ("tangent_conditional", "last_layer_conditional")


class Order(Frozen):
    """log q(D_late | D_early) in nats for one order of the data; None if there is no network."""

    score: str
    number: int
    n_early: int
    n_late: int
    log_density: float | None
    seconds: float = 0.0
    note: str = ""


class OnHalves:
    """The scores computed from the finished trainings of `two_fold`.

    Raises:
        ValueError: if the data and the network are both too large for a requested score.
    """

    def __init__(self, names: Sequence[str], context: Context) -> None:
        self.context = context
        self.names = [name for name in NAMES if name in names]
        self.orders: list[Order] = []
        if "tangent_conditional" in names:
            _check_size(context)

    def finished(
        self, number: int, early: Tensor, late: Tensor, training: Training | None
    ) -> None:
        """Take the network trained on the rows `early`; None if its training diverged."""
        for name in self.names:
            started = time.perf_counter()
            value, note = None, f"the training on {len(early)} data diverged"
            if training is not None:
                try:
                    value, note = self._density(name, early, late, training)
                except (TooLargeError, DoesNotFitError) as error:
                    note = str(error)
            self.orders.append(
                Order(
                    score=name, number=number, n_early=len(early), n_late=len(late),
                    log_density=value, seconds=time.perf_counter() - started, note=note,
                )
            )  # fmt: skip
            self.context.training.evidence_seconds += self.orders[-1].seconds

    def estimates(self) -> list[EvidenceEstimate]:
        """Return the estimates from the orders so far."""
        by_name = {n: [o for o in self.orders if o.score == n] for n in self.names}
        return [_estimate(name, orders) for name, orders in by_name.items() if orders]

    def state_dict(self) -> list[str]:
        """Return the orders so far."""
        return [order.model_dump_json() for order in self.orders]

    def load_state_dict(self, state: Sequence[str]) -> None:
        """Continue from that state."""
        self.orders = [Order.model_validate_json(text) for text in state]

    def _density(
        self, name: str, early: Tensor, late: Tensor, training: Training
    ) -> tuple[float | None, str]:
        """Return log q(D_late | D_early) in nats, and the reason if there is none."""
        data, plan = self.context.data, self.context.assignment.plan
        rows = torch.cat([early, late])
        value = late_given_early(
            name,
            training.model,
            select(data.x_train, rows),
            data.y_train[rows.to(data.y_train.device)],
            n_early=len(early),
            likelihood=likelihood_of(plan, training.noise_std, training.temperature),
            prior_precision=training.prior_precision,
            power=plan.likelihood_power,
        )
        if not math.isfinite(value):
            return None, f"the log density of {len(late)} data is {value}"
        if data.task == "labels" and value > 0:
            return None, f"{value:.6g} nats is above 0, impossible for labels"
        return value, ""


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
) -> float:
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

    Raises:
        TooLargeError: if data and network are both too large.
    """
    only = head_of(model) if name == "last_layer_conditional" else None
    linear = jacobian(model, inputs, only=only)
    free = [i for i, (n, _) in enumerate(model.named_parameters()) if n in linear.names]
    parameters = [p.detach().flatten() for p in model.parameters()]
    parts = Precisions(prior_precision, [len(p) for p in parameters]).by_tensor()
    return conditional_log_evidence(
        tangent_of(linear, targets, torch.cat([parameters[i] for i in free])),
        n_early,
        likelihood,
        torch.cat([parts[i].reshape(-1) for i in free]),
        power=power,
    )


def _check_size(context: Context) -> None:
    n_rows = len(context.data.x_train) * context.data.n_outputs
    n_parameters = sum(p.numel() for p in context.model.parameters())
    if min(n_rows, n_parameters) > LIMIT:
        raise ValueError(
            f"tangent_conditional needs at most {LIMIT} data x outputs, or parameters, but got "
            f"{n_rows} data x outputs and {n_parameters} parameters; use two_fold, or "
            "last_layer_conditional, in `estimators`"
        )


def _estimate(name: str, orders: Sequence[Order]) -> EvidenceEstimate:
    relation, seconds = SCORES[name].relation, sum(order.seconds for order in orders)
    if failed := [order for order in orders if order.log_density is None]:
        return EvidenceEstimate(
            estimator=name, value=-math.inf, relation=relation, seconds=seconds, valid=False,
            note=failed[0].note,
        )  # fmt: skip
    values = [order.log_density or 0.0 for order in orders]
    n_late = sum(order.n_late for order in orders)
    return EvidenceEstimate(
        estimator=name,
        value=sum(values) / len(orders),
        per_datum=sum(values) / n_late,
        relation=relation,
        terms=tuple(
            Term(term="log_density", group=f"order {order.number}", value=value)
            for order, value in zip(orders, values, strict=True)
        ),
        seconds=seconds,
        note=f"{n_late} data given the others, in {len(orders)} order{'s' * (len(orders) > 1)}",
    )


def needs_halves(names: Sequence[str]) -> bool:
    """Tell whether a requested score needs the trainings of `two_fold`."""
    return any(name in NAMES for name in names)


def orders_from(state: Mapping[str, Any]) -> Sequence[str]:
    """Return the part of a fold state that belongs to these scores; older states have none."""
    orders: Sequence[str] = state.get("on_halves", ())
    return orders
