"""Curvature of the summed negative log likelihood: model + likelihood + data -> `Structured`.

    H ≈ Σ_n J_nᵀ Λ_n J_n      (GGN)        Σ_n g_n g_nᵀ,  g_n = ∇ log p(y_n|f_n)      (EF)

A kind is a choice of vectors sent back through the network and of what is kept of them. A bare
name is exact (all roots of Λ), `_mc` draws one root for each datum, `ef` sends the residual.

Everything kept is a sum over data, so passes over the shards of a data set, made anywhere, add up
to the pass over all of it (`merge`).
"""

import difflib
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TypeVar

import torch
from torch import Tensor, nn

from nas_evidence.curvature.capture import UnsupportedLayerError, refuse_frozen, undisturbed
from nas_evidence.curvature.dense import full, tensor_blocks
from nas_evidence.curvature.gradient import log_likelihood_gradient
from nas_evidence.curvature.layerwise import diagonal, eigen_corrected, kronecker
from nas_evidence.curvature.sweep import Sweep
from nas_evidence.likelihood import Likelihood
from nas_evidence.maths.structured import BlockDiagonal, Structured, add_curvatures
from nas_evidence.registry import CURVATURES

#: What is made of the columns that go back through the network.
STRUCTURES: dict[str, Callable[[Sweep], Structured]] = {
    "diagonal": diagonal,
    "kronecker": kronecker,
    "eigen_corrected": eigen_corrected,
    "block": tensor_blocks,
    "full": full,
}
#: The names of the kinds.
KINDS = tuple(CURVATURES)


@dataclass(frozen=True)
class CurvaturePass:
    """What one pass over the data gives.

    curvature       of the summed negative log likelihood at the model's parameters
    log_likelihood  nats, summed over the data
    n_data          points visited
    n_outputs       of the model
    n_correct       points whose class has the largest output; None for real targets
    squared_error   Σ_n ‖y_n − f_n‖²; None for labels
    gradient        of the log likelihood [P], float64; None where nobody asked
    """

    curvature: Structured
    log_likelihood: float
    n_data: int
    n_correct: int | None
    seconds: float
    n_outputs: int
    squared_error: float | None = None
    gradient: Tensor | None = None

    def __add__(self, other: "CurvaturePass") -> "CurvaturePass":
        """Return the pass over the data of both, to rounding; seconds add up too.

        Raises:
            ValueError: if they are of different models or kinds, or of a kind that is not a sum.
        """
        return CurvaturePass(
            curvature=add_curvatures(self.curvature, other.curvature),
            log_likelihood=self.log_likelihood + other.log_likelihood,
            n_data=self.n_data + other.n_data,
            n_correct=_sum(self.n_correct, other.n_correct),
            seconds=self.seconds + other.seconds,
            n_outputs=self.n_outputs,
            squared_error=_sum(self.squared_error, other.squared_error),
            gradient=_sum(self.gradient, other.gradient),
        )


T = TypeVar("T", int, float, Tensor)


def _sum(one: T | None, other: T | None) -> T | None:
    return None if one is None or other is None else one + other


def merge(passes: Sequence[CurvaturePass]) -> CurvaturePass:
    """Return the pass over the data of all, from passes of one kind over disjoint shards.

    All kinds but ekfac_ggn, whose basis depends on all data. The full kinds choose their form by
    the size of what they see; shards of either form add up to the form that all data have.

    Raises:
        ValueError: if there are none, or they cannot be added.
    """
    if not passes:
        raise ValueError("`passes` must hold at least one pass, but is empty")
    return reduce(CurvaturePass.__add__, passes)


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
        model: any module whose parameters are in supported layers, see `capture`; for
            block_ggn, full_ggn and full_ef any module at all, at the cost of going one datum at
            a time where a layer is not supported.
        inputs: [n, ...], on the device of the model.
        targets: int64 [n] or float [n, C].
        likelihood: of the targets given the outputs.
        batch_size: rows at a time; the result does not depend on it beyond rounding, that of
            Monte-Carlo kinds not beyond the draws.
        generator: random numbers of the Monte-Carlo kinds, which refuse to go without.
        diagnose: also compute the gradient of the log likelihood, at the cost of a further
            forward and backward pass.
        kfac_reduce: paths of weight layers whose Kronecker factors are of sums over positions
            ("reduce") and not of single positions ("expand"); see `layerwise`. Layers before a
            global average pooling need it; `trace_ratios` tells.

    Raises:
        ValueError: for an unknown kind, data of unequal length, or a model with a layer that is
            not supported; names the culprit, and the kinds that would work.
    """
    started = time.perf_counter()
    check_kind(kind)
    if len(inputs) != len(targets) or len(inputs) == 0 or batch_size < 1:
        raise ValueError(
            "`len(inputs) == len(targets) >= 1` and `batch_size >= 1` must hold, but got "
            f"{len(inputs)}, {len(targets)} and {batch_size}"
        )
    if CURVATURES[kind].columns == "sampled" and generator is None:
        raise ValueError(f"`generator` must be given for the Monte-Carlo kind {kind!r}")
    refuse_frozen(model)
    _check_reduced(model, kfac_reduce)
    sweep = Sweep(
        model,
        inputs,
        targets,
        likelihood,
        CURVATURES[kind].columns,
        batch_size,
        generator,
        reduced=frozenset(kfac_reduce),
    )
    with undisturbed(model):
        try:
            sweep.prepare(any_layer=CURVATURES[kind].any_layer)
        except UnsupportedLayerError as error:
            able = ", ".join(name for name, other in CURVATURES.items() if other.any_layer)
            raise UnsupportedLayerError(
                f"{kind} does not support the model: {error}. Kinds that take any layer: {able}"
            ) from None
        curvature = STRUCTURES[CURVATURES[kind].structure](sweep)
    gradient = None
    if diagnose:
        gradient = log_likelihood_gradient(
            model, inputs, targets, likelihood, batch_size=batch_size
        )
    return CurvaturePass(
        curvature=curvature,
        log_likelihood=sweep.log_likelihood,
        n_data=len(inputs),
        n_correct=sweep.n_correct,
        seconds=time.perf_counter() - started,
        n_outputs=sweep.n_outputs,
        squared_error=sweep.squared_error,
        gradient=gradient,
    )


def check_kind(kind: str) -> None:
    """Do nothing for a name in `KINDS`.

    Raises:
        ValueError: with all names, and the one that may be meant.
    """
    if kind not in KINDS:
        near = difflib.get_close_matches(str(kind), KINDS, n=1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"`curvature` must be one of {', '.join(KINDS)}, but got {kind!r}{meant}")


def _check_reduced(model: nn.Module, paths: Collection[str]) -> None:
    modules = dict(model.named_modules())
    wrong = [p for p in paths if not isinstance(modules.get(p), nn.Linear | nn.Conv2d)]
    if wrong:
        raise ValueError(
            "`kfac_reduce` must name Linear or Conv2d modules of the model, but got "
            f"{', '.join(sorted(wrong))}"
        )


def trace_ratios(kfac: CurvaturePass, diagonal: CurvaturePass) -> dict[str, float]:
    """Return tr(KFAC) / tr(exact diagonal) by parameter tensor, NaN where the latter is zero.

    A ratio far from 1 says that Kronecker factors misjudge the layer: 0.01 to 0.2 for "expand"
    before a global average pooling, where "reduce" is about right.

    Args:
        kfac: of a Kronecker kind.
        diagonal: of diag_ggn, or diag_ef beside kfac_ef, on the same data.

    Raises:
        ValueError: if a pass has no block for each tensor, or the models differ.
    """
    one, other = kfac.curvature, diagonal.curvature
    if not (isinstance(one, BlockDiagonal) and isinstance(other, BlockDiagonal)) or (
        one.names != other.names
    ):
        raise ValueError(
            "trace ratios need two passes over one model with a block for each tensor, but got "
            f"a {type(one).__name__} and a {type(other).__name__}"
        )
    ratios = torch.where(other.trace() > 0, one.trace() / other.trace(), torch.nan)
    return dict(zip(one.names, ratios.tolist(), strict=True))
