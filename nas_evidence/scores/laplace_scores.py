"""Laplace evidences of the current network, one per requested curvature kind.

The formula is in `evidence/laplace.py`, below the training, which maximises it online. During
training each followed kind takes one pass per evaluation; at the end Monte-Carlo kinds average
several passes, and every estimate reports its distance from a mode.
"""

from collections.abc import Sequence
from dataclasses import replace

from nas_evidence.curvature import trace_ratios
from nas_evidence.curvature.batch_rows import rows_at_once
from nas_evidence.curvature.gradient import log_likelihood_gradient
from nas_evidence.evidence.laplace import mean_estimate, with_trace_ratios
from nas_evidence.scores.protocol import Scorer
from nas_evidence.spec.record import EvidenceEstimate
from nas_evidence.spec.registry import CURVATURES, draws_of
from nas_evidence.training.online import Passes


class Laplace(Scorer):
    """The Laplace evidence at the last evaluation; of `followed` kinds at every one. No state."""

    def evaluate(self, *, last: bool) -> list[EvidenceEstimate]:
        """Return the evidence of each kind at the current parameters."""
        passes = self.context.passes
        assert passes is not None
        if last:
            return laplace_estimates(self.names, passes)
        followed = [name for name in self.names if name in self.context.assignment.followed]
        return [passes.estimate(kind, passes.of(kind)[0]) for kind in followed]


def laplace_estimates(kinds: Sequence[str], passes: Passes) -> list[EvidenceEstimate]:
    """Return the evidences of a finished training, from all draws; the kinds share one gradient.

    Raises:
        DivergedError: if the log likelihood or a curvature is not finite.
    """
    if not kinds:
        return []
    model, data = passes.network.model, passes.data
    rows = rows_at_once(model, data.x_train)
    gradient = log_likelihood_gradient(
        model, data.x_train, data.y_train, passes.likelihood, batch_size=rows
    )
    estimates = []
    for name in kinds:
        kind = CURVATURES[name]
        draws = passes.of(name, draws_of(name))
        diagnosed = [replace(draw, gradient=gradient) for draw in draws]
        estimate = mean_estimate([passes.estimate(name, draw) for draw in diagnosed])
        if kind.trace is not None and kind.trace in kinds:
            exact = passes.of(kind.trace)[0]
            estimate = with_trace_ratios(estimate, trace_ratios(draws[0], exact))
        estimates.append(estimate)
    return estimates
