"""Sampled Kronecker curvature of K perceptrons as one program, each on its own data.

    h_0 = x       h_l = max(0, h_{l−1} W_lᵀ + b_l)      f = h_L without max
    g_L = r       g_{l−1} = (g_l W_l) ∘ [h_{l−1} > 0]   r  one random root of the output Hessian
    SA_l = Σ_n h_{l−1} h_{l−1}ᵀ,   SB_l = Σ_n g_l g_lᵀ; blocks SB_l ⊗ SA_l / N and SB_l

The draws, the sums and the blocks are those of `layerwise`, with their dtypes. On few rows a pass
of one network is mostly calls, which all networks share here. Rows are padded to those of the
largest data set, and padding counts nowhere.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from nas_evidence.curvature import CurvaturePass
from nas_evidence.curvature.layers import WeightLayer, is_perceptron
from nas_evidence.curvature.layerwise import (
    DOUBLE,
    FEW_OUTPUTS,
    WIDE_INPUTS,
    Inputs,
    Sums,
)
from nas_evidence.curvature.wide import keeps_rows
from nas_evidence.likelihoods import Likelihood, as_double, random_signs, scales_of
from nas_evidence.maths.blocks import Block, Dense, Kronecker, Once, without_noise
from nas_evidence.maths.eigenvalues import eigenvalues
from nas_evidence.maths.full_precision import full_precision
from nas_evidence.maths.structured import BlockDiagonal, Known, Spectra

#: The kind of curvature.
KIND = "kfac_ggn_mc"


@dataclass(frozen=True)
class Member:
    """One of the networks.

    model       a perceptron; see `can_join`
    inputs      [n, ...], on the device of the model
    targets     of these rows
    likelihood  of the targets
    generator   of the random signs
    kept        factors of the inputs of earlier passes over the same data
    """

    model: nn.Module
    inputs: Any
    targets: Tensor
    likelihood: Likelihood
    generator: torch.Generator
    kept: dict[Any, Any]


def can_join(model: nn.Module, n_rows: int) -> bool:
    """Tell whether a network of the models of a study can be a `Member`, with so many rows."""
    return is_perceptron(model) and not any(keeps_rows(m, n_rows) for m in model.modules())


def kroneckers_side_by_side(
    members: Sequence[Member], *, batch_size: int, n_draws: int = 1
) -> list[list[CurvaturePass]]:
    """Return the draws of the sampled Kronecker curvature of each network.

    Args:
        members: of one architecture, by any number.
        batch_size: rows at a time.
        n_draws: independent draws; the first does not depend on how many follow.
    """
    started = time.perf_counter()
    with torch.no_grad(), full_precision():
        pass_ = _Pass.of(members, batch_size, n_draws)
        pass_.run()
        found = [pass_.draw(k) for k in range(n_draws)]
        fits = pass_.fits()
    seconds = (time.perf_counter() - started) / (len(members) * n_draws)
    return [
        [
            CurvaturePass(
                curvature=draw[k],
                log_likelihood=log_likelihood,
                n_data=len(member.targets),
                seconds=seconds,
                n_outputs=pass_.n_outputs,
                squared_errors=tuple(squared),
            )
            for draw in found
        ]
        for k, (member, (log_likelihood, *squared)) in enumerate(zip(members, fits, strict=True))
    ]


@dataclass(frozen=True)
class _StackedLayer:
    """A layer of K networks: weights [K, O, I] and biases [K, 1, O], and of one its module."""

    weight: Tensor
    bias: Tensor
    module: nn.Linear

    @property
    def doubles_inputs(self) -> bool:
        """Whether SA of a hidden layer is summed in float64."""
        return self.module.in_features > WIDE_INPUTS

    @property
    def doubles_gradients(self) -> bool:
        """Whether SB is summed in float64."""
        return self.module.out_features <= FEW_OUTPUTS


class _Pass:
    """The sums of a pass over the data, batch by batch."""

    def __init__(
        self,
        members: Sequence[Member],
        layers: Sequence[_StackedLayer],
        batch_size: int,
        n_draws: int,
    ) -> None:
        self.members, self.layers = members, layers
        self.batch_size, self.n_draws = batch_size, n_draws
        self.counts = [len(member.targets) for member in members]
        self.n_outputs = layers[-1].module.out_features
        self._first = [Inputs(member.inputs, batch_size, kept=member.kept) for member in members]
        name = next(name for name, _ in members[0].model.named_parameters())
        path, _, _ = name.rpartition(".")
        self._read = WeightLayer(path, layers[0].module, (name,))
        self.inputs, self.gradients = Sums(), [Sums() for _ in range(n_draws)]
        self._fits: list[Tensor] = []  # of each batch [K, 1 + C]

    @classmethod
    def of(cls, members: Sequence[Member], batch_size: int, n_draws: int) -> "_Pass":
        """Return a pass over the data of some networks, before its first batch."""
        rows = [list(member.model.parameters()) for member in members]
        tensors = [torch.stack([p.detach() for p in same]) for same in zip(*rows, strict=True)]
        modules = [m for m in members[0].model.modules() if isinstance(m, nn.Linear)]
        layers = [
            _StackedLayer(weight, bias[:, None], module)
            for weight, bias, module in zip(tensors[::2], tensors[1::2], modules, strict=True)
        ]
        return cls(members, layers, batch_size, n_draws)

    def run(self) -> None:
        """Take all data."""
        counted = zip(self.members, self.counts, strict=True)
        signs = [self._signs(member, n) for member, n in counted]
        for start in range(0, max(self.counts), self.batch_size):
            rows = slice(start, start + self.batch_size)
            sizes = [len(range(n)[rows]) for n in self.counts]
            real = None if min(sizes) == max(sizes) else _is_real(sizes, self.layers[0].weight)
            hidden = self._forward(rows, real, max(sizes))
            outputs = hidden.pop()
            self._fits.append(self._fit(outputs, rows, real))
            for at, layer_inputs in enumerate(hidden[1:], 1):
                double = self.layers[at].doubles_inputs
                self.inputs.add_gram(str(at), layer_inputs.double() if double else layer_inputs)
            for draw in range(self.n_draws):
                roots = self._roots(outputs, [one[draw][:, rows] for one in signs], sizes)
                self._backward(roots, hidden, self.gradients[draw])

    def fits(self) -> list[list[float]]:
        """Return the log likelihood in nats and the squared errors of each network."""
        found: list[list[float]] = torch.stack(self._fits).sum(0).tolist()
        return found

    def draw(self, k: int) -> list[BlockDiagonal]:
        """Return the curvature of each network for a draw."""
        n, together = len(self.members), self._factors(k)
        names = tuple(name for name, _ in self.members[0].model.named_parameters())
        traces = together.traces()
        return [
            BlockDiagonal(
                names, together.blocks(one), Known(traces[one], partial(together.spectra, one))
            )
            for one in range(n)
        ]

    def _signs(self, member: Member, n: int) -> list[Tensor]:
        """Return the random signs of all rows for each draw [n_roots, n]; see `Sweep`."""
        n_roots = member.likelihood.n_roots(self.n_outputs)
        sizes = [min(self.batch_size, n - at) for at in range(0, n, self.batch_size)]
        device = member.targets.device
        return [
            torch.cat([random_signs((n_roots, size), member.generator) for size in sizes], 1).to(
                device
            )
            for _ in range(self.n_draws)
        ]

    def _fit(self, outputs: Tensor, rows: slice, real: Tensor | None) -> Tensor:
        """Return log likelihoods in nats and squared errors of a batch [K, 1 + C], float64."""
        targets = [member.targets[rows] for member in self.members]
        likelihoods = [member.likelihood for member in self.members]
        for likelihood, of_one, y in zip(likelihoods, outputs, targets, strict=True):
            likelihood.check(of_one[: len(y)], y)
        exact = outputs.double()
        every = as_double(_stacked(targets, outputs.shape[1]))
        nll = likelihoods[0].nll(exact, every, scales_of(likelihoods, exact))
        nll = nll if real is None else nll * real[:, :, 0]
        squares = [
            likelihood.squared_errors(of_one[: len(y)], y)
            for likelihood, of_one, y in zip(likelihoods, exact, targets, strict=True)
        ]
        return torch.cat([-nll.sum(1, keepdim=True), torch.stack(squares)], 1)

    def _forward(self, rows: slice, real: Tensor | None, most: int) -> list[Tensor]:
        """Return the inputs of all layers and the outputs of a batch [K, B, d]; padding is 0."""
        parts = [member.inputs[rows].flatten(1) for member in self.members]
        for inputs, part in zip(self._first, parts, strict=True):
            if len(part):
                inputs.add(self._read, part)
        found = [_stacked(parts, most)]
        for at, layer in enumerate(self.layers):
            sums = torch.baddbmm(layer.bias, found[-1], layer.weight.mT)
            if at + 1 < len(self.layers):
                sums = sums.relu_()
            found.append(sums if real is None else sums.mul_(real))
        return found

    def _roots(self, outputs: Tensor, signs: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
        """Return a random root of the output Hessian of each row [K, B, C]; 0 for padding."""
        first = self.members[0].likelihood
        if all(member.likelihood == first for member in self.members):
            most = outputs.shape[1]
            every = _stacked([sign.mT for sign in signs], most).flatten(0, 1).mT
            return first.signed_root(outputs.flatten(0, 1), every)[0].view(outputs.shape)
        each = [
            member.likelihood.signed_root(of_one[:n], sign)[0]
            for member, of_one, sign, n in zip(self.members, outputs, signs, sizes, strict=True)
        ]
        return _stacked(each, outputs.shape[1])

    def _backward(self, roots: Tensor, hidden: Sequence[Tensor], sums: Sums) -> None:
        """Add the gradient factors of a batch."""
        back = roots
        for at in range(len(self.layers) - 1, -1, -1):
            layer = self.layers[at]
            sums.add_gram(str(at), back.double() if layer.doubles_gradients else back)
            if at:
                below = torch.bmm(back, layer.weight)
                back = torch.ops.aten.threshold_backward(below, hidden[at], 0)

    def _factors(self, draw: int) -> "_Factors":
        data = [inputs.factor(self._read.path) for inputs in self._first]
        later = [self.inputs.total(str(at)) for at in range(1, len(self.layers))]
        gradients = [self.gradients[draw].total(str(at)) for at in range(len(self.layers))]
        rounding = float(torch.finfo(self.layers[0].weight.dtype).eps)
        return _Factors(
            data,
            [member.inputs for member in self.members],
            later,
            gradients,
            self.counts,
            [DOUBLE, *(DOUBLE if one.doubles_inputs else rounding for one in self.layers[1:])],
            [DOUBLE if one.doubles_gradients else rounding for one in self.layers],
        )


@dataclass(frozen=True)
class _Factors:
    """The Kronecker factors of all layers of K networks, and their spectra once they are needed.

    data       SA of the first layer of each network, with what is known of it
    rows       A of each, the data [n, ...]: with n < I, A Aᵀ has the eigenvalues of SA but for 0
    inputs     SA of each later layer [K, I, I]
    gradients  SB of each layer [K, O, O]
    counts     data of each network
    roundings_of_inputs, roundings  ε of the dtypes that SA and SB of each layer are summed in
    """

    data: Sequence[tuple[Tensor, Once]]
    rows: Sequence[Any]
    inputs: Sequence[Tensor]
    gradients: Sequence[Tensor]
    counts: Sequence[int]
    roundings_of_inputs: Sequence[float]
    roundings: Sequence[float]

    def blocks(self, k: int) -> tuple[Block, ...]:
        """Return the blocks of a network: of the weight and the bias of layer after layer."""
        found: list[Block] = []
        for at, gradients in enumerate(self.gradients):
            inputs, once = self.data[k] if at == 0 else (self.inputs[at - 1][k : k + 1], Once())
            found.append(
                Kronecker(
                    inputs, gradients[k : k + 1], self.counts[k], 1, self.roundings[at], once,
                    n_rows=self.counts[k], rounding_of_inputs=self.roundings_of_inputs[at],
                )
            )  # fmt: skip
            found.append(Dense(gradients[k], self.roundings[at]))
        return tuple(found)

    def spectra(self, k: int) -> Spectra:
        """Return the spectra of a network, by decompositions of those of all."""
        return self._spectra[k]

    def traces(self) -> Tensor:
        """Return the trace of each block [K, G]."""
        first = torch.cat([matrix for matrix, _ in self.data])
        found = []
        for inputs, gradients in zip([first, *self.inputs], self.gradients, strict=True):
            left, right = (each.diagonal(dim1=1, dim2=2).sum(1) for each in (gradients, inputs))
            found += [self._scales * left * right, left]
        return torch.stack(found, 1)

    @cached_property
    def _scales(self) -> Tensor:
        """1 / N of each network [K]."""
        return self.gradients[0].new_tensor([1 / count for count in self.counts])

    @cached_property
    def _spectra(self) -> list[Spectra]:
        new = [
            (self._smaller(k), once, count)
            for k, ((_, once), count) in enumerate(zip(self.data, self.counts, strict=True))
            if not once.has("values")
        ]
        side = self.data[0][0].shape[1]
        stacks = [*self.gradients, *self.inputs, *(matrix for matrix, _, _ in new)]
        solved = eigenvalues([_finite(stack) for stack in stacks])
        n = len(self.gradients)
        for (_, once, count), values in zip(new, solved[n + len(self.inputs) :], strict=True):
            every = pad(values, (side - values.shape[1], 0))
            once.get("values", partial(without_noise, every, self.roundings_of_inputs[0], count))
        known = [once.get("values", _unknown) for _, once in self.data]
        of_data = torch.cat([values for values, _ in known]), torch.stack([m for _, m in known])
        later = [
            self._clean(values, rounding, ranked=True)
            for values, rounding in zip(
                solved[n : n + len(self.inputs)], self.roundings_of_inputs[1:], strict=True
            )
        ]
        scale = self._scales[:, None, None]
        parts: list[list[tuple[Tensor, Tensor]]] = []
        for values, rounding, (right, n_right) in zip(
            solved[:n], self.roundings, [of_data, *later], strict=True
        ):
            left, n_left = self._clean(values, rounding)
            weight = (scale * left[:, :, None] * right[:, None, :]).flatten(1)
            parts.append(list(zip(weight, n_left + n_right, strict=True)))
            parts.append(list(zip(left, n_left, strict=True)))
        return list(zip(*parts, strict=True))

    def _smaller(self, k: int) -> Tensor:
        """Return SA of the first layer of a network, or A Aᵀ if that is smaller [1, side, side].

        Side 240 takes 1 ms and side 1,000 takes 60: many columns are decomposed as few rows.
        """
        matrix, n = self.data[k][0], self.counts[k]
        if n >= matrix.shape[1]:
            return matrix
        rows: Tensor = self.rows[k][:n].flatten(1).to(matrix)
        return (rows @ rows.mT)[None]

    def _clean(
        self, values: Tensor, rounding: float, *, ranked: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return `without_noise` of each network [K, side], and how many were negative [K]."""
        kept, _ = without_noise(values, rounding)
        for row, n in zip(kept, self.counts, strict=True):
            if ranked and n < len(row):
                row[: len(row) - n] = 0.0
        return kept, (values < 0).sum(1)


def _unknown() -> tuple[Tensor, Tensor]:
    raise AssertionError  # the values were set before


def _finite(matrices: Tensor) -> Tensor:
    """Return 0 for matrices [K, d, d] that are not finite: of networks that have diverged."""
    finite = matrices.isfinite().all(2).all(1)[:, None, None]
    return torch.where(finite, matrices, 0.0)


def _stacked(parts: Sequence[Tensor], n: int) -> Tensor:
    """Return rows [K, n, ...] of parts with up to n rows, 0 at their ends."""
    if all(len(part) == n for part in parts):
        return torch.stack(list(parts))
    found = parts[0].new_zeros(len(parts), n, *parts[0].shape[1:])
    for into, part in zip(found, parts, strict=True):
        into[: len(part)] = part
    return found


def _is_real(sizes: Sequence[int], like: Tensor) -> Tensor:
    """Return 1 for rows of data and 0 for padding [K, B, 1]."""
    found = like.new_zeros(len(sizes), max(sizes), 1)
    for row, size in zip(found, sizes, strict=True):
        row[:size] = 1
    return found
