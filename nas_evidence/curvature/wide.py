"""Kronecker factors of wide layers: which are kept as rows, and which are too wide.

Eigenvalues and eigenvectors of a factor of side d take some d³ operations: 0.5 s at 2,048 on two
cores, so 4 s at 4,096, half a minute at 8,192 and minutes at 12,288. A linear layer with fewer
inputs than d has the same eigenvalues from the products of its inputs with each other.
"""

from collections.abc import Collection

from torch import Tensor, nn

from nas_evidence.spec.registry import CURVATURES

#: Side up to which a factor is always a matrix.
WIDE = 4_096
#: Side of the largest matrix whose eigenvalues are computed.
WIDEST = 8_192
#: Largest side of a full curvature online: the smaller of its parameters and its rows. An update
#: takes about ten decompositions, 2 s each at 2,000 on one core.
WIDEST_ONLINE = 2_000


def keeps_rows(module: nn.Module, n_rows: int) -> bool:
    """Tell whether the input factor of a layer is kept as its `n_rows` rows."""
    return isinstance(module, nn.Linear) and WIDE < module.in_features > n_rows


def too_wide(model: nn.Module, kinds: Collection[str], n_data: int) -> str:
    """Return why the factors of a curvature kind cannot be decomposed, or "".

    Args:
        model: may be on "meta".
        kinds: those without Kronecker factors are never too wide.
        n_data: rows of a linear layer's input.
    """
    wanted = [kind for kind in kinds if CURVATURES[kind].is_factored]
    if not wanted:
        return ""
    for path, module in model.named_modules():
        own = module.parameters(recurse=False)
        side = max((_side(module, parameter, n_data) for parameter in own), default=0)
        if side > WIDEST:
            return (
                f"layer `{path or '(model)'}` has a Kronecker factor of side {side:,}, of "
                f"{8 * side**2 / 2**30:.1f} GiB and minutes for its eigenvalues, and sides of up "
                f"to {WIDEST:,} are supported: use diag_ef or diag_ggn instead of "
                f"{', '.join(wanted)} in `estimators` and `plan.online.curvature`, or narrower "
                "layers or inputs"
            )
    return ""


def _side(module: nn.Module, parameter: Tensor, n_data: int) -> int:
    """Return the larger side of the factors of a parameter; of its block without factors."""
    factored = isinstance(
        module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Embedding | nn.MultiheadAttention
    )
    if not factored or parameter.ndim == 1:
        return parameter.numel()
    inputs = n_data if keeps_rows(module, n_data) else parameter[0].numel()
    return max(inputs, len(parameter))


def too_large_online(kind: str, n_parameters: int, n_rows: int) -> str:
    """Return why a kind is too large for the updates of hyperparameters, or "".

    Args:
        kind: of `plan.online.curvature`.
        n_parameters: of the network.
        n_rows: data times columns of the kind.
    """
    side = min(n_parameters, n_rows)
    if not CURVATURES[kind].is_full or side <= WIDEST_ONLINE:
        return ""
    return (
        f"`plan.online.curvature` {kind} of {n_parameters:,} parameters and {n_rows:,} rows has a "
        f"matrix of side {side:,}, decomposed about ten times in each update, and sides of up to "
        f"{WIDEST_ONLINE:,} are supported: use kfac_ggn, block_ggn or a diagonal kind there; "
        f"{kind} in `estimators` is computed once"
    )
