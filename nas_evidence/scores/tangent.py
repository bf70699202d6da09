"""Evidence of the linearised network on all data: trained, or at initialisation.

    tangent   at the trained weights: f(θ̂) + J (θ − θ̂), precisions and noise by MacKay's step from
              those of the training. The features J have seen the labels that they then predict,
              so this is a score and not a fair evidence.
    ntk_init  at the initial weights, with prior mean 0 as in the limit of infinite width (Jacot et
              al. 2018): no training. Precisions and noise by MacKay's step from the plan's.

Formulas are in evidence/linearised.py and tangent_fit.py. Exact while
min(data x outputs, parameters) is at most `LIMIT`; above it the estimate is invalid, with a note.
"""

import math
import time
from collections.abc import Mapping
from typing import Any

import torch

from nas_evidence.curvature.likelihood import Gaussian
from nas_evidence.curvature.memory import DoesNotFitError
from nas_evidence.evidence.jacobian import jacobian
from nas_evidence.evidence.linearised import TooLargeError, tangent_of
from nas_evidence.evidence.tangent_fit import Fitted, fit_by_mackay
from nas_evidence.maths.precisions import Precisions
from nas_evidence.scores.protocol import Context, Scorer
from nas_evidence.spec.record import EvidenceEstimate, Term
from nas_evidence.spec.registry import SCORES
from nas_evidence.training.loop import Training, likelihood_of


def tangent(context: Context) -> EvidenceEstimate:
    """Return the evidence of the network linearised where its training ended."""
    return _estimate("tangent", context, at_initialisation=False)


class NtkInit(Scorer):
    """The evidence at initialisation, computed in the first slice, before the first epoch."""

    found: EvidenceEstimate | None = None

    def due(self) -> bool:
        """Tell whether the evidence is still missing."""
        return self.found is None

    def advance(self) -> None:
        """Compute the evidence."""
        self.found = _estimate("ntk_init", self.context, at_initialisation=True)
        self.context.training.evidence_seconds += self.found.seconds

    def evaluate(self, *, last: bool) -> list[EvidenceEstimate]:
        """Return the evidence, once it is known."""
        return [] if self.found is None else [self.found]

    def state_dict(self) -> dict[str, Any]:
        """Return the evidence, if known."""
        return {"found": None if self.found is None else self.found.model_dump_json()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from that state."""
        text = state["found"]
        self.found = None if text is None else EvidenceEstimate.model_validate_json(text)


def _estimate(name: str, context: Context, *, at_initialisation: bool) -> EvidenceEstimate:
    started = time.perf_counter()
    try:
        names, fitted = _fitted(context, at_initialisation=at_initialisation)
        value, note = fitted.value, f"{fitted.n_steps} steps of the precisions"
    except (TooLargeError, DoesNotFitError) as error:
        names, fitted, value, note = (), None, -math.inf, str(error)
    valid = math.isfinite(value)
    return EvidenceEstimate(
        estimator=name,
        value=value if valid else -math.inf,
        per_datum=value / len(context.data.x_train) if valid else None,
        relation=SCORES[name].relation,
        terms=_terms(names, fitted) if valid and fitted is not None else (),
        seconds=time.perf_counter() - started,
        valid=valid,
        note=note,
    )


def _fitted(context: Context, *, at_initialisation: bool) -> tuple[tuple[str, ...], Fitted]:
    data, plan, training = context.data, context.assignment.plan, context.training
    linear = jacobian(training.model, data.x_train)
    theta = torch.cat([p.detach().flatten() for p in training.model.parameters()])
    fitted = fit_by_mackay(
        tangent_of(linear, data.y_train, None if at_initialisation else theta),
        likelihood_of(plan, training.noise_std, training.temperature),
        _by_tensor(training, linear.sizes),
        power=plan.likelihood_power,
    )
    return linear.names, fitted


def _by_tensor(training: Training, sizes: tuple[int, ...]) -> torch.Tensor:
    """Return one precision for each tensor [G], geometric means where there are more."""
    parts = Precisions(training.prior_precision.double().cpu(), sizes).by_tensor()
    return torch.stack([part.log().mean().exp() for part in parts])


def _terms(names: tuple[str, ...], fitted: Fitted) -> tuple[Term, ...]:
    terms = [
        Term(term="prior_precision", group=name, value=value)
        for name, value in zip(names, fitted.precision.tolist(), strict=True)
    ]
    if isinstance(fitted.likelihood, Gaussian):
        terms.append(Term(term="noise_std", group="all", value=fitted.likelihood.noise_std))
    return tuple(terms)
