"""Variance of the outputs of a linearised network under a posterior with a diagonal covariance.

    v_nc = Σ_p J_ncp² Σ_pp        J_n = ∂f_n / ∂θ  [C, P]

Each output sends one column back through the network. If a layer has a single position, the
gradient is s aᵀ and its square (s²)(a²)ᵀ, so no gradient of a datum is formed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from nas_evidence.curvature.capture import Collector, undisturbed
from nas_evidence.curvature.layers import Layer, WeightLayer
from nas_evidence.curvature.likelihood import Gaussian
from nas_evidence.curvature.sweep import Sweep


@dataclass
class _Variances(Collector):
    """A collector of variances, one output after another."""

    covariance: Mapping[str, Tensor]
    column: Tensor | None = None  # of the current output [n]
    columns: list[Tensor] = field(default_factory=list)

    def receive(self, layer: Layer, a: Tensor | None, s: Tensor, last: bool) -> None:
        """Add the contribution of one layer's parameters."""
        assert a is not None
        parts = [self.covariance[name].to(s) for name in layer.names]
        if isinstance(layer, WeightLayer) and s.ndim == 2:
            weight = parts[0].view_as(layer.module.weight)
            found = ((s.square() @ weight) * a.square()).sum(1)
            found = found + s.square() @ parts[1] if len(parts) > 1 else found
        else:
            pairs = zip(layer.gradients(a, s), parts, strict=True)
            found = torch.stack([g.square() @ part for g, part in pairs]).sum(0)
        self.column = found if self.column is None else self.column + found

    def end_column(self) -> None:
        """Start the next output."""
        assert self.column is not None
        self.columns.append(self.column)
        self.column = None


def output_variances(
    model: nn.Module, inputs: Tensor, covariance: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the outputs and their variances [n, C] each, leaving the model as it was.

    Args:
        model: of supported layers, see `capture`.
        inputs: [n, ...], all at once.
        covariance: variance of each parameter, by tensor, > 0 [size].

    Raises:
        ValueError: for a layer that is not supported.
    """
    with undisturbed(model):
        with torch.no_grad():
            outputs = model(inputs)
        # Under unit Gaussian noise the roots of the output Hessian are the outputs themselves.
        sweep = Sweep(
            model, inputs, torch.zeros_like(outputs), Gaussian(1.0), "exact", len(inputs), None
        )
        sweep.prepare(any_layer=False)
        collector = _Variances(covariance)
        sweep.run(collector)
    return outputs, torch.stack(collector.columns, dim=1)
