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
from nas_evidence.likelihoods.gaussian import Gaussian
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
    n_correct: int | None = None
    squared_error: float | None = None
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
                f"the model, {parameter.dtype} on {parameter.device}, cannot process inputs "
                f"{list(few.shape)} of {few.dtype} on {few.device}: {error}"
            ).with_code("model-fails-on-inputs") from error
        if not self.targets.is_floating_point() and outputs.shape[1] > 1:
            low, high = torch.stack(self.targets.aminmax()).tolist()
            if low < 0 or high >= outputs.shape[1]:
                raise UserError(
                    f"labels must be from 0 to {outputs.shape[1] - 1}, one fewer than the "
                    f"outputs of the model, but range from {low} to {high}{_ignored(low)}"
                ).with_code("labels-out-of-range")
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
        """Pass all data to the collector; sets `log_likelihood` and the measures of fit."""
        capture = self._capture(collector)
        log_likelihood = torch.zeros((), dtype=torch.float64, device=self.inputs.device)
        n_correct = torch.zeros((), dtype=torch.int64, device=self.inputs.device)
        squared_error = torch.zeros_like(log_likelihood)
        signs = self._signs() if self.columns == "sampled" else None
        labels = not self.targets.is_floating_point()
        gaussian = self.likelihood if isinstance(self.likelihood, Gaussian) else None
        with capture.hooks():
            for start in range(0, len(self.inputs), self.batch_size):
                rows = slice(start, start + self.batch_size)
                targets = self.targets[rows]
                inputs = self.inputs[rows].detach()
                outputs = capture.forward(inputs if self.trusted else inputs.clone())
                found = outputs.detach()
                log_likelihood += self.likelihood.log_likelihood(found, targets)
                if labels:
                    n_correct += (found.argmax(1) == targets).sum()
                elif gaussian is not None:
                    squared_error += gaussian.squared_error(found, targets)
                drawn = None if signs is None else signs[:, :, rows]
                capture.backward(outputs, self._columns_of(found, targets, drawn))
        fit = n_correct.double() if labels else squared_error
        # The only wait for the device.
        self.log_likelihood, found_fit = torch.stack([log_likelihood, fit]).tolist()
        self.n_correct = int(found_fit) if labels else None
        self.squared_error = None if gaussian is None else found_fit

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


def _ignored(low: int) -> str:
    """Return what to do about labels that a loss would leave out."""
    if low >= 0:
        return ""
    return (
        f"; a label of {low} counts in no likelihood, as with ignore_index of cross_entropy: "
        "leave its rows out"
    )
