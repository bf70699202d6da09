"""What curvature needs from a layer: per-datum gradients and Kronecker factors.

Every weight layer is converted to one layout, in which Linear, Conv1d and Conv2d are the same:

    a  input, one column per position    [n, groups, d_in, T]     z = W a + b
    g  gradient of r·f at the output z   [n, groups, d_out, T]    r  a vector of outputs

For Linear on [n, d] T = 1, on [n, T, d] the middle axis is T; for convolutions a holds the patches
(order in, kh, kw, which is `weight.flatten(1)`, padding included) and T = |T| is the number of
output positions (Grosse & Martens 2016; "expand" of Eschenhagen et al. 2023). The gradient of one
datum is Σ_t g_t a_tᵀ; only its square or its sum over the data is ever kept. A depthwise
convolution is one with as many groups as channels. For self-attention see `attention`, for
embeddings `embedding`.

Layers with few parameters (Fixup scalars, normalisation) compute it directly. For any other module
with parameters of its own autograd does, from its inputs and output gradients (`vmapped`). A model
that hooks cannot follow is treated as one layer.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from nas_evidence.curvature.attention import input_projection, is_plain
from nas_evidence.curvature.embedding import EmbeddingLayer
from nas_evidence.curvature.patches import Convolution, patches, with_padding
from nas_evidence.curvature.refusals import refuse_embedding_options
from nas_evidence.curvature.row_grams import input_gram, rows_apply
from nas_evidence.curvature.squares import weight_squares
from nas_evidence.curvature.vmapped import can_batch, chunks, gradients
from nas_evidence.maths.at_once import elements_at_once

#: On a CPU, maximum number of elements of a temporary array: the memory beyond the activations.
CHUNK_ELEMENTS = 1 << 22
#: Output channels below which a product for each datum is faster than one for all, on a CPU.
_FEW_CHANNELS = 16


def _at_once(a: Tensor) -> int:
    return elements_at_once(CHUNK_ELEMENTS, a.device, a.dtype)


@dataclass(frozen=True)
class SmallLayer:
    """A layer whose per-datum gradients are small enough to be formed."""

    path: str
    module: nn.Module
    names: tuple[str, ...]

    def gradients(self, a: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        """Return the gradient of each datum [n, size], for each parameter tensor."""
        if isinstance(self.module, nn.GroupNorm):
            groups = self.module.num_groups
            normed = functional.group_norm(a, groups, eps=self.module.eps)
            return self._existing((g * normed).flatten(2).sum(2), g.flatten(2).sum(2))
        if isinstance(self.module, nn.InstanceNorm1d | nn.InstanceNorm2d):
            normed = functional.instance_norm(a, eps=self.module.eps)
            return self._existing((g * normed).flatten(2).sum(2), g.flatten(2).sum(2))
        if isinstance(self.module, nn.BatchNorm1d | nn.BatchNorm2d):  # in evaluation mode
            mean, variance = self.module.running_mean, self.module.running_var
            normed = functional.batch_norm(a, mean, variance, eps=self.module.eps)
            flat = (*g.shape[:2], -1)  # of vectors one position
            return self._existing((g * normed).reshape(flat).sum(2), g.reshape(flat).sum(2))
        if isinstance(self.module, nn.LayerNorm | nn.RMSNorm):
            shape = list(self.module.normalized_shape)
            if isinstance(self.module, nn.LayerNorm):
                normed = functional.layer_norm(a, shape, eps=self.module.eps)
            else:
                normed = functional.rms_norm(a, shape, eps=self.module.eps)
            assert self.module.weight is not None
            flat = (len(g), -1, self.module.weight.numel())
            return self._existing((g * normed).reshape(flat).sum(1), g.reshape(flat).sum(1))
        if self.module.elementwise_affine_scalar == "scale":
            return ((g * a).sum(tuple(range(1, g.ndim)))[:, None],)
        return (g.sum(tuple(range(1, g.ndim)))[:, None],)

    def _existing(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        return (weight, bias)[: len(self.names)]


@dataclass(frozen=True)
class WeightLayer:
    """Linear, Conv1d or Conv2d: a weight and an optional bias.

    attention  the module that uses a Linear's weight in its own operation, see `attention`
    """

    path: str
    module: nn.Linear | Convolution
    names: tuple[str, ...]
    attention: nn.MultiheadAttention | None = None

    @property
    def groups(self) -> int:
        """Number of convolution groups, 1 for Linear."""
        return 1 if isinstance(self.module, nn.Linear) else self.module.groups

    def positions(self, a: Tensor) -> Tensor:
        """Return the input as columns [n, groups, d_in, T]."""
        if isinstance(self.module, nn.Linear):
            return (a[:, :, None] if a.ndim == 2 else a.flatten(1, -2).mT)[:, None]
        seen = patches(self.module, a)  # [n, c_in, kh, kw, h, w]
        return seen.reshape(len(a), self.groups, -1, seen.shape[4] * seen.shape[5])

    def at_positions(self, g: Tensor) -> Tensor:
        """Return the output gradient as columns [n, groups, d_out, T]."""
        if isinstance(self.module, nn.Linear):
            return (g[:, :, None] if g.ndim == 2 else g.flatten(1, -2).mT)[:, None]
        columns = g.flatten(2)
        return columns.reshape(len(g), self.groups, -1, columns.shape[2])

    def chunks(self, a: Tensor, g: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield columns of a and g in chunks of data small enough to form gradients."""
        weight = self.module.weight
        patch = self.groups * weight[0].numel() * self.n_positions(g)
        step = max(1, _at_once(a) // max(patch, weight.numel(), 1))
        for start in range(0, len(a), step):
            rows = slice(start, start + step)
            yield self.positions(a[rows]), self.at_positions(g[rows])

    def gradients(self, a: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        """Return the gradient of each datum [n, size], for each parameter tensor."""
        weight = (self.at_positions(g) @ self.positions(a).mT).flatten(1)
        return (weight, self.gradient_totals(g))[: len(self.names)]

    def outer_squares(self, a: Tensor, s_squared: Tensor) -> tuple[Tensor, ...]:
        """Return `squares` for a single position, where (g aᵀ)² = s² (a²)ᵀ."""
        return (s_squared.mT @ a.square(), s_squared.sum(0))[: len(self.names)]

    def squares(self, a: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        """Return the sum over data of squared gradients [size], for each parameter tensor."""
        weight = weight_squares(self.module, a, g)
        if len(self.names) == 1:
            return (weight,)
        return weight, self.gradient_totals(g).square().sum(0)

    def input_gram(self, a: Tensor) -> Tensor | None:
        """Return SA [groups, d_in, d_in] if there is a faster way than `input_rows`."""
        if isinstance(self.module, nn.Linear) or not rows_apply(self.module, a):
            return None
        return input_gram(self.module, with_padding(self.module, a))

    def input_rows(self, a: Tensor) -> Iterator[Tensor]:
        """Yield rows [groups, m, d_in], one per datum and position, whose Gram matrix is SA."""
        if isinstance(self.module, nn.Linear):
            yield a.reshape(1, -1, a.shape[-1])
            return
        width = self.module.weight[0].numel()
        step = max(1, _at_once(a) // max(1, a[0].numel() * self.module.weight[0, 0].numel()))
        for start in range(0, len(a), step):
            # Data go last, so that one large product sums over data and positions at once.
            seen = patches(self.module, a[start : start + step]).permute(1, 2, 3, 0, 4, 5)
            yield seen.reshape(self.groups, width, -1).mT

    def mean_rows(self, a: Tensor) -> Tensor:
        """Return the mean over positions of the input columns, as rows [groups, n, d_in]."""
        step = max(1, _at_once(a) // max(1, a[0].numel() * self.module.weight[0, 0].numel()))
        parts = [self.positions(a[i : i + step]).mean(3) for i in range(0, len(a), step)]
        return torch.cat(parts).transpose(0, 1)

    def total_rows(self, g: Tensor) -> Tensor:
        """Return Σ_t g as rows [groups, n, d_out]."""
        return self.at_positions(g).sum(3).transpose(0, 1)

    def gradient_rows(self, g: Tensor) -> Tensor:
        """Return rows [groups, m, d_out] whose Gram matrix is SB."""
        if isinstance(self.module, nn.Linear):
            return g.reshape(1, -1, g.shape[-1])
        # One row per position: the product is up to twice as fast as with one row per channel.
        by_position = self.at_positions(g).permute(1, 0, 3, 2)
        return by_position.reshape(self.groups, -1, by_position.shape[3])

    def gradient_gram(self, g: Tensor) -> Tensor | None:
        """Return SB [groups, d_out, d_out] if there is a faster way than `gradient_rows`."""
        few = self.module.weight.shape[0] // self.groups < _FEW_CHANNELS
        if isinstance(self.module, nn.Linear) or not few or g.device.type != "cpu":
            return None
        columns = self.at_positions(g)  # as laid out in memory, without a copy
        return (columns @ columns.mT).sum(0)

    def gradient_totals(self, g: Tensor) -> Tensor:
        """Return Σ_t g, the bias gradient of each datum [n, d_out of all groups]."""
        return self.at_positions(g).sum(3).flatten(1)

    def n_positions(self, g: Tensor) -> int:
        """Return |T|, the number of positions of an output gradient."""
        return g[0].numel() // self.module.weight.shape[0]


@dataclass(frozen=True)
class AutogradLayer:
    """Any module with parameters of its own, the inner ones' not counted; a is its only input."""

    path: str
    module: nn.Module
    names: tuple[str, ...]
    known: list[bool] = field(default_factory=list)  # whether vmap can batch it, once tried

    def gradients(self, a: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        """Return the gradient of each datum [n, size], for each parameter tensor."""
        parts = list(self._parts(a, g))
        return tuple(torch.cat(column) for column in zip(*parts, strict=True))

    def squares(self, a: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        """Return the sum over data of squared gradients [size], for each parameter tensor."""
        parts = [[one.square().sum(0) for one in found] for found in self._parts(a, g)]
        return tuple(torch.stack(column).sum(0) for column in zip(*parts, strict=True))

    def _parts(self, a: Tensor, g: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Yield the gradients [rows, size] of a few data at a time."""
        own = dict(self.module.named_parameters(recurse=False))
        if not self.known:
            self.known.append(can_batch(self.module, own, a[:2], g[:2]))
        for rows in chunks(own, len(a)):
            yield gradients(self.module, own, a[rows], g[rows], batched=self.known[0])


@dataclass(frozen=True)
class WholeModel:
    """A model as one layer; for g, `per_datum` passes it the gradients of each datum."""

    path: str
    module: nn.Module
    names: tuple[str, ...]
    batched: bool = False

    def gradients(self, a: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        """Return the parts of g [n, P]: per-datum gradients [n, size] of each parameter tensor."""
        return torch.split(g, [p.numel() for p in self.module.parameters()], dim=1)


Layer = WeightLayer | EmbeddingLayer | SmallLayer | AutogradLayer | WholeModel

_NORMS = (
    nn.GroupNorm | nn.LayerNorm | nn.RMSNorm | nn.InstanceNorm1d | nn.InstanceNorm2d
    | nn.BatchNorm1d | nn.BatchNorm2d
)  # fmt: skip


def is_perceptron(model: nn.Module) -> bool:
    """Tell whether a network is layers with biases, ReLU between them, on the flattened inputs."""
    if type(model) is not nn.Sequential:
        return False
    parts = [part for part in model.children() if type(part) is not nn.Flatten]
    layers, between = parts[::2], parts[1::2]
    return (
        len(parts) % 2 == 1
        and all(type(part) is nn.Linear and part.bias is not None for part in layers)
        and all(type(part) is nn.ReLU for part in between)
        and len(list(model.parameters())) == 2 * len(layers)  # no layer twice
        and not any(map(has_hooks, model.modules()))
    )


def _is_batch_norm(module: nn.Module) -> bool:
    """Tell whether a module is batch normalisation with statistics that can be constants."""
    return type(module) in (nn.BatchNorm1d, nn.BatchNorm2d) and module.running_mean is not None


def has_hooks(module: nn.Module) -> bool:
    """Return whether a forward pass may do more than the module; True where it cannot be told."""
    hooks = ("_forward_hooks", "_forward_pre_hooks")
    return any(getattr(module, name, True) for name in hooks)


def layer_of(path: str, module: nn.Module, names: tuple[str, ...]) -> Layer:
    """Return the layer of a module with the parameters `names` of its own.

    Raises:
        UnsupportedLayerError: for options of an embedding that change its gradients; with the
            remedy.
    """
    own = [name.rpartition(".")[2] for name in names]
    if own[0] == "weight" and isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
        return WeightLayer(path, module, names)
    if (
        own[0] == "in_proj_weight"
        and isinstance(module, nn.MultiheadAttention)
        and is_plain(module)
    ):
        return WeightLayer(path, input_projection(module), names, module)
    if isinstance(module, nn.Embedding):
        refuse_embedding_options(path, module)
        return EmbeddingLayer(path, module, names)
    scalar = getattr(module, "elementwise_affine_scalar", None)
    of_datum = _is_batch_norm(module) or not getattr(module, "track_running_stats", False)
    if scalar in ("scale", "bias") or (
        own[0] == "weight" and isinstance(module, _NORMS) and of_datum
    ):
        return SmallLayer(path, module, names)
    return AutogradLayer(path, module, names)
