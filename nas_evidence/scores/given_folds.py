"""Conditional evidence of last layers of the networks that are trained without a fold.

    log p(y_k | y_-k)  ~  log q(y) − log q(y_-k)

    q  evidence of the Bayesian last layer at its own optimum (evidence/last_layer.py)

The network is trained on y_-k as for cross-validation, once for all scores of a division.
Features, prior mean, precisions, noise or temperature have seen y_-k alone and are the same
in both terms. So nothing is plugged in: the density is joint over the fold, averaged over the
posterior of the linear model given the other folds, and exact for linear networks with Gaussian
noise.

    E_K = (1/N) Σ_k log q(y_k | y_-k) with K = `plan.folds` folds

`value` is the mean over the folds predicted, `per_datum` their sum by their number of data. It is
the conditional marginal likelihood of Lotfi et al. (2022), averaged over folds. For an exact p and
by Fong & Holmes (2020, Proposition 2),

    log p(y) = Σ_{p=1..N} (mean over data and hold-out sets of p of the log score of one of them)

and the mean of log p(y_k | y_-k) over folds of N/K data estimates the terms p <= N/K: those
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
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nas_evidence.data.tensors import select
from nas_evidence.evidence.last_layer import last_layer_of, late_given_early
from nas_evidence.evidence.softmax_layer import LogDensity
from nas_evidence.scores.protocol import Context
from nas_evidence.spec.divisions import division_of
from nas_evidence.spec.domains import Frozen
from nas_evidence.spec.record import EvidenceEstimate, Term
from nas_evidence.spec.registry import SCORES
from nas_evidence.training.loop import Training, likelihood_of

NAME = "conditional_evidence"


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


class FoldDensity(Frozen):
    """log q of a fold given the others, nats; None if there is no network.

    standard_error  of it where log determinants are estimated
    as_trained      Σ log p(y_n | f_n) of the fold by the network itself, nats
    """

    number: int
    n_early: int
    n_late: int
    log_density: float | None
    standard_error: float | None = None
    as_trained: float | None = None
    seconds: float = 0.0
    note: str = ""


class GivenFolds:
    """`conditional_evidence`, computed from the finished trainings without a fold, if requested.

    Raises:
        ValueError: if the outputs of the network are not those of its last linear layer.
    """

    def __init__(self, names: Sequence[str], context: Context) -> None:
        self.context = context
        self.folds: list[FoldDensity] = []
        plan, n = context.assignment.plan, len(context.data.x_train)
        self.division = division_of(NAME, plan, n) if NAME in names else None
        if self.division:
            last_layer_of(
                context.model, context.data.x_train[:1], context.training.prior_precision
            )

    def finished(
        self, task: FoldTask, training: Training | None, as_trained: float | None, note: str = ""
    ) -> None:
        """Take the network trained without a fold; None if its training diverged.

        A note says why the fold has no density although it is trained.
        """
        if task.score == self.division:
            self.folds.append(self._given(task, training, as_trained, note))

    def estimates(self) -> list[EvidenceEstimate]:
        """Return the estimate from the folds so far, nothing before the first."""
        in_time = self.context.data.units is not None and self.context.data.units.in_time
        return [_estimate(self.folds, in_time)] if self.folds else []

    def state_dict(self) -> list[str]:
        """Return the folds so far."""
        return [fold.model_dump_json() for fold in self.folds]

    def load_state_dict(self, state: Sequence[str]) -> None:
        """Continue from that state."""
        self.folds = [FoldDensity.model_validate_json(text) for text in state]

    def _given(
        self, task: FoldTask, training: Training | None, as_trained: float | None, why: str
    ) -> FoldDensity:
        started = time.perf_counter()
        found, note = None, why or f"the training on {len(task.trained)} data diverged"
        if training is not None and not why:
            try:
                found, note = self._density(task, training)
            except (ValueError, torch.linalg.LinAlgError) as error:  # type: ignore[attr-defined]
                note = str(error)
        seconds = time.perf_counter() - started
        self.context.training.evidence_seconds += seconds
        return FoldDensity(
            number=task.number,
            n_early=len(task.trained), n_late=len(task.predicted),
            log_density=None if found is None else found.value,
            standard_error=None if found is None else found.standard_error,
            as_trained=as_trained, seconds=seconds, note=note,
        )  # fmt: skip

    def _density(self, task: FoldTask, training: Training) -> tuple[LogDensity | None, str]:
        """Return log q of the fold given the others, and the reason if there is none."""
        data, given = self.context.data, self.context.assignment
        rows, plan = torch.cat([task.trained, task.predicted]), given.plan
        seen, log_jacobian = data.seen_from(task.trained, rows)
        inputs = select(data.x_train, rows)
        found = late_given_early(
            last_layer_of(training.model, inputs, training.prior_precision),
            seen,
            len(task.trained),
            likelihood_of(plan, training.noise_std, training.temperature),
            power=plan.likelihood_power,
            seed=given.derived_seed(f"probes:{task.purpose}"),
        )
        late = float(log_jacobian[len(task.trained) :].sum())
        found = replace(found, value=found.value + plan.likelihood_power * late)
        if not math.isfinite(found.value):
            return None, f"the log density of {len(task.predicted)} data is {found.value}"
        if data.task == "labels" and found.value > 3 * (found.standard_error or 0.0):
            return None, f"{found.value:.6g} nats is above 0, impossible for labels"
        return found, ""


def _estimate(folds: Sequence[FoldDensity], in_time: bool) -> EvidenceEstimate:
    relation, seconds = SCORES[NAME].relation, sum(fold.seconds for fold in folds)
    if failed := [fold for fold in folds if fold.log_density is None]:
        return EvidenceEstimate(
            estimator=NAME, value=-math.inf, relation=relation, seconds=seconds, valid=False,
            note=failed[0].note,
        )  # fmt: skip
    folds = sorted(folds, key=lambda fold: fold.number)
    total = sum(fold.log_density or 0.0 for fold in folds)
    n_late = sum(fold.n_late for fold in folds)
    errors = [fold.standard_error for fold in folds if fold.standard_error is not None]
    return EvidenceEstimate(
        estimator=NAME,
        value=total if in_time else total / len(folds),
        per_datum=total / n_late,
        standard_error=math.hypot(*errors) / (1 if in_time else len(folds)) if errors else None,
        relation=relation,
        terms=tuple(
            Term(term=term, group=f"fold {fold.number}", value=value)
            for fold in folds
            for term, value in (
                ("log_density", fold.log_density),
                ("log_density_error", fold.standard_error),
                ("log_predictive_as_trained", fold.as_trained),
            )
            if value is not None
        ),
        seconds=seconds,
        note=_note(n_late, len(folds), in_time=in_time),
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
