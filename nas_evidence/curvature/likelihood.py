"""Likelihoods: log probability, its gradient, and square roots of the output Hessian.

    log p(D|θ) = Σ_n log p(y_n|f_n)        Λ_n = −∂² log p(y_n|f_n) / ∂f_n ∂f_nᵀ = Σ_k r_k r_kᵀ

    f_n  outputs of the network [C]   categorical      Λ = (diag(p) − p pᵀ) / T²,  p = softmax(f/T)
    y_n  target                       Gaussian         Λ = I / s²
                                      heteroscedastic  Λ = diag(τ, ½),  f = (μ, log τ)

The last Λ is the generalised Gauss-Newton matrix of the natural parameters; see `Heteroscedastic`.

Logs are natural and include all constants; larger is better. Probabilities, sums over data and
roots are computed in float64; gradients and roots are returned in the dtype of the outputs, ready
for a backward pass.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from nas_evidence.plumbing.user_error import UserError

#: Largest |log τ| of a heteroscedastic target: standard deviations from 3e-7 to 3e6 of it.
MOST_LOG_PRECISION = 30.0


class Likelihood(Protocol):
    """What the curvature pass and the training loop need from a likelihood."""

    def log_likelihood(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return Σ_n log p(y_n|f_n) in nats, float64 []."""

    def nll_mean(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return −(1/n) Σ_n log p(y_n|f_n) in nats [], differentiable."""

    def hessian_roots(self, outputs: Tensor) -> Tensor:
        """Return r [K, n, C] with Σ_k r_k r_kᵀ = Λ_n, exactly."""

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

    def hessian_roots(self, outputs: Tensor) -> Tensor:
        """Return the C − 1 columns of the triangular root of (diag(p) − p pᵀ) / T² [C-1, n, C].

        With tail sums Q_j = Σ_{i≥j} p_i the root is V_jj = √(p_j Q_{j+1} / Q_j) and
        V_ij = −(p_i / Q_{j+1}) V_jj below the diagonal. There is no subtraction, so saturated
        probabilities keep full relative accuracy; Λ has rank C − 1, so C − 1 columns suffice.
        """
        p, diagonal, rest = self._triangular_root(outputs)
        below = -(p[:, :, None] / rest[:, None, :]) * diagonal[:, None, :]  # [n, C, C-1]
        roots = torch.tril(below, diagonal=-1)
        roots.diagonal(dim1=1, dim2=2).copy_(diagonal)
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
    """Independent Gaussian noise of standard deviation `noise_std`; targets are float [n, C]."""

    noise_std: float

    def __post_init__(self) -> None:
        if not (self.noise_std > 0 and math.isfinite(self.noise_std)):
            raise UserError(f"`noise_std > 0` must hold, but got {self.noise_std}").with_code(
                "noise-std-not-positive"
            )

    def log_likelihood(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return −RSS/(2 s²) − (n C/2) log(2 π s²) in nats, float64 []."""
        _check_real(outputs, targets)
        rss = (targets.double() - outputs.double()).square().sum()
        return -0.5 * rss / self.noise_std**2 - 0.5 * outputs.numel() * self._log_variance_2pi

    def nll_mean(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over data, sum over outputs, of −log p(y_n|f_n) in nats []."""
        _check_real(outputs, targets)
        rss_mean = (targets - outputs).square().sum() / len(outputs)
        return 0.5 * rss_mean / self.noise_std**2 + 0.5 * outputs.shape[1] * self._log_variance_2pi

    def hessian_roots(self, outputs: Tensor) -> Tensor:
        """Return the C columns e_c / s [C, n, C]."""
        n_data, n_outputs = outputs.shape
        eye = torch.eye(n_outputs, dtype=outputs.dtype, device=outputs.device) / self.noise_std
        return eye[:, None, :].expand(n_outputs, n_data, n_outputs)

    def n_roots(self, n_outputs: int) -> int:
        """Return C."""
        return n_outputs

    def signed_root(self, outputs: Tensor, signs: Tensor) -> Tensor:
        """Return ε / s for signs ε = ±1 [C, n] [1, n, C]."""
        return (signs.mT.to(outputs) / self.noise_std)[None]

    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return (y − f) / s² [n, C]; hence the empirical Fisher scales as 1/s⁴."""
        _check_real(outputs, targets)
        return ((targets - outputs.detach()) / self.noise_std**2).to(outputs.dtype)

    @property
    def _log_variance_2pi(self) -> float:
        return math.log(2 * math.pi * self.noise_std**2)


@dataclass(frozen=True)
class Heteroscedastic:
    """Gaussian noise whose precision is a second output for each target; targets float [n, C].

        f = (μ, log τ)  outputs [n, 2 C]: first the C means, then the C log precisions
        −log p(y|f) = ½ τ (y − μ)² − ½ log τ + ½ log 2π

    The natural parameters are η₁ = τ μ and η₂ = −½ τ < 0 (Immer et al. 2023, Effective Bayesian
    heteroscedastic regression with deep neural networks). The Hessian of −log p in them is that of
    the log normaliser A(η) = −η₁²/(4 η₂) − ½ log(−2 η₂), the covariance of (y, y²). With the
    Jacobian G = ∂η/∂f of the link, the generalised Gauss-Newton matrix is

        Λ = Gᵀ ∇²A G = diag(τ, ½)

    It is the Fisher information in f, E r rᵀ with r the residual of y ~ p(y|f), for this link as
    for any smooth one: the part of the Hessian left out has mean zero. The whole Hessian in f,
    [[τ, −τ z], [−τ z, ½ τ z²]] with z = y − μ, is indefinite wherever z ≠ 0.

    Why this link: the mean is linear in the last layer, so its variance needs no further
    approximation, and it cannot become a ratio of two small numbers far from the data. Λ is
    diagonal, and the information on log τ is the same at any noise. At outputs of 0 a
    standardised target has its mean 0 and variance 1. Log precisions act within
    ±`MOST_LOG_PRECISION`.

    factor  on every standard deviation; 1 but for predictions at another scale
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        if not (self.factor > 0 and math.isfinite(self.factor)):
            raise UserError(f"`factor > 0` must hold, but got {self.factor}").with_code(
                "spread-factor-not-positive"
            )

    def mean(self, outputs: Tensor) -> Tensor:
        """Return the means μ [n, C] of the targets for outputs [n, 2 C]."""
        return outputs[..., : outputs.shape[-1] // 2]

    def variance(self, outputs: Tensor) -> Tensor:
        """Return the variances 1/τ of the targets [n, C], float64, for outputs [n, 2 C].

        >>> Heteroscedastic().variance(torch.tensor([[5.0, 0.0]]))
        tensor([[1.]], dtype=torch.float64)
        """
        return (-self._log_precision(outputs.double())).exp()

    def log_likelihood(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return Σ ½ log τ − ½ τ (y − μ)² − ½ log 2π in nats, float64 []."""
        _check_pairs(outputs, targets)
        return -self.nll(outputs.double(), targets.double()).sum()

    def nll_mean(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over data, sum over targets, of −log p(y_n|f_n) in nats []."""
        _check_pairs(outputs, targets)
        return self.nll(outputs, targets).sum() / len(outputs)

    def hessian_roots(self, outputs: Tensor) -> Tensor:
        """Return the columns √τ_c e_c and √½ e_(C+c) [2 C, n, 2 C]; 0 for log τ out of bounds."""
        return torch.diag_embed(self._root_diagonal(outputs.detach())).permute(1, 0, 2)

    def n_roots(self, n_outputs: int) -> int:
        """Return 2 C, the number of outputs."""
        return n_outputs

    def signed_root(self, outputs: Tensor, signs: Tensor) -> Tensor:
        """Return Σ_k ε_k r_k for signs ε = ±1 [2 C, n] [1, n, 2 C]."""
        return (signs.mT.to(outputs) * self._root_diagonal(outputs.detach()))[None]

    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return (τ (y − μ), ½ − ½ τ (y − μ)²) [n, 2 C]."""
        _check_pairs(outputs, targets)
        return self.slope(outputs.detach().double(), targets.double()).to(outputs.dtype)

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return −log p(y|f) [...] in nats, in the dtype of outputs [..., 2 C]."""
        log_precision = self._log_precision(outputs)
        squares = (targets - self.mean(outputs)).square() * log_precision.exp()
        return 0.5 * (squares - log_precision + math.log(2 * math.pi)).sum(-1)

    def slope(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return ∂ log p(y|f) / ∂f [..., 2 C], in the dtype of outputs [..., 2 C]."""
        error, tau = targets - self.mean(outputs), self._log_precision(outputs).exp()
        weighed = tau * error
        of_log = (0.5 - 0.5 * weighed * error) * self._moves(outputs)
        return torch.cat([weighed, of_log], -1)

    def _log_precision(self, outputs: Tensor) -> Tensor:
        free = outputs[..., outputs.shape[-1] // 2 :]
        inside = free.clamp(-MOST_LOG_PRECISION, MOST_LOG_PRECISION)
        return inside - 2 * math.log(self.factor)

    def _moves(self, outputs: Tensor) -> Tensor:
        """Return ∂ log τ / ∂ output [n, C]: 1 within the bounds, else 0."""
        return (outputs[..., outputs.shape[-1] // 2 :].abs() <= MOST_LOG_PRECISION).to(outputs)

    def _root_diagonal(self, outputs: Tensor) -> Tensor:
        """Return the diagonal of the root of Λ [n, 2 C], in the dtype of the outputs."""
        found = outputs.double()
        roots = [(0.5 * self._log_precision(found)).exp(), 0.5**0.5 * self._moves(found)]
        return torch.cat(roots, -1).to(outputs.dtype)


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
            "heteroscedastic targets must have the shape [n, C] for outputs [n, 2 C], a mean and "
            f"a log precision for each, but got {list(targets.shape)} for {list(outputs.shape)}; "
            'labels need the likelihood "categorical"'
        ).with_code("heteroscedastic-targets")
