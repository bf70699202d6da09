"""Curvature of the summed negative log likelihood: model + likelihood + data -> `Structured`.

    H ≈ Σ_n J_nᵀ Λ_n J_n      (GGN)        Σ_n g_n g_nᵀ,  g_n = ∇ log p(y_n|f_n)      (EF)

A kind is a choice of vectors sent back through the network and of what is kept of them. A bare
name is exact (all roots of Λ), `_mc` draws one root for each datum, `ef` sends the residual.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nas_evidence.curvature.capture import layers_of, undisturbed
from nas_evidence.curvature.dense import full, tensor_blocks
from nas_evidence.curvature.layerwise import diagonal, eigen_corrected, kronecker
from nas_evidence.curvature.sweep import Columns, Sweep
from nas_evidence.likelihood import Likelihood
from nas_evidence.maths.structured import Structured


@dataclass(frozen=True)
class Kind:
    """Which vectors go back through the network, and what is made of them."""

    columns: Columns
    structure: Callable[[Sweep], Structured]


KINDS: dict[str, Kind] = {
    "diag_ef": Kind("residual", diagonal),
    "diag_ggn": Kind("exact", diagonal),
    "diag_ggn_mc": Kind("sampled", diagonal),
    "kfac_ggn": Kind("exact", kronecker),
    "kfac_ggn_mc": Kind("sampled", kronecker),
    "kfac_ef": Kind("residual", kronecker),
    "ekfac_ggn": Kind("exact", eigen_corrected),
    "block_ggn": Kind("exact", tensor_blocks),
    "full_ggn": Kind("exact", full),
    "full_ef": Kind("residual", full),
}


@dataclass(frozen=True)
class CurvaturePass:
    """What one pass over the data gives.

    curvature       of the summed negative log likelihood at the model's parameters
    log_likelihood  nats, summed over the data
    n_data          points visited
    n_correct       points whose class has the largest output; None for real targets
    """

    curvature: Structured
    log_likelihood: float
    n_data: int
    n_correct: int | None
    seconds: float


def curvature_pass(
    kind: str,
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    likelihood: Likelihood,
    *,
    batch_size: int,
    generator: torch.Generator | None = None,
) -> CurvaturePass:
    """Return the curvature of `model` on the data, leaving the model exactly as it was.

    Args:
        kind: a name in `KINDS`.
        model: any module whose parameters are in supported layers; see `capture`.
        inputs: [n, ...], on the device of the model.
        targets: int64 [n] or float [n, C].
        likelihood: of the targets given the outputs.
        batch_size: rows at a time; the result does not depend on it beyond rounding, that of
            Monte-Carlo kinds not beyond the draws.
        generator: random numbers of the Monte-Carlo kinds, which refuse to go without.

    Raises:
        ValueError: for an unknown kind, data of unequal length, or a model with a layer that is
            not supported; names the culprit.
    """
    started = time.perf_counter()
    if kind not in KINDS:
        raise ValueError(f"`curvature` must be one of {', '.join(KINDS)}, but got {kind!r}")
    if len(inputs) != len(targets) or len(inputs) == 0 or batch_size < 1:
        raise ValueError(
            "`len(inputs) == len(targets) >= 1` and `batch_size >= 1` must hold, but got "
            f"{len(inputs)}, {len(targets)} and {batch_size}"
        )
    columns, structure = KINDS[kind].columns, KINDS[kind].structure
    if columns == "sampled" and generator is None:
        raise ValueError(f"`generator` must be given for the Monte-Carlo kind {kind!r}")
    layers = layers_of(model)
    sweep = Sweep(model, layers, inputs, targets, likelihood, columns, batch_size, generator)
    with undisturbed(model):
        sweep.prepare()
        curvature = structure(sweep)
    return CurvaturePass(
        curvature=curvature,
        log_likelihood=sweep.log_likelihood,
        n_data=len(inputs),
        n_correct=sweep.n_correct,
        seconds=time.perf_counter() - started,
    )
