"""Prequential evidence of the first pass over the data, with a posterior instead of a point.

    Σ_b Σ_{n in b} log ∫ p(y_n | f) N(f; f_n(θ_b), diag(v_n)) df

    b    minibatches of the first epoch, in their order       θ_b  the parameters before step b
    v_n  Σ_p J_ncp² / (δ_p + κ h_p), variance of output c of datum n [C]: the Laplace posterior of
         the linearised network (Immer et al. 2021, "Improving predictions")
    h    diagonal of the Gauss-Newton matrix of the minibatches before b, each at its own θ
    δ    prior precisions        κ  likelihood power

A sum of log predictive densities of unseen data is the log evidence of the system that forecasts
(Dawid 1984), here of the training, which mixes δ and h over many θ; it is not that of one model
and prior. Lyle et al. (2020, section 3) have a point in place of the posterior:
`prequential_epoch1`. Here the predictions include the uncertainty of an untrained network, so
arbitrary early outputs are not penalised.

Gaussian noise: the integral is N(y; f, v + s²). Classes: the mean of softmax(f / T) over `N_DRAWS`
draws of independent outputs, as in diag(v). Each datum of a minibatch is predicted separately,
from the minibatches before it.
"""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from nas_evidence.curvature import curvature_pass
from nas_evidence.curvature.likelihood import Categorical, Gaussian, Likelihood
from nas_evidence.curvature.output_variance import output_variances
from nas_evidence.maths.gaussian_softmax import log_sampled_mean
from nas_evidence.maths.precisions import Precisions
from nas_evidence.maths.structured import BlockDiagonal
from nas_evidence.scores.protocol import Context, Scorer
from nas_evidence.spec.record import EvidenceEstimate
from nas_evidence.spec.registry import declared
from nas_evidence.training.loop import likelihood_of

#: One random root of the output Hessian per datum: a pass costs one column for any number of
#: classes.
_KIND = "diag_ggn_mc"
#: Of the outputs of a datum: a probability p has a standard error of at most √(p (1 − p) / 1000).
N_DRAWS = 1000


def log_predictive(
    outputs: Tensor,
    variances: Tensor,
    targets: Tensor,
    likelihood: Likelihood,
    generator: torch.Generator,
) -> Tensor:
    """Return the log predictive density of each datum in nats, float64 [n].

    Args:
        outputs: f [n, C].
        variances: v >= 0 [n, C]; all 0 gives the log likelihood of f.
        targets: int64 [n] or float [n, C].
        likelihood: categorical or Gaussian.
        generator: of the draws for classes, on the CPU.

    >>> one, generator = torch.ones(1, 1), torch.Generator()
    >>> found = log_predictive(one, 0.75 * one, 2 * one, Gaussian(0.5), generator)
    >>> round(float(found), 6) == round(-0.5 * (1 + math.log(2 * math.pi)), 6)
    True
    """
    f, v = outputs.double(), variances.double()
    if isinstance(likelihood, Categorical):
        t = likelihood.temperature
        logs = log_sampled_mean(f, v, t, n_draws=N_DRAWS, generator=generator)
        return logs.gather(1, targets[:, None])[:, 0]
    assert isinstance(likelihood, Gaussian)
    spread = v + likelihood.noise_std**2
    return -0.5 * ((targets.double() - f).square() / spread + (2 * math.pi * spread).log()).sum(1)


class FirstPass(Scorer):
    """Predicts each minibatch of the first epoch before its step, without affecting the training.

    curvature  diagonal, of the data seen so far
    value      sum of the log predictive densities, nats
    """

    def __init__(self, names: Sequence[str], context: Context) -> None:
        super().__init__(names, context)
        self.curvature: BlockDiagonal | None = None
        self.value, self.n_data, self.seconds = 0.0, 0, 0.0

    def before_step(self, x: Tensor, y: Tensor) -> None:
        """Predict a minibatch, then add it to the data seen."""
        started = time.perf_counter()
        training, plan = self.context.training, self.context.assignment.plan
        likelihood = likelihood_of(plan, training.noise_std, training.temperature)
        outputs, variances = output_variances(training.model, x, self._covariance())
        draws = self.context.generator("first_pass_draws", self.n_data)
        self.value += float(log_predictive(outputs, variances, y, likelihood, draws).sum())
        seen = curvature_pass(
            _KIND, training.model, x, y, likelihood,
            batch_size=len(x), generator=self.context.generator("first_pass", self.n_data),
        ).curvature  # fmt: skip
        assert isinstance(seen, BlockDiagonal)
        self.curvature = seen if self.curvature is None else self.curvature.plus(seen)
        self.n_data += len(x)
        self.seconds += time.perf_counter() - started

    def evaluate(self, *, last: bool) -> list[EvidenceEstimate]:
        """Return the sum of the log predictive densities, nats."""
        if self.n_data == 0:
            return []
        return [
            EvidenceEstimate(
                estimator=name,
                value=self.value,
                per_datum=self.value / self.n_data,
                relation=declared(name).relation,
                seconds=self.seconds,
            )
            for name in self.names
        ]

    def state_dict(self) -> dict[str, Any]:
        """Return the sum; the curvature is not needed after the first epoch."""
        return {"value": self.value, "n_data": self.n_data, "seconds": self.seconds}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from that state."""
        self.value, self.n_data = state["value"], state["n_data"]
        self.seconds = state["seconds"]

    def _covariance(self) -> dict[str, Tensor]:
        """Return 1 / (δ + κ h) of each parameter, by tensor [size]."""
        training = self.context.training
        names, parameters = zip(*training.model.named_parameters(), strict=True)
        sizes = [p.numel() for p in parameters]
        precision = Precisions(training.prior_precision, sizes).of_each_parameter()
        total = dict(zip(names, torch.split(precision, sizes), strict=True))
        if self.curvature is not None:
            power = self.context.assignment.plan.likelihood_power
            for name, h in zip(self.curvature.names, self.curvature.spectra(), strict=True):
                total[name] = total[name].to(h) + power * h
        return {name: 1 / each for name, each in total.items()}
