"""Gradients of each datum in the parameters of any module, by autograd.

    j_n = (∂ z_n / ∂θ)ᵀ g_n      z_n the output of the module for datum n alone, g_n given

All data at once where `torch.func.vmap` can batch the module's operations. Otherwise, as with
control flow that depends on the values, one after another: the same numbers, slower.
"""

import warnings
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap

from nas_evidence.maths.at_once import elements_at_once
from nas_evidence.maths.functional_call import functional_call
from nas_evidence.maths.vector_jacobian import vector_jacobian
from nas_evidence.plumbing.no_memory import is_memory_full

#: On a CPU, maximum number of elements of the gradients formed at a time.
_ELEMENTS = 1 << 22


def chunks(parameters: Mapping[str, Tensor], n_data: int) -> Iterator[slice]:
    """Yield the rows of a few data at a time, so that their gradients fit."""
    first = next(iter(parameters.values()))
    most = elements_at_once(_ELEMENTS, first.device, first.dtype)
    step = max(1, most // sum(p.numel() for p in parameters.values()))
    return (slice(start, start + step) for start in range(0, n_data, step))


def gradients(
    module: nn.Module, parameters: Mapping[str, Tensor], a: Tensor, g: Tensor, *, batched: bool
) -> tuple[Tensor, ...]:
    """Return the gradients of each datum [n, size] in each parameter.

    Args:
        module: maps a [n, ...] to outputs [n, ...], each datum by itself.
        parameters: by name within the module; those wanted.
        a: inputs [n, ...].
        g: gradients at the outputs [n, ...].
        batched: whether to use vmap.
    """
    return (_batched if batched else _one_by_one)(module, parameters, a, g)


def can_batch(module: nn.Module, parameters: Mapping[str, Tensor], a: Tensor, g: Tensor) -> bool:
    """Tell whether vmap can process the module, with the same gradients as one by one."""
    try:
        found = _batched(module, parameters, a, g)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        if is_memory_full(error):
            raise
        return False  # an operation without a batching rule, or control flow by values
    expected = _one_by_one(module, parameters, a, g)
    largest = max(float(one.abs().max()) for one in expected)
    gaps = (float((f - e).abs().max()) for f, e in zip(found, expected, strict=True))
    return all(gap <= 1e-3 * largest for gap in gaps)


def _batched(
    module: nn.Module, parameters: Mapping[str, Tensor], a: Tensor, g: Tensor
) -> tuple[Tensor, ...]:
    values = {name: p.detach() for name, p in parameters.items()}

    def of_one(datum: Tensor, column: Tensor) -> dict[str, Tensor]:
        def outputs(given: dict[str, Tensor]) -> Tensor:
            return functional_call(module, given, datum[None])[0]

        pull = vjp(outputs, values)[1]
        found: dict[str, Tensor] = pull(column)[0]
        return found

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        found = vmap(of_one)(a, g)
    return tuple(found[name].detach().flatten(1) for name in parameters)


def _one_by_one(
    module: nn.Module, parameters: Mapping[str, Tensor], a: Tensor, g: Tensor
) -> tuple[Tensor, ...]:
    values = {name: p.detach().requires_grad_() for name, p in parameters.items()}
    wanted = list(values.values())
    rows = []
    for datum, column in zip(a, g, strict=True):
        with torch.enable_grad():
            outputs = functional_call(module, values, datum[None])
        found = vector_jacobian(outputs, wanted, column[None], materialize_grads=True)
        rows.append([gradient.flatten() for gradient in found])
    return tuple(torch.stack(column) for column in zip(*rows, strict=True))
