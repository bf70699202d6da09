"""Self-attention as a linear layer, attention without parameters, and another linear layer.

    q, k, v = W_in a + b_in        z = W_out (softmax(q kᵀ / √d + mask) v) + b_out

`nn.MultiheadAttention` uses its weights inside one operation, where no hook sees them. During a
pass its forward is replaced by this one: W_in is then a linear layer on a sequence, with the same
curvature as `nn.Linear(embed, 3 embed)`. The outputs are compared with those of the original.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nas_evidence.curvature.refusals import remedy_for
from nas_evidence.plumbing.user_error import UserError


class NotSelfAttentionError(UserError):
    """Queries, keys and values are different tensors, or no batch."""


def is_plain(module: nn.MultiheadAttention) -> bool:
    """Tell whether queries, keys and values come from one packed weight and nothing is added."""
    packed = module.in_proj_weight is not None and module.bias_k is None
    return packed and not module.add_zero_attn and type(module) is nn.MultiheadAttention


def input_projection(module: nn.MultiheadAttention) -> nn.Linear:
    """Return a linear layer that shares the weight and the bias of the input projection."""
    weight = module.in_proj_weight
    with torch.device("meta"):
        layer = nn.Linear(weight.shape[1], len(weight), bias=module.in_proj_bias is not None)
    layer.weight = weight
    if "in_proj_bias" in module._buffers:  # a constant
        del layer.bias
        layer.register_buffer("bias", module.in_proj_bias)
    elif module.in_proj_bias is not None:
        layer.bias = module.in_proj_bias
    return layer


def unpacked(
    path: str, module: nn.MultiheadAttention, projection: nn.Linear
) -> Callable[..., Any]:
    """Return a forward in which both projections are calls of linear layers."""
    return partial(_forward, path, module, projection)


def _forward(
    path: str,
    module: nn.MultiheadAttention,
    projection: nn.Linear,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    if key is not query or value is not query or query.ndim != 3:
        raise NotSelfAttentionError(
            "not-self-attention",
            f"module `{path}` of type MultiheadAttention has queries, keys and values of its own; "
            f"{remedy_for(module)}",
        )
    a = query if module.batch_first else query.transpose(0, 1)
    n, length, width = a.shape
    parts = projection(a).view(n, length, 3, module.num_heads, -1).permute(2, 0, 3, 1, 4)
    q, k, v = parts.unbind()  # [n, heads, T, d] each
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if attn_mask is not None:
        mask = _additive(attn_mask, scores)
        scores = scores + (mask if mask.ndim == 2 else mask.view(n, -1, length, length))
    if key_padding_mask is not None:
        scores = scores + _additive(key_padding_mask, scores)[:, None, None, :]
    weights = scores.softmax(-1)
    mixed = (weights @ v).transpose(1, 2).reshape(n, length, width)
    out = module.out_proj(mixed)
    out = out if module.batch_first else out.transpose(0, 1)
    if not need_weights:
        return out, None
    return out, weights.mean(1) if average_attn_weights else weights


def _additive(mask: Tensor, scores: Tensor) -> Tensor:
    """Return a mask as numbers to add: -inf where a mask of booleans is true."""
    if mask.dtype != torch.bool:
        return mask.to(scores.dtype)
    return torch.zeros_like(mask, dtype=scores.dtype).masked_fill_(mask, -math.inf)
