"""The evidence of one trained model, in one call."""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Literal

import torch
from torch import Tensor, nn

from nas_evidence.curvature import curvature_pass
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
        targets: int64 labels [n] ("categorical") or real values [n, C] ("gaussian").
        likelihood: "categorical" (softmax) or "gaussian".
        curvature: a name in `nas_evidence.curvature.KINDS`.
        prior_precision: > 0; one number, or one for each tensor of `model.parameters()` in their
            order or by name.
        noise_std: standard deviation of the noise; "gaussian" needs it.
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
    noise = _likelihood(likelihood, noise_std)
    precision = _per_tensor(model, prior_precision)
    draws = []
    for _ in range(n_draws if curvature.endswith("_mc") else 1):
        passed = curvature_pass(
            curvature,
            model,
            inputs,
            targets,
            noise,
            batch_size=BATCH_SIZE if batch_size is None else batch_size,
            generator=random,
        )
        draws.append(laplace_estimate(curvature, passed, model, precision))
    return draws[0] if len(draws) == 1 else _mean(draws)


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


def _likelihood(name: str, noise_std: float | None) -> Likelihood:
    if name == "categorical":
        if noise_std is not None:
            raise ValueError('`noise_std` is for likelihood = "gaussian", not "categorical"')
        return Categorical()
    if name == "gaussian":
        if noise_std is None:
            raise ValueError('`noise_std` must be given for likelihood = "gaussian"')
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
