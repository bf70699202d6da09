"""Conditional evidence of a Bayesian last layer on the features of a trained network.

    f_n = A φ_n,   A_ci ~ N(0, 1 / δ_ci)        log q(y_late | y_early) = log q(y) − log q(y_early)

    log q = κ log p(y | f*) − ½ Σ δ_ci A*_ci² − ½ log|H|,  H = I + Δ^-½ (Σ_n W_n ⊗ φ_n φ_nᵀ) Δ^-½

    φ_n  input of the last linear layer of datum n, and 1 for its bias [d]    A  its weights [C, d]
    A*   weights of largest density     W_n  Hessian of −κ log p(y_n | f_n) in the outputs [C, C]
    δ    prior precisions, Δ the diagonal matrix of them                      κ  likelihood power

This is the conditional evidence (Lotfi et al. 2022) of the linearised network (Immer et al. 2021)
whose only parameters are those of the last layer:

- Real targets are exact: one Cholesky factor [d, d] for all outputs.
- Classes are in softmax_layer.py, without a limit of size.
- Real targets whose noise is an output are in noise_layer.py, with a limit of size.
"""

import copy

import torch
from torch import Tensor, nn

from nas_evidence.curvature.memory import require_memory
from nas_evidence.data.tensors import select
from nas_evidence.evidence.softmax_layer import LastLayer, LastLayerFormula, LogDensity
from nas_evidence.likelihoods import Likelihood
from nas_evidence.maths.constants import as_constants, free_parameters
from nas_evidence.maths.full_precision import full_precision
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.likelihoods import declared, imported

#: Rows of a forward pass.
_ROWS = 512


def last_layer_of(
    model: nn.Module, inputs: Tensor, prior_precision: Tensor, rows: Tensor | None = None
) -> LastLayer:
    """Return the last linear layer with its inputs.

    The network computes its features in its own dtype, as it was trained: a convolutional one is
    seven times faster in float32, and the evidence differs by 1e-8 of it. The rest is float64.

    Args:
        model: trained; unchanged.
        inputs: [N, ...].
        prior_precision: one per free tensor [G].
        rows: of the inputs, in the order that is wanted; all as they are by default. They are
            selected a few at a time: no second copy of the inputs is made.

    Raises:
        ValueError: for a model whose outputs are not those of its last linear layer, or in which
            that is not free.
        DoesNotFitError: if memory is short.
    """
    own = [*free_parameters(model).values()]
    model = as_constants(copy.deepcopy(model)).eval()
    heads = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not heads:
        raise UserError(
            "no-linear-layer", "the last layer must be linear, but the model has no linear layer"
        )
    head, seen = heads[-1], []
    for name, value in (("weight", head.weight), ("bias", head.bias)):
        if value is not None and not isinstance(value, nn.Parameter):
            raise UserError(
                "last-layer-frozen",
                f"the {name} of the last linear layer has requires_grad=False, but the evidence "
                "of the last layer is that of all its parameters; leave it free, or use two_fold "
                "in `estimators`",
            )
    width = head.in_features + (head.bias is not None)
    n = len(inputs) if rows is None else len(rows)
    if rows is not None and isinstance(inputs, Tensor):  # rows of a file are found on the CPU
        rows = rows.to(inputs.device)
    what = f"the inputs of the last layer, {n} rows of {width}"
    require_memory(what, 3 * 8 * n * width, own[0].device, instead="fewer data")
    handle = head.register_forward_hook(lambda module, args, out: seen.append((args[0], out)))
    features = []
    with full_precision(), torch.no_grad():
        for start in range(0, n, _ROWS):
            part = slice(start, start + _ROWS)
            some = inputs[part] if rows is None else select(inputs, rows[part])[:]
            outputs = model(some.to(own[0].dtype))
            if len(seen) != 1 or seen[0][0].ndim != 2 or not torch.equal(seen[0][1], outputs):
                raise UserError(
                    "last-layer-not-the-output",
                    "the outputs must be those of the last linear layer, called once with inputs "
                    f"[n, d], but {type(model).__name__} computes them otherwise; use two_fold in "
                    "`estimators`",
                )
            features.append(seen.pop()[0].double())
    handle.remove()
    precisions = prior_precision.to(own[0].device, torch.float64)
    of = {id(p): d for p, d in zip(model.parameters(), precisions, strict=True)}
    columns = [(torch.cat(features), head.weight.detach().double(), of[id(head.weight)])]
    if head.bias is not None:
        ones = columns[0][0].new_ones(n, 1)
        columns.append((ones, head.bias.detach().double()[:, None], of[id(head.bias)]))
    phi, weights, deltas = zip(*columns, strict=True)
    precision = [d.expand(w.shape[1]) for d, w in zip(deltas, weights, strict=True)]
    return LastLayer(torch.cat(phi, 1), torch.cat(weights, 1), torch.cat(precision))


def late_given_early(
    layer: LastLayer,
    targets: Tensor,
    n_early: int,
    likelihood: Likelihood,
    *,
    power: float = 1.0,
    seed: int = 0,
) -> LogDensity:
    """Return log q(late data | early data): the first `n_early` data are the early ones.

    Args:
        layer: with the features of all data.
        targets: int64 [N], or float [N, C].
        n_early: number of early data.
        likelihood: with its noise or temperature.
        power: κ, on the log likelihood.
        seed: of the random signs.
    """
    if not 0 < n_early < len(layer.features):
        raise UserError(
            "n-early-out-of-range",
            f"`0 < n_early < n_data` must hold, but got {n_early} of {len(layer.features)}",
        )
    place = declared(likelihood.name).last_layer
    if place is None:
        raise UserError(
            "last-layer-formula",
            f"conditional_evidence has no formula for {likelihood.name} targets; use two_fold in "
            "`estimators`",
        )
    formula: LastLayerFormula = imported(place)
    return formula.density(layer, targets, n_early, likelihood, power=power, seed=seed)
