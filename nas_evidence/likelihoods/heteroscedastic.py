"""Real targets with normal noise whose size is an output of the network."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from nas_evidence.likelihoods import Likelihood, each_alone
from nas_evidence.likelihoods.gaussian import Gaussian, columns_of
from nas_evidence.likelihoods.predictive import Predictive, Reals, reals
from nas_evidence.plumbing.user_error import UserError


@dataclass(frozen=True)
class Heteroscedastic(Likelihood):
    """Gaussian noise whose size is an output too: two for each target; targets float [n, C].

        f = (η, z)  outputs [n, 2 C]: first η of all targets, then z
        τ = τ₀ + softplus(z + z₀),   μ = η / τ,   −log p(y|f) = ½ τ (y − μ)² − ½ log τ + ½ log 2π

    η₁ = η and η₂ = −½ τ < 0 are the natural parameters (Immer et al. 2023, Effective Bayesian
    heteroscedastic regression with deep neural networks); μ is the mean and 1/τ the variance. The
    Hessian of −log p in them is that of the log normaliser A(η) = −η₁²/(4 η₂) − ½ log(−2 η₂), the
    covariance of (y, y²). With the Jacobian G = ∂(η₁, η₂)/∂f of the link, the generalised
    Gauss-Newton matrix, positive semi-definite, is

        Λ = Gᵀ ∇²A G = τ ∇μ ∇μᵀ + ½ ∇log τ ∇log τᵀ      ∇μ = (1, −μ τ′) / τ,  ∇log τ = (0, τ′ / τ)

    It is the Fisher information in f, E r rᵀ with r the residual of y ~ p(y|f), for this link as
    for any smooth one: the part of the Hessian left out has mean zero.

    Why this link: the slope in η is y − μ, whatever the noise. With outputs (μ, log τ) it is
    τ (y − μ): rows that are fitted already pull most, and noisy ones are given up (Stirn et al.
    2023, Faithful heteroscedastic regression with neural networks). The softplus grows linearly,
    so precisions do not run away as those of an exponential do. τ₀ keeps the ratio μ finite far
    from the data; z₀ is such that outputs of 0 are the mean 0 and the variance 1 of a standardised
    target.

    factor  on every standard deviation; 1 but for predictions at another scale
    """

    name: ClassVar[str] = "heteroscedastic"
    says: ClassVar[type[Predictive]] = Reals
    factor: float = 1.0

    def __post_init__(self) -> None:
        if not (self.factor > 0 and math.isfinite(self.factor)):
            raise UserError(
                "spread-factor-not-positive", f"`factor > 0` must hold, but got {self.factor}"
            )

    def mean(self, outputs: Tensor) -> Tensor:
        """Return the means μ [..., C] of the targets for outputs [..., 2 C]."""
        eta, z = outputs.chunk(2, -1)
        return eta / precision_of(z)

    def variance(self, outputs: Tensor) -> Tensor:
        """Return the variances 1/τ of the targets [..., C], float64, for outputs [..., 2 C].

        >>> Heteroscedastic().variance(torch.tensor([[5.0, 0.0]]))
        tensor([[1.]], dtype=torch.float64)
        """
        return self.factor**2 / precision_of(outputs.double().chunk(2, -1)[1])

    def mean_variance(self, outputs: Tensor, covariance: Tensor) -> Tensor:
        """Return the variances ∇μᵀ S ∇μ of the means [n, C] (the delta method), float64.

        Args:
            outputs: [n, 2 C].
            covariance: S of the outputs [n, 2 C, 2 C].
        """
        by_eta, by_z = self._mean_slopes(outputs.double())
        c = by_eta.shape[-1]
        own = covariance.diagonal(dim1=1, dim2=2)
        both = covariance[:, :c, c:].diagonal(dim1=1, dim2=2)
        found = by_eta.square() * own[:, :c] + by_z.square() * own[:, c:]
        return (found + 2 * by_eta * by_z * both).clamp(min=0)

    @staticmethod
    def shaped(targets: Tensor) -> Tensor:
        """Return real targets [n, C]."""
        return columns_of(targets)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Do nothing for outputs [n, 2 C] and targets [n, C]; see `Likelihood`."""
        _check_pairs(outputs, targets)

    def nll(
        self,
        outputs: Tensor,
        targets: Tensor,
        scale: Tensor | None = None,
        mean: Callable[[Tensor], Tensor] = each_alone,
    ) -> Tensor:
        """Return Σ ½ τ (y − μ)² − ½ log τ + ½ log 2π [..., n]; see `Likelihood`."""
        eta, z = outputs.chunk(2, -1)
        tau = precision_of(z)
        return mean(self._nll(targets - eta / tau, tau))

    def best_constant(self, targets: Tensor) -> float:
        """Return the log likelihood of the best constant mean and noise; see `Likelihood`."""
        variances = targets.double().var(0, correction=0)
        if not bool((variances > 0).all()):
            return math.inf
        return -0.5 * len(targets) * float((2 * math.pi * math.e * variances).log().sum())

    def loss_limit(self, n_targets: int) -> float:
        """Return the limit of `Gaussian` at a small noise."""
        return Gaussian(_SMALL_NOISE).loss_limit(n_targets)

    def hessian_roots(self, outputs: Tensor, first: int = 0, end: int | None = None) -> Tensor:
        """Return the columns √τ ∇μ, then √½ ∇log τ, of each target [2 C, n, 2 C]."""
        by_eta, by_z, of_noise = self._root_parts(outputs)
        unit = torch.eye(outputs.shape[1], dtype=by_eta.dtype, device=by_eta.device)[first:end]
        one, other = unit[:, None].chunk(2, -1)
        # Not by a product: what is not finite stays in its own column.
        return torch.cat(
            [
                torch.where(one > 0, by_eta, 0.0),
                torch.where(one > 0, by_z, torch.where(other > 0, of_noise, 0.0)),
            ],
            -1,
        ).to(outputs.dtype)

    def n_roots(self, n_outputs: int) -> int:
        """Return 2 C, the number of outputs."""
        return n_outputs

    def signed_root(self, outputs: Tensor, signs: Tensor) -> Tensor:
        """Return Σ_k ε_k r_k for signs ε = ±1 [2 C, n] [1, n, 2 C]."""
        by_eta, by_z, of_noise = self._root_parts(outputs)
        one, other = signs.mT.to(by_eta).chunk(2, -1)
        found = torch.cat([one * by_eta, one * by_z + other * of_noise], -1)
        return found.to(outputs.dtype)[None]

    def at(self, factor: float) -> "Heteroscedastic":
        """Return the same with every standard deviation times a factor."""
        return replace(self, factor=factor * self.factor)

    def held(self, outputs: Tensor, hold: Callable[[Tensor], Tensor]) -> Tensor:
        """Return outputs whose means are held between bounds."""
        z = outputs.chunk(2, -1)[1]
        return torch.cat([hold(self.mean(outputs)) * precision_of(z), z], -1)

    def predictive(
        self, outputs: Tensor, covariance: Tensor | None = None, most_std: float = math.inf
    ) -> Reals:
        """Return normal distributions, the variance of means by the delta method."""
        of_weights = None if covariance is None else self.mean_variance(outputs, covariance)
        return reals(self.mean(outputs), self.variance(outputs), of_weights, most_std)

    def nll_and_slope(
        self, outputs: Tensor, targets: Tensor, scale: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the nll [..., n] and ∂ log p(y|f) / ∂f [..., n, 2 C]; see `Likelihood`.

        With e = y − μ the latter is (e, τ′ (½/τ − ½ e² − e μ)) at factor 1.
        """
        eta, z = outputs.chunk(2, -1)
        tau = precision_of(z)
        mean = eta / tau
        error = targets - mean
        pull = error / self.factor**2
        of_z = precision_slope(z) * (0.5 / tau - pull * (0.5 * error + mean))
        return self._nll(error, tau), torch.cat([pull, of_z], -1)

    def _nll(self, error: Tensor, tau: Tensor) -> Tensor:
        tau = tau / self.factor**2
        return 0.5 * (error.square() * tau - tau.log() + math.log(2 * math.pi)).sum(-1)

    def _mean_slopes(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return ∂μ/∂η and ∂μ/∂z [..., C]."""
        eta, z = outputs.chunk(2, -1)
        tau = precision_of(z)
        return 1 / tau, -eta * precision_slope(z) / tau.square()

    def _root_parts(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return √τ ∂μ/∂η, √τ ∂μ/∂z and √½ ∂log τ/∂z [n, C], float64."""
        found = outputs.detach().double()
        z = found.chunk(2, -1)[1]
        tau = precision_of(z)
        by_eta, by_z = self._mean_slopes(found)
        root = tau.sqrt() / self.factor
        return root * by_eta, root * by_z, 0.5**0.5 * precision_slope(z) / tau


#: Noise at which `loss_limit` judges.
_SMALL_NOISE = 0.01
#: τ₀, and z₀ with which τ is 1 at z = 0.
LEAST_PRECISION = 0.01
_SHIFT = math.log(math.expm1(1 - LEAST_PRECISION))


def precision_of(z: Tensor) -> Tensor:
    """Return τ = τ₀ + softplus(z + z₀), the precision of the noise for outputs z."""
    return LEAST_PRECISION + torch.nn.functional.softplus(z + _SHIFT)


def precision_slope(z: Tensor) -> Tensor:
    """Return τ′ = ∂τ/∂z, the logistic function of z + z₀."""
    return torch.sigmoid(z + _SHIFT)


def _check_pairs(outputs: Tensor, targets: Tensor) -> None:
    if outputs.ndim != 2 or targets.shape != (len(outputs), outputs.shape[1] / 2):
        raise UserError(
            "heteroscedastic-targets",
            "heteroscedastic targets must have the shape [n, C] for outputs [n, 2 C], two natural "
            f"parameters for each, but got {list(targets.shape)} for {list(outputs.shape)}; "
            'labels need the likelihood "categorical"',
        )
