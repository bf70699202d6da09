"""Prior precisions that maximise the Laplace evidence at fixed parameters.

    F_g(x) = −½ eˣ ‖θ_g‖² − ½ Σ log1p(λ e⁻ˣ)                 x = log δ_g
    F_g′   = ½ (γ_g − eˣ ‖θ_g‖²),   γ_g = Σ λ / (λ + eˣ)      (zero: MacKay 1992)
    F_g″   = −½ (Σ λ eˣ / (λ + eˣ)² + eˣ ‖θ_g‖²) < 0

    λ  eigenvalues of the curvature of the summed nll, one spectrum for each parameter tensor l
    g  a group of tensors that share one precision, up to fixed factors; see `prior_groups`

The F_g are concave and independent, so one safeguarded Newton iteration handles all groups at
once. MacKay's equation with half steps, x ← ½ (x + log γ/‖θ‖²), also converges: the slope of the
right side lies between 0 and ½. Undamped it can oscillate for ever.

log δ is clamped to [−12, 18]: a dead tensor (θ = 0, λ > 0) ends at the upper bound, one without
curvature (λ = 0, θ ≠ 0) at the lower, and one with θ = 0 and λ = 0 keeps its precision.

Large spectra are binned: 64 bins per octave, each with its count and mean. The relative error of
γ is then at most 1.5e-5, and 5e-6 in bins that are evenly filled. Newton ends with a step on the
full spectra, which squares that error.
"""

import math
from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nas_evidence.maths.blocks import Diagonal
from nas_evidence.maths.structured import BlockDiagonal
from nas_evidence.training.prior_groups import PriorGroups, Ties, ties_of

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]
Derivatives = tuple[Array, Array]
Method = Literal["newton", "adam", "mackay"]

LOG_PRECISION_RANGE = (-12.0, 18.0)
_LARGE = 4096  # eigenvalues; smaller spectra are not binned
_MAX_STEP = 3.0  # in log δ
_MAX_ITERATIONS = 100
_TOLERANCE = 1e-6  # size of the last Newton step in log δ; the error is about its square
_CHUNK = 1 << 15  # eigenvalues that fit in the cache


def update_prior_precision(
    spectra: Sequence[Tensor],
    squared_norms: Tensor,
    sizes: Sequence[int],
    prior_precision: Tensor,
    *,
    method: Method,
    steps: int,
    learning_rate: float,
    groups: PriorGroups,
    names: Sequence[str],
    shapes: Sequence[Sequence[int]] = (),
    curvature_scale: float = 1.0,
) -> Tensor:
    """Return prior precisions of higher evidence, one per parameter tensor [G], float64.

    Args:
        spectra: eigenvalues >= 0 of the curvature of each tensor.
        squared_norms: θ_lᵀθ_l [G].
        sizes: number of parameters of each tensor.
        prior_precision: starting values [G]; tied tensors start at their geometric mean.
        method: "newton" and "mackay" go to the maximum; "adam" takes `steps` steps on log δ with
            fresh moments (torch's defaults), as published by Immer et al. 2021.
        steps: steps of Adam.
        learning_rate: learning rate of Adam.
        groups: which tensors share one precision.
        names: names of the tensors.
        shapes: shapes of the tensors, if `groups` needs them.
        curvature_scale: factor on the spectra: the likelihood power, or a change of the noise.

    Raises:
        ValueError: if a spectrum does not have the size of its tensor, or for an unknown method.
    """
    found = [spectrum.numel() for spectrum in spectra]
    if found != list(sizes):
        raise ValueError(f"spectra must have the sizes of the tensors {sizes}, but have {found}")
    if method not in ("newton", "adam", "mackay"):
        raise ValueError(f"`method` must be newton, adam or mackay, but got {method!r}")
    ties = ties_of(groups, names, shapes)
    member, scale = np.array(ties.member), np.array(ties.scale)
    order = np.argsort(member, kind="stable")
    x = np.clip(log_precision_of_groups(prior_precision, ties), *LOG_PRECISION_RANGE)
    norms = np.bincount(member, scale * squared_norms.detach().cpu().numpy()).astype(np.float64)
    # λ with scale · δ is equivalent to λ / scale with δ.
    ratios = (curvature_scale / scale).tolist()
    full = [s.detach().double() for s in spectra]
    full = [s if c == 1 else s * c for s, c in zip(full, ratios, strict=True)]
    binned = _Spectrum([_binned(full[i]) for i in order], member[order], norms)
    if method == "adam":
        x = adam(binned, x, steps, learning_rate)
    elif method == "mackay":
        x = mackay(binned, x)
    else:
        x = _newton(binned, x)
        if max(found) > _LARGE:
            x = _step(x, *_full_derivatives(full, member, norms, x))
    return torch.from_numpy(np.exp(x)[member] * scale)


def log_precision_of_groups(prior_precision: Tensor, ties: Ties) -> Array:
    """Return log δ of each group [groups]: the mean over its members of log(δ_l / scale_l).

    Args:
        prior_precision: one per tensor [G].
        ties: which tensors share one precision.
    """
    member = np.array(ties.member)
    x = np.log(prior_precision.detach().cpu().double().numpy() / np.array(ties.scale))
    means: Array = np.bincount(member, x) / np.bincount(member)
    return means


def tied_precision(prior_precision: Tensor, ties: Ties) -> Tensor:
    """Return prior precisions tied by group [G], at the geometric mean, float64.

    Args:
        prior_precision: one per tensor [G].
        ties: which tensors share one precision.
    """
    x = log_precision_of_groups(prior_precision, ties)
    return torch.from_numpy(np.exp(x)[np.array(ties.member)] * np.array(ties.scale))


def precision_of_each_parameter(
    curvature: BlockDiagonal,
    squared_parameters: Tensor,
    prior_precision: Tensor,
    *,
    curvature_scale: float = 1.0,
) -> Tensor:
    """Return the precisions that maximise the evidence, one per parameter [P], float64.

    For each parameter δ θ² = h / (h + δ), hence δ = 2 / (θ² + √(θ⁴ + 4 θ² / h)).

    Args:
        curvature: diagonal curvature, h.
        squared_parameters: θ² [P].
        prior_precision: current precisions [P], kept where θ = h = 0.
        curvature_scale: factor on the curvature.

    Raises:
        ValueError: if the curvature is not diagonal.
    """
    if not all(isinstance(block, Diagonal) for block in curvature.blocks):
        raise ValueError("one precision for each parameter needs a diagonal kind")
    h = curvature_scale * torch.cat(curvature.spectra())
    square = squared_parameters.to(h)
    low, high = (math.exp(bound) for bound in LOG_PRECISION_RANGE)
    best = 2 / (square + (square.square() + 4 * square / h).sqrt())  # 0 and inf where dead
    dead = (square == 0) & (h == 0)
    return torch.where(dead, prior_precision.to(h), best).clamp(low, high).cpu()


class Slopes(Protocol):
    """F of some groups: their ‖θ‖², and at log δ = x their γ and derivatives."""

    @property
    def norms(self) -> Array:
        """Return ‖θ‖² of each group."""

    def effective(self, x: Array) -> Array:
        """Return γ of each group."""

    def derivatives(self, x: Array) -> Derivatives:
        """Return the first and second derivative of F in each x."""


class _Spectrum:
    """Eigenvalues of all groups in one array, with weights; gives the derivatives of every F_g."""

    def __init__(self, parts: list[tuple[Array, Array]], member: Index, norms: Array) -> None:
        self.values = np.concatenate([values for values, _ in parts])
        self.weights = np.concatenate([weights for _, weights in parts])
        self.norms = norms
        self.lengths = np.bincount(member, [len(values) for values, _ in parts]).astype(np.int64)
        self.starts = np.cumsum(self.lengths) - self.lengths

    def effective(self, x: Array) -> Array:
        """Return γ of each group at log δ = x [groups]."""
        share = self.values / (self.values + np.repeat(np.exp(x), self.lengths))
        gamma: Array = np.add.reduceat(self.weights * share, self.starts)
        return gamma

    def derivatives(self, x: Array) -> Derivatives:
        """Return F′ and F″ of each group at log δ = x [groups]."""
        delta = np.exp(x)
        share = self.values / (self.values + np.repeat(delta, self.lengths))
        weighted = self.weights * share
        gamma = np.add.reduceat(weighted, self.starts)
        slope = gamma - np.add.reduceat(weighted * share, self.starts)
        scatter = delta * self.norms
        return 0.5 * (gamma - scatter), -0.5 * (slope + scatter)


def _newton(spectrum: _Spectrum, x: Array) -> Array:
    """Return the maximum by Newton steps, kept in a bracket that shrinks by the sign of F′."""
    low, high = np.full_like(x, LOG_PRECISION_RANGE[0]), np.full_like(x, LOG_PRECISION_RANGE[1])
    for _ in range(_MAX_ITERATIONS):
        first, second = spectrum.derivatives(x)
        low, high = np.where(first > 0, x, low), np.where(first < 0, x, high)
        moved = _step(x, first, second)
        moved = np.where((moved < low) | (moved > high), 0.5 * (low + high), moved)
        done = bool(np.all(np.abs(moved - x) < _TOLERANCE))
        x = moved
        if done:
            break
    return x


def _step(x: Array, first: Array, second: Array) -> Array:
    step = np.divide(first, -second, out=np.zeros_like(x), where=second < 0)
    moved: Array = np.clip(x + np.clip(step, -_MAX_STEP, _MAX_STEP), *LOG_PRECISION_RANGE)
    return moved


def _full_derivatives(full: list[Tensor], member: Index, norms: Array, x: Array) -> Derivatives:
    """Return F′ and F″ from all eigenvalues, where they are."""
    delta = np.exp(x)
    on_host = all(values.device.type == "cpu" for values in full)
    sums = _sums_on_host if on_host else _sums_on_device
    gamma, squares = sums(full, member, delta)
    scatter = delta * norms
    return 0.5 * (gamma - scatter), -0.5 * (gamma - squares + scatter)


def _sums_on_host(full: list[Tensor], member: Index, delta: Array) -> tuple[Array, Array]:
    """Return Σ s and Σ s² of the shares s = λ / (λ + δ) by group, in chunks for the cache."""
    gamma, squares = np.zeros_like(delta), np.zeros_like(delta)
    buffer = np.empty(_CHUNK)
    for group, spectrum in zip(member, full, strict=True):
        values = spectrum.numpy()
        for start in range(0, len(values), _CHUNK):
            chunk = values[start : start + _CHUNK]
            share = np.add(chunk, delta[group], out=buffer[: len(chunk)])
            np.divide(chunk, share, out=share)
            gamma[group] += share.sum()
            squares[group] += share @ share
    return gamma, squares


def _sums_on_device(full: list[Tensor], member: Index, delta: Array) -> tuple[Array, Array]:
    """Return the sums of `_sums_on_host`, of which alone are copied from the device."""
    shares = [values / (values + delta[g]) for g, values in zip(member, full, strict=True)]
    sums = torch.stack([torch.stack([share.sum(), share.square().sum()]) for share in shares])
    gamma, squares = np.zeros_like(delta), np.zeros_like(delta)
    np.add.at(gamma, member, sums[:, 0].cpu().numpy())
    np.add.at(squares, member, sums[:, 1].cpu().numpy())
    return gamma, squares


def mackay(spectrum: Slopes, x: Array) -> Array:
    """Return the fixed point of δ = γ / ‖θ‖² by half steps in log δ."""
    for _ in range(_MAX_ITERATIONS):
        gamma = spectrum.effective(x)
        with np.errstate(divide="ignore", invalid="ignore"):
            target = np.log(gamma) - np.log(spectrum.norms)  # ±inf goes to a bound
        moved = np.clip(0.5 * (x + target), *LOG_PRECISION_RANGE)
        moved = np.where((gamma == 0) & (spectrum.norms == 0), x, moved)
        done = bool(np.all(np.abs(moved - x) < _TOLERANCE))
        x = moved
        if done:
            break
    return x


def adam(spectrum: Slopes, x: Array, steps: int, learning_rate: float) -> Array:
    """Return log δ after ascending with Adam (Kingma & Ba 2015)."""
    first_decay, second_decay, epsilon = 0.9, 0.999, 1e-8
    mean, square = np.zeros_like(x), np.zeros_like(x)
    for step in range(1, steps + 1):
        gradient, _ = spectrum.derivatives(x)
        mean = first_decay * mean + (1 - first_decay) * gradient
        square = second_decay * square + (1 - second_decay) * gradient**2
        scale = np.sqrt(square / (1 - second_decay**step)) + epsilon
        x = x + learning_rate * mean / (1 - first_decay**step) / scale
        x = np.clip(x, *LOG_PRECISION_RANGE)
    return x


def _binned(spectrum: Tensor) -> tuple[Array, Array]:
    """Return means and counts of 64 bins per octave, by the leading bits of the floats."""
    if len(spectrum) <= _LARGE:
        return spectrum.cpu().numpy(), np.ones(len(spectrum))
    if spectrum.device.type != "cpu":
        return _binned_on_device(spectrum)
    values = spectrum.numpy()
    bins = values.view(np.int64) >> 46
    bins -= bins.min()
    counts = np.bincount(bins)
    means = np.bincount(bins, values)
    used = counts > 0
    return means[used] / counts[used], counts[used].astype(np.float64)


def _binned_on_device(spectrum: Tensor) -> tuple[Array, Array]:
    """Return means and counts of the bins, of which alone are copied from the device."""
    ordered = spectrum.sort().values  # then so are their bits, for values >= 0
    bins = ordered.view(torch.int64) >> 46
    _, counts = torch.unique_consecutive(bins, return_counts=True)
    means = torch.segment_reduce(ordered, "sum", lengths=counts) / counts
    return means.cpu().numpy(), counts.double().cpu().numpy()
