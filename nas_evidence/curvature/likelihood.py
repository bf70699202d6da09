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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from nas_evidence.plumbing.user_error import UserError


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


@dataclass(frozen=True)
class Categorical:
    """Classes with softmax probabilities; targets are int64 [n].

    temperature  T, the divisor of the outputs
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise UserError(f"`temperature > 0` must hold, but got {self.temperature}").with_code(
                "temperature-not-positive"
            )

    def log_likelihood(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return Σ_n log p(y_n|f_n) in nats, float64 []."""
        _check_labels(outputs, targets)
        return self._log_probability(outputs).gather(1, targets[:, None]).sum()

    def nll_mean(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return −(1/n) Σ_n log p(y_n|f_n) in nats [], differentiable."""
        _check_labels(outputs, targets)
        return torch.nn.functional.cross_entropy(outputs / self.temperature, targets)

    def hessian_roots(self, outputs: Tensor, first: int = 0, end: int | None = None) -> Tensor:
        """Return the C − 1 columns of the triangular root of (diag(p) − p pᵀ) / T² [C-1, n, C].

        With tail sums Q_j = Σ_{i≥j} p_i the root is V_jj = √(p_j Q_{j+1} / Q_j) and
        V_ij = −(p_i / Q_{j+1}) V_jj below the diagonal. There is no subtraction, so saturated
        probabilities keep full relative accuracy; Λ has rank C − 1, so C − 1 columns suffice.
        """
        p, diagonal, rest = self._triangular_root(outputs)
        diagonal, rest = diagonal[:, first:end], rest[:, first:end]
        below = -(p[:, :, None] / rest[:, None, :]) * diagonal[:, None, :]  # [n, C, C-1]
        roots = torch.tril(below, diagonal=-1 - first)
        roots.diagonal(-first, dim1=1, dim2=2).copy_(diagonal)
        return (roots.permute(2, 0, 1) / self.temperature).to(outputs.dtype)

    def n_roots(self, n_outputs: int) -> int:
        """Return C − 1."""
        return n_outputs - 1

    def signed_root(self, outputs: Tensor, signs: Tensor) -> Tensor:
        """Return Σ_k ε_k r_k for signs ε_k = ±1 [C-1, n], r_k the exact roots [1, n, C].

        Differs from the usual onehot(ŷ) − p, ŷ ~ Cat(p), which is unbiased too: there a confident
        datum contributes almost nothing or, rarely, a lot; here every draw has typical size. On a
        trained digits MLP (the golden case) the error of one KFAC log evidence, whose exact value
        is −759 nats, falls from +44 ± 36 to +2 ± 7 nats; see docs/reference/differences.md.

        The exact roots are never formed: with the V and Q of `hessian_roots` component i is
        ε_i V_ii − p_i Σ_{j<i} ε_j V_jj / Q_{j+1}, a running sum, so time and memory are O(n C).
        """
        p, diagonal, rest = self._triangular_root(outputs)
        signed = signs.mT.to(diagonal) * diagonal
        root = torch.nn.functional.pad(signed, (0, 1))
        root[:, 1:] -= p[:, 1:] * (signed / rest).cumsum(1)
        return (root / self.temperature).to(outputs.dtype)[None]

    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return (onehot(y) − p) / T [n, C]."""
        _check_labels(outputs, targets)
        p = self._log_probability(outputs.detach()).exp()
        return (_onehot_minus(p, targets) / self.temperature).to(outputs.dtype)

    def _triangular_root(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return p [n, C], V_jj [n, C-1] and Q_{j+1} [n, C-1], 1 where V_jj is 0; float64."""
        p = self._log_probability(outputs.detach()).exp()
        tail = p.flip(1).cumsum(1).flip(1)
        head, rest = p[:, :-1], tail[:, 1:]
        alive = (head > 0) & (rest > 0)
        diagonal = torch.where(alive, (head * (rest / tail[:, :-1].clamp(min=1e-300))).sqrt(), 0.0)
        return p, diagonal, torch.where(alive, rest, 1.0)

    def _log_probability(self, outputs: Tensor) -> Tensor:
        return torch.log_softmax(outputs.double() / self.temperature, dim=1)


@dataclass(frozen=True)
class Gaussian:
    """Independent Gaussian noise of standard deviation σ u_c in output c; targets float [n, C].

    noise_std  σ
    unit       u_c, a scale of each output; all 1 if empty
    """

    noise_std: float
    unit: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for value in (self.noise_std, *self.unit):
            if not (value > 0 and math.isfinite(value)):
                raise UserError(f"`noise_std > 0` must hold, but got {value}").with_code(
                    "noise-std-not-positive"
                )

    def log_likelihood(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return Σ_c −RSS_c/(2 σ² u_c²) − (n/2) log(2 π σ² u_c²) in nats, float64 []."""
        rss = self.squared_error(outputs, targets)
        of_noise = 0.5 * outputs.numel() * self._log_variance_2pi
        return -0.5 * rss / self.noise_std**2 - of_noise - len(outputs) * self._log_unit

    def squared_error(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return Σ_n Σ_c (y_nc − f_nc)² / u_c², float64 []."""
        _check_real(outputs, targets)
        return self.of_unit(targets.double() - outputs.double()).square().sum()

    def nll_mean(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over data, sum over outputs, of −log p(y_n|f_n) in nats []."""
        _check_real(outputs, targets)
        rss_mean = self.of_unit(targets - outputs).square().sum() / len(outputs)
        of_noise = 0.5 * outputs.shape[1] * self._log_variance_2pi
        return 0.5 * rss_mean / self.noise_std**2 + of_noise + self._log_unit

    def hessian_roots(self, outputs: Tensor, first: int = 0, end: int | None = None) -> Tensor:
        """Return the C columns e_c / (σ u_c) [C, n, C]."""
        n_data, n_outputs = outputs.shape
        eye = torch.eye(n_outputs, dtype=outputs.dtype, device=outputs.device)
        scaled = self.of_unit(eye / self.noise_std)
        return scaled[first:end, None, :].expand(-1, n_data, n_outputs)

    def n_roots(self, n_outputs: int) -> int:
        """Return C."""
        return n_outputs

    def signed_root(self, outputs: Tensor, signs: Tensor) -> Tensor:
        """Return ε_c / (σ u_c) for signs ε = ±1 [C, n] [1, n, C]."""
        return self.of_unit(signs.mT.to(outputs) / self.noise_std)[None]

    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return (y − f) / (σ u)² [n, C]; hence the empirical Fisher scales as 1/σ⁴."""
        _check_real(outputs, targets)
        scaled = self.of_unit(self.of_unit(targets - outputs.detach()))
        return (scaled / self.noise_std**2).to(outputs.dtype)

    def of_unit(self, values: Tensor) -> Tensor:
        """Return values [..., C] divided by the unit of each output.

        Raises:
            ValueError: if there are more or fewer units than outputs.
        """
        if not self.unit:
            return values
        if values.shape[-1] != len(self.unit):
            raise UserError(
                f"`noise_std` must be one number, or one for each of {values.shape[-1]} outputs, "
                f"but has {len(self.unit)}"
            ).with_code("noise-std-per-output")
        return values / values.new_tensor(self.unit)

    @property
    def _log_variance_2pi(self) -> float:
        return math.log(2 * math.pi * self.noise_std**2)

    @property
    def _log_unit(self) -> float:
        """Return Σ_c log u_c."""
        return math.fsum(map(math.log, self.unit))


def gaussian(noise_std: float | Sequence[float]) -> Gaussian:
    """Return the likelihood for one noise of all outputs, or one for each.

    For several σ is their geometric mean, so that the units have the product 1.

    >>> gaussian([1.0, 4.0])
    Gaussian(noise_std=2.0, unit=(0.5, 2.0))
    """
    if isinstance(noise_std, int | float):
        return Gaussian(float(noise_std))
    each = Gaussian(1.0, tuple(map(float, noise_std))).unit
    middle = math.exp(sum(map(math.log, each)) / len(each))
    return Gaussian(middle, tuple(value / middle for value in each))


@dataclass(frozen=True)
class Heteroscedastic:
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

    factor: float = 1.0

    def __post_init__(self) -> None:
        if not (self.factor > 0 and math.isfinite(self.factor)):
            raise UserError(f"`factor > 0` must hold, but got {self.factor}").with_code(
                "spread-factor-not-positive"
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

    def log_likelihood(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return Σ ½ log τ − ½ τ (y − μ)² − ½ log 2π in nats, float64 []."""
        _check_pairs(outputs, targets)
        return -self.nll(outputs.double(), targets.double()).sum()

    def nll_mean(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over data, sum over targets, of −log p(y_n|f_n) in nats []."""
        _check_pairs(outputs, targets)
        return self.nll(outputs, targets).sum() / len(outputs)

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

    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return ∂ log p(y_n|f_n) / ∂f_n [n, 2 C]."""
        _check_pairs(outputs, targets)
        slope = self.nll_and_slope(outputs.detach().double(), targets.double())[1]
        return slope.to(outputs.dtype)

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return −log p(y|f) [...] in nats, in the dtype of outputs [..., 2 C]."""
        eta, z = outputs.chunk(2, -1)
        tau = precision_of(z)
        return self._nll(targets - eta / tau, tau)

    def nll_and_slope(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return `nll` [...] and ∂ log p(y|f) / ∂f [..., 2 C], in the dtype of outputs [..., 2 C].

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


#: τ₀, and z₀ with which τ is 1 at z = 0.
LEAST_PRECISION = 0.01
_SHIFT = math.log(math.expm1(1 - LEAST_PRECISION))


def precision_of(z: Tensor) -> Tensor:
    """Return τ = τ₀ + softplus(z + z₀), the precision of the noise for outputs z."""
    return LEAST_PRECISION + torch.nn.functional.softplus(z + _SHIFT)


def precision_slope(z: Tensor) -> Tensor:
    """Return τ′ = ∂τ/∂z, the logistic function of z + z₀."""
    return torch.sigmoid(z + _SHIFT)


def _onehot_minus(p: Tensor, labels: Tensor) -> Tensor:
    """Return onehot(labels) − p, with 1 − p_y formed as Σ_{i≠y} p_i (no cancellation)."""
    others = p.scatter(1, labels[:, None], 0.0)
    return (-others).scatter(1, labels[:, None], others.sum(1, keepdim=True))


def random_signs(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Return ±1 at random [K, n], int8, on the generator's device.

    A pass draws them batch by batch on the CPU, so that they are the same for every device, and
    moves all of them at once.
    """
    signs = torch.randint(0, 2, shape, generator=generator, device=generator.device)
    return (2 * signs - 1).to(torch.int8)


def _check_labels(outputs: Tensor, targets: Tensor) -> None:
    if outputs.ndim == 2 and outputs.shape[1] == 1:
        raise UserError(
            "the model has one output, but labels need one for each class, two for two classes; "
            "the logit f of the second class alone is the same model as outputs (0, f), "
            "torch.cat([torch.zeros_like(f), f], 1)"
        ).with_code("one-logit")
    if outputs.ndim != 2 or outputs.shape[1] < 2:
        raise UserError(
            "categorical outputs must have shape [n, C] with C >= 2, one per class, "
            f"but got {list(outputs.shape)}"
        ).with_code("categorical-output-shape")
    if targets.dtype != torch.int64 or targets.shape != outputs.shape[:1]:
        raise UserError(
            f"categorical targets must be int64 of shape [{len(outputs)}], the class of each "
            f"datum from 0, but got {targets.dtype} of shape {list(targets.shape)}; real targets "
            'need the likelihood "gaussian"'
        ).with_code("categorical-targets")


def _check_real(outputs: Tensor, targets: Tensor) -> None:
    # Shapes must be equal: broadcasting [n] against [n, 1] would give n² residuals.
    if outputs.ndim != 2 or targets.shape != outputs.shape:
        raise UserError(
            "Gaussian targets must have the shape [n, C] of the outputs, "
            f"but got {list(targets.shape)} for {list(outputs.shape)}; labels need the likelihood "
            '"categorical"'
        ).with_code("gaussian-targets")


def _check_pairs(outputs: Tensor, targets: Tensor) -> None:
    if outputs.ndim != 2 or targets.shape != (len(outputs), outputs.shape[1] / 2):
        raise UserError(
            "heteroscedastic targets must have the shape [n, C] for outputs [n, 2 C], two natural "
            f"parameters for each, but got {list(targets.shape)} for {list(outputs.shape)}; "
            'labels need the likelihood "categorical"'
        ).with_code("heteroscedastic-targets")
