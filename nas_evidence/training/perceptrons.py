"""The gradient of K perceptrons written out: fewer operators than autograd needs, same numbers.

    h_0 = x         a_l = h_{l-1} W_lᵀ + b_l        h_l = max(0, a_l)       f = a_L
    G_L = ∂L/∂f     G_{l-1} = (G_l W_l) ∘ [h_{l-1} > 0]
    ∂L/∂W_l = G_lᵀ h_{l-1}        ∂L/∂b_l = 1ᵀ G_l

    L  mean nll of a minibatch of one network, times σ² or T²: G_L = (f − y) / B for real targets,
       T (softmax(f / T) − y) / B for labels as rows of 0 and 1, that of `Heteroscedastic` / B for
       real targets with a noise of each datum

On few rows a step is a few dozen operators on small tensors, and what autograd does around each
takes longer than the operator itself.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nas_evidence.likelihoods.heteroscedastic import Heteroscedastic


class Perceptrons:
    """K perceptrons whose parameters are rows of a matrix.

    Args:
        theta: parameters [K, P], weights and biases of layer after layer; read at each call.
        shapes: of the parameters.
        pairs: whether there are two outputs for each real target, see `Heteroscedastic`.
    """

    def __init__(
        self, theta: Tensor, shapes: Sequence[torch.Size], *, pairs: bool = False
    ) -> None:
        self._of_reals = _pairs if pairs else _reals
        self._gradient = torch.zeros_like(theta)
        self._layers = [
            _Layer(weight, bias[:, None], into, bias_into)
            for (weight, bias), (into, bias_into) in zip(
                _by_layer(theta, shapes), _by_layer(self._gradient, shapes), strict=True
            )
        ]

    @torch.no_grad()
    def descent(
        self, x: Tensor, y: Tensor, is_real: Tensor | None, spread: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the mean nll of the first n networks in nats [n], and their gradients [n, P].

        The gradients are those of σ² or T² times the mean nll; overwritten by the next call.

        Args:
            x: inputs [n, B, ...].
            y: labels [n, B], or real targets [n, B, C].
            is_real: [n, B], 0 for rows to leave out; None for none.
            spread: noise standard deviations or softmax temperatures [n]; None if all are 1.
        """
        n, last = len(x), len(self._layers) - 1
        layers = [layer.first(n) for layer in self._layers]
        hidden = [x.flatten(2)]
        for at, layer in enumerate(layers):
            sums = torch.baddbmm(layer.bias, hidden[-1], layer.weight.mT)
            hidden.append(sums.relu_() if at < last else sums)
        shares = _shares(hidden[-1], is_real)
        of_outputs = _labels if y.ndim == 2 else self._of_reals
        nll, back = of_outputs(hidden.pop(), y, shares, spread)
        for at in range(last, -1, -1):
            torch.bmm(back.mT, hidden[at], out=layers[at].into)
            torch.sum(back, 1, out=layers[at].bias_into)
            if at:
                below = torch.bmm(back, layers[at].weight)
                back = torch.ops.aten.threshold_backward(below, hidden[at], 0)
        return nll, self._gradient[:n]


@dataclass(frozen=True)
class _Layer:
    """Weights [K, O, I] and biases [K, 1, O], and where their gradients go ([K, O] for biases)."""

    weight: Tensor
    bias: Tensor
    into: Tensor
    bias_into: Tensor

    def first(self, n: int) -> "_Layer":
        if n == len(self.weight):
            return self
        return _Layer(self.weight[:n], self.bias[:n], self.into[:n], self.bias_into[:n])


def _by_layer(theta: Tensor, shapes: Sequence[torch.Size]) -> list[tuple[Tensor, Tensor]]:
    """Return weights [K, O, I] and biases [K, O] of each layer, views of [K, P]."""
    parts = torch.split(theta, [shape.numel() for shape in shapes], 1)
    tensors = [part.view(len(theta), *shape) for part, shape in zip(parts, shapes, strict=True)]
    return list(zip(tensors[::2], tensors[1::2], strict=True))


def _shares(outputs: Tensor, is_real: Tensor | None) -> Tensor | float:
    """Return the share of each datum in the mean of its network: one number, or [n, B, 1]."""
    if is_real is None:
        return 1 / outputs.shape[1]
    weights = is_real.to(outputs.dtype)
    return (weights / weights.sum(1, keepdim=True))[:, :, None]


def _labels(
    outputs: Tensor, y: Tensor, shares: Tensor | float, spread: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the mean nll [n] and G_L [n, B, C] for labels."""
    units = None if spread is None else spread[:, None, None]
    logs = (outputs if units is None else outputs / units).log_softmax(-1)
    index = y[:, :, None]
    nll = -(logs.gather(-1, index) * shares).sum((1, 2))
    back = logs.exp_().scatter_add_(-1, index, logs.new_full((1, 1, 1), -1).expand(index.shape))
    back.mul_(shares)
    return nll, back if units is None else back.mul_(units)


def _reals(
    outputs: Tensor, y: Tensor, shares: Tensor | float, spread: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the mean nll [n] and G_L [n, B, C] for real targets."""
    residuals = outputs - y
    back = residuals * shares
    half_squares = 0.5 * (residuals * back).sum((1, 2))
    variance = torch.ones_like(half_squares) if spread is None else spread.square()
    constant = 0.5 * outputs.shape[-1] * (2 * math.pi * variance).log()
    return half_squares / variance + constant, back


def _pairs(
    outputs: Tensor, y: Tensor, shares: Tensor | float, spread: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the mean nll [n] and G_L [n, B, 2 C] for real targets with a noise of each datum."""
    nll, slope = Heteroscedastic().nll_and_slope(outputs, y)
    return (nll[:, :, None] * shares).sum((1, 2)), slope.neg_().mul_(shares)
