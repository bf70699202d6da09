"""Curvature of the summed negative log likelihood: model + likelihood + data -> `Structured`.

    H ≈ Σ_n J_nᵀ Λ_n J_n      (GGN)        Σ_n g_n g_nᵀ,  g_n = ∇ log p(y_n|f_n)      (EF)

A kind chooses the vectors that are sent back through the network, and the structure of the matrix
built from them. A bare name is exact (all roots of Λ), `_mc` draws one root per datum, `ef` sends
the residual.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nas_evidence.curvature.capture import undisturbed
from nas_evidence.curvature.dense import full, tensor_blocks
from nas_evidence.curvature.gradient import log_likelihood_gradient
from nas_evidence.curvature.layerwise import diagonals, eigen_corrected, kroneckers
from nas_evidence.curvature.refusals import (
    BatchStatisticsError,
    UnsupportedLayerError,
    refuse_batch_statistics,
)
from nas_evidence.curvature.sweep import Sweep
from nas_evidence.likelihoods import Likelihood
from nas_evidence.maths.constants import constants_aside, free_parameters
from nas_evidence.maths.full_precision import full_precision
from nas_evidence.maths.structured import BlockDiagonal, Structured
from nas_evidence.plumbing.user_error import UserError, meant
from nas_evidence.spec.registry import CURVATURES

#: Builds the structure of a kind from the columns sent back through the network, for each draw.
BUILDERS: dict[str, Callable[[Sweep], Sequence[Structured]]] = {
    "diagonal": diagonals,
    "kronecker": kroneckers,
    "eigen_corrected": lambda sweep: [eigen_corrected(sweep)],
    "block": lambda sweep: [tensor_blocks(sweep)],
    "full": lambda sweep: [full(sweep)],
}
#: The names of the kinds.
KINDS = tuple(CURVATURES)
#: What laplace-torch calls some of them, for hints.
_OF_LAPLACE_TORCH = {"kron": "kfac_ggn", "diag": "diag_ggn", "full": "full_ggn"}


@dataclass(frozen=True)
class CurvaturePass:
    """The result of one pass over the data.

    curvature       of the summed negative log likelihood at the model's parameters
    log_likelihood  nats, summed over the data
    n_data          number of data points
    n_outputs       of the model
    squared_errors  Σ_n (y_nc − f_nc)² of each output in its unit of the noise [C]; empty if the
                    likelihood has no noise
    gradient        of the log likelihood [P], float64; None unless requested
    """

    curvature: Structured
    log_likelihood: float
    n_data: int
    seconds: float
    n_outputs: int
    squared_errors: tuple[float, ...] = ()
    gradient: Tensor | None = None


def curvature_pass(
    kind: str,
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    likelihood: Likelihood,
    *,
    batch_size: int,
    generator: torch.Generator | None = None,
    diagnose: bool = False,
    kfac_reduce: Collection[str] = (),
) -> CurvaturePass:
    """Return the curvature of `model` on the data, leaving the model exactly as it was.

    Args:
        kind: a name in `KINDS`.
        model: any module that does not normalise over the batch; `BatchNorm` in evaluation mode
            does not. Frozen parameters are constants. Layers with rules (`refusals.SUPPORTED`)
            are cheap; a Linear on sequences [n, T, d] has Kronecker factors of single positions
            ("expand"), see `kfac_reduce`. In any other module the gradients of each datum come
            from autograd; for a parameter of it Kronecker kinds have the exact block. Modules
            that are called twice, share parameters or take several tensors are for the diagonal
            and the dense kinds, one datum at a time.
        inputs: [n, ...], on the device of the model.
        targets: int64 [n] or float [n, C].
        likelihood: of the targets given the outputs.
        batch_size: rows at a time; affects the result by rounding only, and in Monte-Carlo kinds
            by the draws.
        generator: random numbers, required by the Monte-Carlo kinds.
        diagnose: also compute the gradient of the log likelihood, at the cost of another forward
            and backward pass.
        kfac_reduce: paths of weight layers whose Kronecker factors use sums over positions
            ("reduce") instead of single positions ("expand"); see `layerwise`. Layers before a
            global average pooling need it; `trace_ratios` shows whether they do.

    Raises:
        ValueError: for an unknown kind, data of unequal length, or an unsupported layer; names
            the layer, and the kinds that support it.
    """
    (found,) = curvature_passes(
        kind,
        model,
        inputs,
        targets,
        likelihood,
        batch_size=batch_size,
        generator=generator,
        diagnose=diagnose,
        kfac_reduce=kfac_reduce,
    )
    return found


def curvature_passes(
    kind: str,
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    likelihood: Likelihood,
    *,
    batch_size: int,
    n_draws: int = 1,
    generator: torch.Generator | None = None,
    diagnose: bool = False,
    kfac_reduce: Collection[str] = (),
    kept: dict[Any, Any] | None = None,
) -> list[CurvaturePass]:
    """Return `n_draws` independent draws of a Monte-Carlo kind, in one sweep over the data.

    They equal those of `curvature_pass` called so often with one generator, and all arguments and
    errors are as there. The forward pass, the factors of the inputs and the gradient are shared,
    and the seconds divided equally. Other kinds have one draw.

    `kept` holds Kronecker factors of the inputs for later passes over the same, unchanged data.
    """
    started = time.perf_counter()
    check_kind(kind)
    if n_draws < 1 or (n_draws > 1 and CURVATURES[kind].columns != "sampled"):
        raise UserError(
            "n-draws-of-kind",
            f"`n_draws >= 1` must hold, and 1 for a kind that is not sampled, but got {n_draws} "
            f"for {kind!r}",
        )
    if len(inputs) != len(targets) or len(inputs) == 0 or batch_size < 1:
        raise UserError(
            "curvature-data-lengths",
            "`len(inputs) == len(targets) >= 1` and `batch_size >= 1` must hold, but got "
            f"{len(inputs)}, {len(targets)} and {batch_size}",
        )
    if CURVATURES[kind].columns == "sampled" and generator is None:
        raise UserError(
            "generator-missing", f"`generator` must be given for the Monte-Carlo kind {kind!r}"
        )
    free_parameters(model)
    refuse_batch_statistics(model)
    _check_reduced(model, kfac_reduce)
    sweep = Sweep(
        model,
        inputs,
        targets,
        likelihood,
        CURVATURES[kind].columns,
        batch_size,
        generator,
        n_draws=n_draws,
        reduced=frozenset(kfac_reduce),
        kept=kept,
    )
    with constants_aside(model), full_precision(), undisturbed(model):
        try:
            sweep.prepare(any_layer=CURVATURES[kind].any_layer)
        except BatchStatisticsError:
            raise
        except UnsupportedLayerError as error:
            general = ", ".join(name for name, other in CURVATURES.items() if other.any_layer)
            raise UnsupportedLayerError(
                "kind-does-not-support-model",
                f"{kind} does not support the model: {error}. Kinds that take any "
                f"layer: {general}",
            ) from None
        curvatures = BUILDERS[CURVATURES[kind].structure](sweep)
    gradient = None
    if diagnose:
        gradient = log_likelihood_gradient(
            model, inputs, targets, likelihood, batch_size=batch_size
        )
    seconds = (time.perf_counter() - started) / n_draws
    return [
        CurvaturePass(
            curvature=curvature,
            log_likelihood=sweep.log_likelihood,
            n_data=len(inputs),
            seconds=seconds,
            n_outputs=sweep.n_outputs,
            squared_errors=sweep.squared_errors,
            gradient=gradient,
        )
        for curvature in curvatures
    ]


def check_kind(kind: str) -> None:
    """Do nothing for a name in `KINDS`.

    Raises:
        ValueError: for any other name; lists all names and suggests a close one.
    """
    if kind not in KINDS:
        hint = meant(_OF_LAPLACE_TORCH.get(kind, kind), KINDS)
        raise UserError(
            "unknown-curvature",
            f"`curvature` must be one of {', '.join(KINDS)}, but got {kind!r}{hint}",
        )


def _check_reduced(model: nn.Module, paths: Collection[str]) -> None:
    modules = dict(model.named_modules())
    wrong = [p for p in paths if not isinstance(modules.get(p), nn.Linear | nn.Conv1d | nn.Conv2d)]
    if wrong:
        raise UserError(
            "kfac-reduce-modules",
            "`kfac_reduce` must name Linear, Conv1d or Conv2d modules of the model, but got "
            f"{', '.join(sorted(wrong))}",
        )


def trace_ratios(kfac: CurvaturePass, diagonal: CurvaturePass) -> dict[str, float]:
    """Return tr(KFAC) / tr(exact diagonal) by parameter tensor, NaN where the latter is zero.

    A ratio far from 1 means that Kronecker factors fit the layer badly: 0.01 to 0.2 for "expand"
    before a global average pooling, where "reduce" is about right.

    Args:
        kfac: of a Kronecker kind.
        diagonal: of diag_ggn, or diag_ef for kfac_ef, on the same data.

    Raises:
        ValueError: if a pass has no block per tensor, or the models differ.
    """
    one, other = kfac.curvature, diagonal.curvature
    if not (isinstance(one, BlockDiagonal) and isinstance(other, BlockDiagonal)) or (
        one.names != other.names
    ):
        raise UserError(
            "trace-ratio-passes",
            "trace ratios need two passes over one model with a block per tensor, but got "
            f"a {type(one).__name__} and a {type(other).__name__}",
        )
    ratios = torch.where(other.trace() > 0, one.trace() / other.trace(), torch.nan)
    return dict(zip(one.names, ratios.tolist(), strict=True))
