"""Real targets with normal noise, the same for every row."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from nas_evidence.likelihoods import ABSURD, Fit, Likelihood, Scale, each_alone
from nas_evidence.likelihoods.predictive import Predictive, Reals, reals
from nas_evidence.plumbing.user_error import UserError


@dataclass(frozen=True)
class Gaussian(Likelihood):
    """Independent Gaussian noise of standard deviation σ u_c in output c; targets float [n, C].

    noise_std  σ
    unit       u_c, a scale of each output; all 1 if empty
    """

    name: ClassVar[str] = "gaussian"
    says: ClassVar[type[Predictive]] = Reals
    noise_std: float
    unit: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for value in (self.noise_std, *self.unit):
            if not (value > 0 and math.isfinite(value)):
                raise UserError(
                    "noise-std-not-positive", f"`noise_std > 0` must hold, but got {value}"
                )

    @property
    def scale(self) -> float:
        """Return σ."""
        return self.noise_std

    @property
    def each_scale(self) -> tuple[float, ...]:
        """Return σ, or σ u_c of each output."""
        return tuple(self.noise_std * unit for unit in self.unit) or (self.noise_std,)

    @classmethod
    def of_scale(cls, scale: Scale) -> "Gaussian":
        """Return the likelihood with this noise, or one for each output; see `gaussian`."""
        return gaussian(scale)

    def common(self, scale: Tensor) -> Tensor:
        """Return the geometric means σ [K] of scales [K, 1] or [K, C]."""
        return scale[:, 0] if scale.shape[1] == 1 else scale.log().mean(1).exp()

    @staticmethod
    def shaped(targets: Tensor) -> Tensor:
        """Return real targets [n, C]."""
        return columns_of(targets)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Do nothing for targets [n, C] of the shape of the outputs; see `Likelihood`."""
        _check_real(outputs, targets)

    def nll(
        self,
        outputs: Tensor,
        targets: Tensor,
        scale: Tensor | None = None,
        mean: Callable[[Tensor], Tensor] = each_alone,
    ) -> Tensor:
        """Return −log p(y_n|f_n) [..., n]; see `Likelihood`."""
        errors, units = targets - outputs, self._units(outputs, scale)
        each = mean((errors if units is None else errors / units).square().sum(-1))
        variance = self._variance(each, scale)
        return 0.5 * each / variance + self._constant(variance, outputs.shape[-1])

    def nll_and_slope(
        self, outputs: Tensor, targets: Tensor, scale: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the nll [..., n] and (y − f) / (σ u)² [..., n, C]; see `Likelihood`."""
        errors = targets - outputs
        std = errors.new_tensor(self.each_scale) if scale is None else scale[:, None]
        of_each = 0.5 * (outputs.shape[-1] // std.shape[-1])
        constant = of_each * (2 * math.pi * std.square()).log().sum(-1)
        nll = 0.5 * (errors / std).square().sum(-1) + constant
        return nll, errors / std.square()

    def descent(
        self, outputs: Tensor, targets: Tensor, shares: Tensor | float, scale: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the mean nll [K] and its gradient times σ² [K, n, C]; see `Likelihood`."""
        residuals, units = outputs - targets, self._units(outputs, scale)
        back = residuals * shares if units is None else residuals * shares / units.square()
        half_squares = 0.5 * (residuals * back).sum((1, 2))
        variance = self._variance(half_squares, scale)
        return half_squares / variance + self._constant(variance, outputs.shape[-1]), back

    def best_constant(self, targets: Tensor) -> float:
        """Return the log likelihood of the mean of the targets; see `Likelihood`."""
        y = targets.double()
        return float(self.log_likelihood(y.mean(0).expand_as(y), y))

    def gain(self, fit: Fit, targets: Tensor, *, learned: bool) -> float:
        """Return the gain over the mean of the targets, each with its best noise if it is learned.

        With one noise for both it is (RSS₀ − RSS) / 2 σ², else ½ N Σ_c log(RSS₀_c / RSS_c) over
        the targets that vary: of a constant one nothing is to be gained.
        """
        y, found = self.of_unit(targets.double()), fit.squared_errors
        squares: list[float] = (y - y.mean(0)).square().sum(0).tolist()
        if not learned:
            return (sum(squares) - sum(found)) / (2 * self.noise_std**2)
        varying = [both for both in zip(squares, found, strict=True) if both[0]]
        if not varying:
            return -math.inf  # the constant is perfect
        if not all(left for _, left in varying):
            return math.inf
        logs = (math.log(one / left) for one, left in varying)
        gained: float = 0.5 * len(targets) * math.fsum(logs)
        return gained

    def loss_limit(self, n_targets: int) -> float:
        """Return the nll of 10⁴ times the error of a constant, for targets of variance 1."""
        log_variance = math.log(2 * math.pi * self.noise_std**2)
        return 0.5 * n_targets * (ABSURD / self.noise_std**2 + log_variance)

    def redrawn(self, targets: Tensor, generator: torch.Generator) -> Tensor:
        """Return targets with noise added; see `Likelihood`."""
        normal = torch.randn(
            targets.shape, dtype=torch.float64, device=targets.device, generator=generator
        )
        return targets + normal * normal.new_tensor(self.each_scale)

    def log_likelihood(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return Σ_c −RSS_c/(2 σ² u_c²) − (n/2) log(2 π σ² u_c²) in nats, float64 []."""
        rss = self.squared_errors(outputs, targets).sum()
        of_noise = 0.5 * outputs.numel() * math.log(2 * math.pi * self.noise_std**2)
        return -0.5 * rss / self.noise_std**2 - of_noise - len(outputs) * self._log_unit

    def squared_errors(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return Σ_n (y_nc − f_nc)² / u_c² of each output, float64 [C]."""
        _check_real(outputs, targets)
        return self.of_unit(targets.double() - outputs.double()).square().sum(0)

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

    def at(self, factor: float) -> "Gaussian":
        """Return the same at another noise."""
        return replace(self, noise_std=factor * self.noise_std)

    def predictive(
        self, outputs: Tensor, covariance: Tensor | None = None, most_std: float = math.inf
    ) -> Reals:
        """Return normal distributions; see `Likelihood`."""
        unit = torch.tensor(self.unit or 1.0, dtype=torch.float64, device=outputs.device)
        of_weights = None if covariance is None else covariance.diagonal(dim1=1, dim2=2)
        return reals(outputs, unit.square() * self.noise_std**2, of_weights, most_std)

    def of_unit(self, values: Tensor) -> Tensor:
        """Return values [..., C] divided by the unit of each output.

        Raises:
            ValueError: if there are more or fewer units than outputs.
        """
        if not self.unit:
            return values
        if values.shape[-1] != len(self.unit):
            raise UserError(
                "noise-std-per-output",
                f"`noise_std` must be one number, or one for each of {values.shape[-1]} outputs, "
                f"but has {len(self.unit)}",
            )
        return values / values.new_tensor(self.unit)

    def _variance(self, like: Tensor, scale: Tensor | None) -> Tensor:
        """Return σ² in the shape of some numbers [..., n], or [K] for the scales of networks."""
        if scale is None:
            return torch.full_like(like, self.noise_std**2)
        return self.common(scale).square().view(-1, *[1] * (like.ndim - 1))

    def _units(self, outputs: Tensor, scale: Tensor | None) -> Tensor | None:
        """Return u_c, [C] or [K, 1, C] for the scales of networks; None if all are 1."""
        if scale is None:
            return outputs.new_tensor(self.unit) if self.unit else None
        return (scale / self.common(scale)[:, None])[:, None] if scale.shape[1] > 1 else None

    def _constant(self, variance: Tensor, n_outputs: int) -> Tensor:
        """Return Σ_c ½ log(2 π σ² u_c²), for units of product 1 if there are any."""
        found = 0.5 * n_outputs * (2 * math.pi * variance).log()
        return found + self._log_unit if self.unit else found

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


def columns_of(targets: Tensor) -> Tensor:
    """Return real targets [n] or [n, C] as floats [n, C]."""
    real = targets.detach() if targets.is_floating_point() else targets.double()
    return real[:, None] if real.ndim == 1 else real


def _check_real(outputs: Tensor, targets: Tensor) -> None:
    # Shapes must be equal: broadcasting [n] against [n, 1] would give n² residuals.
    if outputs.ndim != 2 or targets.shape != outputs.shape:
        raise UserError(
            "gaussian-targets",
            "Gaussian targets must have the shape [n, C] of the outputs, "
            f"but got {list(targets.shape)} for {list(outputs.shape)}; labels need the likelihood "
            '"categorical"',
        )
