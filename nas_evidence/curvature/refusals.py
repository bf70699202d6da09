"""What a curvature pass refuses, and what to do about it."""

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from nas_evidence.plumbing.user_error import UserError

#: Modules with rules of their own; all others have their gradients taken one datum at a time.
SUPPORTED = (
    "Linear, Conv1d, Conv2d, Embedding, MultiheadAttention, GroupNorm, LayerNorm, RMSNorm, "
    "InstanceNorm, BatchNorm in evaluation mode, Fixup scale and bias"
)


class UnsupportedLayerError(UserError):
    """A layer that hooks cannot follow; diagonal and dense kinds take most of them."""


class BatchStatisticsError(UnsupportedLayerError):
    """A layer whose output for a datum depends on the other data of its batch."""


def over_the_batch(path: str, module: nn.Module) -> str:
    """Return why a module in its present mode normalises over the batch, with the remedy, or "".

    Batch normalisation in evaluation mode is a fixed scale and shift of each channel.
    """
    if not isinstance(module, _BatchNorm):
        return ""
    if not module.training and module.running_mean is not None:
        return ""
    mode = "in training mode" if module.training else "without running statistics"
    return (
        f"module `{path or '(model)'}` of type {type(module).__name__}, {mode}, normalises over "
        "the batch, so that the likelihood is no product over the data; use nn.GroupNorm or "
        "nn.LayerNorm instead, or keep it in evaluation mode, where its running statistics are "
        "constants"
    )


def refuse_batch_statistics(model: nn.Module) -> None:
    """Do nothing for a network that does not normalise over the batch in its present mode.

    Raises:
        BatchStatisticsError: for one that does; names the module and the remedy.
    """
    for path, module in model.named_modules():
        if why := over_the_batch(path, module):
            raise BatchStatisticsError("batch-statistics", why)


def refuse_embedding_options(path: str, module: nn.Embedding) -> None:
    """Do nothing for an embedding whose gradient is that of a lookup.

    Raises:
        UnsupportedLayerError: for an option that changes weights or gradients.
    """
    asked = [
        name
        for name, value in (
            ("max_norm", module.max_norm is not None),
            ("scale_grad_by_freq", module.scale_grad_by_freq),
            ("sparse", module.sparse),
        )
        if value
    ]
    if asked:
        raise UnsupportedLayerError(
            "embedding-options",
            f"module `{path}` of type Embedding has {' and '.join(asked)} set, which changes the "
            "weights or their gradients; leave it out",
        )


def remedy_for(module: nn.Module) -> str:
    """Return what to use instead of a module that takes or returns several tensors, or "".

    >>> remedy_for(nn.GRU(2, 2)).split(";")[0]
    'write its steps with nn.Linear in a module that returns one tensor'
    """
    if isinstance(module, nn.MultiheadAttention):
        return (
            "call it as attention(h, h, h) with h [n, positions, embed_dim] and without kdim, "
            "vdim, add_bias_kv and add_zero_attn, or write it with nn.Linear and "
            "scaled_dot_product_attention"
        )
    if isinstance(module, nn.RNNBase):
        return "write its steps with nn.Linear in a module that returns one tensor"
    return "give it one tensor [n, ...] and let it return one"
