"""The Jacobian of a network's outputs on some data, factored by layer.

    J_l [N C, P_l]  derivatives of the C outputs of N data in the parameters of tensor l, rows
                    ordered by datum, then by output

The weight of a linear layer with input a_n and output gradients s_nc has rows s_nc a_nᵀ, so that

    J_l J_lᵀ [(n,c), (m,d)] = (a_nᵀ a_m) (s_ncᵀ s_md)

is a product of two small Gram matrices: P_l does not enter. Other tensors store their rows.
Everything is float64, whatever the dtype of the network.
"""

import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from nas_evidence.curvature.batch_rows import rows_at_once
from nas_evidence.curvature.capture import Collector, refuse_frozen, undisturbed
from nas_evidence.curvature.layers import Layer, WeightLayer
from nas_evidence.curvature.likelihood import Gaussian
from nas_evidence.curvature.memory import require_memory
from nas_evidence.curvature.sweep import Sweep


@dataclass(frozen=True)
class RowsPart:
    """The rows of one tensor [N, C, size]."""

    values: Tensor

    def rows(self) -> Tensor:
        """Return J_l [N C, size]."""
        return self.values.flatten(0, 1)


@dataclass(frozen=True)
class OuterPart:
    """The weight of a linear layer: rows s_nc a_nᵀ; s [N, C, d_out], a [N, d_in]."""

    s: Tensor
    a: Tensor

    def rows(self) -> Tensor:
        """Return J_l [N C, d_out d_in]."""
        return torch.einsum("nco,ni->ncoi", self.s, self.a).flatten(2).flatten(0, 1)


Part = RowsPart | OuterPart


@dataclass(frozen=True)
class Jacobian:
    """The outputs of a network [N, C], the names and sizes of tensors, and a part for each."""

    outputs: Tensor
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    parts: tuple[Part, ...]

    @property
    def n_rows(self) -> int:
        """N C."""
        return self.outputs.numel()

    @property
    def n_parameters(self) -> int:
        """Number of parameters of the tensors."""
        return sum(self.sizes)

    def rows(self) -> Tensor:
        """Return J [N C, P].

        Raises:
            DoesNotFitError: if memory is short.
        """
        n_bytes = 3 * 8 * self.n_rows * self.n_parameters
        what = f"the Jacobian of {self.n_rows} rows for {self.n_parameters} parameters"
        require_memory(what, n_bytes, self.outputs.device, instead="fewer data")
        return torch.cat([part.rows() for part in self.parts], 1)


@dataclass
class _Collector(Collector):
    """The inputs of linear layers, and the rows or output gradients of each column."""

    names: frozenset[str]  # of the tensors wanted
    inputs: dict[str, list[Tensor]] = field(default_factory=dict)
    columns: dict[str, list[list[Tensor]]] = field(default_factory=dict)  # by batch, by column
    new_batch: bool = True
    last: bool = False

    def keep(self, layer: Layer, a: Tensor) -> Tensor:
        if layer.names[0] in self.names and _is_outer(layer, a):
            self.inputs.setdefault(layer.names[0], []).append(a)
        return a

    def receive(self, layer: Layer, a: Tensor | None, s: Tensor, last: bool) -> None:
        assert a is not None
        self.last = last
        if not self.names.intersection(layer.names):
            return
        gradients = (s, s) if _is_outer(layer, a) else layer.gradients(a, s)
        for name, values in zip(layer.names, gradients, strict=False):
            batches = self.columns.setdefault(name, [])
            if self.new_batch or not batches:
                batches.append([])
            batches[-1].append(values)

    def end_column(self) -> None:
        self.new_batch = self.last

    def part(self, name: str) -> Part:
        values = torch.cat([torch.stack(columns, 1) for columns in self.columns.pop(name)])
        if name in self.inputs:
            return OuterPart(values, torch.cat(self.inputs.pop(name)))
        return RowsPart(values)


def _is_outer(layer: Layer, a: Tensor) -> bool:
    linear = isinstance(layer, WeightLayer) and isinstance(layer.module, nn.Linear)
    return linear and a.ndim == 2


def jacobian(model: nn.Module, inputs: Tensor, *, only: tuple[str, ...] | None = None) -> Jacobian:
    """Return the Jacobian of the outputs of a model in evaluation mode; the model is unchanged.

    Args:
        model: of any layers; without layer rules each datum takes a pass for each output.
        inputs: [N, ...].
        only: names of the tensors wanted; None for all.

    Raises:
        ValueError: for a model that no curvature supports.
        DoesNotFitError: if memory is short.
    """
    refuse_frozen(model)
    model = copy.deepcopy(model).double()
    inputs = inputs[:].detach().double()
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    rows = rows_at_once(model, inputs)
    with undisturbed(model):
        with torch.no_grad():
            outputs = torch.cat([model(inputs[i : i + rows]) for i in range(0, len(inputs), rows)])
        # Unit noise: the roots of the output Hessian are the unit vectors of the outputs.
        sweep = Sweep(model, inputs, torch.zeros_like(outputs), Gaussian(1.0), "exact", rows, None)
        sweep.prepare(any_layer=True)
        names = tuple(name for name in sizes if only is None or name in only)
        _check_memory(sweep, {name: sizes[name] for name in names})
        collector = _Collector(frozenset(names))
        sweep.run(collector)
    parts = tuple(collector.part(name) for name in names)
    return Jacobian(outputs, names, tuple(sizes[name] for name in names), parts)


def _check_memory(sweep: Sweep, sizes: dict[str, int]) -> None:
    n_rows, stored = len(sweep.inputs) * sweep.n_columns, 0
    for layer in sweep.layers:
        for name in set(sizes).intersection(layer.names):
            module = layer.module
            stored += module.out_features if isinstance(module, nn.Linear) else sizes[name]
    what = f"the Jacobian of {n_rows} rows"
    require_memory(what, 2 * 8 * n_rows * stored, sweep.inputs.device, instead="fewer data")
