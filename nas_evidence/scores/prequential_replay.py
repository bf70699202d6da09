"""The chain-rule code of the data, by one network that sees more and more of them.

    log p(D_late | D_early) = log (1/M) Σ_s Π_k p(C_k | θ_k, s)

    D_early  a quarter of the data     C_k  the rest in `N_CHUNKS` chunks of equal size
    θ_k  trained on D_early, C_1 ... C_{k−1}     s  M scales of the outputs, as in `two_fold`

After the first quarter the network predicts the next chunk and is trained further on all data so
far (after Bornschein, Li & Hutter 2022; docs/reference/estimators.md); hyperparameters are updated
after every chunk. Differs from the paper: chunks instead of single minibatches, whole epochs over
the data so far instead of replay streams, no averaging of weights.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from nas_evidence.data.tensors import select
from nas_evidence.scores.folds import SCALES, log_likelihoods_at_scales, outputs_of
from nas_evidence.scores.protocol import Context, Scorer
from nas_evidence.spec.record import EvidenceEstimate, Term
from nas_evidence.training.loop import DivergedError, likelihood_of, train_epoch
from nas_evidence.training.online import passes_of, update_hyperparameters
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

N_CHUNKS = 16
#: Learning rate after the first quarter, as a fraction of the planned one.
RATE = 0.3
_EPOCHS_PER_CHUNK = 1 / 20  # of the planned epochs
_PURPOSE = "prequential_replay"


class PrequentialReplay(Scorer):
    """Trains on the first quarter slice by slice, then codes and learns one chunk per slice.

    coded  log p of each chunk so far at each scale [M], nats; None once the training has diverged
    """

    def __init__(self, names: Sequence[str], context: Context) -> None:
        super().__init__(names, context)
        self.coded: list[list[float]] | None = []
        self.started = False
        self.run: Run | None = None
        self.seconds = 0.0

    def due(self) -> bool:
        """Tell whether a chunk still has to be coded.

        Raises:
            ValueError: if there are too few data for one in each chunk.
        """
        n_data = len(self.context.data.x_train)
        if n_data < 2 * N_CHUNKS:
            raise ValueError(
                f"prequential_replay needs at least {2 * N_CHUNKS} data, but got {n_data}; "
                "give more data, or leave the score out of `estimators`"
            )
        return self.coded is not None and len(self.coded) < N_CHUNKS

    def advance(self) -> None:
        """Train on the first quarter for a slice; after that code a chunk and learn it."""
        part = self._part()
        self.run = self.run or new_run(part)
        before = seconds_of(self.run)
        try:
            if self.started:
                self._chunk(self.run)
            else:
                self.started = train_slice(self.run, part)
        except DivergedError:
            self.coded = None
        self._count(seconds_of(self.run) - before)
        if not self.due():
            self.run = None

    def evaluate(self, *, last: bool) -> list[EvidenceEstimate]:
        """Return the code once every chunk is coded."""
        if self.coded is None:
            note = "the training on a part of the data diverged"
            return [self._estimate(-math.inf, None, valid=False, note=note)]
        if len(self.coded) < N_CHUNKS:
            return []
        cuts, total = self._cuts(), self._totals()[-1]
        n_late = cuts[-1] - cuts[0]
        note = f"{n_late} data after {cuts[0]}, in {N_CHUNKS} chunks"
        return [self._estimate(total, total / n_late, valid=True, note=note)]

    def state_dict(self) -> dict[str, Any]:
        """Return what is coded, and the network."""
        return {
            "coded": self.coded,
            "started": self.started,
            "seconds": self.seconds,
            "run": None if self.run is None else run_state(self.run),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from that state."""
        self.coded, self.started = state["coded"], state["started"]
        self.seconds = state["seconds"]
        if state["run"] is not None:
            self.run = restored(self._part(), state["run"])

    def _chunk(self, run: Run) -> None:
        """Predict the next chunk, then learn all data up to its end."""
        assert self.coded is not None
        training, cuts, done = run.training, self._cuts(), len(self.coded)
        part = self._part(cuts[done + 1])
        plan = part.assignment.plan
        rows = self._order()[cuts[done] : cuts[done + 1]]
        data = self.context.data
        x, y = select(data.x_train, rows), data.y_train[rows.to(data.y_train.device)]
        likelihood = likelihood_of(plan, training.noise_std, training.temperature)
        values = log_likelihoods_at_scales(outputs_of(training, x), y, likelihood)
        self.coded.append(values.tolist())
        if len(self.coded) < N_CHUNKS:
            for _ in range(max(1, round(_EPOCHS_PER_CHUNK * plan.epochs))):
                train_epoch(training, part.data, part.assignment)
            update_hyperparameters(training, passes_of(training, part.data, part.assignment))

    def _part(self, end: int | None = None) -> Part:
        """Return the first quarter as planned; up to a later `end` at a constant rate."""
        data, given = self.context.data, self.context.assignment
        part = part_of(self._order()[: end or self._cuts()[0]], data, given, _PURPOSE)
        plan = given.plan.model_copy(update={"settle": 0.0})
        if end is not None:
            rate = RATE * plan.learning_rate
            plan = plan.model_copy(update={"schedule": "constant", "learning_rate": rate})
        alone = part.assignment.model_copy(update={"plan": plan})
        return Part(part.data, alone)

    def _order(self) -> Tensor:
        data = self.context.data
        return order_of_data(len(data.x_train), self.context.assignment, data.units)

    def _cuts(self) -> list[int]:
        """Return the end of the first quarter, and of every chunk."""
        n_data = len(self.context.data.x_train)
        first = n_data // 4
        wanted = [first + (n_data - first) * m // N_CHUNKS for m in range(N_CHUNKS)]
        return [*cuts_of(self._order(), wanted, self.context.data.units), n_data]

    def _totals(self) -> list[float]:
        """Return log p of the data up to the end of each chunk, given the first quarter, nats."""
        if not self.coded:
            return []
        sums = torch.tensor(self.coded, dtype=torch.float64).cumsum(0)
        totals: list[float] = (sums.logsumexp(1) - math.log(len(SCALES))).tolist()
        return totals

    def _count(self, seconds: float) -> None:
        self.seconds += seconds
        self.context.training.evidence_seconds += seconds

    def _estimate(
        self, value: float, per_datum: float | None, *, valid: bool, note: str
    ) -> EvidenceEstimate:
        totals = [0.0, *self._totals()]
        terms = tuple(
            Term(term="log_predictive", group=f"chunk {k}", value=totals[k] - totals[k - 1])
            for k in range(1, len(totals))
        )
        return EvidenceEstimate(
            estimator="prequential_replay", value=value, per_datum=per_datum, terms=terms,
            seconds=self.seconds, valid=valid, note=note,
        )  # fmt: skip
