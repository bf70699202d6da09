"""Likelihoods: log probability, its gradient, and square roots of the output Hessian.

    log p(y|θ) = Σ_n log p(y_n|f_n)        Λ_n = −∂² log p(y_n|f_n) / ∂f_n ∂f_nᵀ = Σ_k r_k r_kᵀ

    f_n  outputs of the network [C]   categorical      Λ = (diag(p) − p pᵀ) / T²,  p = softmax(f/T)
    y_n  target                       Gaussian         Λ = I / σ²
                                      heteroscedastic  Λ = τ ∇μ ∇μᵀ + ½ ∇log τ ∇log τᵀ

The last Λ is the generalised Gauss-Newton matrix of the natural parameters; see `Heteroscedastic`.

Logs are natural and include all constants; larger is better. Probabilities, sums over data and
roots are computed in float64; gradients and roots are returned in the dtype of the outputs, ready
for a backward pass.
"""

import math
from collections.abc import Callable
from importlib import import_module
from typing import Protocol, Self

import torch
from torch import Tensor

from nas_evidence.likelihoods.predictive import Predictive
from nas_evidence.spec.likelihoods import declared


class Likelihood(Protocol):
    """What the curvature pass and the training loop need from a likelihood."""

    def log_likelihood(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return Σ_n log p(y_n|f_n) in nats, float64 []."""

    def nll_mean(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return −(1/n) Σ_n log p(y_n|f_n) in nats [], differentiable."""

    def hessian_roots(self, outputs: Tensor, first: int = 0, end: int | None = None) -> Tensor:
        """Return r [K, n, C] with Σ_k r_k r_kᵀ = Λ_n, exactly; those from first to end alone."""

    def n_roots(self, n_outputs: int) -> int:
        """Return K, the number of exact roots for C outputs."""

    def signed_root(self, outputs: Tensor, signs: Tensor) -> Tensor:
        """Return r = Σ_k ε_k r_k [1, n, C] for signs ε [K, n]; random ones give E r rᵀ = Λ_n."""

    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return ∂ log p(y_n|f_n) / ∂f_n [n, C]."""

    def at(self, factor: float) -> Self:
        """Return the same with its temperature or its standard deviations times a factor."""

    def mean(self, outputs: Tensor) -> Tensor:
        """Return the means of numbers [n, C] for outputs, or the logits of classes [n, C]."""

    def held(self, outputs: Tensor, hold: Callable[[Tensor], Tensor]) -> Tensor:
        """Return outputs whose `mean` is `hold` of what it was; logits as they are."""

    def hits(self, outputs: Tensor, targets: Tensor) -> int | None:
        """Return how many targets are what is most probable; None where no value is."""

    def predictive(
        self, outputs: Tensor, covariance: Tensor | None = None, most_std: float = math.inf
    ) -> Predictive:
        """Return the distributions of the targets of rows.

        Args:
            outputs: of the network [n, outputs].
            covariance: of the outputs by the posterior of the weights [n, outputs, outputs],
                float64; None predicts by the outputs alone.
            most_std: maximum uncertainty of the means of numbers that the weights give.
        """

    def restored(self, table: Tensor) -> Predictive:
        """Return the distributions that `Predictive.stored` made a table of [n, C + S]."""


def likelihood(name: str, scale: float = 1.0) -> Likelihood:
    """Return a likelihood by its name.

    Args:
        name: a key of `spec.likelihoods.LIKELIHOODS`.
        scale: the noise or the temperature; ignored where the outputs say all.
    """
    of = declared(name)
    module, _, attribute = of.implementation.partition(":")
    made = getattr(import_module(module), attribute)
    found: Likelihood = made() if of.scale is None else made(scale)
    return found


def random_signs(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Return ±1 at random [K, n], int8, on the generator's device.

    A pass draws them batch by batch on the CPU, so that they are the same for every device, and
    moves all of them at once.
    """
    signs = torch.randint(0, 2, shape, generator=generator, device=generator.device)
    return (2 * signs - 1).to(torch.int8)
