"""Likelihoods: log probability, its gradient, and square roots of the output Hessian.

    log p(y|θ) = Σ_n log p(y_n|f_n)        Λ_n = −∂² log p(y_n|f_n) / ∂f_n ∂f_nᵀ = Σ_k r_k r_kᵀ

    f_n  outputs of the network [C]   categorical      Λ = (diag(p) − p pᵀ) / T²,  p = softmax(f/T)
    y_n  target                       Gaussian         Λ = I / σ²
                                      heteroscedastic  Λ = τ ∇μ ∇μᵀ + ½ ∇log τ ∇log τᵀ

The last Λ is the generalised Gauss-Newton matrix of the natural parameters; see `Heteroscedastic`.

Logs are natural and include all constants; larger is better. Probabilities, sums over data and
roots are computed in float64; gradients and roots are returned in the dtype of the outputs, ready
for a backward pass.

`nll`, `nll_and_slope` and `descent` also take K networks side by side, outputs [K, n, C]. Each
network then has a scale of its own, a row of `scale` [K, 1], in place of that of the object; or
one for each output, [K, C].
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol, Self

import torch
from torch import Tensor

from nas_evidence.likelihoods.predictive import Predictive
from nas_evidence.spec.likelihoods import declared, imported

#: A scale, or one for each output.
Scale = float | tuple[float, ...]
#: A run counts as diverged if it is this many times worse than a constant prediction.
ABSURD = 1e4


class Fit(Protocol):
    """How well a network fits data: what a pass over them sums up.

    log_likelihood  of the data, nats
    squared_errors  Σ_n (y_nc − f_nc)² of each output in its unit of the noise [C]; empty if the
                    likelihood has no noise
    """

    @property
    def log_likelihood(self) -> float:
        """Return the first."""

    @property
    def squared_errors(self) -> tuple[float, ...]:
        """Return the second."""


def each_alone(values: Tensor) -> Tensor:
    """Return the values as they are: no mean is taken."""
    return values


class Likelihood(ABC):
    """What a network's outputs say about the targets.

    A new one implements the abstract methods. The others follow from them, and are written out
    anew where that is faster or more exact.
    """

    #: Its name in `spec/likelihoods.py`.
    name: ClassVar[str]
    #: What it says of rows.
    says: ClassVar[type[Predictive]]

    @property
    def scale(self) -> float:
        """Return the noise σ or the temperature T, the geometric mean of several; 1 if none."""
        return 1.0

    @property
    def each_scale(self) -> tuple[float, ...]:
        """Return the scale, or that of each output."""
        return (self.scale,)

    @classmethod
    def of_scale(cls, scale: Scale) -> "Likelihood":
        """Return the likelihood with a scale; it is ignored where the outputs say all."""
        return cls()

    def common(self, scale: Tensor) -> Tensor:
        """Return `Likelihood.scale` [K] of scales [K, 1] or [K, C]."""
        return scale[:, 0]

    @staticmethod
    @abstractmethod
    def shaped(targets: Tensor) -> Tensor:
        """Return targets as a user gives them in the dtype and shape that `check` wants."""

    @abstractmethod
    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Do nothing for outputs [n, C] and targets that belong together.

        Raises:
            ValueError: for others; names the shapes.
        """

    def check_values(self, targets: Tensor, n_outputs: int) -> None:
        """Do nothing for all targets of a data set if each is possible.

        Raises:
            ValueError: for others; names the values. By default none is refused.
        """
        return None

    @abstractmethod
    def nll(
        self,
        outputs: Tensor,
        targets: Tensor,
        scale: Tensor | None = None,
        mean: Callable[[Tensor], Tensor] = each_alone,
    ) -> Tensor:
        """Return −log p(y_n|f_n) in nats [..., n], differentiable, in the dtype of the outputs.

        Args:
            outputs: f [..., n, C].
            targets: unchecked.
            scale: of each of K networks [K, 1] or [K, C]; None for that of the object.
            mean: over the data, taken where it costs least: from [..., n] to [...].
        """

    @abstractmethod
    def nll_and_slope(
        self, outputs: Tensor, targets: Tensor, scale: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return −log p(y_n|f_n) [..., n] and ∂ log p(y_n|f_n) / ∂f_n [..., n, C], a new tensor.

        The slope keeps its relative accuracy where the data are fitted. Arguments as of `nll`.
        """

    @abstractmethod
    def hessian_roots(self, outputs: Tensor, first: int = 0, end: int | None = None) -> Tensor:
        """Return r [K, n, C] with Σ_k r_k r_kᵀ = Λ_n, exactly; those from first to end alone."""

    @abstractmethod
    def n_roots(self, n_outputs: int) -> int:
        """Return K, the number of exact roots for C outputs."""

    @abstractmethod
    def best_constant(self, targets: Tensor) -> float:
        """Return the largest Σ_n log p(y_n|f) of outputs f that are the same for all data, nats.

        It is infinite if the constant is perfect.
        """

    @abstractmethod
    def loss_limit(self, n_targets: int) -> float:
        """Return the nll per datum in nats above which a training counts as diverged.

        Args:
            n_targets: classes, or real targets.
        """

    def descent(
        self, outputs: Tensor, targets: Tensor, shares: Tensor | float, scale: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the mean nll of K networks [K], and the gradient in f of scale² times it.

        Args:
            outputs: f [K, n, C].
            targets: unchecked.
            shares: of each datum in the mean of its network [K, n, 1], or one number.
            scale: as of `nll`.
        """
        nll, slope = self.nll_and_slope(outputs, targets, scale)
        back = slope.neg_().mul_(shares)
        if scale is not None:
            back.mul_(self.common(scale).square()[:, None, None])
        return (nll[:, :, None] * shares).sum((1, 2)), back

    def log_likelihood(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return Σ_n log p(y_n|f_n) in nats, float64 []."""
        self.check(outputs, targets)
        return -self.nll(outputs.double(), as_double(targets)).sum()

    def nll_mean(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return −(1/n) Σ_n log p(y_n|f_n) in nats [], differentiable."""
        self.check(outputs, targets)
        return self.nll(outputs, targets, mean=lambda each: each.mean(-1))

    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return ∂ log p(y_n|f_n) / ∂f_n [n, C]."""
        self.check(outputs, targets)
        slope = self.nll_and_slope(outputs.detach().double(), as_double(targets))[1]
        return slope.to(outputs.dtype)

    def signed_root(self, outputs: Tensor, signs: Tensor) -> Tensor:
        """Return r = Σ_k ε_k r_k [1, n, C] for signs ε [K, n]; random ones give E r rᵀ = Λ_n."""
        roots = self.hessian_roots(outputs)
        return (signs[:, :, None].to(roots) * roots).sum(0, keepdim=True)

    @abstractmethod
    def at(self, factor: float) -> Self:
        """Return the same with its temperature or its standard deviations times a factor."""

    @abstractmethod
    def predictive(
        self, outputs: Tensor, covariance: Tensor | None = None, most_std: float = math.inf
    ) -> Predictive:
        """Return the distributions of the targets of rows, of the class `says`.

        Args:
            outputs: of the network [n, outputs].
            covariance: of the outputs by the posterior of the weights [n, outputs, outputs],
                float64; None predicts by the outputs alone.
            most_std: maximum uncertainty of the means of numbers that the weights give.
        """

    def mean(self, outputs: Tensor) -> Tensor:
        """Return the means of numbers [n, C] for outputs, or the logits of classes [n, C]."""
        return outputs

    def held(self, outputs: Tensor, hold: Callable[[Tensor], Tensor]) -> Tensor:
        """Return outputs whose `mean` is `hold` of what it was; logits as they are."""
        return hold(outputs)

    def hits(self, outputs: Tensor, targets: Tensor) -> int | None:
        """Return how many targets are what is most probable; None where no value is."""
        return None

    def squared_errors(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return Σ_n (y_nc − f_nc)² in units of the noise, float64 [C]; [0] without noise.

        Noise is learned from it.
        """
        return torch.zeros(0, dtype=torch.float64, device=outputs.device)

    def gain(self, fit: Fit, targets: Tensor, *, learned: bool) -> float:
        """Return by how many nats a network fits the data better than the best constant.

        Args:
            fit: of the network.
            targets: of the same data.
            learned: whether the scale is learned, so that each side has its own best one.
        """
        return fit.log_likelihood - self.best_constant(targets)

    def redrawn(self, targets: Tensor, generator: torch.Generator) -> Tensor | None:
        """Return targets with noise of the likelihood added; None if noise has no meaning."""
        return None


def likelihood(name: str, scale: Scale = 1.0) -> Likelihood:
    """Return a likelihood by its name.

    Args:
        name: a key of `spec.likelihoods.LIKELIHOODS`.
        scale: the noise, or that of each output, or the temperature; see `of_scale`.
    """
    found: Likelihood = imported(declared(name).implementation).of_scale(scale)
    return found


def scales_of(likelihoods: Sequence[Likelihood], like: Tensor) -> Tensor:
    """Return the scales of K networks [K, 1], or [K, C] where one has several."""
    rows = [one.each_scale for one in likelihoods]
    width = max(map(len, rows))
    return like.new_tensor([row * (width // len(row)) for row in rows])


def as_double(targets: Tensor) -> Tensor:
    """Return real targets in float64, and labels as they are."""
    return targets.double() if targets.is_floating_point() else targets


def random_signs(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Return ±1 at random [K, n], int8, on the generator's device.

    A pass draws them batch by batch on the CPU, so that they are the same for every device, and
    moves all of them at once.
    """
    signs = torch.randint(0, 2, shape, generator=generator, device=generator.device)
    return (2 * signs - 1).to(torch.int8)
