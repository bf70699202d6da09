"""The evidence of one trained model, in one call."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Literal

import torch
from torch import Tensor, nn

from nas_evidence.curvature import CurvaturePass, curvature_pass
from nas_evidence.evidence.laplace import laplace_estimate
from nas_evidence.likelihood import Categorical, Gaussian, Likelihood
from nas_evidence.record import EvidenceEstimate, Term

#: Rows of a batch where the caller names none; the result does not depend on it.
BATCH_SIZE = 512


def estimate_evidence(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    likelihood: Literal["categorical", "gaussian"],
    curvature: str,
    prior_precision: float | Sequence[float] | Mapping[str, float] | Tensor,
    noise_std: float | None = None,
    temperature: float = 1.0,
    likelihood_power: float = 1.0,
    at_mode_correction: bool = False,
    diagnose: bool = True,
    kfac_reduce: Collection[str] = (),
    batch_size: int | None = None,
    generator: torch.Generator | None = None,
    seed: int = 0,
    n_draws: int = 4,
) -> EvidenceEstimate:
    """Return the Laplace log evidence of a trained model, `.value` in nats, larger is better.

    The parameters of the model are taken for the mode. The model is left exactly as it was.

    Args:
        model: any module whose parameters are in Linear, Conv2d, GroupNorm, LayerNorm or Fixup
            scale and bias modules; everything else in `forward` is free.
        inputs: training inputs [n, ...], on the device of the model.
        targets: integer labels [n] ("categorical") or real values [n, C] ("gaussian"), [n] where
            the model has one output.
        likelihood: "categorical" (softmax) or "gaussian".
        curvature: a name in `nas_evidence.curvature.KINDS`.
        prior_precision: > 0; one number, or one for each tensor of `model.parameters()` in their
            order or by name; with diagonal kinds also one for each parameter [P].
        noise_std: standard deviation of the noise; "gaussian" needs it.
        temperature: divisor of the logits; "categorical" only.
        likelihood_power: κ on the likelihood; other than 1, the value compares with the same κ
            only.
        at_mode_correction: add ½ gᵀ(H + D)⁻¹g with g the gradient of the negative log joint.
        diagnose: report gᵀ(H + D)⁻¹g, for one more forward and backward pass.
        kfac_reduce: weight layers before a global pooling, for the Kronecker kinds; see
            `nas_evidence.curvature.curvature_pass`.
        batch_size: rows at a time.
        generator: random numbers of the Monte-Carlo kinds; wins over `seed`.
        seed: of the Monte-Carlo kinds.
        n_draws: of the Monte-Carlo kinds: every number is the mean over so many passes, and from
            two on the estimate has a standard error.

    Raises:
        ValueError: for an unknown name, a missing or impossible number, or a layer that is not
            supported; says what and where.
    """
    if n_draws < 1:
        raise ValueError(f"`n_draws >= 1` must hold, but got {n_draws}")
    random = torch.Generator().manual_seed(seed) if generator is None else generator
    noise = _likelihood(likelihood, noise_std, temperature)
    precision = _per_tensor(model, prior_precision)
    passes: list[CurvaturePass] = []
    for draw in range(n_draws if curvature.endswith("_mc") else 1):
        passed = curvature_pass(
            curvature,
            model,
            inputs,
            _targets(targets, likelihood),
            noise,
            batch_size=BATCH_SIZE if batch_size is None else batch_size,
            generator=random,
            diagnose=(diagnose or at_mode_correction) and draw == 0,
            kfac_reduce=kfac_reduce,
        )
        passes.append(passed if draw == 0 else replace(passed, gradient=passes[0].gradient))
    draws = [
        laplace_estimate(
            curvature,
            passed,
            model,
            precision,
            likelihood_power=likelihood_power,
            at_mode_correction=at_mode_correction,
        )
        for passed in passes
    ]
    estimate = draws[0] if len(draws) == 1 else _mean(draws)
    if kfac_reduce:
        estimate = _noted(estimate, f"kfac_reduce on {', '.join(sorted(kfac_reduce))}")
    if temperature == 1:
        return estimate
    term = Term(term="temperature", group="all", value=temperature)
    estimate = estimate.model_copy(update={"terms": (*estimate.terms, term)})
    return _noted(estimate, f"softmax temperature {temperature:g}")


def _targets(targets: Tensor, likelihood: str) -> Tensor:
    """Return labels as int64, real targets as floats [n, C]."""
    if likelihood == "categorical":
        return targets if targets.is_floating_point() else targets.long()
    real = targets if targets.is_floating_point() else targets.double()
    return real[:, None] if real.ndim == 1 else real


def _noted(estimate: EvidenceEstimate, note: str) -> EvidenceEstimate:
    return estimate.model_copy(update={"note": "; ".join(filter(None, (estimate.note, note)))})


def _mean(draws: list[EvidenceEstimate]) -> EvidenceEstimate:
    """Return the mean of independent estimates, with its standard error."""
    invalid = [draw for draw in draws if not draw.valid]
    if invalid:
        return invalid[0]
    values = [draw.value for draw in draws]
    terms = tuple(
        Term(term=same[0].term, group=same[0].group, value=fmean(t.value for t in same))
        for same in zip(*(draw.terms for draw in draws), strict=True)
    )
    per_datum = [draw.per_datum for draw in draws if draw.per_datum is not None]
    return draws[0].model_copy(
        update={
            "value": fmean(values),
            "per_datum": fmean(per_datum),
            "standard_error": stdev(values) / len(values) ** 0.5,
            "terms": terms,
            "seconds": sum(draw.seconds for draw in draws),
        }
    )


def _likelihood(name: str, noise_std: float | None, temperature: float) -> Likelihood:
    if name == "categorical":
        if noise_std is not None:
            raise ValueError('`noise_std` is for likelihood = "gaussian", not "categorical"')
        return Categorical(float(temperature))
    if name == "gaussian":
        if noise_std is None:
            raise ValueError('`noise_std` must be given for likelihood = "gaussian"')
        if temperature != 1:
            raise ValueError('`temperature` is for likelihood = "categorical", not "gaussian"')
        return Gaussian(float(noise_std))
    raise ValueError(f'`likelihood` must be "categorical" or "gaussian", but got {name!r}')


def _per_tensor(
    model: nn.Module, given: float | Sequence[float] | Mapping[str, float] | Tensor
) -> Mapping[str, float] | Tensor:
    if isinstance(given, Mapping):
        return given
    values = torch.as_tensor(given, dtype=torch.float64)
    count = sum(1 for _ in model.parameters())
    return values.expand(count) if values.ndim == 0 else values
