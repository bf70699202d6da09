"""Thermodynamic integration with the uniform prior of Baldock and Marzari (2019, eq. 6 and 11).

    p(w) = Π_i 1 / σ_i  for |w_i| < σ_i / 2,       σ_i = 2 c / √k_i

    k_i  inputs, with the bias, of the unit that w_i leads to; 1 outside layers     c = 50

c / √k_i is c times the range from which common initialisations draw. The prior volume Σ log σ_i of
a network is most of what this evidence charges for parameters. The prior is not the one that the
training of a study has learned, so the value is comparable with other values of this score only.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from nas_evidence.curvature.likelihood import Likelihood
from nas_evidence.evidence.network_density import flat_parameters
from nas_evidence.scores.protocol import Context
from nas_evidence.scores.sampling import sampled_score
from nas_evidence.scores.sampling_plan import SWEEP, SweepPlan
from nas_evidence.scores.thermodynamic import thermodynamic_evidence
from nas_evidence.spec.record import EvidenceEstimate
from nas_evidence.spec.registry import SCORES

NAME = "thermodynamic_box"
#: c, the paper's for networks whose outputs are linear.
WIDTH = 50.0


def half_widths(model: nn.Module, width: float = WIDTH) -> Tensor:
    """Return σ_i / 2 = c / √k_i of each parameter in their order, float64 [P].

    Raises:
        ValueError: for a width that is not > 0.
    """
    if not width > 0:
        raise ValueError(f"`width > 0` must hold, but got {width}")
    fan_in: dict[int, int] = {}
    for module in model.modules():
        weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            assert isinstance(weight, Tensor)
            inputs = weight[0].numel() + (bias is not None)
            fan_in.update({id(p): inputs for p in (weight, bias) if p is not None})
    parts = [
        torch.full((p.numel(),), width / math.sqrt(fan_in.get(id(p), 1)), dtype=torch.float64)
        for p in model.parameters()
    ]
    return torch.cat(parts)


def log_prior_volume(model: nn.Module, width: float = WIDTH) -> float:
    """Return Σ log σ_i in nats."""
    return float((2 * half_widths(model, width)).log().sum())


def thermodynamic_box_evidence(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    likelihood: Likelihood,
    generator: torch.Generator,
    prior_precision: float | Tensor | Mapping[str, float] | None = None,
    width: float = WIDTH,
    plan: SweepPlan = SWEEP,
) -> EvidenceEstimate:
    """Return the log evidence of a tiny network under the uniform prior, in nats.

    Args:
        model: trained; its parameters are the centre.
        inputs: [n, ...].
        targets: int64 [n] or real [n, C].
        likelihood: `Categorical()` or `Gaussian(noise_std)`.
        generator: on the device of the model.
        prior_precision: not read: the prior is uniform.
        width: c.
        plan: numbers of nodes and samples.

    Raises:
        ValueError: for a width not > 0, or targets that the likelihood refuses.
    """
    box = half_widths(model, width).to(next(model.parameters()).device)
    outside = int((flat_parameters(model).abs() >= box).sum())
    if outside:
        return EvidenceEstimate(
            estimator=NAME, value=-math.inf, valid=False,
            note=f"{outside} of {len(box)} parameters are outside the box of width {width:g}",
        )  # fmt: skip
    found = thermodynamic_evidence(
        model, inputs, targets, likelihood=likelihood, generator=generator, half_width=box,
        plan=plan,
    )  # fmt: skip
    return found.model_copy(update={"estimator": NAME, "relation": SCORES[NAME].relation})


def score(context: Context) -> EvidenceEstimate:
    """Return the evidence for the trained network of a study, with the default plan; nats."""
    return sampled_score(NAME, thermodynamic_box_evidence, context)
