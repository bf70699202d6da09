"""Classes: softmax of the outputs, divided by a temperature."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from nas_evidence.likelihoods import ABSURD, Likelihood, Scale, each_alone
from nas_evidence.likelihoods.predictive import Classes, Predictive
from nas_evidence.plumbing.user_error import UserError


@dataclass(frozen=True)
class Categorical(Likelihood):
    """Classes with softmax probabilities; targets are int64 [n].

    temperature  T, the divisor of the outputs
    """

    name: ClassVar[str] = "categorical"
    says: ClassVar[type[Predictive]] = Classes
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise UserError(
                "temperature-not-positive",
                f"`temperature > 0` must hold, but got {self.temperature}",
            )

    @property
    def scale(self) -> float:
        """Return T."""
        return self.temperature

    @classmethod
    def of_scale(cls, scale: Scale) -> "Categorical":
        """Return the likelihood with this temperature."""
        assert not isinstance(scale, tuple)
        return cls(scale)

    @staticmethod
    def shaped(targets: Tensor) -> Tensor:
        """Return whole numbers as int64, others as they are, for `check` to refuse."""
        return targets if targets.is_floating_point() else targets.long()

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Do nothing for outputs [n, C], C >= 2, and labels int64 [n]; see `Likelihood`."""
        _check_labels(outputs, targets)

    def check_values(self, targets: Tensor, n_outputs: int) -> None:
        """Do nothing for labels from 0 to C − 1; see `Likelihood`."""
        if targets.is_floating_point() or n_outputs < 2:
            return  # `check` refuses them
        low, high = torch.stack(targets.aminmax()).tolist()
        if low < 0 or high >= n_outputs:
            raise UserError(
                "labels-out-of-range",
                f"labels must be from 0 to {n_outputs - 1}, one fewer than the "
                f"outputs of the model, but range from {low} to {high}{_ignored(low)}",
            )

    def nll(
        self,
        outputs: Tensor,
        targets: Tensor,
        scale: Tensor | None = None,
        mean: Callable[[Tensor], Tensor] = each_alone,
    ) -> Tensor:
        """Return −log p(y_n|f_n) [..., n]; see `Likelihood`."""
        divided = self._divided(outputs, scale).flatten(0, -2)
        each = F.cross_entropy(divided, targets.flatten(), reduction="none")
        return mean(each.view(targets.shape))

    def nll_and_slope(
        self, outputs: Tensor, targets: Tensor, scale: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the nll [..., n] and (onehot(y) − p) / T [..., n, C]; see `Likelihood`."""
        logs = self._divided(outputs, scale).log_softmax(-1)
        slope = _onehot_minus(logs.exp(), targets)
        return -_at_label(logs, targets), self._divided(slope, scale)

    def descent(
        self, outputs: Tensor, targets: Tensor, shares: Tensor | float, scale: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the mean nll [K] and its gradient times T² [K, n, C]; see `Likelihood`.

        It takes fewer operators than `nll_and_slope`, and 1 − p_y by subtraction.
        """
        logs, index = self._divided(outputs, scale).log_softmax(-1), targets.unsqueeze(-1)
        at_label = logs.gather(-1, index).mul_(shares)
        nll = at_label.sum((1, 2)).neg_()
        back = logs.exp_().scatter_add_(-1, index, at_label.fill_(-1))
        back.mul_(shares)
        return nll, back if scale is None else back.mul_(scale[:, None])

    def best_constant(self, targets: Tensor) -> float:
        """Return the log likelihood of the frequencies of the classes; see `Likelihood`."""
        counts = torch.bincount(targets).double()
        return float(torch.xlogy(counts, counts / counts.sum()).sum())

    def loss_limit(self, n_targets: int) -> float:
        """Return 10⁴ times the nll of equal probabilities, log C; see `Likelihood`."""
        return ABSURD * math.log(n_targets)

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

    def at(self, factor: float) -> "Categorical":
        """Return the same at another temperature."""
        return replace(self, temperature=factor * self.temperature)

    def held(self, outputs: Tensor, hold: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the logits as they are."""
        return outputs

    def hits(self, outputs: Tensor, targets: Tensor) -> int | None:
        """Return how many data are of the most probable class."""
        return int((outputs.argmax(-1) == targets).sum())

    def predictive(
        self, outputs: Tensor, covariance: Tensor | None = None, most_std: float = math.inf
    ) -> Classes:
        """Return class probabilities; see `Likelihood`."""
        spread = torch.full((len(outputs), 1), self.temperature, dtype=torch.float64)
        return Classes(outputs, spread.to(outputs.device), covariance)

    def _triangular_root(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return p [n, C], V_jj [n, C-1] and Q_{j+1} [n, C-1], 1 where V_jj is 0; float64."""
        p = self._divided(outputs.detach().double()).log_softmax(1).exp()
        tail = p.flip(1).cumsum(1).flip(1)
        head, rest = p[:, :-1], tail[:, 1:]
        alive = (head > 0) & (rest > 0)
        diagonal = torch.where(alive, (head * (rest / tail[:, :-1].clamp(min=1e-300))).sqrt(), 0.0)
        return p, diagonal, torch.where(alive, rest, 1.0)

    def _divided(self, values: Tensor, scale: Tensor | None = None) -> Tensor:
        """Return values [..., n, C] divided by the temperature."""
        if scale is not None:
            return values / scale[:, None]
        return values if self.temperature == 1 else values / self.temperature


def _at_label(values: Tensor, labels: Tensor) -> Tensor:
    return values.gather(-1, labels[..., None]).squeeze(-1)


def _onehot_minus(p: Tensor, labels: Tensor) -> Tensor:
    """Return onehot(labels) − p, with 1 − p_y formed as Σ_{i≠y} p_i (no cancellation)."""
    index = labels[..., None]
    others = p.scatter(-1, index, 0.0)
    return (-others).scatter(-1, index, others.sum(-1, keepdim=True))


def _ignored(low: int) -> str:
    """Return what to do about labels that a loss would leave out."""
    if low >= 0:
        return ""
    return (
        f"; a label of {low} counts in no likelihood, as with ignore_index of cross_entropy: "
        "leave its rows out"
    )


def _check_labels(outputs: Tensor, targets: Tensor) -> None:
    if outputs.ndim == 2 and outputs.shape[1] == 1:
        raise UserError(
            "one-logit",
            "the model has one output, but labels need one for each class, two for two classes; "
            "the logit f of the second class alone is the same model as outputs (0, f), "
            "torch.cat([torch.zeros_like(f), f], 1)",
        )
    if outputs.ndim != 2 or outputs.shape[1] < 2:
        raise UserError(
            "categorical-output-shape",
            "categorical outputs must have shape [n, C] with C >= 2, one per class, "
            f"but got {list(outputs.shape)}",
        )
    if targets.dtype != torch.int64 or targets.shape != outputs.shape[:1]:
        raise UserError(
            "categorical-targets",
            f"categorical targets must be int64 of shape [{len(outputs)}], the class of each "
            f"datum from 0, but got {targets.dtype} of shape {list(targets.shape)}; real targets "
            'need the likelihood "gaussian"',
        )
