"""The log joint of a network, its gradient, and exact Gauss-Newton products; no matrix is formed.

    loss(θ) = −κ log p(y|θ) + ½ θᵀ Δ θ          (κ H + Δ) v = κ Σ_n J_nᵀ Λ_n J_n v + Δ v

    θ  all parameters, concatenated [P]            Δ  diagonal of prior precisions [P]
    J_n  Jacobian of the outputs f_n [C, P]        Λ_n  Hessian of −log p(y_n|f_n) in them [C, C]

J v is the derivative of Jᵀ u in u, taken through the graph of a backward pass (Pearlmutter 1994,
with the roles of the two passes exchanged). It works for any module that autograd can
differentiate twice. Passes run in the dtype of the model; sums over data are in float64.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nas_evidence.curvature.capture import undisturbed
from nas_evidence.likelihoods import Likelihood
from nas_evidence.maths.full_precision import full_precision
from nas_evidence.maths.vector_jacobian import vector_jacobian

#: What the passes cost, as multiples of a gradient over the same data. Measured on one CPU core,
#: 3k to 118k parameters: 1.2 to 1.4 for products with MLPs, 1.8 to 2.4 with convolutions.
PRODUCT_COST = 2.0
#: Graphs of at most this many batches are reused between products; with more they are rebuilt.
_KEPT_BATCHES = 8


@dataclass(frozen=True)
class LogJoint:
    """A network with its data and prior, as a function of its parameters.

    model            in the dtype of the arithmetic; its parameters are overwritten
    inputs, targets  the data, on the device of the model
    precision        diagonal of Δ [P], float64
    power            κ
    rows             of a batch; results do not depend on it beyond rounding
    """

    model: nn.Module
    inputs: Tensor
    targets: Tensor
    likelihood: Likelihood
    precision: Tensor
    power: float
    rows: int

    def value(self, theta: Tensor) -> float:
        """Return the loss at θ [P] in nats."""
        self._load(theta)
        total = torch.zeros((), dtype=torch.float64, device=self.inputs.device)
        with full_precision(), undisturbed(self.model), torch.no_grad():
            for x, y in self._batches():
                total -= self.likelihood.log_likelihood(self.model(x), y)
        return self.power * float(total) + self._penalty(theta)

    def value_and_gradient(self, theta: Tensor) -> tuple[float, Tensor]:
        """Return the loss at θ [P] in nats, and its gradient [P], float64."""
        self._load(theta)
        total = torch.zeros((), dtype=torch.float64, device=self.inputs.device)
        gradient = torch.zeros_like(theta)
        with full_precision(), _differentiable(self.model) as parameters:
            for x, y in self._batches():
                outputs = self.model(x)
                found = outputs.detach()
                total -= self.likelihood.log_likelihood(found, y)
                column = self.likelihood.residual(found, y)
                gradient -= _flat(_gradients(outputs, parameters, column))
        slope = self.power * gradient + self.precision * theta
        return self.power * float(total) + self._penalty(theta), slope

    def gauss_newton(self, theta: Tensor) -> Callable[[Tensor], Tensor]:
        """Return v -> (κ H + Δ) v, float64 [P] -> [P], at θ [P].

        The product is valid until another method of this log joint is called.
        """
        self._load(theta)
        few = len(self.inputs) <= _KEPT_BATCHES * self.rows
        with full_precision():
            kept = list(self._graphs()) if few else None

        def product(vector: Tensor) -> Tensor:
            total = torch.zeros_like(vector)
            with full_precision():
                for graph in self._graphs() if kept is None else kept:
                    total += graph.product(vector)
            return self.power * total + self.precision * vector

        return product

    def _graphs(self) -> Iterator["_Graph"]:
        for x, _ in self._batches():
            with _differentiable(self.model) as parameters:
                outputs = self.model(x)
                free = torch.zeros_like(outputs, requires_grad=True)
                backward = vector_jacobian(
                    outputs, parameters, free, create_graph=True, materialize_grads=True
                )
            roots = self.likelihood.hessian_roots(outputs.detach())
            yield _Graph(parameters, outputs, free, backward, roots)

    def _penalty(self, theta: Tensor) -> float:
        return 0.5 * float((self.precision * theta.square()).sum())

    def _load(self, theta: Tensor) -> None:
        parameters = list(self.model.parameters())
        with torch.no_grad():
            for parameter, part in zip(parameters, _like(theta, parameters), strict=True):
                parameter.copy_(part)

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        dtype = next(self.model.parameters()).dtype
        for start in range(0, len(self.inputs), self.rows):
            rows = slice(start, start + self.rows)
            x, y = self.inputs[rows].detach().to(dtype), self.targets[rows]
            yield x, y.to(dtype) if y.is_floating_point() else y


@dataclass(frozen=True)
class _Graph:
    """The forward and the backward pass of a batch, for products."""

    parameters: list[nn.Parameter]
    outputs: Tensor  # [n, C]
    free: Tensor  # u [n, C], zero: any value does
    backward: tuple[Tensor, ...]  # Jᵀ u
    roots: Tensor  # [K, n, C]

    def product(self, vector: Tensor) -> Tensor:
        """Return Jᵀ Λ J v [P], float64, for v [P]."""
        moved = vector_jacobian(
            self.backward,
            self.free,
            _like(vector, self.parameters),
            retain_graph=True,
            materialize_grads=True,
        )[0]
        along = torch.einsum("knc,nc->kn", self.roots, moved.detach())
        column = torch.einsum("knc,kn->nc", self.roots, along)
        return _flat(_gradients(self.outputs, self.parameters, column))


@contextmanager
def _differentiable(model: nn.Module) -> Iterator[list[nn.Parameter]]:
    parameters = list(model.parameters())
    with undisturbed(model):
        for parameter in parameters:
            parameter.requires_grad_(True)
        yield parameters


def _gradients(
    outputs: Tensor, parameters: list[nn.Parameter], column: Tensor
) -> tuple[Tensor, ...]:
    # A parameter that no datum of the batch uses has gradient zero.
    return vector_jacobian(outputs, parameters, column, retain_graph=True, materialize_grads=True)


def _flat(parts: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([part.flatten() for part in parts]).double()


def _like(vector: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
    """Return the parts of a vector [P] in shape and dtype of the parameters."""
    parts = torch.split(vector, [p.numel() for p in parameters])
    return [part.view_as(p).to(p.dtype) for part, p in zip(parts, parameters, strict=True)]
