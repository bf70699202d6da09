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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nas_evidence.data.tensors import select
from nas_evidence.evidence.last_layer import last_layer_of, late_given_early
from nas_evidence.evidence.softmax_layer import LogDensity
from nas_evidence.spec.domains import Frozen
from nas_evidence.spec.record import EvidenceEstimate, Term
from nas_evidence.spec.registry import SCORES
from nas_evidence.training.loop import Member, Training, likelihood_of

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
    """log q of a fold given the others, nats; None if there is none, for the reason in the note.

    standard_error  of it where log determinants are estimated
    """

    log_density: float | None
    standard_error: float | None = None
    seconds: float = 0.0
    note: str = ""


class Fold(Frozen):
    """How well one fold was predicted by the network trained on the others.

    number          of the fold, from 1
    n_data          number of data predicted
    log_predictive  of the fold in nats, with the scale marginalised; None if the training diverged
    as_trained      the same with the scale of the training, 1
    scale           the likeliest of `SCALES`
    hits            number of correctly classified data; None for real targets
    note            why there is no value, if not because the training diverged
    density         what `conditional_evidence` is made from, if that is requested
    """

    number: int
    n_data: int
    n_trained: int
    log_predictive: float | None = None
    as_trained: float | None = None
    scale: float = 1.0
    hits: int | None = None
    seconds: float = 0.0
    note: str = ""
    density: FoldDensity | None = None

    @property
    def failure(self) -> str:
        """Return why there is no value."""
        return self.note or f"the training on {self.n_trained} data diverged"


def density_of(task: FoldTask, fold: Fold, trained: Training | None, of: Member) -> FoldDensity:
    """Return log q of a fold given the others, or why there is none.

    Args:
        task: the fold.
        fold: how it was predicted.
        trained: the network trained without it; None if that diverged.
        of: all data, and the plan and seeds of the trial.
    """
    started = time.perf_counter()
    found, note = None, fold.failure
    if trained is not None and not fold.note:
        try:
            found, note = _density(task, trained, of)
        except (ValueError, torch.linalg.LinAlgError) as error:  # type: ignore[attr-defined]
            note = str(error)
    return FoldDensity(
        log_density=None if found is None else found.value,
        standard_error=None if found is None else found.standard_error,
        seconds=time.perf_counter() - started, note=note,
    )  # fmt: skip


def _density(task: FoldTask, trained: Training, of: Member) -> tuple[LogDensity | None, str]:
    data, given = of.data, of.assignment
    rows, plan = torch.cat([task.trained, task.predicted]), given.plan
    seen, log_jacobian = data.seen_from(task.trained, rows)
    inputs = select(data.x_train, rows)
    found = late_given_early(
        last_layer_of(trained.model, inputs, trained.prior_precision),
        seen,
        len(task.trained),
        likelihood_of(plan, trained.noise_std),
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


def density_estimate(folds: Sequence[Fold], *, in_time: bool) -> EvidenceEstimate:
    """Return `conditional_evidence` from the folds so far."""
    densities = [fold.density for fold in folds if fold.density is not None]
    relation, seconds = SCORES[NAME].relation, sum(one.seconds for one in densities)
    if failed := [one for one in densities if one.log_density is None]:
        return EvidenceEstimate(
            estimator=NAME, value=-math.inf, relation=relation, seconds=seconds, valid=False,
            note=next((f.failure for f in folds if f.log_predictive is None), failed[0].note),
        )  # fmt: skip
    errors = [one.standard_error for one in densities if one.standard_error is not None]
    n, of = len(folds), "the earlier ones" if in_time else "the others"
    return summed(
        NAME,
        folds,
        lambda fold: fold.density.log_density if fold.density else None,
        in_time=in_time,
        said=f"given {of},",
        standard_error=math.hypot(*errors) / (1 if in_time else n) if errors else None,
        relation=relation,
        terms=terms_of(
            folds,
            log_density=lambda fold: fold.density.log_density,
            log_density_error=lambda fold: fold.density.standard_error,
            log_predictive_as_trained=lambda fold: fold.as_trained,
        ),
        seconds=seconds,
    )


def summed(
    name: str,
    folds: Sequence[Fold],
    value_of: Callable[[Fold], float | None],
    *,
    in_time: bool,
    said: str = "predicted",
    **more: Any,
) -> EvidenceEstimate:
    """Return the mean over folds of a quantity in nats, the sum over blocks in time.

    Args:
        name: of the estimate.
        folds: those so far, each with the quantity.
        value_of: it, summed over the data of a fold.
        in_time: whether the folds are blocks in time.
        said: what was done with the data.
        more: fields of the estimate.
    """
    n = sum(fold.n_data for fold in folds)
    total = sum(value_of(fold) or 0.0 for fold in folds)
    blocks = f"{len(folds)} {'block' if in_time else 'fold'}{'s' * (len(folds) > 1)}"
    return EvidenceEstimate(
        estimator=name,
        value=total if in_time else total / len(folds),
        per_datum=total / n,
        note=f"{n} data {said} in {blocks}{' in time' * in_time}",
        **more,
    )


def terms_of(
    folds: Sequence[Fold], **quantities: Callable[[Any], float | None]
) -> tuple[Term, ...]:
    """Return the quantities of each fold that are known as terms, by fold."""
    return tuple(
        Term(term=term, group=f"fold {fold.number}", value=value)
        for fold in folds
        for term, of in quantities.items()
        if (value := of(fold)) is not None
    )
