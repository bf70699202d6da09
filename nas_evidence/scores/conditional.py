"""Conditional evidence as the difference of two Laplace evidences.

    log p(D_late | D_early, δ, s)  ~  log q(D_early, D_late | δ, s) − log q(D_early | δ, s)

    q  Laplace approximation, each at a mode of its own
    δ, s, κ  prior precisions, noise or temperature, likelihood power: learned from D_early alone,
             and the same in both terms

By the chain rule this is what the data add to those before them; what the prior pays for being
vague is in both terms and cancels (Lotfi et al. 2022). Exact for linear models with Gaussian
noise, where it equals the predictive density of the late data. The log probability of labels
cannot be above 0: where it is, an approximation has failed, and the estimate is not valid.

The difference of two numbers of some hundred nats each has the errors of both, also those of two
trainings that ended at different distances from their modes.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from nas_evidence.record import EvidenceEstimate, Term
from nas_evidence.registry import declared
from nas_evidence.scores.laplace import laplace_estimates
from nas_evidence.scores.protocol import Context, Scorer
from nas_evidence.training.loop import DivergedError, Training
from nas_evidence.training.online import passes_of
from nas_evidence.training.parts import (
    Part,
    Run,
    begun,
    order_of_data,
    part_of,
    restored,
    run_state,
    seconds_of,
    train_slice,
)

_PURPOSE = "conditional"


def no_estimate(name: str, note: str) -> EvidenceEstimate:
    """Return the estimate of that name that is not valid, and why."""
    return EvidenceEstimate(
        estimator=name, value=-math.inf, relation=declared(name).relation, valid=False, note=note
    )


def conditional_estimate(
    early: EvidenceEstimate,
    whole: EvidenceEstimate,
    *,
    name: str,
    n_early: int,
    n_data: int,
    labels: bool,
) -> EvidenceEstimate:
    """Return the evidence of the late data given the early ones, in nats.

    Args:
        early: of the first data alone.
        whole: of one kind with it, of all data, at the same hyperparameters.
        name: of the score.
        n_early: data of the first.
        n_data: data of the second.
        labels: whether a value above 0 is impossible.

    Raises:
        ValueError: if the two are of different kinds, or there are no late data.
    """
    if early.estimator != whole.estimator or not 0 < n_early < n_data:
        raise ValueError(
            "a conditional evidence needs two estimates of one kind, of some data and of more, "
            f"but got {early.estimator} of {n_early} and {whole.estimator} of {n_data}"
        )
    failed = [e for e in (early, whole) if not e.valid]
    if failed:
        return no_estimate(name, failed[0].note)
    value = whole.value - early.value
    groups = {f"0-{n_early}": early, f"0-{n_data}": whole}
    errors = [e.standard_error for e in (early, whole) if e.standard_error is not None]
    note = f"{n_data - n_early} data after {n_early}, hyperparameters of the early ones"
    impossible = labels and value > 0
    if impossible:
        note = f"{value:.6g} nats is above 0, which no log probability of labels is; {note}"
    return EvidenceEstimate(
        estimator=name,
        value=value,
        per_datum=value / (n_data - n_early),
        standard_error=math.hypot(*errors) if errors else None,
        relation=declared(name).relation,
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

    The first training learns the hyperparameters as the plan says, the last time before its last
    epoch, so that its parameters end at a mode for them; the second, from the same initialisation,
    holds them. The training proper cannot stand in for the second, since it learns its own. For
    real targets the noise is learned once more at the end, with the precisions.

    early        evidences of the early data, while those of all are waited for
    differences  of the evidences of all data and of the early ones
    """

    def __init__(self, names: Sequence[str], context: Context) -> None:
        super().__init__(names, context)
        kinds = [declared(name).curvature for name in names]
        self.kinds = [kind for kind in kinds if kind is not None]
        self.early: list[EvidenceEstimate] = []
        self.differences: list[EvidenceEstimate] = []
        self.run: Run | None = None

    def due(self) -> bool:
        """Tell whether the differences are not known yet."""
        return not self.differences

    def advance(self) -> None:
        """Train for a slice; after the second training, take the differences."""
        n_data, n_early = len(self.context.data.x_train), self._n_early()
        part = self._part()
        self.run = self.run or begun(part)
        try:
            if not train_slice(self.run, part):
                return
            passes = passes_of(self.run.training, part.data, part.assignment)
            found = laplace_estimates(self.kinds, passes)
        except DivergedError as error:
            note = f"the training on {len(part.data.x_train)} data diverged: {error}"
            self.differences = [no_estimate(name, note) for name in self.names]
        else:
            self.context.training.evidence_seconds += sum(e.seconds for e in found)
            if not self.early:
                first = self._ended()
                self.early = found
                self.run = begun(self._part())
                hold_hyperparameters_of(first.training, self.run.training)
                return
            self.differences = [
                conditional_estimate(
                    early, late, name=name, n_early=n_early, n_data=n_data,
                    labels=self.context.data.task == "labels",
                )
                for name, early, late in zip(self.names, self.early, found, strict=True)
            ]  # fmt: skip
        self._ended()
        self.early = []

    def evaluate(self, *, last: bool) -> list[EvidenceEstimate]:
        """Return the differences, once they are known."""
        return list(self.differences)

    def state_dict(self) -> dict[str, Any]:
        """Return the evidences so far, and the training under way."""
        return {
            "early": [e.model_dump_json() for e in self.early],
            "differences": [e.model_dump_json() for e in self.differences],
            "run": None if self.run is None else run_state(self.run),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        read = EvidenceEstimate.model_validate_json
        self.early = [read(text) for text in state["early"]]
        self.differences = [read(text) for text in state["differences"]]
        if state["run"] is not None:
            self.run = restored(self._part(), state["run"])

    def _part(self) -> Part:
        """Return the data that are trained on now: the early ones, or all."""
        data, given = self.context.data, self.context.assignment
        if self.early:
            return part_of(None, data, given, _PURPOSE, learn=False)
        rows = order_of_data(len(data.x_train), given)[: self._n_early()]
        return part_of(rows, data, given, _PURPOSE)

    def _n_early(self) -> int:
        n_data = len(self.context.data.x_train)
        if n_data < 2:
            raise ValueError(f"a conditional evidence needs at least 2 data, but got {n_data}")
        return n_data // 2

    def _ended(self) -> Run:
        """Take the run on a part out, and count its time."""
        run, self.run = self.run, None
        assert run is not None
        self.context.training.evidence_seconds += seconds_of(run)
        return run


def hold_hyperparameters_of(first: Training, second: Training) -> None:
    """Give a training that has not begun what another one learned."""
    for name in ("prior_precision", "noise_std", "temperature"):
        setattr(second, name, getattr(first, name))
