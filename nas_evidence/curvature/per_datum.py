"""Gradients of one datum at a time, for models that hooks cannot follow.

    g_nk = J_nᵀ r_k     [P], one backward pass through the model for each datum n and column k

Autograd handles every layer and a weight that is used twice. Data are processed separately, side
by side where `torch.func.vmap` can (`vmapped`). That the output for a datum does not depend on its
batch is checked before (`rows_alone`). The diagonal and the dense kinds use it; Kronecker factors
need the inputs of each layer.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from nas_evidence.curvature.capture import Collector, Columns
from nas_evidence.curvature.layers import WholeModel
from nas_evidence.curvature.rows_alone import checked_outputs
from nas_evidence.curvature.vmapped import can_batch, chunks, gradients
from nas_evidence.maths.vector_jacobian import vector_jacobian
from nas_evidence.plumbing.user_error import UserError


@dataclass
class PerDatum:
    """Replaces `capture.Capture` for one pass; parameters get gradients."""

    model: nn.Module
    layer: WholeModel
    collector: Collector
    rows: list[Tensor] = field(default_factory=list)  # outputs of the batch [1, C] each
    inputs: Tensor = field(default_factory=lambda: torch.zeros(()))  # of the batch, for vmap
    reached: set[str] = field(default_factory=set)  # parameters that an output depends on

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Enable gradients of the parameters; afterwards refuse any parameter that had none.

        The caller restores requires_grad with `undisturbed`.
        """
        self.model.requires_grad_(True)
        yield
        self.rows.clear()
        self.inputs = torch.zeros(())
        for name in self.layer.names:
            if name not in self.reached:
                raise UserError(
                    "outputs-independent-of-parameter",
                    f"the outputs do not depend on the parameter `{name}`; remove it, or do not "
                    "detach what is computed from it",
                )

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs [n, C] for a batch."""
        if self.layer.batched:
            self.inputs = inputs
            if not self.reached:
                self._reach(inputs[:1])
            with torch.no_grad():
                return checked_outputs(self.model(inputs), len(inputs))
        self.rows = [checked_outputs(self.model(datum[None]), 1) for datum in inputs]
        return torch.cat(self.rows)

    def backward(self, outputs: Tensor, columns: Tensor | Columns) -> None:
        """Send each of the columns [K, n, C] back, datum by datum."""
        if self.layer.batched:
            self._side_by_side(columns)
            return
        for k, column in enumerate(columns):
            last = k == len(columns) - 1
            each = [self._gradient(f, r, last) for f, r in zip(self.rows, column, strict=True)]
            self.collector.receive(self.layer, outputs, torch.stack(each), last)
            self.collector.end_column()

    def _side_by_side(self, columns: Tensor | Columns) -> None:
        named = dict(self.model.named_parameters())
        for rows in chunks(named, len(self.inputs)):  # each a small batch to the collector
            of_rows = columns.of(rows) if isinstance(columns, Columns) else columns[:, rows]
            for k, column in enumerate(of_rows):
                last, inputs = k == len(columns) - 1, self.inputs[rows]
                parts = gradients(self.model, named, inputs, column, batched=True)
                self.collector.receive(self.layer, column, torch.cat(parts, 1), last)
                self.collector.end_column()

    def _reach(self, inputs: Tensor) -> None:
        """Note which parameters the outputs depend on; without control flow, for all data."""
        outputs = self.model(inputs)
        self._gradient(outputs, torch.ones_like(outputs[0]), True)

    def _gradient(self, outputs: Tensor, column: Tensor, last: bool) -> Tensor:
        parameters = list(self.model.parameters())
        parts = vector_jacobian(
            outputs, parameters, column[None], retain_graph=not last, allow_unused=True
        )
        pairs = list(zip(self.layer.names, parts, strict=True))
        self.reached.update(name for name, part in pairs if part is not None)
        filled = zip(parts, parameters, strict=True)
        return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in filled])


def can_vmap(model: nn.Module, inputs: Tensor, outputs: Tensor) -> bool:
    """Tell whether vmap can process a few data; `outputs` [n, C] are those of the model."""
    direction = torch.arange(outputs.numel(), device=outputs.device).add(1.0).cos()
    column = direction.reshape(outputs.shape).to(outputs.dtype)
    return can_batch(model, dict(model.named_parameters()), inputs, column)
