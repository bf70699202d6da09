"""Watches the first epoch: each minibatch is predicted before its step (`evidence/first_pass.py`).

The predictions leave the training as it is, bit by bit.
"""

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from nas_evidence.curvature import curvature_pass
from nas_evidence.curvature.output_variance import output_variances
from nas_evidence.data.tensors import TensorData
from nas_evidence.evidence import ESTIMATORS
from nas_evidence.evidence.first_pass import log_predictive
from nas_evidence.maths.structured import BlockDiagonal
from nas_evidence.record import EvidenceEstimate
from nas_evidence.spec import Assignment
from nas_evidence.training.loop import Training, likelihood_of, train_epoch

NAME = "prequential_epoch1_laplace"
#: One random root of the output Hessian a datum: a pass costs one column, whatever the classes.
_KIND = "diag_ggn_mc"


def train_and_watch(state: Training, data: TensorData, assignment: Assignment) -> None:
    """Run an epoch; the first one is watched where its evidence is asked for.

    Raises:
        DivergedError: as `train_epoch` does.
    """
    if state.epoch > 0 or NAME not in assignment.estimators:
        train_epoch(state, data, assignment)
        return
    first = FirstPass(state, assignment)
    train_epoch(state, data, assignment, first.see)
    state.first_pass = [first.estimate()]
    state.evidence_seconds += first.seconds


@dataclass
class FirstPass:
    """The predictions so far, and the curvature of the data seen so far."""

    state: Training
    assignment: Assignment
    curvature: BlockDiagonal | None = None
    value: float = 0.0
    n_data: int = 0
    seconds: float = 0.0

    def see(self, x: Tensor, y: Tensor) -> float:
        """Predict a minibatch, then count it among the data seen; return the seconds it took."""
        started, given = time.perf_counter(), self.assignment
        likelihood = likelihood_of(given.plan, self.state.noise_std, self.state.temperature)
        outputs, variances = output_variances(self.state.model, x, self._covariance())
        self.value += float(log_predictive(outputs, variances, y, likelihood).sum())
        seed = given.derived_seed("first_pass", self.n_data)
        seen = curvature_pass(
            _KIND, self.state.model, x, y, likelihood,
            batch_size=len(x), generator=torch.Generator().manual_seed(seed),
        ).curvature  # fmt: skip
        assert isinstance(seen, BlockDiagonal)
        self.curvature = seen if self.curvature is None else self.curvature.plus(seen)
        self.n_data += len(x)
        seconds = time.perf_counter() - started
        self.seconds += seconds
        return seconds

    def _covariance(self) -> dict[str, Tensor]:
        """Return 1 / (δ + κ h) of each parameter, by tensor [size]."""
        names, parameters = zip(*self.state.model.named_parameters(), strict=True)
        precision, sizes = self.state.prior_precision, [p.numel() for p in parameters]
        if len(precision) == len(sizes):
            precision = precision.repeat_interleave(torch.tensor(sizes))
        total = dict(zip(names, torch.split(precision, sizes), strict=True))
        if self.curvature is not None:
            power = self.assignment.plan.likelihood_power
            for name, h in zip(self.curvature.names, self.curvature.spectra(), strict=True):
                total[name] = total[name].to(h) + power * h
        return {name: 1 / each for name, each in total.items()}

    def estimate(self) -> EvidenceEstimate:
        """Return the sum of the predictions, nats."""
        return EvidenceEstimate(
            estimator=NAME, value=self.value, per_datum=self.value / self.n_data,
            relation=ESTIMATORS[NAME], seconds=self.seconds,
        )  # fmt: skip
