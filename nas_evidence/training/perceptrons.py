"""The gradient of K perceptrons written out: fewer operators than autograd needs, same numbers.

    h_0 = x         a_l = h_{l-1} W_lᵀ + b_l        h_l = max(0, a_l)       f = a_L
    G_L = ∂L/∂f     G_{l-1} = (G_l W_l) ∘ [h_{l-1} > 0]
    ∂L/∂W_l = G_lᵀ h_{l-1}        ∂L/∂b_l = 1ᵀ G_l

    L  mean nll of a minibatch of one network, times the square of its scale; G_L is
       `Likelihood.descent`: (f − y) / B for real targets, T (softmax(f / T) − y) / B for labels

On few rows a step is a few dozen operators on small tensors, and what autograd does around each
takes longer than the operator itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from nas_evidence.likelihoods import Likelihood

#: Numbers in float32 of a line of memory.
LINE = 16


def aligned(rows: Sequence[Tensor]) -> Tensor:
    """Return rows [P] as a matrix [K, P] whose rows begin at lines of memory.

    Products of a CPU round by where their operands lie in a line: so the last digits of a network
    would depend on its place among others.
    """
    n = len(rows[0])
    found = rows[0].new_zeros(len(rows), -(-n // LINE) * LINE)[:, :n]
    for into, row in zip(found, rows, strict=True):
        into.copy_(row)
    return found


class Perceptrons:
    """K perceptrons whose parameters are rows of a matrix.

    Args:
        theta: parameters [K, P], weights and biases of layer after layer; read at each call.
        shapes: of the parameters.
        likelihood: of the targets.
    """

    def __init__(
        self, theta: Tensor, shapes: Sequence[torch.Size], likelihood: Likelihood
    ) -> None:
        self._likelihood = likelihood
        self._of_rows: dict[int, tuple[list[_Layer], Tensor]] = {}
        self._share: dict[int, Tensor] = {}
        self._gradient = aligned([*torch.zeros_like(theta)])
        self._layers = [
            _Layer(weight, weight.mT, bias[:, None], into, bias_into)
            for (weight, bias), (into, bias_into) in zip(
                _by_layer(theta, shapes), _by_layer(self._gradient, shapes), strict=True
            )
        ]

    def descent(
        self, x: Tensor, y: Tensor, is_real: Tensor | None, scale: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the mean nll of the first n networks in nats [n], and their gradients [n, P].

        The gradients are those of scale² times the mean nll; overwritten by the next call.

        Args:
            x: inputs [n, B, ...].
            y: targets [n, B], or [n, B, C].
            is_real: [n, B], 0 for rows to leave out; None for none.
            scale: noise standard deviations or softmax temperatures [n, 1]; None if all are 1.
        """
        layers, gradient = self._of(x.shape[0])
        last, hidden = len(layers) - 1, [x.flatten(2)]
        for at, layer in enumerate(layers):
            sums = layer.sums(hidden[-1])
            hidden.append(sums.relu_() if at < last else sums)
        shares = self._shares(x.shape[1], is_real)
        nll, back = self._likelihood.descent(hidden.pop(), y, shares, scale)
        if (room := _room(back, back.shape[2])) is not None:
            back = room.copy_(back)
        for at in range(last, -1, -1):
            torch.bmm(back.mT, hidden[at], out=layers[at].into)
            torch.sum(back, 1, out=layers[at].bias_into)
            if at:
                room = _room(back, hidden[at].shape[2])
                below = torch.bmm(back, layers[at].weight, out=room)
                back = torch.ops.aten.threshold_backward(below, hidden[at], 0)
                back = back if room is None else room.copy_(back)
        return nll, gradient

    def _shares(self, size: int, is_real: Tensor | None) -> Tensor:
        """Return the share of each datum in the mean of its network: [], or [n, B, 1]."""
        dtype = self._gradient.dtype
        if is_real is None:
            if size not in self._share:
                self._share[size] = torch.tensor(1 / size, dtype=dtype)
            return self._share[size]
        weights = is_real.to(dtype)
        return (weights / weights.sum(1, keepdim=True))[:, :, None]

    def _of(self, n: int) -> "tuple[list[_Layer], Tensor]":
        """Return layers and gradients of n networks, made once: views cost as operators do."""
        if (found := self._of_rows.get(n)) is None:
            layers = [layer.of(slice(n)) for layer in self._layers]
            found = self._of_rows[n] = layers, self._gradient[:n]
        return found


@dataclass(frozen=True)
class _Layer:
    """Weights [K, O, I] and biases [K, 1, O], and where their gradients go ([K, O] for biases).

    turned  the weights [K, I, O]
    """

    weight: Tensor
    turned: Tensor
    bias: Tensor
    into: Tensor
    bias_into: Tensor

    def sums(self, inputs: Tensor) -> Tensor:
        """Return the sums of the layer [K, B, O] on inputs [K, B, I]."""
        if self.is_vector and inputs.device.type == "cpu":
            # One product with a vector is rounded in another way than several.
            terms = self.bias, inputs, self.turned
            return torch.baddbmm(*(term.expand(2, -1, -1) for term in terms))[:1]
        room = _room(inputs, self.weight.shape[1])
        return torch.baddbmm(self.bias, inputs, self.turned, out=room)

    @cached_property
    def is_vector(self) -> bool:
        """Whether the layer is one of one network with one output."""
        return self.weight.shape[:2] == (1, 1)

    def of(self, rows: slice) -> "_Layer":
        each = self.weight, self.turned, self.bias, self.into, self.bias_into
        return _Layer(*(one[rows] for one in each))


def _by_layer(theta: Tensor, shapes: Sequence[torch.Size]) -> list[tuple[Tensor, Tensor]]:
    """Return weights [K, O, I] and biases [K, O] of each layer, views of [K, P]."""
    parts = torch.split(theta, [shape.numel() for shape in shapes], 1)
    tensors = [part.view(len(theta), *shape) for part, shape in zip(parts, shapes, strict=True)]
    return list(zip(tensors[::2], tensors[1::2], strict=True))


def _room(like: Tensor, width: int) -> Tensor | None:
    """Return room [K, B, width] for a tensor [K, B, ...], the rows of each network at a line.

    See `aligned`. None where a new tensor has them so by itself.
    """
    n, size = len(like), like.shape[1] * width
    if n == 1 or size % LINE == 0:
        return None
    room = like.new_empty(n, -(-size // LINE) * LINE)
    return room[:, :size].view(n, -1, width)
