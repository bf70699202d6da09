"""Real targets with normal noise, the same for every row."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nas_evidence.likelihoods.predictive import Reals, reals
from nas_evidence.plumbing.user_error import UserError


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

    def at(self, factor: float) -> "Gaussian":
        """Return the same at another noise."""
        return replace(self, noise_std=factor * self.noise_std)

    def mean(self, outputs: Tensor) -> Tensor:
        """Return the outputs."""
        return outputs

    def held(self, outputs: Tensor, hold: Callable[[Tensor], Tensor]) -> Tensor:
        """Return outputs held between bounds."""
        return hold(outputs)

    def hits(self, outputs: Tensor, targets: Tensor) -> int | None:
        """Return None: no value has a probability."""
        return None

    def predictive(
        self, outputs: Tensor, covariance: Tensor | None = None, most_std: float = math.inf
    ) -> Reals:
        """Return normal distributions; see `Likelihood`."""
        unit = torch.tensor(self.unit or 1.0, dtype=torch.float64, device=outputs.device)
        of_weights = None if covariance is None else covariance.diagonal(dim1=1, dim2=2)
        return reals(outputs, unit.square() * self.noise_std**2, of_weights, most_std)

    def restored(self, table: Tensor) -> Reals:
        """Return normal distributions from their table [n, 2 C]; see `Likelihood`."""
        half = table.shape[1] // 2
        return Reals(table[:, :half], table[:, half:])

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


def _check_real(outputs: Tensor, targets: Tensor) -> None:
    # Shapes must be equal: broadcasting [n] against [n, 1] would give n² residuals.
    if outputs.ndim != 2 or targets.shape != outputs.shape:
        raise UserError(
            "Gaussian targets must have the shape [n, C] of the outputs, "
            f"but got {list(targets.shape)} for {list(outputs.shape)}; labels need the likelihood "
            '"categorical"'
        ).with_code("gaussian-targets")
