"""Conditional evidence as the difference of two Laplace evidences, full Gauss-Newton.

    log p(D_late | D_early, δ, s)  ~  log q(D_early, D_late | δ, s) − log q(D_early | δ, s)

    q  Laplace approximation, each at its own mode
    δ, s, κ  prior precisions, noise or temperature, likelihood power: learned from D_early alone,
             and the same in both terms

By the chain rule this is what the late data add to the early ones; the cost of a vague prior is in
both terms and cancels (Lotfi et al. 2022). It is exact for linear models with Gaussian noise. A
log probability of labels cannot be above 0: if it is, an approximation has failed, and the
estimate is invalid. Errors of the other structures of the curvature do not
cancel: they are no scores.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from nas_evidence.scores.laplace_scores import laplace_estimates
from nas_evidence.scores.protocol import Context, Scorer
from nas_evidence.spec.record import EvidenceEstimate, Term
from nas_evidence.spec.registry import declared
from nas_evidence.training.loop import DivergedError, Training
from nas_evidence.training.online import passes_of
from nas_evidence.training.parts import (
    Part,
    Run,
    cuts_of,
    new_run,
    order_of_data,
    part_of,
    restored,
    run_state,
    seconds_of,
    train_slice,
)

NAME, KIND = "conditional_full_ggn", "full_ggn"
_PURPOSE = "conditional"


def no_estimate(note: str) -> EvidenceEstimate:
    """Return an invalid estimate, with the reason."""
    return EvidenceEstimate(
        estimator=NAME, value=-math.inf, relation=declared(NAME).relation, valid=False, note=note
    )


def conditional_estimate(
    early: EvidenceEstimate,
    whole: EvidenceEstimate,
    *,
    n_early: int,
    n_data: int,
    labels: bool,
) -> EvidenceEstimate:
    """Return the evidence of the late data given the early ones, in nats.

    Args:
        early: estimate on the early data alone.
        whole: estimate of the same kind on all data, at the same hyperparameters.
        n_early: number of early data.
        n_data: number of all data.
        labels: whether the targets are labels, so that a value above 0 is impossible.

    Raises:
        ValueError: if the two kinds differ, or there are no late data.
    """
    if early.estimator != whole.estimator or not 0 < n_early < n_data:
        raise ValueError(
            "a conditional evidence needs two estimates of one kind, on some data and on more, "
            f"but got {early.estimator} on {n_early} and {whole.estimator} on {n_data}"
        )
    failed = [e for e in (early, whole) if not e.valid]
    if failed:
        return no_estimate(failed[0].note)
    value = whole.value - early.value
    groups = {f"0-{n_early}": early, f"0-{n_data}": whole}
    note = f"{n_data - n_early} data after {n_early}, hyperparameters of the early ones"
    impossible = labels and value > 0
    if impossible:
        note = f"{value:.6g} nats is above 0, impossible for labels; {note}"
    return EvidenceEstimate(
        estimator=NAME,
        value=value,
        per_datum=value / (n_data - n_early),
        relation=declared(NAME).relation,
        terms=tuple(
            Term(term="log_evidence", group=group, value=estimate.value)
            for group, estimate in groups.items()
        ),
        seconds=early.seconds + whole.seconds,
        valid=not impossible,
        note=note,
    )


class Conditional(Scorer):
    """Trains on one half of the data, then on all of them at its hyperparameters.

    The first training learns the hyperparameters as planned, with the last update before its last
    epoch, so that its parameters end at a mode for them. The second, from the same initialisation,
    keeps them fixed. The main training cannot replace the second, because it learns its own. For
    real targets the noise is updated once more at the end, with the precisions.

    early       evidence of the early data, until that of all data is known
    difference  evidence of all data minus that of the early data
    """

    def __init__(self, names: Sequence[str], context: Context) -> None:
        super().__init__(names, context)
        self.early: EvidenceEstimate | None = None
        self.difference: EvidenceEstimate | None = None
        self.run: Run | None = None

    def due(self) -> bool:
        """Tell whether the difference is still missing."""
        return self.difference is None

    def advance(self) -> None:
        """Train for a slice; after the second training, compute the difference."""
        n_data, n_early = len(self.context.data.x_train), self._n_early()
        part = self._part()
        self.run = self.run or new_run(part)
        try:
            if not train_slice(self.run, part):
                return
            passes = passes_of(self.run.training, part.data, part.assignment)
            (found,) = laplace_estimates([KIND], passes)
        except DivergedError as error:
            note = f"the training on {len(part.data.x_train)} data diverged: {error}"
            self.difference = no_estimate(note)
        else:
            self.context.training.evidence_seconds += found.seconds
            if self.early is None:
                first = self._ended()
                self.early = found
                self.run = new_run(self._part())
                hold_hyperparameters_of(first.training, self.run.training)
                return
            labels = self.context.data.task == "labels"
            self.difference = conditional_estimate(
                self.early, found, n_early=n_early, n_data=n_data, labels=labels
            )
        self._ended()
        self.early = None

    def evaluate(self, *, last: bool) -> list[EvidenceEstimate]:
        """Return the difference, once it is known."""
        return [] if self.difference is None else [self.difference]

    def state_dict(self) -> dict[str, Any]:
        """Return the evidences so far, and the current training."""
        return {
            "early": self.early and self.early.model_dump_json(),
            "difference": self.difference and self.difference.model_dump_json(),
            "run": None if self.run is None else run_state(self.run),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from that state."""
        read = EvidenceEstimate.model_validate_json
        self.early = state["early"] and read(state["early"])
        self.difference = state["difference"] and read(state["difference"])
        if state["run"] is not None:
            self.run = restored(self._part(), state["run"])

    def _part(self) -> Part:
        """Return the current training data: the early ones, or all."""
        data, given = self.context.data, self.context.assignment
        if self.early is not None:
            return part_of(None, data, given, _PURPOSE, learn=False)
        return part_of(self._order()[: self._n_early()], data, given, _PURPOSE)

    def _order(self) -> Tensor:
        data = self.context.data
        return order_of_data(len(data.x_train), self.context.assignment, data.units)

    def _n_early(self) -> int:
        n_data = len(self.context.data.x_train)
        if n_data < 2:
            raise ValueError(f"a conditional evidence needs at least 2 data, but got {n_data}")
        return cuts_of(self._order(), [n_data // 2], self.context.data.units)[0]

    def _ended(self) -> Run:
        """Remove and return the finished run on a part, and count its time."""
        run, self.run = self.run, None
        assert run is not None
        self.context.training.evidence_seconds += seconds_of(run)
        return run


def hold_hyperparameters_of(first: Training, second: Training) -> None:
    """Copy the learned hyperparameters to a training that has not started, and fix them."""
    for name in ("prior_precision", "noise_std", "temperature"):
        setattr(second, name, getattr(first, name))
