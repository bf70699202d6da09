"""One sweep over the data: forward, then each column backward, with sums along the way.

The columns of a batch are one of

    exact     all roots r_k of the output Hessian, Σ_k r_k r_kᵀ = Λ_n
    sampled   one random root for each draw, E r rᵀ = Λ_n
    residual  ∂ log p(y_n|f_n) / ∂f_n, for the empirical Fisher
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nas_evidence.curvature.capture import (
    Capture,
    Collector,
    check_gradients,
    layers_of,
)
from nas_evidence.curvature.capture import Columns as ExactColumns
from nas_evidence.curvature.layers import Layer, WholeModel, is_perceptron
from nas_evidence.curvature.per_datum import PerDatum, can_vmap
from nas_evidence.curvature.refusals import BatchStatisticsError, UnsupportedLayerError
from nas_evidence.curvature.rows_alone import (
    check_rows,
    checked_outputs,
    is_trusted,
    rows_to_try,
)
from nas_evidence.likelihoods import Likelihood, random_signs
from nas_evidence.plumbing.no_memory import is_memory_full
from nas_evidence.plumbing.user_error import UserError

Columns = Literal["exact", "sampled", "residual"]


@dataclass
class Sweep:
    """The data and the model of a curvature pass; `run` may be called more than once."""

    model: nn.Module
    inputs: Tensor
    targets: Tensor
    likelihood: Likelihood
    columns: Columns
    batch_size: int
    generator: torch.Generator | None
    n_draws: int = 1  # of sampled columns; a batch has one column for each
    reduced: frozenset[str] = frozenset()  # layers with "reduce" Kronecker factors
    kept: dict[Any, Any] | None = None  # input factors of earlier passes over the same data
    layers: tuple[Layer, ...] = ()
    n_columns: int = 0
    log_likelihood: float = 0.0
    squared_errors: tuple[float, ...] = ()
    n_outputs: int = 0
    trusted: bool = True  # the network leaves its input alone, whatever it is

    def prepare(self, *, any_layer: bool) -> None:
        """Find the layers, check the gradients of the model and count the columns of a batch.

        Args:
            any_layer: process one datum at a time if hooks cannot follow the model.

        Raises:
            ValueError: for an unsupported model or impossible labels; names the cause.
        """
        few = rows_to_try(self.model, self.inputs)
        self.trusted = is_trusted(self.model)
        try:
            outputs = self._checked_layers(few, any_layer)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if is_memory_full(error):
                raise
            parameter = next(self.model.parameters())
            raise UserError(
                "model-fails-on-inputs",
                f"the model, {parameter.dtype} on {parameter.device}, cannot process inputs "
                f"{list(few.shape)} of {few.dtype} on {few.device}: {error}",
            ) from error
        self.likelihood.check_values(self.targets, outputs.shape[1])
        self.n_outputs = outputs.shape[1]
        exact = self.columns == "exact"
        self.n_columns = self.likelihood.n_roots(self.n_outputs) if exact else 1

    def _checked_layers(self, few: Tensor, any_layer: bool) -> Tensor:
        """Set the layers; return the outputs [n, C] for a few data."""
        outputs = None if self.trusted else check_rows(self.model, few)
        try:
            self.layers = layers_of(self.model)
            if is_perceptron(self.model):  # nothing is between or around its layers
                with torch.no_grad():
                    return checked_outputs(self.model(few), len(few))
            return check_gradients(self.model, self.layers, few)
        except UnsupportedLayerError as error:
            if isinstance(error, BatchStatisticsError) or not any_layer:
                raise
            self.model.requires_grad_(False)  # the check may have stopped halfway
            names = tuple(name for name, _ in self.model.named_parameters())
            outputs = check_rows(self.model, few) if outputs is None else outputs
            batched = can_vmap(self.model, few, outputs)
            self.layers = (WholeModel("(model)", self.model, names, batched),)
            return outputs

    def _capture(self, collector: Collector) -> Capture | PerDatum:
        first = self.layers[0]
        if isinstance(first, WholeModel):
            return PerDatum(self.model, first, collector)
        return Capture(self.model, self.layers, collector)

    def run(self, collector: Collector) -> None:
        """Pass all data to the collector; sets `log_likelihood` and `squared_errors`."""
        capture = self._capture(collector)
        log_likelihood = torch.zeros((), dtype=torch.float64, device=self.inputs.device)
        squares = torch.zeros(self.n_outputs, dtype=torch.float64, device=self.inputs.device)
        signs = self._signs() if self.columns == "sampled" else None
        with capture.hooks():
            for start in range(0, len(self.inputs), self.batch_size):
                rows = slice(start, start + self.batch_size)
                targets = self.targets[rows]
                inputs = self.inputs[rows].detach()
                outputs = capture.forward(inputs if self.trusted else inputs.clone())
                found = outputs.detach()
                log_likelihood += self.likelihood.log_likelihood(found, targets)
                found_squares = self.likelihood.squared_errors(found, targets)
                squares = squares[: len(found_squares)] + found_squares
                drawn = None if signs is None else signs[:, :, rows]
                capture.backward(outputs, self._columns_of(found, targets, drawn))
        # The only wait for the device.
        self.log_likelihood, *squared = torch.cat([log_likelihood[None], squares]).tolist()
        self.squared_errors = tuple(squared)

    def _signs(self) -> Tensor:
        """Return the random signs of all batches [draws, K, N], on the device of the data.

        Those of a draw do not depend on how many follow.
        """
        assert self.generator is not None
        n_roots, n_data = self.likelihood.n_roots(self.n_outputs), len(self.inputs)
        starts = range(0, n_data, self.batch_size)
        sizes = [min(self.batch_size, n_data - start) for start in starts]
        draws = [
            torch.cat([random_signs((n_roots, size), self.generator) for size in sizes], 1)
            for _ in range(self.n_draws)
        ]
        return torch.stack(draws).to(self.inputs.device)

    def _columns_of(
        self, outputs: Tensor, targets: Tensor, signs: Tensor | None
    ) -> Tensor | ExactColumns:
        if self.columns == "exact":
            return ExactColumns(self.likelihood, outputs)
        if self.columns == "residual":
            return self.likelihood.residual(outputs, targets)[None]
        assert signs is not None
        return torch.cat([self.likelihood.signed_root(outputs, draw) for draw in signs])
