"""Whether the outputs of a network for a datum are a function of that datum, tried on a few rows.

    f(x₁ … x_n)_i = f(x_i)     the rows together, together again, and each alone

A likelihood is a product over the data only then. Mixing over the batch, random numbers in
evaluation mode and a forward that writes into its input are refused, each with its remedy.
"""

import math
import random
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from nas_evidence.plumbing.no_memory import is_memory_full
from nas_evidence.plumbing.user_error import UserError

#: Rounding of float32, relative to the largest output.
_ROUNDING = 1e-4
#: Rows that are tried together and alone.
_ROWS = 3
#: Rows on which the rules of layers are compared with autograd, at most; and the elements of
#: their gradients, at most.
_MOST_ROWS, _ELEMENTS = 64, 1 << 24
#: Modules of torch that treat each datum by itself, whatever their options.
_SAFE = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Embedding, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm,
    nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Softplus, nn.Identity,
    nn.Dropout, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d,
)  # fmt: skip


def is_trusted(model: nn.Module) -> bool:
    """Tell whether a network cannot but treat each datum by itself, and leaves its input alone.

    >>> is_trusted(nn.Sequential(nn.Flatten(), nn.Linear(2, 2))), is_trusted(nn.Softmax(0))
    (True, False)
    """
    return all(map(_is_trusted, model.modules()))


def _is_trusted(module: nn.Module) -> bool:
    hooks = ("_forward_hooks", "_forward_pre_hooks")
    if any(getattr(module, name, True) for name in hooks) or "forward" in vars(module):
        return False
    if type(module).__module__.startswith("nas_evidence.models.") or type(module) is nn.Sequential:
        return True
    if type(module) is nn.Flatten:
        return module.start_dim == 1
    return type(module) in _SAFE and not getattr(module, "inplace", False)


def rows_to_try(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return a few rows of all data [k, ...], on which the layers of a model are tried.

    Of a network that is not trusted up to 64 rows are taken: weights that some data do not use,
    behind zero rows, empty texts or a branch, must be seen. The draw depends on the number of rows
    alone; the first are those with the most entries that are not zero.
    """
    n_parameters = sum(p.numel() for p in model.parameters())
    most = 2 if is_trusted(model) else max(4, min(_MOST_ROWS, _ELEMENTS // max(1, n_parameters)))
    drawn = random.Random(len(inputs)).sample(range(len(inputs)), min(len(inputs), most))
    rows = torch.cat([inputs[row : row + 1] for row in drawn]).detach()
    if most == 2 or rows.is_cuda:
        return rows
    filled = rows.flatten(1).count_nonzero(1) if rows.ndim > 1 else rows != 0
    return rows[filled.argsort(descending=True, stable=True)]


def check_rows(model: nn.Module, rows: Tensor) -> Tensor:
    """Return the outputs [n, C] for rows [n, ...], the first of which are tried alone.

    The caller has put the model into evaluation mode.

    Raises:
        ValueError: if the output for a datum depends on the others of its batch, or differs when
            the model is called again, or the model writes into its input or fails on one datum.
    """
    with torch.no_grad():
        given = rows.clone()
        outputs = checked_outputs(model(given[:]), len(rows))  # a view, as of a batch of the data
        if given._version or not torch.equal(given, rows):
            raise UserError(
                "model-writes-into-its-input",
                "the model writes into its input, so that the data change in each pass; let "
                "`forward` begin with a copy, like `x = x - mean` in place of `x -= mean`, and "
                "without inplace=True in its first layer",
            )
        if gap := _gap(model, rows, outputs, checked_outputs(model(rows.clone()), len(rows))):
            raise UserError(
                "model-random-in-evaluation",
                f"the model gives other outputs, by {gap:.3g}, when it is called again on the "
                "same data in evaluation mode, so that no likelihood is defined: it draws random "
                "numbers or keeps a state. Use nn.Dropout, or F.dropout with "
                "training=self.training, and buffers that only training changes",
            )
        few, together = rows[:_ROWS], outputs[:_ROWS]
        if len(rows) == 1:  # one is always alone
            few = torch.cat([rows, rows])
            together = checked_outputs(model(few.clone()), 2)
        if gap := _gap(model, few, together, _alone(model, few)):
            raise _dependent(f", by {gap:.3g}")
    return outputs


def _dependent(how: str) -> UserError:
    return UserError(
        "data-of-batch-depend",
        f"the output for a datum depends on the other data of its batch{how}, in evaluation mode "
        "too: so the likelihood is no product over the data. Use fixed statistics instead of "
        "those of the batch, and let softmax, sums and normalisation name an axis other than the "
        "first",
    )


def _alone(model: nn.Module, few: Tensor) -> Tensor:
    try:
        return torch.cat([checked_outputs(model(row[None].clone()), 1) for row in few])
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        if is_memory_full(error):
            raise
        if "more than 1 value per channel" in str(error):  # batch normalisation
            raise _dependent("") from error
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        first = kind + " ".join(str(error).strip().splitlines()[:1])
        raise UserError(
            "model-fails-on-one-row",
            f"the model fails on a single datum, inputs {[1, *few.shape[1:]]}, though not on "
            f"several: {first}; a batch may have any length. Name the axis in squeeze(dim), and "
            "normalise with fixed statistics",
        ) from error


def _gap(model: nn.Module, few: Tensor, one: Tensor, other: Tensor) -> float:
    """Return the largest difference of outputs beyond rounding, 0 if there is none."""
    one, other = one.double(), other.double()
    same = (one == other) | (one.isnan() & other.isnan())
    gap = float(torch.where(same, 0.0, (one - other).abs()).nan_to_num(nan=math.inf).max())
    scale = float(torch.where(one.isfinite(), one.abs(), 0.0).max())
    if gap <= _ROUNDING * scale + 1e-7:
        return 0.0
    return gap if gap > tolerance_of(model, few) * scale + 1e-7 else 0.0


def tolerance_of(model: nn.Module, inputs: Tensor) -> float:
    """Return how far outputs may differ by rounding, relative to the largest of them.

    It is that of the coarsest floating point of a pass, which `torch.autocast` in `forward` sets.
    """
    with torch.no_grad(), _Coarsest() as seen:  # type: ignore[no-untyped-call]
        model(inputs.clone())
    return min(0.1, max(_ROUNDING, 1e3 * float(seen.eps)))


class _Coarsest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the largest rounding unit of the floating-point results of operators."""

    eps = 0.0

    def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        if isinstance(found, Tensor) and found.is_floating_point():
            self.eps = max(self.eps, torch.finfo(found.dtype).eps)
        return found


def checked_outputs(outputs: object, n_rows: int) -> Tensor:
    """Return the outputs of a model if they are [n, C].

    Raises:
        ValueError: saying what they are.
    """
    if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != n_rows:
        got = list(outputs.shape) if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
        raise UserError(
            "model-output-shape",
            f"the model must return a tensor of shape [n, C], but returned {got} for n = {n_rows}"
            f"{_remedy(outputs, n_rows)}",
        )
    return outputs


def _remedy(outputs: object, n_rows: int) -> str:
    """Return what to do about outputs of another shape."""
    if isinstance(outputs, Tensor) and outputs.ndim > 2 and len(outputs) == n_rows:
        return (
            ": one row of outputs for each datum. For one label a sequence or picture, pool the "
            "positions; for a label at each position, make each position a datum, with what it "
            "may see as its input; real targets of all positions are outputs.flatten(1)"
        )
    if isinstance(outputs, Tensor) and outputs.ndim == 1:
        return "; keep the axis of the outputs, without squeeze()"
    if isinstance(outputs, tuple | list | dict):
        return "; let `forward` return the tensor of outputs alone, such as `.logits`"
    return ""
